//! Sends a command over a lane, and lets many await it.
//!
//! 1. A command was certainly not sent if there was no connection, or if the [knock](is_cut) before it was refused. After
//!    any other failure it may have run, unless the error of the server says that it did not.
//! 2. `ASKING` counts for the next command of its connection, which other tasks use too. So both are sent as one pipeline.
//! 3. A server that forgot a script refuses all calls of it that are in flight. The first of them sends the text, the
//!    others send their digest again behind it. A call that is refused once more sends the text, too.
//! 4. Each clone of a command in flight drives it when it is polled. When the command can go on, all clones that wait are
//!    woken.
//! 5. While one clone waits, the command gets that clone's own waker. From the first poll of a second clone on it gets a
//!    waker that wakes all. The choice is made under the lock of the poll, so no clone is missed.
//! 6. When the command ends, all clones are woken but the one whose poll saw the end. That one is running: a wake-up would
//!    put its task at the end of the queue and wake another worker thread, for each command.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};

use super::lane::{Connected, Lane};
use crate::backend::connect::{MasterTerm, Redirect};
use crate::backend::failure::{Class, Failure};
use crate::clock::Moment;
use crate::script::{Call, Encoded, Reply};

/// A shorter silence does not show that the connection or the server is broken.
pub(crate) const MIN_SILENCE: Duration = Duration::from_millis(100);

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

/// A command in flight. It runs once, and each clone may await it (rules 4 to 6).
///
/// It has no time-out of its own: end it by [`Pending::overdue`], or await it [within](Pending::within) a time.
pub(crate) struct Pending {
    number: u64,
    shared: Arc<InFlight>,
}

/// What the clones of a [`Pending`] share.
struct InFlight {
    lane: Arc<Lane>,
    run: Mutex<Run>,
    wakers: Mutex<Wakers>,
    /// The number of clones. The command may hold a waker, which holds this struct, so the count of the `Arc` does not
    /// reach zero: the last clone drops the command.
    clones: AtomicU64,
    numbers: AtomicU64,
}

enum Run {
    On(BoxFuture<'static, CommandResult>),
    Over(CommandResult),
}

/// The wakers of the clones that wait, by their numbers. Usually there is one, which needs no allocation.
#[derive(Default)]
struct Wakers {
    first: Option<(u64, Waker)>,
    more: Vec<(u64, Waker)>,
}

impl Pending {
    /// Sends a `PING`, to find out whether the connection of a lane still works.
    pub(crate) fn knock(lane: &Arc<Lane>) -> Self {
        let on = Arc::clone(lane);
        let sending = async move {
            let sent = once(&on, &mut Call::ping().encode()).await;
            sent.map_err(|wrong| wrong.failure)
        };
        Self::of(sending.boxed(), Arc::clone(lane))
    }

    pub(crate) fn of(sending: BoxFuture<'static, CommandResult>, lane: Arc<Lane>) -> Self {
        let shared = InFlight {
            lane,
            run: Mutex::new(Run::On(sending)),
            wakers: Mutex::default(),
            clones: AtomicU64::new(1),
            numbers: AtomicU64::new(0),
        };
        Self {
            number: 0,
            shared: Arc::new(shared),
        }
    }

    /// Sends it now instead of when the task of its connection runs. May wake any task, so no lock may be held.
    pub(crate) fn send_at_once(mut self) {
        let _ = (&mut self).now_or_never();
        self.shared.lane.drive();
    }

    /// Ends it: no reply came within a command time-out.
    pub(crate) fn overdue(&self) {
        self.shared.lane.overdue();
        self.end();
    }

    /// Waits for the reply for at most `limit`.
    pub(crate) async fn within(mut self, limit: Duration) -> CommandResult {
        let lane = Arc::clone(&self.shared.lane);
        let outcome = lane.timers().within(limit, &mut self).await;
        outcome.unwrap_or_else(|| {
            self.overdue();
            Err(Failure::no_reply())
        })
    }

    /// As [`within`](Self::within), for a command that is repeated: after a silence of `limit`, the next try uses another
    /// connection if `limit` is at least `min_silence`.
    pub(crate) async fn within_one_try(
        mut self,
        limit: Duration,
        min_silence: Duration,
    ) -> CommandResult {
        let lane = Arc::clone(&self.shared.lane);
        let generation = lane.generation();
        let outcome = lane.timers().within(limit, &mut self).await;
        let outcome = outcome.unwrap_or_else(|| {
            self.end();
            Err(Failure::no_reply())
        });
        let unanswered = matches!(&outcome, Err(failure) if failure.is_unanswered());
        // However short a command time-out is, its silence counts.
        if unanswered && limit >= min_silence.min(lane.command_timeout()) {
            lane.overdue();
            if let Some(generation) = generation.filter(|_| lane.is_silent_for(limit)) {
                lane.replace(generation);
            }
        }
        outcome
    }

    /// If it still runs, drops the command, which is unanswered then, and wakes all clones.
    fn end(&self) {
        let mut run = self.shared.run.lock();
        if matches!(*run, Run::On(_)) {
            let before = std::mem::replace(&mut *run, Run::Over(Err(Failure::no_reply())));
            drop(run);
            drop(before);
            self.shared.wake_but(None);
        }
    }

