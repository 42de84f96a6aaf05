//! Replies, and how they are written in RESP2 and RESP3.

use std::io::Write;

use super::Bytes;

/// What a command answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A short text, as `OK`.
    Status(Bytes),
    /// An error, which begins with its code.
    Error(Bytes),
    /// An integer.
    Integer(i64),
    /// A string.
    Bulk(Bytes),
    /// A text that people read: a string in RESP2.
    Verbatim(Bytes),
    /// Nothing.
    Null,
    /// Nothing, where an array would be.
    NullArray,
    /// A number with a fraction: a string in RESP2.
    Double(f64),
    /// True or false: 1 or 0 in RESP2.
    Boolean(bool),
    /// A list.
    Array(Vec<Reply>),
    /// Pairs: a list of lists in RESP3, one flat list in RESP2.
    Pairs(Vec<(Reply, Reply)>),
    /// A map: a flat list in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// A set: a list in RESP2.
    Set(Vec<Reply>),
    /// What a subscription answers: one message for each channel.
    Pushes(Vec<Vec<Reply>>),
}

impl Reply {
    pub(super) fn ok() -> Self {
        Self::Status(b"OK".to_vec())
    }

    pub(super) fn status(text: &str) -> Self {
        Self::Status(text.into())
    }

    pub(super) fn bulk(bytes: impl Into<Bytes>) -> Self {
        Self::Bulk(bytes.into())
    }

    pub(super) fn count(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    pub(super) fn flag(is_set: bool) -> Self {
        Self::Integer(i64::from(is_set))
    }

    pub(super) fn bulk_or_null(bytes: Option<Bytes>) -> Self {
        bytes.map_or(Self::Null, Self::Bulk)
    }

    pub(super) fn bulks(items: impl IntoIterator<Item = impl Into<Bytes>>) -> Self {
        Self::Array(items.into_iter().map(Self::bulk).collect())
    }

    /// Appends the reply in this version of the protocol, 2 or 3.
    pub(super) fn write(&self, resp: u8, out: &mut Bytes) {
        let is_3 = resp == 3;
        match self {
            Self::Status(text) => line(b'+', text, out),
            Self::Error(text) => line(b'-', without_breaks(text), out),
            Self::Integer(number) => number_line(b':', *number, out),
            Self::Verbatim(bytes) if is_3 => {
                head(b'=', bytes.len() + 4, out);
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Bulk(bytes) | Self::Verbatim(bytes) => bulk(bytes, out),
            Self::Null | Self::NullArray if is_3 => out.extend_from_slice(b"_\r\n"),
            Self::Null => out.extend_from_slice(b"$-1\r\n"),
            Self::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Self::Double(number) if is_3 => line(b',', &super::number::double(*number), out),
            Self::Double(number) => bulk(&super::number::double(*number), out),
            Self::Boolean(is_true) if is_3 => {
                out.extend_from_slice(if *is_true { b"#t\r\n" } else { b"#f\r\n" });
            }
            Self::Boolean(is_true) => number_line(b':', i64::from(*is_true), out),
            Self::Array(items) => all(b'*', items, resp, out),
            Self::Set(items) => all(if is_3 { b'~' } else { b'*' }, items, resp, out),
            Self::Pushes(pushes) => {
                for items in pushes {
                    write_push(items, resp, out);
                }
            }
            Self::Pairs(pairs) if is_3 => {
                head(b'*', pairs.len(), out);
                for (first, second) in pairs {
                    head(b'*', 2, out);
                    first.write(resp, out);
                    second.write(resp, out);
                }
            }
            Self::Map(pairs) if is_3 => flat(b'%', pairs.len(), pairs, resp, out),
            Self::Pairs(pairs) | Self::Map(pairs) => {
                flat(b'*', 2 * pairs.len(), pairs, resp, out);
            }
        }
    }
}

/// Appends a message that nobody asked for: a push in RESP3, an array in RESP2.
pub(super) fn write_push(items: &[Reply], resp: u8, out: &mut Bytes) {
    all(if resp == 3 { b'>' } else { b'*' }, items, resp, out);
}

fn all(kind: u8, items: &[Reply], resp: u8, out: &mut Bytes) {
    head(kind, items.len(), out);
    for item in items {
        item.write(resp, out);
    }
}

fn flat(kind: u8, len: usize, pairs: &[(Reply, Reply)], resp: u8, out: &mut Bytes) {
    head(kind, len, out);
    for (first, second) in pairs {
        first.write(resp, out);
        second.write(resp, out);
    }
}

fn bulk(bytes: &[u8], out: &mut Bytes) {
    head(b'$', bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn head(kind: u8, len: usize, out: &mut Bytes) {
    number_line(kind, i64::try_from(len).unwrap_or(i64::MAX), out);
}

fn number_line(kind: u8, number: i64, out: &mut Bytes) {
    out.push(kind);
    // Writing to a vector cannot fail.
    let _ = write!(out, "{number}\r\n");
}

/// Without line breaks at either end.
fn without_breaks(mut text: &[u8]) -> &[u8] {
    while let [b'\r' | b'\n', rest @ ..] | [rest @ .., b'\r' | b'\n'] = text {
        text = rest;
    }
    text
}

/// A line ends where its text does, so breaks within become spaces.
fn line(kind: u8, text: &[u8], out: &mut Bytes) {
    out.push(kind);
    let breaks = |byte: &u8| matches!(byte, b'\r' | b'\n');
    out.extend(
        text.iter()
            .map(|byte| if breaks(byte) { b' ' } else { *byte }),
    );
    out.extend_from_slice(b"\r\n");
}
