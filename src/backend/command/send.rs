//! Sends a command over a lane.
//!
//! 1. A command was certainly not sent if there was no connection, or if the [knock](is_cut) before it was refused. After
//!    any other failure it may have run, unless the error of the server says that it did not.
//! 2. `ASKING` counts for the next command of its connection, which other tasks use too. So both are sent as one pipeline.
//! 3. A server that forgot a script refuses all calls of it that are in flight. The first of them sends the text, the
//!    others send their digest again behind it. A call that is refused once more sends the text, too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};

use super::in_flight::InFlight;
use super::lane::{Connected, Lane};
use crate::backend::connect::{MasterTerm, Redirect};
use crate::backend::failure::{Class, Failure};
use crate::clock::Moment;
use crate::script::{Call, Encoded, Reply};

/// A shorter silence does not show that the connection or the server is broken.
pub(crate) const MIN_SILENCE: Duration = Duration::from_millis(100);

/// After a silence of `limit`, replaces the connection so that the next try uses another one, if `limit` is at least
/// `min_silence`.
fn give_up(lane: &Lane, generation: Option<u64>, limit: Duration, min_silence: Duration) {
    if limit < min_silence {
        return;
    }
    lane.overdue();
    let silent = lane.is_silent_for(limit);
    if let Some(generation) = generation.filter(|_| silent) {
        lane.replace(generation);
    }
}

/// A reply, and when its command was sent.
#[derive(Debug, Clone)]
pub(crate) struct TimedReply {
    pub(crate) reply: Reply,
    /// Just before the send: validity counts from here.
    pub(crate) sent_at: Moment,
    /// How long the server had been up by then; none where it is not asked.
    pub(crate) server_age: Option<Duration>,
}

pub(crate) type CommandResult = Result<TimedReply, Failure>;

/// A command in flight. It runs once, and each clone may await it.
///
/// It has no time-out of its own: end it by [`Pending::overdue`], or await it [within](Pending::within) a time.
#[derive(Clone)]
pub(crate) struct Pending {
    outcome: InFlight<CommandResult>,
    lane: Arc<Lane>,
}

impl Pending {
    /// Sends a `PING`, to find out whether the connection of a lane still works.
    pub(crate) fn knock(lane: &Arc<Lane>) -> Self {
        let sending = send_on(Arc::clone(lane), Call::ping().encode());
        Self::of(sending.boxed(), Arc::clone(lane))
    }

    pub(crate) fn of(sending: BoxFuture<'static, CommandResult>, lane: Arc<Lane>) -> Self {
        let outcome = InFlight::new(sending);
        Self { outcome, lane }
    }

    /// Sends it now instead of when the task of its connection runs. May wake any task, so no lock may be held.
    pub(crate) fn send_at_once(mut self) {
        let _ = (&mut self).now_or_never();
        self.lane.drive();
    }

    /// Ends it: no reply came within a command time-out.
    pub(crate) fn overdue(&self) {
        self.lane.overdue();
        self.outcome.end_with(Err(Failure::no_reply()));
    }

    /// Waits for the reply for at most `limit`.
    pub(crate) async fn within(mut self, limit: Duration) -> CommandResult {
        let timers = self.lane.timers().clone();
        let outcome = timers.within(limit, &mut self).await;
        outcome.unwrap_or_else(|| {
            self.overdue();
            Err(Failure::no_reply())
        })
    }

    /// As [`within`](Self::within), for a command that is repeated: if this connection was silent for `limit`, and `limit` is
    /// at least `min_silence`, the next try uses another connection.
    pub(crate) async fn within_one_try(
        mut self,
        limit: Duration,
        min_silence: Duration,
    ) -> CommandResult {
        let (lane, generation) = (Arc::clone(&self.lane), self.lane.generation());
        let timers = lane.timers().clone();
        let outcome = timers.within(limit, &mut self).await;
        let outcome = outcome.unwrap_or_else(|| {
            self.outcome.end_with(Err(Failure::no_reply()));
            Err(Failure::no_reply())
        });
        if matches!(&outcome, Err(failure) if failure.is_unanswered()) {
            give_up(&lane, generation, limit, min_silence);
        }
        outcome
    }
}

