//! The latches that callers of this client wait for, and what Redis last said of them.
//!
//! 1. A latch is listed while anybody waits for it, and has one job of the keeper, which asks for all of them at once.
//! 2. An answer counts for those who came before its question: the latch may have been set anew when others came.
//! 3. A caller that goes away leaves nothing: the last receiver of the news ends the job.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::backend::Failure;
use crate::clock::Moment;
use crate::error::Error;
use crate::names::{ByNames, Names};

/// All latches that somebody waits for.
#[derive(Default)]
pub(crate) struct Latches(Mutex<ByNames<Arc<WaitedLatch>>>);

/// A latch that somebody waits for.
#[derive(Default)]
pub(crate) struct WaitedLatch {
    /// Notified when somebody came, who needs another question.
    pub(crate) wanted: Notify,
    news: watch::Sender<LatchNews>,
}

/// What the job last found out, for those who wait.
#[derive(Default)]
struct LatchNews {
    /// How many questions began.
    questions: u64,
    /// Those who came before this question wait no more.
    over: Option<(u64, Result<(), Error>)>,
    /// Since when all questions failed, and how the last one did.
    failing: Option<(Moment, Failure)>,
}

/// A caller that waits for a latch.
pub(crate) struct LatchWaiter {
    news: watch::Receiver<LatchNews>,
    since: Moment,
    /// The first question whose answer counts for it.
    question: u64,
}

impl Latches {
    /// Somebody waits for a latch from now on. Returns also whether it needs a job: nobody waited before.
    pub(crate) fn wait(&self, names: &Arc<Names>, now: Moment) -> (LatchWaiter, bool) {
        let mut all = self.0.lock();
        let mut is_first = false;
        let latch = all.entry(Arc::clone(names)).or_insert_with(|| {
            is_first = true;
            Arc::default()
        });
        let news = latch.news.subscribe();
        let question = news.borrow().questions + 1;
        latch.wanted.notify_one();
        let waiter = LatchWaiter {
            news,
            since: now,
            question,
        };
        (waiter, is_first)
    }

    pub(crate) fn of(&self, names: &Names) -> Option<Arc<WaitedLatch>> {
        self.0.lock().get(names).cloned()
    }

    /// Forgets a latch that nobody waits for any more. Returns false if somebody does.
    pub(crate) fn forget(&self, names: &Names, latch: &WaitedLatch) -> bool {
        let mut all = self.0.lock();
        // Under the lock: who comes later finds no latch, and so starts another job.
        let is_left = latch.news.receiver_count() == 0;
        if is_left {
            all.remove(names);
        }
        is_left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// The client is closed: nobody waits any more.
    pub(crate) fn close(&self) {
        let all: Vec<_> = self.0.lock().values().cloned().collect();
        for latch in all {
            latch.is_over(u64::MAX, Err(Error::Closed));
        }
    }
}

impl WaitedLatch {
    /// Resolves when nobody waits any more.
    pub(crate) async fn left(&self) {
        self.news.closed().await;
    }

    /// A question begins. Returns its number.
    pub(crate) fn begin_question(&self) -> u64 {
        let mut number = 0;
        self.news.send_if_modified(|news| {
            news.questions += 1;
            number = news.questions;
            false
        });
        number
    }

    /// A question was answered: the latch is closed.
    pub(crate) fn is_closed(&self) {
        self.news.send_if_modified(|news| {
            news.failing = None;
            false
        });
    }

    /// Whoever came before `question` waits no more.
    pub(crate) fn is_over(&self, question: u64, result: Result<(), Error>) {
        self.news.send_modify(|news| {
            news.failing = None;
            // An answer does not replace the end of the client.
            let later = news.over.take().filter(|(before, _)| *before > question);
            news.over = later.or(Some((question, result)));
        });
    }

