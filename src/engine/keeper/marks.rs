//! Telling other clients that somebody here waits to have a lock alone that others share, so that they let nobody
//! in for a while. A mark lasts for [`MARK`]; tries that find the lock busy leave one, and in between, also while
//! this client's own hold is shared, it is left again every [`AGAIN`].
//!
//! A mark is heeded for at most the watchdog's lease after it was first left: there may be clients that do not heed
//! it, and those that do must not wait for ever.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::waiting::Line;
use crate::backend::Pending;
use crate::clock::Moment;
use crate::engine::Core;
use crate::engine::gate::Gate;
use crate::engine::kind::Kind;
use crate::engine::ticket::{Patience, Ticket};

const MARK: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(1);

/// The mark that a try for `ticket` leaves when it finds the lock busy.
pub(super) fn of(gate: &mut Gate<Pending>, ticket: &Ticket, core: &Core, now: Moment) -> Duration {
    let kind = &ticket.request.kind;
    let waits = ticket.request.patience != Patience::Once;
    if waits && kind.commands.wants_it_alone() {
        heeded_for(gate, kind, core, now)
    } else {
        Duration::ZERO
    }
}

fn heeded_for(gate: &mut Gate<Pending>, kind: &Kind, core: &Core, now: Moment) -> Duration {
    let most = gate.mark(kind, now) + core.config.watchdog_lease.duration();
    now.until(most).min(MARK)
}

impl Line {
    /// Leaves the mark again, or takes it away. When that is to be looked at next.
    pub(super) fn mark(&mut self) -> Moment {
        let now = self.now();
        let first = self.at(|gate, _| gate.first_alone().cloned());
        let Some(first) = first else {
            self.take_mark_away();
            return Moment::NEVER;
        };
        if now >= self.mark_at {
            self.mark_at = now + AGAIN;
            let (kind, core) = (&first.request.kind, &self.keeper.core);
            let mark = self.at(|gate, _| heeded_for(gate, kind, core, now));
            if !mark.is_zero() {
                self.tell(kind, mark);
            }
        }
        self.mark_at
    }

    /// Sent by this very connection ahead of any try that follows, so that a grant takes it away.
    fn tell(&self, kind: &Kind, mark: Duration) {
        let core = &self.keeper.core;
        let call = kind.commands.mark(kind.names(), core.client_text(), mark);
        if let Some(call) = call {
            let pending = Pending::start(&core.keeper_fleet, call.in_order());
            let limit = core.config.command_timeout;
            // The first poll sends it.
            let _ = pending.clone().now_or_never();
            // One that is lost is made good by the next one.
            tokio::spawn(async move { drop(pending.within(limit).await) });
        }
    }

    fn take_mark_away(&self) {
        let Some(kind) = self.at(|gate, _| gate.take_mark_away()) else {
            return;
        };
        let core = Arc::clone(&self.keeper.core);
        tokio::spawn(async move {
            let names = kind.names();
            let none = Duration::ZERO;
            if let Some(call) = kind.commands.mark(names, core.client_text(), none) {
                // What is lost ends by itself.
                let _ = core.ask(call.in_order(), core.config.command_timeout).await;
            }
            core.at(names, |gate, _| gate.mark_is_away());
        });
    }
}
