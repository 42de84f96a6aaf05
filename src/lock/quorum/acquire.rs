//! Acquiring a lock of a quorum. One caller of a process makes rounds for a name at a time, the others wait for their
//! turn in the order of arrival: two that tried at the same time would split the nodes between them.
//!
//! 1. Each acquire is a task of the steward, so a caller that is never polled delays nobody. The task ends with its
//!    caller; the nodes' clients undo what it has under way.
//! 2. The turn is a fair mutex. It guards what is known about the next round.
//! 3. A single try in the queue returns what the round of another finds. A waiter is woken only
//!    when something changes for it, so a grant behind 10 000 waiters costs no more than one behind ten. A caller whose
//!    owner gets the lock enters that hold.
//! 4. A grant that its caller does not collect is taken back after [`kept_for`], as at the gate of one server. The caller
//!    then starts again.

use std::future::pending;
use std::sync::Arc;

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
    /// The caller starts again: its owner has the lock by now.
    Again,
    /// The caller starts again: it did not collect its grant.
    TakenBack,
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
            let entered = entered.unwrap_or_else(|| Err(silence(nodes)));
            if let Some(guard) = entered? {
                return Ok(Some(guard));
            }
        }
        let waiting = WaitingCaller::start(nodes, &request, rounds)?;
        match waiting.decision().await {
            Decision::Got(guard) if guard.is_valid() => return Ok(Some(guard)),
            Decision::Busy => return Ok(None),
            Decision::Failed(error) => return Err(error),
            Decision::Again => {}
            // The caller collected the grant too late.
            Decision::Got(_) | Decision::TakenBack => {
                rounds += 1;
                if request.patience != Patience::Forever {
                    // It comes back late, and still has the time of one try.
                    request.since = nodes.now();
                }
            }
        }
    }
}

/// Nobody knows yet what the servers answered.
fn silence(nodes: &QuorumNodes) -> Error {
    let silence = Arc::new(Error::from(Failure::silence()));
    Error::no_quorum(0, nodes.needed, silence)
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
        token::take_for(nodes, request, level.hold()).await?;
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
            Some(Decision::Got(_)) => decision.replace(Decision::TakenBack),
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
        collected.unwrap_or_else(|| Decision::Failed(silence(self.nodes)))
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
    // It cannot fail: the queue has the sender.
    let closed = news.wait_for(|news| matches!(news, LockNews::Closed));
    tokio::select! {
        biased;
        _ = closed => Decision::Failed(Error::Closed),
        decision = decide(queue, nodes, request) => decision,
    }
}

/// Waits for the turn, and makes rounds then.
async fn decide(queue: &NameQueue, nodes: &Arc<QuorumNodes>, request: &AcquireRequest) -> Decision {
    let end = match request.patience {
        Patience::Until(end) => end,
        Patience::Once => request.since + nodes.config().command_timeout,
        Patience::Forever => Moment::NEVER,
    };
    let is_in = || {
        let owner = request.owner.as_ref();
        owner.is_some_and(|owner| owner.hold_count(&request.name) > 0)
    };
    let mut news = queue.news();
    let is_busy = matches!(*news.borrow_and_update(), LockNews::Busy);
    // The owner may have got the lock since the caller looked for its hold.
    if is_in() {
        return Decision::Again;
    }
    let mut rounds = match queue.turn.try_lock() {
        Ok(turn) => turn,
        // The caller that has the turn is pausing because of the same news, so no round would start in time.
        Err(_) if is_busy && request.patience == Patience::Once => return Decision::Busy,
        Err(_) => tokio::select! {
            biased;
            decision = decided_by_others(nodes, request, end, news) => return decision,
            turn = queue.turn.lock() => turn,
        },
    };
    // Nobody else starts a hold now.
    if is_in() {
        return Decision::Again;
    }
    make_rounds(queue, nodes, request, end, &mut rounds).await
}

/// The decision of a caller that has not got the turn: the rounds of others, a hold of its owner, or the end of its wait.
async fn decided_by_others(
    nodes: &QuorumNodes,
    request: &AcquireRequest,
    end: Moment,
    mut news: watch::Receiver<LockNews>,
) -> Decision {
    let mut latest = news.clone();
    let reported = async {
        loop {
            let _ = news.changed().await;
            let decision = match &*news.borrow_and_update() {
                LockNews::Busy if request.patience == Patience::Once => Some(Decision::Busy),
                LockNews::Failing(error, since) => failed(nodes, request, error, *since),
                _ => None,
            };
            if let Some(decision) = decision {
                return decision;
            }
        }
    };
    let entered = async {
        match &request.owner {
            Some(owner) => owner.has(&request.name).await,
            None => pending().await,
        }
    };
    let ended = async {
        nodes.timers().sleep_until(end).await;
        loop {
            if let Some(decision) = known(&latest.borrow_and_update()) {
                return decision;
            }
            let _ = latest.changed().await;
        }
    };
    tokio::select! {
        biased;
        () = entered => Decision::Again,
        decision = reported => decision,
        decision = ended => decision,
    }
}

