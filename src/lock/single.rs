//! One level of a hold of one lock, and a view of that hold.

use std::sync::Arc;
use std::time::Duration;

use super::several::ChildState;
use crate::clock::Clock;
use crate::engine::caller::acquire::level;
use crate::engine::caller::{enter, release};
use crate::engine::core::Core;
use crate::engine::gate::ticket::Patience;
use crate::engine::hold::Hold;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::HeldLevel;
use crate::engine::hold::state::{Level, Phase};
use crate::engine::keeper::Engine;
use crate::error::{Error, LeaseError, LostReason};
use crate::fencing::FencingToken;
use crate::lease::{Lease, LeaseMs};

/// One level of a hold. Dropping it gives the level back.
pub(super) struct SingleLevel {
    engine: Arc<Engine>,
    entered: HeldLevel,
}

impl SingleLevel {
    pub(super) fn new(engine: Arc<Engine>, entered: HeldLevel) -> Self {
        Self { engine, entered }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    pub(super) fn hold_count(&self) -> u32 {
        enter::levels(&self.engine.core, &self.entered.hold)
    }

    pub(super) fn hold_id(&self) -> &str {
        &self.entered.hold.id
    }

    pub(super) fn server_age(&self) -> Option<Duration> {
        self.entered.hold.server_age()
    }

    fn check(&self) -> Result<(), Error> {
        self.view().check()
    }

    pub(super) fn view(&self) -> SingleView {
        SingleView {
            clock: self.engine.core.config.clock.clone(),
            hold: Arc::clone(&self.entered.hold),
        }
    }

    /// Names this lock in the error.
    fn about(&self, error: Error) -> Error {
        error.about(self.entered.hold.kind.names().name())
    }

    pub(super) async fn verify(&self) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        self.check()?;
        enter::verify(core, &self.entered.hold).await
    }

    pub(super) async fn reenter(&self, lease: Lease) -> Result<Self, Error> {
        self.enter_as(&self.entered.hold.kind, lease).await
    }

    /// Enters the hold as a lock of this kind, which is of the same family.
    pub(super) async fn enter_as(&self, kind: &Kind, lease: Lease) -> Result<Self, Error> {
        let core = &self.engine.core;
        let level = level(lease);
        let lease = lease.resolve(core.config.watchdog_lease, core.config.max_lease)?;
        let entered = HeldLevel {
            level,
            open: true,
            ..self.entered.clone()
        };
        let entered = enter::enter(core, entered, kind, lease, Patience::Forever).await?;
        // None would mean that the hold is over, and this level keeps it.
        let entered = entered.ok_or_else(Error::not_owner)?;
        Ok(Self::new(Arc::clone(&self.engine), entered))
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice"
    )]
    pub(super) fn unlock(mut self) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            self.entered.open = false;
            let given_back = release::give_back(&self.engine.core, &self.entered).await;
            given_back.map_err(|error| self.about(error))
        }
    }

    pub(super) async fn downgraded(mut self) -> Result<Self, Error> {
        self.entered.open = false;
        let turned = enter::downgrade(&self.engine.core, &self.entered).await;
        let entered = turned.map_err(|error| self.about(error))?;
        Ok(Self::new(Arc::clone(&self.engine), entered))
    }

    pub(super) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        if self.entered.level != Level::Fixed {
            return Err(LeaseError::Watchdog.into());
        }
        let lease = LeaseMs::fixed(lease, core.config.max_lease)?;
        self.check()?;
        let count = self.hold_count();
        let hold = &self.entered.hold;
        enter::write(core, hold, &hold.kind, count, lease, Patience::Once).await
    }

    /// Whether the level can be left to its owner now.
    pub(super) fn may_detach(&self) -> Result<(), Error> {
        self.check()?;
        match &self.entered.owner {
            Some(owner) if !owner.has_ended() => Ok(()),
            _ => Err(Error::not_owner()),
        }
    }

    /// Leaves the level to its owner. Unchanged on an error.
    pub(super) fn detach(&mut self) -> Result<(), Error> {
        self.may_detach()?;
        if self.is_taken_by_owner() {
            return Ok(());
        }
        Err(Error::not_owner())
    }

    /// Leaves the level to its owner after `may_detach` allowed it, also if the hold was lost meanwhile. If the owner has
    /// ended meanwhile, the level is given back.
    pub(super) fn leave_to_owner(mut self) {
        self.is_taken_by_owner();
    }

    fn is_taken_by_owner(&mut self) -> bool {
        let HeldLevel {
            hold, level, owner, ..
        } = &self.entered;
        let taken = owner
            .as_ref()
            .is_some_and(|owner| owner.detach(hold, *level));
        self.entered.open &= !taken;
        taken
    }

    /// Whether the hold can be left to its lease now.
    pub(super) fn may_expire(&self) -> Result<(), Error> {
        self.check()?;
        if self.entered.level == Level::Watchdog {
            return Err(LeaseError::Watchdog.into());
        }
        if self.hold_count() > 1 {
            return Err(LeaseError::OtherLevels.into());
        }
        Ok(())
    }

    /// Leaves the hold to its lease. Unchanged on an error.
    pub(super) fn let_expire(&mut self) -> Result<(), Error> {
        self.may_expire()?;
        if !release::let_expire(&self.engine.core, &self.entered) {
            // It was lost or entered again meanwhile.
            self.check()?;
            return Err(LeaseError::OtherLevels.into());
        }
        self.entered.open = false;
        Ok(())
    }
}

impl Drop for SingleLevel {
    fn drop(&mut self) {
        if self.entered.open {
            release::drop_level(&self.engine.core, &self.entered);
        }
    }
}

/// A view of a hold of one lock.
#[derive(Clone)]
pub(super) struct SingleView {
    clock: Clock,
    hold: Arc<Hold>,
}

impl SingleView {
    pub(super) fn name(&self) -> &str {
        self.hold.kind.names().name()
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let refused = match self.state() {
            ChildState::Valid(_) => return Ok(()),
            ChildState::Lost(reason) => Error::lost(reason),
            ChildState::Over | ChildState::Absent => Error::not_owner(),
        };
        Err(refused.about(self.name()))
    }

    /// Resolves when the hold is lost, or at the announcement of a shutdown if `announced`.
    pub(super) async fn lost(&self, announced: bool) -> LostReason {
        if announced {
            self.hold.lost().await
        } else {
            self.hold.lost_for_good().await
        }
    }

    pub(super) fn state(&self) -> ChildState {
        let now = self.clock.now();
        let left = now.until(self.hold.valid_until());
        if !left.is_zero() {
            return ChildState::Valid(left);
        }
        match self.hold.lost_reason(now) {
            Some(reason) => ChildState::Lost(reason),
            None if self.hold.phase() == Phase::Held => ChildState::Valid(left),
            None => ChildState::Over,
        }
    }
}
