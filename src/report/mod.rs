//! What a client says of itself while it runs: figures for whoever asks, and lost holds for whoever must act.
//!
//! The application learns of losses on a thread of their own. It blocks for as long as the application likes: the keeper
//! only leaves the loss in a queue, and a log that is blocked does not hold back the alarm.
//!
//! The metrics say the same to a recorder of the application. Without their feature they are an empty type.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
mod metrics;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

pub(crate) use self::metrics::{CommandTimer, LockMetrics, Metrics, Waits};

use parking_lot::Mutex;
use scopeguard::guard;

use crate::clock::Moment;
use crate::error::LostReason;
use crate::log::{forward, log};

/// How many losses may wait for the application. More are only logged.
const MOST_WAITING: usize = 1_024;

/// A hold that was lost: what [`on_lost`](crate::ClientBuilder::on_lost) is called with.
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// let client = watchlock::Client::builder("redis://127.0.0.1/")
///     .on_lost(|lost| {
///         eprintln!("{} ({}) lost after {:?}: {}", lost.name, lost.kind, lost.held_for, lost.reason);
///         std::process::abort(); // if no code looks at its guards
///     })
///     .connect()
///     .await?;
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostHold {
    /// The lock's name, without the client's prefix.
    pub name: String,
    /// `plain`, `fenced`, `fair`, `read`, `write`, `spin`, `simple` or `semaphore`.
    pub kind: &'static str,
    /// Why.
    pub reason: LostReason,
    /// From the send of the command that granted it until the loss was noticed.
    pub held_for: Duration,
}

/// How a client is doing: from [`Client::stats`](crate::Client::stats).
///
/// ```
/// fn is_well(stats: &watchlock::Stats) -> bool {
///     stats.failing_for.is_none() && !stats.polling && stats.unreleased == 0
/// }
/// # is_well(&watchlock::Stats::default());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Holds that are valid or not yet known to be lost. Each level of a read lock is one; a hold of several locks counts
    /// for each of them.
    pub holds: usize,
    /// Callers that wait for a lock, those whose try is under way included.
    pub waiters: usize,
    /// Releases that failed and are being repeated.
    pub unreleased: usize,
    /// Holds that were lost so far, without those given up by a shutdown.
    pub lost: u64,
    /// For how long renewals have been failing.
    pub failing_for: Option<Duration>,
    /// Whether there is a connection to Redis. A client that has sent nothing for itself yet may have none.
    pub connected: bool,
    /// Whether waiters poll because a subscription is down.
    pub polling: bool,
}

/// What the application does about a lost hold.
#[derive(Clone)]
pub(crate) struct OnLost(Arc<dyn Fn(&LostHold) + Send + Sync>);

impl OnLost {
    pub(crate) fn new(callback: impl Fn(&LostHold) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    /// Starts its thread, which ends when the queue is dropped.
    fn start(self) -> std::io::Result<SyncSender<LostHold>> {
        let (queue, losses) = sync_channel(MOST_WAITING);
        let thread = std::thread::Builder::new().name("watchlock-lost".into());
        thread.spawn(move || {
            forward();
            for lost in losses {
                let reported = catch_unwind(AssertUnwindSafe(|| (self.0)(&lost)));
                if reported.is_err() {
                    log(move || tracing::error!(name = lost.name, "on_lost panicked"));
                }
            }
        })?;
        Ok(queue)
    }
}

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLost")
    }
}

/// What a client knows of itself. All numbers stand for themselves, so they are relaxed.
pub(crate) struct Report {
    losses: Option<SyncSender<LostHold>>,
    lost: AtomicU64,
    unreleased: AtomicUsize,
    polling: AtomicUsize,
    /// Names of locks whose releases the end of the client left unanswered.
    left: Mutex<Vec<String>>,
    /// Since when renewals have been failing, in nanoseconds; 0 while they do not.
    failing_since: AtomicU64,
    metrics: Metrics,
}

impl Report {
    /// Fails if the system starts no thread.
    pub(crate) fn start(on_lost: Option<OnLost>, metrics: Metrics) -> std::io::Result<Self> {
        Ok(Self {
            losses: on_lost.map(OnLost::start).transpose()?,
            lost: AtomicU64::new(0),
            unreleased: AtomicUsize::new(0),
            polling: AtomicUsize::new(0),
            left: Mutex::default(),
            failing_since: AtomicU64::new(0),
            metrics,
        })
    }

    pub(crate) fn lost(&self, lost: impl FnOnce() -> LostHold) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if let Some(losses) = &self.losses {
            let _ = losses.try_send(lost());
        }
    }

    /// A release failed, and is repeated until this is dropped.
    pub(crate) fn is_unreleased(&self) -> impl Sized {
        self.unreleased.fetch_add(1, Ordering::Relaxed);
        self.metrics.unreleased(1.0);
        guard(self, |report| {
            report.unreleased.fetch_sub(1, Ordering::Relaxed);
            report.metrics.unreleased(-1.0);
        })
    }

    /// The client ends before Redis answered a release of the lock `name`.
    pub(crate) fn leaves(&self, name: &str) {
        self.left.lock().push(name.to_owned());
    }

    pub(crate) fn left(&self) -> Vec<String> {
        std::mem::take(&mut self.left.lock())
    }

    /// A subscription is down, until [`listens`](Self::listens).
    pub(crate) fn polls(&self) {
        if self.polling.fetch_add(1, Ordering::Relaxed) == 0 {
            self.metrics.polling(1.0);
        }
    }

    pub(crate) fn listens(&self) {
        if self.polling.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.metrics.polling(-1.0);
        }
    }

    /// Since when renewals have been failing; none once they work.
    pub(crate) fn renewals_fail(&self, since: Option<Moment>) {
        let since = since.map_or(0, Moment::as_nanos);
        self.failing_since.store(since, Ordering::Relaxed);
    }

    /// All figures that are kept here.
    pub(crate) fn stats(&self, now: Moment) -> Stats {
        let failing_since = self.failing_since.load(Ordering::Relaxed);
        Stats {
            unreleased: self.unreleased.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            failing_for: (failing_since > 0).then(|| Moment::from_nanos(failing_since).until(now)),
            polling: self.polling.load(Ordering::Relaxed) > 0,
            ..Stats::default()
        }
    }
}
