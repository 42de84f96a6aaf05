//! An owner: it takes a lock, enters again, holds for a while, and gives the lock back, section after section.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep, timeout};
use watchlock::{Client, Error, HoldView, Lease, Lock, LockGuard, LostReason};
use watchlock::{Owner, Quorum, QuorumOwner, ShutdownReport};
use watchlock_support::history::{Call, LockKind, Outcome, Record};

use crate::plan::{Ending, Midst, Plan, Section};
use crate::story::Story;

/// How long an owner rests after an error.
const AFTER_ERROR: Duration = Duration::from_millis(20);

/// How long the signal of a loss may come behind an answer that said the same.
const SIGNAL_LAG: Duration = Duration::from_millis(150);

/// What the protected record of each name shows.
pub type Shared = Arc<Mutex<Vec<u64>>>;

/// A client of one server, or of a quorum.
#[derive(Clone)]
pub enum AnyClient {
    One(Client),
    Quorum(Quorum),
}

/// An owner of either.
enum AnyOwner {
    One(Owner),
    Quorum(QuorumOwner),
}

impl AnyClient {
    fn new_owner(&self) -> AnyOwner {
        match self {
            Self::One(client) => AnyOwner::One(client.new_owner()),
            Self::Quorum(quorum) => AnyOwner::Quorum(quorum.new_owner()),
        }
    }

    pub async fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        match self {
            Self::One(client) => client.shutdown(timeout).await,
            Self::Quorum(quorum) => quorum.shutdown(timeout).await,
        }
    }
}

pub struct Actor {
    pub client: AnyClient,
    pub number: u32,
    pub owner_number: u32,
    pub story: Story,
    pub plan: Arc<Plan>,
    pub shared: Shared,
    pub rng: Rng,
}

/// How the acquire of a level ended.
enum Got {
    Level(LockGuard),
    Nothing,
    Failed,
}

impl Actor {
    /// Runs sections until all processes together have run enough.
    pub async fn run(mut self, is_over: impl Fn() -> bool) {
        let owner = self.client.new_owner();
        while !is_over() {
            let section = Section::draw(&mut self.rng, &self.plan);
            let pause = section.pause;
            if !self.section(&owner, section).await {
                sleep(AFTER_ERROR).await;
            }
            sleep(pause).await;
        }
    }

    async fn section(&self, owner: &AnyOwner, section: Section) -> bool {
        let name = format!("name:{}", section.name);
        let lock = lock_of(owner, section.kind, &name);
        let kind = section.kind;
        let (op, got) = self.acquire(&*lock, &section, 0, &name).await;
        let guard = match got {
            Got::Level(guard) => guard,
            Got::Nothing => return true,
            Got::Failed => return false,
        };
        let mut lost = FuturesUnordered::new();
        let view = guard.hold();
        lost.push(loss(view));
        let (more, mut views) = tokio::sync::mpsc::unbounded_channel();
        let body = self.held(&*lock, &section, &name, op, guard, more);
        let mut body = pin!(body);
        loop {
            tokio::select! {
                biased;
                Some(reason) = lost.next() => {
                    if reason != LostReason::Shutdown {
                        self.story.push(Record::Lost {
                            t: self.story.now(),
                            client: self.number,
                            owner: self.owner_number,
                            kind,
                            name: name.clone(),
                            reason: format!("{reason:?}"),
                        });
                    }
                }
                Some(view) = views.recv() => {
                    lost = FuturesUnordered::new();
                    lost.push(loss(view));
                }
                fine = &mut body => return fine,
            }
        }
    }

    /// Holds the lock, and gives it back. Returns whether all went well.
    async fn held(
        &self,
        lock: &dyn Lock,
        section: &Section,
        name: &str,
        op: u64,
        first: LockGuard,
        views: tokio::sync::mpsc::UnboundedSender<HoldView>,
    ) -> bool {
        let kind = section.kind;
        let from = self.story.now();
        let seen_first = self.look(section, op);
        let wrote = self.story.now();
        let mut guards = vec![first];
        for level in 1..section.leases_ms.len() {
            match self.acquire(lock, section, level, name).await.1 {
                Got::Level(guard) => {
                    if guard.hold_count() == 1 {
                        // The hold before was lost, and another one has begun.
                        guards.clear();
                        let _ = views.send(guard.hold());
                    }
                    guards.push(guard);
                }
                Got::Nothing | Got::Failed => {}
            }
        }
        match section.midst {
            Midst::Nothing => {}
            Midst::Verify => drop(guards[0].verify().await),
            Midst::Extend(span) => {
                let lease =
                    section.leases_ms[0].map_or(self.plan.watchdog_lease, Duration::from_millis);
                let span = span.min(lease).max(Duration::from_millis(10));
                drop(guards[0].extend(span).await);
            }
        }
        sleep(section.hold).await;
        let seen = self.shared.lock()[section.name];
        let until = self.story.now();
        self.story.push(if kind == LockKind::Read {
            Record::Look {
                op,
                from,
                until,
                first: seen_first,
                seen,
            }
        } else {
            Record::Pair {
                op,
                from,
                wrote,
                until,
                seen,
            }
        });
        let mut fine = true;
        while let Some(guard) = guards.pop() {
            fine &= self.give_back(section, name, guard).await;
        }
        fine
    }

