//! Errors. A busy lock is not an error. Lost, not yours, unreachable, refused and misconfigured are different errors.

mod text;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use self::text::{about, name_problem, without};

/// Why a holder lost its lock.
///
/// ```no_run
/// # async fn example(guard: watchlock::LockGuard) {
/// use watchlock::LostReason;
///
/// match guard.lost().await {
///     LostReason::Expired => println!("stop at once, and see why it was not renewed"),
///     reason => println!("stop at once: {reason}"),
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out without an acknowledged renewal: Redis was out of reach, the process was
    /// frozen, or a fixed lease was simply over.
    #[error("its lease ran out")]
    Expired,
    /// Redis does not have the hold any more: it was deleted, evicted, or lost in a restart.
    #[error("Redis does not have it any more")]
    Missing,
    /// `force_unlock` was called on this client.
    #[error("it was released by force")]
    Forced,
    /// The client was shut down, and the time-out of the shutdown is over.
    #[error("the client is being shut down")]
    Shutdown,
    /// The client's background thread ended unexpectedly, so nothing renews the hold any more.
    #[error("the client's background thread ended")]
    BackgroundEnded,
}

/// The cause of an error, from the layer below.
///
/// ```
/// fn print(error: &watchlock::Error) {
///     println!("{error}");
///     let mut cause = std::error::Error::source(error);
///     while let Some(error) = cause {
///         println!("  because {error}");
///         cause = error.source();
///     }
/// }
/// ```
pub type Cause = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Every way in which an operation on a lock can fail.
///
/// A busy lock is not an error: `try_lock` returns `Ok(None)`. An error about a lock names it, in its text and by
/// [`lock`](Self::lock).
///
/// ```no_run
/// use watchlock::{Error, LockGuard};
///
/// async fn end(guard: LockGuard) {
///     match guard.unlock().await {
///         Ok(()) => println!("nobody else was in"),
///         Err(Error::Lost { reason, .. }) => println!("somebody else may have been in: {reason}"),
///         Err(error) if error.is_transient() => println!("given back in the background: {error}"),
///         Err(error) => println!("{error}"),
///     }
/// }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The hold was lost before it was released; others may have changed what it protected.
    #[error("{}the hold was lost: {reason}", about(lock.as_deref()))]
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        lock: Option<Arc<str>>,
        /// Why.
        reason: LostReason,
    },
    /// This owner has no level of the lock to release or to detach. Without an owner or scope, `unlock` of a handle and `detach`
    /// always fail like this: only the guard gives back its level. A [view](crate::HoldView) of a hold that was given back
    /// fails like this, too.
    #[error("{}it is not held by this owner", about(lock.as_deref()))]
    #[non_exhaustive]
    NotOwner {
        /// The lock's name.
        lock: Option<Arc<str>>,
    },
    /// The key exists and is not a lock of this kind, or the key of the lock's fencing token exists and holds no number.
    #[error("{}the key exists and is not a lock of this kind", about(lock.as_deref()))]
    #[non_exhaustive]
    WrongType {
        /// The lock's name.
        lock: Option<Arc<str>>,
    },
    /// The lock's next fencing token would exceed 2^53, the largest number that Redis' scripts count exactly, because
    /// such a number was written into the token's key. The lock was not taken.
    #[error("{}the next fencing token would exceed 2^53", about(lock.as_deref()))]
    #[non_exhaustive]
    FencingTokenTooLarge {
        /// The lock's name.
        lock: Option<Arc<str>>,
    },
    /// A lock's name must not be empty, and with the client's `key_prefix` not be longer than 512 bytes.
    #[error("{}{}", about(lock.as_deref()), name_problem(lock.as_deref(), *bytes))]
    #[non_exhaustive]
    InvalidName {
        /// The lock's name.
        lock: Option<Arc<str>>,
        /// How long the key would be.
        bytes: usize,
    },
    /// In a cluster all keys of a lock must be in one slot. Those of this name are not, because it has braces without text
    /// between the first `{` and the next `}`; or, for a [latch](crate::CountDownLatch), any braces. Outside a cluster the
    /// name is valid.
    #[error("{}its keys would be in different cluster slots", about(lock.as_deref()))]
    #[non_exhaustive]
    CrossSlot {
        /// The lock's name.
        lock: Option<Arc<str>>,
    },
    /// An owner that holds the read lock asked for the write lock, and would wait for itself. Give the read levels back
    /// first, or take the write lock first and [downgrade](crate::WriteGuard::downgrade) it.
    #[error(
        "{}an owner that holds the read lock cannot wait for the write lock",
        about(lock.as_deref())
    )]
    #[non_exhaustive]
    WouldDeadlock {
        /// The lock's name.
        lock: Option<Arc<str>>,
    },
    /// The lease is out of bounds (10 ms to 365 days; in a quorum up to its `max_lease`), or the level's lease does not
    /// allow the operation.
    #[error("{}{problem}", about(lock.as_deref()))]
    #[non_exhaustive]
    InvalidLease {
        /// The lock's name.
        lock: Option<Arc<str>>,
        /// What is wrong with the lease.
        problem: LeaseError,
    },
    /// A number is out of range: the permits of one acquire of a [semaphore](crate::SemaphoreHandle), those that it has, or
    /// the count of a [latch](crate::CountDownLatch).
    #[error(
        "{}{given} is out of range: at least {smallest} and at most {largest}",
        about(lock.as_deref())
    )]
    #[non_exhaustive]
    InvalidCount {
        /// The lock's name.
        lock: Option<Arc<str>>,
        /// What was asked for.
        given: i64,
        /// The smallest number that is allowed.
        smallest: i64,
        /// The largest number that is allowed.
        largest: i64,
    },
    /// Redis denied the command: authentication, or the user's ACL.
    #[error("{}Redis denied the command", about(lock.as_deref()))]
    #[non_exhaustive]
    Denied {
        /// The lock's name; none when it was denied to connect.
        lock: Option<Arc<str>>,
        /// What Redis said.
        source: Cause,
    },
    /// Redis refused the command: out of memory, not enough replicas, read-only. Or too few replicas
    /// [acknowledged](Self::not_replicated) it.
    #[error("{}Redis refused the command", about(lock.as_deref()))]
    #[non_exhaustive]
    Refused {
        /// The lock's name; none while connecting.
        lock: Option<Arc<str>>,
        /// Whether a later try may be accepted.
        transient: bool,
        /// What Redis said.
        source: Cause,
    },
    /// The server does not allow a command that this kind of lock needs, as `connect` found out and logged. Nothing was
    /// sent. The text says which kinds work there.
    #[error(
        "{}the server does not allow {command}: {}",
        about(lock.as_deref()),
        without(command)
    )]
    #[non_exhaustive]
    Unsupported {
        /// The lock's name.
        lock: Option<Arc<str>>,
        /// `EVAL`; `TIME`; or `PEXPIRE`, for a server that refuses writes behind `TIME` or `PTTL` in scripts.
        command: &'static str,
    },
    /// No usable reply: no connection, no reply in time, or a server that is loading or busy; in a cluster, a slot that no
    /// node serves, or whose keys are migrating.
    #[error("{}Redis is not available", about(lock.as_deref()))]
    #[non_exhaustive]
    Unavailable {
        /// The lock's name; none while connecting.
        lock: Option<Arc<str>>,
        /// Whether anything may have been sent to Redis.
        sent: bool,
        /// The last failure.
        source: Cause,
    },
    /// Too few servers of a [quorum](crate::Quorum) answered, so it is unknown whether the lock is free. A later try may
    /// reach more of them.
    #[error(
        "{}no quorum: {reached} servers answered, {needed} needed",
        about(lock.as_deref())
    )]
    #[non_exhaustive]
    NoQuorum {
        /// The lock's name; none while connecting.
        lock: Option<Arc<str>>,
        /// How many servers that may vote granted it or were busy.
        reached: usize,
        /// How many are needed.
        needed: usize,
        /// The failure of each server.
        source: Cause,
    },
    /// The client was shut down, or its background thread died.
    #[error("the client is closed")]
    Closed,
    /// The client cannot be built.
    #[error("the client cannot be built")]
    Config(#[from] ConfigError),
    /// These locks cannot be combined in a [`MultiLock`](crate::MultiLock).
    #[error("these locks cannot be combined: {0}")]
    InvalidSet(SetError),
}

