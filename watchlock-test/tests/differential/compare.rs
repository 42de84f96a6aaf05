//! When two replies are the same: apart from the time that passes between them, and from an order that Redis does not
//! promise.

use crate::wire::Reply;

/// Commands whose elements come in any order.
const UNORDERED: [&str; 13] = [
    "keys",
    "scan",
    "smembers",
    "sunion",
    "sinter",
    "sdiff",
    "sscan",
    "hscan",
    "zscan",
    "pubsub",
    "srandmember",
    "spop",
    "hrandfield",
];

/// Whether the order of elements counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Counts,
    /// Only that of the replies of a transaction.
    CountsOutside,
    IsAny,
}

impl Order {
    pub(crate) fn of(words: &[Vec<u8>]) -> Self {
        let lower: Vec<_> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
        if lower.first().is_some_and(|name| name == b"exec") {
            return Self::CountsOutside;
        }
        // Entries of the same millisecond may be of two on the other server.
        if lower.starts_with(&[b"zrange".to_vec(), b"waiters".to_vec()]) {
            return Self::IsAny;
        }
        // A script may call them by its arguments.
        let mut named = lower.iter();
        let is_any = named.any(|word| UNORDERED.iter().any(|name| word == name.as_bytes()));
        if is_any { Self::IsAny } else { Self::Counts }
    }
}

/// What differs, if anything does.
pub(crate) fn difference(real: &Reply, ours: &Reply, order: Order) -> Option<String> {
    let (mut real, mut ours) = (real.clone(), ours.clone());
    for reply in [&mut real, &mut ours] {
        match (order, reply) {
            (Order::IsAny, reply) => sort(reply, true),
            (Order::CountsOutside, Reply::Many(_, replies)) => {
                for reply in replies {
                    sort(reply, true);
                }
            }
            (_, reply) => sort(reply, false),
        }
    }
    if is_same(&real, &ours) {
        return None;
    }
    Some(format!("\n  real: {real:?}\n  ours: {ours:?}"))
}

/// Sorts what has no order: sets, or everything.
fn sort(reply: &mut Reply, is_any: bool) {
    if let Reply::Many(kind, elements) = reply {
        for element in elements.iter_mut() {
            sort(element, is_any);
        }
        if is_any || *kind == '~' {
            elements.sort_by_key(|element| format!("{element:?}"));
        }
    }
}

fn is_same(real: &Reply, ours: &Reply) -> bool {
    match (real, ours) {
        (Reply::Many(kind, real), Reply::Many(other, ours)) => {
            kind == other
                && real.len() == ours.len()
                && real
                    .iter()
                    .zip(ours)
                    .all(|(real, ours)| is_same(real, ours))
        }
        (Reply::Line(kind, real), Reply::Line(other, ours))
        | (Reply::Text(kind, real), Reply::Text(other, ours)) => {
            kind == other && (real == ours || is_near(real, ours))
        }
        (real, ours) => real == ours,
    }
}

/// Whether both are the same number, but for what passes between two servers: milliseconds to live or since 1970, or
/// microseconds since 1970; or but for the precision of `INCRBYFLOAT`, which is the processor's. Small numbers are counts.
fn is_near(real: &[u8], ours: &[u8]) -> bool {
    const SHORTEST: f64 = 1_000.0;
    const SINCE_1970_US: f64 = 1e15;
    const FAR_MS: f64 = 10_000.0;
    const PRECISION: f64 = 1e-15;
    const LARGEST: f64 = 1e19;
    let number = |text: &[u8]| -> Option<f64> { std::str::from_utf8(text).ok()?.parse().ok() };
    let (Some(first), Some(second)) = (number(real), number(ours)) else {
        return false;
    };
    let distance = (first - second).abs();
    if real.contains(&b'.') || ours.contains(&b'.') || first.abs() > LARGEST {
        return distance <= PRECISION * first.abs();
    }
    let far = if first.abs() > SINCE_1970_US {
        1000.0 * FAR_MS
    } else {
        FAR_MS
    };
    let times = SHORTEST..1e17;
    times.contains(&first.abs()) && times.contains(&second.abs()) && distance < far
}

#[test]
fn a_set_has_no_order_and_a_list_has() {
    let [one, other] = [["1", "a"], ["a", "1"]];
    let many = |kind, words: [&str; 2]| {
        Reply::Many(kind, words.map(|word| Reply::Text('$', word.into())).into())
    };
    let differs = |kind| difference(&many(kind, one), &many(kind, other), Order::Counts).is_some();
    assert!(!differs('~'));
    assert!(differs('*'));
}
