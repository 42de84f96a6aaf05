//! The servers of a quorum, and the steward, the quorum's own background thread: it makes rounds, handles late answers,
//! probes silent nodes and repairs holds. The client of each node renews the holds there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::node::{NodeTry, QuorumNode};
use super::queue::{AcquireRequest, NameQueue, Queues};
use super::rules::{NodeTimeout, RestartDelay, is_long};
use crate::backend::{Connected, Failure, Timers};
use crate::clock::{Clock, Moment};
use crate::config::Config;
use crate::engine::hold::kind::Kind;
use crate::engine::keeper::start_thread;
use crate::error::Error;
use crate::host::{own, uuid};
use crate::lease::Lease;
use crate::lock::guard::LockGuard;
use crate::lock::several::Composite;
use crate::log::log;

/// How long until the steward checks a node again that cannot be part of the quorum.
const UNFIT: Duration = Duration::from_secs(5);

/// The permits for rounds. There are fewer than commands on a [connection](crate::backend::Lane), so that a round does not
/// spend its time in our own queues.
const MOST_ROUNDS: usize = 512;

/// How many permits a round takes when the servers are near: there this process is the slow part.
const NEAR: u32 = 4;

/// How many permits a repair takes then: the repairs of thousands of holds must not delay the rounds.
const NEAR_REPAIR: u32 = 16;

pub(super) struct HoldToRepair {
    pub(super) hold: Weak<Composite>,
    pub(super) request: AcquireRequest,
    /// The nodes, by place, that were asked just now: when each may be asked again, and the task that asks it.
    pub(super) asked: HashMap<usize, (Moment, AbortHandle)>,
    /// Since when the hold lacks the node at each place.
    pub(super) lacks_since: HashMap<usize, Moment>,
}

/// What all handles of a quorum share.
pub(crate) struct QuorumNodes {
    pub(crate) id: Uuid,
    pub(super) all: Box<[Arc<QuorumNode>]>,
    /// How many nodes are a majority.
    pub(super) needed: usize,
    delay: RestartDelay,
    pub(super) node_timeout: NodeTimeout,
    queues: Arc<Queues>,
    /// Permits for rounds that may begin.
    rounds: Semaphore,
    /// As many for the repairs with each node.
    repairing: Box<[Semaphore]>,
    repairs: mpsc::UnboundedSender<HoldToRepair>,
    /// Notified when a silent node answers.
    pub(super) back: Notify,
    /// A task of the steward panicked.
    broken: AtomicBool,
    steward: Steward,
}

/// How a quorum is set up, beyond its nodes' clients.
#[derive(Clone, Copy, Default)]
pub(crate) struct QuorumSettings {
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) restart_delay: Option<Duration>,
    /// The longest lease that any program takes; the watchdog's unless it is set.
    pub(crate) max_lease: Option<Duration>,
}

impl QuorumNodes {
    /// Starts the steward. `nodes` is an odd number of nodes, at least one. The receiver yields each new hold.
    pub(super) fn new(
        nodes: Vec<QuorumNode>,
        settings: &QuorumSettings,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<HoldToRepair>), Failure> {
        let all: Box<[_]> = nodes.into_iter().map(Arc::new).collect();
        let config = &all[0].core().config;
        let steward = Steward::start(config.clock.clone())?;
        let (repairs, to_repair) = mpsc::unbounded_channel();
        let delay = match settings.restart_delay {
            Some(delay) => RestartDelay(delay),
            None => RestartDelay::for_leases(settings.max_lease.unwrap_or(config.watchdog_lease)),
        };
        let nodes = Arc::new(Self {
            id: uuid(),
            needed: all.len() / 2 + 1,
            delay,
            node_timeout: NodeTimeout(settings.node_timeout),
            queues: Arc::default(),
            rounds: Semaphore::new(MOST_ROUNDS),
            repairing: all.iter().map(|_| Semaphore::new(MOST_ROUNDS)).collect(),
            repairs,
            steward,
            back: Notify::new(),
            broken: AtomicBool::new(false),
            all,
        });
        for (place, node) in nodes.all.iter().enumerate() {
            if node.is_silent() {
                nodes.fell_silent(place);
                continue;
            }
            // The first acquire need not wait for a connection then.
            let node = Arc::clone(node);
            nodes.start_task(async move { drop(node.connect().await) });
        }
        Ok((nodes, to_repair))
    }

