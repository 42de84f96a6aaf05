//! How commands reach Redis: lanes for commands, one connection for subscriptions.
//!
//! Callers' commands go over a lane of the caller's own runtime, the keeper's over a lane of the
//! keeper's thread, so that neither waits for the other and a blocked runtime delays only itself.

pub(crate) mod dial;
pub(crate) mod failure;
mod in_flight;
pub(crate) mod lane;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};

pub(crate) use self::dial::Dialer;
pub(crate) use self::failure::{Class, Failure, TOO_OLD, is_unknown_command};
use self::in_flight::InFlight;
pub(crate) use self::lane::{Lane, LaneConfig};
use crate::clock::Moment;
use crate::script::{Call, Reply};

/// A reply, and when its command was sent.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// Just before the send: validity is counted from here.
    pub(crate) sent_at: Moment,
}

pub(crate) type Outcome = Result<Answer, Failure>;

/// A command in flight. Whoever holds a clone may await it; it runs once.
///
/// The reply may take for ever: whoever counts the time says so by [`Pending::overdue`], or awaits it
/// [within](Pending::within) a time.
#[derive(Clone)]
pub(crate) struct Pending {
    outcome: InFlight<Outcome>,
    lane: Arc<Lane>,
}

impl Pending {
    /// Starts `call` on `lane`. It is sent when the result is first polled.
    pub(crate) fn start(lane: &Arc<Lane>, call: Call) -> Self {
        Self {
            outcome: InFlight::new(send(Arc::clone(lane), call).boxed()),
            lane: Arc::clone(lane),
        }
    }

    /// No reply came within a command time-out: whoever awaits it hears that.
    pub(crate) fn overdue(&self) {
        self.lane.overdue();
        self.outcome.end_with(Err(Failure::no_reply()));
    }

    /// Waits for the reply for at most `limit`.
    pub(crate) async fn within(mut self, limit: Duration) -> Outcome {
        let outcome = tokio::time::timeout(limit, &mut self).await;
        outcome.unwrap_or_else(|_| {
            self.overdue();
            Err(Failure::no_reply())
        })
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        // A command that was started on a runtime that is gone may panic when polled; it is unanswered then.
        let polling = AssertUnwindSafe(|| Pin::new(&mut self.outcome).poll(context));
        catch_unwind(polling).unwrap_or_else(|_| {
            self.overdue();
            Poll::Ready(Err(Failure::no_reply()))
        })
    }
}

/// The lanes of one client.
pub(crate) struct Backend {
    config: LaneConfig,
    /// The callers' lanes, one per runtime: a few at most.
    lanes: Mutex<Vec<(Id, Arc<Lane>)>>,
}

impl Backend {
    pub(crate) fn new(config: LaneConfig) -> Self {
        Self {
            config,
            lanes: Mutex::default(),
        }
    }

    pub(crate) fn config(&self) -> &LaneConfig {
        &self.config
    }

    /// The lane of the runtime this is called on; opened at first use, closed with the runtime.
    pub(crate) fn callers_lane(&self) -> Option<Arc<Lane>> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        let mut lanes = self.lanes.lock();
        if let Some((_, lane)) = lanes.iter().find(|(known, _)| *known == id) {
            return Some(Arc::clone(lane));
        }
        lanes.retain(|(_, lane)| !lane.is_closed());
        let lane = Lane::open(self.config.clone(), &runtime);
        lanes.push((id, Arc::clone(&lane)));
        Some(lane)
    }

    /// Ends all of the callers' lanes.
    pub(crate) fn close(&self) {
        for (_, lane) in self.lanes.lock().drain(..) {
            lane.close();
        }
    }
}

/// One call on a lane, on a new connection when the one it had turns out to have been cut before.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
fn send(lane: Arc<Lane>, call: Call) -> impl Future<Output = Outcome> + Send {
    async move {
        let mut cut_before = false;
        loop {
            let (mut connection, generation) = match lane.connected() {
                Some(connected) => connected,
                // Apart, as all that is rare: what is in flight is allocated.
                None => Box::pin(lane.connect()).await?,
            };
            let mut sent_at = lane.now();
            let result = match exchange(&mut connection, call.cmd()).await {
                Ok(result) if is_unknown_script(&result) => {
                    sent_at = lane.now();
                    Box::pin(again_with_text(&mut connection, &call, result)).await
                }
                result => result,
            };
            let failure = match result.and_then(read) {
                Ok(reply) => {
                    lane.heard();
                    return Ok(Answer { reply, sent_at });
                }
                Err(failure) => failure,
            };
            if !failure.is_of_connection() {
                lane.heard();
                return Err(failure);
            }
            lane.replace(Some(generation));
            if cut_before || failure.class != Class::Unreached {
                return Err(failure);
            }
            cut_before = true;
        }
    }
}

/// One call on a connection that belongs to no lane.
pub(crate) async fn round_trip(
    connection: &mut MultiplexedConnection,
    call: &Call,
) -> Result<Reply, Failure> {
    let mut result = exchange(connection, call.cmd()).await?;
    if is_unknown_script(&result) {
        result = again_with_text(connection, call, result).await?;
    }
    read(result)
}

/// A second round trip, since the server does not know the script.
async fn again_with_text(
    connection: &mut MultiplexedConnection,
    call: &Call,
    unknown: RedisResult<Value>,
) -> Result<RedisResult<Value>, Failure> {
    match call.with_text() {
        Some(text) => exchange(connection, &text).await,
        None => Ok(unknown),
    }
}

fn read(result: RedisResult<Value>) -> Result<Reply, Failure> {
    let value = result.and_then(Value::extract_error)?;
    Ok(Reply::from_value(&value))
}

/// Sends a command and waits for its reply. A connection whose driver has ended says so at the first
/// poll, before anything is sent; any later failure leaves open whether the command was executed.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
fn exchange(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
) -> impl Future<Output = Result<RedisResult<Value>, Failure>> + Send {
    async move {
        let mut exchanging = pin!(connection.send_packed_command(cmd));
        let mut polls = 0_u32;
        let result = poll_fn(|context| {
            polls = polls.saturating_add(1);
            exchanging.as_mut().poll(context)
        })
        .await;
        match result {
            Err(error) if polls == 1 => Err(Failure::unsent(error)),
            result => Ok(result),
        }
    }
}

fn is_unknown_script(result: &RedisResult<Value>) -> bool {
    matches!(result, Ok(Value::ServerError(error)) if error.kind() == Some(ServerErrorKind::NoScript))
}
