//! The lock goes from one to the next without being left free: in this client the last release and the next try travel
//! together, and a release of another client may hand it over to the first who waits here.

use std::sync::Arc;

use futures_util::FutureExt;

use super::marks;
use crate::backend::Pending;
use crate::engine::caller::settle::{give_back_place, settle_hand_over};
use crate::engine::gate::seat::Attempt;
use crate::engine::gate::ticket::Ticket;
use crate::engine::hold::Hold;
use crate::engine::keeper::job::{Line, start_try};
use crate::script::HandOver;

impl Line {
    /// Sends a last release, and right behind it, on the same connection, the try for the next one here.
    pub(super) fn hand_over(&mut self, hold: &Arc<Hold>) {
        let core = Arc::clone(&self.keeper.core);
        let since = core.now();
        let release = hold.kind.release(&hold.id, 0).in_order();
        let release = Pending::start(&core.keeper_fleet, release);
        let first = release.clone();
        let next = self.at(|gate, _| {
            // Under the gate's lock: who leaves from now on finds that it is tried for.
            let next = gate.head().map(|ticket| {
                let mark = marks::of(gate, &ticket, &core, since);
                let (hold, command) = start_try(&core, &ticket, mark, since);
                Attempt {
                    hold,
                    ticket,
                    command,
                    since,
                    early: true,
                    overdue: false,
                }
            });
            let command = next.as_ref().map(|next| next.command.clone());
            gate.handed_over(hold, release, next, since);
            command
        });
        for command in [Some(first), next].into_iter().flatten() {
            // The first poll sends it.
            let _ = command.now_or_never();
        }
    }

    /// What was said, if it is that the lock was handed over.
    pub(super) fn handed_over(&self, said: Option<&str>) -> Option<HandOver> {
        let head = self.at(|gate, _| gate.head())?;
        head.request.kind.commands.queue()?.handed_over(said?)
    }

    /// The lock was handed over. Whether the head of the queue has it without a try.
    pub(super) fn take_over(&mut self, head: &Arc<Ticket>, to: &HandOver) -> bool {
        let Some(places) = &mut self.places else {
            return false;
        };
        let core = &self.keeper.core;
        let Some(hold) = head.unsettled().filter(|hold| *hold.id == *to.hold_id) else {
            give_back_place(core, &self.names, |hold| *hold.id == *to.hold_id);
            return false;
        };
        let grant = places.handed_over(core, &hold, to.arrival);
        grant.is_some_and(|grant| settle_hand_over(core, head, &hold, grant, to.next_is_ours))
    }
}
