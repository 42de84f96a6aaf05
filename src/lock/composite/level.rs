//! One level of a hold of several locks as one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::hold::Composite;
use super::standing::nth_largest;
use super::tally::Tally;
use crate::backend::Timers;
use crate::error::{Error, LeaseError};
use crate::lease::Lease;
use crate::lock::{GuardError, LockGuard};

/// A level of each child. Dropped, they are given back.
type Children = Vec<LockGuard>;

/// One level of a hold of several locks as one. Dropping it gives the level back.
pub(in crate::lock) struct Level {
    hold: Arc<Composite>,
    /// By 4, shared with the levels that were entered with the same sort of lease. None once it is given back.
    children: Option<Arc<Children>>,
    watched: bool,
}

impl Level {
    /// The first level of the hold `name` of `children`, of which `needed` must be valid.
    pub(in crate::lock) fn first(
        name: &Arc<str>,
        needed: usize,
        children: Children,
        lease: Lease,
    ) -> Self {
        let views = children.iter().map(LockGuard::hold).collect();
        let hold = Composite::new(name, needed, views);
        Self::with(&hold, children, lease)
    }

    /// A level of `hold` with levels of the children of its own.
    fn with(hold: &Arc<Composite>, children: Children, lease: Lease) -> Self {
        hold.enter();
        hold.has_of_each(true);
        Self {
            hold: Arc::clone(hold),
            children: Some(Arc::new(children)),
            watched: lease == Lease::Watchdog,
        }
    }

    pub(in crate::lock) fn hold(&self) -> &Arc<Composite> {
        &self.hold
    }

    pub(in crate::lock) fn name(&self) -> &str {
        self.hold.name()
    }

    fn children(&self) -> &[LockGuard] {
        self.children.as_deref().map_or(&[], Vec::as_slice)
    }

    pub(in crate::lock) fn timers(&self) -> Option<&Timers> {
        self.children().first()?.timers()
    }

    pub(in crate::lock) fn hold_count(&self) -> u32 {
        let mut counts: Vec<_> = self.children().iter().map(LockGuard::hold_count).collect();
        if self.hold.is_forked() || counts.len() < self.hold.needed() {
            return 0;
        }
        nth_largest(&mut counts, self.hold.needed()) + self.hold.shared_levels()
    }

    pub(in crate::lock) fn verify(&self) -> BoxFuture<'_, Result<(), Error>> {
        async {
            self.hold.check()?;
            self.ask(LockGuard::verify).await
        }
        .boxed()
    }

    pub(in crate::lock) fn extend(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            if self.watched {
                return Err(self.about(LeaseError::Watchdog));
            }
            self.hold.check()?;
            self.ask(|child| child.extend(lease)).await
        }
        .boxed()
    }

    pub(in crate::lock) fn reenter(&self, lease: Lease) -> BoxFuture<'_, Result<Self, Error>> {
        async move {
            self.hold.check()?;
            match lease {
                Lease::Watchdog if self.watched => Ok(self.share()),
                Lease::Fixed(lease) if !self.watched => {
                    self.ask(|child| child.extend(lease)).await?;
                    Ok(self.share())
                }
                lease => {
                    let children = self.enter_children(lease).await?;
                    Ok(Self::with(&self.hold, children, lease))
                }
            }
        }
        .boxed()
    }

    /// A level more, with the same levels of the children.
    fn share(&self) -> Self {
        self.hold.enter();
        Self {
            hold: Arc::clone(&self.hold),
            children: self.children.clone(),
            watched: self.watched,
        }
    }

    async fn enter_children(&self, lease: Lease) -> Result<Children, Error> {
        let asked = self.children().iter();
        let mut entering: FuturesUnordered<_> = asked.map(|child| child.reenter(lease)).collect();
        let mut tally = Tally::new(self.hold.needed(), entering.len());
        let mut entered = Children::new();
        while let Some(answer) = entering.next().await {
            let heard = tally.hear(answer.map(|child| entered.push(child)));
            if let Some(told) = heard {
                return told.map(|()| entered);
            }
        }
        Err(Error::not_owner())
    }

    /// What a question to the children comes to.
    async fn ask<'a, F>(&'a self, question: impl Fn(&'a LockGuard) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        hear(self.hold.needed(), self.children().iter().map(question)).await
    }

    pub(in crate::lock) fn unlock(mut self) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            let lost = self.hold.check();
            let children = self.leave();
            // Levels that are not asked are dropped, and given back in the background.
            lost?;
            match children {
                Some(children) => {
                    let given_back = children.into_iter().map(LockGuard::unlock);
                    hear(self.hold.needed(), given_back).await
                }
                None => Ok(()),
            }
        }
        .boxed()
    }

    /// Takes the level off. The levels of the children, if nobody shares them any more.
    fn leave(&mut self) -> Option<Children> {
        let children = self.children.take()?;
        self.hold.leave();
        let children = Arc::into_inner(children)?;
        self.hold.has_of_each(false);
        Some(children)
    }

    pub(in crate::lock) fn may_detach(&self) -> Result<(), Error> {
        self.hold.check()?;
        self.is_alone()?;
        self.children().iter().try_for_each(LockGuard::may_detach)
    }

    /// Leaves each child's level to its owner. The hold goes on for who looks at it.
    pub(in crate::lock) fn detach(&mut self) -> Result<(), Error> {
        self.may_detach()?;
        self.part_with(|child| child.detach().map_err(GuardError::into_parts))
    }

    pub(in crate::lock) fn may_expire(&self) -> Result<(), Error> {
        self.hold.check()?;
        self.is_alone()?;
        self.children().iter().try_for_each(LockGuard::may_expire)
    }

    /// Leaves each child to its lease.
    pub(in crate::lock) fn let_expire(&mut self) -> Result<(), Error> {
        self.may_expire()?;
        self.part_with(|child| child.let_expire().map_err(GuardError::into_parts))?;
        self.hold.leave();
        Ok(())
    }

    /// No other level shares those of the children.
    fn is_alone(&self) -> Result<(), Error> {
        match &self.children {
            Some(children) if Arc::strong_count(children) > 1 => {
                Err(self.about(LeaseError::OtherLevels))
            }
            _ => Ok(()),
        }
    }

    /// Parts with each child, as `part` does. Children that refuse in the very moment stay, and the rest is gone: so
    /// the composite is lost or over.
    fn part_with(
        &mut self,
        part: impl Fn(LockGuard) -> Result<(), (LockGuard, Error)>,
    ) -> Result<(), Error> {
        let children = self.children.take().and_then(Arc::into_inner);
        let (mut left, mut first) = (Children::new(), None);
        for child in children.unwrap_or_default() {
            if let Err((child, error)) = part(child) {
                left.push(child);
                first.get_or_insert(error);
            }
        }
        let Some(error) = first else {
            return Ok(());
        };
        self.children = Some(Arc::new(left));
        Err(error)
    }

    fn about(&self, problem: LeaseError) -> Error {
        Error::from(problem).about(self.name())
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

/// Asks side by side, and hears what `needed` of them say.
async fn hear(
    needed: usize,
    asked: impl Iterator<Item = impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut tally = Tally::new(needed, asked.len());
    while let Some(answer) = asked.next().await {
        if let Some(told) = tally.hear(answer) {
            return told;
        }
    }
    // Too few were there to ask.
    Err(Error::not_owner())
}
