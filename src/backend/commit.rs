//! Commands whose effect replicas must have before it counts.
//!
//! `WAIT` tells how many replicas have the last write *of its own connection*. So what is to be acknowledged goes over a
//! connection of its own, the keeper's, from all of a client's runtimes: what is queued is sent as one pipeline with one
//! `WAIT` behind it, and every such command writes, also when it changes nothing.
//!
//! 1. A command that was to be acknowledged and was not is not granted: an acquire is undone on the same connection
//!    before that is told, anything else lengthens nothing. When the undoing has no answer, neither has the command.
//! 2. What is sent again (the text of a script, a script behind a nil) has a `WAIT` of its own, behind it.
//! 3. Commands whose order counts, but not their acknowledgement, go through the same queue and wait for no replica.
//! 4. When [`ROW`] batches in a row were not acknowledged, commands are refused at once, and one batch in
//!    [`PROBE`] finds out whether replicas are back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::lane::{Connected, Lane, LaneConfig};
use super::send::{connected, is_unknown_script, read};
use super::{Answer, Class, Failure, Outcome};
use crate::clock::Moment;
use crate::config::Acks;
use crate::error::NotReplicated;
use crate::script::{Call, Encoded, Granted, Order};

/// How many commands share a `WAIT`.
const BATCH: usize = 64;

/// After so many batches in a row that were not acknowledged, no more are sent for a while.
const ROW: u32 = 2;

/// How often one is sent then.
const PROBE: Duration = Duration::from_secs(1);

/// The way to the connection on which commands are acknowledged.
pub(crate) struct Commits {
    lane: Arc<Lane>,
    queue: mpsc::UnboundedSender<Entry>,
}

/// One command.
struct Entry {
    call: Encoded,
    /// The call with the script's text, once the server said that it does not know the script.
    text: Option<Cmd>,
    order: Order,
    undo: Option<Undo>,
    answer: oneshot::Sender<Outcome>,
}

/// How to take back what was not acknowledged.
struct Undo {
    granted: Granted,
    call: Encoded,
}

impl Commits {
    /// Opens it on the keeper's runtime. It ends with the last of those who send by it.
    pub(crate) fn open(acks: Acks, config: LaneConfig, runtime: &Handle) -> Arc<Self> {
        let lane = Lane::open(config, runtime);
        let (queue, entries) = mpsc::unbounded_channel();
        let committer = Committer {
            acks,
            lane: Arc::clone(&lane),
            stall: Stall::default(),
            known: (0, HashSet::new()),
        };
        runtime.spawn(committer.run(entries));
        Arc::new(Self { lane, queue })
    }

    pub(super) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Another server is the master now.
    pub(crate) fn switch(&self) {
        self.lane.switch();
    }

    pub(crate) fn close(&self) {
        self.lane.close();
    }

    /// Sends `call` in its turn, when this is first polled.
    pub(super) fn send(&self, call: &Call<'_>) -> impl Future<Output = Outcome> + Send + use<> {
        let undo = call.undo().map(|(granted, undo)| Undo {
            granted,
            call: undo.encode(),
        });
        let (answer, answered) = oneshot::channel();
        let entry = Entry {
            call: call.encode(),
            text: None,
            order: call.order(),
            undo,
            answer,
        };
        let queue = self.queue.clone();
        async move {
            if queue.send(entry).is_err() {
                return Err(Failure::closed());
            }
            // The keeper ended in the middle of it.
            answered.await.unwrap_or_else(|_| Err(Failure::no_reply()))
        }
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        self.lane.close();
    }
}

/// The task of the connection.
struct Committer {
    acks: Acks,
    lane: Arc<Lane>,
    stall: Stall,
    /// What was sent on a connection of the lane, and which one that was.
    known: (u64, HashSet<&'static str>),
}

/// Whether replicas acknowledge at the moment.
#[derive(Default)]
struct Stall {
    row: u32,
    got: u32,
    probe_at: Moment,
}

impl Stall {
    /// Whether a batch that is sent now would wait for nothing, as far as is known.
    fn refuses(&self, now: Moment) -> bool {
        self.row >= ROW && now < self.probe_at
    }

