//! Commands that count only after replicas acknowledged them.
//!
//! `WAIT` returns how many replicas have the last write *of its own connection*. So these commands have connections of
//! their own, beside that of their lane. A task per connection sends the queued commands as one pipeline with one `WAIT`
//! at its end. Each of these commands writes, even if it changes nothing. Far from the server the next batch is sent
//! before the last one is answered; the server runs it behind that one's `WAIT`.
//!
//! 1. A command that was not acknowledged grants nothing. Who sent an acquire releases what it got: only the sender knows
//!    whether it has tried again under the same hold id, which a release from here would end.
//! 2. What is sent again (the text of a script, a script behind a nil, what another node of a cluster has) has a `WAIT`
//!    of its own, behind it.
//! 3. Commands that must keep their order, but need no acknowledgement, use the same queue and wait for no replica.
//!    Commands of one slot use one queue, and keep their order there. A batch must not overtake another that is under way,
//!    so it joins it only on a connection that is up.
//! 4. After [`ROW`] batches in a row without enough acknowledgements, commands are refused without being run, and one
//!    batch in each [`PROBE`] finds out whether the replicas are back. Two questions are asked meanwhile, without a
//!    `WAIT`, because a "no" needs no acknowledgement: for an acquire, whether the lock is busy; and whether a hold that
//!    is to be verified is there.
//! 5. Only so many acquires come here as can be sent at once, and at least a fourth of a batch. The others wait in the
//!    queue of the lane, where their command time-outs do not run. Commands about holds come here at once, and wait here.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::lane::{Connected, Lane, LaneConfig, MIN_SILENCE};
use super::send::{FailedSend, TimedReply, connected, heard, in_term, is_unknown_script};
use crate::backend::failure::Failure;
use crate::clock::{Moment, millis};
use crate::config::Acks;
use crate::error::NotReplicated;
use crate::host::own;
use crate::script::{Call, Encoded, Order, Reply};
use crate::slot::Target;

/// The number of connections: while one waits for replicas, the other sends.
const LANES: usize = 2;

/// The connections beside one lane on which commands are acknowledged.
pub(crate) struct AckLanes {
    /// Each connection, and the queue of its task.
    lanes: [(Arc<Lane>, mpsc::UnboundedSender<QueuedCommand>); LANES],
}

struct QueuedCommand {
    command: AckCommand,
    /// If the caller is gone, the keeper cleans up after it.
    answer: oneshot::Sender<Result<TimedReply, FailedSend>>,
}

/// A command that must be acknowledged, or keep its order among those.
#[derive(Clone)]
pub(crate) struct AckCommand {
    call: Encoded,
    /// The call with the script's text, if that must be sent.
    text: Option<Cmd>,
    order: Order,
    target: Target,
    /// If it starts a hold: asks whether others have the lock.
    look: Option<Cmd>,
    /// It only asks whether a hold is there.
    verifies: bool,
    /// Its slot is migrating to the node.
    asking: bool,
    lane: usize,
}

impl AckLanes {
    pub(crate) fn open(acks: Acks, config: &LaneConfig, runtime: &Handle) -> Self {
        let stall = Arc::<Mutex<Stall>>::default();
        let lanes = std::array::from_fn(|_| {
            let lane = Lane::open(config.clone(), Box::default(), runtime, true);
            let (queue, entries) = mpsc::unbounded_channel();
            let worker = AckWorker {
                acks,
                lane: Arc::clone(&lane),
                stall: Arc::clone(&stall),
                took: Mutex::default(),
            };
            runtime.spawn(own(worker.run(entries)));
            (lane, queue)
        });
        Self { lanes }
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.iter().map(|(lane, _)| lane)
    }

    pub(crate) fn lane_of(&self, command: &AckCommand) -> &Arc<Lane> {
        &self.lanes[command.lane].0
    }

