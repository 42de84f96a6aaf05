//! A lock that is held when more than half of some independent servers have granted it: Redlock, to the letter.
//!
//! Each node has a client of its own, and each child of a hold is a plain lock there, renewed and given back by that
//! client. What is added here: who may vote and what a round comes to ([`rules`]), one round at a time for each name
//! ([`line`], [`round`]), waiting ([`ears`], [`waking`]), repair ([`repair`]), and tokens ([`token`]).
//! A hold is a [`Composite`](super::composite::Composite).

mod ears;
mod handle;
mod line;
mod node;
mod owner;
mod questions;
mod repair;
mod round;
mod rules;
#[cfg(test)]
mod simulation_tests;
mod steward;
mod token;
mod waking;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use uuid::Uuid;

pub use self::handle::{FencedQuorumLock, QuorumHandle, QuorumLock};
use self::line::Lines;
pub(crate) use self::node::Node;
pub use self::owner::QuorumOwner;
use self::repair::Patients;
use self::rules::RestartDelay;
use self::steward::Alive;
pub(crate) use self::steward::Steward;
use super::LockGuard;
use crate::backend::{Failure, Timers};
use crate::clock::Moment;
use crate::config::Config;
use crate::error::Error;
use crate::lease::Lease;
use crate::process::Process;

/// How long a node is left alone that cannot be one of the quorum.
const UNFIT: Duration = Duration::from_secs(5);

/// A node has so long to answer, if nothing else is set, or a tenth of the lease if that is less.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);

/// The servers of a quorum, and all that its handles share.
pub(crate) struct Nodes {
    pub(crate) id: Uuid,
    all: Box<[Arc<Node>]>,
    needed: usize,
    delay: RestartDelay,
    node_timeout: Duration,
    lines: Arc<Lines>,
    patients: Arc<Patients>,
    steward: Steward,
    /// Told when a silent node answered.
    back: Notify,
    /// A task of the steward failed of a bug.
    broken: AtomicBool,
    process: Process,
    _alive: Alive,
}

/// How a quorum is set up, beyond its nodes' clients.
pub(crate) struct Rules {
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) restart_delay: Option<Duration>,
    /// The longest lease that any program takes.
    pub(crate) max_lease: Duration,
}

impl Nodes {
    /// Of an odd number of nodes, at least one.
    pub(crate) fn start(nodes: Vec<Node>, rules: &Rules) -> Result<Arc<Self>, Failure> {
        let (steward, alive) = Steward::start()?;
        let delay = match rules.restart_delay {
            Some(delay) => RestartDelay::new(delay),
            None => RestartDelay::for_leases(rules.max_lease),
        };
        let all: Box<[_]> = nodes.into_iter().map(Arc::new).collect();
        let nodes = Arc::new(Self {
            id: Uuid::new_v4(),
            needed: all.len() / 2 + 1,
            delay,
            node_timeout: rules.node_timeout.unwrap_or(NODE_TIMEOUT),
            lines: Arc::default(),
            patients: Arc::default(),
            steward,
            back: Notify::new(),
            broken: AtomicBool::new(false),
            process: Process::current(),
            all,
            _alive: alive,
        });
        let looking = repair::look_after(Arc::downgrade(&nodes), Arc::clone(&nodes.patients));
        nodes.spawn(looking);
        for (place, node) in nodes.all.iter().enumerate() {
            if node.is_silent() {
                nodes.fell_silent(place);
            }
        }
        Ok(nodes)
    }

    /// All of them are set up in the same way.
    pub(crate) fn config(&self) -> &Config {
        &self.all[0].core().config
    }

    fn timers(&self) -> &Timers {
        &self.steward.timers
    }

    fn now(&self) -> Moment {
        self.config().clock.now()
    }

    fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    fn check_open(&self) -> Result<(), Error> {
        // Whoever sees an old word on it waits at a gate, and is told there.
        if self.is_forked() || self.broken.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Runs a task on the steward. A bug in it closes the quorum for who waits and who comes; holds go on, which their
    /// clients keep.
    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let quorum = Arc::downgrade(self);
        let task = self.steward.spawn(async move {
            let ended = AssertUnwindSafe(task).catch_unwind().await;
            if let (Err(_), Some(quorum)) = (ended, quorum.upgrade()) {
                tracing::error!("the background thread of a quorum failed; the quorum is closed");
                quorum.broken.store(true, Ordering::Relaxed);
                quorum.lines.close();
            }
        });
        task.abort_handle()
    }

    /// Ends all waits with [`Error::Closed`]: the nodes' clients are being shut down.
    pub(crate) fn end_waits(&self) {
        self.lines.close();
    }

    /// How long a node has to answer an acquire with this lease.
    fn timeout_of(&self, lease: Lease) -> Duration {
        let lease = match lease {
            Lease::Watchdog => self.config().watchdog_lease.duration(),
            Lease::Fixed(lease) => lease,
        };
        self.node_timeout.min(lease / 10)
    }

    /// How long a waiter sleeps at most: half to all of the backoff's cap.
    fn poll(&self) -> Duration {
        let cap = self.config().backoff.cap_delay();
        cap.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// The places of the nodes to ask: those that are not silent, or all when that is too few.
    fn worth_asking(&self) -> Vec<usize> {
        let all = 0..self.all.len();
        let well: Vec<_> = all
            .clone()
            .filter(|place| !self.all[*place].is_silent())
            .collect();
        if well.len() >= self.needed {
            well
        } else {
            all.collect()
        }
    }

    /// Whether a child counts, by the age of the server that granted it.
    fn may_vote(&self, place: usize, child: &LockGuard) -> bool {
        let age = child.server_age();
        let may = self.delay.may_vote(age);
        if !may {
            self.all[place].is_young(self.now() + self.delay.left(age));
        }
        may
    }

    /// A node answered, or failed with this.
    fn note(self: &Arc<Self>, place: usize, failed: Option<&Error>) {
        match failed {
            Some(Error::Unavailable { .. }) => self.fell_silent(place),
            _ => {
                if self.all[place].heard() {
                    self.back.notify_waiters();
                }
            }
        }
    }

    /// A node did not answer in time: the steward asks it until it does.
    fn fell_silent(self: &Arc<Self>, place: usize) {
        let node = &self.all[place];
        if !node.failed() {
            return;
        }
        tracing::debug!(server = place + 1, "a server of the quorum is silent");
        let (node, limit) = (Arc::clone(node), self.node_timeout);
        let quorum = Arc::downgrade(self);
        self.spawn(async move {
            while node.probe(limit).await {
                let Some(quorum) = quorum.upgrade() else {
                    return;
                };
                if quorum.may_join(place) {
                    node.is_asked_no_more();
                    return quorum.note(place, None);
                }
                drop(quorum);
                tokio::time::sleep(UNFIT).await;
            }
        });
    }

    /// Whether a node that answers may be one of the quorum: it is none of the others, and no replica. What was there
    /// when the quorum was made was looked at then.
    fn may_join(&self, place: usize) -> bool {
        let node = &self.all[place];
        let server = node.server();
        let is_same = |other: &usize| server.is_some() && self.all[*other].server() == server;
        let twin = (0..self.all.len()).find(|other| *other != place && is_same(other));
        let problem = match twin {
            None => node.problem(),
            Some(_) => Some("it is one of the others, by another address"),
        };
        if !node.is_unfit(problem.is_some())
            && let Some(problem) = problem
        {
            tracing::error!(
                server = place + 1,
                problem,
                "a server cannot be one of the quorum: connect would have refused it"
            );
        }
        problem.is_none()
    }
}
