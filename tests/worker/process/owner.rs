//! An owner label: one task that does what its requests say, in their order, as one owner of locks.
//!
//! Levels are detached, because a lock and its unlock are two requests that know nothing of each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use watchlock::{Error, HoldView, Lease, LockGuard, Owner, ReentrantLock};

use crate::answers::{Answers, Outcome, outcome_of, timed};
use crate::failure::Failure;
use crate::request::Verb;

/// A request to an owner.
pub(crate) struct Job {
    pub(crate) id: Value,
    pub(crate) name: String,
    pub(crate) verb: Verb,
}

/// The task of a label. It ends, and gives back what it holds, when no job can come any more.
pub(crate) struct Label {
    jobs: mpsc::UnboundedSender<Job>,
    task: JoinHandle<()>,
}

impl Label {
    /// `users` runs the owner; holds are watched from the runtime that this is called on.
    pub(crate) fn begin(label: &str, owner: Owner, users: &Handle, answers: Answers) -> Self {
        let (jobs, todo) = mpsc::unbounded_channel();
        let watch = Watch {
            label: label.into(),
            answers,
            runtime: Handle::current(),
            held: HashMap::new(),
        };
        let task = users.spawn(work(owner, todo, watch));
        Self { jobs, task }
    }

    pub(crate) fn submit(&self, job: Job) {
        // The task is there for as long as this sender.
        let _ = self.jobs.send(job);
    }

    pub(crate) async fn end(self) {
        drop(self.jobs);
        let _ = self.task.await;
    }
}

async fn work(owner: Owner, mut todo: mpsc::UnboundedReceiver<Job>, mut watch: Watch) {
    while let Some(Job { id, name, verb }) = todo.recv().await {
        let lock = owner.get_lock(&name);
        let outcome = match verb {
            Verb::Lock(lease) => watch.lock(&lock, lease).await,
            Verb::TryLock(wait, lease) => watch.try_lock(&lock, wait, lease).await,
            Verb::Unlock => watch.unlock(&lock).await,
            Verb::IsHeld => local(|| json!({"held": lock.is_held()})).await,
            Verb::HoldCount => local(|| json!({"count": lock.hold_count()})).await,
        };
        watch.answers.answer(&id, outcome);
    }
    for name in watch.held.keys() {
        let lock = owner.get_lock(name);
        while lock.unlock().await.is_ok() {}
    }
}

async fn local(ask: impl FnOnce() -> Value) -> Outcome {
    outcome_of::<Failure>(async { Ok(ask()) }).await
}

/// Takes and gives back levels, and tells of each hold that is lost, once.
struct Watch {
    label: Arc<str>,
    answers: Answers,
    runtime: Handle,
    /// Who watches the hold of a name goes by the end of this.
    held: HashMap<String, oneshot::Sender<()>>,
}

impl Watch {
    async fn lock(&mut self, lock: &ReentrantLock, lease: Lease) -> Outcome {
        let (t_inv, t_ret, got) = timed(async {
            match lease {
                Lease::Fixed(lease) => lock.lock_for(lease).await,
                _ => lock.lock().await,
            }
        })
        .await;
        let count = got.and_then(|guard| self.keep(guard));
        let result = count.map(|count| json!({"count": count}));
        Outcome::new(t_inv, t_ret, result)
    }

    async fn try_lock(&mut self, lock: &ReentrantLock, wait: Duration, lease: Lease) -> Outcome {
        let (t_inv, t_ret, got) = timed(lock.try_lock(wait, lease)).await;
        let result = got.and_then(|got| match got {
            Some(guard) => {
                let count = self.keep(guard)?;
                Ok(json!({"acquired": true, "count": count}))
            }
            None => Ok(json!({"acquired": false})),
        });
        Outcome::new(t_inv, t_ret, result)
    }

    /// Keeps a level for a later `unlock`; the hold count with it.
    fn keep(&mut self, guard: LockGuard) -> Result<u32, Error> {
        let (name, count, hold) = (guard.name().to_owned(), guard.hold_count(), guard.hold());
        guard.detach()?;
        if count == 1 {
            let (end, ended) = oneshot::channel();
            self.tell_when_lost(&name, hold, ended);
            self.held.insert(name, end);
        }
        Ok(count)
    }

    async fn unlock(&mut self, lock: &ReentrantLock) -> Outcome {
        let (t_inv, t_ret, result) = timed(lock.unlock()).await;
        let count = lock.hold_count();
        if count == 0 {
            self.held.remove(lock.name());
        }
        let result = result.map(|()| json!({"count": count}));
        Outcome::new(t_inv, t_ret, result)
    }

    fn tell_when_lost(&self, name: &str, hold: HoldView, ended: oneshot::Receiver<()>) {
        let (label, name) = (Arc::clone(&self.label), name.to_owned());
        let answers = self.answers.clone();
        self.runtime.spawn(async move {
            tokio::select! {
                // First, because a hold that ends may have been lost just before.
                biased;
                reason = hold.lost() => {
                    // The announcement of our own shutdown comes while the hold is still good.
                    if !hold.is_valid() {
                        answers.lost(&label, &name, reason);
                    }
                }
                _ = ended => {}
            }
        });
    }
}
