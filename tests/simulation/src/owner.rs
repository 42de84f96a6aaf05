//! An owner: it takes a lock, enters again, holds for a while, and gives the lock back, section after section.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Sleep, sleep, timeout};
use watchlock::{Error, HoldView, Lease, Lock, LockExt, LockGuard, LostReason, Permit, WriteGuard};
use watchlock_support::history::{Call, LockKind, Nanos, Outcome, Record};

use crate::locks::{AnyClient, AnyOwner, AnySemaphore};
use crate::plan::{Ending, Midst, Plan, Section};
use crate::story::{LET_EXPIRE, Story};

/// How long an owner rests after an error.
const AFTER_ERROR: Duration = Duration::from_millis(20);

/// How long the signal of a loss may come behind an answer that said the same.
const SIGNAL_LAG: Duration = Duration::from_millis(150);

/// What the protected record of each name shows.
pub type Shared = Arc<Mutex<Vec<u64>>>;

pub struct Actor {
    pub client: AnyClient,
    pub number: u32,
    pub owner_number: u32,
    pub story: Story,
    pub plan: Arc<Plan>,
    pub shared: Shared,
    pub rng: Rng,
    /// The client was shut down.
    pub closed: AtomicBool,
}

/// How the acquire of a level ended.
enum Got {
    Level(Held),
    Nothing,
    Failed,
}

/// A level.
enum Held {
    Any(LockGuard),
    /// One that can be downgraded.
    Write(WriteGuard),
    Permits(Permit),
}

impl Held {
    fn hold(&self) -> HoldView {
        match self {
            Self::Any(guard) => guard.hold(),
            Self::Write(guard) => guard.hold(),
            Self::Permits(permit) => permit.hold(),
        }
    }

    fn hold_count(&self) -> u32 {
        match self {
            Self::Any(guard) => guard.hold_count(),
            Self::Write(guard) => guard.hold_count(),
            Self::Permits(_) => 1,
        }
    }

    fn token(&self) -> Option<u64> {
        let token = match self {
            Self::Any(guard) => guard.fencing_token(),
            Self::Write(_) | Self::Permits(_) => None,
        };
        token.map(watchlock::FencingToken::as_u64)
    }

    async fn verify(&self) -> Result<(), Error> {
        match self {
            Self::Any(guard) => guard.verify().await,
            Self::Write(guard) => guard.verify().await,
            Self::Permits(permit) => permit.verify().await,
        }
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        match self {
            Self::Any(guard) => guard.extend(lease).await,
            Self::Write(guard) => guard.extend(lease).await,
            Self::Permits(permit) => permit.extend(lease).await,
        }
    }
}

/// The views of the holds of a section, each with its kind.
type Views = UnboundedSender<(LockKind, HoldView)>;

/// The protected records at the beginning of a section.
struct Begun {
    op: u64,
    from: Nanos,
    wrote: Nanos,
    seen: Vec<u64>,
}

/// What a section is about.
struct Site<'a> {
    owner: &'a AnyOwner,
    section: &'a Section,
    name: &'a str,
    lock: Arc<dyn Lock>,
    semaphore: Option<AnySemaphore>,
}

impl Actor {
    /// Runs sections until all processes together have run enough, or the client is closed.
    pub async fn run(mut self, is_over: impl Fn() -> bool) {
        let owner = self.client.new_owner();
        while !is_over() && !self.closed.load(Ordering::Relaxed) {
            let section = Section::draw(&mut self.rng, &self.plan);
            if !self.section(&owner, &section).await {
                sleep(AFTER_ERROR).await;
            }
            sleep(section.pause).await;
        }
    }

    async fn section(&self, owner: &AnyOwner, section: &Section) -> bool {
        let name = section.called();
        let site = Site {
            owner,
            section,
            name: &name,
            lock: owner.lock_of(section.kind, &name),
            semaphore: (section.kind.is_counted())
                .then(|| self.client.semaphore(&self.plan, section.names[0]))
                .flatten(),
        };
        let (views, seen) = unbounded_channel();
        if section.runs {
            return self.watched(&name, seen, self.runs(&site, views)).await;
        }
        match self.acquire(&site, 0).await {
            (op, Got::Level(guard)) => {
                self.watched(&name, seen, self.held(&site, op, guard, views))
                    .await
            }
            (_, Got::Nothing) => true,
            (_, Got::Failed) => false,
        }
    }

