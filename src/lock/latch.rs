//! Count-down latches: those who wait hold nothing, and those who count say each count once.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Failure, Pending};
use crate::backoff::OUTAGE;
use crate::engine::caller::ask::{ask, open_fleet, tell, tell_behind};
use crate::engine::core::{Core, Mail, error_of};
use crate::engine::keeper::Engine;
use crate::error::Error;
use crate::names::{Family, Names};
use crate::script::Reply;
use crate::script::call::{LATCH_CHANGE, LATCH_COUNT_DOWN, LATCH_LOOK};

/// Redisson counts in 32 bits.
const MOST_COUNTS: i64 = i32::MAX as i64;

/// Redis knows the id of a count for an hour. A repeat must not come later.
const REPEATED_FOR: Duration = Duration::from_secs(30 * 60);

const FAMILY: Family = Family {
    tag: "latch",
    channel: "redisson_countdownlatch__channel__{",
};

/// What the key with the ids of counts begins with.
const COUNTED: &str = "watchlock_counted";

/// Redisson's `RCountDownLatch`, with the same number and channel: some [wait](Self::wait) until others have
/// [counted down](Self::count_down) the number that was [set](Self::try_set_count). From
/// [`Client::get_count_down_latch`](crate::Client::get_count_down_latch).
///
/// It is cheap to clone, and made to be kept and shared. A latch without a count is open. The last count deletes it, and it
/// can be set again.
///
/// **A latch has no lease.** If a task dies before it counts, the latch stays closed until somebody counts for it or deletes
/// the latch: put a limit on the wait, by `tokio::time::timeout`. Who waits cannot tell a latch that was counted down from
/// one that was deleted, and does not wait for the end of one that is set anew at the same moment: use a name for each round.
///
/// The count is Redis' alone: a failover may bring back what the last counts took away, and no replica has to acknowledge it.
///
/// A name is of one kind. Redis cannot tell a latch from a semaphore of the same name. In a cluster, names with `{` or `}`
/// are refused, as by Redisson.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// use std::time::Duration;
///
/// let latch = client.get_count_down_latch("import:2026-11-27");
/// latch.try_set_count(3).await?;
/// for part in 0..3 {
///     let latch = latch.clone();
///     tokio::spawn(async move {
///         // … import the part, in this process or in another …
///         # let _ = part;
///         latch.count_down().await
///     });
/// }
/// match tokio::time::timeout(Duration::from_secs(60), latch.wait()).await {
///     Ok(done) => done?,
///     Err(_) => println!("{} parts are missing", latch.count().await?),
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RCountDownLatch")]
#[derive(Clone)]
pub struct CountDownLatch {
    engine: Arc<Engine>,
    /// Or its name, and why it cannot be used.
    names: Result<Arc<Names>, Arc<(Box<str>, Error)>>,
}