    /// A question that began at `since` failed, and is repeated.
    pub(crate) fn failed(&self, since: Moment, failure: &Failure) {
        self.news.send_modify(|news| {
            let (first, _) = news.failing.take().unwrap_or((since, failure.clone()));
            news.failing = Some((first, failure.clone()));
        });
    }
}

impl LatchWaiter {
    /// What the wait came to, if it is over. It is also over when all questions have failed for `unavailable_after`, while
    /// it waited and the process ran, which it does since `runs_since`.
    pub(crate) fn result(
        &mut self,
        now: Moment,
        runs_since: Moment,
        unavailable_after: Duration,
    ) -> Option<Result<(), Error>> {
        let news = self.news.borrow_and_update();
        if let Some((question, result)) = &news.over
            && *question >= self.question
        {
            return Some(result.clone());
        }
        let (first, failure) = news.failing.as_ref()?;
        let since = self.since.max(*first).max(runs_since);
        (since.until(now) >= unavailable_after).then(|| Err(failure.clone().into()))
    }

    /// Waits until there may be a result.
    pub(crate) async fn changed(&mut self) -> Result<(), Error> {
        // While this waits, the latch is listed, and so the sender lives.
        self.news.changed().await.map_err(|_| Error::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Family;

    const LIMIT: Duration = Duration::from_secs(5);

    fn names() -> Arc<Names> {
        Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap())
    }

    fn at(seconds: u64) -> Moment {
        Moment::default() + Duration::from_secs(seconds)
    }

    fn result(waiter: &mut LatchWaiter, now: Moment) -> Option<Result<(), Error>> {
        waiter.result(now, Moment::default(), LIMIT)
    }

    #[test]
    fn an_answer_counts_for_those_who_came_before_its_question() {
        let (all, names) = (Latches::default(), names());
        let (mut early, first) = all.wait(&names, at(1));
        let latch = all.of(&names).unwrap();
        let question = latch.begin_question();
        let (mut late, second) = all.wait(&names, at(1));
        assert!(first && !second);
        latch.is_over(question, Ok(()));
        assert!(matches!(result(&mut early, at(1)), Some(Ok(()))));
        assert!(result(&mut late, at(1)).is_none());
        let question = latch.begin_question();
        latch.is_over(question, Err(Error::wrong_type()));
        assert!(matches!(
            result(&mut late, at(1)),
            Some(Err(Error::WrongType { .. }))
        ));
    }

    #[test]
    fn failures_end_a_wait_that_saw_them_for_long_enough() {
        let (all, names) = (Latches::default(), names());
        let (mut early, _) = all.wait(&names, at(10));
        let latch = all.of(&names).unwrap();
        let fails = |since| latch.failed(at(since), &Failure::no_reply());
        fails(12);
        let (mut late, _) = all.wait(&names, at(14));
        fails(16);
        assert!(result(&mut early, at(16)).is_none());
        assert!(result(&mut early, at(17)).is_some_and(|result| result.is_err()));
        assert!(result(&mut late, at(18)).is_none());
        assert!(result(&mut late, at(19)).is_some());
        let paused = |waiter: &mut LatchWaiter| waiter.result(at(19), at(15), LIMIT);
        assert!(paused(&mut early).is_none(), "the process stood still");
        latch.is_closed();
        assert!(result(&mut early, at(60)).is_none());
        fails(60);
        assert!(result(&mut early, at(64)).is_none(), "they began anew");
    }

    #[test]
    fn a_latch_is_listed_while_somebody_waits() {
        let (all, names) = (Latches::default(), names());
        let (waiter, _) = all.wait(&names, at(1));
        let latch = all.of(&names).unwrap();
        assert!(!all.forget(&names, &latch));
        drop(waiter);
        assert!(all.forget(&names, &latch));
        assert!(all.is_empty());
        let (mut waiter, first) = all.wait(&names, at(1));
        assert!(first);
        all.close();
        assert!(matches!(
            result(&mut waiter, at(1)),
            Some(Err(Error::Closed))
        ));
    }
}
