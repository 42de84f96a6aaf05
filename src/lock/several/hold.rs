//! A hold of several locks as one, as its guards and views see it.
//!
//! A quorum puts a child into an empty place, or into that of a lost one, while the hold is valid. The state of the hold is
//! checked first, so a hold that is lost stays lost. A check that saw other children than there are now is repeated.
//!
//! Each level of a read lock is a hold of its own, so a child has a hold for each sort of lease, and is valid while one of
//! them is.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::{join_all, select};
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::state::{ChildState, CompositePhase, CompositeState};
use crate::engine::hold::state::Ended;
use crate::error::Error;
use crate::fencing::FencingToken;
use crate::lease::Lease;
use crate::lock::guard::LockGuard;
use crate::lock::view::{HoldOfSeveral, HoldView};

/// A level of each child, by its place. Dropping it gives the level back.
pub(in crate::lock) type ChildGuards = Vec<Option<LockGuard>>;

/// The holds of each child, by its place: that with a fixed lease, and that under the watchdog.
type ChildHolds = Arc<[[Option<HoldView>; 2]]>;

/// A hold of several locks as one. While it has levels, it has levels of its children.
pub(in crate::lock) struct Composite {
    name: Arc<str>,
    pub(super) needed: usize,
    pub(super) spare_timeout: Duration,
    inner: Mutex<CompositeInner>,
    /// 0 for none.
    token: AtomicU64,
    /// Notified when a child is added, and when the hold is over.
    changed: Notify,
}

struct CompositeInner {
    children: ChildHolds,
    /// A level of each child, by place: for a fixed lease, and under the watchdog.
    guards: [Vec<Option<Arc<LockGuard>>>; 2],
    /// How many levels of the hold share the guards of each sort. The last one gives them back.
    shared_by: [u32; 2],
    state: CompositeState,
    /// Also those that were left to the owners of the children.
    levels: u32,
}

impl CompositeInner {
    /// Takes the guards of this sort away. None while several levels share them, or one of them is in use.
    fn take(&mut self, watched: bool) -> Option<ChildGuards> {
        let sort = usize::from(watched);
        // Clones are made only under the lock, so a count of 1 stays 1.
        let in_use = |guard: &Arc<LockGuard>| Arc::strong_count(guard) > 1;
        if self.shared_by[sort] > 1 || self.guards[sort].iter().flatten().any(in_use) {
            return None;
        }
        self.shared_by[sort] = 0;
        let guards = std::mem::take(&mut self.guards[sort]).into_iter();
        let owned = guards.map(|guard| guard.and_then(Arc::into_inner));
        Some(owned.collect())
    }

    fn guard(&self, watched: bool, place: usize) -> Option<Arc<LockGuard>> {
        let guards = &self.guards[usize::from(watched)];
        guards.get(place).cloned().flatten()
    }

    /// Adds a level that shares the guards of this sort. Places without a guard, or with one of those that are `over`, get
    /// theirs from `guards`.
    fn add(&mut self, watched: bool, guards: &mut ChildGuards, over: &[Arc<LockGuard>]) {
        let sort = usize::from(watched);
        let mut children = self.children.to_vec();
        self.guards[sort].resize(children.len(), None);
        let places = self.guards[sort].iter_mut().zip(&mut children);
        for ((place, child), guard) in places.zip(guards) {
            let is_over = |there: &Arc<_>| over.iter().any(|over| Arc::ptr_eq(over, there));
            if place.as_ref().is_none_or(is_over)
                && let Some(guard) = guard.take()
            {
                child[sort] = Some(guard.hold());
                *place = Some(Arc::new(guard));
            }
        }
        self.children = children.into();
        self.shared_by[sort] += 1;
    }
}