impl PartialEq for Pending {
    /// Whether both are the same command.
    fn eq(&self, other: &Self) -> bool {
        self.outcome.is_same(&other.outcome)
    }
}

impl Future for Pending {
    type Output = CommandResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CommandResult> {
        // A command may panic when polled after its runtime ended. It is unanswered then.
        let polling = AssertUnwindSafe(|| Pin::new(&mut self.outcome).poll(context));
        let polled = catch_unwind(polling).unwrap_or_else(|_| {
            self.overdue();
            Poll::Ready(Err(Failure::no_reply()))
        });
        if polled.is_pending() {
            // No lock is held here.
            self.lane.drive_if_full();
        }
        polled
    }
}

/// A command that failed.
pub(crate) struct FailedSend {
    pub(crate) failure: Failure,
    /// Where to send it instead, if it did not run.
    pub(crate) redirect: Option<Redirect>,
}

impl From<Failure> for FailedSend {
    fn from(failure: Failure) -> Self {
        let redirect = None;
        Self { failure, redirect }
    }
}

/// Sends a call over one lane, without following redirects.
pub(crate) async fn send_on(lane: Arc<Lane>, mut call: Encoded) -> CommandResult {
    let sent = once(&lane, &mut call).await;
    sent.map_err(|wrong| wrong.failure)
}

/// Sends a call over a lane.
pub(crate) async fn once(lane: &Lane, call: &mut Encoded) -> Result<TimedReply, FailedSend> {
    let mut connected = connected(lane).await?;
    call.publish_as(lane.publish());
    match connected.term.take() {
        None => exchanged(lane, connected, call).await,
        Some(term) => Box::pin(exchanged_in(term, lane, connected, call)).await,
    }
}

/// Sends a call to a master that may change. A reply after the change does not count.
async fn exchanged_in(
    mut term: MasterTerm,
    lane: &Lane,
    connected: Connected,
    call: &Encoded,
) -> Result<TimedReply, FailedSend> {
    let answered = term.within(exchanged(lane, connected, call)).await;
    answered.unwrap_or_else(|| Err(Failure::no_reply().into()))
}

/// Sends a call on a connection of `lane`.
async fn exchanged(
    lane: &Lane,
    connected: Connected,
    call: &Encoded,
) -> Result<TimedReply, FailedSend> {
    let Connected {
        mut connection,
        generation,
        server,
        ..
    } = connected;
    let mut sent_at = lane.now();
    let mut result = connection.send(call.cmd(), || lane.is_full()).await;
    if is_unknown_script(&result) {
        let on = (&mut *connection, generation);
        let sending = send_text(lane, on, call, (result, sent_at), false);
        (result, sent_at) = Box::pin(sending).await;
    }
    let mut answer = heard(lane, generation, result, sent_at)?;
    answer.server_age = server.map(|server| server.up_since.until(sent_at));
    Ok(answer)
}

/// Sends a call for a slot that is migrating to the node of the lane.
pub(crate) async fn asking_once(lane: &Lane, call: &mut Encoded) -> Result<TimedReply, FailedSend> {
    let Connected {
        mut connection,
        generation,
        ..
    } = connected(lane).await?;
    call.publish_as(lane.publish());
    let sent_at = lane.now();
    let result = exchange(&mut connection, call.cmd(), true).await;
    let sent = (result, sent_at);
    let on = (&mut *connection, generation);
    let (result, sent_at) = send_text(lane, on, call, sent, true).await;
    heard(lane, generation, result, sent_at)
}

/// A connection that is not known to be cut, or to lead to an old master.
pub(super) async fn connected(lane: &Lane) -> Result<Connected, Failure> {
    loop {
        let mut connected = match lane.connected() {
            Some(connected) => connected,
            None => Box::pin(lane.connect()).await?,
        };
        let mut cut = false;
        if lane.needs_knock() {
            cut = Box::pin(is_cut(&mut connected.connection)).await;
            if !cut {
                lane.knocked();
            }
        }
        if !cut && !connected.term.as_ref().is_some_and(MasterTerm::is_over) {
            return Ok(connected);
        }
        lane.replace(connected.generation);
    }
}