    /// Notes the losses of the holds that come into view until `body` has ended.
    async fn watched(
        &self,
        name: &str,
        mut views: UnboundedReceiver<(LockKind, HoldView)>,
        body: impl Future<Output = bool>,
    ) -> bool {
        let mut lost = FuturesUnordered::new();
        let mut body = pin!(body);
        loop {
            tokio::select! {
                biased;
                Some((kind, reason)) = lost.next() => self.story.push(Record::Lost {
                    t: self.story.now(),
                    client: self.number,
                    owner: self.owner_number,
                    kind,
                    name: name.to_owned(),
                    reason: format!("{reason:?}"),
                }),
                Some((kind, view)) = views.recv() => {
                    lost = FuturesUnordered::new();
                    lost.push(loss(kind, view));
                }
                fine = &mut body => return fine,
            }
        }
    }

    /// A section whose body `run` or `try_run` calls. Returns whether all went well.
    async fn runs(&self, site: &Site<'_>, views: Views) -> bool {
        let section = site.section;
        // A permit is waited for without a limit.
        let wait_ms = section.wait_ms.filter(|_| site.semaphore.is_none());
        let lease_ms = section.leases_ms[0].filter(|_| wait_ms.is_some());
        let op = self.invoke(site, section.kind, Call::Acquire { wait_ms, lease_ms });
        let has_begun = AtomicBool::new(false);
        let release = Mutex::new(None);
        let body = async |view: HoldView, token: Option<u64>| {
            has_begun.store(true, Ordering::Relaxed);
            self.story.returned(op, Outcome::Acquired(1), token);
            let _ = views.send((section.kind, view));
            let begun = self.begins(section, op);
            sleep(section.hold).await;
            self.ends(section, &begun);
            *release.lock() = Some(self.invoke(site, section.kind, Call::Release));
        };
        let of_lock = async |guard: &LockGuard| {
            let token = guard.fencing_token().map(watchlock::FencingToken::as_u64);
            body(guard.hold(), token).await;
        };
        let lock = &*site.lock;
        let answer = match (wait_ms.map(Duration::from_millis), &site.semaphore) {
            (_, Some(semaphore)) => {
                let of_permit = async |permit: &Permit| body(permit.hold(), None).await;
                semaphore.run(of_permit).await.map(Some)
            }
            (None, None) => lock.run(of_lock).await.map(Some),
            (Some(wait), None) => lock.try_run(wait, lease_of(lease_ms), of_lock).await,
        };
        let release = release.into_inner();
        match (answer, release) {
            (Ok(Some(())), Some(release)) => {
                self.story.returned(release, Outcome::Released(0), None);
                return true;
            }
            (Ok(_), _) => {
                self.story.returned(op, Outcome::Busy, None);
                return true;
            }
            (Err(error), _) if !has_begun.into_inner() => {
                self.story.returned(op, self.failed(&error), None);
                return false;
            }
            (Err(error), Some(release)) => self.story.returned(release, self.failed(&error), None),
            // The body was cancelled.
            (Err(_), None) => drop(self.invoke(site, section.kind, Call::Drop)),
        }
        sleep(SIGNAL_LAG).await;
        false
    }

    /// Holds the lock, and gives it back. Returns whether all went well.
    async fn held(&self, site: &Site<'_>, op: u64, first: Held, views: Views) -> bool {
        let section = site.section;
        let _ = views.send((section.kind, first.hold()));
        let begun = self.begins(section, op);
        let mut guards = vec![first];
        for level in 1..section.leases_ms.len() {
            if let (_, Got::Level(guard)) = self.acquire(site, level).await {
                if guard.hold_count() == 1 {
                    // The hold before was lost, and another one has begun.
                    guards.clear();
                    let _ = views.send((section.kind, guard.hold()));
                }
                guards.push(guard);
            }
        }
        match section.midst {
            Midst::Nothing | Midst::Downgrade => {}
            Midst::Verify => drop(guards[0].verify().await),
            Midst::Extend(span) => {
                let lease =
                    section.leases_ms[0].map_or(self.plan.watchdog_lease, Duration::from_millis);
                // The history does not know of it, so it must not lengthen anything, however late it is sent.
                let span = span.min(lease.saturating_sub(self.plan.command_timeout));
                drop(guards[0].extend(span).await);
            }
        }
        sleep(section.hold).await;
        self.ends(section, &begun);
        let mut fine = true;
        while let Some(guard) = guards.pop() {
            fine &= match guard {
                Held::Write(guard) if section.midst == Midst::Downgrade => {
                    self.downgrades(site, guard, &views).await
                }
                Held::Write(guard) => self.give_back(site, section.kind, guard.into()).await,
                Held::Any(guard) => self.give_back(site, section.kind, guard).await,
                Held::Permits(permit) => self.gives_permits_back(site, permit).await,
            };
        }
        fine
    }

