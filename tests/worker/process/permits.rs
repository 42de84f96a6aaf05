//! Semaphores: the grants of this process, by their handles.
//!
//! A grant is the process', whoever asked for it: an owner only puts its requests in order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use watchlock::kind::SemaphoreKind;
use watchlock::{Client, Ended, Error, Lease, LostReason, Permit, PermitId, SemaphoreHandle};

use crate::answers::{Answers, Outcome, timed};
use crate::failure::Failure;

/// A request about a semaphore.
pub(crate) struct PermitJob {
    pub(crate) kind: PermitKind,
    pub(crate) name: String,
    pub(crate) owner: Option<String>,
    pub(crate) verb: PermitVerb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermitKind {
    Semaphore,
    Permit,
}

pub(crate) enum PermitVerb {
    Acquire {
        permits: u32,
        wait: Option<Duration>,
        lease: Lease,
        initial: Option<u32>,
    },
    Release(GivenBack),
    Set(u32),
    Add(i32),
    Count,
}

/// What is given back.
pub(crate) enum GivenBack {
    Handle(String),
    Ids(Vec<PermitId>),
    /// Grants that are so many permits together, the oldest first.
    Permits(u32),
}

impl PermitKind {
    pub(crate) fn of(word: &str) -> Option<Self> {
        let all = [Self::Semaphore, Self::Permit];
        all.into_iter().find(|kind| kind.word() == word)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Semaphore => "semaphore",
            Self::Permit => "permit",
        }
    }
}

struct Grant {
    kind: PermitKind,
    name: String,
    permit: Permit,
}

/// The grants, and the queues of owners.
pub(crate) struct Grants {
    users: Handle,
    taken: Arc<Taken>,
    owners: HashMap<String, mpsc::UnboundedSender<BoxFuture<'static, ()>>>,
}

struct Taken {
    answers: Answers,
    /// Where losses are watched for; no test blocks it.
    watching: Handle,
    number: AtomicU64,
    grants: Mutex<BTreeMap<u64, Grant>>,
}

impl Grants {
    pub(crate) fn new(users: Handle, answers: Answers) -> Self {
        let taken = Taken {
            answers,
            watching: Handle::current(),
            number: AtomicU64::new(0),
            grants: Mutex::default(),
        };
        Self {
            users,
            taken: Arc::new(taken),
            owners: HashMap::new(),
        }
    }

    pub(crate) fn submit(&mut self, client: Client, id: Value, job: PermitJob) {
        let (taken, owner) = (Arc::clone(&self.taken), job.owner.clone());
        let work = async move {
            let outcome = match job.kind {
                PermitKind::Semaphore => taken.run(client.get_semaphore(&job.name), job).await,
                PermitKind::Permit => {
                    let of = client.get_permit_expirable_semaphore(&job.name);
                    taken.run_expirable(of, job).await
                }
            };
            taken.answers.answer(&id, outcome);
        };
        match owner {
            None => drop(self.users.spawn(work)),
            // The queue lives as long as this sender.
            Some(owner) => drop(self.queue(owner).send(Box::pin(work))),
        }
    }

    fn queue(&mut self, owner: String) -> &mpsc::UnboundedSender<BoxFuture<'static, ()>> {
        let users = &self.users;
        self.owners.entry(owner).or_insert_with(|| {
            let (jobs, mut todo) = mpsc::unbounded_channel::<BoxFuture<'static, ()>>();
            users.spawn(async move {
                while let Some(job) = todo.recv().await {
                    job.await;
                }
            });
            jobs
        })
    }

    /// Gives back what is left.
    pub(crate) fn clear(&mut self) {
        self.owners.clear();
        drop(std::mem::take(&mut *self.taken.grants.lock()));
    }
}

impl Taken {
    async fn run_expirable(
        self: &Arc<Self>,
        of: watchlock::PermitExpirableSemaphore,
        job: PermitJob,
    ) -> Outcome {
        match &job.verb {
            PermitVerb::Release(GivenBack::Ids(ids)) => self.release_ids(&of, ids).await,
            PermitVerb::Count => {
                let (t_inv, t_ret, counts) = timed(async {
                    Ok::<_, Error>(json!({
                        "available": of.available_permits().await?,
                        "acquired": of.acquired_permits().await?,
                        "total": of.total_permits().await?,
                    }))
                })
                .await;
                Outcome::new(t_inv, t_ret, counts)
            }
            _ => self.run(of, job).await,
        }
    }

    async fn run<K: SemaphoreKind>(
        self: &Arc<Self>,
        of: SemaphoreHandle<K>,
        job: PermitJob,
    ) -> Outcome {
        match &job.verb {
            PermitVerb::Acquire { .. } => self.acquire(of, &job).await,
            PermitVerb::Release(what) => self.release(&job, what).await,
            PermitVerb::Set(permits) => {
                let (t_inv, t_ret, set) = timed(of.try_set_permits(*permits)).await;
                Outcome::new(t_inv, t_ret, set.map(|set| json!({"set": set})))
            }
            PermitVerb::Add(permits) => {
                let (t_inv, t_ret, added) = timed(of.add_permits(*permits)).await;
                Outcome::new(t_inv, t_ret, added.map(|()| json!({})))
            }
            PermitVerb::Count => {
                let (t_inv, t_ret, free) = timed(of.available_permits()).await;
                Outcome::new(t_inv, t_ret, free.map(|free| json!({"available": free})))
            }
        }
    }

