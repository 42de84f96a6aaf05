//! Reads locks as they stand in Redis, Java's too. It only reads.
//!
//! A hash is a lock if it has one field `<uuid>:<number>`, or the field `mode`. A plain lock and a fair one look the same
//! unless somebody waits for the fair one, and a fenced lock is a plain one beside whose key there is a token. A semaphore
//! is found by the records of its permits (`semaphores`).

mod semaphores;

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use watchlock::redis::{self, FromRedisValue, RedisError};

use crate::connect::Server;
use crate::options::Kind;
use crate::status::Failure;
use crate::text::shown;
use semaphores::Labelled;
pub(crate) use semaphores::Permits;

/// How many holders, and places in a queue, are read of one lock.
const MOST: usize = 100;
/// How many keys a step of SCAN looks at.
const STEP: &[u8] = b"1000";

/// What a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldKind {
    Lock(Kind),
    /// A semaphore whose permits have ids, shared with Redisson.
    Expirable,
    /// One whose number only is.
    Counting,
}

impl HeldKind {
    fn name(self) -> &'static str {
        match self {
            Self::Lock(kind) => kind.name(),
            Self::Expirable => "expirable",
            Self::Counting => "semaphore",
        }
    }
}

/// A lock that is held, or a semaphore.
pub(crate) struct Held {
    /// Without the prefix.
    pub(crate) name: Vec<u8>,
    pub(crate) kind: HeldKind,
    /// Of a semaphore.
    pub(crate) permits: Option<Permits>,
    /// Or the permits that are taken.
    pub(crate) holders: Vec<Holder>,
    /// None: it has no TTL.
    pub(crate) ttl_ms: Option<u64>,
    /// None: this user may not ask.
    pub(crate) waiting: Option<u64>,
}

pub(crate) struct Holder {
    /// Or the id of the permit.
    pub(crate) hold_id: Vec<u8>,
    /// If it is known from the id.
    client: Option<String>,
    pub(crate) label: Option<Vec<u8>>,
    pub(crate) count: u64,
    /// Of its own lease, if it has one beside the lock's.
    pub(crate) ttl_ms: Option<u64>,
}

impl Holder {
    /// Who it is, for people.
    pub(crate) fn shown(&self) -> String {
        shown(self.label.as_deref().unwrap_or(&self.hold_id))
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "hold_id": shown(&self.hold_id),
            "client": self.client,
            "label": self.label.as_deref().map(shown),
            "hold_count": self.count,
            "ttl_ms": self.ttl_ms,
        })
    }
}

impl Held {
    pub(crate) fn kind_name(&self) -> &'static str {
        self.kind.name()
    }

    pub(crate) fn json(&self) -> Value {
        let holders = self.holders.iter().map(Holder::json);
        let permits = self.permits.as_ref();
        let permits =
            permits.map(|permits| json!({ "free": permits.free, "taken": permits.taken }));
        json!({
            "name": shown(&self.name),
            "kind": self.kind_name(),
            "permits": permits,
            "holders": holders.collect::<Vec<_>>(),
            "ttl_ms": self.ttl_ms,
            "waiting": self.waiting,
        })
    }
}

/// The client and the number in a hold id; also in the field of a writer, `<uuid>:<number>:write`.
fn split(field: &[u8]) -> Option<(&str, &str)> {
    let field = str::from_utf8(field).ok()?;
    let field = field.strip_suffix(":write").unwrap_or(field);
    let (client, number) = field.split_once(':')?;
    let dashes = [8, 13, 18, 23];
    let is_uuid = client.len() == 36
        && client.bytes().enumerate().all(|(at, byte)| {
            if dashes.contains(&at) {
                byte == b'-'
            } else {
                byte.is_ascii_hexdigit()
            }
        });
    (is_uuid && number.parse::<i64>().is_ok()).then_some((client, number))
}

/// A name of a lock's further keys and channels.
pub(crate) fn beside(first: &str, key: &[u8]) -> Vec<u8> {
    let (open, close) = braces(key);
    [first.as_bytes(), b":", open, key, close].concat()
}

