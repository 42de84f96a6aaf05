//! Where a RESP frame ends and what its parts are: as much of RESP2 and RESP3 as a proxy needs.

/// The length of the first frame, or `None` if it is not there in whole.
pub(super) fn frame_len(bytes: &[u8]) -> Option<usize> {
    let (line, head) = line(bytes)?;
    let number = || parse_len(&line[1..]);
    match line.first() {
        Some(b'$' | b'=' | b'!') => match number() {
            Some(len) => bytes.len().ge(&(head + len + 2)).then_some(head + len + 2),
            None => Some(head),
        },
        Some(b'*' | b'~' | b'>') => after(bytes, head, number().unwrap_or(0)),
        Some(b'%') => after(bytes, head, 2 * number().unwrap_or(0)),
        // An attribute belongs to the frame behind it.
        Some(b'|') => after(bytes, head, 2 * number().unwrap_or(0) + 1),
        _ => Some(head),
    }
}

/// The elements of an array or push, or the words of an inline command; of nested elements only the first line.
pub(super) fn parts(frame: &[u8]) -> Vec<Vec<u8>> {
    let Some((line, mut at)) = line(frame) else {
        return Vec::new();
    };
    if !matches!(line.first(), Some(b'*' | b'>')) {
        let words = line.split(u8::is_ascii_whitespace);
        return words
            .filter(|word| !word.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
    }
    let mut parts = Vec::new();
    for _ in 0..parse_len(&line[1..]).unwrap_or(0) {
        let Some(len) = frame_len(&frame[at..]) else {
            break;
        };
        parts.push(scalar(&frame[at..at + len]));
        at += len;
    }
    parts
}

fn scalar(frame: &[u8]) -> Vec<u8> {
    match line(frame) {
        Some((line, head)) if line.first() == Some(&b'$') && frame.len() > head => {
            frame[head..frame.len() - 2].to_vec()
        }
        Some((line, _)) => line[1..].to_vec(),
        None => Vec::new(),
    }
}

/// Skips `count` frames from `at` on.
fn after(bytes: &[u8], mut at: usize, count: usize) -> Option<usize> {
    for _ in 0..count {
        at += frame_len(&bytes[at..])?;
    }
    Some(at)
}

/// The first line without its end, and where the next one begins.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

/// `None` for -1 (nothing there) and for what is no number.
fn parse_len(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{frame_len, parts};

    const FRAMES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":12\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"%1\r\n+key\r\n*2\r\n:1\r\n:2\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n",
        b"|1\r\n+ttl\r\n:3\r\n$1\r\na\r\n",
        b"_\r\n",
        b"PING now\r\n",
    ];

    #[test]
    fn a_frame_ends_where_it_ends() {
        for frame in FRAMES {
            let mut more = frame.to_vec();
            more.extend_from_slice(b":1\r\n");
            assert_eq!(frame_len(&more), Some(frame.len()));
            for cut in 0..frame.len() {
                assert_eq!(frame_len(&frame[..cut]), None, "{cut} of {frame:?}");
            }
        }
    }

    #[test]
    fn parts_are_the_elements() {
        let [evalsha, key] = &parts(b"*2\r\n$7\r\nEVALSHA\r\n$4\r\na\r\nb\r\n")[..] else {
            panic!("two parts");
        };
        assert_eq!((&evalsha[..], &key[..]), (&b"EVALSHA"[..], &b"a\r\nb"[..]));
        assert_eq!(parts(b"PING  now\r\n"), [b"PING".to_vec(), b"now".to_vec()]);
        assert_eq!(
            parts(b"*2\r\n:1\r\n$0\r\n\r\n"),
            [b"1".to_vec(), b"".to_vec()]
        );
    }
}
