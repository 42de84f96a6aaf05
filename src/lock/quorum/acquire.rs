//! Acquiring a lock of a quorum. One caller of a process makes rounds for a name at a time, the others wait for their
//! turn in the order of arrival: two that tried at the same time would split the nodes between them.
//!
//! 1. Each acquire is a task of the steward, so a caller that is never polled delays nobody. The task ends with its
//!    caller; the nodes' clients undo what it has under way.
//! 2. The turn is a fair mutex. It guards what is known about the next round.
//! 3. Every waiter sees the outcome of a round: a single try returns it, and a caller with the owner of a new hold enters
//!    that hold.
//! 4. A grant that its caller does not collect is taken back after [`kept_for`], as at the gate of one server. The caller
//!    then starts again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use scopeguard::guard;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::nodes::QuorumNodes;
use super::queue::{AcquireRequest, LockNews, NameQueue, Rounds};
use super::round::{Tried, round};
use super::token;
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::gate::ticket::{GRACE, Patience, kept_for};
use crate::error::Error;
use crate::lock::guard::LockGuard;
use crate::lock::several::CompositeOwner;
use crate::lock::view::HoldOfSeveral;

enum Decision {
    Got(LockGuard),
    Busy,
    Failed(Error),
    /// The caller starts again: its owner has the lock by now, or its grant was taken back.
    Again,
}

/// Enters what the owner holds, or starts a hold; `None` when the lock stayed busy.
pub(super) async fn acquire(
    nodes: &Arc<QuorumNodes>,
    mut request: AcquireRequest,
) -> Result<Option<LockGuard>, Error> {
    let mut rounds = 0;
    loop {
        nodes.check_open()?;
        if let Some(owner) = &request.owner {
            let limit = nodes.config().command_timeout;
            let end = request.patience.returns_by(request.since, limit) + GRACE;
            // Boxed: most callers enter nothing, and each has room for it.
            let entering = Box::pin(enter(nodes, &request, owner));
            let entered = nodes.by(end, entering).await;
            let entered = entered.unwrap_or_else(|| {
                let silence = Arc::new(Error::from(Failure::silence()));
                Err(Error::no_quorum(0, nodes.needed, silence))
            });
            if let Some(guard) = entered? {
                return Ok(Some(guard));
            }
        }
        let waiting = WaitingCaller::start(nodes, &request, rounds)?;
        match waiting.decision().await {
            Decision::Got(guard) if guard.is_valid() => return Ok(Some(guard)),
            Decision::Busy => return Ok(None),
            Decision::Failed(error) => return Err(error),
            // The caller collected the grant too late.
            Decision::Got(_) | Decision::Again => rounds += 1,
        }
        if request.patience != Patience::Forever {
            // It may come back late, and still has the time of one try.
            request.since = nodes.now();
        }
    }
}

/// Enters what the owner holds, with a token if it needs one.
async fn enter(
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    owner: &Arc<CompositeOwner>,
) -> Result<Option<LockGuard>, Error> {
    let Some(level) = owner.enter(&request.name, request.lease).await? else {
        return Ok(None);
    };
    if request.fenced && level.hold().token().is_none() {
        token::take_for(nodes, &request.kind, request.lease, level.hold()).await?;
    }
    Ok(Some(level.into_guard()))
}

/// Holds a decision until the caller collects it.
#[derive(Default)]
struct Pickup {
    decision: Mutex<Option<Decision>>,
    filled: Notify,
}

impl Pickup {
    /// Puts a decision in, unless there is one.
    fn fill(&self, decision: Decision) {
        self.decision.lock().get_or_insert(decision);
        self.filled.notify_one();
    }

    fn take(&self) -> Option<Decision> {
        self.decision.lock().take()
    }

    fn take_back(&self) {
        let mut decision = self.decision.lock();
        let grant = match &*decision {
            Some(Decision::Got(_)) => decision.replace(Decision::Again),
            _ => None,
        };
        drop(decision);
        drop(grant);
    }
}

/// A caller that waits for its task. Dropping it ends the task.
struct WaitingCaller<'a> {
    nodes: &'a QuorumNodes,
    pickup: Arc<Pickup>,
    task: AbortHandle,
    /// When the acquire returns at the latest.
    end: Moment,
}

impl<'a> WaitingCaller<'a> {
    /// `rounds`: how often the caller started again.
    fn start(
        nodes: &'a Arc<QuorumNodes>,
        request: &AcquireRequest,
        rounds: u32,
    ) -> Result<Self, Error> {
        // The guard gives its levels back on the caller's runtime, so there must be one.
        nodes.node(0).core().backend.callers_fleet()?;
        let pickup = Arc::<Pickup>::default();
        let queue = nodes.queue(&request.name);
        // Again: a quorum that closed before the queue was there does not close it.
        nodes.check_open()?;
        let (quorum, wanted) = (Arc::clone(nodes), request.clone());
        // Also if the task ends without a decision.
        let filled = guard(Arc::clone(&pickup), |pickup| {
            pickup.fill(Decision::Failed(Error::Closed));
        });
        let task = nodes.start_task(async move {
            filled.fill(wait(&queue, &quorum, &wanted).await);
            drop(queue);
            tokio::time::sleep(kept_for(rounds, quorum.config().command_timeout)).await;
            filled.take_back();
        });
        let limit = nodes.config().command_timeout;
        let end = request.patience.returns_by(request.since, limit) + GRACE;
        Ok(Self {
            nodes,
            pickup,
            task,
            end,
        })
    }

