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
            let found = candidates(server, keys).await?;
            locks.extend(self.held(server, found).await?);
            if next == b"0" || locks.len() >= limit {
                locks.truncate(limit);
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
            ("hash", Some(kind)) if kind != Kind::Simple => {
                Ok(self.held(server, vec![(key, kind)]).await?.pop())
            }
            ("hash", None) => {
                let found = candidates(server, vec![key]).await?;
                if found.is_empty() {
                    return Err(no_lock(name, "hash"));
                }
                Ok(self.held(server, found).await?.pop())
            }
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
            waiting: self.waits(server, HeldKind::Lock(Kind::Simple), key).await,
        }))
    }

    /// Those of these locks that are held still, in a few round trips.
    async fn held(
        &mut self,
        server: &Server,
        locks: Vec<(Vec<u8>, Kind)>,
    ) -> Result<Vec<Held>, Failure> {
        let (keys, kinds): (Vec<_>, Vec<_>) = locks.into_iter().unzip();
        let fields = fields(server, &keys).await?;
        let ttls = answers::<i64>(server, &keys, &[b"PTTL"], &[]).await?;
        let kinds = kinds.into_iter().map(HeldKind::Lock);
        let asked: Vec<_> = kinds.zip(&keys).collect();
        let waiting = waiting(server, &asked).await;
        let found = asked.iter().zip(fields).zip(ttls.into_iter().zip(waiting));
        let mut held = Vec::new();
        for (((kind, key), fields), (ttl, waiting)) in found {
            let ttl = ttl?;
            if ttl == GONE {
                continue;
            }
            let holders = self.holders(server, *kind, key, fields).await?;
            if holders.is_empty() {
                continue;
            }
            held.push(Held {
                name: self.name(key),
                kind: *kind,
                permits: None,
                holders,
                ttl_ms: u64::try_from(ttl).ok(),
                waiting,
            });
        }
        Ok(held)
    }

    async fn holders(
        &mut self,
        server: &Server,
        kind: HeldKind,
        key: &[u8],
        fields: Vec<(Vec<u8>, u64)>,
    ) -> Result<Vec<Holder>, Failure> {
        let mut holders = Vec::new();
        for (hold_id, count) in fields {
            if hold_id == b"mode" {
                continue;
            }
            let own = match kind {
                HeldKind::Lock(Kind::Read | Kind::Write) => {
                    read_ttl(server, key, &hold_id, count).await?
                }
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
        holders.sort_by(|one, other| one.hold_id.cmp(&other.hold_id));
        Ok(holders)
    }

    async fn waits(&self, server: &Server, kind: HeldKind, key: &[u8]) -> Option<u64> {
        waiting(server, &[(kind, &key.to_vec())])
            .await
            .pop()
            .flatten()
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
    let one = one.into_iter().zip(fields).filter(|(_, fields)| {
        let field = fields.as_ref().and_then(|fields| fields.first());
        field.is_some_and(|field| split(field).is_some())
    });
    locks.extend(plain_kinds(server, firsts(one)).await?);
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

fn firsts<T>(pairs: impl IntoIterator<Item = (Vec<u8>, T)>) -> Vec<Vec<u8>> {
    pairs.into_iter().map(|(key, _)| key).collect()
}

/// Which of the kinds with one field they seem to be.
async fn plain_kinds(server: &Server, keys: Vec<Vec<u8>>) -> Result<Vec<(Vec<u8>, Kind)>, Failure> {
    let others = keys.iter();
    let others = others.flat_map(|key| [beside(QUEUE, key), beside(TOKEN, key)]);
    let others: Vec<_> = others.collect();
    let there: Vec<Option<bool>> = each(server, &others, &[b"EXISTS"], &[]).await?;
    let kinds = there.chunks(2).map(|there| match there {
        [Some(true), ..] => Kind::Fair,
        [_, Some(true)] => Kind::Fenced,
        _ => Kind::Plain,
    });
    Ok(keys.into_iter().zip(kinds).collect())
}

/// The same command for each key, in one round trip; None where it fails, as when the key has another type by now.
async fn each<T: FromRedisValue>(
    server: &Server,
    keys: &[Vec<u8>],
    before: &[&[u8]],
    behind: &[&[u8]],
) -> Result<Vec<Option<T>>, RedisError> {
    let answers = answers(server, keys, before, behind).await?;
    Ok(answers.into_iter().map(Result::ok).collect())
}

async fn answers<T: FromRedisValue>(
    server: &Server,
    keys: &[Vec<u8>],
    before: &[&[u8]],
    behind: &[&[u8]],
) -> Result<Vec<Result<T, RedisError>>, RedisError> {
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
    commands.ignore_errors().query_async(&mut connection).await
}

/// A field of a hash with its value.
type Field = (Vec<u8>, Vec<u8>);

/// Up to [`MOST`] fields of each key, with their numbers.
async fn fields(server: &Server, keys: &[Vec<u8>]) -> Result<Vec<Vec<(Vec<u8>, u64)>>, Failure> {
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
    let behind: [&[u8]; 3] = [b"0", b"COUNT", b"100"];
    let answers: Vec<Result<(Vec<u8>, Vec<Field>), _>> =
        answers(server, keys, &[b"HSCAN"], &behind).await?;
    let answers = answers.into_iter().map(|answer| {
        let fields = match answer {
            // Of another type by now.
            Err(error) if error.code() == Some("WRONGTYPE") => Vec::new(),
            answer => answer?.1,
        };
        let fields = fields.into_iter().take(MOST + 1);
        Ok(fields
            .map(|(field, count)| (field, number(&count).unwrap_or(0)))
            .collect())
    });
    answers.collect()
}

/// None: there is no such key. Some(None): it has no TTL.
async fn ttl(server: &Server, key: &[u8]) -> Result<Option<Option<u64>>, Failure> {
    let ms: i64 = server.ask(&[b"PTTL", key]).await?;
    Ok((ms != GONE).then_some(u64::try_from(ms).ok()))
}

/// What PTTL says of a key that is not there.
const GONE: i64 = -2;

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

/// How many clients wait for each: the queue of a fair lock, or who listens. None if this user may not ask.
async fn waiting(server: &Server, asked: &[(HeldKind, &Vec<u8>)]) -> Vec<Option<u64>> {
    let (mut queues, mut channels) = (Vec::new(), Vec::new());
    for (kind, key) in asked {
        match kind {
            HeldKind::Lock(Kind::Fair) => queues.push(beside(QUEUE, key)),
            HeldKind::Lock(Kind::Read | Kind::Write) => {
                channels.push(beside("redisson_rwlock", key));
            }
            HeldKind::Lock(_) => channels.push(beside("redisson_lock__channel", key)),
            HeldKind::Expirable | HeldKind::Counting => {
                channels.push(beside("redisson_sc", key));
            }
        }
    }
    let queued = each(server, &queues, &[b"LLEN"], &[]).await;
    let mut queued = queued.unwrap_or_default().into_iter();
    let mut listening = listening(server, &channels).await.into_iter();
    let waiting = asked.iter().map(|(kind, _)| match kind {
        HeldKind::Lock(Kind::Fair) => queued.next().flatten(),
        _ => listening.next(),
    });
    waiting.collect()
}

/// How many clients listen to each channel; nothing if this user may not ask.
async fn listening(server: &Server, channels: &[Vec<u8>]) -> Vec<u64> {
    if channels.is_empty() {
        return Vec::new();
    }
    let question = |how: &'static [u8]| {
        let words: [&[u8]; 2] = [b"PUBSUB", how];
        let channels = channels.iter().map(Vec::as_slice);
        words.into_iter().chain(channels).collect::<Vec<_>>()
    };
    let numbers = |answer: Vec<(Vec<u8>, u64)>| answer.into_iter().map(|(_, number)| number);
    // Before Redis 7 there is no such command.
    if server.in_cluster
        && let Ok(answer) = server.ask(&question(b"SHARDNUMSUB")).await
    {
        return numbers(answer).collect();
    }
    let answer = server.ask(&question(b"NUMSUB")).await;
    answer.map_or_else(|_| Vec::new(), |answer| numbers(answer).collect())
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
