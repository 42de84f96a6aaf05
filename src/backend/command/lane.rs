//! A lane: one multiplexed connection that is replaced when it breaks.
//!
//! A connection of redis-rs does not reconnect, and its driver lives on the runtime that opened it. So a lane belongs to
//! one runtime. A task of its own connects on demand, one attempt at a time, [paced](crate::backend::failure::AttemptPace);
//! all commands that wait for the connection have deadlines of their own.
//!
//! 1. The task ends when the lane is ended or its runtime ends; the lane is `Over` then, and says why. If a function of
//!    the application panics while connecting, the attempt has failed.
//! 2. A connection is replaced when a command had no reply for a command time-out, and nothing at all was read for as
//!    long, or since the command was written: a half-open link reports no error. A command that waits for its turn says
//!    nothing about the server, nor does a runtime that is [blocked](super::send). For a renewal two round trips of
//!    silence are enough, so that a second connection gets its chance within the lease.
//! 3. When the sentinels name another master, the connection is given up, and so is an attempt in progress.
//! 4. A connection to a server that became a replica stays in use for a pause: it answers, and commands need not wait for
//!    the next connection. If it is the server's role that shows it, commands fail before they are sent: a replica that
//!    takes writes (`replica-read-only no`) would grant what the master grants, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use scopeguard::guard;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::window::{Place, Queueable, Window};
use crate::backend::connect::{ClusterNode, Connection, Dialer, Hello, MasterTerm, ServerInfo};
use crate::backend::failure::{AttemptPace, Failure};
use crate::backend::timers::Timers;
use crate::backoff::Backoff;
use crate::clock::{Clock, Moment};
use crate::config::{Acks, Publish};
use crate::host::own;

/// How to connect, and how patiently.
#[derive(Clone)]
pub(crate) struct LaneConfig {
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) clock: Clock,
    pub(crate) backoff: Backoff,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) timers: Timers,
    /// Whether to ask for run id and uptime on each new connection.
    pub(crate) asks_server: bool,
    pub(crate) broken: Arc<BrokenLinks>,
    pub(crate) node: Option<Arc<ClusterNode>>,
    pub(crate) acks: Option<Acks>,
    pub(crate) metrics: crate::report::Metrics,
    /// Whose commands its lanes carry, in metrics.
    pub(crate) used_by: &'static str,
}

impl LaneConfig {
    /// The same settings for a node of the cluster.
    pub(crate) fn to(&self, node: &Arc<ClusterNode>) -> Self {
        Self {
            dialer: Arc::clone(&node.dialer),
            node: Some(Arc::clone(node)),
            ..self.clone()
        }
    }

    /// A new connection for commands, with this number on its lane.
    pub(crate) async fn connect(&self, generation: u64) -> Result<Connected, Failure> {
        let limit = self.connect_timeout;
        let (mut connection, term) = self.dialer.connect(&self.timers, limit).await?;
        self.greet(&mut connection).await?;
        let mut server = None;
        if self.asks_server {
            let asking = ServerInfo::ask(&mut connection, &self.clock);
            let asked = self.timers.within_run_time(limit, asking).await;
            server = Some(asked.unwrap_or_else(|| Err(Failure::slow_connect(limit)))?);
        }
        Ok(Connected {
            connection,
            generation,
            term,
            server,
            is_replicas: false,
        })
    }

    /// Greets the node at the other end of a new connection, if it is one of a cluster.
    pub(crate) async fn greet(&self, connection: &mut Connection) -> Result<(), Failure> {
        let Some(node) = &self.node else {
            return Ok(());
        };
        let limit = self.connect_timeout;
        let greeting = node.greet(connection);
        let greeted = self.timers.within_run_time(limit, greeting).await;
        greeted.unwrap_or_else(|| Err(Failure::slow_connect(limit)))
    }
}

/// Which connections broke: the keeper waits for it. Number 0 is the one server, the others are nodes of a cluster.
#[derive(Default)]
pub(crate) struct BrokenLinks {
    nodes: Mutex<BTreeSet<u32>>,
    added: Notify,
}

