//! Numbers in text, read as strictly and written as exactly as Redis does.

use super::{Bytes, failure::Failure};

/// An integer without spaces, a plus or leading zeros.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = match digits {
        [] => false,
        [b'0'] => text.len() == 1,
        [first, rest @ ..] => matches!(first, b'1'..=b'9') && rest.iter().all(u8::is_ascii_digit),
    };
    if !is_plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A float, also an infinite one; neither NaN nor what a double cannot hold.
pub(super) fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let mantissa = text.split(|byte| matches!(byte, b'e' | b'E')).next()?;
    let has_digits = mantissa.iter().any(|byte| matches!(byte, b'1'..=b'9'));
    let is_said = text.iter().any(|byte| matches!(byte, b'n' | b'N'));
    let overflows = number.is_infinite() && !is_said;
    let underflows = number == 0.0 && has_digits;
    (!number.is_nan() && !overflows && !underflows).then_some(number)
}

pub(super) fn parse_integer(text: &[u8]) -> Result<i64, Failure> {
    integer(text).ok_or(Failure::NOT_AN_INTEGER)
}

pub(super) fn parse_float(text: &[u8]) -> Result<f64, Failure> {
    float(text).ok_or(Failure::NOT_A_FLOAT)
}

/// A double with 17 significant digits, as `%.17g` of C.
pub(super) fn double(number: f64) -> Bytes {
    const DIGITS: i32 = 17;
    // Up to here a double holds each whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.is_nan() {
        return b"nan".to_vec();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    // Most are whole, and quicker by themselves.
    if number.fract() == 0.0 && number.abs() < EXACT && (number != 0.0 || number.is_sign_positive())
    {
        #[allow(clippy::cast_possible_truncation)]
        return (number as i64).to_string().into();
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
        return trimmed(&format!("{number:.decimals$}")).into();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let exponent = exponent.abs();
    format!("{}e{sign}{exponent:02}", trimmed(mantissa)).into()
}

/// Without the zeros at the end of a fraction.
fn trimmed(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

/// The sum of two numbers in decimal, with the precision of the `long double` by which Redis adds them. None if one is
/// not a number.
pub(super) fn decimal_sum(first: &[u8], second: &[u8]) -> Option<Result<Bytes, Failure>> {
    let sum = float(first)? + float(second)?;
    if !sum.is_finite() {
        let text = "ERR increment would produce NaN or Infinity";
        return Some(Err(Failure::fixed(text)));
    }
    let exact = scaled(first).zip(scaled(second));
    let exact = exact.and_then(|(first, second)| first.checked_add(second));
    let exact = exact.and_then(as_long_double);
    Some(Ok(exact.map_or_else(
        || trimmed(&format!("{sum:.17}")).into(),
        written,
    )))
}

/// Places behind the point.
const PLACES: usize = 17;
const ONE: i128 = 10_i128.pow(17);

/// The number times [`ONE`], if that is exact.
fn scaled(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?.to_ascii_lowercase();
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().ok()?;
    let is_negative = mantissa.starts_with('-');
    let mantissa = mantissa.trim_start_matches(['-', '+']);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.len() > 20 || fraction.len() > PLACES {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    // How many zeros the digits lack behind them.
    let zeros = i32::try_from(PLACES - fraction.len()).ok()?;
    let zeros = zeros.checked_add(exponent)?;
    let power = 10_i128.checked_pow(zeros.unsigned_abs())?;
    let number = if zeros >= 0 {
        digits.checked_mul(power)?
    } else {
        (digits % power == 0).then_some(digits / power)?
    };
    Some(if is_negative { -number } else { number })
}

/// Rounds to the 64 binary digits that a `long double` has.
fn as_long_double(number: i128) -> Option<i128> {
    const DIGITS: u32 = 64;
    let (one, size) = (ONE.unsigned_abs(), number.unsigned_abs());
    let whole_digits = (size / one).checked_ilog2().map_or(0, |digits| digits + 1);
    let rounded = if whole_digits <= DIGITS {
        // A large number shifts less than a small one, so it stays in range.
        let shift = (DIGITS - whole_digits).min(size.leading_zeros());
        let mantissa = divided(size << shift, one);
        divided(mantissa.checked_mul(one)?, 1 << shift)
    } else {
        let unit = one.checked_shl(whole_digits - DIGITS)?;
        divided(size, unit).checked_mul(unit)?
    };
    let rounded = i128::try_from(rounded).ok()?;
    Some(if number < 0 { -rounded } else { rounded })
}

/// Rounded to the nearest, and to an even number in the middle.
fn divided(number: u128, by: u128) -> u128 {
    let (quotient, rest) = (number / by, number % by);
    let is_up = rest > by - rest || rest == by - rest && quotient % 2 == 1;
    quotient + u128::from(is_up)
}

fn written(number: i128) -> Bytes {
    let (whole, fraction) = (number.abs() / ONE, number.abs() % ONE);
    let sign = if number < 0 { "-" } else { "" };
    trimmed(&format!("{sign}{whole}.{fraction:0PLACES$}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(number: f64) -> String {
        String::from_utf8(double(number)).unwrap()
    }

    #[test]
    fn integers_are_read_strictly() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("+1", None),
            ("-0", None),
            ("01", None),
            (" 1", None),
            ("1.0", None),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(integer(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn doubles_have_17_digits() {
        for (number, text) in [
            (0.1, "0.10000000000000001"),
            (1.5, "1.5"),
            (3.0, "3"),
            (-0.0, "-0"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1e-5, "1.0000000000000001e-05"),
            (1.7e308, "1.6999999999999999e+308"),
            (f64::INFINITY, "inf"),
            (1_795_724_785_123.0, "1795724785123"),
        ] {
            assert_eq!(shown(number), text);
        }
    }

    #[test]
    fn decimals_add_up_as_long_doubles() {
        for (first, second, sum) in [
            ("0.1", "0.2", "0.3"),
            ("-1.5", "1.5", "0"),
            ("-0.25", "0", "-0.25"),
            ("5.0e3", "2.0e2", "5200"),
            ("10", "-0.001", "9.999"),
            ("1e3", "0.2", "1000.20000000000000001"),
            ("9223372036854775807", "2.5", "9223372036854775810"),
            ("9223372036854775807", "0.1", "9223372036854775807"),
            ("1", "0e2147483647", "1"),
            ("1", "0e-2147483648", "1"),
        ] {
            let added = decimal_sum(first.as_bytes(), second.as_bytes());
            assert_eq!(added, Some(Ok(sum.into())));
        }
    }

    #[test]
    fn floats_are_neither_nan_nor_out_of_range() {
        for text in ["nan", "1e999", "1e-999", "", "x", " 1", "1 "] {
            assert_eq!(float(text.as_bytes()), None, "{text}");
        }
        assert_eq!(float(b"-inf"), Some(f64::NEG_INFINITY));
        assert_eq!(float(b".5"), Some(0.5));
    }
}