    fn acknowledged(&mut self, wanted: u32, got: u32, now: Moment) {
        self.got = got;
        self.probe_at = now + PROBE;
        self.row = if got >= wanted {
            0
        } else {
            self.row.saturating_add(1)
        };
    }
}

/// The connection is of no more use.
struct Broken;

impl Committer {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Entry>) {
        let mut entries = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut entries, BATCH).await > 0 {
            let mut rest = std::mem::take(&mut entries);
            while let Some(first) = rest.first() {
                // What waits for no replica is answered before what does.
                let order = first.order;
                let same = rest.iter().take_while(|entry| entry.order == order);
                let later = rest.split_off(same.count());
                self.commit(rest, order).await;
                rest = later;
            }
        }
    }

    async fn commit(&mut self, entries: Vec<Entry>, order: Order) {
        let acknowledged = order == Order::Acknowledged;
        if acknowledged && self.stall.refuses(self.lane.now()) {
            let refused = self.not_replicated(self.stall.got);
            return answer_all(entries, &refused);
        }
        let limit = self.lane.command_timeout();
        let mut connected = match tokio::time::timeout(limit, connected(&self.lane)).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(failure)) => return answer_all(entries, &failure),
            Err(_) => return answer_all(entries, &Failure::no_connection()),
        };
        let generation = connected.generation;
        let turn = connected.turn.take();
        // What has no answer when this is dropped is unanswered.
        let exchange = self.exchange(connected, entries, acknowledged);
        let exchange = tokio::time::timeout(limit, exchange);
        let done = match turn {
            None => exchange.await,
            // Nothing that the old master says counts.
            Some(mut turn) => turn.within(exchange).await.unwrap_or(Ok(Err(Broken))),
        };
        if !matches!(done, Ok(Ok(()))) {
            self.lane.replace(generation);
        }
    }

    /// Sends commands, and what their answers lead to.
    async fn exchange(
        &mut self,
        mut connected: Connected,
        mut entries: Vec<Entry>,
        acknowledged: bool,
    ) -> Result<(), Broken> {
        if self.known.0 != connected.generation {
            self.known = (connected.generation, HashSet::new());
        }
        let connection = &mut connected.connection;
        while !entries.is_empty() {
            for entry in &mut entries {
                entry.introduce(&mut self.known.1);
            }
            let sent_at = self.lane.now();
            let (results, got) = self.round(connection, &entries, acknowledged).await?;
            let (mut again, mut undone) = (Vec::new(), Vec::new());
            for (mut entry, result) in entries.into_iter().zip(results) {
                if entry.goes_on(&result) {
                    again.push(entry);
                    continue;
                }
                let outcome = read(result).map(|reply| Answer {
                    reply,
                    sent_at,
                    server_age: None,
                });
                if matches!(&outcome, Err(failure) if failure.class == Class::Demoted) {
                    self.lane.leave(connected.generation);
                }
                match &got {
                    Err(failure) if entry.is_granted(&outcome) => {
                        if entry.undo.is_some() {
                            undone.push(entry);
                        } else {
                            entry.tell(Err(failure.clone()));
                        }
                    }
                    // Enough replicas have it, or there is nothing that they have to have.
                    _ => entry.tell(outcome),
                }
            }
            if let Err(failure) = got {
                self.undo(connection, undone, &failure).await?;
            }
            entries = again;
        }
        Ok(())
    }

    /// Sends each command once, and hears how many replicas have it.
    async fn round(
        &mut self,
        connection: &mut MultiplexedConnection,
        entries: &[Entry],
        acknowledged: bool,
    ) -> Result<(Vec<RedisResult<Value>>, Result<(), Failure>), Broken> {
        let mut pipeline = Pipeline::with_capacity(entries.len() + 1);
        for entry in entries {
            pipeline.add_command(entry.cmd().clone());
        }
        let mut count = entries.len();
        if acknowledged {
            let within_ms = u64::try_from(self.acks.within.as_millis()).unwrap_or(u64::MAX);
            pipeline.cmd("WAIT").arg(self.acks.wanted).arg(within_ms);
            count += 1;
        }
        let sent = connection.send_packed_commands(&pipeline, 0, count).await;
        let mut values = sent.map_err(|_| Broken)?;
        if values.len() != count {
            return Err(Broken);
        }
        self.lane.heard();
        let waited = if acknowledged { values.pop() } else { None };
        let got = waited.map_or(Ok(()), |got| self.count(got));
        Ok((values.into_iter().map(Ok).collect(), got))
    }

    /// What `WAIT` was answered: whether enough replicas have it all.
    fn count(&mut self, waited: Value) -> Result<(), Failure> {
        let got = redis::from_redis_value::<u32>(waited.extract_error()?);
        let got = got.map_err(|_| Failure::strange_reply())?;
        self.stall
            .acknowledged(self.acks.wanted, got, self.lane.now());
        if got >= self.acks.wanted {
            return Ok(());
        }
        Err(self.not_replicated(got))
    }

    /// Takes back what was granted, and tells why.
    async fn undo(
        &mut self,
        connection: &mut MultiplexedConnection,
        mut entries: Vec<Entry>,
        why: &Failure,
    ) -> Result<(), Broken> {
        for entry in &mut entries {
            entry.turn_back();
        }
        while !entries.is_empty() {
            let (results, _) = self.round(connection, &entries, false).await?;
            let mut again = Vec::new();
            for (mut entry, result) in entries.into_iter().zip(results) {
                if entry.goes_on(&result) {
                    again.push(entry);
                } else if read(result).is_ok() {
                    entry.tell(Err(why.clone()));
                }
                // One that could not be taken back is unanswered, and seen to by whoever sent it.
            }
            entries = again;
        }
        Ok(())
    }

    fn not_replicated(&self, got: u32) -> Failure {
        Failure::not_replicated(NotReplicated::new(self.acks.wanted, got))
    }
}

