//! How the job of a name listens for wake-ups: subscribes, waits for the confirmation, and tries again when that
//! failed.
//!
//! Most kinds of lock have one channel, for as long as the job lives. Where Redis keeps a queue, each place in it has
//! its own: the job listens to those of its first two waiters, so that the second is subscribed when its turn comes.
//!
//! A subscription that was refused is tried again too, with longer and longer pauses: rights are given back, and
//! passwords are mended.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;
use tokio::task::JoinSet;

use crate::backend::Failure;
use crate::backoff::Delays;
use crate::clock::Moment;
use crate::engine::keeper::hub::{self, Route};
use crate::engine::keeper::shared::Keeper;
use crate::names::Names;

/// How long a subscription outlives its use.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// The channels that a job listens to; the first waiter's is the first.
pub(super) struct Listening {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
    ears: Vec<Ear>,
}

impl Listening {
    pub(super) fn new(keeper: &Arc<Keeper>, names: &Arc<Names>) -> Self {
        Self {
            keeper: Arc::clone(keeper),
            names: Arc::clone(names),
            ears: Vec::new(),
        }
    }

    /// Listens to these channels, and no others: begins to subscribe, unless that is under way or has just failed.
    pub(super) fn start(&mut self, channels: &[impl AsRef<str>]) {
        let wanted = channels.iter().map(AsRef::as_ref);
        if !self.ears.iter().map(|ear| &*ear.channel).eq(wanted) {
            self.listen_to(channels);
        }
        for ear in &mut self.ears {
            ear.start();
        }
    }

    fn listen_to(&mut self, channels: &[impl AsRef<str>]) {
        let mut before = std::mem::take(&mut self.ears);
        for channel in channels {
            let known = before
                .iter()
                .position(|ear| *ear.channel == *channel.as_ref());
            let ear = known.map(|place| before.swap_remove(place));
            self.ears
                .push(ear.unwrap_or_else(|| self.ear(channel.as_ref())));
        }
        before.into_iter().for_each(Ear::leave);
    }

    /// Ends all subscriptions, those that work a while later.
    pub(super) fn leave(&mut self) {
        self.ears.drain(..).for_each(Ear::leave);
    }

    fn ear(&self, channel: &str) -> Ear {
        Ear {
            keeper: Arc::clone(&self.keeper),
            names: Arc::clone(&self.names),
            channel: channel.into(),
            state: State::Off,
            refusals: hub::refusals(),
        }
    }

    /// Whether messages for the first waiter arrive.
    pub(super) fn is_live(&self) -> bool {
        self.ears.first().is_some_and(Ear::is_live)
    }

    /// A poll: what failed may work now.
    pub(super) fn retry(&mut self, now: Moment) {
        for ear in &mut self.ears {
            ear.retry(now);
        }
    }

    /// Waits for what comes next, and whether it is the first waiter's; for ever when nothing is subscribed.
    pub(super) async fn heard(&mut self) -> (Heard, IsFirst) {
        match self.ears.as_mut_slice() {
            [] => std::future::pending().await,
            [only] => (only.heard().await, IsFirst(true)),
            ears => {
                let ears = ears.iter_mut().map(|ear| ear.heard().boxed());
                let (heard, place, _) = select_all(ears).await;
                (heard, IsFirst(place == 0))
            }
        }
    }

    /// Ends all subscriptions, also those that are not confirmed.
    pub(super) async fn stop(&mut self) {
        for mut ear in self.ears.drain(..) {
            ear.stop().await;
        }
    }
}

/// Whether something concerns the channel of the first waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IsFirst(pub(super) bool);

enum State {
    Off,
    /// By a task of its own: a job that is busy with something else polls nothing, and other jobs wait for the turn to
    /// connect. With the set ends its task.
    Starting(Arc<Route>, JoinSet<Result<(), Failure>>),
    Live(Arc<Route>),
    /// It failed, and is tried again at the first poll from then on.
    Failed(Moment),
}

/// One channel.
struct Ear {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
    channel: Box<str>,
    state: State,
    /// When a subscription that was refused is tried again.
    refusals: Delays,
}