    /// Writes the protected record, or only reads it where others may hold the lock as well.
    fn look(&self, section: &Section, op: u64) -> u64 {
        let mut shared = self.shared.lock();
        if section.kind != LockKind::Read {
            shared[section.name] = op;
        }
        shared[section.name]
    }

    async fn acquire(
        &self,
        lock: &dyn Lock,
        section: &Section,
        level: usize,
        name: &str,
    ) -> (u64, Got) {
        let lease_ms = section.leases_ms[level];
        let wait_ms = if level == 0 { section.wait_ms } else { None };
        let call = Call::Acquire { wait_ms, lease_ms };
        let op = self
            .story
            .invoke(self.number, self.owner_number, section.kind, name, call);
        let lease = lease_ms.map(Duration::from_millis);
        let asking = async {
            match (wait_ms, lease) {
                (None, None) => lock.lock().await.map(Some),
                (None, Some(lease)) => lock.lock_with_lease(lease).await.map(Some),
                (Some(wait), lease) => {
                    let lease = lease.map_or(Lease::Watchdog, Lease::Fixed);
                    lock.try_lock(Duration::from_millis(wait), lease).await
                }
            }
        };
        let asking = Resting {
            rests: section.rests.filter(|_| level == 0),
            rest: None,
            story: self.story.clone(),
            op,
            inner: Box::pin(asking),
        };
        let answer = match section.gives_up.filter(|_| level == 0) {
            Some(limit) => {
                let Ok(answer) = timeout(limit, asking).await else {
                    self.story.returned(op, Outcome::Cancelled, None);
                    return (op, Got::Nothing);
                };
                answer
            }
            None => asking.await,
        };
        let got = match answer {
            Ok(Some(guard)) => {
                let token = guard.fencing_token().map(watchlock::FencingToken::as_u64);
                self.story
                    .returned(op, Outcome::Acquired(guard.hold_count()), token);
                Got::Level(guard)
            }
            Ok(None) => {
                self.story.returned(op, Outcome::Busy, None);
                Got::Nothing
            }
            Err(error) => {
                self.story
                    .returned(op, Outcome::Failed(word(&error).to_owned()), None);
                Got::Failed
            }
        };
        (op, got)
    }

    async fn give_back(&self, section: &Section, name: &str, guard: LockGuard) -> bool {
        let invoke = |call| {
            self.story
                .invoke(self.number, self.owner_number, section.kind, name, call)
        };
        let left = guard.hold_count().saturating_sub(1);
        match section.end {
            Ending::Unlock => {
                let op = invoke(Call::Release);
                match guard.unlock().await {
                    Ok(()) => self.story.returned(op, Outcome::Released(left), None),
                    Err(error) => {
                        self.story
                            .returned(op, Outcome::Failed(word(&error).to_owned()), None);
                        if error.is_lost() {
                            // The signal of the loss may come behind the answer.
                            sleep(SIGNAL_LAG).await;
                        }
                        return false;
                    }
                }
            }
            Ending::Drop => {
                invoke(Call::Drop);
                drop(guard);
            }
            Ending::LetExpire => {
                // It is over for its owner. Redis keeps it until its lease ends: a release that is never answered.
                invoke(Call::Release);
                // One that is lost, or has a level of another lease, is dropped.
                let _ = guard.let_expire();
            }
        }
        true
    }
}

async fn loss(view: HoldView) -> LostReason {
    view.lost().await
}

/// A future that is not polled for a while after its first poll.
struct Resting<F> {
    rests: Option<Duration>,
    rest: Option<Pin<Box<Sleep>>>,
    story: Story,
    op: u64,
    inner: Pin<Box<F>>,
}

impl<F: Future> Future for Resting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if let Some(rest) = &mut self.rest {
            if rest.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.rest = None;
        }
        let polled = self.inner.as_mut().poll(context);
        if polled.is_pending()
            && let Some(span) = self.rests.take()
        {
            self.story.unpolled(self.op, span);
            let mut resting = Box::pin(sleep(span));
            // It wakes this task when it is over.
            if resting.as_mut().poll(context).is_pending() {
                self.rest = Some(resting);
            }
        }
        polled
    }
}

fn lock_of(owner: &AnyOwner, kind: LockKind, name: &str) -> Arc<dyn Lock> {
    let owner = match owner {
        AnyOwner::Quorum(owner) if kind == LockKind::RedFenced => {
            return Arc::new(owner.get_fenced_lock(name));
        }
        AnyOwner::Quorum(owner) => return Arc::new(owner.get_lock(name)),
        AnyOwner::One(owner) => owner,
    };
    match kind {
        LockKind::Fair => Arc::new(owner.get_fair_lock(name)),
        LockKind::Read => Arc::new(owner.get_read_write_lock(name).read_lock()),
        LockKind::Write => Arc::new(owner.get_read_write_lock(name).write_lock()),
        LockKind::Fenced => Arc::new(owner.get_fenced_lock(name)),
        LockKind::Spin => Arc::new(owner.get_spin_lock(name)),
        LockKind::Simple => Arc::new(owner.get_simple_lock(name)),
        _ => Arc::new(owner.get_lock(name)),
    }
}

fn word(error: &Error) -> &'static str {
    match error {
        Error::Lost { .. } => "lost",
        Error::NotOwner { .. } => "not_owner",
        Error::Denied { .. } => "denied",
        Error::Refused { .. } => "refused",
        Error::Unavailable { .. } => "unavailable",
        Error::NoQuorum { .. } => "quorum",
        Error::Closed => "closed",
        _ => "other",
    }
}
