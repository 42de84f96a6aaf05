//! A lane: one multiplexed connection and its reconnection.
//!
//! A connection of redis-rs never reconnects by itself, and its driver lives on the runtime that opened
//! it. So a lane belongs to one runtime, where a task of the lane's own connects on demand: one attempt
//! at a time, [paced](crate::backend::failure::pace) whatever comes of them, everyone waiting under his own deadline.
//!
//! 1. The task ends when the lane is closed, or with its runtime: the lane is `Over` from then on, and says
//!    which of the two it was. Nothing else ends it: what panics while connecting is an attempt that failed.
//! 2. A lane whose commands stay unanswered while nothing else is heard for a command time-out is replaced:
//!    a half-open link tells nobody. [Renewals](super::together) have less time, and leave it sooner.
//! 3. When sentinels name another master the connection is given up, also one that was being made just then.
//! 4. A connection to a server that became a replica stays in use until it may be left: it answers, and
//!    what is sent meanwhile must not wait for the next one.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::timers::Timers;
use crate::backend::connect::{ClusterNode, Connection, Dialer, MasterTerm, ServerInfo};
use crate::backend::failure::{AttemptPace, BrokenLinks, Failure};
use crate::backoff::Backoff;
use crate::clock::{Clock, Moment};
use crate::config::{Acks, Publish};

/// How to connect, and how patiently.
#[derive(Clone)]
pub(crate) struct LaneConfig {
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) clock: Clock,
    pub(crate) backoff: Backoff,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) timers: Timers,
    /// Whether each new connection is asked which server it leads to.
    pub(crate) asks_server: bool,
    /// Told whenever a connection turned out to be broken.
    pub(crate) broken: Arc<BrokenLinks>,
    /// The node of a cluster that it leads to.
    pub(crate) node: Option<Arc<ClusterNode>>,
    /// How replicas must acknowledge what is granted, if they must.
    pub(crate) acks: Option<Acks>,
}

impl LaneConfig {
    /// The same for a node of the cluster.
    pub(crate) fn to(&self, node: &Arc<ClusterNode>) -> Self {
        Self {
            dialer: Arc::clone(node.dialer()),
            node: Some(Arc::clone(node)),
            ..self.clone()
        }
    }

    /// A new connection for commands.
    async fn connect(&self) -> Result<Dialed, Failure> {
        let (mut connection, term) = self.dialer.connect(self.connect_timeout).await?;
        if let Some(node) = &self.node {
            node.greet(&mut connection, self.connect_timeout).await?;
        }
        let mut server = None;
        if self.asks_server {
            let asking = ServerInfo::ask(&mut connection, &self.clock);
            let asked = tokio::time::timeout(self.connect_timeout, asking).await;
            server = Some(asked.unwrap_or_else(|_| Err(Failure::no_connection()))?);
        }
        Ok(Dialed {
            connection,
            term,
            server,
        })
    }
}

/// A new connection.
struct Dialed {
    connection: Connection,
    term: Option<MasterTerm>,
    server: Option<ServerInfo>,
}

pub(crate) struct Lane {
    link: watch::Sender<LaneState>,
    wanted: Notify,
    /// When something was last heard, in nanoseconds of the client's clock.
    heard_at: AtomicU64,
    /// Lanes to the same server, which rest and end with this one.
    beside: Box<[Arc<Self>]>,
    /// Whether a batch of commands is queued that nobody drives yet.
    full: AtomicBool,
    config: LaneConfig,
}

enum LaneState {
    /// Not connected; how many attempts failed so far, and how the last one did.
    Down {
        failures: u64,
        last: Option<Failure>,
    },
    Up {
        connected: Connected,
        /// From when on it may be left if it leads to a replica.
        leave_from: Moment,
    },
    Over(LaneEnd),
}

/// A connection of a lane.
#[derive(Clone)]
pub(crate) struct Connected {
    pub(crate) connection: Connection,
    /// Which of the lane's connections it is.
    pub(crate) generation: u64,
    /// Of the master that it leads to, where that may change.
    pub(crate) term: Option<MasterTerm>,
    /// What the server said of itself on it, if that was asked.
    pub(crate) server: Option<ServerInfo>,
}

/// Why a lane is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneEnd {
    Closed,
    WithRuntime,
    /// Its node left the cluster.
    Retired,
}

impl LaneEnd {
    fn failure(self) -> Failure {
        match self {
            Self::Closed => Failure::closed(),
            Self::WithRuntime => Failure::runtime_ended(),
            Self::Retired => Failure::no_node(),
        }
    }
}

/// After so long without a word a connection is suspected to have been cut.
const QUIET: Duration = Duration::from_secs(1);

