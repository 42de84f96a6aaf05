//! One server of a quorum, and whether it is worth asking.
//!
//! A node that does not answer in time is *silent*: no acquire asks it until it answers a probe, which the steward
//! repeats with growing delays. So a dead minority costs one time-out, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::backend::{Hello, Lane, Pending};
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

/// One server of a quorum.
pub(crate) struct QuorumNode {
    engine: Arc<Engine>,
    /// Receives wake-ups for waiters; used on the steward's runtime.
    hub: Arc<Hub>,
    silent: AtomicBool,
    /// The steward probes it.
    probed: AtomicBool,
    /// A late round waits for anything that it sends.
    watched: AtomicBool,
    /// It cannot be part of the quorum.
    unfit: AtomicBool,
    about: Mutex<About>,
    /// Until when it may not vote, as far as known.
    young_until: AtomicU64,
}

/// What a node reported about itself last.
#[derive(Default)]
struct About {
    run_id: Option<Arc<str>>,
    problem: Option<&'static str>,
}

/// A try at one node, with its place.
pub(super) type NodeTry = BoxFuture<'static, (usize, Result<NodeAnswer, Error>)>;

/// How a node answered a try.
pub(super) enum NodeAnswer {
    Granted(LockGuard),
    /// Somebody else has the lock there, until then if known.
    Busy(Option<Moment>),
}

impl QuorumNode {
    /// A node with this run id, or none if it was not reached yet.
    pub(crate) fn new(engine: Arc<Engine>, run_id: Option<Arc<str>>) -> Self {
        Self {
            hub: Arc::new(Hub::new(
                engine.core.backend.config(),
                engine.core.backend.cluster(),
            )),
            engine,
            silent: AtomicBool::new(run_id.is_none()),
            probed: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            unfit: AtomicBool::new(false),
            about: Mutex::new(About {
                run_id,
                problem: None,
            }),
            young_until: AtomicU64::new(0),
        }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    /// Whether acquires skip it. All flags are relaxed, as nothing is ordered by them: an old value costs one question too
    /// many, or delays one.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed) || self.unfit.load(Ordering::Relaxed)
    }

    /// Its run id, which is random at each start.
    pub(super) fn server(&self) -> Option<Arc<str>> {
        self.about.lock().run_id.clone()
    }

    /// Why it cannot be part of a quorum.
    pub(super) fn problem(&self) -> Option<&'static str> {
        self.about.lock().problem
    }

    /// Notes whether it cannot be part of the quorum. Returns what was noted before.
    pub(super) fn set_unfit(&self, now: bool) -> bool {
        self.unfit.swap(now, Ordering::Relaxed)
    }

    /// Notes whether a late round waits for anything that it sends. Returns whether that is a change.
    pub(super) fn set_watched(&self, now: bool) -> bool {
        self.watched.swap(now, Ordering::Relaxed) != now
    }

    /// It answered. Returns whether it was silent before.
    pub(super) fn answered(&self) -> bool {
        self.silent.load(Ordering::Relaxed) && self.silent.swap(false, Ordering::Relaxed)
    }

    /// It did not answer. Returns whether the caller must start to probe it.
    pub(super) fn fell_silent(&self) -> bool {
        self.silent.store(true, Ordering::Relaxed);
        !self.probed.swap(true, Ordering::Relaxed)
    }

    pub(super) fn set_young_until(&self, until: Moment) {
        self.young_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn may_vote_at(&self, now: Moment) -> bool {
        now.as_nanos() >= self.young_until.load(Ordering::Relaxed)
    }

    /// One try to take the lock there, without an owner.
    pub(super) fn try_once(&self, place: usize, kind: Kind, lease: Lease) -> NodeTry {
        let engine = Arc::clone(&self.engine);
        async move {
            let core = &engine.core;
            let got = match request(core, kind, None, lease, Some(Duration::ZERO)) {
                Ok(request) => acquire(core, request).await,
                Err(error) => Err(error),
            };
            let answer = got.map(|got| match got {
                AcquireOutcome::In(entered) => {
                    NodeAnswer::Granted(LockGuard::new(Arc::clone(&engine), entered))
                }
                AcquireOutcome::Busy(until) => NodeAnswer::Busy(until),
            });
            (place, answer)
        }
        .boxed()
    }

    /// The lane on which this runtime asks it.
    pub(super) fn lane(&self) -> Option<Arc<Lane>> {
        let fleet = self.core().backend.callers_fleet().ok()?;
        Some(Arc::clone(fleet.home()))
    }

    /// The steward stops probing it.
    pub(super) fn probe_ends(&self) {
        self.probed.store(false, Ordering::Relaxed);
    }

    /// Probes it until it answers within `limit` and reports what it is. False when its client is closed.
    pub(super) async fn probe(&self, limit: Duration) -> bool {
        let backoff = Backoff::new().base(Duration::from_millis(50));
        let mut delays = backoff.delays(fastrand::u64(..));
        loop {
            tokio::time::sleep(delays.step()).await;
            if self.core().check_open().is_err() {
                return false;
            }
            // The first ping may have to connect.
            let connecting = self.core().backend.config().connect_timeout;
            if self.answers(connecting).await
                && self.answers(limit).await
                && self.identifies().await
            {
                return true;
            }
        }
    }

    /// Asks what it is, on the connection that answered.
    async fn identifies(&self) -> bool {
        let core = self.core();
        let Some(connected) = self.lane().and_then(|lane| lane.connected()) else {
            return false;
        };
        let mut connection = connected.connection;
        let connecting = core.backend.config().connect_timeout;
        let asking = tokio::time::timeout(connecting, Hello::of(&mut connection));
        let Ok(Ok(hello)) = asking.await else {
            return false;
        };
        *self.about.lock() = About {
            run_id: connected.server.map(|server| server.run_id),
            problem: hello.is_replica().then_some("it is a replica"),
        };
        true
    }

    async fn answers(&self, limit: Duration) -> bool {
        let Ok(fleet) = self.core().backend.callers_fleet() else {
            return false;
        };
        let pending = Pending::start(&fleet, Call::ping());
        pending.within(limit).await.is_ok()
    }
}
