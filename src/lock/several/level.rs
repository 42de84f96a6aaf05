//! One level of a hold of several locks as one; an owner of such levels, where the children have no owner; and how all
//! children are asked at the same time until enough answers agree.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::hold::{ChildGuards, Composite};
use super::state::nth_largest;
use crate::backend::Timers;
use crate::error::{Error, LeaseError};
use crate::host::RandomState;
use crate::lease::Lease;
use crate::lock::guard::{LevelOfSeveral, LockGuard};
use crate::lock::view::HoldOfSeveral;

/// One level of a hold of several locks as one. Dropping it gives the level back.
pub(in crate::lock) struct CompositeLevel {
    hold: Arc<Composite>,
    /// Whether the watchdog keeps it.
    watched: bool,
    /// Whether it has to be given back.
    open: bool,
    /// The owner that the level can be left to. Without one, the owners of the children take its levels.
    owner: Option<Arc<CompositeOwner>>,
}

impl CompositeLevel {
    /// The first level of the hold `name` of `children`, of which `needed` must be valid. A caller that enters it again
    /// with another sort of lease waits at most `spare_timeout` for the other children.
    pub(in crate::lock) fn first(
        name: &Arc<str>,
        needed: usize,
        spare_timeout: Duration,
        children: ChildGuards,
        lease: Lease,
    ) -> Self {
        let watched = lease == Lease::Watchdog;
        let hold = Composite::new(name, needed, spare_timeout, children, watched);
        Self::of(&hold, watched, None)
    }

    /// A level of `hold`, which counts it already.
    fn of(hold: &Arc<Composite>, watched: bool, owner: Option<Arc<CompositeOwner>>) -> Self {
        Self {
            hold: Arc::clone(hold),
            watched,
            open: true,
            owner,
        }
    }

    /// Lets this owner enter the hold again.
    pub(in crate::lock) fn owned_by(mut self, owner: &Arc<CompositeOwner>) -> Self {
        owner.insert(&self.hold);
        self.owner = Some(Arc::clone(owner));
        self
    }

    /// One more level of `hold`; None when the hold is over.
    async fn enter(
        hold: &Arc<Composite>,
        lease: Lease,
        owner: Option<Arc<CompositeOwner>>,
    ) -> Result<Option<Self>, Error> {
        lease.of_several()?;
        hold.check()?;
        let watched = lease == Lease::Watchdog;
        let shared = hold.share(watched);
        // From here on dropping this gives the level back.
        let shared = shared.then(|| Self::of(hold, watched, owner.clone()));
        if let Some(level) = &shared {
            let extended = match lease {
                Lease::Fixed(lease) => level.ask_to_extend(lease).await,
                _ => Ok(()),
            };
            match extended {
                // The levels of this sort are over, and the others keep the hold.
                Err(lost) if lost.is_lost() && hold.is_held() => {}
                extended => return extended.map(|()| shared),
            }
        }
        let is_in = match enter_children(hold, lease).await {
            Ok(children) => hold.enter(watched, children),
            Err(Error::NotOwner { .. }) => false,
            Err(error) if hold.is_held() => return Err(error),
            // The hold ended meanwhile, so it does not matter who did not answer.
            Err(_) => false,
        };
        if is_in {
            return Ok(Some(Self::of(hold, watched, owner)));
        }
        match hold.check() {
            Err(error) if error.is_lost() => Err(error),
            _ => Ok(None),
        }
    }

    pub(in crate::lock) fn hold(&self) -> &Arc<Composite> {
        &self.hold
    }

    pub(in crate::lock) fn into_guard(self) -> LockGuard {
        LockGuard::of_several(Arc::clone(&self.hold) as _, self)
    }