impl Lane {
    /// A lane on `runtime`, not connected yet.
    pub(crate) fn open(
        config: LaneConfig,
        beside: Box<[Arc<Self>]>,
        runtime: &Handle,
    ) -> Arc<Self> {
        let lane = Arc::new(Self {
            link: watch::Sender::new(LaneState::Down {
                failures: 0,
                last: None,
            }),
            wanted: Notify::new(),
            heard_at: AtomicU64::new(0),
            beside,
            full: AtomicBool::new(false),
            config,
        });
        let ends = EndsLane(Arc::clone(&lane));
        runtime.spawn(async move { ends.0.live().await });
        lane
    }

    /// The connection, if there is one.
    pub(crate) fn connected(&self) -> Option<Connected> {
        match &*self.link.borrow() {
            LaneState::Up { connected, .. } => Some(connected.clone()),
            LaneState::Down { .. } | LaneState::Over(_) => None,
        }
    }

    /// A batch of commands is queued: somebody is to drive the connection.
    pub(crate) fn is_full(&self) {
        // Relaxed: whoever does not see it leaves it to the connection's own task.
        self.full.store(true, Ordering::Relaxed);
    }

    /// Drives the connection if a batch of commands is queued. It may wake anybody, so no lock may be held.
    pub(crate) fn drive_if_full(&self) {
        // Relaxed, as above.
        if self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::Relaxed) {
            self.drive();
        }
    }

    /// Drives the connection, if there is one. It may wake anybody, so no lock may be held.
    pub(crate) fn drive(&self) {
        if let Some(connected) = self.connected() {
            connected.connection.drive();
        }
    }

    /// The connection. Connects when there is none; fails with the outcome of the first attempt that ends from
    /// now on.
    pub(crate) async fn connect(&self) -> Result<Connected, Failure> {
        let seen = match &*self.link.borrow() {
            LaneState::Up { connected, .. } => return Ok(connected.clone()),
            LaneState::Down { failures, .. } => *failures,
            LaneState::Over(end) => return Err(end.failure()),
        };
        let mut link = self.link.subscribe();
        self.wanted.notify_one();
        let decided = |link: &LaneState| !matches!(link, LaneState::Down { failures, .. } if *failures == seen);
        match link.wait_for(decided).await.as_deref() {
            Ok(LaneState::Up { connected, .. }) => Ok(connected.clone()),
            Ok(LaneState::Down { last, .. }) => {
                Err(last.clone().unwrap_or_else(Failure::no_connection))
            }
            Ok(LaneState::Over(end)) => Err(end.failure()),
            // The lane itself keeps the other end.
            Err(_) => Err(Failure::closed()),
        }
    }

    /// The number of the node that it leads to; 0 for the one server that there is.
    pub(crate) fn node(&self) -> u32 {
        self.config.node.as_ref().map_or(0, |node| node.number())
    }

    /// How releases are told there.
    pub(crate) fn publish(&self) -> Publish {
        let node = self.config.node.as_ref();
        node.map_or(Publish::Classic, |node| node.publish())
    }

    /// The host that it leads to.
    pub(crate) fn host(&self) -> &str {
        match &self.config.node {
            Some(node) => node.host(),
            None => self.config.dialer.host(),
        }
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.config.command_timeout
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.config.timers
    }

    /// The time by the client's clock.
    pub(crate) fn now(&self) -> Moment {
        self.config.clock.now()
    }

    /// Something was heard on the lane. The moment stands for itself, so no order is needed with anything.
    pub(crate) fn heard(&self) {
        // Relaxed: a time that stands for itself.
        self.heard_at
            .store(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// When something was last heard.
    pub(crate) fn heard_at(&self) -> Moment {
        Moment::from_nanos(self.heard_at.load(Ordering::Relaxed))
    }

    /// Whether nothing was heard for so long that the connection may have been cut meanwhile.
    pub(crate) fn is_quiet(&self) -> bool {
        self.heard_at().until(self.now()) >= QUIET
    }

    /// A command went unanswered for a command time-out: replaces the connection if nothing else was
    /// heard on it either. One that came up meanwhile was heard of when it did.
    pub(crate) fn overdue(&self) {
        if self.is_silent_for(self.config.command_timeout) {
            self.give_up(|_, _| true);
        }
    }

    /// Whether nothing was heard for `span`.
    pub(crate) fn is_silent_for(&self, span: Duration) -> bool {
        self.heard_at().until(self.now()) >= span
    }

    /// Another server is the master now (by 3).
    pub(crate) fn switch(&self) {
        self.give_up(|_, _| true);
        for lane in &self.beside {
            lane.switch();
        }
    }

    /// Gives up the connection `broken`, if it still is the one in use.
    pub(crate) fn replace(&self, broken: u64) {
        self.give_up(|generation, _| generation == broken);
    }

    /// The server of connection `demoted` is a replica: leaves it, unless that is to wait (by 4).
    pub(crate) fn leave(&self, demoted: u64) {
        let now = self.now();
        self.give_up(|generation, leave_from| generation == demoted && now >= leave_from);
    }

    fn give_up(&self, is_meant: impl FnOnce(u64, Moment) -> bool) {
        let replaced = self.link.send_if_modified(|link| match link {
            LaneState::Up {
                connected,
                leave_from,
            } if is_meant(connected.generation, *leave_from) => {
                *link = LaneState::Down {
                    failures: 0,
                    last: None,
                };
                true
            }
            _ => false,
        });
        if replaced {
            // Somebody may wait for the connection that came and went meanwhile; nobody else asks for the next.
            self.wanted.notify_one();
            self.config.broken.add(self.node());
        }
    }

    /// Waits until connection `left` is not in use any more.
    pub(crate) async fn has_left(&self, left: u64) {
        let is_used = |link: &LaneState| matches!(link, LaneState::Up { connected, .. } if connected.generation == left);
        // The lane itself keeps the other end.
        let _ = self.link.subscribe().wait_for(|link| !is_used(link)).await;
    }

    /// Whether the lane is connected, and which connection it is.
    pub(crate) fn generation(&self) -> Option<u64> {
        match &*self.link.borrow() {
            LaneState::Up { connected, .. } => Some(connected.generation),
            _ => None,
        }
    }

    /// Whether it connects no more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(&*self.link.borrow(), LaneState::Over(_))
    }

    /// Gives its connections up, until they are wanted again.
    pub(crate) fn rest(&self) {
        for lane in &self.beside {
            lane.rest();
        }
        self.link.send_if_modified(|link| {
            let up = matches!(link, LaneState::Up { .. });
            if up {
                *link = LaneState::Down {
                    failures: 0,
                    last: None,
                };
            }
            up
        });
    }

    /// Its node left the cluster.
    pub(crate) fn retire(&self) {
        self.end(LaneEnd::Retired);
    }

    /// Ends the lane and its connection.
    pub(crate) fn close(&self) {
        self.end(LaneEnd::Closed);
    }

    /// Why nothing is sent on it any more, if it is over.
    pub(crate) fn end_of_it(&self) -> Option<Failure> {
        match &*self.link.borrow() {
            LaneState::Over(end) => Some(end.failure()),
            LaneState::Down { .. } | LaneState::Up { .. } => None,
        }
    }

    fn end(&self, end: LaneEnd) {
        for lane in &self.beside {
            lane.end(end);
        }
        self.link.send_if_modified(|link| {
            let first = !matches!(link, LaneState::Over(_));
            if first {
                *link = LaneState::Over(end);
            }
            first
        });
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
            let connecting = AssertUnwindSafe(self.keep_connected(&mut pace, &mut generation));
            // A subscriber of tracing events is code of the application, and may panic.
            let _panic = connecting.catch_unwind().await;
            // Somebody may still want a connection. The pace keeps this from being a busy loop.
            self.wanted.notify_one();
            tokio::task::yield_now().await;
        }
    }

    async fn keep_connected(&self, pace: &mut AttemptPace, generation: &mut u64) {
        loop {
            self.wanted.notified().await;
            if !matches!(&*self.link.borrow(), LaneState::Down { .. }) {
                continue;
            }
            tokio::time::sleep(pace.wait(self.now())).await;
            let leave_from = pace.attempt(self.now());
            match self.config.connect().await {
                Ok(dialed) => {
                    *generation += 1;
                    self.heard();
                    let was_away = *generation == 1 && self.has_failed();
                    let connected = Connected {
                        connection: dialed.connection,
                        generation: *generation,
                        term: dialed.term,
                        server: dialed.server,
                    };
                    self.settle(LaneState::Up {
                        connected,
                        leave_from,
                    });
                    if was_away {
                        // The server may have lost what it had while it was away, and no connection broke to tell of that.
                        self.config.broken.add(self.node());
                    }
                }
                Err(failure) => self.fail(failure),
            }
        }
    }

    /// Whether an attempt to connect failed since there was a connection.
    fn has_failed(&self) -> bool {
        matches!(&*self.link.borrow(), LaneState::Down { failures, .. } if *failures > 0)
    }

    fn settle(&self, up: LaneState) {
        self.link.send_if_modified(|link| {
            let open = !matches!(link, LaneState::Over(_));
            if open {
                *link = up;
            }
            open
        });
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

/// A task that ends although the lane was not closed went with its runtime.
struct EndsLane(Arc<Lane>);

impl Drop for EndsLane {
    fn drop(&mut self) {
        self.0.end(LaneEnd::WithRuntime);
    }
}