    pub(crate) async fn send(&self, command: AckCommand) -> Result<TimedReply, FailedSend> {
        let (lane, queue) = &self.lanes[command.lane];
        let (answer, answered) = oneshot::channel();
        if queue.send(QueuedCommand { command, answer }).is_err() {
            // The task only ends with its runtime.
            let failure = lane.end_of_it().unwrap_or_else(Failure::runtime_ended);
            return Err(failure.into());
        }
        // No answer if the runtime ends.
        let result = answered.await;
        result.unwrap_or_else(|_| Err(Failure::no_reply().into()))
    }
}

impl AckCommand {
    /// The same for another node; with `asking`, for the one that its slot is migrating to.
    pub(crate) fn again(&self, asking: bool) -> Self {
        Self {
            asking,
            ..self.clone()
        }
    }

    pub(crate) fn of(call: &Call<'_>) -> Self {
        Self {
            call: call.encode(),
            text: None,
            order: call.order,
            target: call.target,
            look: call.look(),
            verifies: call.verifies,
            asking: false,
            lane: match call.target {
                Target::Slot(slot) => slot.index() % LANES,
                Target::Any | Target::None => 0,
            },
        }
    }
}

/// The most commands that share a `WAIT`.
const BATCH: usize = 64;

/// The most batches under way on a connection, if an answer takes [`FAR`] or longer. Otherwise one: what comes while it is
/// under way shares the next `WAIT`.
const BATCHES: u128 = 4;

const FAR: Duration = Duration::from_millis(5);

/// The number of unacknowledged batches in a row after which commands are refused.
const ROW: u32 = 2;

/// How often one batch is sent then, at least. Where it waits for a short time only, it is sent as often as takes a fifth of
/// the time: leases may be short there, and their holds end while nobody asks.
const PROBE: Duration = Duration::from_secs(1);

/// The task of one connection.
struct AckWorker {
    acks: Acks,
    lane: Arc<Lane>,
    stall: Arc<Mutex<Stall>>,
    /// How long the last batch took.
    took: Mutex<Duration>,
}

/// Whether replicas acknowledge at present.
#[derive(Default)]
struct Stall {
    row: u32,
    got: u32,
    probe_at: Moment,
}

impl Stall {
    /// If a batch would wait in vain now: how many replicas acknowledged the last one.
    fn refuses(&self, now: Moment) -> Option<u32> {
        (self.row >= ROW && now < self.probe_at).then_some(self.got)
    }

    fn acknowledged(&mut self, acks: Acks, got: u32, now: Moment) {
        self.got = got;
        self.probe_at = now + PROBE.min(acks.within * 4);
        self.row = if got >= acks.wanted {
            0
        } else {
            self.row.saturating_add(1)
        };
    }
}

impl AckWorker {
    async fn run(self, mut queue: mpsc::UnboundedReceiver<QueuedCommand>) {
        let mut waiting = Vec::with_capacity(BATCH);
        // They are polled for the first time, and so sent, in the order in which they are added. Each returns whether it
        // waits for replicas.
        let mut under_way = FuturesUnordered::new();
        // How many of them wait for replicas.
        let mut waits = 0;
        loop {
            // First, so that acquires share a batch with commands about holds.
            self.let_in(waiting.len(), waits);
            while let Ok(entry) = queue.try_recv() {
                waiting.push(entry);
            }
            // Nobody wants to know any more: it was not sent, and never will be.
            waiting.retain(|entry: &QueuedCommand| !entry.answer.is_closed());
            while let Some((order, batch)) =
                self.next_batch(&mut waiting, under_way.is_empty(), waits)
            {
                let acknowledged = order == Order::Acknowledged;
                waits += usize::from(acknowledged);
                under_way.push(self.send(batch, acknowledged).map(move |()| acknowledged));
            }
            self.let_in(waiting.len(), waits);
            tokio::select! {
                biased;
                Some(acknowledged) = under_way.next() => waits -= usize::from(acknowledged),
                received = queue.recv_many(&mut waiting, BATCH) => {
                    if received == 0 {
                        break;
                    }
                }
            }
        }
        while under_way.next().await.is_some() {}
    }

