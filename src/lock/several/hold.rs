//! A hold of several locks as one, as its guards and views see it.
//!
//! A quorum puts a child into an empty place, or into that of a lost one, while the hold is valid. The state of the hold is
//! checked first, so a hold that is lost stays lost. A check that saw other children than there are now is repeated.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, select};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::child_levels::ChildLevels;
use super::state::{ChildState, CompositePhase, CompositeState};
use crate::engine::hold::state::Ended;
use crate::error::Error;
use crate::fencing::FencingToken;
use crate::lease::Lease;
use crate::lock::guard::LockGuard;
use crate::lock::view::{HoldOfSeveral, HoldView};

/// The holds of the children, by place.
type ChildHolds = Arc<[Option<HoldView>]>;

/// A hold of several locks as one. It keeps no lock: its levels have those of the children.
pub(in crate::lock) struct Composite {
    name: Arc<str>,
    pub(super) needed: usize,
    pub(super) spare_timeout: Duration,
    inner: Mutex<CompositeInner>,
    /// One for each sort of lease.
    child_levels: Mutex<Vec<Weak<ChildLevels>>>,
    /// How many levels of each child it has.
    of_each: AtomicU32,
    /// 0 for none.
    token: AtomicU64,
    /// Notified when a child is added, and when the hold is over.
    changed: Notify,
}

struct CompositeInner {
    children: ChildHolds,
    state: CompositeState,
    levels: u32,
}