impl Entry {
    /// What is to be sent.
    fn cmd(&self) -> &Cmd {
        self.text.as_ref().unwrap_or(self.call.cmd())
    }

    /// A script goes by its text the first time: to find out by its digest that the server does not know it would cost
    /// a `WAIT`.
    fn introduce(&mut self, known: &mut HashSet<&'static str>) {
        if self.text.is_none()
            && let Some(digest) = self.call.digest()
            && known.insert(digest)
        {
            self.text = self.call.with_text();
        }
    }

    /// Whether something is sent behind this answer: the script's text, or what is asked behind a nil.
    fn goes_on(&mut self, result: &RedisResult<Value>) -> bool {
        if is_unknown_script(result) && self.text.is_none() {
            self.text = self.call.with_text();
            return self.text.is_some();
        }
        let next = match result {
            Ok(value) if self.call.goes_on(value) => self.call.next(),
            _ => None,
        };
        let Some(next) = next else {
            return false;
        };
        (self.call, self.text) = (next, None);
        true
    }

    /// Whether an answer says that something was done which is worth nothing until it is acknowledged.
    fn is_granted(&self, outcome: &Outcome) -> bool {
        match (outcome, &self.undo) {
            (Err(_), _) => false,
            (Ok(_), _) if self.order != Order::Acknowledged => false,
            (Ok(answer), Some(undo)) => (undo.granted)(&answer.reply),
            (Ok(_), None) => true,
        }
    }

    /// From now on it is what takes it back.
    fn turn_back(&mut self) {
        if let Some(undo) = self.undo.take() {
            (self.call, self.text) = (undo.call, None);
        }
    }

    fn tell(self, outcome: Outcome) {
        // Nobody may be there any more: the keeper looks after what was abandoned.
        let _ = self.answer.send(outcome);
    }
}

fn answer_all(entries: Vec<Entry>, failure: &Failure) {
    for entry in entries {
        entry.tell(Err(failure.clone()));
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
        let mut stall = Stall::default();
        assert!(!stall.refuses(at(0)));
        stall.acknowledged(2, 1, at(100));
        assert!(!stall.refuses(at(101)), "one may be chance");
        stall.acknowledged(2, 0, at(300));
        assert!(stall.refuses(at(301)) && stall.refuses(at(1299)));
        assert!(!stall.refuses(at(1300)));
        stall.acknowledged(2, 1, at(1500));
        assert!(stall.refuses(at(2499)) && !stall.refuses(at(2500)));
        stall.acknowledged(2, 2, at(2500));
        assert!(!stall.refuses(at(2501)));
    }
}
