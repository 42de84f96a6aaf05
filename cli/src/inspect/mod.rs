//! Reads locks as they stand in Redis, Java's too. It only reads.
//!
//! A hash is a lock if it has one field `<uuid>:<number>`, or the field `mode`. A plain lock and a fair one look the same
//! unless somebody waits for the fair one, and a fenced lock is a plain one beside whose key there is a token. A semaphore
//! is found by the records of its permits (`semaphores`).
//!
//! A walk reads pages of keys, and asks all questions about a page together. While one page is read, the server works on
//! the next.

mod ask;
mod semaphores;

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;

use futures_util::future::try_join_all;
use futures_util::stream::StreamExt;
use serde_json::{Value, json};
use watchlock::redis::RedisError;

use crate::connect::Server;
use crate::options::Kind;
use crate::status::Failure;
use crate::text::shown;
use ask::{PAGES, ask_all, command, each, existing, pages};
use semaphores::Labelled;
pub(crate) use semaphores::Permits;

/// How many holders, and places in a queue, are read of one lock.
const MOST: usize = 100;
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

/// A key that looks like a lock.
struct Found {
    key: Vec<u8>,
    kind: Kind,
    /// Its only field, if that is known.
    field: Option<Vec<u8>>,
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
        let prefix = self.prefix;
        let read = |page: Result<_, Failure>| async move {
            let found = candidates(server, page?).await?;
            held(server, prefix, found).await
        };
        let pages = pages(server, pattern, b"hash").map(read).buffered(PAGES);
        let (mut pages, mut locks) = (pin!(pages), Vec::new());
        while let Some(found) = pages.next().await {
            let mut found = found?;
            self.label(&mut found).await;
            locks.append(&mut found);
            if locks.len() >= limit {
                locks.truncate(limit);
                break;
            }
        }
        Ok(locks)
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
                self.one(
                    server,
                    vec![Found {
                        key,
                        kind,
                        field: None,
                    }],
                )
                .await
            }
            ("hash", None) => {
                let found = candidates(server, vec![key]).await?;
                if found.is_empty() {
                    return Err(no_lock(name, "hash"));
                }
                self.one(server, found).await
            }
            (other, _) => Err(no_lock(name, other)),
        }
    }

    async fn one(&mut self, server: &Server, found: Vec<Found>) -> Result<Option<Held>, Failure> {
        let mut held = held(server, self.prefix, found).await?;
        self.label(&mut held).await;
        Ok(held.pop())
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
        let kind = HeldKind::Lock(Kind::Simple);
        let waiting = waiting(server, &[(kind, key)]).await;
        Ok(Some(Held {
            name: named(self.prefix, key),
            kind,
            permits: None,
            holders: vec![holder],
            ttl_ms,
            waiting: waiting.into_iter().next().flatten(),
        }))
    }

    /// Adds the labels of the holders, in a round trip to each server. In a cluster a label is at one of the masters.
    async fn label(&mut self, found: &mut [Held]) {
        let clients = found.iter().flat_map(|held| &held.holders);
        let clients = clients.filter_map(|holder| holder.client.as_ref());
        let unknown = clients.filter(|client| !self.labels.contains_key(*client));
        let unknown: BTreeSet<_> = unknown.cloned().collect();
        let keys = unknown.iter();
        let keys: Vec<_> = keys
            .map(|client| format!("{LABEL}{client}").into_bytes())
            .collect();
        let mut labels = vec![None; keys.len()];
        for server in self.servers {
            // What this user may not see has no label.
            let found: Vec<Option<Option<Vec<u8>>>> =
                (each(server, &keys, &[b"GET"], &[]).await).unwrap_or_default();
            for (label, found) in labels.iter_mut().zip(found) {
                *label = label.take().or(found.flatten());
            }
        }
        self.labels.extend(unknown.into_iter().zip(labels));
        for holder in found.iter_mut().flat_map(|held| &mut held.holders) {
            let client = holder.client.as_ref();
            let label = client.and_then(|client| self.labels.get(client));
            holder.label = label.cloned().flatten();
        }
    }
}

/// A key without the prefix.
fn named(prefix: &[u8], key: &[u8]) -> Vec<u8> {
    key.strip_prefix(prefix).unwrap_or(key).to_vec()
}