impl BrokenLinks {
    fn add(&self, node: Option<&Arc<ClusterNode>>) {
        let number = node.map_or(0, |node| node.number);
        self.nodes.lock().insert(number);
        self.added.notify_one();
    }

    /// A node cannot be connected to.
    pub(crate) fn unreached(&self) {
        self.added.notify_one();
    }

    /// Waits until a connection breaks, or cannot be made; returns the nodes whose connections broke.
    pub(crate) async fn wait(&self) -> BTreeSet<u32> {
        self.added.notified().await;
        // No await after this one, so a future that is dropped early has not taken the permit.
        std::mem::take(&mut *self.nodes.lock())
    }
}

pub(crate) struct Lane {
    link: watch::Sender<LaneState>,
    wanted: Notify,
    window: Window,
    /// One of `AckLanes`, where commands share a `WAIT`: each batch that has no reply yet has a clone.
    batches: Option<Arc<()>>,
    runtime: Handle,
    /// When something was last received, in nanoseconds of the client's clock.
    heard_at: AtomicU64,
    /// How long replies took lately, in nanoseconds.
    round_trip: AtomicU64,
    /// When the last knock was taken, by the same clock.
    knocked_at: AtomicU64,
    /// Lanes to the same server, which rest and end with this one.
    beside: Box<[Arc<Self>]>,
    /// Whether a batch of commands is queued that nobody has driven yet.
    full: AtomicBool,
    /// The server said that it is a replica, so new connections ask for its role, until one leads to a master.
    demoted: AtomicBool,
    /// On which connection the text of a script was last sent, by its digest, and when.
    texts: Mutex<BTreeMap<&'static str, (u64, Moment)>>,
    config: LaneConfig,
}

enum LaneState {
    /// Not connected: how many attempts failed, and the last failure.
    Down {
        failures: u64,
        last: Option<Failure>,
    },
    Up {
        connected: Connected,
        /// When it may be replaced if the server is a replica (rule 4: it stays in use for a pause).
        leave_from: Moment,
    },
    /// Ended, and why.
    Over(Failure),
}

impl LaneState {
    const DOWN: Self = Self::Down {
        failures: 0,
        last: None,
    };
}

/// A connection of a lane.
#[derive(Clone)]
pub(crate) struct Connected {
    pub(crate) connection: Connection,
    /// The number of the connection on this lane.
    pub(crate) generation: u64,
    /// The term of the master it leads to; none if the master cannot change.
    pub(crate) term: Option<MasterTerm>,
    /// None unless `asks_server`.
    pub(crate) server: Option<ServerInfo>,
    /// The server said that it is a replica.
    pub(crate) is_replicas: bool,
}

impl Connected {
    /// Whether a command would be sent on it at once, as far as is known.
    pub(super) fn is_usable(&self) -> bool {
        let is_over = self.term.as_ref().is_some_and(MasterTerm::is_over);
        !self.is_replicas && !is_over && !self.connection.has_ended()
    }

    /// Asks the server whether it is a replica; none if it does not say that in time.
    async fn asks_role(&mut self, timers: &Timers, limit: Duration) -> Option<bool> {
        let asking = timers.within(limit, Hello::of(&mut self.connection));
        asking.await?.ok().map(|hello| hello.is_replica())
    }
}

/// A shorter silence does not show that the connection or the server is broken.
pub(crate) const MIN_SILENCE: Duration = Duration::from_millis(100);

/// After so long without a reply the connection may have been cut.
const QUIET: Duration = Duration::from_secs(1);

/// For how long one knock serves all commands. Most often a reply comes sooner; if none comes, the connection may have
/// been cut since.
const KNOCK_SERVES: Duration = Duration::from_millis(10);

