//! How commands reach Redis: lanes for commands, one connection for subscriptions.
//!
//! Callers' commands go over a lane of the caller's own runtime, the keeper's over a lane of the
//! keeper's thread, so that neither waits for the other and a blocked runtime delays only itself.

pub(crate) mod dial;
pub(crate) mod failure;
mod in_flight;
pub(crate) mod lane;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};

pub(crate) use self::dial::Dialer;
pub(crate) use self::failure::{Class, Failure, TOO_OLD, is_unknown_command};
use self::in_flight::InFlight;
pub(crate) use self::lane::{Lane, LaneConfig};
use crate::clock::{Clock, Moment};
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
#[derive(Clone)]
pub(crate) struct Pending {
    outcome: InFlight<Outcome>,
    lane: Arc<Lane>,
}

impl Pending {
    /// Waits for the reply. It may take for ever: whoever counts the time says so by [`Pending::overdue`].
    pub(crate) fn outcome(&self) -> InFlight<Outcome> {
        self.outcome.clone()
    }

    /// No reply came within a command time-out: whoever awaits it hears that.
    pub(crate) fn overdue(&self) {
        self.lane.overdue();
        self.outcome.end_with(Err(Failure::no_reply()));
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

    /// Starts `call` on `lane`. It is sent when the result is first polled.
    pub(crate) fn start(&self, lane: &Arc<Lane>, call: Call) -> Pending {
        let sending = send(Arc::clone(lane), self.config.clock.clone(), call);
        Pending {
            outcome: InFlight::new(sending.boxed()),
            lane: Arc::clone(lane),
        }
    }

    /// Ends all of the callers' lanes.
    pub(crate) fn close(&self) {
        for (_, lane) in self.lanes.lock().drain(..) {
            lane.close();
        }
    }
}

/// One call on a lane, on a new connection when the one it had turns out to have been cut before.
async fn send(lane: Arc<Lane>, clock: Clock, call: Call) -> Outcome {
    let mut cut_before = false;
    loop {
        let (mut connection, generation) = match lane.connected() {
            Some(connected) => connected,
            // Apart, as all that is rare: what is in flight is allocated.
            None => Box::pin(lane.connect()).await?,
        };
        let mut sent_at = clock.now();
        let result = execute(&mut connection, &call, || sent_at = clock.now()).await;
        let failure = match result {
            Ok(reply) => {
                lane.heard(clock.now());
                return Ok(Answer { reply, sent_at });
            }
            Err(failure) => failure,
        };
        if !failure.is_of_connection() {
            lane.heard(clock.now());
            return Err(failure);
        }
        lane.replace(Some(generation));
        if cut_before || failure.class != Class::Unreached {
            return Err(failure);
        }
        cut_before = true;
    }
}

/// One call on a connection that belongs to no lane.
pub(crate) async fn round_trip(
    connection: &mut MultiplexedConnection,
    call: &Call,
) -> Result<Reply, Failure> {
    execute(connection, call, || {}).await
}

/// One round trip; a second one, told to `again`, when the server does not know the script.
async fn execute(
    connection: &mut MultiplexedConnection,
    call: &Call,
    again: impl FnOnce(),
) -> Result<Reply, Failure> {
    let mut result = exchange(connection, call.cmd()).await?;
    if is_unknown_script(&result)
        && let Some(text) = call.with_text()
    {
        again();
        result = Box::pin(exchange(connection, &text)).await?;
    }
    let value = result.and_then(Value::extract_error)?;
    Ok(Reply::from_value(&value))
}

/// Sends a command and waits for its reply. A connection whose driver has ended says so at the first
/// poll, before anything is sent; any later failure leaves open whether the command was executed.
async fn exchange(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
) -> Result<RedisResult<Value>, Failure> {
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

fn is_unknown_script(result: &RedisResult<Value>) -> bool {
    matches!(result, Ok(Value::ServerError(error)) if error.kind() == Some(ServerErrorKind::NoScript))
}
