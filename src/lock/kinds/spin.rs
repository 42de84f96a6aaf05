//! The spin lock: the plain lock's hash and commands. Its waiters poll with a backoff and do not subscribe.

use std::sync::Arc;
use std::time::Duration;

use super::plain::Plain;
use crate::backoff::Backoff;
use crate::config::Config;
use crate::engine::hold::kind::{Kind, KindCommands};
use crate::error::Error;
use crate::lock::guard::{LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient};
use crate::names::Family;

/// The kind of [`SpinLock`].
#[derive(Debug)]
pub enum Spin {}

impl sealed::Sealed for Spin {}

impl LockKind for Spin {
    const HANDLE: &'static str = "SpinLock";
    type Target = LockOfClient;
    type Guard = LockGuard;
}

/// A reentrant lock whose waiters poll: Redisson's `getSpinLock`.
///
/// From [`Client::get_spin_lock`](crate::Client::get_spin_lock) or
/// [`Owner::get_spin_lock`](crate::Owner::get_spin_lock). It is the same lock as a
/// [`ReentrantLock`](crate::ReentrantLock) of that name, but waits differently: it does not subscribe. It tries again after
/// the delays of a [`Backoff`], by default 1 ms, 2 ms, … up to 128 ms, each random from its upper half, and when the
/// holder's lease ends. While the lock changes hands, which a later end of the lease shows, it tries after a quarter of
/// the first delay (without jitter, all of it): a client whose tasks take the lock in turn leaves it free for a millisecond
/// in twenty-one. In one client only the first waiter tries, and a release of this client lets the next one in at once. Its
/// release wakes subscribers like any other.
///
/// Use it for locks that are held so briefly that a subscription costs more than it saves, or where pub/sub is not
/// allowed. Each try is a command. Between clients the order is not first come first served.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// use std::time::Duration;
/// use watchlock::Backoff;
///
/// let lock: watchlock::SpinLock = client.get_spin_lock("counter");
/// lock.lock().await?.unlock().await?;
///
/// // Every 64 ms, as Redisson's `ConstantBackOff`.
/// let pause = Duration::from_millis(64);
/// let constant = Backoff::new().base(pause).cap(pause).jitter(false);
/// client.get_spin_lock_with("counter", constant).lock().await?.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "getSpinLock")]
#[doc(alias = "RedissonSpinLock")]
pub type SpinLock = Handle<Spin>;

/// The default of the longest delay.
const CAP: Duration = Duration::from_millis(128);

pub(crate) fn backoff() -> Backoff {
    Backoff::new().base(Duration::from_millis(1)).cap(CAP)
}

pub(crate) fn kind(backoff: Backoff) -> impl FnOnce(&Config, &str) -> Result<Kind, Error> {
    move |config, name| {
        backoff.validate()?;
        let backoff = Some(backoff);
        let commands = KindCommands::OfOne(Arc::new(Plain { backoff }));
        Kind::new(&Family::PLAIN, config, name, commands)
    }
}
