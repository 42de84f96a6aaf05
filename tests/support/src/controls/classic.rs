//! A lock that is one string in Redis: the right way to do it, and the three that the literature warns of.
//!
//! `docs/classic-mistakes.md` says what goes wrong in each. Holds have a fixed lease, waiters poll, and a failed
//! command ends the client: it repeats nothing and cleans up nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until};

use crate::history::{Call, LockKind, Outcome, Record, Recorder};
use crate::now_ns;

const POLL: Duration = Duration::from_millis(10);

const DELETE_OWN: &str = "
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
    return 0";

/// How to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `SET name token NX PX lease`, and a release that deletes only its own token.
    Right,
    /// `SETNX`, and `EXPIRE` in a command of its own.
    SetnxThenExpire,
    /// `SETNX` of the time when the lease ends, by the client's clock; `GETSET` takes over a lease that has ended.
    TimestampByGetset,
    /// A release that deletes whatever is there.
    DeletesAnybodys,
}

/// A client.
#[derive(Debug)]
pub struct StringLock {
    connection: MultiplexedConnection,
    client: u32,
    way: Way,
    recorder: Recorder,
    next_owner: AtomicU32,
    /// How much the client's clock is ahead.
    pub clock_ahead: Duration,
}

/// A hold of a client; dropping it does not give it back.
#[derive(Debug)]
pub struct StringHold<'a> {
    lock: &'a StringLock,
    owner: u32,
    name: String,
    /// The value in Redis: a token, or the time when the lease ends.
    value: String,
    watch: AbortHandle,
}

impl StringLock {
    /// A client by number.
    ///
    /// # Errors
    /// When it cannot connect.
    pub async fn connect(
        url: &str,
        client: u32,
        way: Way,
        recorder: &Recorder,
    ) -> RedisResult<Self> {
        let redis = redis::Client::open(url)?;
        Ok(Self {
            connection: redis.get_multiplexed_async_connection().await?,
            client,
            way,
            recorder: recorder.clone(),
            next_owner: AtomicU32::new(0),
            clock_ahead: Duration::ZERO,
        })
    }

