//! One level of a hold of several locks as one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::asking::{ask, enter_children, hear};
use super::crew::Crew;
use super::hold::Composite;
use super::owner::OwnerState;
use super::standing::nth_largest;
use crate::backend::Timers;
use crate::error::{Error, LeaseError};
use crate::lease::Lease;
use crate::lock::by_now::hear_by_now;
use crate::lock::{GuardError, LockGuard};

/// A level of each child that is there. Dropped, they are given back.
pub(in crate::lock) type Children = Vec<Option<LockGuard>>;

/// One level of a hold of several locks as one. Dropping it gives the level back.
pub(in crate::lock) struct Level {
    hold: Arc<Composite>,
    /// By 4, shared with the levels that have the same sort of lease. None once it is given back.
    crew: Option<Arc<Crew>>,
    /// To whom it may be left, if not to the owners of the children.
    owner: Option<Arc<OwnerState>>,
}

impl Level {
    /// The first level of the hold `name` of `children`, of which `needed` must be valid. Who enters it again waits for
    /// the others `spare_timeout` at most.
    pub(in crate::lock) fn first(
        name: &Arc<str>,
        needed: usize,
        spare_timeout: Duration,
        children: Children,
        lease: Lease,
    ) -> Self {
        let views = children.iter();
        let views = views.map(|child| child.as_ref().map(LockGuard::hold));
        let hold = Composite::new(name, needed, spare_timeout, views.collect());
        hold.enter();
        Self::with(&hold, children, lease, None)
    }

    /// The same, for an owner that may enter the hold again.
    pub(in crate::lock) fn owned_by(mut self, owner: &Arc<OwnerState>) -> Self {
        owner.insert(&self.hold);
        self.owner = Some(Arc::clone(owner));
        self
    }

    /// The level of `hold` that was entered, with levels of the children of its own.
    fn with(
        hold: &Arc<Composite>,
        children: Children,
        lease: Lease,
        owner: Option<Arc<OwnerState>>,
    ) -> Self {
        let crew = Crew::new(lease == Lease::Watchdog, children);
        hold.has_crew(&crew);
        Self {
            hold: Arc::clone(hold),
            crew: Some(crew),
            owner,
        }
    }

    /// One more level of `hold`; nothing when that is over.
    pub(super) async fn of(
        hold: &Arc<Composite>,
        lease: Lease,
        owner: Option<Arc<OwnerState>>,
    ) -> Result<Option<Self>, Error> {
        hold.check()?;
        let crews = hold.crews();
        let same = crews
            .iter()
            .find(|crew| crew.watched == (lease == Lease::Watchdog));
        if let Some(crew) = same.filter(|crew| crew.join()) {
            if !hold.enter() {
                drop(crew.leave());
                return over(hold);
            }
            // Whatever comes next, the level is given back with this.
            let level = Self {
                hold: Arc::clone(hold),
                crew: Some(Arc::clone(crew)),
                owner,
            };
            if let Lease::Fixed(lease) = lease {
                level.ask_to_extend(lease).await?;
            }
            return Ok(Some(level));
        }
        for crew in crews {
            let entered = enter_children(hold, &crew, lease).await;
            match entered {
                Ok(_) if !hold.enter() => return over(hold),
                Ok(children) => return Ok(Some(Self::with(hold, children, lease, owner))),
                Err(Error::NotOwner { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    pub(in crate::lock) fn hold(&self) -> &Arc<Composite> {
        &self.hold
    }

    pub(in crate::lock) fn name(&self) -> &str {
        self.hold.name()
    }

    fn is_watched(&self) -> bool {
        self.crew.as_ref().is_some_and(|crew| crew.watched)
    }

    fn children(&self) -> Vec<Arc<LockGuard>> {
        let guards = self.crew.iter().flat_map(|crew| crew.guards());
        guards.map(|(_, guard)| guard).collect()
    }

    pub(in crate::lock) fn timers(&self) -> Option<Timers> {
        self.children().first()?.timers()
    }

    pub(in crate::lock) fn hold_count(&self) -> u32 {
        let children = self.children();
        let mut counts: Vec<_> = children.iter().map(|child| child.hold_count()).collect();
        if counts.len() < self.hold.needed() {
            return 0;
        }
        nth_largest(&mut counts, self.hold.needed()) + self.hold.shared_levels()
    }

    pub(in crate::lock) fn verify(&self) -> BoxFuture<'_, Result<(), Error>> {
        async {
            self.hold.check()?;
            let own = self.children();
            let asked = own.iter().map(|child| child.verify());
            match ask(self.hold.needed(), asked).await {
                Err(lost) if lost.is_lost() && self.hold.is_held() => {
                    // Others may have what this level has not. Only then: a guard that is asked is not given back by
                    // its own level, but when this is over.
                    let all = self.hold.guards();
                    let asked = all.iter().map(|(_, child)| child.verify());
                    ask(self.hold.needed(), asked).await
                }
                answer => answer,
            }
        }
        .boxed()
    }

    pub(in crate::lock) fn extend(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            if self.is_watched() {
                return Err(self.about(LeaseError::Watchdog));
            }
            self.hold.check()?;
            self.ask_to_extend(lease).await
        }
        .boxed()
    }

    pub(in crate::lock) fn reenter(&self, lease: Lease) -> BoxFuture<'_, Result<Self, Error>> {
        async move {
            let level = Self::of(&self.hold, lease, self.owner.clone()).await?;
            level.ok_or_else(Error::not_owner)
        }
        .boxed()
    }

    /// Asks this level's children. Too few of them may be left though the hold goes on with others: that is no loss.
    async fn ask_to_extend(&self, lease: Duration) -> Result<(), Error> {
        let children = self.children();
        let asked = children.iter().map(|child| child.extend(lease));
        let answer = ask(self.hold.needed(), asked).await;
        match answer {
            Err(lost) if lost.is_lost() && self.hold.is_held() => {
                let reached = children.iter().filter(|child| child.is_valid()).count();
                Err(
                    Error::no_quorum(reached, self.hold.needed(), Arc::new(lost))
                        .about(self.name()),
                )
            }
            answer => answer,
        }
    }

    pub(in crate::lock) fn unlock(mut self) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            let lost = self.hold.check();
            let children = self.leave();
            // Levels that are not asked are dropped, and given back in the background.
            lost?;
            let Some(children) = children else {
                return Ok(());
            };
            let given_back = children.into_iter().map(LockGuard::unlock);
            let mut given_back: FuturesUnordered<_> = given_back.collect();
            let told = hear(self.hold.needed(), &mut given_back).await;
            // What has no answer yet is seen to in the background.
            hear_by_now(&mut given_back, drop).await;
            match told {
                // Too few of this level's: the hold has others.
                Err(lost) if lost.is_lost() && self.hold.is_held() => Ok(()),
                told => told,
            }
        }
        .boxed()
    }