/// Redisson's `{key}:suffix`.
fn behind(key: &[u8], suffix: &[u8]) -> Vec<u8> {
    let (open, close) = braces(key);
    [open, key, close, b":", suffix].concat()
}

fn braces(key: &[u8]) -> (&'static [u8], &'static [u8]) {
    if key.contains(&b'{') {
        (b"", b"")
    } else {
        (b"{", b"}")
    }
}

/// Looks into one deployment, and remembers whose label is what.
pub(crate) struct Inspector<'a> {
    servers: &'a [Server],
    prefix: &'a [u8],
    labels: HashMap<String, Option<Vec<u8>>>,
    /// The clients that have a label, by the second half of their ids, once somebody asked.
    by_half: Option<HashMap<String, Labelled>>,
}

impl<'a> Inspector<'a> {
    pub(crate) fn new(servers: &'a [Server], prefix: &'a str) -> Self {
        Self {
            servers,
            prefix: prefix.as_bytes(),
            labels: HashMap::new(),
            by_half: None,
        }
    }

    /// Up to `limit` locks of a server whose names match a pattern of Redis.
    pub(crate) async fn locks(
        &mut self,
        server: &Server,
        pattern: &str,
        limit: usize,
    ) -> Result<Vec<Held>, Failure> {
        let pattern = [&literally(self.prefix), pattern.as_bytes()].concat();
        let mut locks = self.hashes(server, &pattern, limit).await?;
        if locks.len() < limit {
            let limit = limit - locks.len();
            locks.extend(self.semaphores(server, &pattern, limit).await?);
        }
        Ok(locks)
    }

    async fn hashes(
        &mut self,
        server: &Server,
        pattern: &[u8],
        limit: usize,
    ) -> Result<Vec<Held>, Failure> {
        let (mut locks, mut cursor) = (Vec::new(), b"0".to_vec());
        let mut seen = HashSet::new();
        loop {
            let (next, mut keys) = scan(server, &cursor, pattern, b"hash").await?;
            // SCAN may return a key twice.
            keys.retain(|key| seen.insert(key.clone()));
            for (key, kind) in candidates(server, keys).await? {
                if locks.len() == limit {
                    return Ok(locks);
                }
                locks.extend(self.held(server, &key, kind).await?);
            }
            if next == b"0" {
                return Ok(locks);
            }
            cursor = next;
        }
    }

    /// The lock of that name; None if it is free. With `kind` it is looked at as such.
    pub(crate) async fn lock(
        &mut self,
        server: &Server,
        name: &str,
        kind: Option<Kind>,
    ) -> Result<Option<Held>, Failure> {
        let key = [self.prefix, name.as_bytes()].concat();
        let of_type: String = match server.ask(&[b"TYPE", &key]).await {
            // Another node of the cluster has it.
            Err(error) if error.code() == Some("MOVED") => return Ok(None),
            of_type => of_type?,
        };
        match (of_type.as_str(), kind) {
            ("none", _) => Ok(None),
            ("string", None) => match self.semaphore(server, &key).await? {
                Some(semaphore) => Ok(Some(semaphore)),
                None => self.simple(server, &key).await,
            },
            ("string", Some(Kind::Simple)) => self.simple(server, &key).await,
            ("hash", Some(kind)) if kind != Kind::Simple => self.held(server, &key, kind).await,
            ("hash", None) => match candidates(server, vec![key.clone()]).await?.first() {
                Some((_, kind)) => self.held(server, &key, *kind).await,
                None => Err(no_lock(name, "hash")),
            },
            (other, _) => Err(no_lock(name, other)),
        }
    }

