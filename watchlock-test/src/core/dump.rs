//! What `DUMP` writes and `RESTORE` reads: a form of our own.

use std::collections::{BTreeSet, VecDeque};

use super::Bytes;
use super::value::{Hash, SortedSet, Value};

const MAGIC: &[u8] = b"watchlock-test\x01";

pub(super) fn write(value: &Value) -> Bytes {
    let mut out = MAGIC.to_vec();
    match value {
        Value::String(text) => all(b's', [text.as_slice()], &mut out),
        Value::Hash(hash) => {
            let parts = hash.iter().flat_map(|(field, value)| [&**field, &**value]);
            all(b'h', parts, &mut out);
        }
        Value::List(list) => all(b'l', list.iter().map(Vec::as_slice), &mut out),
        Value::Set(set) => all(b'e', set.iter().map(Vec::as_slice), &mut out),
        Value::SortedSet(set) => {
            let pairs = set
                .iter()
                .map(|(member, score)| (member, score.to_le_bytes()));
            let pairs: Vec<_> = pairs.collect();
            let parts = pairs
                .iter()
                .flat_map(|(member, score)| [&***member, &score[..]]);
            all(b'z', parts, &mut out);
        }
    }
    let digest = digest(&out);
    out.extend_from_slice(&digest);
    out
}

fn all<'a>(kind: u8, parts: impl IntoIterator<Item = &'a [u8]>, out: &mut Bytes) {
    out.push(kind);
    for part in parts {
        out.extend_from_slice(&(part.len() as u64).to_le_bytes());
        out.extend_from_slice(part);
    }
}

fn digest(bytes: &[u8]) -> [u8; 20] {
    sha1_smol::Sha1::from(bytes).digest().bytes()
}

/// None if it is not what [`write`] wrote.
pub(super) fn read(payload: &[u8]) -> Option<Value> {
    let (body, sum) = payload.split_last_chunk::<20>()?;
    if digest(body) != *sum {
        return None;
    }
    let (kind, rest) = body.strip_prefix(MAGIC)?.split_first()?;
    let mut parts = parts(rest)?.into_iter();
    let value = match kind {
        b's' => Value::String(parts.next()?),
        b'h' => {
            let mut hash = Hash::default();
            while let Some(field) = parts.next() {
                hash.set(&field, parts.next()?);
            }
            Value::Hash(hash)
        }
        b'l' => Value::List(parts.collect::<VecDeque<_>>()),
        b'e' => Value::Set(parts.collect::<BTreeSet<_>>()),
        b'z' => {
            let mut set = SortedSet::default();
            while let Some(member) = parts.next() {
                let score = f64::from_le_bytes(parts.next()?.try_into().ok()?);
                set.set(&member, Some(score).filter(|score| !score.is_nan())?);
            }
            Value::SortedSet(set)
        }
        _ => return None,
    };
    (!value.is_hollow()).then_some(value)
}

fn parts(mut rest: &[u8]) -> Option<Vec<Bytes>> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (len, after) = rest.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (part, after) = after.split_at_checked(len)?;
        parts.push(part.to_vec());
        rest = after;
    }
    Some(parts)
}
