//! One server of a quorum, and whether it is worth asking.
//!
//! A node whose answer did not come in time is *silent*: no acquire waits for it again until it has answered a question
//! that the steward asks it, ever more rarely. So a dead minority costs one time-out, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::backend::Pending;
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::engine::attempt::{acquire, request};
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
    /// Up to when it may not vote, as far as is known.
    young_until: AtomicU64,
}

/// A try of one node.
pub(super) type Trying = BoxFuture<'static, (usize, Result<Option<LockGuard>, Error>)>;

impl Node {
    pub(crate) fn new(engine: Arc<Engine>, is_silent: bool) -> Self {
        Self {
            hub: Arc::new(Hub::new(
                engine.core.backend.config(),
                engine.core.backend.cluster(),
            )),
            engine,
            silent: AtomicBool::new(is_silent),
            probed: AtomicBool::new(false),
            young_until: AtomicU64::new(0),
        }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    /// Whether it did not answer when it was asked last. The flags of a node stand for themselves: who sees an old
    /// one asks once too often, or too late.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
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
            let got =
                got.map(|got| got.map(|entered| LockGuard::new(Arc::clone(&engine), entered)));
            (place, got)
        }
        .boxed()
    }

    /// Asks it until it answers in `limit`; ends when it does.
    pub(super) async fn probe(self: Arc<Self>, limit: Duration) {
        let backoff = Backoff::new().base(Duration::from_millis(50));
        let mut delays = backoff.delays(fastrand::u64(..));
        loop {
            tokio::time::sleep(delays.step()).await;
            if self.core().check_open().is_err() {
                return;
            }
            // The first one may have to connect.
            let connecting = self.core().backend.config().connect_timeout;
            if self.answers(connecting).await && self.answers(limit).await {
                break;
            }
        }
        self.probed.store(false, Ordering::Relaxed);
    }

    async fn answers(&self, limit: Duration) -> bool {
        let Ok(fleet) = self.core().backend.callers_fleet() else {
            return false;
        };
        let pending = Pending::start(&fleet, Call::ping());
        pending.within(limit).await.is_ok()
    }
}