    /// Goes on as a reader for a while, and gives that back.
    async fn downgrades(&self, site: &Site<'_>, guard: WriteGuard, views: &Views) -> bool {
        let (wait_ms, lease_ms) = (None, None);
        let read = self.invoke(site, LockKind::Read, Call::Acquire { wait_ms, lease_ms });
        let written = self.invoke(site, LockKind::Write, Call::Release);
        let guard = match guard.downgrade().await {
            Ok(guard) => guard,
            Err(error) => {
                self.story.returned(written, self.failed(&error), None);
                self.story.returned(read, self.failed(&error), None);
                sleep(SIGNAL_LAG).await;
                return false;
            }
        };
        // In this order, as there is no time between them.
        self.story
            .returned(read, Outcome::Acquired(guard.hold_count()), None);
        self.story.returned(written, Outcome::Released(0), None);
        let _ = views.send((LockKind::Read, guard.hold()));
        sleep(site.section.hold).await;
        self.give_back(site, LockKind::Read, guard).await
    }

    /// Writes the protected records, or only reads them where others may hold the lock as well.
    fn begins(&self, section: &Section, op: u64) -> Begun {
        let from = self.story.now();
        let mut shared = self.shared.lock();
        let seen = section.names.iter().map(|name| {
            if section.kind != LockKind::Read && !section.kind.is_counted() {
                shared[*name] = op;
            }
            shared[*name]
        });
        let seen = seen.collect();
        Begun {
            op,
            from,
            wrote: self.story.now(),
            seen,
        }
    }