/// Those of these locks that are held still, without labels.
async fn held(server: &Server, prefix: &[u8], found: Vec<Found>) -> Result<Vec<Held>, Failure> {
    let asked = found
        .iter()
        .map(|lock| (HeldKind::Lock(lock.kind), lock.key.as_slice()));
    let asked: Vec<_> = asked.collect();
    let ttls = found.iter().map(|lock| command("PTTL", &lock.key));
    let (fields, ttls, waiting) = tokio::join!(
        fields(server, &found),
        ask_all::<i64>(server, ttls),
        waiting(server, &asked),
    );
    let found = asked
        .iter()
        .zip(fields?)
        .zip(ttls?.into_iter().zip(waiting));
    let mut held = Vec::new();
    for (((kind, key), fields), (ttl, waiting)) in found {
        let ttl = ttl?;
        let fields = fields.into_iter().filter(|(field, _)| field != b"mode");
        let mut holders: Vec<_> = fields.map(holder).collect();
        if ttl == GONE || holders.is_empty() {
            continue;
        }
        holders.sort_by(|one, other| one.hold_id.cmp(&other.hold_id));
        held.push(Held {
            name: named(prefix, key),
            kind: *kind,
            permits: None,
            holders,
            ttl_ms: u64::try_from(ttl).ok(),
            waiting,
        });
    }
    read_ttls(server, prefix, &mut held).await?;
    Ok(held)
}