    async fn simple(&self, server: &Server, key: &[u8]) -> Result<Option<Held>, Failure> {
        let token: Option<Vec<u8>> = server.ask(&[b"GET", key]).await?;
        let ttl_ms = ttl(server, key).await?;
        let Some((token, ttl_ms)) = token.zip(ttl_ms) else {
            return Ok(None);
        };
        let holder = Holder {
            hold_id: token,
            client: None,
            label: None,
            count: 1,
            ttl_ms: None,
        };
        Ok(Some(Held {
            name: self.name(key),
            kind: HeldKind::Lock(Kind::Simple),
            permits: None,
            holders: vec![holder],
            ttl_ms,
            waiting: waiting(server, HeldKind::Lock(Kind::Simple), key).await,
        }))
    }

    async fn held(
        &mut self,
        server: &Server,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<Held>, Failure> {
        let fields = fields(server, key).await?;
        let Some(ttl_ms) = ttl(server, key).await? else {
            return Ok(None);
        };
        let mut holders = Vec::new();
        for (hold_id, count) in fields {
            if hold_id == b"mode" {
                continue;
            }
            let own = match kind {
                Kind::Read | Kind::Write => read_ttl(server, key, &hold_id, count).await?,
                _ => None,
            };
            let client = split(&hold_id).map(|(client, _)| client.to_owned());
            let label = match &client {
                Some(client) => self.label(client).await,
                None => None,
            };
            holders.push(Holder {
                hold_id,
                client,
                label,
                count,
                ttl_ms: own,
            });
        }
        if holders.is_empty() {
            return Ok(None);
        }
        holders.sort_by(|one, other| one.hold_id.cmp(&other.hold_id));
        let kind = HeldKind::Lock(kind);
        let waiting = waiting(server, kind, key).await;
        Ok(Some(Held {
            name: self.name(key),
            kind,
            permits: None,
            holders,
            ttl_ms,
            waiting,
        }))
    }

    fn name(&self, key: &[u8]) -> Vec<u8> {
        key.strip_prefix(self.prefix).unwrap_or(key).to_vec()
    }

    /// The label of a client. In a cluster it is at one of the masters.
    async fn label(&mut self, client: &str) -> Option<Vec<u8>> {
        if let Some(known) = self.labels.get(client) {
            return known.clone();
        }
        let key = format!("watchlock_client:{client}");
        let mut label = None;
        for server in self.servers {
            let found: Result<Option<Vec<u8>>, _> = server.ask(&[b"GET", key.as_bytes()]).await;
            label = label.or(found.ok().flatten());
        }
        self.labels.insert(client.to_owned(), label.clone());
        label
    }
}

fn no_lock(name: &str, of_type: &str) -> Failure {
    let text = format!("{name:?} is a {of_type}, and no lock of that kind");
    Failure::new(crate::status::Status::CONFIG, text)
}

/// A pattern of Redis that matches just these bytes.
fn literally(text: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::new();
    for byte in text {
        if b"*?[]^\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern
}

/// A step of a walk over the keys of a type that match a pattern: where it goes on, and what it found.
async fn scan(
    server: &Server,
    cursor: &[u8],
    pattern: &[u8],
    of_type: &[u8],
) -> Result<(Vec<u8>, Vec<Vec<u8>>), Failure> {
    let words: [&[u8]; 8] = [
        b"SCAN", cursor, b"MATCH", pattern, b"COUNT", STEP, b"TYPE", of_type,
    ];
    Ok(server.ask(&words).await?)
}

/// Those hashes that are locks.
async fn candidates(server: &Server, keys: Vec<Vec<u8>>) -> Result<Vec<(Vec<u8>, Kind)>, Failure> {
    let sizes: Vec<Option<u64>> = each(server, &keys, &[b"HLEN"], &[]).await?;
    let keys = keys.into_iter().zip(sizes);
    let (one, more): (Vec<_>, Vec<_>) = keys.partition(|(_, size)| *size == Some(1));
    let (one, more) = (firsts(one), firsts(more));
    let mut locks = Vec::new();
    let fields: Vec<Option<Vec<Vec<u8>>>> = each(server, &one, &[b"HKEYS"], &[]).await?;
    for (key, fields) in one.into_iter().zip(fields) {
        let fields = fields.unwrap_or_default();
        if fields.first().is_some_and(|field| split(field).is_some()) {
            let kind = plain_kind(server, &key).await?;
            locks.push((key, kind));
        }
    }
    let modes: Vec<Option<Option<String>>> = each(server, &more, &[b"HGET"], &[b"mode"]).await?;
    for (key, mode) in more.into_iter().zip(modes) {
        match mode.flatten().as_deref() {
            Some("read") => locks.push((key, Kind::Read)),
            Some("write") => locks.push((key, Kind::Write)),
            _ => {}
        }
    }
    Ok(locks)
}

fn firsts(pairs: Vec<(Vec<u8>, Option<u64>)>) -> Vec<Vec<u8>> {
    pairs.into_iter().map(|(key, _)| key).collect()
}

/// Which of the kinds with one field it seems to be.
async fn plain_kind(server: &Server, key: &[u8]) -> Result<Kind, Failure> {
    let (queue, token) = (beside(QUEUE, key), beside(TOKEN, key));
    let there: Vec<Option<bool>> = each(server, &[queue, token], &[b"EXISTS"], &[]).await?;
    Ok(match there.as_slice() {
        [Some(true), ..] => Kind::Fair,
        [_, Some(true)] => Kind::Fenced,
        _ => Kind::Plain,
    })
}

/// The same command for each key, in one round trip; None where it fails, as when the key has another type by now.
async fn each<T: FromRedisValue>(
    server: &Server,
    keys: &[Vec<u8>],
    before: &[&[u8]],
    behind: &[&[u8]],
) -> Result<Vec<Option<T>>, RedisError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut commands = redis::pipe();
    for key in keys {
        let mut command = redis::Cmd::new();
        command.arg(before).arg(key).arg(behind);
        commands.add_command(command);
    }
    let mut connection = server.connection.clone();
    let answers: Vec<Result<T, RedisError>> = commands
        .ignore_errors()
        .query_async(&mut connection)
        .await?;
    Ok(answers.into_iter().map(Result::ok).collect())
}

/// A field of a hash with its value.
type Field = (Vec<u8>, Vec<u8>);

/// Up to [`MOST`] fields with their numbers.
async fn fields(server: &Server, key: &[u8]) -> Result<Vec<(Vec<u8>, u64)>, Failure> {
    let words: [&[u8]; 5] = [b"HSCAN", key, b"0", b"COUNT", b"100"];
    let answer = server.ask::<(Vec<u8>, Vec<Field>)>(&words).await;
    // Of another type by now.
    let (_, fields) = match answer {
        Err(error) if error.code() == Some("WRONGTYPE") => return Ok(Vec::new()),
        answer => answer?,
    };
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
    let fields = fields.into_iter().take(MOST + 1);
    Ok(fields
        .map(|(field, count)| (field, number(&count).unwrap_or(0)))
        .collect())
}

/// None: there is no such key. Some(None): it has no TTL.
async fn ttl(server: &Server, key: &[u8]) -> Result<Option<Option<u64>>, Failure> {
    let ms: i64 = server.ask(&[b"PTTL", key]).await?;
    Ok((ms != -2).then_some(u64::try_from(ms).ok()))
}

/// The longest lease of a read hold's levels; each has a key of its own.
async fn read_ttl(
    server: &Server,
    key: &[u8],
    field: &[u8],
    levels: u64,
) -> Result<Option<u64>, Failure> {
    let levels = 1..=levels.min(MOST as u64);
    let keys = levels.map(|level| {
        let suffix = [field, b":rwlock_timeout:", level.to_string().as_bytes()].concat();
        behind(key, &suffix)
    });
    let keys: Vec<_> = keys.collect();
    let left: Vec<Option<i64>> = each(server, &keys, &[b"PTTL"], &[]).await?;
    let left = left.into_iter().flatten();
    Ok(left.filter_map(|ms| u64::try_from(ms).ok()).max())
}

/// How many clients wait: the queue of a fair lock, or who listens. None if this user may not ask.
async fn waiting(server: &Server, kind: HeldKind, key: &[u8]) -> Option<u64> {
    let channel = match kind {
        HeldKind::Lock(Kind::Fair) => {
            return server.ask(&[b"LLEN", &beside(QUEUE, key)]).await.ok();
        }
        HeldKind::Lock(Kind::Read | Kind::Write) => beside("redisson_rwlock", key),
        HeldKind::Lock(_) => beside("redisson_lock__channel", key),
        HeldKind::Expirable | HeldKind::Counting => beside("redisson_sc", key),
    };
    if server.in_cluster {
        // Before Redis 7 there is no such command.
        let words: [&[u8]; 3] = [b"PUBSUB", b"SHARDNUMSUB", &channel];
        if let Ok((_, listening)) = server.ask::<(Vec<u8>, u64)>(&words).await {
            return Some(listening);
        }
    }
    let words: [&[u8]; 3] = [b"PUBSUB", b"NUMSUB", &channel];
    let (_, listening) = server.ask::<(Vec<u8>, u64)>(&words).await.ok()?;
    Some(listening)
}

/// What `show` adds of locks.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) token: Option<String>,
    /// The hold ids that wait for a fair lock, in order.
    pub(crate) queue: Vec<Vec<u8>>,
    /// Whether writers wait, so that nobody starts to read.
    pub(crate) writers_wait: bool,
}

