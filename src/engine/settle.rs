//! What an attempt's outcome means: decided once, under the gate's lock, by whoever sees it first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::gate::{Gate, Known};
use super::hold::Hold;
use super::state::Phase;
use super::ticket::{Patience, Ticket, Verdict, Wakes};
use super::{Core, Mail};
use crate::backend::{Failure, Outcome};
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::Term;
use crate::script::Acquired;

/// An attempt is made on the lane of its caller, then on the keeper's.
const LANES: u8 = 2;

/// Sees to an attempt that nobody will try again, and whose outcome is unknown.
pub(crate) fn reap_unsettled(core: &Core, ticket: &Ticket) {
    if let Some(hold) = ticket.take_unsettled() {
        discard(core, &hold);
    }
}

/// Gives back what an unwanted attempt may have got.
pub(crate) fn discard(core: &Core, hold: &Arc<Hold>) {
    hold.with(|state| state.phase = Phase::Ending);
    if hold.reap() {
        core.post(Mail::Reap(Arc::clone(hold)));
    }
}

/// Decides what an attempt's outcome means; once, whoever comes first.
pub(crate) fn settle(core: &Arc<Core>, hold: &Arc<Hold>, ticket: &Arc<Ticket>, outcome: Outcome) {
    let mut wakes = Wakes::default();
    let now = core.now();
    let answer = outcome.and_then(|answer| {
        let acquired = hold.kind.acquired(&answer.reply);
        let acquired = acquired.ok_or_else(Failure::strange_reply)?;
        Ok((acquired, answer.sent_at))
    });
    let names = hold.kind.names();
    let (settled, start_job) = core.gates.with(names, |gate| {
        if !gate.is_trying(hold) {
            return (Settled::Before, false);
        }
        let mut scene = Scene {
            core,
            gate,
            hold,
            ticket,
            now,
            wakes: &mut wakes,
        };
        let settled = match answer {
            Ok((Acquired::Got, sent_at)) => scene.got(ticket.request.lease.term(sent_at)),
            Ok((Acquired::Busy(ttl), _)) => scene.busy(ttl),
            Ok((Acquired::WrongType, _)) => scene.failed(Error::wrong_type()),
            Err(failure) if failure.is_transient() => scene.retry(failure),
            Err(failure) => scene.failed(failure.into()),
        };
        (settled, gate.wants_job(false))
    });
    drop(wakes);
    if start_job {
        core.post(Mail::Serve(Arc::clone(names)));
    }
    match settled {
        Settled::Before => {}
        Settled::Held => core.look_in_time(hold, now),
        Settled::Unwanted => {
            core.schedule.forget(hold);
            tracing::debug!(name = names.name(), "abandoned attempt cleaned up");
            discard(core, hold);
        }
        Settled::Over => {
            core.schedule.forget(hold);
            hold.end(Ok(()));
        }
        Settled::Unsettled => core.schedule.forget(hold),
    }
    if !ticket.is_waiting() && !matches!(settled, Settled::Held) {
        reap_unsettled(core, ticket);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    /// By somebody else.
    Before,
    Held,
    /// Got, and nobody wants it (any more).
    Unwanted,
    /// Certainly not got.
    Over,
    /// Unknown: to be tried again under the same hold id.
    Unsettled,
}

/// One outcome at one gate.
struct Scene<'a> {
    core: &'a Arc<Core>,
    gate: &'a mut Gate,
    hold: &'a Arc<Hold>,
    ticket: &'a Arc<Ticket>,
    now: Moment,
    wakes: &'a mut Wakes,
}

impl Scene<'_> {
    fn got(&mut self, term: Term) -> Settled {
        let (hold, ticket, now) = (self.hold, self.ticket, self.now);
        self.gate.keep(hold, now);
        ticket.set_unsettled(None);
        let wanted = ticket.is_waiting();
        let granted = wanted && hold.with(|state| state.grant(ticket.request.level, term, now));
        if granted {
            if let Some(owner) = &ticket.request.owner {
                owner.insert(hold);
            }
            self.gate.admit_owner(ticket, self.wakes);
            self.gate.tell_busy(self.now, self.wakes);
            if ticket.decide(Verdict::Granted(Arc::clone(hold)), self.wakes) {
                self.gate.granted(ticket, now);
                return Settled::Held;
            }
            if let Some(owner) = &ticket.request.owner {
                owner.remove(hold);
            }
        }
        // The news came too late, or to nobody: released, and tried again if somebody still waits.
        hold.with(|state| state.phase = Phase::Ending);
        self.gate.fails(Failure::too_late(), now);
        self.requeue(|| Verdict::failed(Failure::too_late()));
        let patience = self.core.config.unavailable_after;
        self.gate.give_up(now, patience, self.wakes);
        Settled::Unwanted
    }

    fn busy(&mut self, ttl: Option<Duration>) -> Settled {
        let until = ttl.map(|ttl| self.now + ttl);
        self.gate.stand(Known::Busy(until), self.now);
        self.gate.tell_busy(self.now, self.wakes);
        self.requeue(|| Verdict::Busy);
        self.after()
    }

    fn failed(&mut self, error: Error) -> Settled {
        self.gate.stand(Known::Nothing, self.now);
        self.gate.head_is_new();
        self.ticket.decide(Verdict::failed(error), self.wakes);
        self.after()
    }

    fn retry(&mut self, failure: Failure) -> Settled {
        let breaks = &self.ticket.breaks;
        let cut = failure.is_of_connection() && breaks.fetch_add(1, Ordering::Relaxed) < LANES;
        if failure.is_unanswered() {
            self.hold.taint();
        }
        if self.hold.is_tainted() {
            self.ticket.set_unsettled(Some(self.hold));
        }
        self.gate.stand(Known::Failed(failure.clone()), self.now);
        if cut && self.ticket.request.patience == Patience::Once && self.is_early() {
            // An idle connection that was cut says so at the first command, on each lane.
            self.gate.enqueue(self.ticket);
            self.gate.head_is_new();
        } else {
            self.requeue(|| Verdict::failed(failure));
        }
        let patience = self.core.config.unavailable_after;
        self.gate.give_up(self.now, patience, self.wakes);
        self.after()
    }

    /// Whether there is time for one more try within a command time-out.
    fn is_early(&self) -> bool {
        self.ticket.request.since + self.core.config.command_timeout / 2 > self.now
    }

    /// Back to the queue, or the end of the wait.
    fn requeue(&mut self, verdict: impl FnOnce() -> Verdict) {
        if self.ticket.is_over(self.now) {
            self.ticket.decide(verdict(), self.wakes);
        } else if self.ticket.is_waiting() {
            self.gate.enqueue(self.ticket);
        }
    }

    fn after(&self) -> Settled {
        if self.hold.is_tainted() {
            Settled::Unsettled
        } else {
            Settled::Over
        }
    }
}
