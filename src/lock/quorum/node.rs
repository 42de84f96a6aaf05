//! One server of a quorum, and whether it is worth asking.
//!
//! A node whose answer did not come in time is *silent*: no acquire waits for it again until it has answered a question
//! that the steward asks it, ever more rarely. So a dead minority costs one time-out, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::backend::Hello;
use crate::backend::{Lane, Pending};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::engine::caller::acquire::{AcquireOutcome, acquire, request};
use crate::engine::core::Core;
use crate::engine::hold::kind::Kind;
use crate::engine::keep_alive::Engine;
use crate::engine::keeper::Hub;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::LockGuard;
use crate::script::Call;

/// One server of a quorum.
pub(crate) struct Node {
    pub(super) engine: Arc<Engine>,
    /// The wake-ups of those who wait; used on the steward's runtime.
    pub(super) hub: Arc<Hub>,
    silent: AtomicBool,
    /// The steward asks it.
    probed: AtomicBool,
    /// Somebody is watching for a word of it.
    watched: AtomicBool,
    /// It is none of the quorum.
    unfit: AtomicBool,
    /// What it said of itself when it was looked at last.
    about: Mutex<About>,
    /// Up to when it may not vote, as far as is known.
    young_until: AtomicU64,
}

/// What a node says of itself.
#[derive(Default)]
struct About {
    /// Drawn at random at each start.
    run_id: Option<Arc<str>>,
    problem: Option<&'static str>,
}

/// A try of one node, by its place.
pub(super) type Trying = BoxFuture<'static, (usize, Result<Answer, Error>)>;

/// What a node answered to a try.
pub(super) enum Answer {
    Granted(LockGuard),
    /// Somebody else has it there: up to then, as far as that is known.
    Busy(Option<Moment>),
}

impl Node {
    /// One that said this of itself, or nothing yet.
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

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    /// Whether it did not answer when it was asked last. The flags of a node stand for themselves: who sees an old
    /// one asks once too often, or too late.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed) || self.unfit.load(Ordering::Relaxed)
    }

    /// Which server it is, as far as it said so.
    pub(super) fn server(&self) -> Option<Arc<str>> {
        self.about.lock().run_id.clone()
    }

    /// Why it cannot be one of a quorum.
    pub(super) fn problem(&self) -> Option<&'static str> {
        self.about.lock().problem
    }

    /// Whether it is none of the quorum from now on; what that was before.
    pub(super) fn is_unfit(&self, now: bool) -> bool {
        self.unfit.swap(now, Ordering::Relaxed)
    }

    /// Notes whether somebody is watching for a word of it. True when that is a change.
    pub(super) fn is_watched(&self, now: bool) -> bool {
        self.watched.swap(now, Ordering::Relaxed) != now
    }

    /// It answered. Whether it had been silent.
    pub(super) fn heard(&self) -> bool {
        self.silent.load(Ordering::Relaxed) && self.silent.swap(false, Ordering::Relaxed)
    }

    /// It did not answer. Whether somebody is to ask it until it does.
    pub(super) fn failed(&self) -> bool {
        self.silent.store(true, Ordering::Relaxed);
        !self.probed.swap(true, Ordering::Relaxed)
    }

    /// It may not vote for so long.
    pub(super) fn is_young(&self, until: Moment) {
        self.young_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn may_vote_at(&self, now: Moment) -> bool {
        now.as_nanos() >= self.young_until.load(Ordering::Relaxed)
    }

    /// One try to take the lock there, for nobody that it knows.
    pub(super) fn try_once(&self, place: usize, kind: Kind, lease: Lease) -> Trying {
        let engine = Arc::clone(&self.engine);
        async move {
            let core = &engine.core;
            let got = match request(core, kind, None, lease, Some(Duration::ZERO)) {
                Ok(request) => acquire(core, request).await,
                Err(error) => Err(error),
            };
            let answer = got.map(|got| match got {
                AcquireOutcome::In(entered) => {
                    Answer::Granted(LockGuard::new(Arc::clone(&engine), entered))
                }
                AcquireOutcome::Busy(until) => Answer::Busy(until),
            });
            (place, answer)
        }
        .boxed()
    }

    /// The way by which this runtime asks it.
    pub(super) fn lane(&self) -> Option<Arc<Lane>> {
        let fleet = self.core().backend.callers_fleet().ok()?;
        Some(Arc::clone(fleet.home()))
    }

    /// The steward has done with asking it.
    pub(super) fn is_asked_no_more(&self) {
        self.probed.store(false, Ordering::Relaxed);
    }

    /// Asks it until it answers in `limit`, and says what it is. False when its client is closed.
    pub(super) async fn probe(&self, limit: Duration) -> bool {
        let backoff = Backoff::new().base(Duration::from_millis(50));
        let mut delays = backoff.delays(fastrand::u64(..));
        loop {
            tokio::time::sleep(delays.step()).await;
            if self.core().check_open().is_err() {
                return false;
            }
            // The first one may have to connect.
            let connecting = self.core().backend.config().connect_timeout;
            if self.answers(connecting).await && self.answers(limit).await && self.tells().await {
                return true;
            }
        }
    }

    /// Hears what it is, on the connection that answered.
    async fn tells(&self) -> bool {
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
