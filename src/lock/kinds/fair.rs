//! The fair lock: granted in the order of arrival, by a queue in Redis that it shares with Redisson.

use std::sync::Arc;

use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules, RedisQueue, Try};
use crate::error::Error;
use crate::lease::LeaseMs;
use crate::lock::guard::{LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient};
use crate::names::{Family, Names};
use crate::script::call::{
    FAIR_ACQUIRE, FAIR_ENQUEUE, FAIR_FORCE_RELEASE, FAIR_RELEASE, FAIR_VOUCH, Script,
};
use crate::script::{Call, HoldRef};

/// The kind of [`FairLock`].
#[derive(Debug)]
pub enum Fair {}

impl sealed::Sealed for Fair {}

impl LockKind for Fair {
    const HANDLE: &'static str = "FairLock";
    type Target = LockOfClient;
    type Guard = LockGuard;
}

/// A reentrant lock by name that is granted in the order of arrival: Redisson's fair lock.
///
/// From [`Client::get_fair_lock`](crate::Client::get_fair_lock) or
/// [`Owner::get_fair_lock`](crate::Owner::get_fair_lock). First come, first served, over all processes and
/// Java services with Redisson's fair lock of that name: all wait in one queue in Redis.
///
/// - **The order** is that in which waiters reach Redis, and inside a client that of the calls. A client queues its first
///   64 waiters for a name in Redis; the others wait behind them. Entering again what the owner holds does not wait.
/// - **One try** (`try_lock` with `Duration::ZERO`) overtakes nobody: the lock is busy while others queue for it.
/// - **A waiter that gives up** leaves the queue at once, and passes its turn on.
/// - **A release wakes the first** in the queue alone, which then tries.
/// - **A process that died** loses its places after 15 s, however many it had; so does one that was suspended or cut off
///   for that long. Dead waiters of Redisson keep their places as long as Redisson keeps them.
///   See [`fair_wait`](crate::ClientBuilder::fair_wait).
///
/// With many waiters it costs more than the [plain](crate::ReentrantLock) lock: a grant may cost Redis one pass over the
/// queue. **Use a name for one kind only**: a held fair lock looks like a plain lock in Redis, so the two exclude each
/// other under one name, but a release of one does not wake waiters of the other, and the order is lost.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::FairLock = client.get_fair_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here, and nobody who came later was here before …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RFairLock")]
pub type FairLock = Handle<Fair>;

/// What the keys of the queue, the scores and the waiters begin with.
const KEYS: [&str; 3] = [
    "redisson_lock_queue",
    "redisson_lock_timeout",
    "watchlock_waiters",
];

pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    let wait = LeaseMs::of(config.fair_wait);
    let commands = KindCommands::OfOne(Arc::new(InOrder { wait }));
    Kind::new(&Family::FAIR, config, name, commands)
}

/// The plain lock's hash, and a queue.
struct InOrder {
    /// The time that Redisson's clients give each place in the queue.
    wait: LeaseMs,
}

impl InOrder {
    /// The keys and arguments that every script of the fair lock begins with.
    fn call<'a>(&self, script: &'static Script, names: &'a Names) -> Call<'a> {
        let keys = KEYS.iter().map(|key| names.prefixed(key));
        let call = keys.fold(script.on(names), Call::key);
        call.arg(self.wait).arg(names.channel())
    }
}

fn with_all<'a>(call: Call<'a>, hold_ids: &[&'a str]) -> Call<'a> {
    hold_ids.iter().fold(call, |call, id| call.arg(*id))
}

impl Commands for InOrder {
    fn rules(&self) -> KindRules {
        KindRules {
            name: "fair",
            needs_time: true,
            ..KindRules::DEFAULT
        }
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(self)
    }

    fn acquire<'a>(&self, hold: HoldRef<'a>, sort: Try<'_>) -> Call<'a> {
        self.call(&FAIR_ACQUIRE, hold.names)
            .arg(hold.id)
            .arg(hold.lease)
            .arg(u32::from(sort.waits))
            .publishes()
    }

    fn release<'a>(&self, names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
        let call = self.call(&FAIR_RELEASE, names);
        call.arg(hold_id).arg(left).publishes()
    }

    fn force<'a>(&self, names: &'a Names, client: &'a str) -> Call<'a> {
        let call = self.call(&FAIR_FORCE_RELEASE, names);
        call.arg(client).publishes()
    }
}

impl RedisQueue for InOrder {
    fn enqueue<'a>(&self, names: &'a Names, ahead: Option<&'a str>, ids: &[&'a str]) -> Call<'a> {
        let call = self.call(&FAIR_ENQUEUE, names);
        with_all(call.arg(ahead.unwrap_or("")), ids)
    }

    fn vouch<'a>(&self, names: &'a Names, client: &'a str, ids: &[&'a str]) -> Call<'a> {
        let call = self.call(&FAIR_VOUCH, names);
        with_all(call.arg(client), ids).publishes()
    }

    fn length<'a>(&self, names: &'a Names) -> Call<'a> {
        Call::plain("LLEN")
            .for_node_of(names)
            .key(names.prefixed(KEYS[0]))
    }

    fn channel(&self, names: &Names, hold_id: &str) -> Box<str> {
        [names.channel(), ":", hold_id].concat().into()
    }
}