fn holder((hold_id, count): (Vec<u8>, u64)) -> Holder {
    Holder {
        client: split(&hold_id).map(|(client, _)| client.to_owned()),
        label: None,
        hold_id,
        count,
        ttl_ms: None,
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

/// Those hashes that are locks.
async fn candidates(server: &Server, keys: Vec<Vec<u8>>) -> Result<Vec<Found>, Failure> {
    let sizes: Vec<Option<u64>> = each(server, &keys, &[b"HLEN"], &[]).await?;
    let keys = keys.into_iter().zip(sizes);
    let (one, more): (Vec<_>, Vec<_>) = keys.partition(|(_, size)| *size == Some(1));
    let (one, more) = (firsts(one), firsts(more));
    let (fields, modes) = tokio::join!(
        each::<Vec<Vec<u8>>>(server, &one, &[b"HKEYS"], &[]),
        each::<Option<String>>(server, &more, &[b"HGET"], &[b"mode"]),
    );
    let one = one.into_iter().zip(fields?);
    let one = one.filter_map(|(key, fields)| {
        let field = fields?.pop().filter(|field| split(field).is_some());
        let (kind, field) = (Kind::Plain, Some(field?));
        Some(Found { key, kind, field })
    });
    let mut locks = plain_kinds(server, one.collect()).await?;
    for (key, mode) in more.into_iter().zip(modes?) {
        let kind = match mode.flatten().as_deref() {
            Some("read") => Kind::Read,
            Some("write") => Kind::Write,
            _ => continue,
        };
        let field = None;
        locks.push(Found { key, kind, field });
    }
    Ok(locks)
}

fn firsts<T>(pairs: impl IntoIterator<Item = (Vec<u8>, T)>) -> Vec<Vec<u8>> {
    pairs.into_iter().map(|(key, _)| key).collect()
}

/// Says which of the kinds with one field they seem to be.
async fn plain_kinds(server: &Server, mut locks: Vec<Found>) -> Result<Vec<Found>, Failure> {
    let either = locks.iter().map(|lock| {
        let mut either = command("EXISTS", &beside(QUEUE, &lock.key));
        either.arg(beside(TOKEN, &lock.key));
        either
    });
    let either: Vec<Option<u64>> = existing(ask_all(server, either).await?)?;
    let others = locks.iter_mut().zip(either);
    let others = others.filter(|(_, there)| there.is_some_and(|there| there > 0));
    let others: Vec<_> = others.map(|(lock, _)| lock).collect();
    let queues = others.iter().map(|lock| beside(QUEUE, &lock.key));
    let queues: Vec<_> = queues.collect();
    let queues: Vec<Option<bool>> = each(server, &queues, &[b"EXISTS"], &[]).await?;
    for (lock, queue) in others.into_iter().zip(queues) {
        lock.kind = if queue == Some(true) {
            Kind::Fair
        } else {
            Kind::Fenced
        };
    }
    Ok(locks)
}

/// A field of a hash with its value.
type Field = (Vec<u8>, Vec<u8>);

/// Up to [`MOST`] fields of each, with their numbers.
async fn fields(server: &Server, locks: &[Found]) -> Result<Vec<Vec<(Vec<u8>, u64)>>, Failure> {
    let (mut one, mut more) = (Vec::new(), Vec::new());
    for Found { key, field, .. } in locks {
        if let Some(field) = field {
            let mut get = command("HGET", key);
            get.arg(field);
            one.push(get);
        } else {
            let mut scan = command("HSCAN", key);
            scan.arg(&["0", "COUNT", "100"]);
            more.push(scan);
        }
    }
    let (one, more) = tokio::join!(
        ask_all::<Option<Vec<u8>>>(server, one),
        ask_all::<(Vec<u8>, Vec<Field>)>(server, more),
    );
    let (mut one, mut more) = (one?.into_iter(), more?.into_iter());
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
    let fields = locks.iter().map(|lock| {
        let fields = match &lock.field {
            Some(field) => one.next().map(|count| {
                let count = count?.map(|count| (field.clone(), count));
                Ok(count.into_iter().collect())
            }),
            None => more.next().map(|answer| Ok(answer?.1)),
        };
        let fields: Vec<Field> = match fields {
            // Of another type by now.
            Some(Err(error)) if RedisError::code(&error) == Some("WRONGTYPE") => Vec::new(),
            fields => fields.transpose()?.unwrap_or_default(),
        };
        let fields = fields.into_iter().take(MOST + 1);
        Ok(fields
            .map(|(field, count)| (field, number(&count).unwrap_or(0)))
            .collect())
    });
    fields.collect()
}

/// None: there is no such key. Some(None): it has no TTL.
async fn ttl(server: &Server, key: &[u8]) -> Result<Option<Option<u64>>, Failure> {
    let ms: i64 = server.ask(&[b"PTTL", key]).await?;
    Ok((ms != GONE).then_some(u64::try_from(ms).ok()))
}

/// What PTTL says of a key that is not there.
const GONE: i64 = -2;

/// Adds the longest lease of each read hold's levels; each level has a key of its own.
async fn read_ttls(server: &Server, prefix: &[u8], held: &mut [Held]) -> Result<(), Failure> {
    let shared = held
        .iter_mut()
        .filter(|lock| matches!(lock.kind, HeldKind::Lock(Kind::Read | Kind::Write)));
    let asking = shared.flat_map(|lock| {
        let key = [prefix, &lock.name].concat();
        let holders = lock.holders.iter_mut();
        holders.map(move |holder| {
            let levels = 1..=holder.count.min(MOST as u64);
            let keys = levels.map(|level| {
                let level = level.to_string();
                let suffix = [&holder.hold_id, &b":rwlock_timeout:"[..], level.as_bytes()];
                behind(&key, &suffix.concat())
            });
            let keys: Vec<_> = keys.collect();
            async move {
                let left: Vec<Option<i64>> = each(server, &keys, &[b"PTTL"], &[]).await?;
                let left = left.into_iter().flatten();
                holder.ttl_ms = left.filter_map(|ms| u64::try_from(ms).ok()).max();
                Ok::<_, Failure>(())
            }
        })
    });
    try_join_all(asking).await?;
    Ok(())
}

/// How many clients wait for each: the queue of a fair lock, or who listens. None if this user may not ask.
async fn waiting(server: &Server, asked: &[(HeldKind, &[u8])]) -> Vec<Option<u64>> {
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
    let queued = each(server, &queues, &[b"LLEN"], &[]);
    let (queued, listening) = tokio::join!(queued, listening(server, &channels));
    let mut queued = queued.unwrap_or_default().into_iter();
    let mut listening = listening.into_iter();
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
    let now = server.time().await?.as_millis().to_string();
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
/// A client's label.
const LABEL: &str = "watchlock_client:";

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