    /// Asks the children of this level. When too few of them are valid and the hold goes on with others, the error is
    /// `NoQuorum`: nothing is lost.
    async fn ask_to_extend(&self, lease: Duration) -> Result<(), Error> {
        let children = self.hold.guards_of(self.watched);
        let asked = children.iter().map(|child| child.extend(lease));
        let answer = ask(self.hold.needed, self.hold.has_spares(), asked).await;
        match answer {
            Err(lost) if lost.is_lost() && self.hold.has_spares() && self.hold.is_held() => {
                let reached = children.iter().filter(|child| child.is_valid()).count();
                Err(Error::no_quorum(reached, self.hold.needed, Arc::new(lost)))
            }
            answer => answer,
        }
    }

    async fn verify_children(&self, watched: bool) -> Result<(), Error> {
        let children = self.hold.guards(watched);
        let asked = children.iter().map(|(_, child)| child.verify());
        ask(self.hold.needed, self.hold.has_spares(), asked).await
    }

    /// Takes the level off. Returns the levels of the children, if no other level shares them.
    fn leave(&mut self) -> Option<Vec<LockGuard>> {
        let was_open = std::mem::take(&mut self.open);
        was_open.then(|| self.hold.leave(self.watched)).flatten()
    }

    /// Asks each valid child; those that are lost do not count.
    fn ask_valid(&self, ask: impl Fn(&LockGuard) -> Result<(), Error>) -> Result<(), Error> {
        let children = self.hold.guards_of(self.watched);
        let mut valid = children.iter().filter(|child| child.is_valid());
        valid.try_for_each(|child| ask(child))
    }

    /// Fails when another level shares the guards of the children.
    fn check_alone(&self) -> Result<(), Error> {
        if self.hold.is_shared(self.watched) {
            return Err(LeaseError::OtherLevels.into());
        }
        Ok(())
    }
}

#[async_trait]
impl LevelOfSeveral for CompositeLevel {
    fn hold_count(&self) -> u32 {
        let children = self.hold.guards_of(self.watched);
        let mut counts: Vec<_> = children.iter().map(|child| child.hold_count()).collect();
        if counts.len() < self.hold.needed {
            return 0;
        }
        nth_largest(&mut counts, self.hold.needed) + self.hold.extra_levels()
    }

    fn timers(&self) -> Option<Timers> {
        let (_, child) = self.hold.guards(self.watched).into_iter().next()?;
        child.timers()
    }

    async fn verify(&self) -> Result<(), Error> {
        self.hold.check()?;
        // Levels of the other sort may have children that this one lacks or lost.
        match self.verify_children(self.watched).await {
            Err(lost) if lost.is_lost() && self.hold.is_held() => {
                self.verify_children(!self.watched).await
            }
            answer => answer,
        }
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        if self.watched {
            return Err(LeaseError::Watchdog.into());
        }
        self.hold.check()?;
        self.ask_to_extend(lease).await
    }

    async fn reenter(&self, lease: Lease) -> Result<Box<dyn LevelOfSeveral>, Error> {
        let level = Self::enter(&self.hold, lease, self.owner.clone()).await?;
        let level = level.ok_or_else(Error::not_owner)?;
        Ok(Box::new(level))
    }

    async fn unlock(mut self: Box<Self>) -> Result<(), Error> {
        let lost = self.hold.check();
        let children = self.leave();
        // On a loss the guards of the children are dropped: the background gives them back.
        lost?;
        let Some(children) = children.filter(|children| !children.is_empty()) else {
            return Ok(());
        };
        // Guards that are in use elsewhere, as when the owner enters the hold just now, are given back there.
        let needed = self.hold.needed.min(children.len());
        let given_back = children.into_iter().map(LockGuard::unlock);
        let mut given_back: FuturesUnordered<_> = given_back.collect();
        let answer = first_result(needed, self.hold.has_spares(), &mut given_back).await;
        // The background finishes what has no answer yet.
        take_ready(&mut given_back, drop).await;
        match answer {
            // Too few children of this level are valid, and the hold has others.
            Err(lost) if lost.is_lost() && self.hold.is_held() => Ok(()),
            answer => answer,
        }
    }

    fn may_detach(&self) -> Result<(), Error> {
        self.hold.check()?;
        match &self.owner {
            Some(owner) if owner.is_over() => Err(Error::not_owner()),
            Some(_) => Ok(()),
            None => {
                self.check_alone()?;
                self.ask_valid(LockGuard::may_detach)
            }
        }
    }

