//! Who holds a lock, and how many wait for it: for people. Code asks its guard.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use redis::{FromRedisValue, Value};
use uuid::Uuid;

use super::handle::{Handle, LockKind, LockOfClient, LockTarget};
use super::kinds::permits::PermitId;
use crate::backend::Failure;
use crate::config::is_label;
use crate::engine::caller::ask::asked;
use crate::engine::core::Core;
use crate::engine::hold::kind::{Kind, Sharing};
use crate::error::Error;
use crate::names::{Names, label_key};
use crate::script::Call;

/// How many holders are listed.
const MOST: usize = 100;

/// What the hash of a read/write lock has besides its holders.
const MODE: &[u8] = b"mode";

/// The end of a writer's field in it.
const WRITER: &[u8] = b":write";

/// Who holds a lock, as Redis has it: from [`Handle::holders`].
///
/// ```no_run
/// # async fn example(lock: watchlock::ReentrantLock) -> Result<(), watchlock::Error> {
/// for holder in lock.holders().await? {
///     let who = holder.label.as_deref().unwrap_or("somebody");
///     println!("{who} ({}) has it {} times", holder.hold_id, holder.hold_count);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `<client's id>:<number>`, with Redisson `<client's id>:<thread's id>`; for a [simple lock](crate::SimpleLock) the
    /// token; for a permit of a semaphore the permit's id. Bytes that are no UTF-8 are shown as `�`.
    pub hold_id: String,
    /// The client, if `hold_id` begins with one: its [`Client::id`](crate::Client::id), or that of a Redisson client.
    pub client: Option<Uuid>,
    /// The client's [label](crate::ClientBuilder::label): none with Redisson, if it set none, if it has been dead for three
    /// watchdog leases, or if the ACL denies to read it.
    pub label: Option<String>,
    /// How many levels Redis counts: 1 for a simple lock, a permit, and all reads of one client.
    pub hold_count: u32,
}

/// What can be asked about holders and waiters.
pub trait InspectTarget: LockTarget {
    fn holders(&self) -> impl Future<Output = Result<Vec<Holder>, Error>> + Send;
    fn waiters(&self) -> impl Future<Output = Result<u64, Error>> + Send;
}

impl<K: LockKind<Target: InspectTarget>> Handle<K> {
    /// The present holders, those of Redisson too: at most 100, in the order of their ids; none if the lock is free. Asks
    /// Redis. For people, because it is outdated when it arrives; code asks its guard.
    ///
    /// Of a read lock these are the readers, of a write lock the writer. In a [quorum](crate::Quorum) a hold has another id
    /// on each server: all of them are listed, if the lock is held on so many servers that no majority is free.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked), and [`Error::WrongType`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        self.about(self.target().holders().await)
    }

    /// Roughly how many clients wait: those that listen to the lock's channel, this one included, until a second after
    /// they stop. Waiters that poll, as those of a [spin lock](crate::SpinLock), are not counted. For a
    /// [fair lock](crate::FairLock) it is the length of the queue. Asks Redis. For people.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn waiters(&self) -> Result<u64, Error> {
        self.about(self.target().waiters().await)
    }
}

impl InspectTarget for LockOfClient {
    async fn holders(&self) -> Result<Vec<Holder>, Error> {
        let (core, kind) = (self.core(), self.kind()?);
        let mut holders = if kind.commands.rules().is_string {
            holder_in_string(core, kind).await?
        } else {
            holders_in_hash(core, kind).await?
        };
        holders.sort_by(|one, other| one.hold_id.cmp(&other.hold_id));
        holders.truncate(MOST);
        // One question for each client.
        let mut labels: BTreeMap<_, _> =
            holders.iter().map(|holder| (holder.client, None)).collect();
        let asked = labels.iter_mut().map(async |(client, label)| {
            if let Some(client) = client {
                *label = label_of(core, *client).await;
            }
        });
        join_all(asked).await;
        for holder in &mut holders {
            holder.label = labels.get(&holder.client).cloned().flatten();
        }
        Ok(holders)
    }

    async fn waiters(&self) -> Result<u64, Error> {
        let (core, kind) = (self.core(), self.kind()?);
        let names = &kind.names;
        if let Some(queue) = kind.commands.queue() {
            return ask(core, queue.length(names)).await;
        }
        let call = Call::plain("PUBSUB").for_node_of(names);
        let call = call.by_channels(["NUMSUB", "SHARDNUMSUB"]);
        let (_, clients): (Value, u64) = ask(core, call.arg(names.channel())).await?;
        Ok(clients)
    }
}

