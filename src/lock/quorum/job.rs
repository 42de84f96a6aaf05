//! The job of a name that somebody waits for: it listens to all nodes, and makes the rounds for the head of the queue.
//! It runs on the steward and ends when nobody waits.

use std::sync::Arc;
use std::time::Duration;

use super::Nodes;
use super::acquire::begin_round;
use super::ears::Ears;
use super::gate::{News, Turn};
use super::waking::Waking;
use crate::clock::Moment;
use crate::engine::kind::Kind;
use crate::lock::pauses::Pauses;

pub(super) async fn serve(nodes: Arc<Nodes>, name: Arc<str>, kind: Kind) {
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
            Some(News::Refused { free_at }) => {
                pauses = Pauses::new();
                waking.refused(now, nodes.poll(), free_at, fastrand::f64());
            }
            Some(News::MetOthers) => waking.met_others(now, pauses.after(took)),
        }
        let head = match turn {
            Turn::Over => return,
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
}
