//! Asks the nodes of a cluster which node has which slots.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::backend::command::Lane;
use crate::backend::connect::{ClusterNode, Connection, Dialer, Range, ranges};
use crate::backend::failure::Failure;

/// How long to wait for a node.
const LIMIT: Duration = Duration::from_millis(500);

/// How many nodes are asked at a time.
const ASKED: usize = 3;

/// Whom to ask.
enum Source {
    Connected(Connection, Box<str>),
    Address(Arc<Dialer>),
}

impl Source {
    async fn slots(self) -> Result<Vec<Range>, Failure> {
        let asking = async {
            match self {
                Self::Connected(mut connection, host) => slots_of(&mut connection, &host).await,
                Self::Address(dialer) => {
                    let (mut connection, _) = dialer.connect(LIMIT).await?;
                    slots_of(&mut connection, dialer.host()).await
                }
            }
        };
        let answer = tokio::time::timeout(LIMIT, asking).await;
        answer.unwrap_or_else(|_| Err(Failure::no_reply()))
    }
}

/// The first answer. Asks over the lanes that are connected first, then all other `nodes`, and the address that the
/// client was `given`.
pub(super) async fn ask_for_slots(
    lanes: Vec<Arc<Lane>>,
    mut nodes: Vec<Arc<ClusterNode>>,
    given: &Arc<Dialer>,
) -> Option<Vec<Range>> {
    let mut sources = Vec::new();
    for lane in lanes {
        if let Some(connected) = lane.connected() {
            sources.push(Source::Connected(connected.connection, lane.host().into()));
        }
    }
    fastrand::shuffle(&mut sources);
    fastrand::shuffle(&mut nodes);
    let others = nodes.iter().map(|node| node.dialer()).chain([given]);
    sources.extend(others.map(|dialer| Source::Address(Arc::clone(dialer))));
    while !sources.is_empty() {
        let some = sources.drain(..ASKED.min(sources.len()));
        let mut asked: FuturesUnordered<_> = some.map(Source::slots).collect();
        while let Some(answer) = asked.next().await {
            if let Ok(ranges) = answer {
                return Some(ranges);
            }
        }
    }
    None
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
