//! A hold of several locks as one, as its guards and its views see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, pending};
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::standing::{Child, Phase, Standing};
use crate::error::{Error, LostReason};
use crate::lock::view::HoldView;

/// A hold of several locks as one. It keeps nothing: its levels have the children's.
pub(in crate::lock) struct Composite {
    name: Arc<str>,
    needed: usize,
    /// Each child's hold.
    children: Box<[HoldView]>,
    standing: Mutex<Standing>,
    levels: AtomicU32,
    /// How many levels it has of each child.
    of_each: AtomicU32,
}

impl Composite {
    /// Of children of which `needed` must be valid.
    pub(super) fn new(name: &Arc<str>, needed: usize, children: Box<[HoldView]>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            needed,
            children,
            standing: Mutex::new(Standing::new(needed)),
            levels: AtomicU32::new(0),
            of_each: AtomicU32::new(0),
        })
    }

    pub(in crate::lock) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn needed(&self) -> usize {
        self.needed
    }

    pub(super) fn levels(&self) -> u32 {
        // Relaxed: a number for its reader.
        self.levels.load(Ordering::Relaxed)
    }

    /// How many levels more than of each child it has.
    pub(super) fn shared_levels(&self) -> u32 {
        // Relaxed: as above.
        self.levels()
            .saturating_sub(self.of_each.load(Ordering::Relaxed))
    }

    /// A level more.
    pub(super) fn enter(&self) {
        // Relaxed: whoever enters has a level, so the number is not 0.
        self.levels.fetch_add(1, Ordering::Relaxed);
    }

    /// A level more or less of each child.
    pub(super) fn has_of_each(&self, more: bool) {
        // Relaxed: it is only read to be shown.
        if more {
            self.of_each.fetch_add(1, Ordering::Relaxed);
        } else {
            self.of_each.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A level less. With the last one it is over: from then on it cannot be lost.
    pub(super) fn leave(&self) {
        // AcqRel: whoever takes the last level off comes after all others.
        let is_last = self.levels.fetch_sub(1, Ordering::AcqRel) == 1;
        // In the child of a fork a lock may be one that nobody gives back.
        if is_last && !self.is_forked() {
            // A loss that nobody has looked at yet comes first.
            self.look();
            self.standing.lock().end();
        }
    }

    pub(in crate::lock) fn is_forked(&self) -> bool {
        self.children.iter().any(HoldView::is_forked)
    }

    /// How it stands now.
    fn look(&self) -> Phase {
        // Outside of the lock: to look at a child may tell those who wait that it is lost, and a waker may run any
        // code. What was seen before a loss became final is outdone by it.
        let said: SmallVec<[Child; 16]> = self.children.iter().map(said_by).collect();
        self.standing.lock().look(said)
    }

    pub(in crate::lock) fn valid_for(&self) -> Duration {
        if self.is_forked() {
            return Duration::ZERO;
        }
        match self.look() {
            Phase::Held(left) => left,
            Phase::Lost(..) | Phase::Over => Duration::ZERO,
        }
    }

    pub(in crate::lock) fn check(&self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Closed);
        }
        match self.look() {
            Phase::Held(_) => Ok(()),
            Phase::Lost(child, reason) => {
                Err(Error::lost(reason).about(self.children[child].name()))
            }
            Phase::Over => Err(Error::not_owner().about(&self.name)),
        }
    }

    /// Resolves when it is lost, or the loss of so many children announced.
    pub(in crate::lock) fn lost(&self) -> BoxFuture<'_, LostReason> {
        self.too_many(self.children.iter().map(|child| child.lost().boxed()))
    }

    /// Resolves when it is lost.
    pub(in crate::lock) fn lost_for_good(&self) -> BoxFuture<'_, LostReason> {
        let children = self.children.iter();
        self.too_many(children.map(|child| child.lost_for_good().boxed()))
    }

    /// Resolves when so many of `losses` came that `needed` are not left.
    fn too_many<'a>(
        &'a self,
        losses: impl Iterator<Item = BoxFuture<'a, LostReason>>,
    ) -> BoxFuture<'a, LostReason> {
        let spare = self.children.len() - self.needed;
        let losses: FuturesUnordered<_> = losses.collect();
        let mut last = losses.skip(spare);
        async move {
            let told = match last.next().await {
                Some(reason) => reason,
                None => pending().await,
            };
            if self.is_forked() {
                return told;
            }
            match self.look() {
                Phase::Lost(_, reason) => reason,
                Phase::Held(_) => told,
                Phase::Over => pending().await,
            }
        }
        .boxed()
    }
}

fn said_by(child: &HoldView) -> Child {
    let left = child.valid_for();
    if !left.is_zero() {
        return Child::Valid(left);
    }
    match child.check() {
        Err(Error::Lost { reason, .. }) => Child::Lost(reason),
        Ok(()) => Child::Valid(left),
        Err(_) => Child::Over,
    }
}