impl Composite {
    /// At least `needed` of `children` must be valid. Entering it waits at most `spare_timeout` for the others.
    pub(super) fn new(
        name: &Arc<str>,
        needed: usize,
        spare_timeout: Duration,
        children: ChildHolds,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            needed,
            spare_timeout,
            inner: Mutex::new(CompositeInner {
                children,
                state: CompositeState::new(needed),
                levels: 0,
            }),
            child_levels: Mutex::default(),
            of_each: AtomicU32::new(0),
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

    /// How many more levels it has than each child.
    pub(super) fn extra_levels(&self) -> u32 {
        // Relaxed: nothing is ordered by this number.
        self.levels()
            .saturating_sub(self.of_each.load(Ordering::Relaxed))
    }

    /// Adds a level. False when the hold is over: an owner may find it just after its last level is gone.
    pub(super) fn enter(&self) -> bool {
        let mut inner = self.inner.lock();
        let is_on = !inner.state.is_final();
        inner.levels += u32::from(is_on);
        is_on
    }

    /// Notes one more level of each child.
    pub(super) fn add_child_levels(&self, new: &Arc<ChildLevels>) {
        // Relaxed: as above.
        self.of_each.fetch_add(1, Ordering::Relaxed);
        let mut all = self.child_levels.lock();
        all.retain(|levels| levels.strong_count() > 0);
        all.push(Arc::downgrade(new));
    }

    /// Notes that a level of each child is gone.
    pub(super) fn remove_child_levels(&self) {
        // Relaxed: as above.
        self.of_each.fetch_sub(1, Ordering::Relaxed);
    }

    /// The levels of the children, by sort of lease.
    pub(super) fn child_levels(&self) -> Vec<Arc<ChildLevels>> {
        let all = self.child_levels.lock();
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Removes a level. Without levels the hold is over, and cannot be lost any more.
    pub(super) fn leave(&self) {
        // A loss that nobody has noticed yet comes first.
        self.look();
        let mut inner = self.inner.lock();
        inner.levels -= 1;
        if inner.levels == 0 {
            inner.state.end();
            drop(inner);
            self.has_changed();
        }
    }

    /// Takes the children of the only level, to leave them to their leases: the hold cannot be lost any more, and children
    /// that come later are left to their leases, too. None while other levels share the children.
    pub(super) fn leave_to_lease(&self, levels: &ChildLevels) -> Option<Vec<(usize, LockGuard)>> {
        self.look();
        // A child is added under this lock, so it is among these, or comes later.
        let mut inner = self.inner.lock();
        let children = levels.take()?;
        inner.state.leave_to_lease();
        Some(children)
    }

    /// Whether the children were left to their leases.
    pub(in crate::lock) fn is_left_to_lease(&self) -> bool {
        self.look() == CompositePhase::LeftToLease
    }

    /// Undoes [`leave_to_lease`](Self::leave_to_lease).
    pub(super) fn goes_on(&self) {
        self.inner.lock().state.goes_on();
    }

    /// Notifies the tasks that wait for the end: there are other children now, or the hold is over.
    fn has_changed(&self) {
        self.changed.notify_waiters();
    }

    pub(in crate::lock) fn token(&self) -> Option<FencingToken> {
        // Relaxed: nothing else is published with the number.
        FencingToken::new(self.token.load(Ordering::Relaxed))
    }

    /// Sets the token, unless there is one.
    pub(in crate::lock) fn keep_token(&self, token: FencingToken) {
        let number = token.as_u64();
        // Relaxed: as above.
        let _ = self
            .token
            .compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn children(&self) -> ChildHolds {
        Arc::clone(&self.inner.lock().children)
    }

    /// The phase now.
    fn look(&self) -> CompositePhase {
        self.look_and(|_, phase| phase)
    }

    /// Computes the phase now, and acts on it before anybody else computes it again.
    fn look_and<R>(&self, act: impl FnOnce(&mut CompositeInner, CompositePhase) -> R) -> R {
        loop {
            let children = self.children();
            // Outside of the lock: to look at a child may wake the tasks that wait for its loss, and a waker may run
            // any code. A loss that became final meanwhile overrides what was seen here.
            let reports: SmallVec<[ChildState; 16]> = children
                .iter()
                .map(|child| child.as_ref().map_or(ChildState::Absent, HoldView::state))
                .collect();
            let mut inner = self.inner.lock();
            if Arc::ptr_eq(&inner.children, &children) {
                let phase = inner.state.look(reports);
                return act(&mut inner, phase);
            }
        }
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.look(), CompositePhase::Held(_))
    }

    fn valid_for(&self) -> Duration {
        match self.look() {
            CompositePhase::Held(left) => left,
            _ => Duration::ZERO,
        }
    }

    pub(in crate::lock) fn check(&self) -> Result<(), Error> {
        match self.look() {
            CompositePhase::Held(_) => Ok(()),
            CompositePhase::Lost(child, reason) => {
                let children = self.children();
                let child = children.get(child).and_then(Option::as_ref);
                let name = child.map_or(&*self.name, HoldView::name);
                Err(Error::lost(reason).about(name))
            }
            CompositePhase::Over | CompositePhase::LeftToLease => {
                Err(Error::not_owner().about(&self.name))
            }
        }
    }

    /// The places without a valid child; none once the hold is not valid.
    pub(in crate::lock) fn invalid_places(&self) -> SmallVec<[usize; 16]> {
        if !matches!(self.look(), CompositePhase::Held(_)) {
            return SmallVec::new();
        }
        let children = self.children();
        let invalid = |child: &Option<HoldView>| !child.as_ref().is_some_and(HoldView::is_valid);
        (0..children.len())
            .filter(|place| invalid(&children[*place]))
            .collect()
    }

    /// Puts a child into this place, with a guard for each sort of lease. False when the hold is not valid any more: then
    /// the guards are turned away.
    fn put(&self, place: usize, guards: Vec<(Arc<ChildLevels>, LockGuard)>) -> bool {
        let Some((_, first)) = guards.first() else {
            return false;
        };
        let child = first.hold();
        let mut unwanted = Vec::new();
        let mut guards = Some(guards);
        let taken = self.look_and(|inner, phase| {
            if !matches!(phase, CompositePhase::Held(_)) || place >= inner.children.len() {
                return false;
            }
            // Under the lock that the end of the hold takes, so the last level finds these guards.
            for (levels, guard) in guards.take().into_iter().flatten() {
                unwanted.extend(levels.put(place, guard));
            }
            let mut children = inner.children.to_vec();
            children[place] = Some(child);
            inner.children = children.into();
            true
        });
        drop(unwanted);
        for (_, guard) in guards.into_iter().flatten() {
            self.turn_away(guard);
        }
        self.has_changed();
        taken
    }

    /// Treats a child that comes too late like the others: it is left to its lease, or given back.
    fn turn_away(&self, child: LockGuard) {
        if self.is_left_to_lease() {
            // A child that refuses is given back.
            drop(child.let_expire());
        }
    }

    /// Puts a child into this place that has one level, under the watchdog or not, and enters it for the other levels.
    /// False when the hold is not valid any more, or the child cannot be entered: then it is left to its lease, if the
    /// other children were, or given back.
    pub(in crate::lock) async fn adopt(
        &self,
        place: usize,
        child: LockGuard,
        watched: bool,
    ) -> bool {
        let mut guards = Vec::new();
        let mut same = None;
        for levels in self.child_levels() {
            if levels.watched == watched && same.is_none() {
                same = Some(levels);
                continue;
            }
            let lease = if levels.watched {
                Lease::Watchdog
            } else {
                Lease::Fixed(self.valid_for())
            };
            match child.reenter(lease).await {
                Ok(level) => guards.push((levels, level)),
                Err(_) => return false,
            }
        }
        match same {
            Some(levels) => guards.push((levels, child)),
            // The hold has no level any more.
            None if guards.is_empty() => self.turn_away(child),
            None => {}
        }
        self.put(place, guards)
    }

    /// The lease for a child that joins now.
    pub(in crate::lock) fn lease_now(&self) -> Lease {
        if self.child_levels().iter().any(|levels| levels.watched) {
            Lease::Watchdog
        } else {
            Lease::Fixed(self.valid_for())
        }
    }

    /// One guard of each child, with its place.
    pub(in crate::lock) fn guards(&self) -> Vec<(usize, Arc<LockGuard>)> {
        let mut all: Vec<_> = self
            .child_levels()
            .iter()
            .flat_map(|levels| levels.guards())
            .collect();
        all.sort_by_key(|(place, _)| *place);
        all.dedup_by_key(|(place, _)| *place);
        all
    }

    /// Resolves when the hold is not valid any more.
    pub(in crate::lock) async fn over(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !matches!(self.look(), CompositePhase::Held(_)) {
                return;
            }
            changed.await;
        }
    }
}

impl HoldOfSeveral for Composite {
    fn name(&self) -> &str {
        &self.name
    }

    fn token(&self) -> Option<FencingToken> {
        self.token()
    }

    fn state(&self) -> ChildState {
        match self.look() {
            CompositePhase::Held(left) => ChildState::Valid(left),
            CompositePhase::Lost(_, reason) => ChildState::Lost(reason),
            CompositePhase::Over | CompositePhase::LeftToLease => ChildState::Over,
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.check()
    }

    fn ended(&self) -> BoxFuture<'_, Ended> {
        async move {
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
                // A child is over, too, when it was given back with its level.
                let over = children.iter().flatten();
                let over: FuturesUnordered<_> = over.map(HoldView::ended).collect();
                let spare = over.len().saturating_sub(self.needed);
                let mut last = over.skip(spare);
                select(last.next(), changed).await;
            }
        }
        .boxed()
    }
}