    fn poll_command(&self, context: &mut Context<'_>) -> Poll<CommandResult> {
        let shared = &self.shared;
        // Dropped after the locks: a waker may drop its task, and the task a clone of this future.
        let _replaced;
        let mut run = shared.run.lock();
        let command = match &mut *run {
            Run::On(command) => command,
            Run::Over(outcome) => return Poll::Ready(outcome.clone()),
        };
        // Before the poll: from now on each event wakes this clone too.
        let is_alone = {
            let mut wakers = shared.wakers.lock();
            _replaced = wakers.put(self.number, context.waker());
            wakers.more.is_empty()
        };
        let polled = if is_alone {
            command.as_mut().poll(context)
        } else {
            let all = Waker::from(Arc::clone(shared));
            command.as_mut().poll(&mut Context::from_waker(&all))
        };
        let Poll::Ready(outcome) = polled else {
            return Poll::Pending;
        };
        let before = std::mem::replace(&mut *run, Run::Over(outcome.clone()));
        drop(run);
        drop(before);
        shared.wake_but(Some(self.number));
        Poll::Ready(outcome)
    }
}

impl Future for Pending {
    type Output = CommandResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CommandResult> {
        // A command may panic when polled after its runtime ended. It is unanswered then.
        let polling = AssertUnwindSafe(|| self.poll_command(context));
        let polled = catch_unwind(polling).unwrap_or_else(|_| {
            self.overdue();
            Poll::Ready(Err(Failure::no_reply()))
        });
        if polled.is_pending() {
            // No lock is held here.
            self.shared.lane.drive_if_full();
        }
        polled
    }
}

impl PartialEq for Pending {
    /// Whether both are the same command.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Clone for Pending {
    fn clone(&self) -> Self {
        // Relaxed, as in `Arc::clone`: the caller has a clone, so the count is not zero, and it guards no data.
        self.shared.clones.fetch_add(1, Ordering::Relaxed);
        Self {
            number: self.shared.numbers.fetch_add(1, Ordering::Relaxed) + 1,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let forgotten = self.shared.wakers.lock().take(self.number);
        // After the lock, as in `poll_command`.
        drop(forgotten);
        // Acquire and release: the last clone must see what the others did before it drops the command.
        if self.shared.clones.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end();
        }
    }
}

impl InFlight {
    /// Wakes all clones that wait, except this one.
    fn wake_but(&self, awake: Option<u64>) {
        let Wakers { first, more } = std::mem::take(&mut *self.wakers.lock());
        for (number, waker) in first.into_iter().chain(more) {
            if awake != Some(number) {
                waker.wake();
            }
        }
    }
}

impl Wake for InFlight {
    fn wake(self: Arc<Self>) {
        self.wake_but(None);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_but(None);
    }
}

impl Wakers {
    /// Returns the waker that this one replaces.
    fn put(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        let mut all = self.first.iter_mut().chain(self.more.iter_mut());
        if let Some((_, known)) = all.find(|(known, _)| *known == number) {
            let same = known.will_wake(waker);
            return (!same).then(|| std::mem::replace(known, waker.clone()));
        }
        if self.first.is_none() {
            self.first = Some((number, waker.clone()));
        } else {
            self.more.push((number, waker.clone()));
        }
        None
    }

    fn take(&mut self, number: u64) -> Option<(u64, Waker)> {
        let first = self.first.take_if(|(known, _)| *known == number);
        first.or_else(|| {
            let index = self.more.iter().position(|(known, _)| *known == number)?;
            Some(self.more.swap_remove(index))
        })
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

/// Sends a call over a lane.
pub(crate) async fn once(lane: &Lane, call: &mut Encoded) -> Result<TimedReply, FailedSend> {
    let mut connected = connected(lane).await?;
    call.publish_as(lane.publish());
    match connected.term.take() {
        None => exchanged(lane, connected, call).await,
        Some(mut term) => {
            let answered = Box::pin(term.within(exchanged(lane, connected, call))).await;
            // A reply after the change of the master does not count.
            answered.unwrap_or_else(|| Err(Failure::no_reply().into()))
        }
    }
}

/// Sends a call on a connection of `lane`.
async fn exchanged(
    lane: &Lane,
    connected: Connected,
    call: &Encoded,
) -> Result<TimedReply, FailedSend> {
    let (mut connection, generation) = (connected.connection, connected.generation);
    let mut sent_at = lane.now();
    let mut result = connection.send(call.cmd(), || lane.fill()).await;
    if is_unknown_script(&result) {
        let on = (&mut *connection, generation);
        let sending = send_text(lane, on, call, (result, sent_at), false);
        (result, sent_at) = Box::pin(sending).await;
    }
    let mut answer = heard(lane, generation, result, sent_at)?;
    answer.server_age = connected
        .server
        .map(|server| server.up_since.until(sent_at));
    Ok(answer)
}

/// Sends a call for a slot that is migrating to the node of the lane.
pub(crate) async fn asking_once(lane: &Lane, call: &mut Encoded) -> Result<TimedReply, FailedSend> {
    let connected = connected(lane).await?;
    let (mut connection, generation) = (connected.connection, connected.generation);
    call.publish_as(lane.publish());
    let sent_at = lane.now();
    let result = exchange(&mut connection, call.cmd(), true).await;
    let sent = (result, sent_at);
    let on = (&mut *connection, generation);
    let (result, sent_at) = send_text(lane, on, call, sent, true).await;
    heard(lane, generation, result, sent_at)
}

/// A connection that is not known to be cut, or to lead to an old master.
pub(crate) async fn connected(lane: &Lane) -> Result<Connected, Failure> {
    loop {
        let mut connected = match lane.connected() {
            Some(connected) => connected,
            None => Box::pin(lane.connect()).await?,
        };
        if connected.is_replicas {
            lane.leave(connected.generation);
            return Err(Failure::demoted());
        }
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
    let reply = result.and_then(said);
    let reply = reply.map_err(|error| refused(lane, generation, error))?;
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
#[path = "send_tests.rs"]
mod tests;
