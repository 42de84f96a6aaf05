//! Passing a hold on: the next one of this client has the lock without a word to Redis.
//!
//! 1. The field in Redis stays as it is; the hold of the one before has ended, and a new one with the same hold id and
//!    the same validity has the seat. So the certain windows of the two do not overlap (I1).
//! 2. Only what is certain is passed on: a hold whose acquire was answered, whose count in Redis is one and whose loss
//!    was not announced; with two thirds of its lease left, so that no renewal of it is due. Both sides are under the
//!    watchdog, and of kinds that say by `Commands::passes_on` that this is all there is to them.
//! 3. Whatever Redis says of a field is said of the hold that has it *now* ([`Gate::present`]): the one before is over.
//! 4. It goes on for as long as a [row](super::row) lasts. So does handing over, by a release and a try that travel
//!    together, of what cannot be passed on.

use std::sync::Arc;

use super::known::Known;
use super::seat::Seat;
use super::ticket::{Ticket, Verdict};
use crate::clock::Moment;
use crate::engine::gate::{Gate, Rules};
use crate::engine::hold::effects::Effects;
use crate::engine::hold::state::Level;
use crate::engine::hold::{Hold, Origin};

/// What the hold of `ticket` is made of that goes on with what Redis has of `hold`.
fn origin(hold: &Hold, ticket: &Ticket) -> Origin {
    let request = &ticket.request;
    Origin {
        kind: request.kind.clone(),
        id: Arc::clone(&hold.id),
        number: ticket.number,
        lease: request.lease,
        owner: request.owner_number(),
        entered_by: ticket.number,
        task: ticket.task,
    }
}

impl<C: Clone + PartialEq> Gate<C> {
    /// Passes `hold`, whose last level was just given back and which has the seat, on to the head of the queue. Whether
    /// it did: then `hold` has ended.
    pub(super) fn pass_on(
        &mut self,
        hold: &Arc<Hold>,
        now: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) -> bool {
        let Some(ticket) = self.heir(hold, now, rules) else {
            return false;
        };
        let Some(state) = effects.change(hold, |state| state.pass_on(rules.plan, now)) else {
            return false;
        };
        let next = Hold::passed_on(origin(hold, &ticket), state);
        self.queue.remove(ticket.number);
        self.known = Known::Nothing;
        self.failing_since = None;
        self.seat
            .hold(Arc::clone(&next), Some((Arc::clone(&ticket), now)));
        if let Some(owner) = &ticket.request.owner {
            owner.insert(&next);
            self.admit(owner.number, effects);
        }
        self.tell_busy(now, effects);
        effects.look(&next);
        // It waits, and we have its gate's lock: it is delivered.
        ticket.decide(Verdict::Granted(next), effects);
        if self.looks_at > now + rules.command_timeout {
            // The job sees to it that the grant is collected, and would come too late.
            self.tell_job();
        }
        true
    }

    /// To whom `hold` is passed on, by 2 and 4.
    fn heir(&self, hold: &Arc<Hold>, now: Moment, rules: Rules) -> Option<Arc<Ticket>> {
        let ready = rules.passes_on && self.job.is_some() && self.row.lasts(now);
        let head = self.queue.head().filter(|_| ready)?;
        let request = &head.request;
        let plain = hold.kind.commands.passes_on() && request.kind.commands.passes_on();
        let watched = request.level == Level::Watchdog;
        // What an attempt of its own may still get is released by another try of it.
        let wants = head.is_waiting() && !head.is_over(now) && head.unsettled().is_none();
        (plain && hold.token().is_none() && watched && wants).then(|| Arc::clone(head))
    }

    /// Whether the job is to send the last release of `hold`: others wait here and nobody elsewhere, so it gets the lock
    /// for the next one in the same round trip. If not since the row is over, the release that ends it is about to be
    /// sent.
    pub(super) fn may_hand_over(&mut self, hold: &Hold, now: Moment) -> bool {
        if self.job.is_none() || self.queue.is_empty() {
            return false;
        }
        // A queue that Redis keeps says whose turn it is.
        let lasts = self.row.lasts(now) || hold.kind.has_queue();
        if !lasts {
            self.row.end();
        }
        lasts && self.wakeups.are_ours_alone()
    }

    /// By 3: the hold that has the field of `hold` now.
    pub(crate) fn present(&self, hold: &Arc<Hold>) -> Arc<Hold> {
        let present = match &self.seat {
            Seat::Held { hold: held, .. } if held.id == hold.id => held,
            _ => hold,
        };
        Arc::clone(present)
    }
}