impl Lane {
    /// A lane on `runtime`, not connected yet. `acknowledges`: it carries commands that replicas acknowledge.
    pub(crate) fn open(
        config: LaneConfig,
        beside: Box<[Arc<Self>]>,
        runtime: &Handle,
        acknowledges: bool,
    ) -> Arc<Self> {
        let lane = Arc::new(Self {
            link: watch::Sender::new(LaneState::DOWN),
            wanted: Notify::new(),
            window: Window::new(config.command_timeout),
            batches: acknowledges.then(Arc::default),
            runtime: runtime.clone(),
            heard_at: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
            knocked_at: AtomicU64::new(0),
            beside,
            full: AtomicBool::new(false),
            demoted: AtomicBool::new(false),
            texts: Mutex::default(),
            config,
        });
        // If the lane's task ends before the lane, its runtime ended.
        let lives = guard(Arc::clone(&lane), |lane| {
            lane.end(&Failure::runtime_ended());
        });
        runtime.spawn(own(async move { lives.live().await }));
        lane
    }

    pub(crate) fn connected(&self) -> Option<Connected> {
        self.with_connected(Connected::clone)
    }

    pub(super) fn with_connected<R>(&self, look: impl FnOnce(&Connected) -> R) -> Option<R> {
        match &*self.link.borrow() {
            LaneState::Up { connected, .. } => Some(look(connected)),
            LaneState::Down { .. } | LaneState::Over(_) => None,
        }
    }

    /// Notes that a batch of commands is queued, so that the connection must be driven.
    pub(crate) fn fill(&self) {
        // Relaxed: if a thread misses it, the connection's own task drives.
        self.full.store(true, Ordering::Relaxed);
    }