    /// Leaves the level to its owner, or those of the children to theirs. The hold goes on.
    fn detach(&mut self) -> Result<(), Error> {
        self.may_detach()?;
        let Some(owner) = self.owner.clone() else {
            let children = self.hold.leave_to_owners(self.watched);
            let children = children.ok_or(LeaseError::OtherLevels)?;
            children
                .into_iter()
                .flatten()
                .for_each(LockGuard::leave_to_owner);
            self.open = false;
            return Ok(());
        };
        let level = Self::of(&self.hold, self.watched, Some(Arc::clone(&owner)));
        self.open = false;
        owner.keep(level).map_err(|mut refused| {
            self.open = std::mem::take(&mut refused.open);
            Error::not_owner()
        })
    }

    fn leave_to_owner(mut self: Box<Self>) {
        // A level that the owner refuses is given back when it is dropped.
        let _ = self.detach();
    }

    fn may_expire(&self) -> Result<(), Error> {
        self.hold.check()?;
        self.check_alone()?;
        self.ask_valid(LockGuard::may_expire)
    }

    /// Leaves each child to its lease. Children that refuse at that moment are given back when `needed` others agreed.
    /// Else the refusing ones stay and the others are gone, so the hold is lost or over.
    fn let_expire(&mut self) -> Result<(), Error> {
        self.may_expire()?;
        let children = self.hold.leave_to_lease(self.watched);
        let mut children = children.ok_or(LeaseError::OtherLevels)?;
        let (mut left, mut first_error) = (0, None);
        for place in &mut children {
            match place.take().map(LockGuard::let_expire) {
                None => {}
                Some(Ok(())) => left += 1,
                Some(Err(refused)) => {
                    let (child, error) = refused.into_parts();
                    *place = Some(child);
                    first_error.get_or_insert(error);
                }
            }
        }
        if left < self.hold.needed {
            self.hold.goes_on(self.watched, children);
            return Err(first_error.unwrap_or_else(Error::not_owner));
        }
        drop(self.leave());
        Ok(())
    }
}

impl Drop for CompositeLevel {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

/// An owner of holds of several locks: it may enter them again, and levels can be left to it.
#[derive(Default)]
pub(crate) struct CompositeOwner {
    holds: Mutex<OwnedComposites>,
    /// Notified when a hold begins.
    begins: Notify,
}

#[derive(Default)]
struct OwnedComposites {
    over: bool,
    by_name: HashMap<Arc<str>, OwnedComposite, RandomState>,
}

struct OwnedComposite {
    hold: Weak<Composite>,
    /// The newest is the last.
    detached: Vec<CompositeLevel>,
}

impl OwnedComposite {
    fn of(hold: &Arc<Composite>) -> Self {
        let (hold, detached) = (Arc::downgrade(hold), Vec::new());
        Self { hold, detached }
    }
}

impl CompositeOwner {
    /// Notes a new hold. The one that it had under this name is over.
    fn insert(&self, hold: &Arc<Composite>) {
        let owned = OwnedComposite::of(hold);
        let mut holds = self.holds.lock();
        let by_name = &mut holds.by_name;
        // Only when the map is full: else each of many holds would look at all others.
        if by_name.len() == by_name.capacity() {
            by_name.retain(|_, owned| owned.hold.strong_count() > 0 || !owned.detached.is_empty());
            by_name.reserve(by_name.len() + 1);
        }
        let before = by_name.insert(Arc::clone(hold.name()), owned);
        drop(holds);
        drop(before);
        self.begins.notify_waiters();
    }

    /// Waits until it has a valid hold of this name.
    pub(in crate::lock) async fn has(&self, name: &str) {
        loop {
            let begins = self.begins.notified();
            if self.hold_count(name) > 0 {
                return;
            }
            begins.await;
        }
    }

