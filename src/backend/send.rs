//! Sending a command: on a connection that is there, to whichever node of a cluster has its slot.
//!
//! 1. Only this is certain not to have been sent: what had no connection, and what came behind a [knock](is_cut) that was
//!    refused. Whatever else fails may have been executed, unless the server's answer says that it was not.
//! 2. A node that does not have the slot runs nothing and says who has it. The command goes there, up to [`HOPS`] times:
//!    nodes may point at each other while a cluster changes.
//! 3. `ASKING` counts for the next command of its connection, which others use, too. So both go as one pipeline.
//! 4. A server that forgot a script refuses all calls of it that are in flight. The first of them sends the text; the
//!    others send their digest again, behind the text. Only what is refused once more sends the text, too.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};

use super::class::Class;
use super::failure::Failure;
use super::fleet::Fleet;
use super::lane::{Connected, Lane};
use super::redirect::{Range, Redirect, ranges};
use super::switches::Turn;
use super::{Answer, Outcome};
use crate::clock::Moment;
use crate::script::{Call, Encoded, Reply};

/// So often a command follows a redirect.
const HOPS: usize = 5;

/// The pause before a command goes on, when nodes pointed at each other before.
const PAUSE: Duration = Duration::from_millis(10);

/// A command that failed.
pub(super) struct Wrong {
    pub(super) failure: Failure,
    /// Where to send it instead.
    redirect: Option<Redirect>,
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        let redirect = None;
        Self { failure, redirect }
    }
}

/// What can be sent, and sent elsewhere when it did not run.
pub(super) trait Message: Send {
    /// Sends it on a lane; with `asking` for a slot that is on its way to the lane's node (by 3).
    fn sent_on(
        &mut self,
        lane: &Lane,
        asking: bool,
    ) -> impl Future<Output = Result<Answer, Wrong>> + Send;
}

impl Message for Encoded {
    async fn sent_on(&mut self, lane: &Lane, asking: bool) -> Result<Answer, Wrong> {
        if asking {
            return Box::pin(asking_once(lane, self)).await;
        }
        once(lane, self).await
    }
}

/// One message, sent on the lane that is known for it, and where that leads.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
pub(super) fn send(
    fleet: Arc<Fleet>,
    lane: Arc<Lane>,
    mut message: impl Message,
) -> impl Future<Output = Outcome> + Send {
    async move {
        match message.sent_on(&lane, false).await {
            Ok(answer) => Ok(answer),
            Err(wrong) if !fleet.cluster().is_joined() => Err(wrong.failure),
            // Boxed, as all that is rare: what is in flight is allocated.
            Err(wrong) => Box::pin(follow(&fleet, message, wrong)).await,
        }
    }
}

/// One call on one lane, whatever that leads to.
pub(super) async fn send_on(lane: Arc<Lane>, mut call: Encoded) -> Outcome {
    let sent = once(&lane, &mut call).await;
    sent.map_err(|wrong| wrong.failure)
}

/// Sends a message where it was said to belong.
pub(super) async fn follow(fleet: &Fleet, mut message: impl Message, mut wrong: Wrong) -> Outcome {
    let cluster = fleet.cluster();
    for hop in 0..HOPS {
        let Some(redirect) = wrong.redirect.take() else {
            break;
        };
        let asking = redirect.asking;
        let lane = fleet.lane_to(&cluster.redirected(redirect));
        if hop > 1 {
            lane.timers().sleep(PAUSE).await;
        }
        match message.sent_on(&lane, asking).await {
            Ok(answer) => return Ok(answer),
            Err(next) => wrong = next,
        }
    }
    if wrong.failure.is_transient() {
        cluster.doubt();
    }
    Err(wrong.failure)
}

/// One call on a lane, on a new connection when the one it had is known to have been cut before.
async fn once(lane: &Lane, call: &mut Encoded) -> Result<Answer, Wrong> {
    let mut connected = connected(lane).await?;
    call.publish_as(lane.publish());
    match connected.turn.take() {
        None => exchanged(lane, connected, call).await,
        Some(turn) => Box::pin(exchanged_in(turn, lane, connected, call)).await,
    }
}

/// One call to a master that may change: nothing that comes from it then is an answer.
async fn exchanged_in(
    mut turn: Turn,
    lane: &Lane,
    connected: Connected,
    call: &Encoded,
) -> Result<Answer, Wrong> {
    let answered = turn.within(exchanged(lane, connected, call)).await;
    answered.unwrap_or_else(|| Err(Failure::no_reply().into()))
}

/// One call on a connection of `lane`.
async fn exchanged(lane: &Lane, connected: Connected, call: &Encoded) -> Result<Answer, Wrong> {
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

/// The same for a slot that is on its way to the node of the lane.
async fn asking_once(lane: &Lane, call: &mut Encoded) -> Result<Answer, Wrong> {
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

/// A connection that was not cut as far as is known.
pub(super) async fn connected(lane: &Lane) -> Result<Connected, Failure> {
    loop {
        let mut connected = match lane.connected() {
            Some(connected) => connected,
            None => Box::pin(lane.connect()).await?,
        };
        let cut = lane.is_quiet() && Box::pin(is_cut(&mut connected.connection)).await;
        if !cut && !connected.turn.as_ref().is_some_and(Turn::is_over) {
            return Ok(connected);
        }
        lane.replace(connected.generation);
    }
}

/// What a result says, of the command and of the lane.
pub(super) fn heard(
    lane: &Lane,
    generation: u64,
    result: RedisResult<Value>,
    sent_at: Moment,
) -> Result<Answer, Wrong> {
    let reply = match result.and_then(said) {
        Ok(reply) => reply,
        Err(error) => return Err(refused(lane, generation, error)),
    };
    lane.heard();
    Ok(Answer {
        reply,
        sent_at,
        server_age: None,
    })
}

/// What an error says, of the command and of the lane.
pub(super) fn refused(lane: &Lane, generation: u64, error: RedisError) -> Wrong {
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
    Wrong { failure, redirect }
}

/// Sends the script's text on the same connection if the server did not know its digest. The answer, and when its own
/// command was sent.
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

/// A command and its reply; with `asking` for a slot that is on its way to the node (by 3).
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
    // One reply is kept, so there is one.
    Ok(replies.into_iter().next().unwrap_or(Value::Nil))
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
    if is_unknown_script(&result)
        && let Some(text) = call.with_text()
    {
        result = connection.send_packed_command(&text).await;
    }
    read(result)
}

/// What a result says.
pub(super) fn read(result: RedisResult<Value>) -> Result<Reply, Failure> {
    Ok(result.and_then(said)?)
}

/// What a value says: an error may also be within it.
pub(super) fn said(value: Value) -> RedisResult<Reply> {
    match Reply::from_value(&value) {
        Reply::Other => value.extract_error().map(|_| Reply::Other),
        reply => Ok(reply),
    }
}

/// What the node at `host` says of all slots.
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

pub(super) fn is_unknown_script(result: &RedisResult<Value>) -> bool {
    matches!(result, Ok(reply) if says_unknown_script(reply))
}

pub(super) fn says_unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
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
        assert!(Failure::from(result.and_then(Value::extract_error).unwrap_err()).is_unanswered());
        assert!(is_cut(&mut connection).await);
    }
}