    /// Lets as many acquires out of the queue of the lane as can be sent now. However many commands about holds wait,
    /// acquires get a fourth of the room.
    fn let_in(&self, waiting: usize, waits: usize) {
        let all = BATCH * self.most_waits().saturating_sub(waits);
        let acquires = all.saturating_sub(waiting).max(all / 4);
        self.lane.window().let_in(acquires);
        self.lane.admit();
    }

    /// The batch that is sent now, and its order. Commands that need no acknowledgement go first. While other batches are
    /// under way, none is sent without a connection that is up.
    fn next_batch(
        &self,
        waiting: &mut Vec<QueuedCommand>,
        is_alone: bool,
        waits: usize,
    ) -> Option<(Order, Vec<QueuedCommand>)> {
        if !is_alone && self.lane.with_connected(Connected::is_usable) != Some(true) {
            return None;
        }
        let kept = take_batch(waiting, Order::Kept);
        if !kept.is_empty() {
            return Some((Order::Kept, kept));
        }
        if waits >= self.most_waits() {
            return None;
        }
        let acknowledged = take_batch(waiting, Order::Acknowledged);
        (!acknowledged.is_empty()).then_some((Order::Acknowledged, acknowledged))
    }

    /// No more than can all wait for replicas in vain within half of a command time-out.
    fn most_waits(&self) -> usize {
        if *self.took.lock() < FAR || self.stall.lock().row > 0 {
            return 1;
        }
        let half = self.lane.command_timeout().as_millis() / 2;
        let most = half / self.acks.within.as_millis().max(1);
        usize::try_from(most.clamp(1, BATCHES)).unwrap_or(1)
    }

    async fn send(&self, mut entries: Vec<QueuedCommand>, acknowledged: bool) {
        let refused = self.stall.lock().refuses(self.lane.now());
        let refused = refused.filter(|_| acknowledged);
        let refused = refused.map(|got| self.not_replicated(got));
        if let Some(failure) = &refused {
            fail_all(
                entries.extract_if(.., |entry| !entry.command.looks()),
                failure,
            );
            if entries.is_empty() {
                return;
            }
        }
        let limit = self.lane.command_timeout();
        let connecting = self.lane.timers().within(limit, connected(&self.lane));
        let mut connected = match connecting.await {
            Some(Ok(connected)) => connected,
            Some(Err(failure)) => return fail_all(entries, &failure),
            None => return fail_all(entries, &Failure::no_connection_within(limit)),
        };
        let generation = connected.generation;
        let term = connected.term.take();
        let lane = Arc::clone(&self.lane);
        let min_silence = MIN_SILENCE + self.acks.within;
        // If this is dropped, commands without a reply are unanswered.
        let exchange = async {
            match refused {
                Some(failure) => self.look(connected, entries, &failure).await,
                None => self.exchange(connected, entries, acknowledged).await,
            }
        };
        let exchange = unless_given_up(&lane, generation, min_silence, exchange);
        let done = in_term(term, exchange).await;
        if done.flatten().flatten().is_none() {
            lane.replace(generation);
        }
    }

    /// Asks what needs no replica: whether others have the locks that acquires want, and whether holds are there. None if
    /// the connection is broken.
    async fn look(
        &self,
        mut connected: Connected,
        mut entries: Vec<QueuedCommand>,
        refused: &Failure,
    ) -> Option<()> {
        for QueuedCommand { command, .. } in &mut entries {
            command.look();
            command.introduce(&self.lane, connected.generation);
        }
        let sent_at = self.lane.now();
        let connection = &mut connected.connection;
        let (results, _) = self.round(connection, &entries, false).await?;
        for (entry, result) in entries.into_iter().zip(results) {
            let call = &entry.command.call;
            let answer = match heard(&self.lane, connected.generation, call, result, sent_at) {
                Ok(mut answer) if matches!(answer.reply, Reply::Busy(_)) => {
                    answer.reply = Reply::Busy(None);
                    Ok(answer)
                }
                Ok(answer) if answer.reply.is_refusal() => Ok(answer),
                Err(wrong) if wrong.redirect.is_some() => Err(wrong),
                Ok(_) | Err(_) => Err(refused.clone().into()),
            };
            let _ = entry.answer.send(answer);
        }
        Some(())
    }