/// What came of listening.
pub(super) enum Heard {
    /// From now on messages arrive; what was published before was published before now.
    Confirmed,
    /// So many messages came.
    Messages(u32),
    /// The connection of the subscription broke.
    Broken,
    /// Subscribing failed: the polls carry on.
    Failed,
}

/// What came of the one task in `subscribing`.
async fn subscribed(subscribing: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    // One that panicked has no connection, either.
    let over = subscribing.join_next().await.and_then(Result::ok);
    over.unwrap_or_else(|| Err(Failure::no_connection()))
}

impl Ear {
    /// Ends the subscription: a while later when it works, so that the connection of all is not closed and opened
    /// again. One that is being made is given up at once.
    fn leave(mut self) {
        tokio::spawn(async move {
            if self.is_live() {
                tokio::time::sleep(LINGER).await;
            }
            self.stop().await;
        });
    }

    /// Whether messages arrive.
    fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// Begins to subscribe, unless that is under way or has just failed.
    fn start(&mut self) {
        if matches!(self.state, State::Off) {
            let keeper = Arc::clone(&self.keeper);
            let channel = self.channel.clone();
            let route = Arc::<Route>::default();
            let starting = Arc::clone(&route);
            let mut subscribing = JoinSet::new();
            subscribing.spawn(async move { keeper.hub.subscribe(&channel, &starting).await });
            self.state = State::Starting(route, subscribing);
        }
    }

    /// A poll: what failed may work now.
    fn retry(&mut self, now: Moment) {
        if matches!(self.state, State::Failed(until) if now >= until) {
            self.state = State::Off;
        }
    }

    /// Waits for what comes next; for ever when nothing is subscribed.
    async fn heard(&mut self) -> Heard {
        match &mut self.state {
            State::Starting(route, subscribing) => match subscribed(subscribing).await {
                Ok(()) => {
                    self.state = State::Live(Arc::clone(route));
                    self.works();
                    Heard::Confirmed
                }
                Err(failure) => {
                    self.failed(&failure);
                    Heard::Failed
                }
            },
            State::Live(route) => loop {
                route.changed.notified().await;
                if route.is_broken() {
                    self.state = State::Off;
                    return Heard::Broken;
                }
                let messages = route.take_messages();
                if messages > 0 {
                    return Heard::Messages(messages);
                }
            },
            State::Off | State::Failed(_) => std::future::pending().await,
        }
    }

    fn failed(&mut self, failure: &Failure) {
        let (hub, name) = (&self.keeper.hub, self.names.name());
        let mut until = self.keeper.core.now();
        if hub::is_refusal(failure) {
            until = until + self.refusals.step();
            if hub.refused(&self.channel) {
                tracing::warn!(name, cause = %failure, "subscribing was refused: waiters poll until it works");
            }
        }
        tracing::debug!(name, cause = %failure, "not subscribed, polling");
        self.state = State::Failed(until);
    }

    fn works(&mut self) {
        self.refusals.reset();
        if self.keeper.hub.granted(&self.channel) {
            tracing::info!(name = self.names.name(), "subscribing works again");
        }
    }

    /// Ends the subscription, also one that is not confirmed. Takes a command time-out at most.
    async fn stop(&mut self) {
        self.keeper.hub.forget(&self.channel);
        let route = match std::mem::replace(&mut self.state, State::Off) {
            State::Starting(route, subscribing) => {
                drop(subscribing);
                route
            }
            State::Live(route) => route,
            State::Off | State::Failed(_) => return,
        };
        let hub = &self.keeper.hub;
        hub.unsubscribe(&self.channel, &route).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::keeper::hub::is_refusal;

    /// The job goes on by its polls, and subscribes anew at one of them.
    #[tokio::test]
    async fn a_subscription_whose_task_died_has_failed() {
        let mut subscribing = JoinSet::new();
        subscribing.spawn(async { panic!("a bug") });
        let told = subscribed(&mut subscribing).await;
        assert!(told.is_err_and(|failure| !is_refusal(&failure)));
        assert!(
            subscribed(&mut subscribing).await.is_err(),
            "nobody is left"
        );
    }
}
