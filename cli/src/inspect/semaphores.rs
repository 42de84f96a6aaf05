//! Semaphores as they stand in Redis: a string, the number of free permits, and a sorted set of the taken ones with their
//! ends by the server's clock.
//!
//! 1. A sorted set without a number beside it records nothing.
//! 2. A permit whose end has come is free, though nobody took it back yet.
//! 3. Redisson records the permits of expirable semaphores only; of the others these are the ones of this crate.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::stream::StreamExt;
use watchlock::redis::RedisError;

use super::ask::{PAGES, answers, ask_all, command, each, pages, scan};
use super::{GONE, Held, HeldKind, Holder, Inspector, LABEL, MOST, behind, beside, named, waiting};
use crate::connect::Server;
use crate::status::Failure;

/// What the names of own records begin with, and of Redisson's end with.
const OWN: &str = "watchlock_permits";
const SHARED: &str = "timeout";
/// The end of a permit without a lease, as Redisson writes it.
const NEVER: f64 = 922_337_203_685_477.0;
/// How long to look for the labels of clients whose permits do not name them: it takes a walk over all keys.
const PATIENCE: Duration = Duration::from_millis(500);

/// How many permits there are.
pub(crate) struct Permits {
    pub(crate) free: i64,
    pub(crate) taken: u64,
}

/// A client that a permit's id may stand for.
#[derive(Clone)]
pub(super) struct Labelled {
    client: String,
    label: Option<Vec<u8>>,
}

