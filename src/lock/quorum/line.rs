//! The queue of one name at a quorum: one acquire at a time makes rounds, the others wait for their turn in the order of
//! arrival. Two local callers that tried at the same time would split the nodes between them.
//!
//! 1. Each acquire is a task of the steward, so a caller that nobody polls holds nobody up. It ends with its caller: what
//!    it has under way is undone by the nodes' clients.
//! 2. The turn is a mutex, first come first served; it guards what the rounds for the name know.
//! 3. What a round came to is told to all who wait: who tries once is answered by it, who has the same owner enters.
//! 4. A grant that nobody collects within a command time-out is taken back, and its caller begins afresh.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::Nodes;
use super::ears::Ears;
use super::round::round;
use super::token;
use super::waking::Waking;
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::kind::Kind;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::LockGuard;
use crate::lock::composite::{Level, OwnerState};
use crate::lock::pauses::Pauses;

/// How much later than it should an acquire may return.
const GRACE: Duration = Duration::from_millis(25);

/// For how long a caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// One try.
    Once,
    Until(Moment),
    Forever,
}

/// What is asked for.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// Whether it is to have a fencing token.
    pub(super) fenced: bool,
    pub(super) lease: Lease,
    pub(super) owner: Option<Arc<OwnerState>>,
    pub(super) patience: Patience,
    pub(super) since: Moment,
}

/// What a round came to.
pub(super) enum Tried {
    Got(Level),
    /// Somebody else has it. Whether some nodes granted it all the same, and by when enough of them are free, if nobody
    /// renews or gives back anything.
    Busy {
        some: bool,
        free_at: Moment,
    },
    /// Too few answered.
    NoQuorum {
        error: Error,
        some: bool,
    },
    /// It will not work, now or later.
    Failed(Error),
}

/// How an acquire ended.
enum Verdict {
    Got(LockGuard),
    Busy,
    Failed(Error),
    /// It is to begin afresh: its owner has the lock by now, or what it got was not collected.
    Again,
}

/// Enters what the owner holds, or starts a hold; `None` when the lock stayed busy.
pub(super) async fn acquire(
    nodes: &Arc<Nodes>,
    request: Request,
) -> Result<Option<LockGuard>, Error> {
    loop {
        nodes.check_open()?;
        if let Some(owner) = &request.owner
            && let Some(level) = owner.enter(&request.name, request.lease).await?
        {
            if request.fenced && level.hold().token().is_none() {
                token::take_for(nodes, &request, level.hold()).await?;
            }
            return Ok(Some(LockGuard::of_several(level)));
        }
        match Asked::of(nodes, &request)?.verdict().await {
            Verdict::Got(guard) if guard.is_valid() => return Ok(Some(guard)),
            Verdict::Busy => return Ok(None),
            Verdict::Failed(error) => return Err(error),
            // It lay uncollected until it was lost, or was taken back.
            Verdict::Got(_) | Verdict::Again => {}
        }
    }
}

/// Where a verdict lies until its caller collects it.
#[derive(Default)]
struct Slot {
    verdict: Mutex<Option<Verdict>>,
    told: Notify,
}

impl Slot {
    /// Puts a verdict in, unless there is one.
    fn decide(&self, verdict: Verdict) {
        self.verdict.lock().get_or_insert(verdict);
        self.told.notify_one();
    }

    /// By 4.
    fn take_back(&self) {
        let mut verdict = self.verdict.lock();
        let before = match &*verdict {
            Some(Verdict::Got(_)) => verdict.replace(Verdict::Again),
            _ => None,
        };
        drop(verdict);
        drop(before);
    }
}

/// A task that ends without a verdict has none to give any more.
struct Decides(Arc<Slot>);

impl Drop for Decides {
    fn drop(&mut self) {
        self.0.decide(Verdict::Failed(Error::Closed));
    }
}

/// A caller that waits for its task. Dropped, it ends that.
struct Asked<'a> {
    nodes: &'a Nodes,
    slot: Arc<Slot>,
    task: AbortHandle,
    /// When its caller is told at the latest.
    end: Moment,
}

