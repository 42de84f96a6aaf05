//! Commands as they arrive: in pieces, several at once, as arrays or as lines.

use super::Bytes;

/// Longest line: a header, or a command in a line.
const MOST_LINE: usize = 64 * 1024;
const MOST_ARGUMENTS: i64 = 1024 * 1024;
const MOST_BULK: i64 = 512 * 1024 * 1024;
/// What a client may send before it has given its password.
const MOST_ARGUMENTS_UNAUTHENTICATED: i64 = 10;
const MOST_BULK_UNAUTHENTICATED: i64 = 16 * 1024;

/// Bytes that arrived, and the command that they make so far.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Bytes,
    /// Where the unread bytes begin.
    at: usize,
    arguments: Vec<Bytes>,
    /// Arguments that the current array still lacks.
    missing: usize,
    /// Length of the argument that comes next, once its header has been read.
    bulk: Option<usize>,
    complete: bool,
}

impl Inbox {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 && self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next command, if all of it has arrived; or what is wrong with the bytes, after which nothing can be read.
    pub(super) fn peek(&mut self, authenticated: bool) -> Result<Option<&[Bytes]>, String> {
        while !self.complete {
            if !self.step(authenticated)? {
                return Ok(None);
            }
        }
        Ok(Some(&self.arguments))
    }

    /// Takes the command that [`Self::peek`] found.
    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.complete = false;
        if self.at > MOST_LINE {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        std::mem::take(&mut self.arguments)
    }

    /// Reads one more piece; false if it has not arrived.
    fn step(&mut self, authenticated: bool) -> Result<bool, String> {
        if let Some(len) = self.bulk {
            return Ok(self.argument(len));
        }
        if self.missing > 0 {
            return self.bulk_header(authenticated);
        }
        match self.bytes.get(self.at) {
            None => Ok(false),
            Some(b'*') => self.array_header(authenticated),
            Some(_) => self.inline(),
        }
    }

    fn array_header(&mut self, authenticated: bool) -> Result<bool, String> {
        let Some(line) = self.header("too big mbulk count string")? else {
            return Ok(false);
        };
        let count = super::number::integer(&self.bytes[self.at + 1..line]);
        let count = count.filter(|count| *count <= MOST_ARGUMENTS);
        let count = count.ok_or("invalid multibulk length")?;
        if !authenticated && count > MOST_ARGUMENTS_UNAUTHENTICATED {
            return Err("unauthenticated multibulk length".into());
        }
        self.at = line + 2;
        // An empty array is no command.
        self.missing = usize::try_from(count).unwrap_or(0);
        Ok(true)
    }

    fn bulk_header(&mut self, authenticated: bool) -> Result<bool, String> {
        let Some(line) = self.header("too big bulk count string")? else {
            return Ok(false);
        };
        let kind = self.bytes[self.at];
        if kind != b'$' {
            return Err(format!("expected '$', got '{}'", char::from(kind)));
        }
        let len = super::number::integer(&self.bytes[self.at + 1..line]);
        let len = len.filter(|len| (0..=MOST_BULK).contains(len));
        let len = len.ok_or("invalid bulk length")?;
        if !authenticated && len > MOST_BULK_UNAUTHENTICATED {
            return Err("unauthenticated bulk length".into());
        }
        self.at = line + 2;
        self.bulk = usize::try_from(len).ok();
        Ok(true)
    }

    fn argument(&mut self, len: usize) -> bool {
        let end = self.at + len;
        if self.bytes.len() < end + 2 {
            return false;
        }
        self.arguments.push(self.bytes[self.at..end].to_vec());
        self.at = end + 2;
        self.bulk = None;
        self.missing -= 1;
        self.complete = self.missing == 0;
        true
    }

    /// Where the line ends that begins here, if its end has arrived.
    fn header(&self, too_long: &str) -> Result<Option<usize>, String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\r');
        match end {
            None if rest.len() > MOST_LINE => Err(too_long.into()),
            Some(end) if end + 1 < rest.len() => Ok(Some(self.at + end)),
            _ => Ok(None),
        }
    }

    fn inline(&mut self) -> Result<bool, String> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            let too_long = rest.len() > MOST_LINE;
            return if too_long {
                Err("too big inline request".into())
            } else {
                Ok(false)
            };
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        self.arguments = words(line).ok_or("unbalanced quotes in request")?;
        self.at += end + 1;
        // An empty line is no command.
        self.complete = !self.arguments.is_empty();
        Ok(true)
    }
}

/// Splits a line at spaces; quotes keep them, as at a prompt. None if a quote is not closed.
pub(super) fn words(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Bytes::new();
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            match first {
                b' ' | b'\n' | b'\r' | b'\t' | 0 => break,
                b'"' => {
                    rest = double_quoted(after, &mut word)?;
                    break;
                }
                b'\'' => {
                    rest = single_quoted(after, &mut word)?;
                    break;
                }
                other => word.push(*other),
            }
        }
        words.push(word);
    }
}

/// Reads up to the closing quote, which a space or the end must follow.
fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Bytes) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'"', after @ ..] => return ends_here(after),
            [b'\\', b'x', high, low, after @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(16 * digit(*high) + digit(*low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [other, after @ ..] => {
                word.push(*other);
                after
            }
            [] => return None,
        };
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Bytes) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\'', after @ ..] => return ends_here(after),
            [b'\\', b'\'', after @ ..] => {
                word.push(b'\'');
                after
            }
            [other, after @ ..] => {
                word.push(*other);
                after
            }
            [] => return None,
        };
    }
}

fn ends_here(rest: &[u8]) -> Option<&[u8]> {
    let ends = rest.first().is_none_or(u8::is_ascii_whitespace);
    ends.then_some(rest)
}

fn digit(hex: u8) -> u8 {
    match hex {
        b'0'..=b'9' => hex - b'0',
        b'a'..=b'f' => hex - b'a' + 10,
        _ => hex.wrapping_sub(b'A').wrapping_add(10),
    }
}
