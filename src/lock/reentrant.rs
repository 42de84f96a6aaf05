//! Redisson's plain reentrant lock (`RLock`), by name, and the same for one owner.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::acting::Acting;
use super::run::run_under;
use super::{Lock, LockGuard, Owner, Ttl, scope};
use crate::engine::Engine;
use crate::engine::kind::{Commands, Kind};
use crate::error::Error;
use crate::lease::{Lease, LeaseMs};
use crate::names::Names;
use crate::script::{self, Acquired, Call, Released, Reply};

/// The plain lock's commands.
struct Plain;

impl Commands for Plain {
    fn acquire(&self, names: &Names, hold_id: &str, lease: LeaseMs) -> Call {
        script::lock::acquire(names, hold_id, lease)
    }

    fn acquired(&self, reply: &Reply) -> Option<Acquired> {
        script::lock::acquired(reply)
    }

    fn reenter(&self, names: &Names, hold_id: &str, count: u32, lease: LeaseMs) -> Call {
        script::lock::reenter(names, hold_id, count, lease)
    }

    fn release(&self, names: &Names, hold_id: &str, left: u32) -> Call {
        script::lock::release(names, hold_id, left)
    }

    fn released(&self, reply: &Reply) -> Option<Released> {
        script::lock::released(reply)
    }
}

/// A reentrant lock by name: what Redisson calls an `RLock`.
///
/// Made by [`Client::get_lock`](crate::Client::get_lock) without I/O, cheap to clone, made to be shared.
/// It holds nothing and belongs to nobody: each acquire stands for itself, so two tasks that share a
/// handle exclude each other. To enter again what is held, use [`LockGuard::reenter`], an
/// [`Owner`](crate::Owner), or [`Client::scope`](crate::Client::scope): inside a scope a handle acts for the scope's owner.
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// let client = watchlock::Client::connect("redis://127.0.0.1/").await?;
/// let lock = client.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ReentrantLock {
    engine: Arc<Engine>,
    names: Result<Arc<Names>, Arc<BadName>>,
}

/// What a handle says that cannot be used.
struct BadName {
    name: Box<str>,
    error: Error,
}

impl std::fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReentrantLock")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl ReentrantLock {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> Self {
        let config = &engine.core.config;
        let names = Names::plain(&config.key_prefix, name, config.max_key_bytes);
        Self {
            engine: Arc::clone(engine),
            names: names.map(Arc::new).map_err(|error| {
                let name = name.into();
                Arc::new(BadName { name, error })
            }),
        }
    }

    fn text(&self) -> &str {
        match &self.names {
            Ok(names) => names.name(),
            Err(bad) => &bad.name,
        }
    }

    /// Acts for the scope that this is called in, or for nobody.
    fn acting(&self) -> Acting<'_> {
        Acting {
            engine: &self.engine,
            kind: self.kind(),
            owner: scope::current(self.engine.core.client_id),
        }
    }

    fn kind(&self) -> Result<Kind, Error> {
        match &self.names {
            Ok(names) => Ok(Kind {
                names: Arc::clone(names),
                commands: &Plain,
            }),
            Err(bad) => Err(bad.error.clone()),
        }
    }
}

/// A [`ReentrantLock`] that acts for one [`Owner`](crate::Owner), and enters again what that owner holds.
///
/// Made by [`Owner::get_lock`](crate::Owner::get_lock).
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let owner = client.new_owner();
/// let lock = owner.get_lock("report:2026");
/// let outer = lock.lock().await?;
/// let inner = lock.lock().await?; // the same hold, a second level
/// assert_eq!(lock.hold_count(), 2);
/// # drop((outer, inner));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct OwnerLock<'a> {
    lock: ReentrantLock,
    owner: &'a Owner,
}

impl<'a> OwnerLock<'a> {
    pub(crate) fn new(lock: ReentrantLock, owner: &'a Owner) -> Self {
        Self { lock, owner }
    }

    fn acting(&self) -> Acting<'_> {
        Acting {
            engine: &self.lock.engine,
            kind: self.lock.kind(),
            owner: Some(Arc::clone(self.owner.state())),
        }
    }
}

