//! One level of a hold of one lock, and a view of that hold.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::several::ChildState;
use crate::clock::{Clock, Moment};
use crate::engine::attempt::level;
use crate::engine::hold::Hold;
use crate::engine::kind::Kind;
use crate::engine::owner::Entered;
use crate::engine::state::{Level, Phase};
use crate::engine::ticket::Patience;
use crate::engine::{Core, Engine, reentry, release, verify};
use crate::error::{Error, LeaseError, LostReason};
use crate::fencing::FencingToken;
use crate::lease::{Lease, LeaseMs};
use crate::process::Process;

/// One level of a hold. Dropping it gives the level back.
pub(super) struct SingleLevel {
    engine: Arc<Engine>,
    entered: Entered,
}

impl SingleLevel {
    pub(super) fn new(engine: Arc<Engine>, entered: Entered) -> Self {
        Self { engine, entered }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    pub(super) fn name(&self) -> &str {
        self.entered.hold.kind.names().name()
    }

    pub(super) fn hold_count(&self) -> u32 {
        if self.engine.core.is_forked() {
            return 0;
        }
        reentry::levels(&self.engine.core, &self.entered.hold)
    }

    pub(super) fn fencing_token(&self) -> Option<FencingToken> {
        self.entered.hold.token()
    }

    pub(super) fn hold_id(&self) -> &str {
        &self.entered.hold.id
    }

    pub(super) fn server_age(&self) -> Option<Duration> {
        self.entered.hold.server_age()
    }

    pub(super) fn valid_for(&self) -> Duration {
        let core = &self.engine.core;
        valid_for(&self.entered.hold, core.process, core.now())
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let core = &self.engine.core;
        check(&self.entered.hold, core.process, core.now())
    }

    pub(super) async fn lost(&self) -> LostReason {
        lost(&self.entered.hold, self.engine.core.process).await
    }

    pub(super) async fn lost_for_good(&self) -> LostReason {
        self.entered.hold.lost_for_good().await
    }

    pub(super) fn hold(&self) -> SingleView {
        SingleView {
            clock: self.engine.core.config.clock.clone(),
            process: self.engine.core.process,
            hold: Arc::clone(&self.entered.hold),
        }
    }

    /// Names this lock in the error.
    fn about(&self, error: Error) -> Error {
        error.about(self.name())
    }

    pub(super) async fn verify(&self) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        self.check()?;
        let verified = verify::verify(core, &self.entered.hold).await;
        verified.map_err(|error| self.about(error))
    }

    pub(super) async fn reenter(&self, lease: Lease) -> Result<Self, Error> {
        let entered = self.enter(lease).await;
        entered.map_err(|error| self.about(error))
    }

    async fn enter(&self, lease: Lease) -> Result<Self, Error> {
        self.enter_as(&self.entered.hold.kind, lease).await
    }

    /// Enters the hold as a lock of this kind, which is of the same family.
    pub(super) async fn enter_as(&self, kind: &Kind, lease: Lease) -> Result<Self, Error> {
        let core = &self.engine.core;
        let level = level(lease);
        let lease = lease.resolve(core.config.watchdog_lease, &core.config.lease_bounds)?;
        let entered = Entered {
            level,
            open: true,
            ..self.entered.clone()
        };
        let entered = reentry::enter(core, entered, kind, lease, Patience::Forever).await?;
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
        let turned = reentry::downgrade(&self.engine.core, &self.entered).await;
        let entered = turned.map_err(|error| self.about(error))?;
        Ok(Self::new(Arc::clone(&self.engine), entered))
    }

    pub(super) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let raised = self.raise(lease).await;
        raised.map_err(|error| self.about(error))
    }

    async fn raise(&self, lease: Duration) -> Result<(), Error> {
        let core = &self.engine.core;
        core.check_open()?;
        if self.entered.level != Level::Fixed {
            return Err(LeaseError::Watchdog.into());
        }
        let lease = LeaseMs::new(lease, &core.config.lease_bounds)?;
        self.check()?;
        let count = self.hold_count();
        let hold = &self.entered.hold;
        reentry::write(core, hold, &hold.kind, count, lease, Patience::Once).await
    }

    /// Whether the level can be left to its owner now.
    pub(super) fn may_detach(&self) -> Result<(), Error> {
        self.check()?;
        match &self.entered.owner {
            Some(owner) if !owner.has_ended() => Ok(()),
            _ => Err(self.about(Error::not_owner())),
        }
    }

    /// Leaves the level to its owner. Unchanged on an error.
    pub(super) fn detach(&mut self) -> Result<(), Error> {
        self.may_detach()?;
        if self.is_taken_by_owner() {
            return Ok(());
        }
        Err(self.about(Error::not_owner()))
    }

    /// Leaves the level to its owner after `may_detach` allowed it, also if the hold was lost meanwhile. If the owner has
    /// ended meanwhile, the level is given back.
    pub(super) fn leave_to_owner(mut self) {
        self.is_taken_by_owner();
    }

    fn is_taken_by_owner(&mut self) -> bool {
        let Entered {
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
            return Err(self.about(LeaseError::Watchdog.into()));
        }
        if self.hold_count() > 1 {
            return Err(self.about(LeaseError::OtherLevels.into()));
        }
        Ok(())
    }

    /// Leaves the hold to its lease. Unchanged on an error.
    pub(super) fn let_expire(&mut self) -> Result<(), Error> {
        self.may_expire()?;
        if !release::let_expire(&self.engine.core, &self.entered) {
            // It was lost or entered again meanwhile.
            self.check()?;
            return Err(self.about(LeaseError::OtherLevels.into()));
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
    process: Process,
    hold: Arc<Hold>,
}

impl SingleView {
    pub(super) fn name(&self) -> &str {
        self.hold.kind.names().name()
    }

    pub(super) fn valid_for(&self) -> Duration {
        valid_for(&self.hold, self.process, self.clock.now())
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        check(&self.hold, self.process, self.clock.now())
    }

    pub(super) async fn lost(&self) -> LostReason {
        lost(&self.hold, self.process).await
    }

    pub(super) async fn lost_for_good(&self) -> LostReason {
        self.hold.lost_for_good().await
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

fn valid_for(hold: &Hold, process: Process, now: Moment) -> Duration {
    if process.is_forked() {
        return Duration::ZERO;
    }
    now.until(hold.valid_until())
}

fn check(hold: &Hold, process: Process, now: Moment) -> Result<(), Error> {
    if process.is_forked() {
        return Err(Error::Closed);
    }
    let refused = match hold.lost_reason(now) {
        Some(reason) => Error::lost(reason),
        None if hold.phase() == Phase::Held => return Ok(()),
        None => Error::not_owner(),
    };
    Err(refused.about(hold.kind.names().name()))
}

/// The child of a `fork` has no keeper that would report the loss.
async fn lost(hold: &Hold, process: Process) -> LostReason {
    let mut lost = pin!(hold.lost());
    poll_fn(|context| {
        if process.is_forked() {
            return Poll::Ready(LostReason::KeeperEnded);
        }
        lost.as_mut().poll(context)
    })
    .await
}