    /// Drives the connection if a batch is queued. May wake any task, so no lock may be held.
    pub(crate) fn drive_if_full(&self) {
        // Relaxed, as in `fill`.
        if self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::Relaxed) {
            self.drive();
        }
    }

    /// Drives the connection, if there is one. May wake any task, so no lock may be held.
    pub(crate) fn drive(&self) {
        if let Some(connected) = self.connected() {
            connected.connection.drive();
        }
    }

    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    /// Hands over queued commands while there are places. Polls them, so no lock may be held.
    pub(super) fn admit(&self) {
        if self.window.is_awaited() {
            self.window.admit();
        }
    }

    /// A command waits: connects if there is no connection.
    pub(super) fn want(&self) {
        if !matches!(&*self.link.borrow(), LaneState::Up { .. }) {
            self.wanted.notify_one();
        }
    }

    /// Why a command that waited was not sent.
    pub(super) fn not_sent(&self) -> Failure {
        match &*self.link.borrow() {
            LaneState::Down {
                last: Some(last), ..
            } => last.clone(),
            LaneState::Over(end) => end.clone(),
            LaneState::Down { last: None, .. } => {
                Failure::no_connection_within(self.config.command_timeout)
            }
            LaneState::Up { .. } => Failure::not_sent(),
        }
    }

    /// Keeps the place of a command that nobody awaits any more until it is answered, because it is on the connection until
    /// then. A command for acknowledgement gives its place back at once: if it was not sent yet, it never will be.
    pub(super) fn answer_later(
        self: &Arc<Self>,
        took: impl Future<Output = Option<Duration>> + Send + 'static,
        place: Place,
    ) {
        if self.batches.is_some() {
            drop(took);
            return self.window.leave(place, None);
        }
        let lane = Arc::clone(self);
        self.start_task(async move {
            let took = took.await;
            lane.window.leave(place, took);
            lane.admit();
        });
    }

    /// Has the lane's runtime poll a command: a waker calls this, perhaps under a lock, so it must not poll by itself.
    pub(super) fn poll_soon(self: &Arc<Self>, command: Weak<dyn Queueable>) {
        if self.window.note_woken(command) {
            let lane = Arc::clone(self);
            self.start_task(async move { lane.window.poll_woken() });
        }
    }

    /// Starts a task on its runtime.
    pub(super) fn start_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(own(task));
    }

    /// Connects if there is no connection. Fails if the next attempt that ends fails.
    pub(crate) async fn connect(&self) -> Result<Connected, Failure> {
        let seen = match &*self.link.borrow() {
            LaneState::Up { connected, .. } => return Ok(connected.clone()),
            LaneState::Down { failures, .. } => *failures,
            LaneState::Over(end) => return Err(end.clone()),
        };
        let mut link = self.link.subscribe();
        self.wanted.notify_one();
        let decided = |link: &LaneState| !matches!(link, LaneState::Down { failures, .. } if *failures == seen);
        match link.wait_for(decided).await.as_deref() {
            Ok(LaneState::Up { connected, .. }) => Ok(connected.clone()),
            Ok(LaneState::Down { last, .. }) => {
                Err(last.clone().unwrap_or_else(Failure::no_connection))
            }
            Ok(LaneState::Over(end)) => Err(end.clone()),
            // The lane owns the sender, so this does not happen.
            Err(_) => Err(Failure::closed()),
        }
    }

    /// The node; none if there is one server.
    pub(crate) fn node(&self) -> Option<&Arc<ClusterNode>> {
        self.config.node.as_ref()
    }

    /// How releases are published there.
    pub(crate) fn publish(&self) -> Publish {
        self.node().map_or(Publish::Classic, |node| node.publish())
    }

    pub(crate) fn host(&self) -> &str {
        self.config.dialer.host()
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.config.command_timeout
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.config.timers
    }

    pub(crate) fn now(&self) -> Moment {
        self.config.clock.now()
    }

    /// Notes that the text of a script is sent on a connection.
    pub(super) fn sends_text(&self, digest: &'static str, generation: u64) {
        let sent = (generation, self.now());
        self.texts.lock().insert(digest, sent);
    }

    /// Whether the text of a script was sent on a connection after a command that was sent at `sent_at`: the server knows
    /// the script by now.
    pub(super) fn has_sent_text(
        &self,
        digest: &'static str,
        generation: u64,
        sent_at: Moment,
    ) -> bool {
        let texts = self.texts.lock();
        let sent = texts.get(digest);
        sent.is_some_and(|(on, at)| *on == generation && *at >= sent_at)
    }

    /// Records that something was received on the lane.
    pub(crate) fn heard(&self) {
        // Relaxed: a time that stands for itself.
        self.heard_at
            .store(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// Records the reply to a command that was sent at `sent_at`.
    pub(super) fn answered(&self, sent_at: Moment) {
        self.heard();
        let took = self.now().as_nanos().saturating_sub(sent_at.as_nanos());
        // Relaxed: an estimate, in which one reply more or less counts little. One slow reply is soon forgotten.
        let before = self.round_trip.load(Ordering::Relaxed);
        let kept = before - before / 4;
        self.round_trip.store(took.max(kept), Ordering::Relaxed);
    }

    /// The longest silence of a server that is well: two round trips. After a longer one the connection may have been cut.
    pub(super) fn longest_silence(&self) -> Duration {
        // Relaxed, as in `answered`.
        let round_trip = Duration::from_nanos(self.round_trip.load(Ordering::Relaxed));
        let acks = self.config.acks.filter(|_| self.batches.is_some());
        let least = MIN_SILENCE + acks.map_or(Duration::ZERO, |acks| acks.within);
        // However short a command time-out is, its silence counts.
        least.max(round_trip * 2).min(self.config.command_timeout)
    }

    /// How long the server may be silent while commands wait behind a batch that replicas must acknowledge.
    pub(super) fn waits_for_replicas(&self) -> Duration {
        if self.batches.is_some() {
            self.command_timeout()
        } else {
            Duration::ZERO
        }
    }

    /// A batch has this while it has no reply.
    pub(super) fn batch(&self) -> Option<Arc<()>> {
        self.batches.clone()
    }

    /// Whether a batch is under way, so that the server owes a reply.
    pub(super) fn has_batch(&self) -> bool {
        let batches = self.batches.as_ref();
        batches.is_some_and(|batches| Arc::strong_count(batches) > 1)
    }

    pub(crate) fn heard_at(&self) -> Moment {
        Moment::from_nanos(self.heard_at.load(Ordering::Relaxed))
    }

    /// Whether the connection may have been cut since something was last received, and took no knock just now.
    pub(crate) fn needs_knock(&self) -> bool {
        let now = self.now();
        // Relaxed: a time that stands for itself. If a task misses a knock, it only sends its own.
        let knocked_at = Moment::from_nanos(self.knocked_at.load(Ordering::Relaxed));
        self.heard_at().until(now) >= QUIET && knocked_at.until(now) >= KNOCK_SERVES
    }

    pub(crate) fn knocked(&self) {
        // Relaxed, as in `needs_knock`.
        self.knocked_at
            .store(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// Whether nothing was received for `span`.
    pub(crate) fn is_silent_for(&self, span: Duration) -> bool {
        self.heard_at().until(self.now()) >= span
    }

    /// Another server is the master now: the connection is given up (rule 3).
    pub(crate) fn switch(&self) {
        self.give_up(|_, _| true);
        for lane in &self.beside {
            lane.switch();
        }
    }

    /// Gives up the connection `broken` if it is still in use.
    pub(crate) fn replace(&self, broken: u64) {
        self.give_up(|generation, _| generation == broken);
    }

    /// The server of connection `demoted` is a replica. Gives the connection up, unless its pause is not over (rule 4).
    pub(crate) fn leave(&self, demoted: u64) {
        let now = self.now();
        self.give_up(|generation, leave_from| generation == demoted && now >= leave_from);
    }

    /// Asks the server whether it is a replica by now, and gives the connection up then. Not in a cluster, whose replicas
    /// redirect. If there is no answer, the commands that go with the question find out why.
    pub(crate) async fn is_demoted(&self) -> bool {
        let connected = self.connected().filter(|_| self.config.node.is_none());
        let Some(mut connected) = connected else {
            return false;
        };
        let limit = self.config.command_timeout;
        if connected.asks_role(self.timers(), limit).await != Some(true) {
            return false;
        }
        self.set_role(connected.generation, true);
        self.leave(connected.generation);
        for lane in &self.beside {
            Box::pin(lane.is_demoted()).await;
        }
        true
    }

    /// Asks a server that was a replica whether it is a master again. Without an answer it is not.
    pub(super) async fn is_master_again(&self, connected: &mut Connected) -> bool {
        let limit = self.command_timeout();
        if connected.asks_role(self.timers(), limit).await != Some(false) {
            return false;
        }
        self.set_role(connected.generation, false);
        true
    }

    /// Notes what the server said on a connection, for this one and the next.
    fn set_role(&self, generation: u64, is_replicas: bool) {
        // Relaxed: only the lane's task reads it.
        self.demoted.store(is_replicas, Ordering::Relaxed);
        self.link.send_if_modified(|link| match link {
            LaneState::Up { connected, .. } if connected.generation == generation => {
                connected.is_replicas = is_replicas;
                true
            }
            _ => false,
        });
    }

    fn give_up(&self, is_meant: impl FnOnce(u64, Moment) -> bool) {
        if self.disconnect(is_meant) {
            // A command may wait for the connection that came and went, and nobody else asks for the next one.
            self.wanted.notify_one();
            self.config.broken.add(self.node());
        }
    }

    /// Drops the connection if it is meant. Returns whether it was.
    fn disconnect(&self, is_meant: impl FnOnce(u64, Moment) -> bool) -> bool {
        self.link.send_if_modified(|link| match link {
            LaneState::Up {
                connected,
                leave_from,
            } if is_meant(connected.generation, *leave_from) => {
                *link = LaneState::DOWN;
                self.window.close();
                true
            }
            _ => false,
        })
    }

    /// Waits until the connection `left` is given up.
    pub(crate) async fn has_left(&self, left: u64) {
        let is_left = |link: &LaneState| !matches!(link, LaneState::Up { connected, .. } if connected.generation == left);
        // The lane owns the sender, so this never fails.
        let _ = self.link.subscribe().wait_for(is_left).await;
    }

    /// Whether it uses the connection of this number.
    pub(crate) fn is_on(&self, generation: u64) -> bool {
        matches!(&*self.link.borrow(), LaneState::Up { connected, .. } if connected.generation == generation)
    }

    /// Gives up its connections until they are needed again.
    pub(crate) fn rest(&self) {
        for lane in &self.beside {
            lane.rest();
        }
        self.disconnect(|_, _| true);
        // Its own task looks at the link, and so does who waits in `connect`, for the connection that came and went.
        if self.window.is_awaited() || self.link.receiver_count() > 1 {
            self.wanted.notify_one();
        }
    }

    /// Why it has ended, if it has: then it does not connect again.
    pub(crate) fn end_of_it(&self) -> Option<Failure> {
        match &*self.link.borrow() {
            LaneState::Over(end) => Some(end.clone()),
            LaneState::Down { .. } | LaneState::Up { .. } => None,
        }
    }

    /// Ends it; its waiting commands fail by `end`.
    pub(crate) fn end(&self, end: &Failure) {
        for lane in &self.beside {
            lane.end(end);
        }
        self.link.send_if_modified(|link| {
            let first = !matches!(link, LaneState::Over(_));
            if first {
                *link = LaneState::Over(end.clone());
                self.window.close();
            }
            first
        });
        self.fail_waiting(end, true);
    }

    /// Fails the queued commands; the patient ones only with `all`.
    fn fail_waiting(&self, failure: &Failure, all: bool) {
        for command in self.window.take_out(all) {
            if let Some(command) = command.upgrade() {
                command.fail_unsent(failure);
            }
        }
    }

    /// The lane's task.
    async fn live(&self) {
        let mut link = self.link.subscribe();
        tokio::select! {
            biased;
            _ = link.wait_for(|link| matches!(link, LaneState::Over(_))) => {}
            () = self.connect_on_demand() => {}
        }
    }

    async fn connect_on_demand(&self) {
        let mut pace = AttemptPace::new(self.config.backoff, fastrand::u64(..));
        let mut generation = 0;
        loop {
            self.wanted.notified().await;
            if !matches!(&*self.link.borrow(), LaneState::Down { .. }) {
                continue;
            }
            self.timers().sleep(pace.wait(self.now())).await;
            let since = self.now();
            let leave_from = pace.attempt(since);
            let config = &self.config;
            let connected = config.connect(generation + 1).await;
            match config.metrics.connected(config.used_by, connected) {
                Ok(mut connected) => {
                    generation += 1;
                    // Some round trips, until a reply says how long one takes.
                    self.answered(since);
                    // Relaxed, as in `set_role`.
                    if self.demoted.load(Ordering::Relaxed) {
                        let limit = self.config.connect_timeout;
                        let role = connected.asks_role(self.timers(), limit).await;
                        connected.is_replicas = role == Some(true);
                        self.demoted.store(connected.is_replicas, Ordering::Relaxed);
                    }
                    let failed = self.succeed(connected, leave_from);
                    self.admit();
                    if generation == 1 && failed > 0 {
                        // The server may have lost its data while it was away, and no broken connection shows it.
                        self.config.broken.add(self.node());
                    }
                }
                Err(failure) => {
                    self.fail(failure.clone());
                    if self.config.node.is_some() {
                        // The node may have left the cluster.
                        self.config.broken.unreached();
                    }
                    self.fail_waiting(&failure, false);
                    if self.window.is_awaited() {
                        self.wanted.notify_one();
                    }
                }
            }
        }
    }

    /// An attempt succeeded. Returns how many failed before it.
    fn succeed(&self, connected: Connected, leave_from: Moment) -> u64 {
        let mut failed = 0;
        self.link.send_if_modified(|link| {
            let LaneState::Down { failures, .. } = *link else {
                return false;
            };
            failed = failures;
            self.window.open(connected.generation);
            *link = LaneState::Up {
                connected,
                leave_from,
            };
            true
        });
        failed
    }

    fn fail(&self, failure: Failure) {
        self.link.send_if_modified(|link| match link {
            LaneState::Down { failures, last } => {
                *failures += 1;
                *last = Some(failure);
                true
            }
            _ => false,
        });
    }
}