    /// Acquires within `wait`. `None`: busy.
    ///
    /// # Errors
    /// When a command fails: consider the client dead.
    ///
    /// # Cancel safety
    /// None: what the call acquired stays.
    pub async fn lock(
        &self,
        name: &str,
        wait: Duration,
        lease: Duration,
    ) -> RedisResult<Option<StringHold<'_>>> {
        let owner = self.next_owner.fetch_add(1, Ordering::Relaxed);
        let call = Call::Acquire {
            wait_ms: Some(super::millis(wait)),
            lease_ms: Some(super::millis(lease)),
        };
        let kind = LockKind::Simple;
        let op = self.recorder.invoke(self.client, owner, kind, name, call);
        let end = Instant::now() + wait;
        loop {
            let sent = Instant::now();
            if let Some(value) = self.try_once(owner, name, lease).await? {
                let hold = self.hold(owner, name, value, sent + lease.mul_f64(0.98));
                self.recorder.returned(op, Outcome::Acquired(1));
                return Ok(Some(hold));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.recorder.returned(op, Outcome::Busy);
                return Ok(None);
            }
            sleep(POLL.min(left)).await;
        }
    }

    /// The value that it wrote, if it got the lock.
    async fn try_once(
        &self,
        owner: u32,
        name: &str,
        lease: Duration,
    ) -> RedisResult<Option<String>> {
        let token = format!("{}:{owner}", self.client);
        let lease_ms = super::millis(lease);
        let mut redis = self.connection.clone();
        match self.way {
            Way::Right | Way::DeletesAnybodys => {
                let mut set = redis::cmd("SET");
                set.arg(name).arg(&token).arg("NX").arg("PX").arg(lease_ms);
                let got: bool = set.query_async(&mut redis).await?;
                Ok(got.then_some(token))
            }
            Way::SetnxThenExpire => {
                let mut set = redis::cmd("SETNX");
                let got: bool = set.arg(name).arg(&token).query_async(&mut redis).await?;
                if got {
                    let mut expire = redis::cmd("PEXPIRE");
                    expire.arg(name).arg(lease_ms);
                    expire.exec_async(&mut redis).await?;
                }
                Ok(got.then_some(token))
            }
            Way::TimestampByGetset => self.take_over(&mut redis, name, lease_ms).await,
        }
    }

    /// The steps of the old page of `SETNX`.
    async fn take_over(
        &self,
        redis: &mut MultiplexedConnection,
        name: &str,
        lease_ms: u64,
    ) -> RedisResult<Option<String>> {
        let ends = || (self.now_ms() + lease_ms).to_string();
        let value = ends();
        let mut set = redis::cmd("SETNX");
        if set.arg(name).arg(&value).query_async(redis).await? {
            return Ok(Some(value));
        }
        let there: Option<u64> = redis::cmd("GET").arg(name).query_async(redis).await?;
        if there.is_some_and(|there| there > self.now_ms()) {
            return Ok(None);
        }
        let value = ends();
        let mut swap = redis::cmd("GETSET");
        let before: Option<u64> = swap.arg(name).arg(&value).query_async(redis).await?;
        let ended = before.is_none_or(|before| before <= self.now_ms());
        Ok(ended.then_some(value))
    }

    fn now_ms(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        super::millis(now.unwrap_or_default() + self.clock_ahead)
    }

    /// Reports the hold lost when its lease is over.
    fn hold(&self, owner: u32, name: &str, value: String, end: Instant) -> StringHold<'_> {
        let (recorder, client) = (self.recorder.clone(), self.client);
        let owned = name.to_owned();
        let watch = tokio::spawn(async move {
            sleep_until(end.into()).await;
            recorder.push(Record::Lost {
                t: now_ns(),
                client,
                owner,
                kind: LockKind::Simple,
                name: owned,
                reason: "expired".to_owned(),
            });
        });
        StringHold {
            lock: self,
            owner,
            name: name.to_owned(),
            value,
            watch: watch.abort_handle(),
        }
    }
}

impl StringHold<'_> {
    /// Gives the hold back.
    ///
    /// # Errors
    /// As [`StringLock::lock`].
    pub async fn unlock(self) -> RedisResult<()> {
        let StringLock {
            recorder, client, ..
        } = self.lock;
        let (kind, call) = (LockKind::Simple, Call::Release);
        let op = recorder.invoke(*client, self.owner, kind, &self.name, call);
        let over = self.watch.is_finished();
        self.watch.abort();
        let there = self.delete().await?;
        let outcome = if over || !there {
            Outcome::Failed("lost".to_owned())
        } else {
            Outcome::Released(0)
        };
        recorder.returned(op, outcome);
        Ok(())
    }

    async fn delete(&self) -> RedisResult<bool> {
        let mut redis = self.lock.connection.clone();
        match self.lock.way {
            Way::DeletesAnybodys => {
                redis::cmd("DEL")
                    .arg(&self.name)
                    .query_async(&mut redis)
                    .await
            }
            // Only while it has the lock by its own clock: that is all that it can know.
            Way::TimestampByGetset => {
                let ends: u64 = self.value.parse().unwrap_or(0);
                if ends <= self.lock.now_ms() {
                    return Ok(false);
                }
                redis::cmd("DEL")
                    .arg(&self.name)
                    .query_async(&mut redis)
                    .await
            }
            Way::Right | Way::SetnxThenExpire => {
                let mut delete = redis::cmd("EVAL");
                delete
                    .arg(DELETE_OWN)
                    .arg(1)
                    .arg(&self.name)
                    .arg(&self.value);
                delete.query_async(&mut redis).await
            }
        }
    }
}
