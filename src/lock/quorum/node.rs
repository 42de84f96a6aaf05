//! One server of a quorum, and whether it is worth asking.
//!
//! A node that does not answer in time is *silent*: no acquire asks it until it answers a probe, which the steward
//! repeats with growing delays. So a dead minority costs one time-out, once.
//!
//! A try first waits for a connection, for which it has the connect time-out. Only then its time begins, which depends on
//! the measured round trip: a server that is far away, or was not asked for a while, is not silent. It begins anew with
//! each answer to another command, for a command time-out at most: of a thousand tries at once, most wait for the others.
//!
//! An address may lead to another server with each new connection. So the server at the other end is compared with those
//! of the other nodes before a try is sent, and again when the connection was replaced meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::rules::NodeTimeout;
use crate::backend::{Class, Connected, Failure, Hello, Lane, Pending, connected};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::engine::caller::acquire::{AcquireOutcome, acquire, request};
use crate::engine::core::Core;
use crate::engine::hold::kind::Kind;
use crate::engine::keeper::Engine;
use crate::engine::keeper::Hub;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::guard::LockGuard;
use crate::script::Call;

pub(crate) struct QuorumNode {
    pub(super) engine: Arc<Engine>,
    /// Receives wake-ups for waiters; used on the steward's runtime.
    pub(super) hub: Hub,
    about: Mutex<About>,
}

/// What is known of the server that the address leads to.
#[derive(Default)]
struct About {
    silent: bool,
    /// The steward probes it.
    probed: bool,
    /// A late round waits for anything that it sends.
    watched: bool,
    /// Until when it may not vote, as far as known.
    young_until: Moment,
    run_id: Option<Arc<str>>,
    /// What its greeting said that keeps it out of the quorum.
    unfit: Option<&'static str>,
    /// The connection on which it was asked for its run id.
    generation: u64,
    /// Why it cannot be part of the quorum.
    problem: Option<&'static str>,
    round_trip: Duration,
    /// The connection on which the round trip was measured first.
    measured_on: u64,
}

pub(super) type NodeAnswer = AcquireOutcome<LockGuard>;

/// A try at one node, with its place.
pub(super) type NodeTry = BoxFuture<'static, (usize, Result<NodeAnswer, Error>)>;

impl QuorumNode {
    /// A node with this run id, or none if it was not reached yet.
    pub(crate) fn new(engine: Arc<Engine>, run_id: Option<Arc<str>>) -> Self {
        Self {
            hub: Hub::new(&engine.core.backend.config, &engine.core.backend.cluster),
            engine,
            about: Mutex::new(About {
                silent: run_id.is_none(),
                run_id,
                ..About::default()
            }),
        }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    /// Whether acquires skip it.
    pub(super) fn is_silent(&self) -> bool {
        let about = self.about.lock();
        about.silent || about.problem.is_some()
    }

    /// Its run id, which is random at each start.
    pub(super) fn server(&self) -> Option<Arc<str>> {
        self.about.lock().run_id.clone()
    }

    /// Why it cannot be part of a quorum, by its last greeting.
    pub(super) fn unfit(&self) -> Option<&'static str> {
        self.about.lock().unfit
    }

