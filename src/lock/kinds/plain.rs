//! The plain lock: Redisson's hash, channel and commands.

use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules};
use crate::error::Error;
use crate::lock::guard::{LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient};
use crate::names::Family;

/// The kind of [`ReentrantLock`].
#[derive(Debug)]
pub enum Reentrant {}

impl sealed::Sealed for Reentrant {}

impl LockKind for Reentrant {
    const HANDLE: &'static str = "ReentrantLock";
    type Target = LockOfClient;
    type Guard = LockGuard;
}

/// A reentrant, exclusive lock by name: Redisson's `RLock`, with the same hash and channel.
///
/// From [`Client::get_lock`](crate::Client::get_lock) or [`Owner::get_lock`](crate::Owner::get_lock). For several permits
/// there is the [`Semaphore`](crate::Semaphore); this is the one with a single permit.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::ReentrantLock = client.get_lock("report:2026");
/// let guard = lock.lock().await?;
/// // … nobody else is here …
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "RLock")]
#[doc(alias = "mutex")]
#[doc(alias = "semaphore")]
pub type ReentrantLock = Handle<Reentrant>;

/// The plain lock `name` of a client.
pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    let commands = KindCommands::OfAll(&Plain);
    Kind::new(&Family::PLAIN, config, name, commands)
}

/// All its commands are the defaults of [`Commands`].
struct Plain;

impl Commands for Plain {
    fn rules(&self) -> KindRules {
        KindRules {
            passes_on: true,
            ..KindRules::DEFAULT
        }
    }
}