async fn holder_in_string(core: &Core, kind: &Kind) -> Result<Vec<Holder>, Error> {
    let call = Call::plain("GET").lock(&kind.names);
    let token: Option<Vec<u8>> = ask(core, call).await?;
    Ok(token.iter().map(|token| Holder::of(token, 1)).collect())
}

async fn holders_in_hash(core: &Core, kind: &Kind) -> Result<Vec<Holder>, Error> {
    let names = &kind.names;
    let sharing = kind.commands.rules().sharing;
    let size: usize = ask(core, Call::plain("HLEN").lock(names)).await?;
    // The key of something else may have millions of fields.
    let all = size <= MOST + 1;
    let mut mode = None;
    if !all && sharing != Sharing::Exclusive {
        // Before the fields: there are none if the lock is released in between.
        mode = ask(core, Call::plain("HGET").lock(names).arg("mode")).await?;
    }
    let fields: Vec<(Vec<u8>, Vec<u8>)> = match (sharing, all) {
        (Sharing::Exclusive, _) if size > 1 => return Err(Error::wrong_type()),
        (_, true) => ask(core, Call::plain("HGETALL").lock(names)).await?,
        (_, false) => {
            let call = Call::plain("HRANDFIELD").lock(names);
            ask(core, call.arg(MOST as u64 + 1).arg("WITHVALUES")).await?
        }
    };
    let is_free = fields.is_empty();
    let mut holders = Vec::new();
    for (field, value) in fields {
        if field == MODE {
            mode = Some(value);
            continue;
        }
        let count = std::str::from_utf8(&value)
            .ok()
            .and_then(|count| count.parse().ok());
        let count = count.ok_or_else(Error::wrong_type)?;
        let holder = match (sharing, field.strip_suffix(WRITER)) {
            (Sharing::Exclusive, _) | (Sharing::Reads, None) => Holder::of(&field, count),
            (Sharing::Writes, Some(writer)) => Holder::of(writer, count),
            _ => continue,
        };
        holders.push(holder);
    }
    let is_kind = match (sharing, mode.as_deref()) {
        _ if is_free => true,
        (Sharing::Exclusive, mode) => mode.is_none(),
        (_, mode) => matches!(mode, Some(b"read" | b"write")),
    };
    if is_kind {
        Ok(holders)
    } else {
        Err(Error::wrong_type())
    }
}

/// The permits of a counted lock whose lease is not over, by the clock of the server; `records` has those that are taken.
pub(super) async fn holders_of_permits(
    core: &Core,
    names: &Names,
    records: &str,
) -> Result<Vec<Holder>, Error> {
    let number: Option<Vec<u8>> = ask(core, Call::plain("GET").lock(names)).await?;
    if number.is_none() {
        // Without a number they are records of nothing.
        return Ok(Vec::new());
    }
    let time = Call::plain("TIME").for_node_of(names);
    let (seconds, micros): (u64, u64) = ask(core, time).await?;
    let now = seconds.saturating_mul(1_000).saturating_add(micros / 1_000);
    let over = format!("({now}");
    let call = Call::plain("ZRANGEBYSCORE").for_node_of(names).key(records);
    let call = call.arg(over).arg("+inf");
    let ids: Vec<Vec<u8>> = ask(core, call.arg("LIMIT").arg(0_u64).arg(MOST as u64)).await?;
    let of_permit = |id: &Vec<u8>| Holder {
        hold_id: PermitId::shown(id),
        client: None,
        label: None,
        hold_count: 1,
    };
    Ok(ids.iter().map(of_permit).collect())
}

impl Holder {
    fn of(hold_id: &[u8], hold_count: u32) -> Self {
        let hold_id = String::from_utf8_lossy(hold_id).into_owned();
        let client = hold_id.split_once(':').map(|(client, _)| client);
        Self {
            client: client.and_then(|client| Uuid::try_parse(client).ok()),
            label: None,
            hold_id,
            hold_count,
        }
    }
}

/// The label of a client; none also if it cannot be read.
async fn label_of(core: &Core, client: Uuid) -> Option<String> {
    let key = label_key(&client.to_string());
    let label: Option<String> = ask(core, Call::plain("GET").own_key(&key)).await.ok()?;
    label.filter(|label| is_label(label))
}

async fn ask<T: FromRedisValue>(core: &Core, call: Call<'_>) -> Result<T, Error> {
    let value = asked(core, call).await?.value;
    let value = value.and_then(|value| T::from_redis_value(*value).ok());
    value.ok_or_else(|| Failure::strange_reply().into())
}
