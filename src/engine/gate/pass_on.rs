//! Passing a hold on: the next waiter of this client gets the lock without a command to Redis.
//!
//! 1. The field in Redis stays as it is. The previous hold ends, and a new one with the same hold id and the same validity
//!    takes the seat, so the certain windows of the two do not overlap (I1).
//! 2. A hold is passed on only while nothing about it is uncertain: its acquire was answered, its count in Redis is one,
//!    its loss was not announced, and two thirds of its lease are left, so no renewal is due. Both levels are under the
//!    watchdog, and both kinds allow it (`Commands::passes_on`).
//! 3. Whatever Redis says of a field concerns the hold that has it now ([`Gate::current_hold`]).
//! 4. It goes on while the [window](super::seat::PassOnWindow) is open. So does handing over, by a release and a try
//!    that travel together, of what cannot be passed on.

use std::sync::Arc;

use super::seat::Seat;
use super::ticket::Ticket;
use crate::clock::Moment;
use crate::engine::gate::{Gate, LastAnswer, Rules};
use crate::engine::hold::Hold;
use crate::engine::hold::effects::Effects;
use crate::engine::hold::state::Level;

impl<C: Clone + PartialEq> Gate<C> {
    /// Passes `hold`, which has the seat and no level any more, on to the head of the queue. Returns whether it did: then
    /// `hold` has ended.
    pub(super) fn pass_on(
        &mut self,
        hold: &Arc<Hold>,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) -> bool {
        let Some(ticket) = self.next_holder(hold, now, rules) else {
            return false;
        };
        let Some(state) = effects.change(hold, |state| state.pass_on(rules.plan, now)) else {
            return false;
        };
        let request = &ticket.request;
        let origin = request.origin(&hold.id, ticket.number, ticket.task);
        let next = Hold::passed_on(origin, state);
        self.queue.remove(ticket.number);
        self.last_answer = LastAnswer::Nothing;
        self.failing_since = None;
        self.seat.hold(Arc::clone(&next));
        self.owner_holds(request.owner.as_ref(), &next, effects);
        self.conclude_late(now, effects);
        effects.look(&next);
        self.deliver(&ticket, next, now, effects);
        if self.job_sleeps_until > now + rules.command_timeout {
            // The job would wake too late to take back a grant that is not collected.
            self.notify_job();
        }
        true
    }

    /// The ticket that `hold` may be passed on to (2, 4).
    fn next_holder(&self, hold: &Arc<Hold>, now: Moment, rules: Rules) -> Option<Arc<Ticket>> {
        let ready = rules.passes_on && self.job.is_some() && self.pass_on_window.is_open(now);
        let head = self.queue.head().filter(|_| ready)?;
        let request = &head.request;
        let kinds = hold.kind.commands.passes_on() && request.kind.commands.passes_on();
        let watched = request.level == Level::Watchdog;
        // An attempt that is not settled may still get the lock, and only a try of its own releases that.
        let wants = head.is_waiting() && !head.is_over(now) && head.unsettled().is_none();
        (kinds && hold.token().is_none() && watched && wants).then(|| Arc::clone(head))
    }

    /// Whether the job sends the last release of `hold` together with the next try: others wait here, and none elsewhere
    /// as far as is known. If the window is over, the release that is about to be sent closes it.
    pub(super) fn may_hand_over(&mut self, hold: &Hold, now: Moment) -> bool {
        if self.job.is_none() || self.queue.is_empty() {
            return false;
        }
        // A queue that Redis keeps says whose turn it is, so it needs no window.
        let in_time = self.pass_on_window.is_open(now) || hold.kind.has_queue();
        if !in_time {
            self.pass_on_window.close();
        }
        in_time && self.wakeups.allow_handover()
    }

    /// The hold that has the field of `hold` now (3).
    pub(crate) fn current_hold(&self, hold: &Arc<Hold>) -> Arc<Hold> {
        let current = match &self.seat {
            Seat::Held { hold: held, .. } if held.id == hold.id => held,
            _ => hold,
        };
        Arc::clone(current)
    }
}