impl<'a> Asked<'a> {
    fn of(nodes: &'a Arc<Nodes>, request: &Request) -> Result<Self, Error> {
        // What comes of it is given back on the caller's runtime.
        nodes.all[0].core().backend.callers_fleet()?;
        let slot = Arc::<Slot>::default();
        let line = Line::of(nodes, &request.name);
        let (quorum, asked) = (Arc::clone(nodes), request.clone());
        let decides = Decides(Arc::clone(&slot));
        let task = nodes.spawn(async move {
            decides.0.decide(line.wait(&quorum, &asked).await);
            drop(line);
            tokio::time::sleep(quorum.config().command_timeout).await;
            decides.0.take_back();
        });
        let at_least = request.since + nodes.config().command_timeout;
        let end = match request.patience {
            Patience::Forever => Moment::NEVER,
            Patience::Once => at_least + GRACE,
            Patience::Until(end) => end.max(at_least) + GRACE,
        };
        Ok(Self {
            nodes,
            slot,
            task,
            end,
        })
    }

    async fn verdict(self) -> Verdict {
        let decided = async {
            loop {
                self.slot.told.notified().await;
                if let Some(verdict) = self.slot.verdict.lock().take() {
                    return verdict;
                }
            }
        };
        if self.end == Moment::NEVER {
            return decided.await;
        }
        let left = self.nodes.now().until(self.end);
        let decided = self.nodes.timers().within(left, decided).await;
        decided.unwrap_or_else(|| Verdict::Failed(Failure::silence().into()))
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.nodes.is_forked() {
            self.task.abort();
            let left = self.slot.verdict.lock().take();
            drop(left);
        }
    }
}

/// What is known of the lock, told to all who wait.
#[derive(Clone, Default)]
enum Said {
    #[default]
    Nothing,
    Busy,
    /// Somebody here has it, of this owner if it has one.
    Granted(Option<Arc<OwnerState>>),
    /// Why the last rounds had no quorum, and since when.
    Failing(Error, Moment),
    /// Nobody makes rounds any more.
    Closed,
}

/// The lines of all names that somebody asks for.
#[derive(Default)]
pub(super) struct Lines(Mutex<HashMap<Arc<str>, Weak<Line>>>);

impl Lines {
    /// Ends everybody's wait.
    pub(super) fn close(&self) {
        let lines: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).collect();
        for line in lines {
            line.said.send_replace(Said::Closed);
        }
    }
}

/// The queue of one name.
struct Line {
    name: Arc<str>,
    lines: Arc<Lines>,
    turn: tokio::sync::Mutex<Rounds>,
    said: watch::Sender<Said>,
}

/// What those who have the turn know of the rounds.
struct Rounds {
    /// Open from when somebody waited first.
    ears: Option<Ears>,
    waking: Waking,
    pauses: Pauses,
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock();
        if lines
            .get(&self.name)
            .is_some_and(|line| line.strong_count() == 0)
        {
            lines.remove(&self.name);
        }
    }
}

impl Line {
    fn of(nodes: &Nodes, name: &Arc<str>) -> Arc<Self> {
        let mut lines = nodes.lines.0.lock();
        if let Some(line) = lines.get(name).and_then(Weak::upgrade) {
            return line;
        }
        let line = Arc::new(Self {
            name: Arc::clone(name),
            lines: Arc::clone(&nodes.lines),
            turn: tokio::sync::Mutex::new(Rounds {
                ears: None,
                waking: Waking::new(nodes.needed),
                pauses: Pauses::new(),
            }),
            said: watch::Sender::new(Said::Nothing),
        });
        lines.insert(Arc::clone(name), Arc::downgrade(&line));
        line
    }

    async fn wait(&self, nodes: &Arc<Nodes>, request: &Request) -> Verdict {
        let once = request.patience == Patience::Once;
        let mut told = self.said.subscribe();
        if let Some(owner) = &request.owner
            && owner.hold_count(&self.name) > 0
        {
            // Granted between the caller's look at its owner and this one: nobody will say so again.
            return Verdict::Again;
        }
        match &*told.borrow_and_update() {
            Said::Closed => return Verdict::Failed(Error::Closed),
            // Whoever has the turn waits because of this very answer.
            Said::Busy | Said::Granted(_) if once && self.turn.try_lock().is_err() => {
                return Verdict::Busy;
            }
            _ => {}
        }
        let end = match request.patience {
            Patience::Until(end) => end,
            Patience::Once => request.since + nodes.config().command_timeout,
            Patience::Forever => Moment::NEVER,
        };
        tokio::select! {
            biased;
            verdict = self.answered(nodes, request, told) => verdict,
            verdict = async { self.rounds(nodes, request, &mut *self.turn.lock().await).await } => verdict,
            verdict = self.out_of_time(nodes, end) => verdict,
        }
    }

