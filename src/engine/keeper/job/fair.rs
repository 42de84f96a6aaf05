//! The places of this client's waiters in a queue that Redis keeps.
//!
//! 1. Places are asked for in the order of arrival. One of these commands is in flight at a time, so waiters that come
//!    meanwhile share the next one. It goes over the keeper's lane, as the tries do: a waiter has its place before it is
//!    tried for.
//! 2. Redis forgets the places of a client that is silent for 15 s, and all places when it loses its data. So the client
//!    refreshes its places every 5 s, whatever else the job does, and after a connection broke. A client that finds fewer
//!    places than it has asks for all of them again, in the order of its waiters.
//! 3. If a waiter has lost its place, no later waiter of the client gets one: it would overtake the first.
//! 4. A request for a place that was not answered may still run. Until then its hold counts as tainted, and its release
//!    is repeated.
//! 5. The ticket being tried for counts as first. Until its try is answered, lost places are not asked for again.
//! 6. A client uses its places in the order of its waiters. So a try is sent behind the releases of waiters that left:
//!    else it would use a place of theirs, and overtake other clients.
//! 7. Each heartbeat wakes the head of a free lock. If Redis reports so many clients that their heartbeats are enough,
//!    waiters behind the head do not poll.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::{CommandResult, Pending};
use crate::clock::Moment;
use crate::engine::caller::acquire::untried_hold;
use crate::engine::core::Core;
use crate::engine::gate::Gate;
use crate::engine::gate::fair::PlaceCommand;
use crate::engine::hold::Hold;
use crate::engine::hold::kind::Kind;
use crate::names::Names;
use crate::script::Reply;

/// How often the client refreshes its places. Each client's own period is a little shorter, so that those that began at the
/// same moment do not stay together.
const PERIOD: Duration = Duration::from_secs(5);

/// The pause before places are asked for again after a failure.
const AGAIN: Duration = Duration::from_millis(500);

pub(super) struct QueuePlaces {
    in_flight: Option<PlacesCommand>,
    /// When to refresh the places next, or to ask for them again.
    next: Moment,
    /// All places are to be asked for again.
    lost: bool,
    /// A try was under way when that was due.
    put_off: bool,
    /// The heartbeats of others wake the head (7).
    many_wait: bool,
    random: fastrand::Rng,
}

/// Starts the releases of waiters that left, ahead of a try. The reaper repeats them until they are answered.
pub(super) fn give_places_back(core: &Core, gate: &mut Gate<Pending>) -> Vec<Pending> {
    let release = |hold: Arc<Hold>| {
        let release = hold.kind.release(&hold.id, 0).in_order();
        Pending::start(&core.backend.keepers, release)
    };
    gate.take_left_places().into_iter().map(release).collect()
}

struct PlacesCommand {
    kind: Kind,
    command: Pending,
    since: Moment,
    /// The holds for which it asks for places; none if it refreshes those that there are.
    asks_for: Vec<Arc<Hold>>,
    /// How many places it finds if none was lost.
    expects: usize,
}

impl PlacesCommand {
    fn overdue_from(&self, core: &Core) -> Moment {
        let limit = core.config.command_timeout;
        self.command.silent_after(self.since, limit)
    }
}

impl QueuePlaces {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            in_flight: None,
            next: Moment::NEVER,
            lost: false,
            put_off: false,
            many_wait: false,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Asks for the places of waiters that came, and refreshes all in time.
    pub(super) fn update(&mut self, core: &Core, names: &Arc<Names>) {
        self.check(core);
        if self.in_flight.is_some() {
            return;
        }
        let (now, lost) = (core.now(), self.lost);
        let command = core.gates.with(names, |gate| {
            gate.place_command(lost, |ticket| {
                untried_hold(core, ticket, ticket.request.lease, now)
            })
        });
        match command {
            // The ticket being tried may come back to the queue with its place.
            PlaceCommand::Nothing if now >= self.next => {
                self.put_off |= lost;
                self.next = now + AGAIN;
            }
            PlaceCommand::Vouch(holds) if now >= self.next => {
                self.send(core, false, None, holds, now);
            }
            PlaceCommand::Enqueue {
                ahead,
                holds,
                has_new,
            } if has_new || self.put_off || now >= self.next => {
                (self.lost, self.put_off) = (false, false);
                // New waiters do not put off the heartbeat.
                let next = if has_new { self.next } else { Moment::NEVER };
                self.send(core, true, ahead.as_deref(), holds, now);
                self.next = self.next.min(next);
            }
            PlaceCommand::Nothing | PlaceCommand::Vouch(..) | PlaceCommand::Enqueue { .. } => {}
        }
    }