    pub(super) fn node(&self, place: usize) -> &Arc<QuorumNode> {
        &self.all[place]
    }

    pub(super) fn queue(&self, name: &Arc<str>) -> Arc<NameQueue> {
        self.queues.of(name, self.needed)
    }

    /// Waits until a round may begin. It is under way while the permit lives.
    pub(super) async fn may_begin(&self) -> Option<SemaphorePermit<'_>> {
        let permits = if self.is_far() { 1 } else { NEAR };
        // It is never closed.
        self.rounds.acquire_many(permits).await.ok()
    }

    /// Waits until a repair with the node at `place` may begin. It is under way while the permit lives.
    pub(super) async fn may_repair(&self, place: usize) -> Option<SemaphorePermit<'_>> {
        let permits = if self.is_far() { 1 } else { NEAR_REPAIR };
        // It is never closed.
        self.repairing[place].acquire_many(permits).await.ok()
    }

    fn is_far(&self) -> bool {
        self.all.iter().any(|node| is_long(node.round_trip()))
    }

    pub(super) fn repair(&self, hold: &Arc<Composite>, request: &AcquireRequest) {
        let request = AcquireRequest {
            owner: None,
            ..request.clone()
        };
        // The receiver ends with the steward, and then nothing is repaired any more.
        let _ = self.repairs.send(HoldToRepair {
            hold: Arc::downgrade(hold),
            request,
            asked: HashMap::new(),
            lacks_since: HashMap::new(),
        });
    }

    /// The settings of all clients, which are the same.
    pub(crate) fn config(&self) -> &Config {
        &self.all[0].core().config
    }

    pub(super) fn timers(&self) -> &Timers {
        &self.steward.timers
    }

    /// The output of `future`; none if it is `end` first.
    pub(super) async fn by<T>(&self, end: Moment, future: impl Future<Output = T>) -> Option<T> {
        if end == Moment::NEVER {
            return Some(future.await);
        }
        self.timers().until(end, future).await
    }

    pub(super) fn now(&self) -> Moment {
        self.config().clock.now()
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        // Relaxed: whoever reads an old value finds its queue closed, or looks again once it has a new one.
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Runs a task on the steward. A panic in it closes the quorum: waits and later acquires fail. Holds stay, as their
    /// clients keep them.
    pub(super) fn start_task(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let task = self.steward.runtime.spawn(own(task));
        let abort = task.abort_handle();
        let quorum = Arc::downgrade(self);
        self.steward.runtime.spawn(own(async move {
            let panicked = task.await.is_err_and(|error| error.is_panic());
            if let Some(quorum) = quorum.upgrade().filter(|_| panicked) {
                log(|| {
                    tracing::error!(
                        "the background thread of a quorum failed; the quorum is closed"
                    );
                });
                quorum.broken.store(true, Ordering::Relaxed);
                quorum.queues.close();
            }
        }));
        abort
    }

    /// Ends all waits with [`Error::Closed`], as the nodes' clients are being shut down.
    pub(crate) fn end_waits(&self) {
        self.queues.close();
    }

    /// How long the furthest node has to answer an acquire with this lease.
    pub(super) fn timeout_of(&self, lease: Lease) -> Duration {
        let round_trips = self.all.iter().map(|node| node.round_trip());
        let furthest = round_trips.max().unwrap_or_default();
        let lease = self.config().lease_of(lease);
        self.node_timeout.of(furthest, lease)
    }

    /// The longest sleep of a waiter: random, from half of the backoff's cap up to the cap.
    pub(super) fn poll(&self) -> Duration {
        let cap = self.config().backoff.cap_delay();
        cap.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// How long after a round that found nothing the next one ends, at the most: a pause, connecting, first answers, the
    /// others, a token, and giving back, some of which are awaited twice.
    pub(super) fn between_rounds(&self, lease: Lease) -> Duration {
        let config = self.config();
        let answers = config.command_timeout.max(self.timeout_of(lease));
        2 * (config.backoff.cap_delay() + config.connect_timeout) + 5 * answers
    }

    /// The places of the nodes to ask: all that are not silent, or all if those are too few.
    pub(super) fn worth_asking(&self) -> Vec<usize> {
        let all = 0..self.all.len();
        let answering: Vec<_> = all
            .clone()
            .filter(|place| !self.all[*place].is_silent())
            .collect();
        if answering.len() >= self.needed {
            answering
        } else {
            all.collect()
        }
    }

    /// Whether a grant counts, by the age of the server that gave it.
    pub(super) fn may_vote(&self, place: usize, child: &LockGuard) -> bool {
        let age = child.server_age();
        let may = self.delay.may_vote(age);
        if !may {
            self.all[place].set_young_until(self.now() + self.delay.left(age));
        }
        may
    }

    /// A node answered, or failed with this error.
    pub(super) fn note_answer(self: &Arc<Self>, place: usize, failed: Option<&Error>) {
        if let Some(Error::Unavailable { .. }) = failed {
            self.fell_silent(place);
            return;
        }
        if self.all[place].answered() {
            self.back.notify_waiters();
        }
    }

    /// A node did not answer in time. The steward probes it until it does.
    pub(super) fn fell_silent(self: &Arc<Self>, place: usize) {
        let node = &self.all[place];
        if !node.fell_silent() {
            return;
        }
        log(move || tracing::debug!(server = place + 1, "a server of the quorum is silent"));
        let node = Arc::clone(node);
        let lease = self.config().lease_of(Lease::Watchdog);
        let longest = self.node_timeout.longest(lease);
        let quorum = Arc::downgrade(self);
        self.start_task(async move {
            while node.probe(longest).await {
                let Some(quorum) = quorum.upgrade() else {
                    return;
                };
                if quorum.may_join(place) {
                    node.is_back();
                    return quorum.note_answer(place, None);
                }
                drop(quorum);
                tokio::time::sleep(UNFIT).await;
            }
        });
    }

    /// One try to take the lock at one node, without an owner. Nothing is sent to a server that cannot be part of the quorum.
    pub(super) fn try_once(self: &Arc<Self>, place: usize, kind: Kind, lease: Lease) -> NodeTry {
        let quorum = Arc::clone(self);
        async move {
            let node = quorum.node(place);
            let check = |connected: &Connected| {
                if node.meets(connected) {
                    quorum.may_join(place);
                }
                node.check_fit()
            };
            let answer = node.answer(kind, lease, quorum.node_timeout, check).await;
            (place, answer)
        }
        .boxed()
    }

    /// Whether the server that a node leads to may be part of the quorum: its greeting shows no problem, and it is none of the others by another
    /// address. Of two addresses that lead to one server, the one that did so first stays.
    fn may_join(&self, place: usize) -> bool {
        let node = &self.all[place];
        let server = node.server();
        let mut others = self.all.iter().filter(|other| !Arc::ptr_eq(other, node));
        let is_twin = others
            .any(|other| server.is_some() && other.server() == server && other.problem().is_none());
        let problem = if is_twin {
            Some("it is one of the others by another address")
        } else {
            node.unfit()
        };
        if node.set_problem(problem).is_none()
            && let Some(problem) = problem
        {
            log(move || {
                tracing::error!(
                    server = place + 1,
                    problem,
                    "a server cannot be part of the quorum: connect would have refused it"
                );
            });
        }
        problem.is_none()
    }
}

/// The background thread. Dropping this ends it and all its tasks.
struct Steward {
    runtime: Handle,
    timers: Timers,
    _until: mpsc::Sender<()>,
}

impl Steward {
    fn start(clock: Clock) -> Result<Self, Failure> {
        let (until, mut ended) = mpsc::channel::<()>(1);
        let (begin, begun) = oneshot::channel::<Timers>();
        let living = async move {
            let timers = begun.await;
            ended.recv().await;
            // The runtime ends next.
            if let Ok(timers) = timers {
                timers.stop();
            }
        };
        let runtime = start_thread("watchlock-quorum", living).map_err(Failure::starting)?;
        let timers = Timers::of(&runtime, clock);
        let _ = begin.send(timers.clone());
        Ok(Self {
            runtime,
            timers,
            _until: until,
        })
    }
}