    /// By 3: what others' rounds say to who waits.
    async fn answered(
        &self,
        nodes: &Nodes,
        request: &Request,
        mut told: watch::Receiver<Said>,
    ) -> Verdict {
        let after = nodes.config().unavailable_after;
        loop {
            // The line itself keeps the other end.
            let _ = told.changed().await;
            let once = request.patience == Patience::Once;
            match &*told.borrow_and_update() {
                Said::Closed => return Verdict::Failed(Error::Closed),
                Said::Granted(Some(owner))
                    if request
                        .owner
                        .as_ref()
                        .is_some_and(|own| Arc::ptr_eq(own, owner)) =>
                {
                    return Verdict::Again;
                }
                Said::Busy | Said::Granted(_) if once => return Verdict::Busy,
                Said::Failing(error, since) => {
                    let tired = request.since.max(*since).until(nodes.now()) >= after;
                    if once || (request.patience == Patience::Forever && tired) {
                        return Verdict::Failed(error.clone());
                    }
                }
                _ => {}
            }
        }
    }

    /// The end of a bounded wait: what is known by then, or what is heard soon.
    async fn out_of_time(&self, nodes: &Nodes, end: Moment) -> Verdict {
        tokio::time::sleep(nodes.now().until(end)).await;
        let mut told = self.said.subscribe();
        loop {
            match &*told.borrow_and_update() {
                Said::Busy | Said::Granted(_) => return Verdict::Busy,
                Said::Failing(error, _) => return Verdict::Failed(error.clone()),
                Said::Nothing | Said::Closed => {}
            }
            let _ = told.changed().await;
        }
    }

    /// Says it to all who wait. That the queue is closed is final.
    fn say(&self, said: Said) {
        self.said.send_if_modified(|before| {
            let is_open = !matches!(before, Said::Closed);
            if is_open {
                *before = said;
            }
            is_open
        });
    }

    /// Makes rounds, by whoever has the turn.
    async fn rounds(&self, nodes: &Arc<Nodes>, request: &Request, rounds: &mut Rounds) -> Verdict {
        loop {
            rounds.wait(nodes, request).await;
            rounds.waking.tries();
            let began = nodes.now();
            let tried = round(nodes, request).await;
            let now = nodes.now();
            let (said, some, free_at) = match tried {
                Tried::Got(level) => {
                    rounds.pauses = Pauses::new();
                    rounds
                        .waking
                        .refused(now, nodes.poll(), Moment::NEVER, fastrand::f64());
                    let level = match &request.owner {
                        Some(owner) => level.owned_by(owner),
                        None => level,
                    };
                    self.say(Said::Granted(request.owner.clone()));
                    return Verdict::Got(LockGuard::of_several(level));
                }
                Tried::Failed(error) => return Verdict::Failed(error),
                Tried::Busy { some, free_at } => (Said::Busy, some, free_at),
                Tried::NoQuorum { error, some } => {
                    let since = match &*self.said.borrow() {
                        Said::Failing(_, since) => *since,
                        _ => now,
                    };
                    (Said::Failing(error, since), some, Moment::NEVER)
                }
            };
            if some {
                let pause = rounds.pauses.after(began.until(now));
                rounds.waking.met_others(now, pause);
            } else {
                rounds.pauses = Pauses::new();
                rounds
                    .waking
                    .refused(now, nodes.poll(), free_at, fastrand::f64());
            }
            // Who makes the rounds hears it as well as those who wait.
            self.say(said);
            tokio::task::yield_now().await;
        }
    }
}

impl Rounds {
    /// Waits until a round is worth it.
    async fn wait(&mut self, nodes: &Nodes, request: &Request) {
        if request.patience == Patience::Once || self.waking.next() == Moment::NEVER {
            return;
        }
        loop {
            let now = nodes.now();
            if now >= self.waking.next() {
                return;
            }
            let ears = self
                .ears
                .get_or_insert_with(|| Ears::open(nodes, request.kind.names()));
            tokio::select! {
                place = ears.told() => self.waking.told(place, nodes.now(), fastrand::f64()),
                () = nodes.back.notified() => self.waking.soon(nodes.now()),
                () = tokio::time::sleep(now.until(self.waking.next())) => {}
            }
        }
    }
}
