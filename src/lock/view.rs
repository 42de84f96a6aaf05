//! A view of a hold, for those who only watch it; and what guards ask, too.

use std::sync::Arc;
use std::time::Duration;

use super::composite::{Child, Composite};
use crate::clock::{Clock, Moment};
use crate::engine::hold::Hold;
use crate::engine::hold::state::Phase;
use crate::error::{Error, LostReason};

/// A view of a hold, for subtasks that must know whether it is still valid. Cheap to clone; it does not
/// keep the lock.
///
/// ```no_run
/// # async fn example(guard: watchlock::LockGuard) -> Result<(), watchlock::Error> {
/// let hold = guard.hold();
/// let upload = tokio::spawn(async move {
///     for part in 0..10 {
///         hold.check()?; // stop as soon as the lock is not ours any more
///         println!("part {part}");
///     }
///     Ok::<_, watchlock::Error>(())
/// });
/// # drop(upload);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HoldView {
    of: Of,
}

/// What it is a view of.
#[derive(Clone)]
enum Of {
    Single(SingleView),
    Several(Arc<Composite>),
}

/// A view of a hold of one lock.
#[derive(Clone)]
pub(super) struct SingleView {
    pub(super) clock: Clock,
    pub(super) hold: Arc<Hold>,
}

impl From<SingleView> for HoldView {
    fn from(view: SingleView) -> Self {
        Self {
            of: Of::Single(view),
        }
    }
}

impl From<Arc<Composite>> for HoldView {
    fn from(hold: Arc<Composite>) -> Self {
        Self {
            of: Of::Several(hold),
        }
    }
}

impl std::fmt::Debug for HoldView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HoldView")
            .field("name", &self.name())
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl HoldView {
    /// As [`LockGuard::is_valid`](crate::LockGuard::is_valid); false once the hold has ended.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// As [`LockGuard::valid_for`](crate::LockGuard::valid_for); zero once the hold has ended.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        match &self.of {
            Of::Single(view) => valid_for(&view.hold, view.clock.now()),
            Of::Several(hold) => hold.valid_for(),
        }
    }

    /// As [`LockGuard::check`](crate::LockGuard::check).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; [`Error::NotOwner`] once the hold has ended.
    pub fn check(&self) -> Result<(), Error> {
        match &self.of {
            Of::Single(view) => check(&view.hold, view.clock.now()),
            Of::Several(hold) => hold.check(),
        }
    }

    /// As [`LockGuard::lost`](crate::LockGuard::lost); pending for ever once the hold has ended in order.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        match &self.of {
            Of::Single(view) => view.hold.lost().await,
            Of::Several(hold) => hold.lost().await,
        }
    }

    /// Resolves when the hold is lost; the announcement of a shutdown is no loss.
    pub(super) async fn lost_for_good(&self) -> LostReason {
        match &self.of {
            Of::Single(view) => view.hold.lost_for_good().await,
            Of::Several(hold) => hold.lost_for_good().await,
        }
    }

    /// What it says of itself to a hold that it is part of.
    pub(super) fn says(&self) -> Child {
        match &self.of {
            Of::Single(view) => {
                let now = view.clock.now();
                let left = now.until(view.hold.valid_until());
                if !left.is_zero() {
                    return Child::Valid(left);
                }
                match view.hold.lost_reason(now) {
                    Some(reason) => Child::Lost(reason),
                    None if view.hold.phase() == Phase::Held => Child::Valid(left),
                    None => Child::Over,
                }
            }
            Of::Several(hold) => hold.says(),
        }
    }

    pub(super) fn name(&self) -> &str {
        match &self.of {
            Of::Single(view) => view.hold.kind.names().name(),
            Of::Several(hold) => hold.name(),
        }
    }
}

/// How much longer the client vouches for `hold`.
pub(super) fn valid_for(hold: &Hold, now: Moment) -> Duration {
    now.until(hold.valid_until())
}

pub(super) fn check(hold: &Hold, now: Moment) -> Result<(), Error> {
    let refused = match hold.lost_reason(now) {
        Some(reason) => Error::lost(reason),
        None if hold.phase() == Phase::Held => return Ok(()),
        None => Error::not_owner(),
    };
    Err(refused.about(hold.kind.names().name()))
}