    /// Sends commands, and again what must be. None if the connection is broken.
    async fn exchange(
        &self,
        mut connected: Connected,
        mut entries: Vec<QueuedCommand>,
        acknowledged: bool,
    ) -> Option<()> {
        let connection = &mut connected.connection;
        while !entries.is_empty() {
            for entry in &mut entries {
                entry.command.introduce(&self.lane, connected.generation);
            }
            let sent_at = self.lane.now();
            let (results, got) = self.round(connection, &entries, acknowledged).await?;
            let (mut again, mut texts) = (Vec::new(), HashSet::new());
            for (mut entry, result) in entries.into_iter().zip(results) {
                if entry.command.is_sent_again(&result, &mut texts) {
                    again.push(entry);
                    continue;
                }
                let call = &entry.command.call;
                let heard = heard(&self.lane, connected.generation, call, result, sent_at);
                let answer = match (heard, &got) {
                    (Ok(answer), Err(failure)) if entry.command.is_granted(&answer) => {
                        let starts = entry.command.look.is_some();
                        let failure = failure.clone();
                        Err(if starts { failure.of_grant() } else { failure }.into())
                    }
                    // Enough replicas acknowledged it, or it granted nothing.
                    (heard, _) => heard,
                };
                let _ = entry.answer.send(answer);
            }
            entries = again;
        }
        Some(())
    }

    /// Sends each command once. Returns the replies, and whether enough replicas acknowledged; none if the connection is
    /// broken.
    async fn round(
        &self,
        connection: &mut MultiplexedConnection,
        entries: &[QueuedCommand],
        acknowledged: bool,
    ) -> Option<(Vec<RedisResult<Value>>, Result<(), Failure>)> {
        let mut pipeline = Pipeline::with_capacity(entries.len() + 1);
        let mut answers = Vec::with_capacity(entries.len());
        for entry in entries {
            if entry.command.asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(entry.command.cmd().clone());
            answers.push(pipeline.len() - 1);
        }
        if acknowledged {
            let Acks { wanted, within } = self.acks;
            pipeline.cmd("WAIT").arg(wanted).arg(millis(within));
        }
        let count = pipeline.len();
        let sent_at = self.lane.now();
        let under_way = self.lane.batch();
        let sent = connection.send_packed_commands(&pipeline, 0, count).await;
        drop(under_way);
        *self.took.lock() = sent_at.until(self.lane.now());
        let mut values = sent.ok().filter(|values| values.len() == count)?;
        self.lane.heard();
        let waited = if acknowledged { values.pop() } else { None };
        let got = waited.map_or(Ok(()), |got| self.count(got));
        let answer = |place: &usize| Ok(std::mem::replace(&mut values[*place], Value::Nil));
        Some((answers.iter().map(answer).collect(), got))
    }

    /// Reads the reply to `WAIT`.
    fn count(&self, waited: Value) -> Result<(), Failure> {
        let got = redis::from_redis_value::<u32>(waited.extract_error()?);
        let got = got.map_err(|_| Failure::strange_reply())?;
        let now = self.lane.now();
        self.stall.lock().acknowledged(self.acks, got, now);
        if got >= self.acks.wanted {
            return Ok(());
        }
        Err(self.not_replicated(got))
    }

    fn not_replicated(&self, got: u32) -> Failure {
        let wanted = self.acks.wanted;
        Failure::not_replicated(NotReplicated { wanted, got })
    }
}

impl AckCommand {
    fn cmd(&self) -> &Cmd {
        self.text.as_ref().unwrap_or(self.call.cmd())
    }

    /// Sends a script by its text the first time on a connection: a digest that the server does not know would cost a
    /// second `WAIT`.
    fn introduce(&mut self, lane: &Lane, generation: u64) {
        self.call.publish_as(lane.publish());
        if self.text.is_none()
            && let Some(digest) = self.call.digest()
            && !lane.has_sent_text(digest, generation, Moment::default())
        {
            lane.sends_text(digest, generation);
            self.text = self.call.with_text();
        }
    }