    /// Enters its hold of this name; None when it has none.
    pub(in crate::lock) async fn enter(
        self: &Arc<Self>,
        name: &str,
        lease: Lease,
    ) -> Result<Option<CompositeLevel>, Error> {
        let Some(hold) = self.find(name)? else {
            return Ok(None);
        };
        // Boxed to keep the future of an acquire small: most find nothing to enter.
        Box::pin(CompositeLevel::enter(&hold, lease, Some(Arc::clone(self)))).await
    }

    /// Its valid hold of this name. The error is the loss of a hold of which somebody still has a guard.
    fn find(&self, name: &str) -> Result<Option<Arc<Composite>>, Error> {
        let owned = self.holds.lock().by_name.get(name).map(|owned| {
            let detached = owned.detached.len();
            (owned.hold.upgrade(), detached)
        });
        let Some((Some(hold), detached)) = owned else {
            return Ok(None);
        };
        match hold.check() {
            Ok(()) => Ok(Some(hold)),
            Err(lost) if lost.is_lost() && hold.levels() as usize > detached => Err(lost),
            Err(_) => Ok(None),
        }
    }

    /// The number of levels of its valid hold of this name.
    pub(in crate::lock) fn hold_count(&self, name: &str) -> u32 {
        let hold = self.find(name).ok().flatten();
        hold.map_or(0, |hold| hold.levels())
    }

    /// Keeps a level. Returns it when the owner has ended.
    fn keep(&self, level: CompositeLevel) -> Result<(), CompositeLevel> {
        let mut holds = self.holds.lock();
        if holds.over {
            return Err(level);
        }
        let name = Arc::clone(level.hold().name());
        let owned = OwnedComposite::of(level.hold());
        let owned = holds.by_name.entry(name).or_insert(owned);
        owned.detached.push(level);
        Ok(())
    }

    /// The newest detached level of this name.
    pub(in crate::lock) fn take(&self, name: &str) -> Option<CompositeLevel> {
        let mut holds = self.holds.lock();
        let owned = holds.by_name.get_mut(name)?;
        let level = owned.detached.pop();
        if owned.detached.is_empty() && owned.hold.strong_count() == 0 {
            holds.by_name.remove(name);
        }
        level
    }

    /// Whether it has ended, and keeps no more levels.
    fn is_over(&self) -> bool {
        self.holds.lock().over
    }

    /// Ends it, and returns its detached levels. Dropping them gives them back.
    pub(in crate::lock) fn end(&self) -> Vec<CompositeLevel> {
        let mut holds = self.holds.lock();
        holds.over = true;
        let owned = holds.by_name.values_mut();
        owned
            .flat_map(|owned| std::mem::take(&mut owned.detached))
            .collect()
    }
}

/// One more level of each child.
async fn enter_children(hold: &Composite, lease: Lease) -> Result<ChildGuards, Error> {
    let guards = hold.guards(lease == Lease::Watchdog);
    let places = guards.iter().map(|(place, _)| place + 1).max();
    let mut entered = ChildGuards::new();
    entered.resize_with(places.unwrap_or_default(), || None);
    let entered = Mutex::new(entered);
    let entering = guards.iter().map(async |(place, child)| {
        let level = child.reenter(lease).await?;
        entered.lock()[*place] = Some(level);
        Ok(())
    });
    let mut entering: FuturesUnordered<_> = entering.collect();
    first_result(hold.needed, hold.has_spares(), &mut entering).await?;
    let rest = async { while entering.next().await.is_some() {} };
    let limit = match lease {
        Lease::Watchdog => hold.spare_timeout,
        Lease::Fixed(lease) | Lease::AtMost(lease) => hold.spare_timeout.min(lease / 4),
    };
    if let Some(timers) = guards.first().and_then(|(_, child)| child.timers()) {
        timers.within(limit, rest).await;
    }
    drop(entering);
    Ok(entered.into_inner())
}

/// Asks all at the same time. The answer is yes when `needed` said yes; lost when so many are lost that the others are fewer
/// than `needed`; else, after all answers, the first other error. A hold that `has_spares` goes on without some of them: its
/// error is `NoQuorum`, unless all that failed refuse for good.
async fn ask(
    needed: usize,
    has_spares: bool,
    asked: impl Iterator<Item = impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    first_result(needed, has_spares, &mut asked.collect()).await
}

/// As [`ask`]. The futures that have not ended stay in `asked`.
async fn first_result(
    needed: usize,
    has_spares: bool,
    asked: &mut FuturesUnordered<impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    let all = asked.len();
    let (mut yes, mut lost) = (0, 0);
    let (mut first_lost, mut first_error, mut may_come_back) = (None, None, None);
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(()) => yes += 1,
            Err(error) if error.is_lost() => {
                lost += 1;
                first_lost.get_or_insert(error);
            }
            Err(error) if has_spares && error.is_transient() => {
                may_come_back.get_or_insert(error);
            }
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
        if yes >= needed {
            return Ok(());
        }
        if lost + needed > all
            && let Some(lost) = first_lost.take()
        {
            return Err(lost);
        }
    }
    // There are too few to ask, or one of them failed.
    let silence = may_come_back.map(|error| Error::no_quorum(yes, needed, Arc::new(error)));
    let error = silence.or(first_error).filter(|_| all >= needed);
    Err(error.unwrap_or_else(Error::not_owner))
}

