//! The job of a name that somebody waits for: it listens to all nodes, and makes the rounds for the head of the queue.
//! It runs on the steward and ends when nobody waits.

use std::sync::Arc;
use std::time::Duration;

use super::Nodes;
use super::acquire::begin_round;
use super::ears::Ears;
use super::gate::{Gate, News, Turn};
use super::waking::Waking;
use crate::clock::Moment;
use crate::engine::kind::Kind;
use crate::lock::pauses::Pauses;

/// Ends the job at the gate, whatever ends the task.
struct Ending<'a> {
    nodes: &'a Nodes,
    name: &'a Arc<str>,
    in_order: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.in_order {
            tracing::error!(
                name = &**self.name,
                "the job of a quorum's lock ended unexpectedly"
            );
            self.nodes.gates.at(self.name, Gate::job_died);
        }
    }
}

pub(super) async fn serve(nodes: Arc<Nodes>, name: Arc<str>, kind: Kind) {
    let mut ending = Ending {
        nodes: &nodes,
        name: &name,
        in_order: false,
    };
    let changed = nodes.gates.at(&name, |gate, _| gate.changed()).0;
    let mut ears = Ears::open(&nodes, kind.names());
    let mut waking = Waking::new(nodes.needed);
    let mut pauses = Pauses::new();
    let mut took = Duration::ZERO;
    loop {
        let (news, turn) = nodes
            .gates
            .at(&name, |gate, _| (gate.take_news(), gate.turn()))
            .0;
        let now = nodes.now();
        match news {
            None if waking.next() == Moment::NEVER => waking.soon(now),
            None => {}
            Some(News::Refused) => {
                pauses = Pauses::new();
                waking.refused(now, nodes.poll());
            }
            Some(News::MetOthers) => waking.met_others(now, pauses.after(took)),
        }
        let head = match turn {
            Turn::Over => break,
            Turn::Under(flight) => {
                waking.tries();
                flight.await;
                took = now.until(nodes.now());
                continue;
            }
            Turn::Head(head) => head,
        };
        if now >= waking.next() {
            begin_round(&nodes, &head);
            continue;
        }
        tokio::select! {
            place = ears.told() => waking.told(place, nodes.now(), fastrand::f64()),
            () = changed.notified() => {}
            () = nodes.back.notified() => waking.soon(nodes.now()),
            () = tokio::time::sleep(now.until(waking.next())) => {}
        }
    }
    ending.in_order = true;
}