/// The name of the lock that an error is about, for the errors that are about one.
macro_rules! field_lock {
    ($error:expr) => {
        match $error {
            Self::Lost { lock, .. }
            | Self::NotOwner { lock }
            | Self::WrongType { lock }
            | Self::WouldDeadlock { lock }
            | Self::FencingTokenTooLarge { lock }
            | Self::InvalidName { lock, .. }
            | Self::CrossSlot { lock }
            | Self::InvalidLease { lock, .. }
            | Self::InvalidCount { lock, .. }
            | Self::Denied { lock, .. }
            | Self::Refused { lock, .. }
            | Self::Unsupported { lock, .. }
            | Self::Unavailable { lock, .. }
            | Self::NoQuorum { lock, .. } => Some(lock),
            Self::Closed | Self::Config(_) | Self::InvalidSet(_) => None,
        }
    };
}

impl Error {
    /// Whether the hold was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Whether the same call may succeed later without anything being changed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::NoQuorum { .. } => true,
            Self::Refused { transient, .. } => *transient,
            _ => false,
        }
    }

    /// Whether the call sent a command to Redis, or may have. If not, it certainly had no effect: there was no connection,
    /// the call waited behind too many other commands of this process, or it was refused here.
    ///
    /// If it did, Redis may have granted the lock, or may do so when it gets to the command. The client releases it then.
    /// [`Closed`](Self::Closed) counts as sent: the client may have been closed during the call.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        match self {
            Self::Unavailable { sent, .. } => *sent,
            Self::Lost { .. }
            | Self::WrongType { .. }
            | Self::FencingTokenTooLarge { .. }
            | Self::Denied { .. }
            | Self::Refused { .. }
            | Self::NoQuorum { .. }
            | Self::Closed => true,
            Self::NotOwner { .. }
            | Self::InvalidName { .. }
            | Self::CrossSlot { .. }
            | Self::WouldDeadlock { .. }
            | Self::InvalidLease { .. }
            | Self::InvalidCount { .. }
            | Self::Unsupported { .. }
            | Self::Config(_)
            | Self::InvalidSet(_) => false,
        }
    }

    /// The cause, if too few replicas acknowledged the command.
    #[must_use]
    pub fn not_replicated(&self) -> Option<&NotReplicated> {
        match self {
            Self::Refused { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    /// The name of the lock, without the client's prefix.
    #[must_use]
    pub fn lock(&self) -> Option<&str> {
        field_lock!(self)?.as_deref()
    }

    pub(crate) fn lost(reason: LostReason) -> Self {
        Self::Lost { lock: None, reason }
    }

    pub(crate) fn not_owner() -> Self {
        Self::NotOwner { lock: None }
    }

    pub(crate) fn wrong_type() -> Self {
        Self::WrongType { lock: None }
    }

    /// Fails unless `given` is in this range.
    pub(crate) fn check_count(given: i64, range: RangeInclusive<i64>) -> Result<(), Self> {
        if range.contains(&given) {
            return Ok(());
        }
        let (smallest, largest) = range.into_inner();
        Err(Self::InvalidCount {
            lock: None,
            given,
            smallest,
            largest,
        })
    }

    pub(crate) fn refused(transient: bool, source: Cause) -> Self {
        Self::Refused {
            lock: None,
            transient,
            source,
        }
    }

    pub(crate) fn unavailable(sent: bool, source: Cause) -> Self {
        Self::Unavailable {
            lock: None,
            sent,
            source,
        }
    }

    /// Something `was_sent` before, in the same call.
    pub(crate) fn after_a_send(mut self, was_sent: bool) -> Self {
        if let Self::Unavailable { sent, .. } = &mut self {
            *sent |= was_sent;
        }
        self
    }

    pub(crate) fn no_quorum(reached: usize, needed: usize, source: Cause) -> Self {
        Self::NoQuorum {
            lock: None,
            reached,
            needed,
            source,
        }
    }

    /// Adds the name of the lock, unless there is one. Handles and guards do so when they return an error.
    pub(crate) fn about(mut self, name: &str) -> Self {
        if let Some(lock) = field_lock!(&mut self) {
            lock.get_or_insert_with(|| name.into());
        }
        self
    }
}

impl From<SetError> for Error {
    fn from(problem: SetError) -> Self {
        Self::InvalidSet(problem)
    }
}

impl From<LeaseError> for Error {
    fn from(problem: LeaseError) -> Self {
        Self::InvalidLease {
            lock: None,
            problem,
        }
    }
}

/// Fewer replicas acknowledged a command in time than [`acknowledged_by`](crate::ClientBuilder::acknowledged_by) asks for.
/// It is the source of [`Error::Refused`]. What the command did was undone first, if the wait or the command time-out left
/// time for it; otherwise that is done in the background.
///
/// ```
/// fn advice(error: &watchlock::Error) -> Option<String> {
///     let few = error.not_replicated()?;
///     Some(format!("{} of {} replicas answer", few.got, few.wanted))
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{got} of {wanted} replicas acknowledged it in time")]
#[non_exhaustive]
pub struct NotReplicated {
    /// How many must acknowledge.
    pub wanted: u32,
    /// How many did.
    pub got: u32,
}

/// What is wrong with a lease.
///
/// ```
/// use watchlock::{Error, LeaseError};
///
/// fn advice(error: &Error) -> Option<String> {
///     match error {
///         Error::InvalidLease { problem: LeaseError::AboveMaxLease { max_lease, .. }, .. } => {
///             Some(format!("take at most {max_lease:?}"))
///         }
///         _ => None,
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// A fixed lease must be between 10 ms and 365 days.
    #[error("a lease must be between 10 ms and 365 days, not {given:?}")]
    #[non_exhaustive]
    OutOfBounds {
        /// What was asked for.
        given: Duration,
    },
    /// In a quorum a fixed lease must not be longer than [`max_lease`](crate::QuorumBuilder::max_lease), which is the
    /// watchdog's lease unless it is set.
    #[error(
        "a lease of {given:?} is longer than the quorum's max_lease, {max_lease:?} (by default the watchdog's lease)"
    )]
    #[non_exhaustive]
    AboveMaxLease {
        /// What was asked for.
        given: Duration,
        /// The longest lease that is allowed.
        max_lease: Duration,
    },
    /// The level is kept alive by the watchdog; only a fixed lease can be extended or left to expire.
    #[error(
        "the level is kept alive by the watchdog; only a fixed lease can be extended or left to expire"
    )]
    Watchdog,
    /// The hold has other levels; only the last one can be left to expire. A level of a
    /// [`MultiLock`](crate::MultiLock) that was re-entered cannot be detached, either.
    #[error("the hold has other levels; only the last one can be left to expire")]
    OtherLevels,
    /// Read/write locks, multi-locks and quorums take no [`Lease::AtMost`](crate::Lease::AtMost).
    #[error("this kind of lock takes no lease `AtMost`")]
    AtMost,
}

