//! How commands reach Redis: lanes for commands, one connection for subscriptions.
//!
//! Callers' commands go over a lane of the caller's own runtime, the keeper's over a lane of the
//! keeper's thread, so that neither waits for the other and a blocked runtime delays only itself.

mod address;
pub(crate) mod dial;
pub(crate) mod failure;
mod in_flight;
pub(crate) mod lane;
mod pace;
pub(crate) mod sentinel;
mod switches;
pub(crate) mod timers;
#[cfg(feature = "tls")]
mod tls;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
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
use self::lane::Connected;
pub(crate) use self::lane::{Lane, LaneConfig};
pub(crate) use self::pace::Pace;
use self::switches::Turn;
pub(crate) use self::timers::Timers;
use crate::clock::Moment;
use crate::error::{ConfigError, Error};
use crate::script::{Call, Encoded, Reply};

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
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what the call borrows is free again"
    )]
    pub(crate) fn start(lane: &Arc<Lane>, call: Call<'_>) -> Self {
        Self {
            outcome: InFlight::new(send(Arc::clone(lane), call.encode()).boxed()),
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
        let timers = self.lane.timers().clone();
        let outcome = timers.within(limit, &mut self).await;
        outcome.unwrap_or_else(|| {
            self.overdue();
            Err(Failure::no_reply())
        })
    }
}