/// What a wait comes to that ends now, by what is known of the lock.
fn known(news: &LockNews) -> Option<Decision> {
    match news {
        LockNews::Busy => Some(Decision::Busy),
        LockNews::Failing(error, _) => Some(Decision::Failed(error.clone())),
        LockNews::Nothing | LockNews::Closed => None,
    }
}

/// Whether a round without a quorum ends the wait: that of a single try, and one without an end for which all rounds failed
/// for `unavailable_after`.
fn failed(
    nodes: &QuorumNodes,
    request: &AcquireRequest,
    error: &Error,
    since: Moment,
) -> Option<Decision> {
    let waited = request.since.max(since).until(nodes.now());
    let ends = match request.patience {
        Patience::Once => true,
        Patience::Forever => waited >= nodes.config().unavailable_after,
        Patience::Until(_) => false,
    };
    ends.then(|| Decision::Failed(error.clone()))
}

/// Makes rounds until one gets the lock, or the wait ends. Only the caller that has the turn does so.
async fn make_rounds(
    queue: &NameQueue,
    nodes: &Arc<QuorumNodes>,
    request: &AcquireRequest,
    end: Moment,
    rounds: &mut Rounds,
) -> Decision {
    loop {
        // News from before this acquire do not decide it: even if its wait is over, it makes one round first.
        let decided = (rounds.reported_at >= request.since)
            .then(|| known(&queue.news().borrow()))
            .flatten();
        let goes_on = rounds.under_way.as_ref();
        let goes_on = goes_on.is_some_and(|begun| begun.is_for(request));
        let is_due = async {
            if goes_on {
                return None;
            }
            if request.patience != Patience::Once {
                until_due(rounds, nodes, request).await;
            }
            nodes.may_begin().await
        };
        let may_begin = nodes.by(end, is_due).await;
        let decided = match decided {
            Some(decision) if may_begin.is_none() => return decision,
            other => other,
        };
        let _while_under_way = match may_begin {
            Some(permit) => permit,
            None => nodes.may_begin().await,
        };
        if !goes_on {
            rounds.retry.begins();
        }
        let began = nodes.now();
        let trying = round(nodes, request, &mut rounds.under_way);
        let tried = match decided {
            Some(decision) => match nodes.by(end, trying).await {
                Some(tried) => tried,
                None => return decision,
            },
            None => trying.await,
        };
        let now = nodes.now();
        let ended_before = std::mem::replace(&mut rounds.ended_at, now);
        if !matches!(tried, Tried::Failed(_)) {
            rounds.reported_at = now;
        }
        match tried {
            Tried::Got(level) => {
                rounds.got(now, nodes.poll());
                let level = match &request.owner {
                    Some(owner) => level.owned_by(owner),
                    None => level,
                };
                queue.publish(LockNews::Busy);
                return Decision::Got(level.into_guard());
            }
            Tried::Failed(error) => {
                // A round that was cut says nothing about the lock. After a refusal nobody knows that it is busy.
                if !matches!(error, Error::NoQuorum { .. }) {
                    queue.publish(LockNews::Nothing);
                }
                return Decision::Failed(error);
            }
            Tried::Busy(found) => {
                queue.publish(LockNews::Busy);
                rounds.busy(began, now, nodes.poll(), &found);
                if request.patience == Patience::Once {
                    return Decision::Busy;
                }
            }
            Tried::NoQuorum(error) => {
                // While no rounds were made, as when the process stood still, nobody knows whether there was a quorum.
                let is_known = ended_before.until(now) <= nodes.between_rounds(request.lease);
                let since = queue.publish_failure(error.clone(), now, is_known);
                rounds.retry.no_quorum(now, nodes.poll());
                if let Some(decision) = failed(nodes, request, &error, since) {
                    return decision;
                }
            }
        }
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
            place = rounds.wake_up(&nodes.all, &request.kind.names) => {
                rounds.retry.woken_by(place, nodes.now(), fastrand::f64());
            }
            () = nodes.back.notified() => rounds.retry.soon(nodes.now()),
            () = nodes.timers().sleep_until(due) => {}
        }
    }
}