/// Reads what is beside a lock's key.
pub(crate) async fn details(server: &Server, key: &[u8]) -> Result<Details, Failure> {
    let token: Option<Vec<u8>> = server.ask(&[b"GET", &beside(TOKEN, key)]).await?;
    let queue = beside(QUEUE, key);
    let queue: Vec<Vec<u8>> = server.ask(&[b"LRANGE", &queue, b"0", b"99"]).await?;
    let writers = beside("watchlock_writers", key);
    let (seconds, micros): (u64, u64) = server.ask(&[b"TIME"]).await?;
    let now = (seconds * 1000 + micros / 1000).to_string();
    let words: [&[u8]; 4] = [b"ZCOUNT", &writers, now.as_bytes(), b"+inf"];
    let writers: u64 = server.ask(&words).await?;
    Ok(Details {
        token: token.map(|token| shown(&token)),
        queue,
        writers_wait: writers > 0,
    })
}

const QUEUE: &str = "redisson_lock_queue";
const TOKEN: &str = "redisson_lock_token";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_id_is_a_uuid_and_a_number() {
        let client = "0b2d6cc1-6fc0-4f4b-a9f3-0f4a6bb2dd57";
        let of = |text: &str| {
            split(text.as_bytes()).map(|(client, number)| (client.len(), number.to_owned()))
        };
        for (suffix, number) in [(":1", "1"), (":-7", "-7"), (":12:write", "12")] {
            assert_eq!(
                of(&format!("{client}{suffix}")),
                Some((36, number.to_owned()))
            );
        }
        for suffix in ["", ":", ":x", ":1:read", "1:1"] {
            assert_eq!(of(&format!("{client}{suffix}")), None, "{suffix}");
        }
        assert_eq!(of("mode"), None);
        assert_eq!(of(&format!("{}:1", client.replace('-', "x"))), None);
        assert!(split(b"\xff:1").is_none());
    }

    #[test]
    fn a_prefix_matches_itself_only() {
        assert_eq!(literally(b"a*[b]\\?"), b"a\\*\\[b\\]\\\\\\?");
    }

    #[test]
    fn names_follow_the_rule_of_braces() {
        assert_eq!(beside("x", b"a"), b"x:{a}");
        assert_eq!(beside("x", b"{a}b"), b"x:{a}b");
        assert_eq!(behind(b"a", b"s"), b"{a}:s");
        assert_eq!(behind(b"{a}b", b"s"), b"{a}b:s");
    }
}
