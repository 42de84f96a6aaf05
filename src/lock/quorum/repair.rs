//! Repair: a hold goes on without the nodes that it lost, and takes them back when they are there again. So one that
//! lasts for hours does not die of three restarts on three days.
//!
//! 1. Only a hold that is valid is repaired: what lost its majority stays lost. That is looked at in the moment in which
//!    the child is added.
//! 2. The child is a new one, with a hold id of its own: the last release of the old one may still be repeated.
//! 3. Of a fixed lease it gets what is left; a child of a fenced hold counts once its node knows the token.
//! 4. A node is asked once it may vote, and then once a second at most.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Nodes;
use super::line::Request;
use super::node::Answer;
use super::round::join;
use crate::clock::Moment;
use crate::lease::{Lease, SHORTEST_FIXED};
use crate::lock::composite::Composite;

/// How often holds are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long a node is left alone by a hold that was refused there.
const PAUSE: Duration = Duration::from_secs(1);

/// The holds to look after.
#[derive(Default)]
pub(super) struct Patients {
    new: Mutex<Vec<Patient>>,
    some: Notify,
}

struct Patient {
    hold: Weak<Composite>,
    request: Request,
    /// From when on the node at each place may be asked again.
    asked: HashMap<usize, Moment>,
}

impl Patients {
    pub(super) fn add(&self, hold: &Arc<Composite>, request: &Request) {
        let mut new = self.new.lock();
        if new.is_empty() {
            self.some.notify_one();
        }
        new.push(Patient {
            hold: Arc::downgrade(hold),
            request: Request {
                owner: None,
                ..request.clone()
            },
            asked: HashMap::new(),
        });
    }
}

/// Looks after all holds, for as long as the quorum lives.
pub(super) async fn look_after(quorum: Weak<Nodes>, patients: Arc<Patients>) {
    let mut all: Vec<Patient> = Vec::new();
    loop {
        if all.is_empty() {
            patients.some.notified().await;
        }
        tokio::time::sleep(LOOK).await;
        all.append(&mut patients.new.lock());
        let Some(nodes) = quorum.upgrade() else {
            return;
        };
        all.retain_mut(|patient| match patient.hold.upgrade() {
            Some(hold) if hold.check().is_ok() => {
                patient.look(&nodes, &hold);
                true
            }
            _ => false,
        });
    }
}

impl Patient {
    fn look(&mut self, nodes: &Arc<Nodes>, hold: &Arc<Composite>) {
        let now = nodes.now();
        for place in hold.wanting() {
            let node = &nodes.all[place];
            let again = self.asked.get(&place);
            let is_due = again.is_none_or(|again| now >= *again);
            if !is_due || node.is_silent() || !node.may_vote_at(now) {
                continue;
            }
            self.asked.insert(place, now + PAUSE);
            let (quorum, hold) = (Arc::clone(nodes), Arc::clone(hold));
            let request = self.request.clone();
            nodes.spawn(async move { repair(&quorum, &hold, place, request).await });
        }
    }
}

/// Takes the lock at one node once more. Over as soon as the hold is.
async fn repair(nodes: &Arc<Nodes>, hold: &Arc<Composite>, place: usize, mut request: Request) {
    request.lease = hold.lease_now();
    if let Lease::Fixed(left) = request.lease
        && left < SHORTEST_FIXED
    {
        return;
    }
    let limit = nodes.timeout_of(request.lease);
    let trying = nodes.all[place].try_once(place, request.kind.clone(), request.lease);
    let answer = tokio::select! {
        biased;
        () = hold.over() => return,
        (_, answer) = trying => answer,
        () = tokio::time::sleep(limit) => return nodes.fell_silent(place),
    };
    nodes.note(place, answer.as_ref().err());
    if let Ok(Answer::Granted(child)) = answer
        && join(nodes, &request, hold, place, child).await
    {
        tracing::info!(
            name = &**hold.name(),
            server = place + 1,
            "a server is back in the hold"
        );
    }
}
