//! One server of a quorum, and whether it is worth asking.
//!
//! A node whose answer did not come in time is *silent*: no acquire waits for it again until it has answered a question
//! that the steward asks it, ever more rarely. So a dead minority costs one time-out, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};

use crate::backend::hello::Hello;
use crate::backend::{Lane, Pending};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::engine::attempt::{Acquired, acquire, request};
use crate::engine::keeper::Hub;
use crate::engine::kind::Kind;
use crate::engine::{Core, Engine};
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
    missed: Mutex<Missed>,
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

/// When a word of a node was last missed; while somebody watches for one.
#[derive(Default)]
pub(super) struct Missed(Option<Moment>);

/// What a look for a word comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nobody has to watch any more.
    Heard,
    Silent,
    /// Another word was missed at this time, after the last that was heard.
    Since(Moment),
}

impl Missed {
    /// A word is missed. Whether somebody is to watch for it: nobody does yet.
    pub(super) fn miss(&mut self, now: Moment) -> bool {
        self.0.replace(now).is_none()
    }

    /// After the time that a node has to answer what was asked at `since`.
    pub(super) fn look(&mut self, since: Moment, heard: Moment) -> Look {
        if heard >= since
            && let Some(missed) = self.0.filter(|missed| *missed > heard)
        {
            return Look::Since(missed);
        }
        self.0 = None;
        if heard >= since {
            Look::Heard
        } else {
            Look::Silent
        }
    }
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
            missed: Mutex::default(),
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

    /// Whether somebody watches for a word of it.
    pub(super) fn missed(&self) -> MutexGuard<'_, Missed> {
        self.missed.lock()
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
                Acquired::In(entered) => {
                    Answer::Granted(LockGuard::new(Arc::clone(&engine), entered))
                }
                Acquired::Busy(until) => Answer::Busy(until),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_node_that_says_nothing_is_silent() {
        let mut missed = Missed::default();
        assert!(missed.miss(at(2)));
        assert_eq!(missed.look(at(2), at(1)), Look::Silent);
        assert!(missed.miss(at(3)), "nobody watches any more");
    }

    #[test]
    fn a_node_that_answers_is_watched_no_more() {
        let mut missed = Missed::default();
        missed.miss(at(2));
        assert_eq!(missed.look(at(2), at(2)), Look::Heard);
        assert!(missed.miss(at(3)));
    }

    #[test]
    fn what_was_said_to_the_first_is_no_answer_to_the_second() {
        let mut missed = Missed::default();
        missed.miss(at(2));
        assert!(!missed.miss(at(4)), "somebody watches");
        assert_eq!(missed.look(at(2), at(3)), Look::Since(at(4)));
        assert!(!missed.miss(at(5)), "and goes on");
        assert_eq!(missed.look(at(4), at(3)), Look::Silent);
    }
}