impl Inspector<'_> {
    /// Up to `limit` semaphores of which permits are taken; `pattern` is that of their keys.
    pub(super) async fn semaphores(
        &mut self,
        server: &Server,
        pattern: &[u8],
        limit: usize,
    ) -> Result<Vec<Held>, Failure> {
        let (prefix, mut seen, mut found) = (self.prefix, HashSet::new(), Vec::new());
        for record in patterns(pattern) {
            let read = |page: Result<Vec<Vec<u8>>, Failure>| {
                let keys = page.map(|records| {
                    let keys = records.iter().filter_map(|record| key_of(record));
                    let keys = keys.filter(|key| seen.insert(key.to_vec()));
                    keys.map(<[u8]>::to_vec).collect::<Vec<_>>()
                });
                async move { read(server, prefix, keys?).await }
            };
            let pages = pages(server, &record, b"zset").map(read).buffered(PAGES);
            let mut pages = pin!(pages);
            while let Some(page) = pages.next().await {
                let mut page = page?;
                page.retain(|held| !held.holders.is_empty());
                self.name_clients(&mut page).await;
                found.append(&mut page);
                if found.len() >= limit {
                    found.truncate(limit);
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// The semaphore of that key; None if the key is something else.
    pub(super) async fn semaphore(
        &mut self,
        server: &Server,
        key: &[u8],
    ) -> Result<Option<Held>, Failure> {
        let mut found = read(server, self.prefix, vec![key.to_vec()]).await?;
        self.name_clients(&mut found).await;
        Ok(found.pop())
    }

    /// Adds the clients of permits and their labels.
    async fn name_clients(&mut self, found: &mut [Held]) {
        self.label(found).await;
        for held in found {
            for permit in &mut held.holders {
                if let Some(known) = self.by_permit(&permit.hold_id).await {
                    permit.client = Some(known.client);
                    permit.label = known.label;
                }
            }
        }
    }

    /// The id of a permit begins with the second half of its client's id; Redisson's are random.
    async fn by_permit(&mut self, id: &[u8]) -> Option<Labelled> {
        let half = str::from_utf8(id.get(..16)?).ok()?.to_owned();
        if self.by_half.is_none() {
            let mut clients = HashMap::new();
            let until = Instant::now() + PATIENCE;
            for server in self.servers {
                // What this user may not see has no label.
                let _ = labels(server, until, &mut clients).await;
            }
            self.by_half = Some(clients);
        }
        self.by_half.as_ref()?.get(&half).cloned()
    }
}

/// Those of these keys that are semaphores, without labels, in two round trips.
async fn read(server: &Server, prefix: &[u8], keys: Vec<Vec<u8>>) -> Result<Vec<Held>, Failure> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let shared: Vec<_> = (keys.iter().map(|key| behind(key, SHARED.as_bytes()))).collect();
    let own: Vec<_> = keys.iter().map(|key| beside(OWN, key)).collect();
    let (numbers, shared_types, own_types, ttls, now) = tokio::join!(
        each::<Option<String>>(server, &keys, &[b"GET"], &[]),
        answers::<String>(server, &shared, &[b"TYPE"], &[]),
        answers::<String>(server, &own, &[b"TYPE"], &[]),
        answers::<i64>(server, &keys, &[b"PTTL"], &[]),
        server.time(),
    );
    let now = u64::try_from(now?.as_millis()).unwrap_or(u64::MAX);
    let types = shared_types?.into_iter().zip(own_types?);
    let answers = numbers?.into_iter().zip(types).zip(ttls?);
    let mut semaphores = Vec::new();
    for (((key, shared), own), ((number, types), ttl)) in
        keys.iter().zip(shared).zip(own).zip(answers)
    {
        let Some(number) = number.flatten().and_then(|number| number.parse().ok()) else {
            continue;
        };
        // Without a right to the records it would look like something else.
        let (of_shared, of_own, ttl) = (types.0?, types.1?, ttl?);
        let (kind, records) = match (of_shared.as_str(), of_own.as_str()) {
            _ if ttl == GONE => continue,
            ("zset", "none" | "zset") => (HeldKind::Expirable, shared),
            ("none", "zset") => (HeldKind::Counting, own),
            // Without records; a string with a lease is rather a simple lock.
            ("none", "none") if ttl < 0 => (HeldKind::Counting, own),
            _ => continue,
        };
        let ttl_ms = u64::try_from(ttl).ok();
        semaphores.push((key.as_slice(), number, kind, records, ttl_ms));
    }
    let asked = semaphores.iter().map(|(key, _, kind, ..)| (*kind, *key));
    let asked: Vec<_> = asked.collect();
    let records = semaphores.iter().map(|(.., records, _)| records.as_slice());
    let (taken, waiting) = tokio::join!(taken(server, now, records), waiting(server, &asked));
    let found = semaphores.into_iter().zip(taken?.into_iter().zip(waiting));
    let found = found.map(|((key, number, kind, _, ttl_ms), (taken, waiting))| {
        let number: i64 = number;
        let free = number.saturating_add(i64::try_from(taken.over).unwrap_or(i64::MAX));
        let ends = taken.ends.into_iter();
        Held {
            name: named(prefix, key),
            kind,
            permits: Some(Permits {
                free,
                taken: taken.number,
            }),
            holders: ends.map(|(record, ttl)| permit(record, ttl)).collect(),
            ttl_ms,
            waiting,
        }
    });
    Ok(found.collect())
}

fn permit(record: Vec<u8>, ttl_ms: Option<u64>) -> Holder {
    let hold_id = match <[u8; 16]>::try_from(record.as_slice()) {
        Ok(id) => format!("{:032x}", u128::from_be_bytes(id)).into_bytes(),
        Err(_) => record,
    };
    Holder {
        client: None,
        label: None,
        hold_id,
        count: 1,
        ttl_ms,
    }
}

/// The patterns of records whose key matches `pattern`: with the braces of the rule, or with those of the key.
fn patterns(pattern: &[u8]) -> [Vec<u8>; 4] {
    let (shared, own) = (format!(":{SHARED}"), format!("{OWN}:"));
    let (shared, own) = (shared.as_bytes(), own.as_bytes());
    [
        [b"{", pattern, b"}", shared].concat(),
        [pattern, shared].concat(),
        [own, b"{", pattern, b"}"].concat(),
        [own, pattern].concat(),
    ]
}

/// The key of a semaphore to which a record of this name belongs.
fn key_of(record: &[u8]) -> Option<&[u8]> {
    let own = record.strip_prefix(OWN.as_bytes());
    let own = own.and_then(|rest| rest.strip_prefix(b":"));
    let shared = || record.strip_suffix(SHARED.as_bytes())?.strip_suffix(b":");
    let braced = own.or_else(shared)?;
    let inner = braced
        .strip_prefix(b"{")
        .and_then(|rest| rest.strip_suffix(b"}"));
    match inner.filter(|inner| !inner.contains(&b'{')) {
        Some(inner) => Some(inner),
        None => Some(braced).filter(|key| key.contains(&b'{')),
    }
}

/// How many permits are over, how many are taken, and up to [`MOST`] of these with the ms to their ends.
struct Taken {
    over: u64,
    number: u64,
    ends: Vec<(Vec<u8>, Option<u64>)>,
}

/// What these records say at `now`.
async fn taken<'a>(
    server: &Server,
    now: u64,
    records: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Taken>, Failure> {
    let (now_text, after) = (now.to_string(), format!("({now}"));
    let (mut numbers, mut ranges) = (Vec::new(), Vec::new());
    for records in records {
        for (from, to) in [("-inf", now_text.as_str()), (&after, "+inf")] {
            let mut count = command("ZCOUNT", records);
            count.arg(from).arg(to);
            numbers.push(count);
        }
        let mut range = command("ZRANGEBYSCORE", records);
        range
            .arg(&after)
            .arg(&["+inf", "WITHSCORES", "LIMIT", "0"])
            .arg(MOST);
        ranges.push(range);
    }
    let (numbers, ranges) = tokio::join!(
        ask_all::<u64>(server, numbers),
        ask_all::<Vec<(Vec<u8>, f64)>>(server, ranges),
    );
    let numbers: Vec<u64> = numbers?.into_iter().collect::<Result<_, RedisError>>()?;
    let left = |end: f64| {
        let ends = end < NEVER;
        // A time in ms, which an f64 has exactly.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        ends.then(|| (end as u64).saturating_sub(now))
    };
    let taken = numbers.chunks(2).zip(ranges?).map(|(numbers, records)| {
        let records = records?.into_iter();
        Ok(Taken {
            over: numbers.first().copied().unwrap_or(0),
            number: numbers.get(1).copied().unwrap_or(0),
            ends: records.map(|(id, end)| (id, left(end))).collect(),
        })
    });
    taken.collect()
}

/// Adds the clients of a server that have a label, by the second half of their ids.
async fn labels(
    server: &Server,
    until: Instant,
    clients: &mut HashMap<String, Labelled>,
) -> Result<(), Failure> {
    let pattern = format!("{LABEL}*");
    let mut cursor = b"0".to_vec();
    while Instant::now() < until {
        let (next, keys) = scan(server, &cursor, pattern.as_bytes(), b"string").await?;
        let labels: Vec<Option<Option<Vec<u8>>>> = each(server, &keys, &[b"GET"], &[]).await?;
        for (key, label) in keys.iter().zip(labels) {
            let client = key.strip_prefix(LABEL.as_bytes()).unwrap_or_default();
            let client = String::from_utf8_lossy(client).into_owned();
            let half: String = client.chars().skip(19).filter(|c| *c != '-').collect();
            let label = label.flatten();
            clients.insert(half, Labelled { client, label });
        }
        if next == b"0" {
            break;
        }
        cursor = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_belong_to_a_key() {
        for (record, key) in [
            ("{a}:timeout", Some("a")),
            ("{a:b}:timeout", Some("a:b")),
            ("x{a}:timeout", Some("x{a}")),
            ("{a}b:timeout", Some("{a}b")),
            ("watchlock_permits:{a}", Some("a")),
            ("watchlock_permits:{a}b", Some("{a}b")),
            ("a:timeout", None),
            ("watchlock_permits:a", None),
            ("{a}timeout", None),
            ("session", None),
        ] {
            assert_eq!(
                key_of(record.as_bytes()),
                key.map(str::as_bytes),
                "{record}"
            );
        }
    }
}
