//! A hold of several locks as one, as its guards and its views see it.
//!
//! A child may be put into an empty place, or into that of one that is lost, while it is held: a quorum does so. It is
//! looked at first, so what was lost once stays lost; and a look that saw other children than those that are there now
//! is made again.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, Either, pending, select};
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::crew::Crew;
use super::standing::{Child, Phase, Standing};
use crate::error::{Error, LostReason};
use crate::fencing::FencingToken;
use crate::lease::Lease;
use crate::lock::LockGuard;
use crate::lock::view::HoldView;

/// Each child's hold, by its place.
type Children = Arc<[Option<HoldView>]>;

/// A hold of several locks as one. It keeps nothing: its levels have the children's.
pub(in crate::lock) struct Composite {
    name: Arc<str>,
    needed: usize,
    spare_timeout: Duration,
    inner: Mutex<Inner>,
    /// The levels of the children.
    crews: Mutex<Vec<Weak<Crew>>>,
    /// How many levels it has of each child.
    of_each: AtomicU32,
    /// Its fencing token, 0 when it has none.
    token: AtomicU64,
    /// Told when a child was taken in, when some were given back, and when it is over.
    changed: Notify,
}

struct Inner {
    children: Children,
    standing: Standing,
    levels: u32,
}

impl Composite {
    /// Of children of which `needed` must be valid. Who enters it waits for the others this long at most.
    pub(super) fn new(
        name: &Arc<str>,
        needed: usize,
        spare_timeout: Duration,
        children: Children,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            needed,
            spare_timeout,
            inner: Mutex::new(Inner {
                children,
                standing: Standing::new(needed),
                levels: 0,
            }),
            crews: Mutex::default(),
            of_each: AtomicU32::new(0),
            token: AtomicU64::new(0),
            changed: Notify::new(),
        })
    }

    pub(in crate::lock) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn needed(&self) -> usize {
        self.needed
    }

    pub(super) fn spare_timeout(&self) -> Duration {
        self.spare_timeout
    }

    pub(in crate::lock) fn levels(&self) -> u32 {
        self.inner.lock().levels
    }

    /// How many levels more than of each child it has.
    pub(super) fn shared_levels(&self) -> u32 {
        // Relaxed: a number for its reader.
        self.levels()
            .saturating_sub(self.of_each.load(Ordering::Relaxed))
    }

    /// A level more; false when it is over. Whoever looks it up by its owner may come behind the last level.
    pub(super) fn enter(&self) -> bool {
        let mut inner = self.inner.lock();
        let is_on = !inner.standing.is_final();
        inner.levels += u32::from(is_on);
        is_on
    }

    /// A level more of each child.
    pub(super) fn has_crew(&self, crew: &Arc<Crew>) {
        // Relaxed: it is only read to be shown.
        self.of_each.fetch_add(1, Ordering::Relaxed);
        let mut crews = self.crews.lock();
        crews.retain(|crew| crew.strong_count() > 0);
        crews.push(Arc::downgrade(crew));
    }

    /// A level less of each child.
    pub(super) fn lacks_crew(&self) {
        // Relaxed: as above.
        self.of_each.fetch_sub(1, Ordering::Relaxed);
    }

    /// The levels that it has of its children, one for each sort of lease.
    pub(super) fn crews(&self) -> Vec<Arc<Crew>> {
        self.crews.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A level less. With the last one it is over: from then on it cannot be lost.
    pub(super) fn leave(&self) {
        // A loss that nobody has looked at yet comes first.
        self.look();
        let mut inner = self.inner.lock();
        inner.levels -= 1;
        if inner.levels == 0 {
            inner.standing.end();
            drop(inner);
            self.has_changed();
        }
    }

    /// Takes the children of its only level, to leave them to their leases: what they say from now on is no loss, and
    /// those that come later are left to theirs. Nothing while somebody else uses that level.
    pub(super) fn leave_to_lease(&self, crew: &Crew) -> Option<Vec<(usize, LockGuard)>> {
        self.look();
        // Under the lock by which a child is taken in: it is among these, or comes later.
        let mut inner = self.inner.lock();
        let children = crew.take()?;
        inner.standing.leave_to_lease();
        Some(children)
    }

    /// Whether its children were left to their leases.
    pub(in crate::lock) fn is_left_to_lease(&self) -> bool {
        self.look() == Phase::LeftToLease
    }

    /// The level stays after all.
    pub(super) fn goes_on(&self) {
        self.inner.lock().standing.goes_on();
    }

    /// Told to whoever waits for a loss: there are other children now, or fewer.
    pub(super) fn has_changed(&self) {
        self.changed.notify_waiters();
    }

    pub(in crate::lock) fn token(&self) -> Option<FencingToken> {
        // Relaxed: the number is all that is published by it.
        FencingToken::new(self.token.load(Ordering::Relaxed))
    }

    /// Keeps the first token it is given.
    pub(in crate::lock) fn keep_token(&self, token: FencingToken) {
        let number = token.as_u64();
        // Relaxed: as above.
        let _ = self
            .token
            .compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn children(&self) -> Children {
        Arc::clone(&self.inner.lock().children)
    }

    /// How it stands now.
    fn look(&self) -> Phase {
        self.look_and(|_, phase| phase)
    }

    /// How it stands now, and what is to be done about that before anybody looks again.
    fn look_and<R>(&self, act: impl FnOnce(&mut Inner, Phase) -> R) -> R {
        loop {
            let children = self.children();
            // Outside of the lock: to look at a child may tell those who wait that it is lost, and a waker may run any
            // code. What was seen before a loss became final is outdone by it.
            let said: SmallVec<[Child; 16]> = children
                .iter()
                .map(|child| child.as_ref().map_or(Child::Absent, HoldView::says))
                .collect();
            let mut inner = self.inner.lock();
            if Arc::ptr_eq(&inner.children, &children) {
                let phase = inner.standing.look(said);
                return act(&mut inner, phase);
            }
        }
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.look(), Phase::Held(_))
    }

    /// As part of another hold.
    pub(in crate::lock) fn says(&self) -> Child {
        match self.look() {
            Phase::Held(left) => Child::Valid(left),
            Phase::Lost(_, reason) => Child::Lost(reason),
            Phase::Over | Phase::LeftToLease => Child::Over,
        }
    }

    pub(in crate::lock) fn valid_for(&self) -> Duration {
        match self.look() {
            Phase::Held(left) => left,
            Phase::Lost(..) | Phase::Over | Phase::LeftToLease => Duration::ZERO,
        }
    }

    pub(in crate::lock) fn check(&self) -> Result<(), Error> {
        match self.look() {
            Phase::Held(_) => Ok(()),
            Phase::Lost(child, reason) => {
                let children = self.children();
                let child = children.get(child).and_then(Option::as_ref);
                let name = child.map_or(&*self.name, HoldView::name);
                Err(Error::lost(reason).about(name))
            }
            Phase::Over | Phase::LeftToLease => Err(Error::not_owner().about(&self.name)),
        }
    }

    /// The places of children that are not valid, while it is held; none afterwards.
    pub(in crate::lock) fn wanting(&self) -> SmallVec<[usize; 16]> {
        if !matches!(self.look(), Phase::Held(_)) {
            return SmallVec::new();
        }
        let children = self.children();
        let invalid = |child: &Option<HoldView>| !child.as_ref().is_some_and(HoldView::is_valid);
        (0..children.len())
            .filter(|place| invalid(&children[*place]))
            .collect()
    }

    /// Puts a child into this place, with its guards, each for its crew. False when it is not held any more: then they
    /// are turned away.
    pub(super) fn take_in(&self, place: usize, guards: Vec<(Arc<Crew>, LockGuard)>) -> bool {
        let Some((_, first)) = guards.first() else {
            return false;
        };
        let child = first.hold();
        let mut unwanted = Vec::new();
        let mut guards = Some(guards);
        let taken = self.look_and(|inner, phase| {
            if !matches!(phase, Phase::Held(_)) || place >= inner.children.len() {
                return false;
            }
            // Under the lock that the end takes: whoever takes the last level off finds them.
            for (crew, guard) in guards.take().into_iter().flatten() {
                unwanted.extend(crew.put(place, guard));
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

    /// A child that comes too late goes the way of the others: it is left to its lease, or given back.
    fn turn_away(&self, child: LockGuard) {
        if self.is_left_to_lease() {
            // What is refused is given back.
            drop(child.let_expire());
        }
    }

    /// Takes a child into this place that was entered once, under the watchdog or not. False when it is not held any
    /// more, or could not be entered as often as the others: then it is left to its lease, if they were, or given back.
    pub(in crate::lock) async fn adopt(
        &self,
        place: usize,
        child: LockGuard,
        watched: bool,
    ) -> bool {
        let mut guards = Vec::new();
        let mut same = None;
        for crew in self.crews() {
            if crew.watched == watched && same.is_none() {
                same = Some(crew);
                continue;
            }
            let lease = if crew.watched {
                Lease::Watchdog
            } else {
                Lease::Fixed(self.valid_for())
            };
            match child.reenter(lease).await {
                Ok(level) => guards.push((crew, level)),
                Err(_) => return false,
            }
        }
        match same {
            Some(crew) => guards.push((crew, child)),
            // It has no level any more.
            None if guards.is_empty() => self.turn_away(child),
            None => {}
        }
        self.take_in(place, guards)
    }

    /// With what lease a child is to be taken that joins now: whether the watchdog keeps it.
    pub(in crate::lock) fn lease_now(&self) -> Lease {
        if self.crews().iter().any(|crew| crew.watched) {
            Lease::Watchdog
        } else {
            Lease::Fixed(self.valid_for())
        }
    }

    /// The children that are there, each with its place: one level of each, whichever has it.
    pub(in crate::lock) fn guards(&self) -> Vec<(usize, Arc<LockGuard>)> {
        let mut all: Vec<_> = self.crews().iter().flat_map(|crew| crew.guards()).collect();
        all.sort_by_key(|(place, _)| *place);
        all.dedup_by_key(|(place, _)| *place);
        all
    }

    /// Resolves when it is not held any more.
    pub(in crate::lock) async fn over(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !matches!(self.look(), Phase::Held(_)) {
                return;
            }
            changed.await;
        }
    }

    /// Resolves when it is lost, or the loss of so many children announced.
    pub(in crate::lock) fn lost(&self) -> BoxFuture<'_, LostReason> {
        self.too_many(|child| async move { child.lost().await }.boxed())
    }

    /// Resolves when it is lost.
    pub(in crate::lock) fn lost_for_good(&self) -> BoxFuture<'_, LostReason> {
        self.too_many(|child| async move { child.lost_for_good().await }.boxed())
    }

    /// Resolves when so many of the children's losses came that `needed` are not left.
    fn too_many<'a>(
        &'a self,
        loss: impl Fn(HoldView) -> BoxFuture<'a, LostReason> + Send + 'a,
    ) -> BoxFuture<'a, LostReason> {
        async move {
            loop {
                let mut changed = pin!(self.changed.notified());
                changed.as_mut().enable();
                let children = self.children();
                // What was given back with a level cannot be lost.
                let there = children.iter().flatten();
                let there = there.filter(|child| child.says() != Child::Over);
                let losses: FuturesUnordered<_> = there.map(|child| loss(child.clone())).collect();
                let spare = losses.len().saturating_sub(self.needed);
                let mut last = losses.skip(spare);
                let told = match select(last.next(), changed).await {
                    Either::Left((Some(reason), _)) => reason,
                    Either::Left((None, _)) => pending().await,
                    // Others may be there now, or fewer.
                    Either::Right(_) => continue,
                };
                match self.look() {
                    Phase::Lost(_, reason) => return reason,
                    Phase::Over | Phase::LeftToLease => pending().await,
                    Phase::Held(_) if Arc::ptr_eq(&children, &self.children()) => return told,
                    Phase::Held(_) => {}
                }
            }
        }
        .boxed()
    }
}
