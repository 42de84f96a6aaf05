//! What can go wrong, told apart: busy is no error, and lost, not yours, unreachable, refused and
//! misconfigured are different ones.

use std::sync::Arc;

/// Why a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out without an acknowledged renewal: Redis was out of reach, the process was
    /// frozen, or a fixed lease was simply over.
    #[error("its lease ran out")]
    Expired,
    /// Redis said that the hold is not there any more: deleted, evicted, or gone with a restart.
    #[error("Redis does not have it any more")]
    Missing,
    /// Somebody called `force_unlock` on this client.
    #[error("it was released by force")]
    Forced,
    /// The client is being shut down. While the shutdown waits this is an announcement: the hold is
    /// still valid and can be unlocked.
    #[error("the client is being shut down")]
    Shutdown,
    /// The client's keeper ended unexpectedly, so nothing renews the hold any more; or there is none,
    /// in the child of a `fork`.
    #[error("the client's keeper ended")]
    KeeperEnded,
}

/// The cause of an error, as the layer below told it.
pub type Cause = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Everything that an operation on a lock can fail with.
///
/// That a lock is busy is not an error: `try_lock` says `Ok(None)`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The hold was lost before it was given back; what it protected may have been touched by others.
    #[error("the hold was lost: {reason}")]
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// There is no level to give back or to detach: nothing of this owner holds the lock.
    #[error("the lock is not held by this owner")]
    NotOwner,
    /// The key exists and is no plain lock: another type, or a hash of something else.
    #[error("the key exists and is not a plain lock")]
    WrongType,
    /// A lock's name must not be empty, and with the prefix not be longer than the bound (512 bytes
    /// unless set).
    #[error(
        "a lock's name must have 1 byte up to the configured bound, this one has {bytes} with the prefix"
    )]
    InvalidName {
        /// How long the key would be.
        bytes: usize,
    },
    /// The lease is out of its bounds (10 ms to 24 h unless set), or what was asked does not go with
    /// the level's lease.
    #[error("the lease is out of bounds, or not of a kind that allows this")]
    InvalidLease,
    /// Redis denied it: authentication, or the user's ACL.
    #[error("Redis denied the command")]
    Denied {
        /// What Redis said.
        source: Cause,
    },
    /// Redis answered and refused: out of memory, not enough replicas, read-only, a cluster redirect.
    #[error("Redis refused the command")]
    Refused {
        /// Whether a later try may be accepted.
        transient: bool,
        /// What Redis said.
        source: Cause,
    },
    /// No usable answer: not connected, no reply in time, or a server that is still loading or busy.
    #[error("Redis is not available")]
    Unavailable {
        /// What was seen last.
        source: Cause,
    },
    /// The client was shut down, or belongs to another process since a `fork`.
    #[error("the client is closed")]
    Closed,
    /// The client cannot be built like this.
    #[error("the client cannot be built")]
    Config(#[from] ConfigError),
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
            Self::Unavailable { .. } => true,
            Self::Refused { transient, .. } => *transient,
            _ => false,
        }
    }
}

/// Why a client cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not an address of the form `redis://`, `rediss://` or `unix:`. The address itself is not
    /// repeated, it may hold a password.
    #[error("not a valid Redis address (redis://, rediss:// or unix:)")]
    InvalidUrl,
    /// A `rediss://` address needs the crate's feature `tls`.
    #[error("a rediss:// address needs the feature `tls`")]
    TlsDisabled,
    /// A value is out of its range.
    #[error("{setting} must be {range}")]
    OutOfRange {
        /// Which.
        setting: &'static str,
        /// What is allowed.
        range: &'static str,
    },
    /// The pool and the address lead to different databases.
    #[error("the pool and the address lead to different Redis databases")]
    PoolMismatch,
    /// The server cannot be used: older than Redis 6.2, or in cluster mode.
    #[error("the server is not supported: {reason}")]
    Unsupported {
        /// Why not.
        reason: &'static str,
    },
    /// `connect` was not called inside a tokio runtime.
    #[error("no tokio runtime: connect must be called inside one")]
    NoRuntime,
}
