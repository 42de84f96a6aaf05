//! Replies as they are on the wire.

use std::fmt;
use std::io::BufRead;

/// A reply, with all that RESP2 and RESP3 distinguish.
#[derive(Clone, PartialEq)]
pub(crate) enum Reply {
    /// A line: status, error, integer, double, boolean or null.
    Line(char, Vec<u8>),
    /// A string, and its kind.
    Text(char, Vec<u8>),
    /// No string or no array.
    Nothing(char),
    /// Elements, and their kind; those of a map are its keys and values by turns.
    Many(char, Vec<Reply>),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(kind, text) | Self::Text(kind, text) => {
                write!(f, "{kind}\"{}\"", text.escape_ascii())
            }
            Self::Nothing(kind) => write!(f, "{kind}nothing"),
            Self::Many(kind, elements) => {
                write!(f, "{kind}")?;
                f.debug_list().entries(elements).finish()
            }
        }
    }
}

/// Reads one reply.
pub(crate) fn read(from: &mut impl BufRead) -> std::io::Result<Reply> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    let line = line
        .strip_suffix(b"\r\n")
        .ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let (kind, rest) = line.split_first().ok_or(std::io::ErrorKind::InvalidData)?;
    let kind = char::from(*kind);
    if !matches!(kind, '$' | '=' | '*' | '%' | '~' | '>') {
        return Ok(Reply::Line(kind, rest.to_vec()));
    }
    let len: i64 = std::str::from_utf8(rest)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(std::io::ErrorKind::InvalidData)?;
    let Ok(len) = usize::try_from(len) else {
        return Ok(Reply::Nothing(kind));
    };
    if matches!(kind, '$' | '=') {
        let mut text = vec![0; len + 2];
        from.read_exact(&mut text)?;
        text.truncate(len);
        return Ok(Reply::Text(kind, text));
    }
    let elements = if kind == '%' { 2 * len } else { len };
    let elements = (0..elements)
        .map(|_| read(from))
        .collect::<Result<_, _>>()?;
    Ok(Reply::Many(kind, elements))
}

/// A command as an array of strings.
pub(crate) fn command(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
