//! The read/write lock: many readers or one writer, with Redisson's hash, channel and timeout keys.
//!
//! The read lock and the write lock of a name are one lock with one gate. For Redis a client is one reader, however many
//! of its callers read.

use std::sync::Arc;
use std::time::Duration;

use super::guard_of::GuardOf;
use crate::clock::millis;
use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules, Sharing, Try, look};
use crate::engine::hold::owner::OwnerState;
use crate::engine::keeper::Engine;
use crate::error::Error;
use crate::lock::guard::{IsGuard, LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient};
use crate::names::{Family, Names};
use crate::script::call::{
    RW_ASSERT, RW_ASSERT_TIMEOUT, RW_DOWNGRADE, RW_FORCE_RELEASE, RW_LOOK, RW_NOTE,
    RW_READ_ACQUIRE, RW_RELEASE, RW_WRITE_ACQUIRE,
};
use crate::script::{Call, HoldRef, Reply};

/// The kind of [`ReadLock`].
#[derive(Debug)]
pub enum Read {}

impl sealed::Sealed for Read {}

impl LockKind for Read {
    const HANDLE: &'static str = "ReadLock";
    type Target = LockOfClient;
    type Guard = LockGuard;
}

/// The kind of [`WriteLock`].
#[derive(Debug)]
pub struct Write(());

impl sealed::Sealed for Write {}

impl LockKind for Write {
    const HANDLE: &'static str = "WriteLock";
    type Target = LockOfClient;
    type Guard = WriteGuard;
}

/// Many readers or one writer: Redisson's `RReadWriteLock`. It makes the read lock and the write lock of its name.
///
/// From [`Client::get_read_write_lock`](crate::Client::get_read_write_lock) or
/// [`Owner::get_read_write_lock`](crate::Owner::get_read_write_lock).
///
/// **Entering again.** An owner that reads may read again at once, also while a writer waits. An owner that writes may
/// write again, and read: its read levels stay local until its last write level is given back. Then they hold the lock
/// without a gap, as with [`WriteGuard::downgrade`]. An owner that reads and asks to write gets [`Error::WouldDeadlock`]
/// at once. Without an owner each acquire is on its own: a task that has a read guard and waits to write, or to read
/// while a writer waits, waits for itself. The log reports that after a second.
///
/// **Waiting writers.** While a writer waits, nobody starts to read in any process with this crate, so writers do not
/// starve. Redisson's readers ignore that. So after one watchdog lease readers may start for a third of a lease, or else
/// ours could wait for Redisson's without end.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let prices = client.get_read_write_lock("prices");
/// {
///     let guard = prices.read_lock().lock().await?;
///     // … others may read, nobody writes …
///     guard.unlock().await?;
/// }
/// let guard = prices.write_lock().lock().await?;
/// // … nobody else is here …
/// let guard = guard.downgrade().await?;
/// // … others may read again, nobody wrote in between …
/// guard.unlock().await
/// # }
/// ```
#[doc(alias = "RReadWriteLock")]
#[derive(Debug, Clone)]
pub struct ReadWriteLock {
    read: ReadLock,
    write: WriteLock,
}

impl ReadWriteLock {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str, owner: Option<&Arc<OwnerState>>) -> Self {
        Self {
            read: Handle::of_client(engine, name, owner, Mode::Read.kind()),
            write: Handle::of_client(engine, name, owner, Mode::Write.kind()),
        }
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    #[doc(alias = "getName")]
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// The lock to read with. Cheap.
    #[must_use]
    #[doc(alias = "readLock")]
    pub fn read_lock(&self) -> ReadLock {
        self.read.clone()
    }

    /// The lock to write with. Cheap.
    #[must_use]
    #[doc(alias = "writeLock")]
    pub fn write_lock(&self) -> WriteLock {
        self.write.clone()
    }
}

