//! The places of this client's waiters in a queue that Redis keeps: given in the order of arrival, and vouched for.
//!
//! 1. One command of these is under way at a time, so waiters that come meanwhile share the next one. It goes over the
//!    keeper's lane, as the tries do: who is tried for has its place before.
//! 2. Redis forgets the places of a client that is silent for 15 s. So all of them are vouched for every 5 s, whatever
//!    else the job does, and a client that finds fewer than it has asks for all of them again.
//! 3. A place that was asked for without an answer may come late: until then its hold counts as tainted, and its
//!    release is repeated.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::{Outcome, Pending};
use crate::clock::Moment;
use crate::engine::Core;
use crate::engine::attempt::untried_hold;
use crate::engine::hold::Hold;
use crate::engine::kind::Kind;
use crate::engine::places::IsNew;
use crate::names::Names;

/// How often the client vouches for its places.
const PERIOD: Duration = Duration::from_secs(5);

/// After how long places are asked for again when that failed.
const AGAIN: Duration = Duration::from_millis(500);

pub(super) struct Places {
    sent: Option<Sent>,
    /// When the places are vouched for next, or asked for again.
    next: Moment,
    /// They are to be asked for again.
    lost: bool,
}

/// A command that is under way.
struct Sent {
    kind: Kind,
    command: Pending,
    since: Moment,
    /// Whose places it asks for; none when it vouches.
    asks_for: Vec<Arc<Hold>>,
    /// How many places there are to be.
    places: usize,
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            sent: None,
            next: Moment::NEVER,
            lost: false,
        }
    }

    /// Gives places to those who came, and vouches for them in time.
    pub(super) fn keep(&mut self, core: &Core, names: &Arc<Names>) {
        self.see(core);
        if self.sent.is_some() {
            return;
        }
        let now = core.now();
        let places = core.at(names, |gate, _| {
            gate.places(|ticket| untried_hold(core, ticket, now))
        });
        let Some(kind) = places.first().map(|(hold, _)| hold.kind.clone()) else {
            // By 2: whoever comes next is asked for.
            self.next = Moment::NEVER;
            return;
        };
        let due = now >= self.next;
        let again = self.lost && due;
        let count = places.len();
        let asks_for = places.into_iter().filter(|(_, IsNew(new))| *new || again);
        let asks_for: Vec<_> = asks_for.map(|(hold, _)| hold).collect();
        if due || !asks_for.is_empty() {
            self.send(core, kind, asks_for, count, now);
        }
    }

    fn send(
        &mut self,
        core: &Core,
        kind: Kind,
        asks_for: Vec<Arc<Hold>>,
        places: usize,
        now: Moment,
    ) {
        let Some(queue) = kind.commands.queue() else {
            return;
        };
        let ids: Vec<&str> = asks_for.iter().map(|hold| &*hold.id).collect();
        let call = if ids.is_empty() {
            queue.vouch(kind.names(), core.client_text())
        } else {
            queue.enqueue(kind.names(), &ids)
        };
        let command = Pending::start(&core.keeper_fleet, call.in_order());
        for hold in &asks_for {
            hold.with(|state| state.asks_for_place(true));
        }
        // The first poll sends it.
        let _ = command.clone().now_or_never();
        self.lost &= asks_for.is_empty();
        self.next = now + PERIOD;
        self.sent = Some(Sent {
            kind,
            command,
            since: now,
            asks_for,
            places,
        });
    }

    /// When there is something to do, if nothing else happens.
    fn due(&self, core: &Core) -> Moment {
        match &self.sent {
            Some(sent) => sent.since + core.config.command_timeout,
            None => self.next,
        }
    }

    /// Waits until there is something to do.
    pub(super) async fn is_due(&self, core: &Core) {
        let timer = tokio::time::sleep(core.now().until(self.due(core)));
        match &self.sent {
            Some(sent) => tokio::select! {
                _ = sent.command.clone() => {}
                () = timer => {}
            },
            None => timer.await,
        }
    }

    /// Looks whether the command that is under way was answered.
    pub(super) fn see(&mut self, core: &Core) {
        let now = core.now();
        let limit = core.config.command_timeout;
        let Some(sent) = &self.sent else {
            return;
        };
        let mut outcome = sent.command.clone().now_or_never();
        if outcome.is_none() && now >= sent.since + limit {
            sent.command.overdue();
            outcome = sent.command.clone().now_or_never();
        }
        if let Some(outcome) = outcome
            && let Some(sent) = self.sent.take()
        {
            self.answered(core, &sent, &outcome);
        }
    }

    fn answered(&mut self, core: &Core, sent: &Sent, outcome: &Outcome) {
        let unanswered = matches!(outcome, Err(failure) if failure.is_unanswered());
        for hold in &sent.asks_for {
            hold.with(|state| {
                state.asks_for_place(false);
                if unanswered {
                    state.taint();
                }
            });
        }
        let place = match (outcome, sent.kind.commands.queue()) {
            (Ok(answer), Some(queue)) => queue.placed(&answer.reply),
            _ => None,
        };
        let vouched = sent.asks_for.is_empty();
        match place {
            Some(place) => {
                self.lost |= vouched && place.count < sent.places;
                core.at(sent.kind.names(), |gate, _| {
                    gate.wakeups.next_is_ours(place.next_is_ours);
                });
            }
            None => self.lost |= !vouched,
        }
        if place.is_none() || self.lost {
            self.next = self.next.min(core.now() + AGAIN);
        }
    }

    /// Sees through what is under way.
    pub(super) async fn finish(&mut self, core: &Core) {
        if let Some(sent) = self.sent.take() {
            let left = core.now().until(sent.since + core.config.command_timeout);
            let outcome = sent.command.clone().within(left).await;
            self.answered(core, &sent, &outcome);
        }
    }
}
