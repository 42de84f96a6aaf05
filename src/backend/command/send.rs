//! Sends a command on the connection of a lane.
//!
//! 1. A command was certainly not sent if there was no connection, or if its connection is known to have ended: redis-rs,
//!    where it drives the connection, shows that by refusing the [knock](is_cut) before the command. After any other failure
//!    the command may have run, unless the error of the server says that it did not.
//! 2. `ASKING` counts for the next command of its connection, which other tasks use too. So both are sent as one pipeline.
//! 3. A server that forgot a script refuses all calls of it that are in flight. The first of them sends the text, the
//!    others send their digest again behind it. A call that is refused once more sends the text, too.
//! 4. A connection that was written to and read nothing for a time is given up. But nothing is read either while user code
//!    blocks the runtime that drives it, although the reply has arrived. So a silence counts once a task of that runtime
//!    has run, and [`RUNS_FOR`] later nothing has been read either: meanwhile commands that were queued behind the block are
//!    written and answered. Until then no command gets a place, so none goes over a connection that is about to be given
//!    up. What waits was certainly not sent.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use scopeguard::guard;
use tokio::task::yield_now;

use super::lane::{Connected, Lane};
use crate::backend::connect::{MasterTerm, Redirect};
use crate::backend::failure::{Class, Failure};
use crate::clock::{Clock, Moment};
use crate::script::{Call, Encoded, Reply};

/// A reply, and when its command was sent.
#[derive(Debug, Clone)]
pub(crate) struct TimedReply {
    pub(crate) reply: Reply,
    /// Just before the send: validity counts from here.
    pub(crate) sent_at: Moment,
    /// How long the server had been up by then; none where it is not asked.
    pub(crate) server_age: Option<Duration>,
    /// What the server replied, to a command that is no script.
    pub(crate) value: Option<Box<Value>>,
}

pub(crate) type CommandResult = Result<TimedReply, Failure>;

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

/// Sends a call over a lane; with `asking`, to the node that its slot is migrating to.
pub(crate) async fn once(
    lane: &Lane,
    call: &mut Encoded,
    asking: bool,
) -> Result<TimedReply, FailedSend> {
    let mut connected = connected(lane).await?;
    call.publish_as(lane.publish());
    let term = connected.term.take();
    let answered = in_term(term, exchanged(lane, connected, call, asking)).await;
    answered.unwrap_or_else(|| Err(Failure::no_reply().into()))
}

/// What comes of an exchange on a connection of this term. None if the term ends first: a reply after the change of the
/// master does not count.
pub(super) fn in_term<F: Future + Send>(
    term: Option<MasterTerm>,
    exchange: F,
) -> impl Future<Output = Option<F::Output>> {
    match term {
        None => exchange.map(Some).left_future(),
        Some(mut term) => Box::pin(async move { term.within(exchange).await }).right_future(),
    }
}

/// Sends a call on a connection of `lane`.
async fn exchanged(
    lane: &Lane,
    connected: Connected,
    call: &Encoded,
    asking: bool,
) -> Result<TimedReply, FailedSend> {
    let (mut connection, generation) = (connected.connection, connected.generation);
    let mut sent_at = lane.now();
    // Boxed, here and below: it is rare.
    let mut result = if asking {
        Box::pin(exchange(&mut connection, call.cmd(), true)).await
    } else {
        connection.send(call.cmd(), || lane.fill()).await
    };
    if is_unknown_script(&result) {
        let on = (&mut *connection, generation);
        let sending = send_text(lane, on, call, (result, sent_at), asking);
        (result, sent_at) = Box::pin(sending).await;
    }
    let mut answer = heard(lane, generation, call, result, sent_at)?;
    answer.server_age = connected
        .server
        .map(|server| server.up_since.until(sent_at));
    Ok(answer)
}