/// The read lock of a [`ReadWriteLock`]: it keeps writers out, and other readers in.
///
/// All readers of one client share one hold in Redis. While its lease is long enough, and Redis answered within the last
/// 50 ms that no writer waits, a read lock is taken and given back without a command.
///
/// **Each level has its own lease.** A fixed one ends by itself, also while other levels of this client or owner go on:
/// its guard is lost ([`Expired`](crate::LostReason::Expired)), keeps the lock no longer, and does not count in
/// `hold_count`. An owner holds the lock while one of its levels is valid. While it has only lost guards, its acquires
/// return [`Error::Lost`].
///
/// `let_expire` keeps the lock until its lease ends, also from writers of this client. `is_locked` reports readers; a
/// writer that also reads counts only once it has given the write lock back. `force_unlock` ends all readers, and no
/// writer.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::ReadLock = client.get_read_write_lock("prices").read_lock();
/// let guard = lock.lock().await?;
/// // … others may read, nobody writes …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RedissonReadLock")]
pub type ReadLock = Handle<Read>;

/// The write lock of a [`ReadWriteLock`]: it keeps everybody else out.
///
/// `force_unlock` ends the writer, and no reader.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::WriteLock = client.get_read_write_lock("prices").write_lock();
/// let guard = lock.lock().await?;
/// // … nobody else is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
///
/// Beyond the errors of the plain lock: [`Error::WouldDeadlock`] when its owner reads and does not write.
#[doc(alias = "RedissonWriteLock")]
pub type WriteLock = Handle<Write>;

/// A write lock that is held. Dropping the guard gives it back.
///
/// It derefs and converts to a [`LockGuard`], and can be [downgraded](Self::downgrade).
///
/// ```no_run
/// # async fn example(lock: watchlock::WriteLock) -> Result<(), watchlock::Error> {
/// let guard = lock.lock().await?;
/// assert!(guard.is_valid());
/// let reading: watchlock::LockGuard = guard.downgrade().await?;
/// reading.unlock().await
/// # }
/// ```
pub type WriteGuard = GuardOf<Write>;

impl WriteGuard {
    /// Turns the level into one that reads, with the same lease. Nobody writes in between. When it was the last write level
    /// of the hold, waiting readers get in.
    ///
    /// When Redis is unreachable, it returns after a command time-out, and the level is a read level all the same. The
    /// background thread repeats the command, and other readers get in when Redis executes it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost before: others may have changed what it protects.
    /// [`Error::Closed`] when the client was closed before.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a level that is not returned is given back.
    pub async fn downgrade(self) -> Result<LockGuard, Error> {
        self.level.downgraded().await
    }
}

impl IsGuard for WriteGuard {
    fn of(level: LockGuard) -> Result<Self, Error> {
        let kind = Write(());
        Ok(Self { level, kind })
    }
}

const FAMILY: Family = Family {
    tag: "read_write",
    channel: "redisson_rwlock",
};

/// What the key of the writers' notes begins with.
const WRITERS: &str = "watchlock_writers";

/// What the reply to an assertion by the lock's key alone says of a read hold.
const WITHOUT_TIMEOUT: Reply = Reply::Done(1);

/// Redisson's key for the first level of a read hold.
fn timeout(names: &Names, hold_id: &str) -> String {
    names.suffixed(&format!("{hold_id}:rwlock_timeout:1"))
}

fn assert_in<'a>(names: &'a Names, hold_id: &'a str) -> Call<'a> {
    RW_ASSERT
        .on(names)
        .key(timeout(names, hold_id))
        .key(names.prefixed(WRITERS))
        .arg(hold_id)
}

/// Lengthens the lease of a hold that exists, and writes the hold count of a write hold.
fn assert(hold: HoldRef<'_>, count: u32) -> Call<'_> {
    assert_in(hold.names, hold.id).arg(hold.lease).arg(count)
}

/// Whether a lock is used to read or to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Redisson's value of the hash field `mode`.
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    fn commands(self) -> KindCommands {
        KindCommands::OfAll(match self {
            Self::Read => &Self::Read,
            Self::Write => &Self::Write,
        })
    }

    fn kind(self) -> impl FnOnce(&Config, &str) -> Result<Kind, Error> {
        move |config, name| Kind::new(&FAMILY, config, name, self.commands())
    }
}

