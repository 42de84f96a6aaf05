//! The subscriptions of one name's job.
//!
//! 1. Most kinds of lock have one channel, for as long as the job lives. Where Redis keeps a queue, each place in it has
//!    its own: the job listens to those of its first two waiters, so that the second is subscribed when its turn comes.
//! 2. A subscription that was refused is tried again with growing pauses, because permissions may be granted again and
//!    passwords corrected.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;
use tokio::task::JoinSet;

use crate::backend::Failure;
use crate::backoff::Delays;
use crate::clock::Moment;
use crate::engine::keeper::Keeper;
use crate::engine::keeper::hub::{self, Route};
use crate::host::own;
use crate::log::log;
use crate::names::Names;

/// How long a subscription outlives its use.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// The channels that a job listens to, that of its first waiter first.
pub(super) struct Listening {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
    subscriptions: Vec<Subscription>,
}

impl Listening {
    pub(super) fn new(keeper: &Arc<Keeper>, names: &Arc<Names>) -> Self {
        Self {
            keeper: Arc::clone(keeper),
            names: Arc::clone(names),
            subscriptions: Vec::new(),
        }
    }

    /// Listens to these channels and no others. Begins to subscribe, unless that is under way or failed just now.
    pub(super) fn start(&mut self, channels: &[impl AsRef<str>]) {
        let wanted = channels.iter().map(AsRef::as_ref);
        if !self
            .subscriptions
            .iter()
            .map(|one| &*one.channel)
            .eq(wanted)
        {
            self.listen_to(channels);
        }
        for subscription in &mut self.subscriptions {
            subscription.start();
        }
    }

    fn listen_to(&mut self, channels: &[impl AsRef<str>]) {
        let mut before = std::mem::take(&mut self.subscriptions);
        for channel in channels {
            let known = before
                .iter()
                .position(|one| *one.channel == *channel.as_ref());
            let subscription = known.map(|place| before.swap_remove(place));
            let new = || self.subscription(channel.as_ref());
            self.subscriptions.push(subscription.unwrap_or_else(new));
        }
        before.into_iter().for_each(Subscription::leave);
    }

    /// Ends all subscriptions, those that are live after a while.
    pub(super) fn leave(&mut self) {
        self.subscriptions.drain(..).for_each(Subscription::leave);
    }

    fn subscription(&self, channel: &str) -> Subscription {
        Subscription {
            keeper: Arc::clone(&self.keeper),
            names: Arc::clone(&self.names),
            channel: channel.into(),
            state: SubscriptionState::Off,
            refusals: hub::refusals(),
            is_down: false,
        }
    }

    /// Whether messages for the first waiter arrive.
    pub(super) fn is_live(&self) -> bool {
        self.subscriptions
            .first()
            .is_some_and(Subscription::is_live)
    }

    /// Lets subscriptions that failed start again, if their pause is over.
    pub(super) fn retry(&mut self, now: Moment) {
        for subscription in &mut self.subscriptions {
            subscription.retry(now);
        }
    }

    /// Waits for news of any channel; for ever when nothing is subscribed.
    pub(super) async fn news(&mut self) -> ChannelNews {
        if self.subscriptions.is_empty() {
            return std::future::pending().await;
        }
        let all = self.subscriptions.iter_mut().map(|one| one.news().boxed());
        match select_all(all).await {
            (ChannelNews::Confirmed, place, _) if place > 0 => ChannelNews::Nothing,
            (news, ..) => news,
        }
    }

    /// Ends all subscriptions now, also those that are not confirmed. Nobody waits for the server's answer.
    pub(super) fn end(&mut self) {
        for mut subscription in self.subscriptions.drain(..) {
            tokio::spawn(own(async move { subscription.stop().await }));
        }
    }
}

enum SubscriptionState {
    Off,
    /// A task of its own subscribes: a job that is busy polls nothing, and other jobs wait for their turn to connect.
    /// Dropping the set ends the task.
    Starting(Arc<Route>, JoinSet<Result<(), Failure>>),
    Live(Arc<Route>),
    /// It failed. The first poll from then on tries again.
    Failed(Moment),
}

struct Subscription {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
    channel: Box<str>,
    state: SubscriptionState,
    /// The pauses before a refused subscription is tried again.
    refusals: Delays,
    /// It failed or broke, and has not worked since.
    is_down: bool,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.is_down(false);
    }
}

/// What a subscription reports.
pub(super) enum ChannelNews {
    /// The subscription is confirmed: messages that are published from now on arrive.
    Confirmed,
    /// So many messages came.
    Messages(u32),
    /// The connection of the subscription broke, before or after the confirmation.
    Broken,
    /// Nothing for the head of the queue: there is no connection, or subscribing was refused, so the polls carry on; or a
    /// later waiter's subscription is confirmed.
    Nothing,
}