/// Sends calls in one write. Returns what each came to; none for one that did not run and must be sent alone: another node
/// has its slot, or its slot migrates and its keys are at two nodes.
pub(crate) async fn all_once(
    lane: &Lane,
    mut calls: Vec<Encoded>,
) -> Result<Vec<Option<CommandResult>>, Failure> {
    let mut connected = connected(lane).await?;
    for call in &mut calls {
        call.publish_as(lane.publish());
    }
    let term = connected.term.take();
    let exchanged = exchanged_together(lane, &mut connected, &calls);
    let answers = in_term(term, exchanged).await;
    let answers = answers.ok_or_else(Failure::no_reply)?;
    let read = |((result, sent_at), call)| match heard(
        lane,
        connected.generation,
        call,
        Ok(result),
        sent_at,
    ) {
        Ok(answer) => Some(Ok(answer)),
        Err(wrong) if wrong.redirect.is_some() || wrong.failure.class == Class::Split => None,
        Err(wrong) => Some(Err(wrong.failure)),
    };
    let answers = answers.map_err(|error| refused(lane, connected.generation, error).failure)?;
    Ok(answers.into_iter().zip(&calls).map(read).collect())
}

/// Sends calls in one pipeline. Those whose script is unknown follow in a second one, the first of each script with its
/// text, and in a third one, all with their texts.
async fn exchanged_together(
    lane: &Lane,
    connected: &mut Connected,
    calls: &[Encoded],
) -> RedisResult<Vec<(Value, Moment)>> {
    let connection = &mut connected.connection;
    let sent_at = lane.now();
    let values = pipelined(connection, calls.iter().map(|call| call.cmd().clone())).await?;
    let mut answers: Vec<_> = values.into_iter().map(|value| (value, sent_at)).collect();
    for all_by_text in [false, true] {
        let unknown = answers.iter().enumerate();
        let unknown = unknown.filter(|(_, (value, _))| says_unknown_script(value));
        let again: Vec<_> = unknown.map(|(index, _)| index).collect();
        if again.is_empty() {
            break;
        }
        let mut texts = BTreeSet::new();
        let cmds = again.iter().map(|index| {
            let call = &calls[*index];
            let first = call.digest().filter(|digest| texts.insert(*digest));
            if let Some(digest) = first {
                lane.sends_text(digest, connected.generation);
            }
            let text = (first.is_some() || all_by_text).then(|| call.with_text());
            text.flatten().unwrap_or_else(|| call.cmd().clone())
        });
        let sent_at = lane.now();
        for (index, value) in again.iter().zip(pipelined(connection, cmds).await?) {
            answers[*index] = (value, sent_at);
        }
    }
    Ok(answers)
}

/// Sends commands in one pipeline, and returns their replies.
async fn pipelined(
    connection: &mut MultiplexedConnection,
    cmds: impl Iterator<Item = Cmd>,
) -> RedisResult<Vec<Value>> {
    let mut pipeline = Pipeline::new();
    for cmd in cmds {
        pipeline.add_command(cmd);
    }
    let count = pipeline.len();
    let values = connection.send_packed_commands(&pipeline, 0, count).await?;
    if values.len() != count {
        return Err((ErrorKind::Parse, "another number of replies").into());
    }
    Ok(values)
}