    /// Reads the records again.
    fn ends(&self, section: &Section, begun: &Begun) {
        let until = self.story.now();
        let Begun {
            op, from, wrote, ..
        } = *begun;
        for (name, first) in section.names.iter().zip(&begun.seen) {
            let (first, seen) = (*first, self.shared.lock()[*name]);
            if section.kind.is_counted() {
                continue;
            }
            self.story.push(if section.kind == LockKind::Read {
                Record::Look {
                    op,
                    from,
                    until,
                    first,
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
        }
    }

    fn invoke(&self, site: &Site<'_>, kind: LockKind, call: Call) -> u64 {
        self.story
            .invoke(self.number, self.owner_number, kind, site.name, call)
    }

    fn failed(&self, error: &Error) -> Outcome {
        if matches!(error, Error::Closed) {
            self.closed.store(true, Ordering::Relaxed);
        }
        Outcome::Failed(word(error).to_owned())
    }

    async fn acquire(&self, site: &Site<'_>, level: usize) -> (u64, Got) {
        let section = site.section;
        let lease_ms = section.leases_ms[level];
        let wait_ms = if level == 0 { section.wait_ms } else { None };
        let op = self.invoke(site, section.kind, Call::Acquire { wait_ms, lease_ms });
        let asking = Resting {
            rests: section.rests.filter(|_| level == 0),
            rest: None,
            story: self.story.clone(),
            op,
            inner: Box::pin(self.asked(site, level, wait_ms, lease_ms)),
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
                let got = Outcome::Acquired(guard.hold_count());
                self.story.returned(op, got, guard.token());
                Got::Level(guard)
            }
            Ok(None) => {
                self.story.returned(op, Outcome::Busy, None);
                Got::Nothing
            }
            Err(error) => {
                self.story.returned(op, self.failed(&error), None);
                Got::Failed
            }
        };
        (op, got)
    }

    /// The call itself.
    async fn asked(
        &self,
        site: &Site<'_>,
        level: usize,
        wait_ms: Option<u64>,
        lease_ms: Option<u64>,
    ) -> Result<Option<Held>, Error> {
        let wait = wait_ms.map_or(Duration::MAX, Duration::from_millis);
        if let (LockKind::Permits(count), Some(semaphore)) = (site.section.kind, &site.semaphore) {
            let got = semaphore.take(count, wait, lease_of(lease_ms)).await;
            return got.map(|permit| permit.map(Held::Permits));
        }
        if site.section.midst == Midst::Downgrade
            && let Some(lock) = site.owner.write_lock(site.name)
        {
            let got = lock.try_lock(wait, lease_of(lease_ms)).await;
            return got.map(|guard| guard.map(Held::Write));
        }
        let again = site.section.again;
        let got = match level {
            0 => locked(&*site.lock, wait_ms, lease_ms).await,
            _ if site.section.scoped => {
                let lock = self.client.lock_of(again, site.name);
                site.owner
                    .scope(async move { locked(&*lock, wait_ms, lease_ms).await })
                    .await
            }
            _ => {
                let lock = site.owner.lock_of(again, site.name);
                locked(&*lock, wait_ms, lease_ms).await
            }
        };
        got.map(|guard| guard.map(Held::Any))
    }

    async fn give_back(&self, site: &Site<'_>, kind: LockKind, guard: LockGuard) -> bool {
        let left = guard.hold_count().saturating_sub(1);
        match site.section.end {
            Ending::Unlock => {
                let op = self.invoke(site, kind, Call::Release);
                self.released(op, left, guard.unlock().await).await
            }
            Ending::Drop => {
                self.invoke(site, kind, Call::Drop);
                drop(guard);
                true
            }
            Ending::LetExpire => {
                // It is over for its owner, and Redis keeps it until its lease ends: a release that does not run.
                let op = self.invoke(site, kind, Call::Release);
                // One that is lost, or has a level of another lease, is dropped.
                let _ = guard.let_expire();
                let kept = Outcome::Failed(LET_EXPIRE.to_owned());
                self.story.returned(op, kept, None);
                true
            }
            Ending::Detach(span) => {
                if guard.detach().is_err() {
                    // The error has the guard, which gives its level back.
                    self.invoke(site, kind, Call::Drop);
                    sleep(SIGNAL_LAG).await;
                    return false;
                }
                sleep(span).await;
                let op = self.invoke(site, kind, Call::Release);
                let lock = site.owner.lock_of(kind, site.name);
                self.released(op, left, lock.unlock().await).await
            }
        }
    }

    async fn gives_permits_back(&self, site: &Site<'_>, permit: Permit) -> bool {
        if site.section.end == Ending::Drop {
            self.invoke(site, site.section.kind, Call::Drop);
            drop(permit);
            return true;
        }
        let op = self.invoke(site, site.section.kind, Call::Release);
        self.released(op, 0, permit.release().await).await
    }

    async fn released(&self, op: u64, left: u32, answer: Result<(), Error>) -> bool {
        match answer {
            Ok(()) => {
                self.story.returned(op, Outcome::Released(left), None);
                true
            }
            Err(error) => {
                self.story.returned(op, self.failed(&error), None);
                if error.is_lost() {
                    // The signal of the loss may come behind the answer.
                    sleep(SIGNAL_LAG).await;
                }
                false
            }
        }
    }
}

async fn locked(
    lock: &dyn Lock,
    wait_ms: Option<u64>,
    lease_ms: Option<u64>,
) -> Result<Option<LockGuard>, Error> {
    match (wait_ms, lease_ms.map(Duration::from_millis)) {
        (None, None) => lock.lock().await.map(Some),
        (None, Some(lease)) => lock.lock_with_lease(lease).await.map(Some),
        (Some(wait), _) => {
            lock.try_lock(Duration::from_millis(wait), lease_of(lease_ms))
                .await
        }
    }
}

fn lease_of(lease_ms: Option<u64>) -> Lease {
    lease_ms.map_or(Lease::Watchdog, |ms| {
        Lease::Fixed(Duration::from_millis(ms))
    })
}

async fn loss(kind: LockKind, view: HoldView) -> (LockKind, LostReason) {
    (kind, view.lost().await)
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