/// The verbs of a handle, the same for every kind of handle; `acting` says for whom.
macro_rules! verbs {
    ($handle:ty, |$self_:ident| $name:expr) => {
        impl $handle {
            /// The lock's name, without the client's prefix.
            #[must_use]
            pub fn name(&self) -> &str {
                let $self_ = self;
                $name
            }

            /// Waits for the lock, for as long as it takes. The watchdog keeps it for as long as the guard
            /// lives.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidName`]; [`Error::WrongType`]; [`Error::Denied`]; [`Error::Closed`];
            /// [`Error::Unavailable`] or [`Error::Refused`] when Redis gave no clean answer for
            /// `unavailable_after` (5 s unless set); [`Error::Lost`] when the owner it acts for has lost this
            /// lock and still has guards of it.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: dropped at any point, it leaves nothing behind once the background clean-up is
            /// done. The place in the queue is lost.
            pub async fn lock(&self) -> Result<LockGuard, Error> {
                self.acting().acquire_forever(Lease::Watchdog).await
            }

            /// Waits for the lock, and takes it for a fixed lease: when `lease` is over the hold is lost,
            /// unless it was extended or given back before.
            ///
            /// `lease` has whole milliseconds (the rest is cut off), by default 10 ms to 24 h.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), and [`Error::InvalidLease`].
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            pub async fn lock_for(&self, lease: Duration) -> Result<LockGuard, Error> {
                self.acting().acquire_forever(Lease::Fixed(lease)).await
            }

            /// Waits for the lock for at most `wait`; `None` when it was busy to the end.
            ///
            /// `Duration::ZERO` makes one try; `Duration::MAX` waits for ever. `lease` is
            /// [`Lease::Watchdog`] or a fixed [`Duration`]. Returns within the longer of `wait` and the
            /// command time-out.
            ///
            /// # Errors
            ///
            /// As [`lock_for`](Self::lock_for), but what may pass is retried within `wait`, and the last
            /// error is returned at its end unless the last answer was busy.
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            pub async fn try_lock(
                &self,
                wait: Duration,
                lease: impl Into<Lease>,
            ) -> Result<Option<LockGuard>, Error> {
                self.acting().acquire(Some(wait), lease.into()).await
            }

            /// Runs `body` under the lock, and cancels it when the hold is lost.
            ///
            /// The body is not polled any more once the hold's validity has ended, also when the runtime was
            /// blocked meanwhile. A release that merely fails (Redis unreachable, refused) is logged, not
            /// returned: the work is done.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), and [`Error::Lost`] when the hold was lost before the body ended, or
            /// the release finds that it was.
            ///
            /// # Cancel safety
            ///
            /// Dropping it drops the body and gives the lock back.
            pub async fn run<T>(
                &self,
                body: impl AsyncFnOnce(&LockGuard) -> T,
            ) -> Result<T, Error> {
                let guard = self.lock().await?;
                run_under(guard, body).await
            }

            /// As [`run`](Self::run) behind a [`try_lock`](Self::try_lock); `None` when the lock stayed busy.
            ///
            /// # Errors
            ///
            /// As [`try_lock`](Self::try_lock), and [`Error::Lost`] as [`run`](Self::run).
            ///
            /// # Cancel safety
            ///
            /// As [`run`](Self::run).
            pub async fn try_run<T>(
                &self,
                wait: Duration,
                lease: impl Into<Lease>,
                body: impl AsyncFnOnce(&LockGuard) -> T,
            ) -> Result<Option<T>, Error> {
                match self.try_lock(wait, lease).await? {
                    Some(guard) => run_under(guard, body).await.map(Some),
                    None => Ok(None),
                }
            }

            /// Gives back the newest level that was [detached](LockGuard::detach) by the owner this handle
            /// acts for.
            ///
            /// # Errors
            ///
            /// [`Error::NotOwner`] when there is none, and always without an owner; else as
            /// [`LockGuard::unlock`].
            ///
            /// # Cancel safety
            ///
            /// As [`LockGuard::unlock`].
            pub async fn unlock(&self) -> Result<(), Error> {
                self.acting().unlock().await
            }

            /// Whether anybody holds the lock. Asks Redis.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidName`], and the errors of a command.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: it changes nothing.
            pub async fn is_locked(&self) -> Result<bool, Error> {
                self.acting().locked().await
            }

            /// Whether the owner this handle acts for holds the lock, validly. Local; false without an owner.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.hold_count() > 0
            }

            /// How many levels the owner this handle acts for holds. Local; 0 without an owner.
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.acting().hold_count()
            }

            /// How much longer Redis keeps the lock. Asks Redis.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidName`], and the errors of a command.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: it changes nothing.
            pub async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
                self.acting().remain_time_to_live().await
            }

            /// Ends whoever holds the lock, and wakes the next waiter. Whether anybody held it.
            ///
            /// For operators: the holder's work goes on until it looks. A hold of this client is lost at
            /// once, with reason `Forced`; others learn of it at their next renewal.
            ///
            /// # Errors
            ///
            /// [`Error::WrongType`] when the key is no plain lock: it is left alone. [`Error::InvalidName`],
            /// and the errors of a command.
            ///
            /// # Cancel safety
            ///
            /// The command may be executed or not.
            pub async fn force_unlock(&self) -> Result<bool, Error> {
                self.acting().force_unlock().await
            }
        }

        #[async_trait]
        impl Lock for $handle {
            fn name(&self) -> &str {
                self.name()
            }
            async fn lock(&self) -> Result<LockGuard, Error> {
                self.lock().await
            }
            async fn lock_for(&self, lease: Duration) -> Result<LockGuard, Error> {
                self.lock_for(lease).await
            }
            async fn try_lock(
                &self,
                wait: Duration,
                lease: Lease,
            ) -> Result<Option<LockGuard>, Error> {
                self.try_lock(wait, lease).await
            }
            async fn unlock(&self) -> Result<(), Error> {
                self.unlock().await
            }
            async fn is_locked(&self) -> Result<bool, Error> {
                self.is_locked().await
            }
            fn is_held(&self) -> bool {
                self.is_held()
            }
            fn hold_count(&self) -> u32 {
                self.hold_count()
            }
            async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
                self.remain_time_to_live().await
            }
            async fn force_unlock(&self) -> Result<bool, Error> {
                self.force_unlock().await
            }
        }
    };
}

verbs!(ReentrantLock, |handle| handle.text());
verbs!(OwnerLock<'_>, |handle| handle.lock.text());
