//! When two replies are the same: apart from the time that passes between them, and from an order that Redis does not
//! promise.

use crate::wire::Reply;

/// Commands whose elements come in any order.
const UNORDERED: [&str; 13] = [
    "keys", "scan", "smembers", "sunion", "sinter", "sdiff", "sscan", "hscan", "zscan", "pubsub", "srandmember", "spop",
    "hrandfield",
];

pub(crate) fn is_unordered(words: &[Vec<u8>]) -> bool {
    let name = words.first().map(|name| name.to_ascii_lowercase());
    let is_it = |other: &&str| name.as_deref() == Some(other.as_bytes());
    UNORDERED.iter().any(|other| is_it(&other))
}

/// What differs, if anything does.
pub(crate) fn difference(real: &Reply, ours: &Reply, is_unordered: bool) -> Option<String> {
    let (mut real, mut ours) = (real.clone(), ours.clone());
    if is_unordered {
        sort(&mut real);
        sort(&mut ours);
    }
    if is_same(&real, &ours) {
        return None;
    }
    Some(format!("\n  real: {real:?}\n  ours: {ours:?}"))
}

fn sort(reply: &mut Reply) {
    if let Reply::Many(_, elements) = reply {
        elements.iter_mut().for_each(sort);
        elements.sort_by_key(|element| format!("{element:?}"));
    }
}

fn is_same(real: &Reply, ours: &Reply) -> bool {
    match (real, ours) {
        (Reply::Many(kind, real), Reply::Many(other, ours)) => {
            kind == other
                && real.len() == ours.len()
                && real.iter().zip(ours).all(|(real, ours)| is_same(real, ours))
        }
        (Reply::Line(kind, real), Reply::Line(other, ours))
        | (Reply::Text(kind, real), Reply::Text(other, ours)) => {
            kind == other && (real == ours || is_near(real, ours))
        }
        (real, ours) => real == ours,
    }
}

/// Whether both are times that differ by what passes between two servers: milliseconds to live or since 1970, or
/// microseconds since 1970. Small numbers are counts.
fn is_near(real: &[u8], ours: &[u8]) -> bool {
    const SHORTEST: f64 = 60_000.0;
    const SINCE_1970_US: f64 = 1e15;
    const FAR_MS: f64 = 10_000.0;
    let number = |text: &[u8]| -> Option<f64> { std::str::from_utf8(text).ok()?.parse().ok() };
    let (Some(real), Some(ours)) = (number(real), number(ours)) else {
        return false;
    };
    let far = if real > SINCE_1970_US { 1000.0 * FAR_MS } else { FAR_MS };
    let times = SHORTEST..1e17;
    times.contains(&real) && times.contains(&ours) && (real - ours).abs() < far
}
