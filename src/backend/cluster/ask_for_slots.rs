//! Asks the nodes of a cluster which node has which slots.
//!
//! Open connections are asked first. Only when none of them answers, new ones are made, and the first that answers is kept
//! for the next question: while a master is down, its clients do not connect to the others again and again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use crate::backend::command::{Lane, LaneConfig};
use crate::backend::connect::{ClusterNode, Connection, Dialer, Range, ranges};
use crate::backend::failure::Failure;

/// After how long without an answer the next node is asked, too.
const ASK_NEXT: Duration = Duration::from_millis(100);

/// A connection that was made for a question and answered it.
pub(crate) struct SpareConnection {
    connection: Connection,
    dialer: Arc<Dialer>,
}

/// An answer, with the connection if it was made for the question.
type SlotsAnswer = (Vec<Range>, Option<SpareConnection>);

type SlotsQuestion<'a> = BoxFuture<'a, Option<SlotsAnswer>>;

/// The first answer. Asks over `lanes` that are connected and over the `spare` connection; then all `nodes`, and the
/// address that the client was given, over new connections.
pub(super) async fn ask_for_slots(
    config: &LaneConfig,
    lanes: &[Arc<Lane>],
    nodes: &[Arc<ClusterNode>],
    spare: &mut Option<SpareConnection>,
) -> Option<Vec<Range>> {
    let limit = config.command_timeout;
    let mut open: Vec<SlotsQuestion<'_>> = Vec::new();
    for lane in lanes {
        if let Some(mut connected) = lane.connected() {
            let asking = async move {
                let slots = slots_within(limit, &mut connected.connection, lane.host());
                Some((slots.await?, None))
            };
            open.push(asking.boxed());
        }
    }
    fastrand::shuffle(&mut open);
    if let Some(mut kept) = spare.take() {
        let asking = async move {
            let slots = slots_within(limit, &mut kept.connection, kept.dialer.host());
            Some((slots.await?, Some(kept)))
        };
        open.insert(0, asking.boxed());
    }
    let mut answer = first_of(open).await;
    if answer.is_none() {
        let all = nodes.iter().map(|node| node.dialer());
        let mut made: Vec<_> = all
            .chain([&config.dialer])
            .map(|dialer| by_new_connection(config, dialer).boxed())
            .collect();
        fastrand::shuffle(&mut made);
        answer = first_of(made).await;
    }
    let (ranges, used) = answer?;
    *spare = used;
    Some(ranges)
}

/// Asks one after the other until one has an answer. A node that is slow delays the others by [`ASK_NEXT`].
async fn first_of(questions: Vec<SlotsQuestion<'_>>) -> Option<SlotsAnswer> {
    let mut questions = questions.into_iter();
    let mut asked = FuturesUnordered::new();
    loop {
        asked.extend(questions.next());
        tokio::select! {
            biased;
            Some(answer) = asked.next() => {
                if answer.is_some() {
                    return answer;
                }
            }
            () = tokio::time::sleep(ASK_NEXT), if questions.len() > 0 => {}
            else => return None,
        }
    }
}

/// Asks the node to which `dialer` connects.
async fn by_new_connection(config: &LaneConfig, dialer: &Arc<Dialer>) -> Option<SlotsAnswer> {
    let (mut connection, _) = dialer.connect(config.connect_timeout).await.ok()?;
    let slots = slots_within(config.command_timeout, &mut connection, dialer.host()).await?;
    let spare = SpareConnection {
        connection,
        dialer: Arc::clone(dialer),
    };
    Some((slots, Some(spare)))
}

async fn slots_within(
    limit: Duration,
    connection: &mut MultiplexedConnection,
    host: &str,
) -> Option<Vec<Range>> {
    let answer = timeout(limit, slots_of(connection, host)).await;
    answer.ok()?.ok()
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
