//! Telling other clients that somebody here waits to have a lock alone that others share, so that they let nobody
//! in for a while. A mark lasts for [`MARK`]; tries that find the lock busy leave one, and in between, also while
//! this client's own hold is shared, it is left again every [`AGAIN`].
//!
//! For how long it is heeded in all is the gate's to say.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::Pending;
use crate::clock::Moment;
use crate::engine::core::Core;
use crate::engine::gate::Gate;
use crate::engine::gate::ticket::{Patience, Ticket};
use crate::engine::hold::kind::Kind;
use crate::engine::keeper::job::Line;

const MARK: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(1);

/// The mark that a try for `ticket` leaves when it finds the lock busy.
pub(super) fn of(gate: &mut Gate<Pending>, ticket: &Ticket, core: &Core, now: Moment) -> Duration {
    let kind = &ticket.request.kind;
    let waits = ticket.request.patience != Patience::Once;
    if waits && kind.commands.is_writer() {
        note_writer_waits(gate, kind, core, now)
    } else {
        Duration::ZERO
    }
}

fn note_writer_waits(gate: &mut Gate<Pending>, kind: &Kind, core: &Core, now: Moment) -> Duration {
    gate.note_writer_waits(kind, now, core.plan).min(MARK)
}

impl Line {
    /// Leaves the mark again, or takes it away. When that is to be looked at next.
    pub(super) fn mark(&mut self) -> Moment {
        let now = self.now();
        let first = self.at(|gate, _| gate.first_writer().cloned());
        let Some(first) = first else {
            self.unmark(self.at(|gate, _| gate.withdraw_writer_waits()));
            return Moment::NEVER;
        };
        if now >= self.mark_at {
            self.mark_at = now + AGAIN;
            let (kind, core) = (&first.request.kind, &self.keeper.core);
            let mark = self.at(|gate, _| note_writer_waits(gate, kind, core, now));
            if !mark.is_zero() {
                self.tell(kind, mark);
            }
        }
        self.mark_at
    }

    fn tell(&self, kind: &Kind, mark: Duration) {
        if let Some(pending) = self.send(kind, mark) {
            let limit = self.keeper.core.config.command_timeout;
            // One that is lost is made good by the next one.
            tokio::spawn(async move { drop(pending.within(limit).await) });
        }
    }

    /// Tells Redis, and then the gate, that `mark` has ended, if there is one.
    pub(super) fn unmark(&self, mark: Option<(Kind, Moment)>) {
        let Some((kind, since)) = mark else {
            return;
        };
        let core = Arc::clone(&self.keeper.core);
        let pending = self.send(&kind, Duration::ZERO);
        tokio::spawn(async move {
            if let Some(pending) = pending {
                // What is lost ends by itself.
                let _ = pending.within(core.config.command_timeout).await;
            }
            core.at(kind.names(), |gate, _| gate.writer_waits_withdrawn(since));
        });
    }

    /// By the connection of the tries, and at once: a try that follows finds the mark, and takes it away with a grant;
    /// a mark that is left anew comes behind the end of the one before.
    fn send(&self, kind: &Kind, mark: Duration) -> Option<Pending> {
        let core = &self.keeper.core;
        let call = kind.commands.mark(kind.names(), core.client_text(), mark)?;
        let pending = Pending::start(&core.keeper_fleet, call.in_order());
        // The first poll sends it.
        let _ = pending.clone().now_or_never();
        Some(pending)
    }
}
