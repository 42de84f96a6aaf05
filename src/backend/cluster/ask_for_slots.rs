//! Asks the nodes of a cluster which node has which slots.
//!
//! Open connections are asked first. Only when none of them answers, new ones are made, and the first that answers is kept
//! for the next question: while a master is down, its clients do not connect to the others again and again. A node that
//! refuses commands for now is asked last: one that was cut off from its peers still names itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use crate::backend::command::{Lane, LaneConfig};
use crate::backend::connect::{ClusterNode, Connection, Dialer, Range, slots_of};

/// After how long without an answer the next node is asked, too.
const ASK_NEXT: Duration = Duration::from_millis(100);

/// A connection that was made for a question and answered it, and what made it.
pub(crate) type SpareConnection = (Connection, Arc<Dialer>);

/// An answer, with the connection if it was made for the question.
type SlotsAnswer = (Vec<Range>, Option<SpareConnection>);

type SlotsQuestion<'a> = BoxFuture<'a, Option<SlotsAnswer>>;

/// The first answer. Asks over `lanes` that are connected and over the `spare` connection; then all `nodes` over new
/// connections; then the address that the client was given, which may lead to another cluster by now; and at last the
/// nodes that may be cut off from the others.
pub(super) async fn ask_for_slots(
    config: &LaneConfig,
    lanes: &[Arc<Lane>],
    nodes: &[Arc<ClusterNode>],
    spare: &mut Option<SpareConnection>,
) -> Option<Vec<Range>> {
    let limit = config.command_timeout;
    let (cut_off, nodes): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.is_cut_off());
    let mut open: Vec<SlotsQuestion<'_>> = Vec::new();
    for lane in lanes {
        let may_know = lane.node().is_none_or(|node| !node.is_cut_off());
        if let Some(mut connected) = lane.connected().filter(|_| may_know) {
            let asking = async move {
                let slots = slots_within(limit, &mut connected.connection, lane.host());
                Some((slots.await?, None))
            };
            open.push(asking.boxed());
        }
    }
    fastrand::shuffle(&mut open);
    let is_cut_off =
        |dialer: &Arc<Dialer>| cut_off.iter().any(|node| Arc::ptr_eq(&node.dialer, dialer));
    if let Some((mut connection, dialer)) = spare.take_if(|(_, dialer)| !is_cut_off(dialer)) {
        let asking = async move {
            let slots = slots_within(limit, &mut connection, dialer.host());
            Some((slots.await?, Some((connection, dialer))))
        };
        open.insert(0, asking.boxed());
    }
    let mut answer = first_of(open).await;
    if answer.is_none() {
        answer = by_new_connections(config, &nodes).await;
    }
    if answer.is_none() {
        answer = by_new_connection(config.clone()).await;
    }
    if answer.is_none() {
        answer = by_new_connections(config, &cut_off).await;
    }
    for node in cut_off {
        node.set_cut_off(false);
    }
    let (ranges, used) = answer?;
    *spare = used;
    Some(ranges)
}

async fn by_new_connections(
    config: &LaneConfig,
    nodes: &[&Arc<ClusterNode>],
) -> Option<SlotsAnswer> {
    let asking = nodes.iter().map(|node| by_new_connection(config.to(node)));
    let mut asking: Vec<_> = asking.map(FutureExt::boxed).collect();
    fastrand::shuffle(&mut asking);
    first_of(asking).await
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

/// Asks the node to which `config` leads.
async fn by_new_connection(config: LaneConfig) -> Option<SlotsAnswer> {
    let mut connection = config.connect(0).await.ok()?.connection;
    let limit = config.command_timeout;
    let slots = slots_within(limit, &mut connection, config.dialer.host()).await?;
    Some((slots, Some((connection, config.dialer))))
}

async fn slots_within(
    limit: Duration,
    connection: &mut MultiplexedConnection,
    host: &str,
) -> Option<Vec<Range>> {
    let answer = timeout(limit, slots_of(connection, host)).await;
    answer.ok()?.ok()
}