impl Composite {
    /// A hold of `children`, of which at least `needed` must be valid, with its first level. Entering it waits at most
    /// `spare_timeout` for the others.
    pub(super) fn new(
        name: &Arc<str>,
        needed: usize,
        spare_timeout: Duration,
        mut children: ChildGuards,
        watched: bool,
    ) -> Arc<Self> {
        let mut inner = CompositeInner {
            children: children.iter().map(|_| [None, None]).collect(),
            guards: Default::default(),
            shared_by: [0; 2],
            state: CompositeState::new(needed),
            levels: 1,
        };
        inner.add(watched, &mut children, &[]);
        Arc::new(Self {
            name: Arc::clone(name),
            needed,
            spare_timeout,
            inner: Mutex::new(inner),
            token: AtomicU64::new(0),
            changed: Notify::new(),
        })
    }

    pub(in crate::lock) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(in crate::lock) fn levels(&self) -> u32 {
        self.inner.lock().levels
    }

    /// Whether it is held without some of its children.
    pub(super) fn has_spares(&self) -> bool {
        self.needed < self.children().len()
    }

    /// How many more levels it has than each child.
    pub(super) fn extra_levels(&self) -> u32 {
        let shared_by = self.inner.lock().shared_by;
        let extra = shared_by.map(|levels| levels.saturating_sub(1));
        extra.iter().sum()
    }

    /// Whether several levels share the guards of this sort.
    pub(super) fn is_shared(&self, watched: bool) -> bool {
        self.inner.lock().shared_by[usize::from(watched)] > 1
    }

    /// Adds a level that shares the guards of this sort. False when there are none, or the hold is over.
    pub(super) fn share(&self, watched: bool) -> bool {
        let mut inner = self.inner.lock();
        let shared = inner.shared_by[usize::from(watched)] > 0 && !inner.state.is_final();
        if shared {
            inner.shared_by[usize::from(watched)] += 1;
            inner.levels += 1;
        }
        shared
    }

    /// Adds a level with these guards. False when the hold is over: an owner may find it just after its last level is
    /// gone.
    pub(super) fn enter(&self, watched: bool, mut guards: ChildGuards) -> bool {
        // Outside of the lock, as in `guards`.
        let mut over = self.guards_of(watched);
        over.retain(|guard| !guard.is_valid());
        let mut inner = self.inner.lock();
        let is_on = !inner.state.is_final();
        if is_on {
            inner.add(watched, &mut guards, &over);
            inner.levels += 1;
        }
        drop(inner);
        // Another level of this sort may have come first.
        drop((guards, over));
        is_on
    }

    /// Removes a level. Without levels the hold is over, and cannot be lost any more. Returns the guards of this sort
    /// with its last level.
    pub(super) fn leave(&self, watched: bool) -> Option<Vec<LockGuard>> {
        // A loss that nobody has noticed yet comes first.
        self.look();
        let mut inner = self.inner.lock();
        inner.levels -= 1;
        let is_over = inner.levels == 0;
        if is_over {
            inner.state.end(CompositePhase::Over);
        }
        let sort = usize::from(watched);
        inner.shared_by[sort] = inner.shared_by[sort].saturating_sub(1);
        let is_last = inner.shared_by[sort] == 0;
        let guards = is_last.then(|| std::mem::take(&mut inner.guards[sort]));
        drop(inner);
        if is_over {
            self.changed.notify_waiters();
        }
        // A guard in use elsewhere is given back at the end of that use.
        let guards = guards?.into_iter().flatten().filter_map(Arc::into_inner);
        Some(guards.collect())
    }

    /// Takes the guards of a level that is the only one of its sort, to leave them to the owners of the children.
    pub(super) fn leave_to_owners(&self, watched: bool) -> Option<ChildGuards> {
        self.inner.lock().take(watched)
    }

    /// Takes the children of the only level, to leave them to their leases: the hold cannot be lost any more, and children
    /// that come later are left to their leases, too. None while other levels share the children.
    pub(super) fn leave_to_lease(&self, watched: bool) -> Option<ChildGuards> {
        self.look();
        // A child is added under this lock, so it is among these, or comes later.
        let mut inner = self.inner.lock();
        let children = inner.take(watched)?;
        inner.state.end(CompositePhase::LeftToLease);
        Some(children)
    }

