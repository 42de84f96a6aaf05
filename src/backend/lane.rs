//! A lane: one multiplexed connection and its reconnection.
//!
//! A connection of redis-rs never reconnects by itself, and its driver lives on the runtime that opened
//! it. So a lane belongs to one runtime, where a task of the lane's own connects on demand: one attempt
//! at a time, paced by a backoff, everyone waiting under his own deadline. The task ends with its runtime
//! or when the lane is closed; either way the lane is `Closed` from then on.
//!
//! A lane whose commands stay unanswered while nothing else is heard for a command time-out is replaced:
//! a half-open link tells nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::dial::Dialer;
use super::failure::Failure;
use crate::backoff::Backoff;
use crate::clock::{Clock, Moment};

/// How to connect, and how patiently.
#[derive(Clone)]
pub(crate) struct LaneConfig {
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) clock: Clock,
    pub(crate) backoff: Backoff,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// Told whenever a connection turned out to be broken.
    pub(crate) broken: Arc<Notify>,
}

pub(crate) struct Lane {
    link: watch::Sender<Link>,
    wanted: Notify,
    /// When something was last heard, in nanoseconds of the client's clock.
    heard_at: AtomicU64,
    config: LaneConfig,
}

enum Link {
    /// Not connected; how many attempts failed so far, and how the last one did.
    Down {
        failures: u64,
        last: Option<Failure>,
    },
    Up {
        connection: MultiplexedConnection,
        generation: u64,
    },
    Closed,
}

impl Lane {
    /// A lane on `runtime`, not connected yet.
    pub(crate) fn open(config: LaneConfig, runtime: &Handle) -> Arc<Self> {
        let lane = Arc::new(Self {
            link: watch::Sender::new(Link::Down {
                failures: 0,
                last: None,
            }),
            wanted: Notify::new(),
            heard_at: AtomicU64::new(0),
            config,
        });
        let ends = EndsWithTask(Arc::clone(&lane));
        runtime.spawn(async move { ends.0.keep_connected().await });
        lane
    }

    /// The connection, and which one it is, if there is one.
    pub(crate) fn connected(&self) -> Option<(MultiplexedConnection, u64)> {
        match &*self.link.borrow() {
            Link::Up {
                connection,
                generation,
            } => Some((connection.clone(), *generation)),
            Link::Down { .. } | Link::Closed => None,
        }
    }

    /// The connection, and which one it is. Connects when there is none; fails with the outcome of the
    /// first attempt that ends from now on.
    pub(crate) async fn connect(&self) -> Result<(MultiplexedConnection, u64), Failure> {
        let seen = match &*self.link.borrow() {
            Link::Up {
                connection,
                generation,
            } => return Ok((connection.clone(), *generation)),
            Link::Down { failures, .. } => *failures,
            Link::Closed => return Err(Failure::closed()),
        };
        let mut link = self.link.subscribe();
        self.wanted.notify_one();
        let decided =
            |link: &Link| !matches!(link, Link::Down { failures, .. } if *failures == seen);
        match link.wait_for(decided).await.as_deref() {
            Ok(Link::Up {
                connection,
                generation,
            }) => Ok((connection.clone(), *generation)),
            Ok(Link::Down { last, .. }) => Err(last.clone().unwrap_or_else(Failure::no_connection)),
            Ok(Link::Closed) | Err(_) => Err(Failure::closed()),
        }
    }

    /// The time by the client's clock.
    pub(crate) fn now(&self) -> Moment {
        self.config.clock.now()
    }

    /// Something was heard on the lane.
    pub(crate) fn heard(&self) {
        self.heard_at
            .store(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// When something was last heard.
    pub(crate) fn heard_at(&self) -> Moment {
        Moment::from_nanos(self.heard_at.load(Ordering::Relaxed))
    }

    /// A command went unanswered for a command time-out: replaces the connection if nothing else was
    /// heard on it either.
    pub(crate) fn overdue(&self) {
        if self.heard_at().until(self.now()) >= self.config.command_timeout {
            self.replace(None);
        }
    }

    /// Gives up the connection (only if it is still `generation`, when one is named).
    pub(crate) fn replace(&self, broken: Option<u64>) {
        let replaced = self.link.send_if_modified(|link| match link {
            Link::Up { generation, .. } if broken.is_none_or(|broken| broken == *generation) => {
                *link = Link::Down {
                    failures: 0,
                    last: None,
                };
                true
            }
            _ => false,
        });
        if replaced {
            // Whoever waits for the connection that came and went meanwhile has nobody else to ask for one.
            self.wanted.notify_one();
            self.config.broken.notify_one();
        }
    }

    /// Whether the lane is connected, and which connection it is.
    pub(crate) fn generation(&self) -> Option<u64> {
        match &*self.link.borrow() {
            Link::Up { generation, .. } => Some(*generation),
            _ => None,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(&*self.link.borrow(), Link::Closed)
    }

    /// Ends the lane and its connection.
    pub(crate) fn close(&self) {
        self.link.send_replace(Link::Closed);
        self.wanted.notify_one();
    }

    async fn keep_connected(&self) {
        let mut delays = self.config.backoff.delays(fastrand::u64(..));
        let mut generation = 0;
        loop {
            self.wanted.notified().await;
            match &*self.link.borrow() {
                Link::Closed => return,
                Link::Up { .. } => continue,
                Link::Down { .. } => {}
            }
            match self
                .config
                .dialer
                .connect(self.config.connect_timeout)
                .await
            {
                Ok(connection) => {
                    generation += 1;
                    delays.reset();
                    self.heard();
                    self.settle(Link::Up {
                        connection,
                        generation,
                    });
                }
                Err(failure) => {
                    self.fail(failure);
                    tokio::time::sleep(delays.step()).await;
                }
            }
        }
    }

    fn settle(&self, up: Link) {
        self.link.send_if_modified(|link| {
            let open = !matches!(link, Link::Closed);
            if open {
                *link = up;
            }
            open
        });
    }

    fn fail(&self, failure: Failure) {
        self.link.send_if_modified(|link| match link {
            Link::Down { failures, last } => {
                *failures += 1;
                *last = Some(failure);
                true
            }
            _ => false,
        });
    }
}

/// Closes the lane when its task ends, also when that is because the runtime went away.
struct EndsWithTask(Arc<Lane>);

impl Drop for EndsWithTask {
    fn drop(&mut self) {
        self.0.close();
    }
}
