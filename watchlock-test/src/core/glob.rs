//! Patterns of `KEYS`, `SCAN`, `PSUBSCRIBE` and ACL rules.

/// Whether a key or an element matches. All match a lone star.
pub(super) fn matches_element(pattern: &[u8], element: &[u8]) -> bool {
    pattern == b"*" || matches(pattern, element)
}

/// Whether the text matches: `*`, `?`, `[a-z]`, `[^a]`, and a backslash before what is meant literally.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Not even a star matches nothing, as in Redis 7.0.
    if text.is_empty() {
        return pattern.is_empty();
    }
    // Where to go on after a mismatch: behind the last star, which takes one more byte.
    let mut retry: Option<(&[u8], &[u8])> = None;
    let (mut pattern, mut text) = (pattern, text);
    loop {
        if let Some(rest) = pattern.strip_prefix(b"*") {
            retry = Some((rest, text));
            pattern = rest;
            continue;
        }
        let step = match (pattern, text) {
            ([], []) => return true,
            (_, []) | ([], _) => None,
            (_, [byte, rest @ ..]) => after_one(pattern, *byte).map(|pattern| (pattern, rest)),
        };
        if let Some(next) = step {
            (pattern, text) = next;
            continue;
        }
        match retry {
            Some((behind, [_, rest @ ..])) => {
                retry = Some((behind, rest));
                (pattern, text) = (behind, rest);
            }
            _ => return false,
        }
    }
}

/// The rest of the pattern, if its beginning matches this byte.
fn after_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte).then_some(rest),
        [] => None,
    }
}

/// The rest behind the closing bracket; an open class ends with the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (is_inverted, mut rest) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut is_in = false;
    loop {
        rest = match rest {
            [] => break,
            [b'\\', literal, after @ ..] => {
                is_in |= *literal == byte;
                after
            }
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [from, b'-', to, after @ ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                after
            }
            [literal, after @ ..] => {
                is_in |= *literal == byte;
                after
            }
        };
    }
    (is_in != is_inverted).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", false),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("a*b*c", "aXbYbZc", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("[a", "a", true),
            ("***a", "ba", true),
            ("app:*", "app", false),
        ] {
            let matched = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(matched, expected, "{pattern} {text}");
        }
    }
}
