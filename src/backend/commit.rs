//! Commands whose effect replicas must have before it counts.
//!
//! `WAIT` tells how many replicas have the last write *of its own connection*. So what is to be acknowledged goes over
//! connections of its own, beside that of its lane: what is queued is sent as one pipeline with one `WAIT` behind it, and
//! every such command writes, also when it changes nothing.
//!
//! 1. A command that was to be acknowledged and was not is not granted: an acquire is undone on the same connection
//!    before that is told, anything else lengthens nothing. When the undoing has no answer, neither has the command.
//! 2. What is sent again (the text of a script, what another node of a cluster has) has a `WAIT`
//!    of its own, behind it.
//! 3. Commands whose order counts, but not their acknowledgement, go through the same queue and wait for no replica.
//!    Those of one slot take one queue.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::committer::{Committer, Stall};
use super::lane::{Lane, LaneConfig};
use super::send::{Message, Wrong};
use super::{Answer, Failure};
use crate::config::Acks;
use crate::script::{Call, Encoded, Order, Undo};
use crate::slot::Target;

/// Over how many connections they go: while replicas are waited for on one, the next are sent on another.
const WAYS: usize = 2;

/// The ways to the connections of one lane on which commands are acknowledged.
pub(crate) struct Commits {
    ways: [Way; WAYS],
}

/// The way to one of them.
struct Way {
    lane: Arc<Lane>,
    queue: mpsc::UnboundedSender<Entry>,
}

/// A command in the queue.
pub(super) struct Entry {
    pub(super) commit: Commit,
    answer: oneshot::Sender<Told>,
}

/// A command to be acknowledged, or to keep its place among those.
pub(super) struct Commit {
    pub(super) call: Encoded,
    /// The call with the script's text, when that is to be sent.
    pub(super) text: Option<Cmd>,
    pub(super) order: Order,
    pub(super) undo: Option<Undo>,
    /// Its slot is on its way to the node.
    pub(super) asking: bool,
    way: usize,
}

/// What it came to. What did not run may be sent elsewhere.
type Told = Result<Answer, (Wrong, Option<Box<Commit>>)>;

impl Commits {
    /// Opens them on a runtime, beside the lane of `config`.
    pub(super) fn open(acks: Acks, config: &LaneConfig, runtime: &Handle) -> Self {
        let stall = Arc::<Mutex<Stall>>::default();
        let ways = std::array::from_fn(|_| {
            let lane = Lane::open(config.clone(), runtime);
            let (queue, entries) = mpsc::unbounded_channel();
            let committer = Committer::new(acks, Arc::clone(&lane), Arc::clone(&stall));
            runtime.spawn(committer.run(entries));
            Way { lane, queue }
        });
        Self { ways }
    }

    /// Their connections.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.ways.iter().map(|way| &way.lane)
    }

    /// The connection that a command takes.
    pub(super) fn lane_of(&self, commit: &Commit) -> &Arc<Lane> {
        &self.ways[commit.way].lane
    }

    async fn send(&self, commit: Commit) -> Told {
        let way = &self.ways[commit.way];
        let (answer, answered) = oneshot::channel();
        if let Err(unsent) = way.queue.send(Entry { commit, answer }) {
            // Its task ends with its runtime only.
            let failure = way.lane.end_of_it().unwrap_or_else(Failure::runtime_ended);
            return Err((failure.into(), Some(Box::new(unsent.0.commit))));
        }
        // The runtime may end in the middle of it.
        let told = answered.await;
        told.unwrap_or_else(|_| Err((Failure::no_reply().into(), None)))
    }
}

impl Commit {
    pub(super) fn of(call: &Call<'_>) -> Self {
        Self {
            call: call.encode(),
            text: None,
            order: call.order(),
            undo: call.undo(),
            asking: false,
            way: match call.target() {
                Target::Slot(slot) => slot.index() % WAYS,
                Target::Any | Target::None => 0,
            },
        }
    }
}

/// One that waits for being sent, or was not executed.
impl Message for Option<Commit> {
    async fn sent_on(&mut self, lane: &Lane, asking: bool) -> Result<Answer, Wrong> {
        let (Some(commits), Some(mut commit)) = (lane.commits(), self.take()) else {
            return Err(Failure::no_reply().into());
        };
        (commit.asking, commit.text) = (asking, None);
        commits.send(commit).await.map_err(|(wrong, unsent)| {
            *self = unsent.map(|unsent| *unsent);
            wrong
        })
    }
}

impl Entry {
    pub(super) fn tell(self, answer: Answer) {
        // Nobody may be there any more: the keeper looks after what was abandoned.
        let _ = self.answer.send(Ok(answer));
    }

    pub(super) fn fail(self, wrong: impl Into<Wrong>) {
        // As above.
        let _ = self
            .answer
            .send(Err((wrong.into(), Some(Box::new(self.commit)))));
    }
}