/// Takes the outputs that are ready, after a pause in which the connections of this runtime deliver what they have read.
/// That is cheaper than waking another thread for them.
pub(in crate::lock) async fn take_ready<F: Future>(
    futures: &mut FuturesUnordered<F>,
    mut take: impl FnMut(F::Output),
) {
    let mut paused = futures.is_empty();
    poll_fn(|context| {
        if !paused {
            paused = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while let Poll::Ready(Some(output)) = futures.poll_next_unpin(context) {
            take(output);
        }
        Poll::Ready(())
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LostReason;
    use futures_util::FutureExt;
    use proptest::prelude::*;
    use std::future::ready;
    use std::time::Instant;

    #[test]
    fn an_owner_of_very_many_holds_begins_each_as_quickly_as_the_first() {
        let owner = Arc::default();
        let begin = |number: u32| {
            let (name, watchdog) = (number.to_string().into(), Lease::Watchdog);
            CompositeLevel::first(&name, 1, Duration::ZERO, vec![None], watchdog).owned_by(&owner)
        };
        let began = Instant::now();
        let levels: Vec<_> = (0..100_000).map(begin).collect();
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(owner.holds.lock().by_name.len(), levels.len());
        drop(levels);
        for number in 100_000..400_000 {
            drop(begin(number));
        }
        let kept = owner.holds.lock().by_name.len();
        assert!(kept < 150_000, "those that are over are forgotten: {kept}");
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum ChildSays {
        Yes,
        Lost,
        Denied,
    }

    impl ChildSays {
        fn answer(self) -> Result<(), Error> {
            match self {
                Self::Yes => Ok(()),
                Self::Lost => Err(Error::lost(LostReason::Missing)),
                Self::Denied => Err(Error::not_owner()),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn it_is_yes_exactly_when_enough_said_so_and_lost_when_too_many_are(
            needed in 1usize..=9,
            says in prop::collection::vec(prop_oneof![Just(ChildSays::Yes), Just(ChildSays::Lost), Just(ChildSays::Denied)], 9),
            more in 0usize..=8,
            has_spares: bool,
        ) {
            let says = &says[..(needed + more).min(9)];
            let asked = says.iter().map(|said| ready(said.answer()));
            let result = ask(needed, has_spares, asked).now_or_never().expect("a result once all answers are counted");
            let number_of = |what| says.iter().filter(|said| **said == what).count();
            let too_many = says.len() - number_of(ChildSays::Lost) < needed;
            match result {
                Ok(()) => prop_assert!(number_of(ChildSays::Yes) >= needed),
                Err(error) if too_many => prop_assert!(error.is_lost()),
                Err(error) => prop_assert!(number_of(ChildSays::Yes) < needed && !error.is_lost()),
            }
        }
    }
}
