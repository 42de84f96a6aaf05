//! Semaphores as they stand in Redis: a string, the number of free permits, and a sorted set of the taken ones with their
//! ends by the server's clock.
//!
//! 1. A sorted set without a number beside it records nothing.
//! 2. A permit whose end has come is free, though nobody took it back yet.
//! 3. Redisson records the permits of expirable semaphores only; of the others these are the ones of this crate.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use watchlock::redis::{self, RedisError};

use super::{
    Held, HeldKind, Holder, Inspector, MOST, answers, behind, beside, each, scan, split, ttl,
};
use crate::connect::Server;
use crate::status::Failure;

/// What the names of own records begin with, and of Redisson's end with.
const OWN: &str = "watchlock_permits";
const SHARED: &str = "timeout";
/// The end of a permit without a lease, as Redisson writes it.
const NEVER: f64 = 922_337_203_685_477.0;
/// How long to look for the labels of clients whose permits do not name them: it takes a walk over all keys.
const PATIENCE: Duration = Duration::from_millis(500);
const LABEL: &str = "watchlock_client:";

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
        let mut found = Vec::<Held>::new();
        for record in patterns(pattern) {
            let mut cursor = b"0".to_vec();
            loop {
                let (next, records) = scan(server, &cursor, &record, b"zset").await?;
                for key in records.iter().filter_map(|record| key_of(record)) {
                    let name = self.name(key);
                    if found.iter().any(|other| other.name == name) {
                        continue;
                    }
                    let held = self.semaphore(server, key).await?;
                    let held = held.filter(|held| !held.holders.is_empty());
                    if held.is_some() && found.len() == limit {
                        return Ok(found);
                    }
                    found.extend(held);
                }
                if next == b"0" {
                    break;
                }
                cursor = next;
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
        let number = each::<Option<String>>(server, &[key.to_vec()], &[b"GET"], &[]).await?;
        let number = number.into_iter().next().flatten().flatten();
        let Some(number) = number.and_then(|number| number.parse::<i64>().ok()) else {
            return Ok(None);
        };
        let records = [behind(key, SHARED.as_bytes()), beside(OWN, key)];
        let types: Vec<Result<String, RedisError>> =
            answers(server, &records, &[b"TYPE"], &[]).await?;
        // Without a right to the records it would look like something else.
        let types: Vec<String> = types.into_iter().collect::<Result<_, _>>()?;
        let types: Vec<_> = types.iter().map(String::as_str).collect();
        let Some(ttl_ms) = ttl(server, key).await? else {
            return Ok(None);
        };
        let [shared, own] = records;
        let (kind, records) = match types.as_slice() {
            ["zset", "none" | "zset"] => (HeldKind::Expirable, shared),
            ["none", "zset"] => (HeldKind::Counting, own),
            // Without records; a string with a lease is rather a simple lock.
            ["none", "none"] if ttl_ms.is_none() => (HeldKind::Counting, own),
            _ => return Ok(None),
        };
        let (over, taken, records) = taken(server, &records).await?;
        let mut holders = Vec::new();
        for (record, ttl_ms) in records {
            holders.push(self.permit(kind, record, ttl_ms).await);
        }
        let over = i64::try_from(over).unwrap_or(i64::MAX);
        let free = number.saturating_add(over);
        Ok(Some(Held {
            name: self.name(key),
            kind,
            permits: Some(Permits { free, taken }),
            holders,
            ttl_ms,
            waiting: self.waits(server, kind, key).await,
        }))
    }

    async fn permit(&mut self, kind: HeldKind, record: Vec<u8>, ttl_ms: Option<u64>) -> Holder {
        let id = match <[u8; 16]>::try_from(record.as_slice()) {
            Ok(id) if kind == HeldKind::Expirable => {
                format!("{:032x}", u128::from_be_bytes(id)).into_bytes()
            }
            _ => record,
        };
        let (client, label) = if kind == HeldKind::Expirable {
            let known = self.by_permit(&id).await;
            known.map_or((None, None), |known| (Some(known.client), known.label))
        } else {
            self.by_record(&id).await
        };
        Holder {
            hold_id: id,
            client,
            label,
            count: 1,
            ttl_ms,
        }
    }

    /// Own records are `<hold id>:<number>`.
    async fn by_record(&mut self, record: &[u8]) -> (Option<String>, Option<Vec<u8>>) {
        let end = record.iter().rposition(|byte| *byte == b':').unwrap_or(0);
        match split(&record[..end]) {
            Some((client, _)) => (Some(client.to_owned()), self.label(client).await),
            None => (None, None),
        }
    }

    /// The id of an expirable permit begins with the second half of its client's id; Redisson's are random.
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

type Ends = Vec<(Vec<u8>, Option<u64>)>;

/// How many permits are over, how many are taken, and up to [`MOST`] of these with the ms to their ends.
async fn taken(server: &Server, records: &[u8]) -> Result<(u64, u64, Ends), Failure> {
    let (seconds, micros): (u64, u64) = server.ask(&[b"TIME"]).await?;
    let now = seconds * 1000 + micros / 1000;
    let after = format!("({now}");
    let mut commands = redis::pipe();
    commands.cmd("ZCOUNT").arg(records).arg("-inf").arg(now);
    commands.cmd("ZCOUNT").arg(records).arg(&after).arg("+inf");
    let first = commands.cmd("ZRANGEBYSCORE").arg(records).arg(&after);
    first.arg(&["+inf", "WITHSCORES", "LIMIT", "0"]).arg(MOST);
    let mut connection = server.connection.clone();
    let (over, taken, records): (u64, u64, Vec<(Vec<u8>, f64)>) =
        commands.query_async(&mut connection).await?;
    let left = |end: f64| {
        let ends = end < NEVER;
        // A time in ms, which an f64 has exactly.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        ends.then(|| (end as u64).saturating_sub(now))
    };
    let records = records.into_iter().map(|(id, end)| (id, left(end)));
    Ok((over, taken, records.collect()))
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