    async fn decision(self) -> Decision {
        let collected = async {
            loop {
                self.pickup.filled.notified().await;
                if let Some(decision) = self.pickup.take() {
                    return decision;
                }
            }
        };
        let collected = self.nodes.by(self.end, collected).await;
        collected.unwrap_or_else(|| Decision::Failed(Failure::silence().into()))
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.task.abort();
        let uncollected = self.pickup.take();
        drop(uncollected);
    }
}

/// Waits in the queue until the acquire is decided.
async fn wait(queue: &NameQueue, nodes: &Arc<QuorumNodes>, request: &AcquireRequest) -> Decision {
    let mut news = queue.news();
    if let Some(owner) = &request.owner
        && owner.hold_count(&request.name) > 0
    {
        // The grant came between the caller's look for a hold of its owner and its subscription to the news.
        return Decision::Again;
    }
    match &*news.borrow_and_update() {
        LockNews::Closed => return Decision::Failed(Error::Closed),
        // The caller that has the turn is pausing because of the same news, so no round would start in time.
        LockNews::Busy | LockNews::Granted(_)
            if request.patience == Patience::Once && queue.turn.try_lock().is_err() =>
        {
            return Decision::Busy;
        }
        _ => {}
    }
    let end = match request.patience {
        Patience::Until(end) => end,
        Patience::Once => request.since + nodes.config().command_timeout,
        Patience::Forever => Moment::NEVER,
    };
    let has_turn = AtomicBool::new(false);
    let fresh = news.clone();
    let rounds = async {
        let mut rounds = queue.turn.lock().await;
        // Relaxed, as it is read by this task.
        has_turn.store(true, Ordering::Relaxed);
        make_rounds(queue, nodes, request, &mut rounds).await
    };
    tokio::select! {
        biased;
        decision = decided_by_news(nodes, request, news) => decision,
        decision = rounds => decision,
        decision = decided_at(end, fresh, &has_turn, nodes) => decision,
    }
}

async fn decided_by_news(
    nodes: &QuorumNodes,
    request: &AcquireRequest,
    mut news: watch::Receiver<LockNews>,
) -> Decision {
    let after = nodes.config().unavailable_after;
    let once = request.patience == Patience::Once;
    let own = request.owner.as_ref();
    let is_own = |owner: &Arc<_>| own.is_some_and(|own| Arc::ptr_eq(own, owner));
    loop {
        // It cannot fail: the queue has the sender.
        let _ = news.changed().await;
        match &*news.borrow_and_update() {
            LockNews::Closed => return Decision::Failed(Error::Closed),
            LockNews::Granted(Some(owner)) if is_own(owner) => return Decision::Again,
            LockNews::Busy | LockNews::Granted(_) if once => return Decision::Busy,
            LockNews::Failing(error, since) => {
                let waited = request.since.max(*since).until(nodes.now());
                if once || (request.patience == Patience::Forever && waited >= after) {
                    return Decision::Failed(error.clone());
                }
            }
            _ => {}
        }
    }
}

/// Decides a bounded wait at its end, by the latest news or else the next ones. News from before the acquire count only
/// while another caller makes the rounds: otherwise nobody knows whether they still hold.
async fn decided_at(
    end: Moment,
    mut news: watch::Receiver<LockNews>,
    has_turn: &AtomicBool,
    nodes: &QuorumNodes,
) -> Decision {
    nodes.timers().sleep_until(end).await;
    if has_turn.load(Ordering::Relaxed) {
        let _ = news.changed().await;
    }
    loop {
        match &*news.borrow_and_update() {
            LockNews::Busy | LockNews::Granted(_) => return Decision::Busy,
            LockNews::Failing(error, _) => return Decision::Failed(error.clone()),
            LockNews::Nothing | LockNews::Closed => {}
        }
        let _ = news.changed().await;
    }
}

/// Makes rounds until one gets the lock. Only the caller that has the turn does so.
async fn make_rounds(
    queue: &NameQueue,
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    rounds: &mut Rounds,
) -> Decision {
    loop {
        if request.patience != Patience::Once {
            until_due(rounds, nodes, request).await;
        }
        rounds.retry.begins();
        let began = nodes.now();
        let tried = round(nodes, request).await;
        let now = nodes.now();
        match tried {
            Tried::Got(level) => {
                rounds.got(now, nodes.poll());
                let level = match &request.owner {
                    Some(owner) => level.owned_by(owner),
                    None => level,
                };
                queue.publish(LockNews::Granted(request.owner.clone()));
                return Decision::Got(level.into_guard());
            }
            Tried::Failed(error) => return Decision::Failed(error),
            Tried::Busy(found) => {
                queue.publish(LockNews::Busy);
                rounds.busy(began, now, nodes.poll(), &found);
            }
            Tried::NoQuorum(error) => {
                queue.publish_failure(error, now);
                rounds.retry.no_quorum(now, nodes.poll());
            }
        }
        // Lets `decided_by_news` of this very caller see the news first.
        tokio::task::yield_now().await;
    }
}

async fn until_due(rounds: &mut Rounds, nodes: &QuorumNodes, request: &AcquireRequest) {
    if rounds.retry.next() == Moment::NEVER {
        return;
    }
    loop {
        let now = nodes.now();
        let due = rounds.retry.next();
        if now >= due {
            return;
        }
        tokio::select! {
            biased;
            place = rounds.wake_up(nodes.all(), request.kind.names()) => {
                rounds.retry.woken_by(place, nodes.now(), fastrand::f64());
            }
            () = nodes.back.notified() => rounds.retry.soon(nodes.now()),
            () = nodes.timers().sleep_until(due) => {}
        }
    }
}
