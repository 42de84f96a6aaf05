//! An owner label: one task that carries out its requests, in order, as one owner of locks.
//!
//! Levels are detached, because a lock and its unlock are two requests that know nothing of each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use watchlock::{Error, HoldView, Lease, Lock, LockGuard, LostReason};

use crate::answers::{Answers, Outcome, outcome_of, timed};
use crate::failure::Failure;
use crate::kinds::{Kind, Name, Someone};
use crate::request::Verb;

/// A request to an owner.
pub(crate) struct Job {
    pub(crate) id: Value,
    pub(crate) kind: &'static Kind,
    pub(crate) name: Name,
    pub(crate) verb: Verb,
}

/// The task of a label. It ends, and gives back what it holds, when no more jobs can come.
pub(crate) struct Label {
    jobs: mpsc::UnboundedSender<Job>,
    task: JoinHandle<()>,
}

impl Label {
    /// `users` runs the owner; the tasks that watch holds run on the runtime that calls this.
    pub(crate) fn begin(label: &str, owner: Someone, users: &Handle, answers: Answers) -> Self {
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
        // The task lives as long as this sender.
        let _ = self.jobs.send(job);
    }

    pub(crate) async fn end(self) {
        drop(self.jobs);
        let _ = self.task.await;
    }
}

async fn work(owner: Someone, mut todo: mpsc::UnboundedReceiver<Job>, mut watch: Watch) {
    while let Some(job) = todo.recv().await {
        let target = match job.kind.of_owner(&owner, &job.name) {
            Ok(lock) => Target {
                kind: job.kind,
                name: job.name.to_json(),
                lock,
            },
            Err(refused) => {
                watch.answers.answer(&job.id, Outcome::refused(refused));
                continue;
            }
        };
        let lock = &target.lock;
        let outcome = match job.verb {
            Verb::Lock(lease) => watch.lock(&target, lease).await,
            Verb::TryLock(wait, lease) => watch.try_lock(&target, wait, lease).await,
            Verb::Unlock => watch.unlock(&target).await,
            Verb::IsHeld => local(|| json!({"held": lock.is_held()})).await,
            Verb::HoldCount => local(|| json!({"count": lock.hold_count()})).await,
        };
        watch.answers.answer(&job.id, outcome);
    }
    for watched in watch.held.into_values() {
        while watched.target.lock.unlock().await.is_ok() {}
        watched.changed.send_replace(true);
    }
}

async fn local(ask: impl FnOnce() -> Value) -> Outcome {
    outcome_of::<Failure>(async { Ok(ask()) }).await
}

/// A lock of an owner, and its kind.
#[derive(Clone)]
struct Target {
    kind: &'static Kind,
    name: Value,
    lock: Arc<dyn Lock>,
}

impl Target {
    /// Whether each level of it ends by itself. Then the owner has the lock for as long as any is valid.
    fn has_own_levels(&self) -> bool {
        self.kind.word == "read"
    }

    /// One name may be held as two kinds at once.
    fn key(&self) -> (&'static str, String) {
        (self.kind.word, self.name.to_string())
    }
}

/// A hold of the owner; the task that watches it ends with this.
struct Watched {
    target: Target,
    /// How many of its levels have not been given back.
    levels: u32,
    views: Views,
    /// Sends with each level that is given back, or could not be had, whether that was the last one.
    changed: watch::Sender<bool>,
    reported: Arc<AtomicBool>,
}

/// The levels that the owner got. One that it only asks for is none of them, though the library counts it as held until it
/// is answered.
#[derive(Clone, Default)]
struct Views(Arc<Mutex<Vec<HoldView>>>);

impl Views {
    fn any_valid(&self) -> bool {
        self.0.lock().iter().any(HoldView::is_valid)
    }
}

/// Takes and gives back levels, and reports each hold that is lost once.
struct Watch {
    label: Arc<str>,
    answers: Answers,
    runtime: Handle,
    held: HashMap<(&'static str, String), Watched>,
}

impl Watch {
    async fn lock(&mut self, target: &Target, lease: Lease) -> Outcome {
        let (t_inv, t_ret, got) = timed(async {
            match lease {
                Lease::Fixed(lease) => target.lock.lock_with_lease(lease).await,
                _ => target.lock.lock().await,
            }
        })
        .await;
        let result = got.and_then(|guard| self.keep(target, guard));
        self.report_if_lost(target, &result);
        Outcome::new(t_inv, t_ret, result)
    }

    async fn try_lock(&mut self, target: &Target, wait: Duration, lease: Lease) -> Outcome {
        let (t_inv, t_ret, got) = timed(target.lock.try_lock(wait, lease)).await;
        let result = got.and_then(|got| match got {
            Some(guard) => {
                let mut result = self.keep(target, guard)?;
                result["acquired"] = json!(true);
                Ok(result)
            }
            None => Ok(json!({"acquired": false})),
        });
        self.report_if_lost(target, &result);
        Outcome::new(t_inv, t_ret, result)
    }

