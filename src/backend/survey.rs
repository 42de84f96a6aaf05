//! Asking the nodes of a cluster which slots are where.

use std::sync::Arc;
use std::time::Duration;

use super::drive::Connection;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::dial::Dialer;
use super::failure::Failure;
use super::fleet::Fleet;
use super::redirect::Range;
use super::send::slots_of;

/// How long a node has to answer.
const LIMIT: Duration = Duration::from_millis(500);

/// So many nodes are asked at a time; the first answer counts.
const ASKED: usize = 3;

/// Who can be asked.
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

/// What the first node says that answers: those that `fleet` is connected to are asked first, then all that are known,
/// and those that the client was given.
pub(super) async fn survey(fleet: &Fleet, given: &Arc<Dialer>) -> Option<Vec<Range>> {
    let mut sources = Vec::new();
    for lane in fleet.lanes() {
        if let Some(connected) = lane.connected() {
            sources.push(Source::Connected(connected.connection, lane.host().into()));
        }
    }
    let mut others: Vec<_> = fleet.cluster().nodes();
    fastrand::shuffle(&mut sources);
    fastrand::shuffle(&mut others);
    let others = others.iter().map(|node| node.dialer()).chain([given]);
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
