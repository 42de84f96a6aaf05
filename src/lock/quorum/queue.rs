//! The queue of one name at a quorum: whose turn it is, what is known of the lock, and when the next round is due.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::ballot::UnderWay;
use super::listeners::Listeners;
use super::node::QuorumNode;
use super::retry::Retry;
use super::rules::BusyNodes;
use crate::clock::Moment;
use crate::engine::gate::ticket::Patience;
use crate::engine::hold::kind::Kind;
use crate::error::Error;
use crate::host::RandomState;
use crate::lease::Lease;
use crate::lock::several::{CompositeOwner, Pauses};
use crate::names::Names;

#[derive(Clone)]
pub(super) struct AcquireRequest {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// Whether the hold needs a fencing token.
    pub(super) fenced: bool,
    pub(super) lease: Lease,
    pub(super) owner: Option<Arc<CompositeOwner>>,
    pub(super) patience: Patience,
    pub(super) since: Moment,
}

/// What the last round found out about the lock. All waiters see it.
#[derive(Clone, Default)]
pub(super) enum LockNews {
    #[default]
    Nothing,
    /// Somebody has the lock: another process, or a caller of this one.
    Busy,
    /// Why the last rounds had no quorum, and since when.
    Failing(Error, Moment),
    /// No more rounds are made.
    Closed,
}

/// The queues of all names that somebody asks for.
#[derive(Default)]
pub(super) struct Queues(Mutex<HashMap<Arc<str>, Weak<NameQueue>, RandomState>>);

impl Queues {
    /// The queue of `name`, where a lock needs `needed` nodes. It lives as long as somebody uses it.
    pub(super) fn of(self: &Arc<Self>, name: &Arc<str>, needed: usize) -> Arc<NameQueue> {
        let mut queues = self.0.lock();
        if let Some(queue) = queues.get(name).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = Arc::new(NameQueue {
            name: Arc::clone(name),
            queues: Arc::clone(self),
            turn: tokio::sync::Mutex::new(Rounds::new(needed)),
            news: watch::Sender::new(LockNews::Nothing),
        });
        queues.insert(Arc::clone(name), Arc::downgrade(&queue));
        queue
    }

    /// Ends the wait of everybody.
    pub(super) fn close(&self) {
        let queues: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).collect();
        for queue in queues {
            queue.publish(LockNews::Closed);
        }
    }
}

pub(super) struct NameQueue {
    name: Arc<str>,
    queues: Arc<Queues>,
    /// First come, first served. Only the caller that has it makes rounds.
    pub(super) turn: tokio::sync::Mutex<Rounds>,
    news: watch::Sender<LockNews>,
}

impl Drop for NameQueue {
    fn drop(&mut self) {
        let mut queues = self.queues.0.lock();
        // By now another one may have taken its place.
        if matches!(queues.get(&self.name), Some(queue) if queue.strong_count() == 0) {
            queues.remove(&self.name);
        }
    }
}

impl NameQueue {
    pub(super) fn news(&self) -> watch::Receiver<LockNews> {
        self.news.subscribe()
    }

    /// Publishes what is new to all waiters. `Closed` is final.
    pub(super) fn publish(&self, news: LockNews) {
        self.news.send_if_modified(|before| {
            let known = (&*before, &news);
            let is_new = !matches!(
                known,
                (LockNews::Closed, _) | (LockNews::Busy, LockNews::Busy)
            );
            if is_new {
                *before = news;
            }
            is_new
        });
    }

    /// Publishes that a round had no quorum, at `now`. Returns since when that is so. `is_known`: whether the round
    /// before it ended recently enough for the time since then to count.
    pub(super) fn publish_failure(&self, error: Error, now: Moment, is_known: bool) -> Moment {
        let since = match &*self.news.borrow() {
            LockNews::Failing(_, since) if is_known => *since,
            _ => now,
        };
        self.publish(LockNews::Failing(error, since));
        since
    }
}

/// When the next round is due. The caller that has the turn keeps it up to date.
pub(super) struct Rounds {
    /// Opened by the first caller that waits.
    listeners: Option<Listeners>,
    /// A round whose caller had to return before the outcome was certain.
    pub(super) under_way: Option<UnderWay>,
    pub(super) retry: Retry,
    pauses: Pauses,
    /// When the last round ended.
    pub(super) ended_at: Moment,
    /// When the last round ended whose outcome was published.
    pub(super) reported_at: Moment,
}

impl Rounds {
    fn new(needed: usize) -> Self {
        Self {
            listeners: None,
            under_way: None,
            retry: Retry::new(needed),
            pauses: Pauses::new(),
            ended_at: Moment::default(),
            reported_at: Moment::default(),
        }
    }

    /// A round got the lock.
    pub(super) fn got(&mut self, now: Moment, poll: Duration) {
        self.pauses = Pauses::new();
        self.retry.got(now, poll);
    }

    /// A round, begun at `began`, found too many nodes busy. The next one is due after `poll`, or when enough leases end;
    /// or after a short pause when others may try at the same time.
    pub(super) fn busy(&mut self, began: Moment, now: Moment, poll: Duration, found: &BusyNodes) {
        if !found.some && self.retry.follows_a_release() {
            self.pauses = Pauses::new();
        }
        if found.some && !self.pauses.are_over() {
            let pause = self.pauses.after(began.until(now));
            self.retry.met_others(now, pause);
        } else {
            let (free_at, granted) = (found.free_at, found.granted);
            self.retry
                .refused(now, poll, free_at, granted, fastrand::f64());
        }
    }

    /// The place of the next node that publishes a wake-up for the lock.
    pub(super) async fn wake_up(&mut self, nodes: &[Arc<QuorumNode>], names: &Arc<Names>) -> usize {
        let open = || Listeners::open(nodes, names);
        self.listeners.get_or_insert_with(open).next().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_nanos(1);
    const POLL: Duration = Duration::from_secs(60);

    /// A round begins, and finds too many nodes busy. Returns whether the next one is due after a pause instead of a poll.
    fn pauses(rounds: &mut Rounds, some: bool) -> bool {
        rounds.retry.begins();
        let found = BusyNodes {
            some,
            granted: 0,
            free_at: Moment::NEVER,
        };
        rounds.busy(NOW, NOW, POLL, &found);
        rounds.retry.next() < NOW + POLL
    }

    /// Three of five nodes are needed, and as many rounds met others as there are pauses.
    fn behind_all_pauses() -> Rounds {
        let mut rounds = Rounds::new(3);
        while pauses(&mut rounds, true) {}
        rounds
    }

    #[test]
    fn rounds_that_meet_others_pause_only_so_often() {
        let mut rounds = Rounds::new(3);
        let paused = [(); 6].map(|()| pauses(&mut rounds, true));
        assert_eq!(paused, [true, true, true, true, false, false]);
    }

    #[test]
    fn a_refusal_without_a_release_brings_no_new_pauses() {
        let mut rounds = behind_all_pauses();
        assert!(!pauses(&mut rounds, false));
        assert!(!pauses(&mut rounds, true));
    }

    #[test]
    fn a_release_brings_new_pauses() {
        let mut rounds = behind_all_pauses();
        for place in 0..3 {
            rounds.retry.woken_by(place, NOW, 0.0);
        }
        assert!(!pauses(&mut rounds, false), "another got it");
        assert!(pauses(&mut rounds, true));
    }

    #[test]
    fn a_grant_brings_new_pauses() {
        let mut rounds = behind_all_pauses();
        rounds.retry.begins();
        rounds.got(NOW, POLL);
        assert!(pauses(&mut rounds, true));
    }
}
