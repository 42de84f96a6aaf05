//! What people read: names that may hold anything, times, and tables.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::status::{Failure, Status};

/// A name from Redis. Control characters are escaped, and bytes that are no UTF-8 are `\xNN`, so it stays in its line and
/// says nothing to a terminal.
pub(crate) fn shown(name: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                shown.push_str("\\\\");
            } else {
                push_printable(&mut shown, c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// A message, which may repeat what a server said: control characters are escaped.
pub(crate) fn printable(message: &str) -> String {
    let mut printable = String::new();
    for c in message.chars() {
        push_printable(&mut printable, c);
    }
    printable
}

fn push_printable(text: &mut String, c: char) {
    // Also characters that turn the direction of the text around them.
    if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
        text.extend(c.escape_default());
    } else {
        text.push(c);
    }
}

/// `26.4s`, `3m12s`, `5h02m`, `3d04h`.
pub(crate) fn time(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}.{}s", ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Columns of equal width, two spaces apart.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    for row in rows {
        let start = table.len();
        for (width, cell) in widths.iter().zip(row) {
            table.push_str(cell);
            let spaces = width + 2 - cell.chars().count();
            table.extend(std::iter::repeat_n(' ', spaces));
        }
        let end = start + table[start..].trim_end().len();
        table.truncate(end);
        table.push('\n');
    }
    table
}

/// Writes an answer to stdout. Nobody who reads on is no failure, as behind `head`.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let text = format!("cannot write the answer: {error}");
            Err(Failure::new(Status::NOT_WRITTEN, text))
        }
        _ => Ok(()),
    }
}

/// Says something on stderr. Returns whether it could; few care, because there is nobody else to tell.
pub(crate) fn say(text: &str) -> bool {
    io::stderr().write_all(text.as_bytes()).is_ok()
}

/// Says something in a line of its own, as this program.
pub(crate) fn warn(message: &str) {
    say(&format!("watchlock: {}\n", printable(message)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_line() {
        assert_eq!(shown("größe:1".as_bytes()), "größe:1");
        assert_eq!(shown(b"a\nb\x1b[31m\\"), "a\\nb\\u{1b}[31m\\\\");
        assert_eq!(shown(b"\xff\x00z"), "\\xff\\u{0}z");
        assert_eq!(shown("\u{202e}".as_bytes()), "\\u{202e}");
    }

    #[test]
    fn messages_keep_their_backslashes() {
        assert_eq!(
            printable("\"a\\tb\" \x1b[0m\u{9b}é"),
            "\"a\\tb\" \\u{1b}[0m\\u{9b}é"
        );
    }

    #[test]
    fn times_have_two_units() {
        let times = [0, 940, 26_450, 60_000, 192_000, 18_120_000, 273_600_000].map(time);
        assert_eq!(
            times,
            ["0.0s", "0.9s", "26.4s", "1m00s", "3m12s", "5h02m", "3d04h"]
        );
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "b", ""], ["größe", "c", "d"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "a      b\ngröße  c  d\n");
    }
}