    async fn acquire<K: SemaphoreKind>(
        self: &Arc<Self>,
        of: SemaphoreHandle<K>,
        job: &PermitJob,
    ) -> Outcome {
        let PermitVerb::Acquire {
            permits,
            wait,
            lease,
            initial,
        } = job.verb
        else {
            return Outcome::refused(Failure::bad_request("no acquire"));
        };
        let of = match initial {
            Some(initial) => of.with_permits(initial),
            None => of,
        };
        let wait = wait.unwrap_or(Duration::MAX);
        let (t_inv, t_ret, got) = timed(of.try_acquire_many(permits, wait, lease)).await;
        let result = got.map(|got| match got {
            Some(permit) => self.keep(job, permit),
            None => json!({"acquired": false}),
        });
        Outcome::new(t_inv, t_ret, result)
    }

    fn keep(self: &Arc<Self>, job: &PermitJob, permit: Permit) -> Value {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let handle = format!("rust-{number}");
        let ids: Vec<_> = permit.ids().iter().map(ToString::to_string).collect();
        let mut event = json!({
            "event": "lost", "kind": job.kind.word(), "name": job.name, "handle": handle,
        });
        if let Some(owner) = &job.owner {
            event["owner"] = json!(owner);
        }
        let (hold, answers) = (permit.hold(), self.answers.clone());
        self.watching.spawn(async move {
            match hold.ended().await {
                // Our own shutdown takes what is left, and that is no loss.
                Ended::Lost(LostReason::Shutdown) => {}
                Ended::Lost(reason) => answers.lost_permits(event, reason),
                _ => {}
            }
        });
        let grant = Grant {
            kind: job.kind,
            name: job.name.clone(),
            permit,
        };
        self.grants.lock().insert(number, grant);
        json!({"acquired": true, "handle": handle, "ids": ids})
    }

    async fn release(&self, job: &PermitJob, what: &GivenBack) -> Outcome {
        let grants = match what {
            GivenBack::Handle(handle) => self.by_handle(handle).into_iter().collect(),
            GivenBack::Permits(permits) => self.oldest(job, *permits),
            GivenBack::Ids(_) => {
                return Outcome::refused(Failure::unsupported("ids of a semaphore"));
            }
        };
        if grants.is_empty() {
            return Outcome::refused(Failure::new("not_owner", "no such grant"));
        }
        let permits: u32 = grants.iter().map(Permit::num_permits).sum();
        let released = grants.into_iter().map(Permit::release);
        let (t_inv, t_ret, released) = timed(futures_util::future::join_all(released)).await;
        let result = released.into_iter().collect::<Result<(), Error>>();
        Outcome::new(t_inv, t_ret, result.map(|()| json!({"released": permits})))
    }

    fn by_handle(&self, handle: &str) -> Option<Permit> {
        let number = handle.strip_prefix("rust-")?.parse().ok()?;
        self.grants.lock().remove(&number).map(|grant| grant.permit)
    }

    /// The oldest grants of the name, if they are so many permits together.
    fn oldest(&self, job: &PermitJob, permits: u32) -> Vec<Permit> {
        let mut grants = self.grants.lock();
        let (mut numbers, mut sum) = (Vec::new(), 0);
        for (number, grant) in &*grants {
            if sum < permits && grant.kind == job.kind && grant.name == job.name {
                numbers.push(*number);
                sum += grant.permit.num_permits();
            }
        }
        if sum != permits {
            return Vec::new();
        }
        let taken = numbers.iter().filter_map(|number| grants.remove(number));
        taken.map(|grant| grant.permit).collect()
    }

    /// By its guard, if they are those of a grant of this process.
    async fn release_ids(
        &self,
        of: &watchlock::PermitExpirableSemaphore,
        ids: &[PermitId],
    ) -> Outcome {
        let own = {
            let mut grants = self.grants.lock();
            let own = grants.iter().find(|(_, grant)| grant.permit.ids() == ids);
            let own = own.map(|(number, _)| *number);
            own.and_then(|number| grants.remove(&number))
        };
        let (t_inv, t_ret, result) = timed(async {
            if let Some(grant) = own {
                grant.permit.release().await?;
                return Ok::<_, Error>(json!({"released": ids.len()}));
            }
            let mut released = 0;
            for id in ids {
                released += u32::from(of.release_permit(*id).await?);
            }
            Ok(json!({"released": released}))
        })
        .await;
        Outcome::new(t_inv, t_ret, result)
    }
}