impl std::fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountDownLatch")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl CountDownLatch {
    pub(crate) fn of_client(engine: &Arc<Engine>, name: &str) -> Self {
        let names = Names::of(&FAMILY, &engine.core.config.key_prefix, name);
        Self {
            engine: Arc::clone(engine),
            names: names
                .map(Arc::new)
                .map_err(|error| Arc::new((name.into(), error))),
        }
    }

    /// The latch's name, without the client's prefix.
    #[must_use]
    #[doc(alias = "getName")]
    pub fn name(&self) -> &str {
        match &self.names {
            Ok(names) => names.name(),
            Err(unusable) => &unusable.0,
        }
    }

    /// Closes the latch for `count` counts, 1 to 2^31 - 1, if it has no count. Returns whether it was this call; after a lost
    /// reply `false` may hide that it was.
    ///
    /// It is sent once: others may have counted the latch down before a repeat, which would close it again, with nobody left
    /// to count.
    ///
    /// # Errors
    ///
    /// As [`count`](Self::count); [`Error::InvalidCount`]. After [`Error::Unavailable`] it may have run, unless
    /// [`was_sent`](Error::was_sent) is false.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have run.
    #[doc(alias = "trySetCount")]
    pub async fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        self.about(Error::check_count(count.into(), 1..=MOST_COUNTS))?;
        let set = self.about(self.change("set", count).await);
        let is_unclear = |error: &Error| matches!(error, Error::Unavailable { sent: true, .. });
        if set.as_ref().is_err_and(is_unclear) && self.count().await.is_ok_and(|count| count > 0) {
            return Ok(false);
        }
        set
    }

    /// Counts down by one, and returns how many counts are left. Of an open latch, none are. The last count opens the latch
    /// and wakes those who wait.
    ///
    /// A call counts once, however often its command is sent. It is repeated for up to `unavailable_after` (5 s unless set),
    /// and 30 minutes at most.
    ///
    /// # Errors
    ///
    /// As [`count`](Self::count); [`Error::Unsupported`]. After [`Error::Unavailable`] it has counted once or not at all, and another call may be the
    /// second count of the same task.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it has counted once or not at all.
    #[doc(alias = "countDown")]
    pub async fn count_down(&self) -> Result<u64, Error> {
        self.about(self.count_once().await)
    }

    /// How many counts the latch waits for; 0 when it is open. Asks Redis.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::WrongType`] when the key has no number; [`Error::CrossSlot`];
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Denied`], [`Error::Closed`] of the command; [`Error::Config`] with
    /// [`NoRuntime`](crate::ConfigError::NoRuntime) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "getCount")]
    pub async fn count(&self) -> Result<u64, Error> {
        let asked = async {
            let call = LATCH_LOOK.on(self.names()?).arg("count");
            match ask(self.core(), call).await? {
                Reply::Done(count) => Ok(count),
                refusal => Err(error_of(refusal)),
            }
        };
        self.about(asked.await)
    }

    /// Waits until the latch is open: it has been counted down or deleted, its key has ended, or it was never set. Without a
    /// limit: `tokio::time::timeout` adds one.
    ///
    /// All who wait in a client share its questions to Redis. A message leads to one, and so does the end of the key; without
    /// either there is one at the latest after the [backoff](crate::ClientBuilder::backoff)'s cap, 1 s unless set.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`]; [`Error::WrongType`] when the key has no number; [`Error::CrossSlot`]; [`Error::Denied`];
    /// [`Error::Closed`]; [`Error::Unavailable`] or [`Error::Refused`] when Redis was unreachable or refused for
    /// `unavailable_after` (5 s unless set).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    #[doc(alias = "await")]
    pub async fn wait(&self) -> Result<(), Error> {
        self.about(self.opened().await)
    }

    /// Deletes the latch, which opens it. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// As [`count`](Self::count). [`Error::Unavailable`]: it may have run, and is not repeated.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have run.
    pub async fn delete(&self) -> Result<bool, Error> {
        self.about(self.change("delete", 0).await)
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn timers(&self) -> crate::backend::Timers {
        self.core().backend.timers().clone()
    }

    fn core(&self) -> &Core {
        &self.engine.core
    }

    fn names(&self) -> Result<&Arc<Names>, Error> {
        self.names.as_ref().map_err(|unusable| unusable.1.clone())
    }

    fn about<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| error.about(self.name()))
    }

    /// Returns whether it changed anything.
    async fn change(&self, how: &'static str, count: u32) -> Result<bool, Error> {
        let names = self.names()?;
        let call = LATCH_CHANGE.on(names).arg(how).arg(count).wakes(names);
        let reply = match how {
            "set" => tell_behind(self.core(), LATCH_LOOK.on(names).arg("count"), call).await?,
            _ => tell(self.core(), call).await?,
        };
        Ok(self.done(reply)? > 0)
    }

    /// The number of a reply, whether or not the message behind it was heard.
    fn done(&self, reply: Reply) -> Result<u64, Error> {
        match reply {
            Reply::Done(number) => Ok(number),
            Reply::Unheard(number) => {
                self.core().warn_wake_up_denied(self.names()?);
                Ok(number)
            }
            refusal => Err(error_of(refusal)),
        }
    }

    async fn count_once(&self) -> Result<u64, Error> {
        let (core, names) = (self.core(), self.names()?);
        core.check_supported(true)?;
        let id = core.hold_id(core.number());
        let call = LATCH_COUNT_DOWN.on(names).key(names.prefixed(COUNTED));
        let call = call.arg(&*id).wakes(names);
        let limit = core.config.command_timeout;
        let end = core.now() + core.config.unavailable_after.min(REPEATED_FOR).max(limit);
        let mut delays = core
            .config
            .backoff
            .at_most(OUTAGE)
            .delays(fastrand::u64(..));
        // How the last command failed that may have counted.
        let mut unclear: Option<Failure> = None;
        loop {
            let fleet = match open_fleet(core) {
                Ok(fleet) => fleet,
                Err(error) => return Err(after_a_send(unclear, error)),
            };
            let pending = Pending::start(&fleet, call.clone());
            let failure = match pending.until(limit, end).await {
                Ok(answer) => return self.done(answer.reply),
                Err(failure) => failure,
            };
            if !failure.was_not_sent() {
                unclear = Some(failure.clone());
            }
            let again_at = core.now() + delays.step();
            if failure.is_transient() && again_at < end {
                core.backend.timers().sleep_until(again_at).await;
                // The process may have stood still for longer than the count is remembered.
                if core.now() < end {
                    continue;
                }
            }
            return Err(after_a_send(unclear, failure.into()));
        }
    }

    async fn opened(&self) -> Result<(), Error> {
        let (core, names) = (self.core(), self.names()?);
        core.check_accepting()?;
        let (mut waiter, is_first) = core.latches.wait(names, core.now());
        if is_first {
            core.post(Mail::Watch(Arc::clone(names)));
        }
        // The client ended the waits of all who came before it closed. It would not end that of one who comes later.
        core.check_accepting()?;
        loop {
            let (now, limit) = (core.now(), core.config.unavailable_after);
            if let Some(result) = waiter.result(now, core.runs_since(), limit) {
                return result;
            }
            waiter.changed().await?;
        }
    }
}

/// The error of a call: if a command may have counted, one that says so.
fn after_a_send(unclear: Option<Failure>, error: Error) -> Error {
    let was_sent = unclear.is_some();
    match (unclear, error) {
        (Some(failure), Error::Closed) => Error::from(failure).after_a_send(true),
        (_, error) => error.after_a_send(was_sent),
    }
}