    /// Undoes [`leave_to_lease`](Self::leave_to_lease) for these guards.
    pub(super) fn goes_on(&self, watched: bool, mut guards: ChildGuards) {
        let mut inner = self.inner.lock();
        inner.add(watched, &mut guards, &[]);
        inner.state.goes_on();
    }

    /// Sets the token, unless there is one.
    pub(in crate::lock) fn keep_token(&self, token: FencingToken) {
        let number = token.as_u64();
        // Relaxed: as above.
        let _ = self
            .token
            .compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(in crate::lock) fn children(&self) -> ChildHolds {
        Arc::clone(&self.inner.lock().children)
    }

    fn look(&self) -> CompositePhase {
        self.look_and(|_, phase| phase)
    }

    /// Computes the phase now, and acts on it before anybody else computes it again.
    fn look_and<R>(&self, act: impl FnOnce(&mut CompositeInner, CompositePhase) -> R) -> R {
        loop {
            let children = self.children();
            // Outside of the lock: to look at a child may wake the tasks that wait for its loss, and a waker may run
            // any code. A loss that became final meanwhile overrides what was seen here.
            let state = |holds: &[Option<HoldView>; 2]| {
                let states = holds.iter().flatten().map(HoldView::state);
                states.fold(ChildState::Over, ChildState::or)
            };
            let reports: SmallVec<[ChildState; 16]> = children.iter().map(state).collect();
            let mut inner = self.inner.lock();
            if Arc::ptr_eq(&inner.children, &children) {
                let phase = inner.state.look(reports);
                return act(&mut inner, phase);
            }
        }
    }

    pub(in crate::lock) fn is_held(&self) -> bool {
        matches!(self.look(), CompositePhase::Held(_))
    }

    fn valid_for(&self) -> Duration {
        match self.look() {
            CompositePhase::Held(left) => left,
            _ => Duration::ZERO,
        }
    }

    /// The places without a valid child; none once the hold is not valid.
    pub(in crate::lock) fn invalid_places(&self) -> SmallVec<[usize; 16]> {
        if !self.is_held() {
            return SmallVec::new();
        }
        let children = self.children();
        let invalid = |place: &usize| !children[*place].iter().flatten().any(HoldView::is_valid);
        (0..children.len()).filter(invalid).collect()
    }

    /// Puts a child into this place, with a guard for each sort of lease. False when the hold is not valid any more: then
    /// the guards are turned away.
    fn put(&self, place: usize, mut guards: [Option<LockGuard>; 2]) -> bool {
        let child = guards
            .each_ref()
            .map(|guard| guard.as_ref().map(LockGuard::hold));
        let mut replaced = Vec::new();
        let taken = self.look_and(|inner, phase| {
            let is_held = matches!(phase, CompositePhase::Held(_));
            if !is_held || place >= inner.children.len() || inner.shared_by == [0; 2] {
                return false;
            }
            // Under the lock that the end of the hold takes, so the last level finds these guards.
            for (sort, guard) in guards.iter_mut().enumerate() {
                if inner.shared_by[sort] > 0
                    && let Some(guard) = guard.take()
                {
                    replaced.push(inner.guards[sort][place].replace(Arc::new(guard)));
                }
            }
            let mut children = inner.children.to_vec();
            children[place] = child;
            inner.children = children.into();
            true
        });
        drop(replaced);
        for guard in guards.into_iter().flatten().filter(|_| !taken) {
            self.turn_away(guard);
        }
        self.changed.notify_waiters();
        taken
    }

    /// Treats a child that comes too late like the others: it is left to its lease, or given back.
    fn turn_away(&self, child: LockGuard) {
        if self.look() == CompositePhase::LeftToLease {
            // A child that refuses is given back.
            drop(child.let_expire());
        }
    }

    /// Puts `child`, whose one level the watchdog keeps if `watched`, into this place. Enters it once more if there are
    /// levels of the other sort. False when it cannot be entered, and is given back, or when the hold is not valid any
    /// more: then it is left to its lease if the other children were, else given back.
    pub(in crate::lock) async fn adopt(
        &self,
        place: usize,
        child: LockGuard,
        watched: bool,
    ) -> bool {
        let other = usize::from(!watched);
        let is_used = self.inner.lock().shared_by[other] > 0;
        let mut guards = [None, None];
        if is_used {
            let lease = if watched {
                Lease::Fixed(self.valid_for())
            } else {
                Lease::Watchdog
            };
            match child.reenter(lease).await {
                Ok(level) => guards[other] = Some(level),
                Err(_) => return false,
            }
        }
        guards[usize::from(watched)] = Some(child);
        self.put(place, guards)
    }

    /// The lease for a child that joins now.
    pub(in crate::lock) fn lease_now(&self) -> Lease {
        let [_, watched] = self.inner.lock().shared_by;
        if watched > 0 {
            Lease::Watchdog
        } else {
            Lease::Fixed(self.valid_for())
        }
    }

    /// The guards of this sort.
    pub(super) fn guards_of(&self, watched: bool) -> Vec<Arc<LockGuard>> {
        let inner = self.inner.lock();
        let guards = inner.guards[usize::from(watched)].iter().flatten();
        guards.cloned().collect()
    }

    /// One guard of each child, with its place: of this sort where there is one that is valid.
    pub(in crate::lock) fn guards(&self, watched: bool) -> Vec<(usize, Arc<LockGuard>)> {
        let mut guards: Vec<_> = {
            let inner = self.inner.lock();
            let guard = |place| {
                let guard = inner.guard(watched, place);
                Some((place, guard.or_else(|| inner.guard(!watched, place))?))
            };
            (0..inner.children.len()).filter_map(guard).collect()
        };
        // Outside of the lock: to look at a child may run any code.
        for (place, guard) in guards.iter_mut().filter(|(_, guard)| !guard.is_valid()) {
            let other = self.inner.lock().guard(!watched, *place);
            if let Some(other) = other {
                *guard = other;
            }
        }
        guards
    }
}

#[async_trait]
impl HoldOfSeveral for Composite {
    fn name(&self) -> &str {
        &self.name
    }