    /// Refreshes the places as soon as possible: a connection broke, so Redis may have lost them.
    pub(super) fn doubt(&mut self) {
        self.next = Moment::default();
        self.many_wait = false;
    }

    pub(super) fn many_wait(&self) -> bool {
        self.many_wait
    }

    /// Sends one command for the places of `holds`: asks for them, behind that of `ahead`, or only refreshes them.
    fn send(
        &mut self,
        core: &Core,
        asks: bool,
        ahead: Option<&Hold>,
        holds: Vec<Arc<Hold>>,
        now: Moment,
    ) {
        let Some(kind) = holds.first().map(|hold| hold.kind.clone()) else {
            return;
        };
        let Some(queue) = kind.commands.queue() else {
            return;
        };
        let ids: Vec<&str> = holds.iter().map(|hold| &*hold.id).collect();
        let call = if asks {
            queue.enqueue(&kind.names, ahead.map(|hold| &*hold.id), &ids)
        } else {
            queue.vouch(&kind.names, &core.client, &ids)
        };
        let command = Pending::start(&core.backend.keepers, call.in_order());
        let expects = if asks { 1 } else { holds.len() };
        let asks_for = if asks { holds } else { Vec::new() };
        for hold in &asks_for {
            hold.with(|state| state.asks_for_place(true));
        }
        // The first poll sends it.
        let _ = command.clone().now_or_never();
        self.next = now + PERIOD.mul_f64(0.9 + self.random.f64() / 10.0);
        self.in_flight = Some(PlacesCommand {
            kind,
            command,
            since: now,
            asks_for,
            expects,
        });
    }

    /// Waits until [`update`](Self::update) has something to do.
    pub(super) async fn is_due(&self, core: &Core) {
        let until = |moment| core.backend.timers().sleep_until(moment);
        match &self.in_flight {
            Some(sent) => tokio::select! {
                biased;
                _ = sent.command.clone() => {}
                () = until(sent.overdue_from(core)) => {}
            },
            None => until(self.next).await,
        }
    }

    /// Handles the answer to the command in flight, if there is one.
    pub(super) fn check(&mut self, core: &Core) {
        let now = core.now();
        let Some(sent) = &self.in_flight else {
            return;
        };
        let mut outcome = sent.command.clone().now_or_never();
        if outcome.is_none() && now >= sent.overdue_from(core) {
            sent.command.overdue();
            outcome = sent.command.clone().now_or_never();
        }
        if let Some(outcome) = outcome
            && let Some(sent) = self.in_flight.take()
        {
            self.answered(core, &sent, &outcome);
        }
    }

    fn answered(&mut self, core: &Core, sent: &PlacesCommand, outcome: &CommandResult) {
        let unanswered = matches!(outcome, Err(failure) if failure.is_unanswered());
        for hold in &sent.asks_for {
            hold.with(|state| {
                state.asks_for_place(false);
                if unanswered {
                    state.taint();
                }
            });
        }
        // How many of the places there are, and whether the first of all is of this client.
        let places = match outcome.as_ref().map(|answer| answer.reply) {
            Ok(Reply::Done(count) | Reply::ManyWait(count)) => Some((count, false)),
            Ok(Reply::NextIsOurs(count)) => Some((count, true)),
            Ok(Reply::Gone) => Some((0, false)),
            _ => None,
        };
        let now = core.now();
        self.many_wait =
            matches!(outcome, Ok(answer) if matches!(answer.reply, Reply::ManyWait(_)));
        let Some((count, next_is_ours)) = places else {
            self.lost |= !sent.asks_for.is_empty();
            self.next = self.next.min(now + AGAIN);
            return;
        };
        if usize::try_from(count).is_ok_and(|count| count < sent.expects) {
            self.lost = true;
            self.next = self.next.min(now);
        }
        core.gates.with(&sent.kind.names, |gate| {
            gate.set_next_is_ours(next_is_ours);
        });
    }

    /// Awaits the command in flight.
    pub(super) async fn finish(&mut self, core: &Core) {
        if let Some(sent) = self.in_flight.take() {
            let limit = core.config.command_timeout;
            let outcome = sent.command.clone().within_of(sent.since, limit).await;
            self.answered(core, &sent, &outcome);
        }
    }
}