/// Reads a result, and notes on the lane that something was received.
pub(super) fn heard(
    lane: &Lane,
    generation: u64,
    result: RedisResult<Value>,
    sent_at: Moment,
) -> Result<TimedReply, FailedSend> {
    let reply = match result.and_then(said) {
        Ok(reply) => reply,
        Err(error) => return Err(refused(lane, generation, error)),
    };
    lane.heard();
    Ok(TimedReply {
        reply,
        sent_at,
        server_age: None,
    })
}

/// Classifies an error, and replaces the connection if it is the reason.
fn refused(lane: &Lane, generation: u64, error: RedisError) -> FailedSend {
    let redirect = Redirect::of(&error, lane.host());
    let failure = Failure::from(error);
    match failure.class {
        Class::Unreached | Class::Unanswered => lane.replace(generation),
        Class::Demoted => {
            lane.heard();
            lane.leave(generation);
        }
        _ => lane.heard(),
    }
    FailedSend { failure, redirect }
}

/// Sends the text of the script on the same connection if the server did not know its digest. Returns the answer, and
/// when its own command was sent.
async fn send_text(
    lane: &Lane,
    (connection, generation): (&mut MultiplexedConnection, u64),
    call: &Encoded,
    (mut result, mut sent_at): (RedisResult<Value>, Moment),
    asking: bool,
) -> (RedisResult<Value>, Moment) {
    let Some(digest) = call.digest().filter(|_| is_unknown_script(&result)) else {
        return (result, sent_at);
    };
    if lane.has_sent_text(digest, generation, sent_at) {
        sent_at = lane.now();
        result = exchange(connection, call.cmd(), asking).await;
    }
    if is_unknown_script(&result)
        && let Some(text) = call.with_text()
    {
        lane.sends_text(digest, generation);
        sent_at = lane.now();
        result = exchange(connection, &text, asking).await;
    }
    (result, sent_at)
}

/// Sends a command and returns its reply; with `asking` behind `ASKING`, in one pipeline (rule 2).
async fn exchange(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
    asking: bool,
) -> RedisResult<Value> {
    if !asking {
        return connection.send_packed_command(cmd).await;
    }
    let mut both = redis::Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(cmd.clone());
    let replies = connection.send_packed_commands(&both, 1, 1).await?;
    // The pipeline returns one reply.
    Ok(replies.into_iter().next().unwrap_or(Value::Nil))
}

/// A `PING` without a reply.
static KNOCK: LazyLock<Cmd> = LazyLock::new(|| {
    let mut knock = redis::cmd("PING");
    knock.set_no_response(true);
    knock
});

/// Whether the connection's driver has ended, so that nothing is sent any more.
///
/// redis-rs only queues a command without a reply, so it fails only if there is no driver. A command with a reply fails
/// with the same error if the driver took it and then ended.
async fn is_cut(connection: &mut MultiplexedConnection) -> bool {
    connection.send_packed_command(&KNOCK).await.is_err()
}

/// Sends a call on a connection that belongs to no lane.
pub(crate) async fn round_trip(
    connection: &mut MultiplexedConnection,
    call: &Call<'_>,
) -> Result<Reply, Failure> {
    let call = call.encode();
    let mut result = connection.send_packed_command(call.cmd()).await;
    if is_unknown_script(&result)
        && let Some(text) = call.with_text()
    {
        result = connection.send_packed_command(&text).await;
    }
    read(result)
}

/// Reads a result.
pub(super) fn read(result: RedisResult<Value>) -> Result<Reply, Failure> {
    Ok(result.and_then(said)?)
}

/// Reads a value, which may itself be an error.
fn said(value: Value) -> RedisResult<Reply> {
    match Reply::from_value(&value) {
        Reply::Other => value.extract_error().map(|_| Reply::Other),
        reply => Ok(reply),
    }
}

pub(super) fn is_unknown_script(result: &RedisResult<Value>) -> bool {
    matches!(result, Ok(reply) if says_unknown_script(reply))
}

fn says_unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::IntoConnectionInfo;

    /// A driver that takes a command and ends before it replies looks just like a driver that had ended before.
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
        assert!(Failure::from(result.and_then(Value::extract_error).unwrap_err()).is_unanswered());
        assert!(is_cut(&mut connection).await);
    }
}