    /// Takes the level off. The levels of the children, if nobody shares them any more.
    fn leave(&mut self) -> Option<Vec<LockGuard>> {
        let crew = self.crew.take()?;
        self.hold.leave();
        let children = crew.leave()?;
        self.hold.lacks_crew();
        Some(children)
    }

    pub(in crate::lock) fn may_detach(&self) -> Result<(), Error> {
        self.hold.check()?;
        match &self.owner {
            Some(owner) if owner.is_over() => Err(self.not_owner()),
            Some(_) => Ok(()),
            None => {
                self.is_alone()?;
                self.valid_children(LockGuard::may_detach)
            }
        }
    }

    /// Leaves the level to its owner, or each child's to the child's. The hold goes on for who looks at it.
    pub(in crate::lock) fn detach(&mut self) -> Result<(), Error> {
        self.may_detach()?;
        let Some(owner) = self.owner.clone() else {
            return self.leave_to_owners();
        };
        let level = Self {
            hold: Arc::clone(&self.hold),
            crew: self.crew.take(),
            owner: Some(Arc::clone(&owner)),
        };
        owner.keep(level).map_err(|mut refused| {
            self.crew = refused.crew.take();
            self.not_owner()
        })
    }

    /// By 6: all agreed, and none can refuse any more.
    fn leave_to_owners(&mut self) -> Result<(), Error> {
        let children = self.take_children()?;
        self.crew = None;
        for (_, child) in children {
            child.leave_to_owner();
        }
        Ok(())
    }

    /// The same for a level that agreed to it. What the owner does not take any more is given back.
    pub(in crate::lock) fn leave_to_owner(mut self) {
        drop(self.detach());
    }

    pub(in crate::lock) fn may_expire(&self) -> Result<(), Error> {
        self.hold.check()?;
        self.is_alone()?;
        self.valid_children(LockGuard::may_expire)
    }

    /// What each child says that is not lost: those that are, are none of it any more.
    fn valid_children(&self, says: impl Fn(&LockGuard) -> Result<(), Error>) -> Result<(), Error> {
        let children = self.children();
        let mut valid = children.iter().filter(|child| child.is_valid());
        valid.try_for_each(|child| says(child))
    }

    /// Leaves each child to its lease. Those that refuse in the very moment are given back, if `needed` did not; else
    /// they stay, and the rest is gone: so the composite is lost or over.
    pub(in crate::lock) fn let_expire(&mut self) -> Result<(), Error> {
        self.may_expire()?;
        let (mut refused, mut first) = (Vec::new(), None);
        let mut parted = 0;
        let Some(crew) = &self.crew else {
            return Ok(());
        };
        let children = self.hold.leave_to_lease(crew);
        for (place, child) in children.ok_or_else(|| self.about(LeaseError::OtherLevels))? {
            match child.let_expire().map_err(GuardError::into_parts) {
                Ok(()) => parted += 1,
                Err((child, error)) => {
                    refused.push((place, child));
                    first.get_or_insert(error);
                }
            }
        }
        if parted < self.hold.needed() {
            crew.put_back(refused);
            self.hold.goes_on();
            return Err(first.unwrap_or_else(Error::not_owner));
        }
        self.crew = None;
        self.hold.leave();
        Ok(())
    }

    /// The children, to part with each.
    fn take_children(&self) -> Result<Vec<(usize, LockGuard)>, Error> {
        let Some(crew) = &self.crew else {
            return Ok(Vec::new());
        };
        crew.take()
            .ok_or_else(|| self.about(LeaseError::OtherLevels))
    }

    /// No other level shares those of the children.
    fn is_alone(&self) -> Result<(), Error> {
        match &self.crew {
            Some(crew) if crew.is_shared() => Err(self.about(LeaseError::OtherLevels)),
            _ => Ok(()),
        }
    }

    fn not_owner(&self) -> Error {
        Error::not_owner().about(self.name())
    }

    fn about(&self, problem: LeaseError) -> Error {
        Error::from(problem).about(self.name())
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        drop(self.leave());
        // Also behind what `unlock` asked of the children, however it ends.
        self.hold.has_changed();
    }
}

/// What is said of a hold that cannot be entered any more: nothing, unless it was lost.
fn over<T>(hold: &Composite) -> Result<Option<T>, Error> {
    match hold.check() {
        Err(error) if error.is_lost() => Err(error),
        _ => Ok(None),
    }
}