/// A connection that is not known to be cut, or to lead to an old master.
pub(crate) async fn connected(lane: &Lane) -> Result<Connected, Failure> {
    loop {
        let mut connected = match lane.connected() {
            Some(connected) => connected,
            None => Box::pin(lane.connect()).await?,
        };
        if connected.is_replicas && !Box::pin(lane.is_master_again(&mut connected)).await {
            lane.leave(connected.generation);
            return Err(Failure::demoted());
        }
        // A command on a connection that has ended certainly does not go out.
        let mut cut = connected.connection.has_ended();
        if !cut && !connected.connection.shows_its_end() && lane.needs_knock() {
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
    call: &Encoded,
    result: RedisResult<Value>,
    sent_at: Moment,
) -> Result<TimedReply, FailedSend> {
    let is_script = call.digest().is_some();
    let value = result.as_ref().ok().filter(|_| !is_script).cloned();
    let reply = result.and_then(said);
    let reply = reply.map_err(|error| refused(lane, generation, error))?;
    lane.answered(sent_at);
    Ok(TimedReply {
        reply,
        sent_at,
        server_age: None,
        value: value.map(Box::new),
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

/// Sends the text of the script on the same connection: the server did not know its digest. Returns the answer, and when
/// the command that it answers was sent.
async fn send_text(
    lane: &Lane,
    (connection, generation): (&mut MultiplexedConnection, u64),
    call: &Encoded,
    (mut result, mut sent_at): (RedisResult<Value>, Moment),
    asking: bool,
) -> (RedisResult<Value>, Moment) {
    let Some(digest) = call.digest() else {
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
    let mut both = Pipeline::with_capacity(2);
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
pub(super) async fn is_cut(connection: &mut MultiplexedConnection) -> bool {
    connection.send_packed_command(&KNOCK).await.is_err()
}

/// For how long a runtime must run before a silence counts.
const RUNS_FOR: Duration = Duration::from_millis(20);

/// What a connection has read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traffic {
    generation: u64,
    /// When it last read something: by the system's clock where `asked` is known, else by the client's.
    read_at: Moment,
    /// None where that is not known.
    asked: Option<u64>,
    /// Whether a batch is under way: commands behind it write nothing until its reply comes.
    has_batch: bool,
}

impl Traffic {
    /// What the connection of a lane has read and written by now.
    pub(super) fn of(lane: &Lane) -> Option<Self> {
        lane.with_connected(|connected| {
            let (read_at, asked) = match connected.connection.traffic() {
                Some((read_at, asked)) => (read_at, Some(asked)),
                // redis-rs drives it, and only replies are seen.
                None => (lane.heard_at(), None),
            };
            Self {
                generation: connected.generation,
                read_at,
                asked,
                has_batch: lane.has_batch(),
            }
        })
    }

    /// Whether the connection wrote since then, or tried to, as far as is known; or waited for the reply to a batch.
    pub(super) fn has_asked_since(self, before: Self) -> bool {
        before.has_batch || self.asked.is_none() || self.asked != before.asked
    }

    /// For how long the connection must still read nothing until its traffic since then ended in `silence`. None if nothing
    /// was asked since then: a process that got no CPU wrote nothing.
    fn silent_in(self, silence: Duration, lane: &Lane) -> Option<Duration> {
        let now = Self::of(lane)?;
        if now.generation != self.generation || !now.has_asked_since(self) {
            return None;
        }
        if now.read_at == self.read_at {
            return Some(Duration::ZERO);
        }
        let time = match now.asked {
            Some(_) => Clock::system().now(),
            None => lane.now(),
        };
        Some(silence.saturating_sub(now.read_at.until(time)))
    }

    /// Gives the connection up if its traffic since then ended in a silence that counts (rule 4: its runtime has run), or
    /// does so soon: the command may have waited for less than that, and a reply to an earlier command may have been the
    /// last one.
    pub(super) fn give_up_if_silent(self, lane: &Arc<Lane>, silence: Duration, waited: Duration) {
        let Some(left) = self.silent_in(silence, lane) else {
            return;
        };
        let left = left.max(silence.saturating_sub(waited));
        if !left.is_zero() {
            // What is read meanwhile may be the reply, and a connection on which nothing is asked is silent, too.
            let read_at = |lane: &_| Self::of(lane).map(|now| now.read_at);
            let last = read_at(lane);
            return look_again(lane, left, move |lane| {
                if read_at(lane) == last {
                    self.give_up_if_silent(lane, silence, silence);
                }
            });
        }
        if !lane.window().pause() {
            return;
        }
        // Also if a waker that is called meanwhile panics.
        let on = guard(Arc::clone(lane), |lane| lane.window().go_on());
        lane.start_task(async move {
            // Its reactor runs before a task that yielded goes on. What that found is read at once.
            yield_now().await;
            on.drive();
            on.timers().timer(RUNS_FOR).await;
            yield_now().await;
            on.drive();
            if self.silent_in(silence, &on) == Some(Duration::ZERO) {
                on.replace(self.generation);
            }
            let lane = Arc::clone(&on);
            drop(on);
            lane.admit();
        });
    }
}

/// Looks again after a time, if the lane still exists.
fn look_again(lane: &Arc<Lane>, after: Duration, look: impl FnOnce(&Arc<Lane>) + Send + 'static) {
    let on = Arc::downgrade(lane);
    let timer = lane.timers().timer(after);
    lane.start_task(async move {
        timer.await;
        if let Some(on) = on.upgrade() {
            look(&on);
        }
    });
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