    fn token(&self) -> Option<FencingToken> {
        // Relaxed: nothing else is published with the number.
        FencingToken::new(self.token.load(Ordering::Relaxed))
    }

    fn state(&self) -> ChildState {
        match self.look() {
            CompositePhase::Held(left) => ChildState::Valid(left),
            CompositePhase::Lost(_, reason) => ChildState::Lost(reason),
            CompositePhase::Over | CompositePhase::LeftToLease => ChildState::Over,
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self.look() {
            CompositePhase::Held(_) => Ok(()),
            CompositePhase::Lost(child, reason) => {
                let children = self.children();
                let child = children.get(child).into_iter().flatten().flatten().next();
                let name = child.map_or(&*self.name, HoldView::name);
                Err(Error::lost(reason).about(name))
            }
            CompositePhase::Over | CompositePhase::LeftToLease => {
                Err(Error::not_owner().about(&self.name))
            }
        }
    }

    async fn ended(&self) -> Ended {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let children = self.children();
            match self.look() {
                CompositePhase::Held(_) => {}
                CompositePhase::Lost(_, reason) => return Ended::Lost(reason),
                CompositePhase::Over => return Ended::Released,
                CompositePhase::LeftToLease => return Ended::Left,
            }
            // A child is over, too, when it was given back with its levels.
            let over = children
                .iter()
                .map(|holds| holds.iter().flatten().map(HoldView::ended));
            let over = over.filter(|holds| holds.clone().next().is_some());
            let over: FuturesUnordered<_> = over.map(join_all).collect();
            let spare = over.len().saturating_sub(self.needed);
            let mut last = over.skip(spare);
            select(last.next(), changed).await;
        }
    }
}