    /// Whether it is sent again, because the server did not know its digest. The first command of a script sends the
    /// text, and the others their digest again behind it: `texts` has the scripts whose text is sent.
    fn is_sent_again(
        &mut self,
        result: &RedisResult<Value>,
        texts: &mut HashSet<&'static str>,
    ) -> bool {
        if !is_unknown_script(result) || self.text.is_some() {
            return false;
        }
        let Some(digest) = self.call.digest() else {
            return false;
        };
        if !texts.insert(digest) {
            return true;
        }
        self.text = self.call.with_text();
        self.text.is_some()
    }

    /// Whether there is something to ask for it without replicas.
    fn looks(&self) -> bool {
        self.look.is_some() || self.verifies
    }

    /// Turns it into the question whether others have the lock. A verification stays what it is.
    fn look(&mut self) {
        self.text = self.look.clone();
    }

    /// Whether the reply grants or prolongs something, so it must be acknowledged.
    fn is_granted(&self, answer: &TimedReply) -> bool {
        self.order == Order::Acknowledged && !answer.reply.is_refusal()
    }
}

/// Awaits an exchange for a command time-out. Ends early, but not before `min_silence`, if the connection was given up
/// meanwhile, so that queued commands do not wait for it.
async fn unless_given_up<T>(
    lane: &Lane,
    generation: u64,
    min_silence: Duration,
    exchange: impl Future<Output = T>,
) -> Option<T> {
    let limit = lane.command_timeout();
    let first = limit.min(min_silence);
    let mut exchange = pin!(exchange);
    if let Some(done) = lane.timers().within(first, exchange.as_mut()).await {
        return Some(done);
    }
    tokio::select! {
        biased;
        done = lane.timers().within(limit.saturating_sub(first), exchange) => done,
        () = lane.has_left(generation) => None,
    }
}

/// Takes out the commands of one order that stand behind no other of their slot, up to [`BATCH`].
fn take_batch(waiting: &mut Vec<QueuedCommand>, order: Order) -> Vec<QueuedCommand> {
    let mut left = HashSet::new();
    let mut count = 0;
    let is_next = |entry: &mut QueuedCommand| {
        let command = &entry.command;
        let is_next = command.order == order && count < BATCH && !left.contains(&command.target);
        if is_next {
            count += 1;
        } else {
            left.insert(command.target);
        }
        is_next
    };
    waiting.extract_if(.., is_next).collect()
}

fn fail_all(entries: impl IntoIterator<Item = QueuedCommand>, failure: &Failure) {
    for entry in entries {
        let _ = entry.answer.send(Err(failure.clone().into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(ms)
    }

    #[test]
    fn after_two_in_a_row_one_a_second_finds_out() {
        let acks = Acks {
            wanted: 2,
            within: Duration::from_millis(300),
        };
        let mut stall = Stall::default();
        assert_eq!(stall.refuses(at(0)), None);
        stall.acknowledged(acks, 1, at(100));
        assert_eq!(stall.refuses(at(101)), None, "one may be chance");
        stall.acknowledged(acks, 0, at(300));
        assert_eq!(stall.refuses(at(301)), Some(0));
        assert_eq!(stall.refuses(at(1299)), Some(0));
        assert_eq!(stall.refuses(at(1300)), None);
        stall.acknowledged(acks, 1, at(1500));
        assert_eq!(stall.refuses(at(2499)), Some(1));
        assert_eq!(stall.refuses(at(2500)), None);
        stall.acknowledged(acks, 2, at(2500));
        assert_eq!(stall.refuses(at(2501)), None);
        let within = Duration::from_millis(10);
        let quick = Acks { within, ..acks };
        stall.acknowledged(quick, 0, at(3000));
        stall.acknowledged(quick, 0, at(3010));
        assert_eq!(stall.refuses(at(3049)), Some(0));
        assert_eq!(stall.refuses(at(3050)), None);
    }
}