/// Calls about a hold that exists serve both modes: after a downgrade, a late command of the write hold finds the read
/// hold.
impl Commands for Mode {
    fn rules(&self) -> KindRules {
        let (name, sharing) = match self {
            Self::Read => ("read", Sharing::Reads),
            Self::Write => ("write", Sharing::Writes),
        };
        KindRules {
            name,
            sharing,
            needs_time: true,
            ..KindRules::DEFAULT
        }
    }

    /// A writer that has to wait leaves a note. Readers heed the notes of all clients for as long as it says, then none
    /// for a third of that.
    fn acquire<'a>(&self, hold: HoldRef<'a>, sort: Try<'_>) -> Call<'a> {
        let writers = hold.names.prefixed(WRITERS);
        match self {
            Self::Read => RW_READ_ACQUIRE
                .on(hold.names)
                .key(timeout(hold.names, hold.id))
                .key(writers)
                .arg(hold.id)
                .arg(hold.lease),
            Self::Write => RW_WRITE_ACQUIRE
                .on(hold.names)
                .key(writers)
                .arg(hold.id)
                .arg(hold.lease)
                .arg(millis(sort.note)),
        }
    }

    fn look_for_holder<'a>(&self, names: &'a Names) -> Call<'a> {
        match self {
            Self::Read => Self::Write.look(names),
            Self::Write => look(names),
        }
    }

    fn join<'a>(&self, hold: HoldRef<'a>) -> Call<'a> {
        assert(hold, 0).arg("1")
    }

    fn downgrade<'a>(&self, hold: HoldRef<'a>) -> Option<Call<'a>> {
        let call = RW_DOWNGRADE
            .on(hold.names)
            .key(timeout(hold.names, hold.id))
            .arg(hold.id)
            .arg(hold.lease);
        Some(call.wakes(hold.names))
    }

    fn downgraded(&self) -> Option<KindCommands> {
        Some(Self::Read.commands())
    }

    fn note<'a>(
        &self,
        names: &'a Names,
        client: &'a str,
        _waited: Duration,
        note: Duration,
    ) -> Option<Call<'a>> {
        let call = RW_NOTE
            .on(names)
            .key(names.prefixed(WRITERS))
            .arg(client)
            .arg(millis(note));
        Some(call.wakes(names))
    }

    fn reenter<'a>(&self, hold: HoldRef<'a>, count: u32, _has_token: bool) -> Call<'a> {
        let count = if *self == Self::Read { 0 } else { count };
        assert(hold, count)
    }

    fn verify<'a>(&self, hold: HoldRef<'a>) -> Call<'a> {
        assert(hold, 0)
    }

    fn verify_apart<'a>(&self, hold: HoldRef<'a>, first: Option<Reply>) -> Option<Call<'a>> {
        match first {
            None => {
                let call = RW_ASSERT.on(hold.names).arg(hold.id);
                Some(call.arg(hold.lease).arg(0_u32))
            }
            Some(WITHOUT_TIMEOUT) => {
                let call = Call::script(&RW_ASSERT_TIMEOUT).for_node_of(hold.names);
                Some(call.key(timeout(hold.names, hold.id)).arg(hold.lease))
            }
            Some(_) => None,
        }
    }

    fn release<'a>(&self, names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
        if left > 0 {
            // Without a lease it only writes the count of a write hold.
            return assert_in(names, hold_id).arg(0_u32).arg(left);
        }
        RW_RELEASE
            .on(names)
            .key(timeout(names, hold_id))
            .key(names.channel())
            .arg(hold_id)
            .publishes()
    }

    fn force<'a>(&self, names: &'a Names, client: &'a str) -> Call<'a> {
        RW_FORCE_RELEASE
            .on(names)
            .arg(self.word())
            .arg(client)
            .arg(names.channel())
            .arg(names.suffixed(""))
            .publishes()
    }

    fn look<'a>(&self, names: &'a Names) -> Call<'a> {
        RW_LOOK.on(names).arg(self.word())
    }
}

#[cfg(test)]
#[path = "read_write_tests.rs"]
mod tests;