impl PartialEq for Pending {
    /// Whether they are the same command.
    fn eq(&self, other: &Self) -> bool {
        self.outcome.is_same(&other.outcome)
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

/// A lane for each runtime.
type Lanes = Vec<(Id, Arc<Lane>)>;

/// The lanes of one client.
pub(crate) struct Backend {
    config: LaneConfig,
    /// The callers' lanes, one per runtime: a few at most. None once the client is closed, and then for ever.
    lanes: Mutex<Option<Lanes>>,
}

impl Backend {
    pub(crate) fn new(config: LaneConfig) -> Self {
        Self {
            config,
            lanes: Mutex::new(Some(Vec::new())),
        }
    }

    pub(crate) fn config(&self) -> &LaneConfig {
        &self.config
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.config.timers
    }

    /// The lane of the runtime this is called on; opened at first use, over with the runtime. Fails where a
    /// connection could not live, and when the client is closed.
    pub(crate) fn callers_lane(&self) -> Result<Arc<Lane>, Error> {
        let runtime = Handle::try_current().map_err(|_| ConfigError::NoRuntime)?;
        if let Some(lane) = self.lane_of(runtime.id())? {
            return Ok(lane);
        }
        if !drives_connections() {
            return Err(ConfigError::NoRuntime.into());
        }
        self.open_lane(&runtime)
    }

    fn lane_of(&self, id: Id) -> Result<Option<Arc<Lane>>, Error> {
        let lanes = self.lanes.lock();
        let mut lanes = lanes.as_ref().ok_or(Error::Closed)?.iter();
        let lane = lanes.find(|(known, lane)| *known == id && !lane.is_over());
        Ok(lane.map(|(_, lane)| Arc::clone(lane)))
    }

    fn open_lane(&self, runtime: &Handle) -> Result<Arc<Lane>, Error> {
        let mut lanes = self.lanes.lock();
        let lanes = lanes.as_mut().ok_or(Error::Closed)?;
        lanes.retain(|(_, lane)| !lane.is_over());
        // Another thread may have been quicker.
        if let Some((_, lane)) = lanes.iter().find(|(known, _)| *known == runtime.id()) {
            return Ok(Arc::clone(lane));
        }
        let lane = Lane::open(self.config.clone(), runtime);
        if lane.is_over() {
            // The runtime is being shut down, and takes no more tasks.
            return Err(ConfigError::NoRuntime.into());
        }
        lanes.push((runtime.id(), Arc::clone(&lane)));
        Ok(lane)
    }

    /// Another server is the master now: no lane leads to the old one any more.
    pub(crate) fn switch(&self) {
        for (_, lane) in self.lanes.lock().iter().flatten() {
            lane.switch();
        }
    }

    /// Ends all of the callers' lanes; there are no new ones. The keeper's runtime, and so the timers, end next.
    pub(crate) fn close(&self) {
        self.config.timers.stop();
        let lanes = self.lanes.lock().take();
        for (_, lane) in lanes.into_iter().flatten() {
            lane.close();
        }
    }
}

/// Whether the runtime that this is called on has timers and I/O. The only way to find out is to use them.
fn drives_connections() -> bool {
    let using = || {
        drop(tokio::time::sleep(Duration::ZERO));
        // An error, as when there are no files left, is no panic: only a missing driver panics.
        #[cfg(unix)]
        drop(tokio::net::UnixDatagram::unbound());
    };
    catch_unwind(using).is_ok()
}

/// One call on a lane, on a new connection when the one it had is known to have been cut before.
///
/// Only this is certain not to have been sent: what had no connection, and what came behind a
/// [knock](is_cut) that was refused. Whatever else fails may have been executed.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
fn send(lane: Arc<Lane>, call: Encoded) -> impl Future<Output = Outcome> + Send {
    async move {
        let mut connected = loop {
            let mut connected = match lane.connected() {
                Some(connected) => connected,
                // Boxed, as all that is rare: what is in flight is allocated.
                None => Box::pin(lane.connect()).await?,
            };
            let cut = lane.is_quiet() && Box::pin(is_cut(&mut connected.connection)).await;
            if !cut && !connected.turn.as_ref().is_some_and(Turn::is_over) {
                break connected;
            }
            lane.replace(connected.generation);
        };
        match connected.turn.take() {
            None => exchange(&lane, connected, &call).await,
            Some(turn) => Box::pin(exchange_in(turn, &lane, connected, &call)).await,
        }
    }
}

/// One call to a master that may change: nothing that comes from it then is an answer.
async fn exchange_in(mut turn: Turn, lane: &Lane, connected: Connected, call: &Encoded) -> Outcome {
    let answered = turn.within(exchange(lane, connected, call)).await;
    answered.unwrap_or_else(|| Err(Failure::no_reply()))
}

/// One call on a connection of `lane`.
async fn exchange(lane: &Lane, connected: Connected, call: &Encoded) -> Outcome {
    let Connected {
        mut connection,
        generation,
        ..
    } = connected;
    let mut sent_at = lane.now();
    let mut result = connection.send_packed_command(call.cmd()).await;
    if goes_on(call, &result) {
        let going_on = go_on(lane, &mut connection, call, result);
        (result, sent_at) = Box::pin(going_on).await;
    }
    match read(result) {
        Ok(reply) => {
            lane.heard();
            Ok(Answer { reply, sent_at })
        }
        Err(failure) => {
            match failure.class {
                Class::Unreached | Class::Unanswered => lane.replace(generation),
                Class::Demoted => {
                    lane.heard();
                    lane.leave(generation);
                }
                _ => lane.heard(),
            }
            Err(failure)
        }
    }
}

/// Whether a reply is not the answer yet.
fn goes_on(call: &Encoded, result: &RedisResult<Value>) -> bool {
    is_unknown_script(result) || matches!(result, Ok(reply) if call.goes_on(reply))
}

/// Asks on, on the same connection, until there is an answer; and when its own command was sent.
async fn go_on(
    lane: &Lane,
    connection: &mut MultiplexedConnection,
    call: &Encoded,
    mut result: RedisResult<Value>,
) -> (RedisResult<Value>, Moment) {
    let mut sent_at = lane.now();
    let next = call.next().filter(|_| !is_unknown_script(&result));
    if let Some(next) = &next {
        result = connection.send_packed_command(next.cmd()).await;
    }
    if is_unknown_script(&result) {
        sent_at = lane.now();
        let call = next.as_ref().unwrap_or(call);
        result = again_with_text(connection, call, result).await;
    }
    (result, sent_at)
}

/// A question whose answer nobody awaits.
static KNOCK: LazyLock<Cmd> = LazyLock::new(|| {
    let mut knock = redis::cmd("PING");
    knock.set_no_response(true);
    knock
});

/// Whether the connection's driver has ended, so that nothing is sent on it any more.
///
/// The library puts a command without an answer into the driver's queue and is done: it fails only when
/// there is no driver. A command with an answer fails with the same error when the driver took it and ended.
async fn is_cut(connection: &mut MultiplexedConnection) -> bool {
    connection.send_packed_command(&KNOCK).await.is_err()
}

/// One call on a connection that belongs to no lane.
pub(crate) async fn round_trip(
    connection: &mut MultiplexedConnection,
    call: &Call<'_>,
) -> Result<Reply, Failure> {
    let call = call.encode();
    let mut result = connection.send_packed_command(call.cmd()).await;
    if is_unknown_script(&result) {
        result = again_with_text(connection, &call, result).await;
    }
    read(result)
}

/// A second round trip, since the server does not know the script.
async fn again_with_text(
    connection: &mut MultiplexedConnection,
    call: &Encoded,
    unknown: RedisResult<Value>,
) -> RedisResult<Value> {
    match call.with_text() {
        Some(text) => connection.send_packed_command(&text).await,
        None => unknown,
    }
}

fn read(result: RedisResult<Value>) -> Result<Reply, Failure> {
    let value = result.and_then(Value::extract_error)?;
    Ok(Reply::from_value(&value))
}

fn is_unknown_script(result: &RedisResult<Value>) -> bool {
    matches!(result, Ok(Value::ServerError(error)) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::IntoConnectionInfo;

    /// The driver ends between the moment it takes a command and the one its sender looks for the answer:
    /// that looks just like a driver that had ended before.
    #[tokio::test]
    async fn only_a_refused_knock_proves_that_nothing_was_sent() {
        let (near, _far) = tokio::io::duplex(1024);
        let info = "redis://127.0.0.1/".into_connection_info().unwrap();
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let made = MultiplexedConnection::new(&settings, near).await;
        let (mut connection, driver) = made.unwrap();
        assert!(!is_cut(&mut connection).await);
        drop(driver);
        let result = connection.send_packed_command(&redis::cmd("PING")).await;
        assert!(read(result).unwrap_err().is_unanswered());
        assert!(is_cut(&mut connection).await);
    }
}
