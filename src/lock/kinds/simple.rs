//! The simple lock: a string with the hold id, as other libraries' string locks have it.

use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules, Try};
use crate::error::Error;
use crate::lock::guard::{LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient};
use crate::names::{Family, Names};
use crate::script::call::{SIMPLE_ACQUIRE, SIMPLE_FORCE_RELEASE, SIMPLE_RELEASE, SIMPLE_VERIFY};
use crate::script::{Call, HoldRef};

/// The kind of [`SimpleLock`].
#[derive(Debug)]
pub enum Simple {}

impl sealed::Sealed for Simple {}

impl LockKind for Simple {
    const HANDLE: &'static str = "SimpleLock";
    type Target = LockOfClient;
    type Guard = LockGuard;
}

/// A lock that is one string in Redis: `SET name token NX PX lease`, as in redsync, node-redlock, redlock-py, rslock and
/// most others. Programs with those libraries and this one exclude each other.
///
/// From [`Client::get_simple_lock`](crate::Client::get_simple_lock) or
/// [`Owner::get_simple_lock`](crate::Owner::get_simple_lock). Everything else is as with a
/// [`ReentrantLock`](crate::ReentrantLock): watchdog, guards, `lost`, levels, waiting in order.
///
/// **With other libraries.** Their holds make the lock busy here; `remain_time_to_live` and `force_unlock` see them. They
/// publish nothing at a release, so a waiter of this crate notices it at its next poll, or when the lease ends
/// ([`Backoff`](crate::Backoff): by default after at most 1 s). They poll, too. Only this client knows the levels of a
/// hold; Redis has no count.
///
/// **Not with Redisson**: its locks are hashes. A key of another type is an error there, and [`Error::WrongType`] here.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::SimpleLock = client.get_simple_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … neither this program nor one with redsync is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "redlock")]
#[doc(alias = "redsync")]
pub type SimpleLock = Handle<Simple>;

pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    let commands = KindCommands::OfAll(&Strings);
    Kind::new(&Family::SIMPLE, config, name, commands)
}

struct Strings;

impl Commands for Strings {
    fn rules(&self) -> KindRules {
        KindRules {
            name: "simple",
            is_string: true,
            ..KindRules::DEFAULT
        }
    }

    fn acquire<'a>(&self, hold: HoldRef<'a>, _sort: Try<'_>) -> Call<'a> {
        SIMPLE_ACQUIRE.on(hold.names).arg(hold.id).arg(hold.lease)
    }

    /// Redis stores only the lease, as the client alone counts the levels.
    fn reenter<'a>(&self, hold: HoldRef<'a>, _count: u32, _has_token: bool) -> Call<'a> {
        self.verify(hold)
    }

    fn verify<'a>(&self, hold: HoldRef<'a>) -> Call<'a> {
        SIMPLE_VERIFY.on(hold.names).arg(hold.id).arg(hold.lease)
    }

    fn release<'a>(&self, names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
        SIMPLE_RELEASE.on(names).arg(hold_id).arg(left).wakes(names)
    }

    fn force<'a>(&self, names: &'a Names, client: &'a str) -> Call<'a> {
        SIMPLE_FORCE_RELEASE.on(names).arg(client).wakes(names)
    }
}
