//! The last releases that the keeper sends, many in one write.
//!
//! A task that gets a turn sends what waits by then: its own release, and those of others. So a release that is alone is
//! sent at once, and thousands need few writes. Each node has turns of its own, because a node that is silent keeps them for
//! a command time-out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use super::watchdog::{BATCH, node_of};
use crate::backend::CommandResult;
use crate::clock::Moment;
use crate::engine::core::Core;
use crate::engine::hold::Hold;

/// How many writes to a node are under way at a time. It limits the releases of an outage, so that losses are still
/// reported on time.
const TURNS: usize = 64;

/// When a release was sent, and what it came to.
type Sent = (Moment, CommandResult);

/// A release, and what gets its outcome: `None` if it has to be sent alone.
type ToSend = (Arc<Hold>, oneshot::Sender<Option<Sent>>);

/// By the number of the node.
#[derive(Default)]
pub(super) struct ReleaseQueue(Mutex<BTreeMap<u32, Arc<NodeReleases>>>);

struct NodeReleases {
    waiting: Mutex<Vec<ToSend>>,
    turns: Semaphore,
}

impl ReleaseQueue {
    /// Sends the last release of `hold` once.
    pub(super) async fn send(&self, core: &Core, hold: &Arc<Hold>) -> Sent {
        let releases = self.of(node_of(core, hold));
        releases.send(core, hold).await
    }

    fn of(&self, node: u32) -> Arc<NodeReleases> {
        let mut nodes = self.0.lock();
        if let Some(known) = nodes.get(&node) {
            return Arc::clone(known);
        }
        // A node may have left the cluster.
        nodes.retain(|_, releases| Arc::strong_count(releases) > 1);
        let releases = Arc::new(NodeReleases {
            waiting: Mutex::default(),
            turns: Semaphore::new(TURNS),
        });
        nodes.insert(node, Arc::clone(&releases));
        releases
    }
}

impl NodeReleases {
    async fn send(&self, core: &Core, hold: &Arc<Hold>) -> Sent {
        let (sent, mut answer) = oneshot::channel();
        self.waiting.lock().push((Arc::clone(hold), sent));
        let mut _turn = None;
        let together = tokio::select! {
            biased;
            together = &mut answer => together,
            turn = self.turns.acquire() => {
                _turn = turn.ok();
                send_together(core, self.batch()).await;
                answer.await
            }
        };
        if let Ok(Some(sent)) = together {
            return sent;
        }
        let since = core.now();
        (since, core.ask(hold.kind.release(&hold.id, 0)).await)
    }

    /// The oldest that wait. Turns come in the same order, so the batch has the release of the task whose turn it is, unless
    /// another one sent it.
    fn batch(&self) -> Vec<ToSend> {
        let mut waiting = self.waiting.lock();
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }
}

/// Sends releases of holds at one node in one write.
async fn send_together(core: &Core, batch: Vec<ToSend>) {
    let limit = core.config.command_timeout;
    let sent_at = core.now();
    let holds = batch.iter().map(|(hold, _)| &**hold);
    let calls = holds.map(|hold| (hold, hold.kind.release(&hold.id, 0)));
    let answers = match core.start_together(calls) {
        None => vec![None; batch.len()],
        Some((sent, mut replies)) => match sent.within(limit).await {
            // Those without an answer are sent alone.
            Ok(_) => replies.try_recv().unwrap_or_default(),
            Err(failure) => vec![Some(Err(failure)); batch.len()],
        },
    };
    for ((_, release), answer) in batch.into_iter().zip(answers) {
        // If nobody waits for it any more, the keeper has ended.
        let _ = release.send(answer.map(|answer| (sent_at, answer)));
    }
}
