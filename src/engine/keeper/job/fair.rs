//! The places of this client's waiters in a queue that Redis keeps: given in the order of arrival, and vouched for.
//!
//! 1. One command of these is under way at a time, so waiters that come meanwhile share the next one. It goes over the
//!    keeper's lane, as the tries do: who is tried for has its place before.
//! 2. Redis forgets the places of a client that is silent for 15 s, and all of them when it loses its data. So they are
//!    vouched for every 5 s, whatever else the job does, and when a connection broke. A client that finds fewer than it
//!    has asks for all of them again, in the order of its waiters.
//! 3. Until it knows, no later waiter of the client is given a place: it would be ahead of those who lost theirs.
//! 4. A place that was asked for without an answer may come late: until then its hold counts as tainted, and its
//!    release is repeated.
//! 5. The waiter that is being tried for is not in the queue meanwhile, and ahead of those that are.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::{CommandResult, Pending};
use crate::clock::Moment;
use crate::engine::caller::acquire::untried_hold;
use crate::engine::core::Core;
use crate::engine::gate::fair::PlaceCommand;
use crate::engine::hold::Hold;
use crate::engine::hold::kind::Kind;
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
    /// What it is answered when none of the others was lost.
    expects: usize,
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
        let (now, lost) = (core.now(), self.lost);
        let command = core.at(names, |gate, _| {
            gate.place_command(lost, |ticket| untried_hold(core, ticket, now))
        });
        match command {
            // Whoever is tried for is not in the queue, and may come back to it with its place.
            PlaceCommand::Nothing if now >= self.next => self.next = now + AGAIN,
            PlaceCommand::Vouch(kind, places) if now >= self.next => {
                self.vouch(core, kind, places, now);
            }
            PlaceCommand::Enqueue {
                ahead,
                holds,
                has_new,
            } if has_new || now >= self.next => {
                self.lost = false;
                self.ask(core, ahead.as_ref(), holds, now);
            }
            PlaceCommand::Nothing | PlaceCommand::Vouch(..) | PlaceCommand::Enqueue { .. } => {}
        }
    }

    /// A connection broke: Redis may know less than it did.
    pub(super) fn doubt(&mut self) {
        self.next = Moment::default();
    }

    fn ask(
        &mut self,
        core: &Core,
        ahead: Option<&Arc<Hold>>,
        asks_for: Vec<Arc<Hold>>,
        now: Moment,
    ) {
        let Some(kind) = asks_for.first().map(|hold| hold.kind.clone()) else {
            return;
        };
        let Some(queue) = kind.commands.queue() else {
            return;
        };
        let ids: Vec<&str> = asks_for.iter().map(|hold| &*hold.id).collect();
        let ahead = ahead.map(|hold| &*hold.id);
        let call = queue.enqueue(kind.names(), ahead, &ids);
        let command = Pending::start(&core.keeper_fleet, call.in_order());
        for hold in &asks_for {
            hold.with(|state| state.asks_for_place(true));
        }
        let expects = 1;
        self.send(Sent {
            kind,
            command,
            since: now,
            asks_for,
            expects,
        });
    }

    fn vouch(&mut self, core: &Core, kind: Kind, expects: usize, now: Moment) {
        let Some(queue) = kind.commands.queue() else {
            return;
        };
        let call = queue.vouch(kind.names(), core.client_text());
        let command = Pending::start(&core.keeper_fleet, call.in_order());
        let asks_for = Vec::new();
        self.send(Sent {
            kind,
            command,
            since: now,
            asks_for,
            expects,
        });
    }

    fn send(&mut self, sent: Sent) {
        // The first poll sends it.
        let _ = sent.command.clone().now_or_never();
        self.next = sent.since + PERIOD;
        self.sent = Some(sent);
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

    fn answered(&mut self, core: &Core, sent: &Sent, outcome: &CommandResult) {
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
        let now = core.now();
        let Some(place) = place else {
            self.lost |= !sent.asks_for.is_empty();
            self.next = self.next.min(now + AGAIN);
            return;
        };
        if place.count < sent.expects {
            self.lost = true;
            self.next = self.next.min(now);
        }
        core.at(sent.kind.names(), |gate, _| {
            gate.set_next_is_ours(place.next_is_ours);
        });
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