/// Why locks cannot be combined.
///
/// ```
/// use watchlock::{Error, MultiLock, SetError};
///
/// let none: [watchlock::ReentrantLock; 0] = [];
/// let refused = MultiLock::new(none);
/// assert!(matches!(refused, Err(Error::InvalidSet(SetError::Number { given: 0, .. }))));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// Too few or too many.
    #[error("{given} locks given, 2 to 64 needed")]
    #[non_exhaustive]
    Number {
        /// How many there were.
        given: usize,
    },
    /// One lock occurs twice, maybe as two kinds of lock: the acquire would wait for itself.
    #[error("lock {lock:?} occurs twice")]
    #[non_exhaustive]
    Twice {
        /// The lock's name.
        lock: Box<str>,
    },
    /// More than one has a queue in Redis: two callers could wait for each other for ever.
    #[error("locks {first:?} and {second:?} both have a queue, but only one may")]
    #[non_exhaustive]
    Queues {
        /// The name of the first.
        first: Box<str>,
        /// The name of the second.
        second: Box<str>,
    },
}

/// Why a client cannot be built.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use watchlock::{Client, ConfigError, Error};
///
/// let connected = Client::connect("not an address").await;
/// assert!(matches!(connected, Err(Error::Config(ConfigError::InvalidUrl))));
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not an address of the form `redis://`, `rediss://` or `unix:`. The address is not shown, because it may hold a
    /// password.
    #[error(
        "not a valid Redis address (redis://, rediss:// or unix:); in a user or password write # / ? @ : % percent-encoded, such as %23 for #"
    )]
    InvalidUrl,
    /// A `rediss://` address needs the crate's feature `tls`.
    #[error("a rediss:// address needs the feature `tls`")]
    TlsDisabled,
    /// A setting is out of its range.
    #[error("{setting} is {given}, but must be {allowed}")]
    #[non_exhaustive]
    OutOfRange {
        /// Which: the name of its setter.
        setting: &'static str,
        /// What it was set to.
        given: Box<str>,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The pool and the address lead to different databases.
    #[error("the pool and the address lead to different Redis databases")]
    PoolMismatch,
    /// The server cannot be used: older than Redis 6.2, a sentinel, or a replica; in cluster mode behind a pool, or not in
    /// cluster mode although a cluster was configured.
    #[error("the server is not supported: {reason}")]
    #[non_exhaustive]
    Unsupported {
        /// Why not.
        reason: &'static str,
    },
    /// Most of the sentinels watch no master of the name that was given.
    #[error("no sentinel watches a master of that name")]
    UnknownService,
    /// A certificate or key cannot be read, see [`Tls`](crate::Tls).
    #[error("{what} cannot be read")]
    #[non_exhaustive]
    InvalidTls {
        /// Which.
        what: &'static str,
    },
    /// Two settings that exclude each other.
    #[error("{first} cannot be combined with {second}")]
    #[non_exhaustive]
    Conflict {
        /// The one.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// These servers cannot be a quorum.
    #[error("these servers cannot be a quorum: {0}")]
    NoQuorum(QuorumError),
    /// Not called inside a tokio runtime that can drive a connection: there is none, it has no timers or no
    /// I/O (`enable_all`), or it is being shut down. Without timers or I/O tokio panics: the client catches that, once for
    /// each such runtime, but a panic hook is called, and with `panic = "abort"` the process ends.
    #[error("no tokio runtime with timers and I/O: this must be called inside one")]
    NoRuntime,
}

/// Why servers cannot be a quorum. A server is named by its position in the list, from 1, because its address may hold a
/// password.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use watchlock::{ConfigError, Error, Quorum, QuorumError};
///
/// let two = ["redis://127.0.0.1:7001/", "redis://127.0.0.1:7002/"];
/// let refused = Quorum::builder(two).connect().await;
/// assert!(matches!(
///     refused,
///     Err(Error::Config(ConfigError::NoQuorum(QuorumError::Number { given: 2, .. })))
/// ));
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuorumError {
    /// The number must be odd: with one server more, no more servers could fail.
    #[error("{given} servers given, 1, 3, 5, 7 or 9 needed")]
    #[non_exhaustive]
    Number {
        /// How many there were.
        given: usize,
    },
    /// The same address twice, or two addresses of the same server.
    #[error("servers {first} and {second} are the same")]
    #[non_exhaustive]
    SameServer {
        /// The place of one.
        first: usize,
        /// The place of the other.
        second: usize,
    },
    /// A server cannot be used: a replica, a sentinel, in cluster mode, or older than Redis 6.2.
    #[error("server {place} is not supported: {reason}")]
    #[non_exhaustive]
    Unsupported {
        /// Its place.
        place: usize,
        /// Why not.
        reason: &'static str,
    },
}

impl From<QuorumError> for Error {
    fn from(problem: QuorumError) -> Self {
        ConfigError::NoQuorum(problem).into()
    }
}

impl ConfigError {
    pub(crate) fn check(
        is_allowed: bool,
        setting: &'static str,
        given: impl fmt::Debug,
        allowed: &'static str,
    ) -> Result<(), Self> {
        if is_allowed {
            return Ok(());
        }
        Err(Self::OutOfRange {
            setting,
            given: format!("{given:?}").into(),
            allowed,
        })
    }
}