    /// A caller that asks for a further level may hear first that the hold is lost.
    fn report_if_lost(&self, target: &Target, asked: &Result<Value, Error>) {
        let Some(watched) = self.held.get(&target.key()) else {
            return;
        };
        let Err(Error::Lost { reason, .. }) = asked else {
            return;
        };
        if watched.views.any_valid() {
            watched.changed.send_replace(false);
        } else if !watched.reported.swap(true, Ordering::Relaxed) {
            let (label, name) = (&self.label, &target.name);
            self.answers.lost(label, target.kind, name, *reason);
        }
    }

    /// Keeps a level for a later `unlock`; returns the answer about its hold.
    fn keep(&mut self, target: &Target, guard: LockGuard) -> Result<Value, Error> {
        let (token, hold) = (guard.fencing_token(), guard.hold());
        let views = self.held.get(&target.key()).map(|held| held.views.clone());
        // Whoever finds the last level before this lost, finds it before the count or sees the new one.
        let mut known = views.as_ref().map(|views| views.0.lock());
        let count = guard.hold_count();
        if let Some(known) = known.as_mut().filter(|_| count > 1) {
            known.push(hold.clone());
        }
        drop(known);
        guard.detach()?;
        // Several locks as one may have been held one by one before.
        if count == 1 || views.is_none() {
            let watched = Watched {
                target: target.clone(),
                levels: 0,
                views: Views(Arc::new(Mutex::new(vec![hold.clone()]))),
                changed: watch::channel(false).0,
                reported: Arc::default(),
            };
            self.held.insert(target.key(), watched);
        }
        if let Some(watched) = self.held.get_mut(&target.key()) {
            watched.levels += 1;
        }
        let mut levels = count;
        if let Some(watched) = self.held.get(&target.key()) {
            if target.has_own_levels() {
                levels = watched.levels;
            }
            if watched.levels == 1 || target.has_own_levels() {
                self.report_when_lost(target, hold, watched);
            }
        }
        let mut result = json!({"count": levels});
        if let Some(token) = token {
            result["token"] = json!(token.as_u64());
        }
        Ok(result)
    }

    async fn unlock(&mut self, target: &Target) -> Outcome {
        if let Some(watched) = self.held.get(&target.key())
            && target.has_own_levels()
            && watched.levels == 1
        {
            // Its end is no loss of a level that ended before.
            watched.changed.send_replace(true);
        }
        let (t_inv, t_ret, mut result) = timed(target.lock.unlock()).await;
        let mut count = target.lock.hold_count();
        if let Some(watched) = self.held.get_mut(&target.key())
            && target.has_own_levels()
        {
            watched.levels = watched.levels.saturating_sub(1);
            if watched.levels > 0 {
                watched.changed.send_replace(false);
            }
            if count > 0 && result.as_ref().is_err_and(Error::is_lost) {
                // That level had ended by itself; the owner's hold goes on.
                result = Ok(());
            }
            count = watched.levels;
        }
        if count == 0
            && let Some(watched) = self.held.remove(&target.key())
        {
            watched.changed.send_replace(true);
        }
        let result = result.map(|()| json!({"count": count}));
        Outcome::new(t_inv, t_ret, result)
    }

    /// Reports once a hold whose last valid level was lost. Another hold may have begun before that was seen: then
    /// `changed` ends, and the last one was not given back.
    fn report_when_lost(&self, target: &Target, hold: HoldView, watched: &Watched) {
        let (label, target) = (Arc::clone(&self.label), target.clone());
        let (levels, reported) = (watched.views.clone(), Arc::clone(&watched.reported));
        let mut changed = watched.changed.subscribe();
        let answers = self.answers.clone();
        self.runtime.spawn(async move {
            let ended = {
                let mut changed = changed.clone();
                async move {
                    while changed.changed().await.is_ok() {}
                    *changed.borrow()
                }
            };
            let reason = tokio::select! {
                // First, because a hold that ends may have been lost just before.
                biased;
                reason = hold.lost() => reason,
                given_back = ended => {
                    if given_back {
                        return;
                    }
                    hold.lost().await
                }
            };
            // Our own shutdown takes what is left, and that is no loss.
            if reason == LostReason::Shutdown {
                return;
            }
            if target.has_own_levels() {
                while levels.any_valid() && !*changed.borrow() {
                    if changed.changed().await.is_err() {
                        break;
                    }
                }
                if *changed.borrow() {
                    return;
                }
            }
            if !reported.swap(true, Ordering::Relaxed) {
                answers.lost(&label, target.kind, &target.name, reason);
            }
        });
    }
}
