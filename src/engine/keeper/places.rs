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
//! 5. A release of another client may hand the lock over to a place, for as long as this client vouches. That is 15 s
//!    at least from just before the send of the command that gave the place, so validity is counted from there; the
//!    watchdog renews from then on. A hand-over names the arrival of its place: one that is heard late may be for a
//!    place that was lost, and given to the same hold anew.
//! 6. It goes to the client's first place in Redis, which is to be its first waiter's. So it is not taken by waiters who
//!    get places while one ahead of them has none: the first try of all takes none, and Redis may lose some. The
//!    waiter that is being tried for is ahead of those in the queue, too.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::{CommandResult, Pending};
use crate::clock::Moment;
use crate::engine::Core;
use crate::engine::attempt::untried_hold;
use crate::engine::grant::Grant;
use crate::engine::hold::Hold;
use crate::engine::kind::Kind;
use crate::engine::places::{Asked, Asks};
use crate::names::Names;
use crate::script::Place;

/// How often the client vouches for its places.
const PERIOD: Duration = Duration::from_secs(5);

/// After how long places are asked for again when that failed.
const AGAIN: Duration = Duration::from_millis(500);

/// Whether the lock may be handed over to waiters of `core` that the watchdog is to keep alive: not where replicas must
/// acknowledge a grant first, nor for longer than its lease.
fn takes_hand_overs(core: &Core, kind: &Kind) -> bool {
    let queue = kind.commands.queue();
    let long = queue.is_some_and(|queue| core.plan.lease >= queue.vouched_for());
    long && core.config.acks.is_none()
}

pub(super) struct Places {
    sent: Option<Sent>,
    /// When the places are vouched for next, or asked for again.
    next: Moment,
    /// They are to be asked for again.
    lost: bool,
    /// By 5.
    given: Vec<Given>,
}

/// When a hold got its place: by the server's clock, and by ours just before it was asked for.
struct Given {
    number: u64,
    arrival: u64,
    since: Moment,
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
            given: Vec::new(),
        }
    }

    /// Gives places to those who came, and vouches for them in time.
    pub(super) fn keep(&mut self, core: &Core, names: &Arc<Names>) {
        self.see(core);
        if self.sent.is_some() {
            return;
        }
        let (now, lost) = (core.now(), self.lost);
        let asks = core.at(names, |gate, _| {
            gate.asks(lost, |ticket| untried_hold(core, ticket, now))
        });
        match asks {
            // Whoever is tried for is not in the queue, and may come back to it with its place.
            Asks::Nothing if now >= self.next => self.next = now + AGAIN,
            Asks::Vouch(kind, places) if now >= self.next => self.vouch(core, kind, places, now),
            Asks::Places(asked) if asked.has_new || now >= self.next => {
                self.lost = false;
                self.ask(core, asked, now);
            }
            Asks::Nothing | Asks::Vouch(..) | Asks::Places(_) => {}
        }
    }

    /// By 5: what `hold` was granted, if there is enough of it left to go on with.
    pub(super) fn handed_over(&mut self, core: &Core, hold: &Hold, arrival: u64) -> Option<Grant> {
        self.see(core);
        let mut given = self.given.iter();
        let known = given.position(|given| (given.number, given.arrival) == (hold.number, arrival));
        let sent_at = self.given.swap_remove(known?).since;
        let lease = hold.kind.commands.queue()?.vouched_for();
        let enough = core.now() + lease.duration() / 3 <= lease.term(sent_at).valid_until;
        enough.then_some(Grant {
            sent_at,
            lease: Some(lease),
            server_age: None,
            token: None,
            open: false,
        })
    }

    /// A connection broke: Redis may know less than it did.
    pub(super) fn doubt(&mut self) {
        self.next = Moment::default();
        self.given.clear();
    }

    fn ask(&mut self, core: &Core, asked: Asked, now: Moment) {
        let Asked {
            ahead,
            holds: asks_for,
            takes,
            ..
        } = asked;
        let Some(kind) = asks_for.first().map(|hold| hold.kind.clone()) else {
            return;
        };
        let Some(queue) = kind.commands.queue() else {
            return;
        };
        let ids: Vec<&str> = asks_for.iter().map(|hold| &*hold.id).collect();
        let ahead = ahead.as_ref().map(|hold| &*hold.id);
        let takes = takes && takes_hand_overs(core, &kind);
        let call = queue.enqueue(kind.names(), ahead, takes, &ids);
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
            self.given.clear();
        }
        self.remember(sent, &place, now);
        core.at(sent.kind.names(), |gate, _| {
            gate.wakeups.next_is_ours(place.next_is_ours);
        });
    }

    /// By 5.
    fn remember(&mut self, sent: &Sent, place: &Place, now: Moment) {
        let Some(queue) = sent.kind.commands.queue() else {
            return;
        };
        let vouched_for = queue.vouched_for().duration();
        let asked = |given: &Given| sent.asks_for.iter().any(|hold| hold.number == given.number);
        let kept = |given: &Given| given.since + vouched_for > now && !asked(given);
        self.given.retain(kept);
        let given = sent.asks_for.iter().zip(&place.arrivals);
        let given = given.filter(|(_, arrival)| **arrival > 0);
        self.given.extend(given.map(|(hold, arrival)| Given {
            number: hold.number,
            arrival: *arrival,
            since: sent.since,
        }));
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
