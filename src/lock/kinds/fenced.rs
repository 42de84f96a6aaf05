//! The lock with fencing tokens: the plain lock's hash, channel and gate, and Redisson's key for the newest token.
//!
//! It is the same lock as the plain one of its name, so an owner enters either through the other. The first level that a
//! fenced handle takes gives the hold its token, and later levels keep it.

use std::sync::Arc;

use super::guard_of::GuardOf;
use crate::backend::Failure;
use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules, Try};
use crate::error::Error;
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::lock::guard::{IsGuard, LockGuard, sealed};
use crate::lock::handle::{Handle, LockKind, LockOfClient};
use crate::names::{Family, Names};
use crate::script::call::{FENCED_ACQUIRE, FENCED_RAISE, FENCED_REENTER, REENTER};
use crate::script::{Call, HoldRef};

/// The kind of [`FencedLock`]. A value is the token of a guard's hold.
#[derive(Debug)]
pub struct Fenced(FencingToken);

impl sealed::Sealed for Fenced {}

impl LockKind for Fenced {
    const HANDLE: &'static str = "FencedLock";
    const FENCED: bool = true;
    type Target = LockOfClient;
    type Guard = FencedGuard;
}

/// A reentrant lock by name whose holds have a [fencing token](FencingToken): Redisson's `RFencedLock`.
///
/// From [`Client::get_fenced_lock`](crate::Client::get_fenced_lock) or
/// [`Owner::get_fenced_lock`](crate::Owner::get_fenced_lock). It is the [plain](crate::ReentrantLock) lock of its
/// name, with a number for each hold: the two exclude each other, and an owner enters either through the other.
///
/// **Tokens.** Each hold has one, and entering it again keeps it. It is larger than that of every holder before, also after
/// Redis lost its data, and also when a Java service with Redisson took the lock in between. A try that finds the lock
/// busy takes none. [At the resource](https://github.com/watchlock/watchlock/blob/v0.1.0/docs/fencing.md) describes what
/// tokens are for, how the resource checks them, and what they do not protect from.
///
/// ```no_run
/// # async fn example(client: watchlock::Client) -> Result<(), watchlock::Error> {
/// let lock: watchlock::FencedLock = client.get_fenced_lock("report:2026");
/// let guard = lock.lock().await?;
/// write(guard.token().as_u64()).await; // refused there if a larger one was seen
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// # async fn write(fence: u64) {}
/// ```
///
/// Beyond the errors of the plain lock: [`Error::WrongType`] when the token's key is not a number,
/// [`Error::FencingTokenTooLarge`] when that number is 2^53 or more. The lock is not taken then.
#[doc(alias = "RFencedLock")]
pub type FencedLock = Handle<Fenced>;

/// A fenced lock that is held, with its token. Dropping the guard gives it back.
///
/// It derefs and converts to a [`LockGuard`].
///
/// ```no_run
/// # async fn example(lock: watchlock::FencedLock) -> Result<(), watchlock::Error> {
/// let guard = lock.lock().await?;
/// println!("{} has {}", guard.name(), guard.token());
/// let plain: watchlock::LockGuard = guard.into();
/// assert!(plain.fencing_token().is_some());
/// plain.unlock().await
/// # }
/// ```
pub type FencedGuard = GuardOf<Fenced>;

impl FencedGuard {
    /// The hold's fencing token, the same for all its levels.
    #[must_use]
    #[doc(alias = "lockAndGetToken")]
    #[doc(alias = "tryLockAndGetToken")]
    #[doc(alias = "getToken")]
    pub fn token(&self) -> FencingToken {
        self.kind.0
    }
}

impl IsGuard for FencedGuard {
    fn of(level: LockGuard) -> Result<Self, Error> {
        let without = || Error::from(Failure::strange_reply()).about(level.name());
        let kind = Fenced(level.fencing_token().ok_or_else(without)?);
        Ok(Self { level, kind })
    }
}

/// What the token's key begins with.
const TOKEN: &str = "redisson_lock_token";

pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    let token_ttl = config.fencing_token_ttl.map(LeaseMs::of);
    let commands = KindCommands::OfOne(Arc::new(WithTokens { token_ttl }));
    Kind::new(&Family::PLAIN, config, name, commands)
}

/// The plain lock's commands, except for those that take a token.
struct WithTokens {
    /// How long Redis keeps the token's key; None for ever.
    token_ttl: Option<LeaseMs>,
}

impl Commands for WithTokens {
    fn rules(&self) -> KindRules {
        KindRules {
            name: "fenced",
            needs_time: true,
            ..KindRules::DEFAULT
        }
    }

    fn acquire<'a>(&self, hold: HoldRef<'a>, _try: Try<'_>) -> Call<'a> {
        FENCED_ACQUIRE
            .on(hold.names)
            .key(hold.names.prefixed(TOKEN))
            .arg(hold.id)
            .arg(hold.lease)
            .arg(millis(self.token_ttl))
    }

    /// A hold without a token gets one.
    fn reenter<'a>(&self, hold: HoldRef<'a>, count: u32, has_token: bool) -> Call<'a> {
        if has_token {
            let call = REENTER.on(hold.names).arg(hold.id);
            return call.arg(count).arg(hold.lease);
        }
        FENCED_REENTER
            .on(hold.names)
            .key(hold.names.prefixed(TOKEN))
            .arg(hold.id)
            .arg(count)
            .arg(hold.lease)
            .arg(millis(self.token_ttl))
    }
}

/// Raises the newest token to `token`, unless a larger one is stored.
pub(in crate::lock) fn raise<'a>(
    names: &'a Names,
    hold_id: &'a str,
    token: FencingToken,
    token_ttl: Option<LeaseMs>,
) -> Call<'a> {
    Call::script(&FENCED_RAISE)
        .key(names.key())
        .key(names.prefixed(TOKEN))
        .arg(hold_id)
        .arg(token.as_u64())
        .arg(millis(token_ttl))
}

/// The scripts take 0 for ever.
fn millis(token_ttl: Option<LeaseMs>) -> u64 {
    token_ttl.map_or(0, LeaseMs::as_millis)
}
