//! Asks the nodes of a cluster which node has which slots.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use crate::backend::command::Lane;
use crate::backend::connect::{ClusterNode, Dialer, Range, ranges};
use crate::backend::failure::Failure;

/// How long to wait for a node.
const LIMIT: Duration = Duration::from_millis(500);

/// How many nodes are asked at a time.
const ASKED: usize = 3;

/// The first answer. Asks over the lanes that are connected first, then all other `nodes`, and the address that the
/// client was `given`.
pub(super) async fn ask_for_slots(
    lanes: Vec<Arc<Lane>>,
    mut nodes: Vec<Arc<ClusterNode>>,
    given: &Arc<Dialer>,
) -> Option<Vec<Range>> {
    let mut questions = Vec::new();
    for lane in &lanes {
        if let Some(mut connected) = lane.connected() {
            let asking = async move { slots_of(&mut connected.connection, lane.host()).await };
            questions.push(asking.boxed());
        }
    }
    fastrand::shuffle(&mut questions);
    fastrand::shuffle(&mut nodes);
    let others = nodes.iter().map(|node| node.dialer()).chain([given]);
    questions.extend(others.map(|dialer| slots_by(dialer).boxed()));
    while !questions.is_empty() {
        let some = questions.drain(..ASKED.min(questions.len()));
        let mut asked: FuturesUnordered<_> = some.map(|asking| timeout(LIMIT, asking)).collect();
        while let Some(answer) = asked.next().await {
            if let Ok(Ok(ranges)) = answer {
                return Some(ranges);
            }
        }
    }
    None
}

/// Asks the node to which `dialer` connects.
async fn slots_by(dialer: &Dialer) -> Result<Vec<Range>, Failure> {
    let (mut connection, _) = dialer.connect(LIMIT).await?;
    slots_of(&mut connection, dialer.host()).await
}

/// Asks the node at `host` for all slots.
pub(crate) async fn slots_of(
    connection: &mut MultiplexedConnection,
    host: &str,
) -> Result<Vec<Range>, Failure> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let slots = connection.send_packed_command(&question).await;
    let slots = slots.and_then(Value::extract_error)?;
    ranges(&slots, host).ok_or_else(Failure::no_node)
}