    pub(super) fn problem(&self) -> Option<&'static str> {
        self.about.lock().problem
    }

    /// Notes whether it cannot be part of the quorum. Returns what was noted before.
    pub(super) fn set_problem(&self, problem: Option<&'static str>) -> Option<&'static str> {
        std::mem::replace(&mut self.about.lock().problem, problem)
    }

    /// Fails while it cannot be part of the quorum.
    pub(super) fn check_fit(&self) -> Result<(), Error> {
        match self.problem() {
            None => Ok(()),
            Some(problem) => Err(Failure::of(Class::Unreached, problem).into()),
        }
    }

    /// Notes which server is at the other end of this connection. Returns whether the connection is a new one.
    pub(super) fn meets(&self, connected: &Connected) -> bool {
        let mut about = self.about.lock();
        let is_new = about.generation != connected.generation;
        if let Some(server) = connected.server.as_ref().filter(|_| is_new) {
            about.generation = connected.generation;
            about.run_id = Some(Arc::clone(&server.run_id));
        }
        is_new
    }

    /// Notes whether a late round waits for anything that it sends. Returns whether that is a change.
    pub(super) fn set_watched(&self, now: bool) -> bool {
        std::mem::replace(&mut self.about.lock().watched, now) != now
    }

    /// It answered. Returns whether it was silent before.
    pub(super) fn answered(&self) -> bool {
        std::mem::take(&mut self.about.lock().silent)
    }

    /// It did not answer. Returns whether the caller must start to probe it.
    pub(super) fn fell_silent(&self) -> bool {
        let mut about = self.about.lock();
        about.silent = true;
        !std::mem::replace(&mut about.probed, true)
    }

    /// The steward probes it no more.
    pub(super) fn is_back(&self) {
        self.about.lock().probed = false;
    }

    pub(super) fn set_young_until(&self, until: Moment) {
        self.about.lock().young_until = until;
    }

    pub(super) fn may_vote_at(&self, now: Moment) -> bool {
        now >= self.about.lock().young_until
    }

    /// Its round trip, as it was measured; zero before that.
    pub(super) fn round_trip(&self) -> Duration {
        self.about.lock().round_trip
    }

    /// Waits until this runtime has a connection to it, for a connect time-out at most.
    pub(super) async fn connect(&self) -> Result<Connected, Error> {
        let backend = &self.core().backend;
        let fleet = backend.callers_fleet()?;
        let limit = backend.config.connect_timeout;
        let connecting = Box::pin(connected(fleet.home()));
        let connected = backend.timers().within(limit, connecting).await;
        let connected = connected.unwrap_or_else(|| Err(Failure::slow_connect(limit)))?;
        if let Some(server) = &connected.server {
            let mut about = self.about.lock();
            if about.measured_on != connected.generation {
                about.round_trip = server.round_trip;
                about.measured_on = connected.generation;
            }
        }
        Ok(connected)
    }

    /// The answer to one try to take the lock there, without an owner. A try that is dropped, or has no answer in time, is
    /// undone by the node's client. `check` fails for a server that cannot be part of the quorum.
    pub(super) async fn answer(
        &self,
        kind: Kind,
        lease: Lease,
        timeout: NodeTimeout,
        check: impl Fn(&Connected) -> Result<(), Error>,
    ) -> Result<NodeAnswer, Error> {
        let core = self.core();
        let request = request(core, kind, None, lease, Some(Duration::ZERO))?;
        let connected = self.connect().await?;
        check(&connected)?;
        let limit = timeout.of(self.round_trip(), core.config.lease_of(lease));
        let timers = core.backend.timers();
        let mut acquiring = Box::pin(acquire(core, request));
        let begun = core.now();
        let mut wait = limit;
        let mut acquired = loop {
            let from = core.now();
            let acquired = timers.within(wait, &mut acquiring).await;
            let (now, lane) = (core.now(), self.lane());
            let is_late = from.until(now) > wait + limit / 4;
            wait = if is_late {
                // This process stood still, and the answer may lie in the socket.
                limit
            } else {
                // The server answers others: this try waits for its turn, perhaps here.
                lane.map_or(Duration::ZERO, |lane| now.until(lane.heard_at() + limit))
            };
            let is_over = begun.until(now) >= core.config.command_timeout;
            if acquired.is_some() || wait.is_zero() || is_over {
                break acquired;
            }
        };
        let broke = || {
            let lane = self.lane();
            lane.is_some_and(|lane| !lane.is_on(connected.generation))
        };
        if acquired.is_none() && broke() {
            // It had been cut while it was quiet, and the command found that out: the next try has to connect.
            let again = core.backend.config.connect_timeout + limit;
            acquired = timers.within(again, acquiring).await;
        }
        let got = acquired.unwrap_or_else(|| {
            let text = format!("no reply within node_timeout ({limit:?})");
            Err(Failure::of(Class::Unanswered, text).into())
        })?;
        if let AcquireOutcome::In(_) = got {
            // A grant comes from the server, and "busy" may be what the client knows. The server may have been slow when it
            // was measured first.
            let took = begun.until(core.now());
            let mut about = self.about.lock();
            about.round_trip = about.round_trip.min(took);
        }
        let answer = match got {
            AcquireOutcome::In(entered) => NodeAnswer::In(LockGuard::new(&self.engine, entered)),
            AcquireOutcome::Busy(until) => NodeAnswer::Busy(until),
        };
        if broke() {
            // The answer may be that of the server behind the connection that replaced it.
            check(&self.connect().await?)?;
        }
        Ok(answer)
    }

    /// The lane on which this runtime asks it.
    pub(super) fn lane(&self) -> Option<Arc<Lane>> {
        let fleet = self.core().backend.callers_fleet().ok()?;
        Some(Arc::clone(fleet.home()))
    }

    /// Probes it until it answers within `longest` and reports what it is, and measures how far away it is. False when its
    /// client is closed.
    pub(super) async fn probe(&self, longest: Duration) -> bool {
        let backoff = Backoff::new().base(Duration::from_millis(50));
        let mut delays = backoff.delays(fastrand::u64(..));
        loop {
            tokio::time::sleep(delays.step()).await;
            if self.core().check_open().is_err() {
                return false;
            }
            // The first ping may have to connect.
            let connecting = self.core().backend.config.connect_timeout;
            if self.pings(connecting).await.is_some()
                && let Some(ping) = self.pings(longest).await
                && self.identifies().await.is_some()
            {
                self.about.lock().round_trip = ping;
                return true;
            }
        }
    }

    /// Asks what it is. None if it does not say that in time.
    async fn identifies(&self) -> Option<()> {
        let core = self.core();
        let connected = self.connect().await.ok()?;
        let mut connection = connected.connection;
        let connecting = core.backend.config.connect_timeout;
        let asking = tokio::time::timeout(connecting, Hello::of(&mut connection));
        let hello = asking.await.ok()?.ok()?;
        let mut about = self.about.lock();
        about.run_id = connected.server.map(|server| server.run_id);
        about.generation = connected.generation;
        about.unfit = hello.problem_alone();
        Some(())
    }

    /// Pings it. Returns how long that took.
    async fn pings(&self, limit: Duration) -> Option<Duration> {
        let core = self.core();
        let fleet = core.backend.callers_fleet().ok()?;
        let asked_at = core.now();
        let pending = Pending::start(&fleet, Call::ping());
        pending.within(limit).await.ok()?;
        Some(asked_at.until(core.now()))
    }
}
