//! How the job of a name listens for wake-ups: subscribes, waits for the confirmation, and tries again when that
//! failed.
//!
//! A subscription that was refused is tried again too, with longer and longer pauses: rights are given back, and
//! passwords are mended.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Keeper;
use super::hub::{self, Route};
use crate::backend::Failure;
use crate::backoff::Delays;
use crate::clock::Moment;
use crate::names::Names;

enum State {
    Off,
    Starting(Arc<Route>, BoxFuture<'static, Result<(), Failure>>),
    Live(Arc<Route>),
    /// It failed, and is tried again at the first poll from then on.
    Failed(Moment),
}

pub(super) struct Listening {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
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

impl Listening {
    pub(super) fn new(keeper: &Arc<Keeper>, names: &Arc<Names>) -> Self {
        Self {
            keeper: Arc::clone(keeper),
            names: Arc::clone(names),
            state: State::Off,
            refusals: hub::refusals(),
        }
    }

    /// Whether messages arrive.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// Begins to subscribe, unless that is under way or has just failed.
    pub(super) fn start(&mut self) {
        if matches!(self.state, State::Off) {
            let keeper = Arc::clone(&self.keeper);
            let names = Arc::clone(&self.names);
            let route = Arc::<Route>::default();
            let starting = Arc::clone(&route);
            let subscribing = async move { keeper.hub.subscribe(names.channel(), &starting).await };
            self.state = State::Starting(route, subscribing.boxed());
        }
    }

    /// A poll: what failed may work now.
    pub(super) fn retry(&mut self, now: Moment) {
        if matches!(self.state, State::Failed(until) if now >= until) {
            self.state = State::Off;
        }
    }

    /// Waits for what comes next; for ever when nothing is subscribed.
    pub(super) async fn heard(&mut self) -> Heard {
        match &mut self.state {
            State::Starting(route, subscribing) => match subscribing.await {
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
                route.told.notified().await;
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
            if hub.refused(self.names.channel()) {
                tracing::warn!(name, cause = %failure, "subscribing was refused: waiters poll until it works");
            }
        }
        tracing::debug!(name, cause = %failure, "not subscribed, polling");
        self.state = State::Failed(until);
    }

    fn works(&mut self) {
        self.refusals.reset();
        if self.keeper.hub.granted(self.names.channel()) {
            tracing::info!(name = self.names.name(), "subscribing works again");
        }
    }

    /// Ends the subscription, also one that is not confirmed. Takes a command time-out at most.
    pub(super) async fn stop(&mut self) {
        self.keeper.hub.forget(self.names.channel());
        let route = match std::mem::replace(&mut self.state, State::Off) {
            State::Starting(route, subscribing) => {
                drop(subscribing);
                route
            }
            State::Live(route) => route,
            State::Off | State::Failed(_) => return,
        };
        let hub = &self.keeper.hub;
        hub.unsubscribe(self.names.channel(), &route).await;
    }
}