/// Awaits the one task in `subscribing`.
async fn subscribed(subscribing: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    // A task that panicked did not subscribe.
    let over = subscribing.join_next().await.and_then(Result::ok);
    over.unwrap_or_else(|| Err(Failure::no_connection()))
}

impl Subscription {
    /// Ends the subscription: after a while if it is live, so that the shared connection is not closed and opened again;
    /// at once if it is not confirmed.
    fn leave(mut self) {
        tokio::spawn(own(async move {
            if self.is_live() {
                tokio::time::sleep(LINGER).await;
            }
            self.stop().await;
        }));
    }

    /// Notes whether waiters poll because of it.
    fn is_down(&mut self, is_down: bool) {
        let report = &self.keeper.core.report;
        match (std::mem::replace(&mut self.is_down, is_down), is_down) {
            (false, true) => report.polls(),
            (true, false) => report.listens(),
            _ => {}
        }
    }

    /// Whether messages arrive.
    fn is_live(&self) -> bool {
        matches!(self.state, SubscriptionState::Live(_))
    }

    /// Begins to subscribe, unless that is under way or failed just now.
    fn start(&mut self) {
        if matches!(self.state, SubscriptionState::Off) {
            let keeper = Arc::clone(&self.keeper);
            let channel = self.channel.clone();
            let route = Arc::<Route>::default();
            let starting = Arc::clone(&route);
            let mut subscribing = JoinSet::new();
            subscribing.spawn(own(async move {
                keeper.hub.subscribe(&channel, &starting).await
            }));
            self.state = SubscriptionState::Starting(route, subscribing);
        }
    }

    fn retry(&mut self, now: Moment) {
        if matches!(self.state, SubscriptionState::Failed(until) if now >= until) {
            self.state = SubscriptionState::Off;
        }
    }

    /// Waits for the next news; for ever when nothing is subscribed.
    async fn news(&mut self) -> ChannelNews {
        match &mut self.state {
            SubscriptionState::Starting(route, subscribing) => {
                match subscribed(subscribing).await {
                    Ok(()) => {
                        self.state = SubscriptionState::Live(Arc::clone(route));
                        self.confirmed();
                        ChannelNews::Confirmed
                    }
                    Err(failure) => {
                        let broke = route.had_connection() && !hub::is_refusal(&failure);
                        self.failed(&failure);
                        if broke {
                            ChannelNews::Broken
                        } else {
                            ChannelNews::Nothing
                        }
                    }
                }
            }
            SubscriptionState::Live(route) => loop {
                route.changed.notified().await;
                if route.is_broken() {
                    self.state = SubscriptionState::Off;
                    self.is_down(true);
                    return ChannelNews::Broken;
                }
                let messages = route.take_messages();
                if messages > 0 {
                    return ChannelNews::Messages(messages);
                }
            },
            SubscriptionState::Off | SubscriptionState::Failed(_) => std::future::pending().await,
        }
    }

    fn failed(&mut self, failure: &Failure) {
        let hub = &self.keeper.hub;
        let mut until = self.keeper.core.now();
        if hub::is_refusal(failure) {
            until = until + self.refusals.step();
            if hub.refused(&self.channel) {
                let (names, cause) = (Arc::clone(&self.names), failure.clone());
                log(move || {
                    let name = names.name();
                    tracing::warn!(name, %cause, "subscribing was refused: waiters poll until it works");
                });
            }
        }
        let (names, cause) = (Arc::clone(&self.names), failure.clone());
        log(move || tracing::debug!(name = names.name(), %cause, "not subscribed, polling"));
        self.state = SubscriptionState::Failed(until);
        self.is_down(true);
    }

    fn confirmed(&mut self) {
        self.refusals.reset();
        self.is_down(false);
        if self.keeper.hub.granted(&self.channel) {
            let names = Arc::clone(&self.names);
            log(move || tracing::info!(name = names.name(), "subscribing works again"));
        }
    }

    /// Ends the subscription, also one that is not confirmed, or the connection when it was silent for a command time-out.
    async fn stop(&mut self) {
        self.keeper.hub.forget(&self.channel);
        let route = match std::mem::replace(&mut self.state, SubscriptionState::Off) {
            SubscriptionState::Starting(route, subscribing) => {
                drop(subscribing);
                route
            }
            SubscriptionState::Live(route) => route,
            SubscriptionState::Off | SubscriptionState::Failed(_) => return,
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
        let result = subscribed(&mut subscribing).await;
        assert!(result.is_err_and(|failure| !is_refusal(&failure)));
        assert!(
            subscribed(&mut subscribing).await.is_err(),
            "nobody is left"
        );
    }
}
