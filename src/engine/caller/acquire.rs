//! Starting a hold: the caller's side of an acquire.
//!
//! 1. The caller sends the first try itself when the name is free here; everybody else joins the queue
//!    and only waits for a verdict.
//! 2. Whoever sees an attempt's outcome first settles it, once, under the gate's lock: its caller, or
//!    the keeper when somebody queues behind, the caller is gone, or the outcome is overdue.
//! 3. Dropping the future at any point leaves the rest to the keeper: what is in flight is awaited, and
//!    what comes of it is given back.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};

use super::enter;
use super::release::drop_level;
use super::settle::settle_attempt;
use crate::backend::{Failure, Fleet, Pending};
use crate::clock::Moment;
use crate::engine::core::Core;
use crate::engine::gate::Arrival;
use crate::engine::gate::ticket::{Patience, Request, Ticket, Verdict};
use crate::engine::hold::effects::Effects;
use crate::engine::hold::kind::{Kind, Try};
use crate::engine::hold::owner::{FoundHold, HeldLevel, OwnerState};
use crate::engine::hold::state::Level;
use crate::engine::hold::{Hold, Origin};
use crate::error::Error;
use crate::lease::Lease;

/// What a caller asks for. The wait, if it has an end, begins now.
pub(crate) fn request(
    core: &Core,
    kind: Kind,
    owner: Option<Arc<OwnerState>>,
    lease: Lease,
    wait: Option<Duration>,
) -> Result<Request, Error> {
    let since = core.now();
    Ok(Request {
        kind,
        owner,
        lease: lease.resolve(core.config.watchdog_lease, core.config.max_lease)?,
        level: level(lease),
        patience: match wait {
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Once,
            Some(wait) => Patience::Until(since + wait),
        },
        since,
    })
}

/// What keeps a level with `lease` alive.
pub(crate) fn level(lease: Lease) -> Level {
    match lease {
        Lease::Watchdog => Level::Watchdog,
        Lease::Fixed(_) => Level::Fixed,
    }
}

/// How long a try that is in flight at the very end of a wait is still listened to.
const GRACE: Duration = Duration::from_millis(25);

/// What an acquire came to.
pub(crate) enum AcquireOutcome {
    In(HeldLevel),
    /// Somebody else has it: up to then, as far as that is known.
    Busy(Option<Moment>),
}

/// What the first steps of an acquire led to.
enum FirstStep<'a> {
    /// The owner's hold was entered again.
    In(HeldLevel),
    /// Its ticket is decided, or queued: the latter if `true`.
    Asked(Waiting<'a>, bool),
}

/// Starts or enters a hold.
pub(crate) fn acquire(
    core: &Arc<Core>,
    request: Request,
) -> impl Future<Output = Result<AcquireOutcome, Error>> + Send {
    // Boxed: none of it is left while a task waits.
    let mut begun = Box::pin(begin(core, request));
    async move {
        loop {
            let (waiting, queued) = match begun.await? {
                FirstStep::In(entered) => return Ok(AcquireOutcome::In(entered)),
                FirstStep::Asked(waiting, queued) => (waiting, queued),
            };
            let verdict = waiting.verdict().await;
            if queued {
                waiting.log_wait(&verdict);
            }
            let request = &waiting.ticket.request;
            match verdict {
                Verdict::Granted(hold) if core.now() < hold.valid_until() => {
                    return Ok(AcquireOutcome::In(request.entered(hold)));
                }
                // It lay uncollected until it was lost.
                Verdict::Granted(hold) => drop_level(core, &request.entered(hold)),
                Verdict::Busy(until) => return Ok(AcquireOutcome::Busy(until)),
                Verdict::Failed(error) => return Err(*error),
                Verdict::Again => {}
            }
            begun = Box::pin(begin(core, waiting.ticket.request.clone()));
        }
    }
}

/// Enters what the owner holds, or passes the gate and sends the first try.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
fn begin(
    core: &Arc<Core>,
    request: Request,
) -> impl Future<Output = Result<FirstStep<'_>, Error>> + Send {
    async move {
        if request.owner.is_some() {
            core.check_open()?;
            if let Some(entered) = enter_own(core, &request).await? {
                return Ok(FirstStep::In(entered));
            }
        }
        core.check_accepting()?;
        let fleet = core.backend.callers_fleet()?;
        let now = core.now();
        let ticket = Ticket::new(core.number(), request);
        let waiting = Waiting { core, ticket };
        let queued = match waiting.pass_gate(&fleet, now)? {
            (Arrival::First(pending), Some(hold)) => {
                waiting.first_try(&hold, pending).await;
                !waiting.ticket.is_decided()
            }
            (Arrival::Join(hold, pending), _) => {
                Box::pin(waiting.join(&hold, pending)).await;
                !waiting.ticket.is_decided()
            }
            (Arrival::In(read), _) => waiting.decide_at_once(Verdict::Granted(read)),
            (Arrival::Busy, _) => waiting.decide_at_once(Verdict::Busy(None)),
            (Arrival::Again, _) => waiting.decide_at_once(Verdict::Again),
            (Arrival::First(_) | Arrival::Queued, _) => true,
        };
        Ok(FirstStep::Asked(waiting, queued))
    }
}

/// Enters what the owner holds, if it holds the lock.
async fn enter_own(core: &Arc<Core>, request: &Request) -> Result<Option<HeldLevel>, Error> {
    let Some(owner) = &request.owner else {
        return Ok(None);
    };
    let (kind, now) = (&request.kind, core.now());
    let shared = kind.commands.is_shared();
    let hold = match owner.find(kind.names(), shared, now) {
        FoundHold::Lost(reason) => return Err(Error::lost(reason)),
        FoundHold::Live(hold) => hold,
        FoundHold::Nothing => return beside_own(core, owner, request).await,
    };
    let (lease, patience) = (request.lease, request.patience);
    // Boxed: most acquires have nothing to enter.
    let entered = request.entered(hold);
    Box::pin(enter::enter(core, entered, &request.kind, lease, patience)).await
}

/// What an owner gets that has the lock, but not as it asks for it now. Who has it alone may read it with itself; who
/// shares it would wait for itself.
async fn beside_own(
    core: &Arc<Core>,
    owner: &Arc<OwnerState>,
    request: &Request,
) -> Result<Option<HeldLevel>, Error> {
    let commands = &request.kind.commands;
    if !commands.has_reads() {
        return Ok(None);
    }
    let shared = commands.is_shared();
    match owner.find(request.kind.names(), !shared, core.now()) {
        FoundHold::Nothing => Ok(None),
        FoundHold::Lost(reason) => Err(Error::lost(reason)),
        FoundHold::Live(_) if !shared => Err(Error::would_deadlock()),
        FoundHold::Live(own) => Box::pin(enter::enter_beside(core, &own, request)).await,
    }
}

/// A new attempt; the keeper looks after it when its caller does not.
pub(crate) fn new_hold(core: &Core, ticket: &Ticket, now: Moment) -> Arc<Hold> {
    let finish_by = now + core.config.command_timeout;
    let hold = untried_hold(core, ticket, finish_by);
    core.look_by(&hold, finish_by);
    hold
}

/// A new attempt that is not tried yet.
pub(crate) fn untried_hold(core: &Core, ticket: &Ticket, finish_by: Moment) -> Arc<Hold> {
    let number = core.number();
    let request = &ticket.request;
    let origin = Origin {
        kind: request.kind.clone(),
        id: core.hold_id(number),
        number,
        lease: request.lease,
        owner: ticket.owner_of_hold(),
        entered_by: number,
        task: ticket.task,
    };
    Hold::trying(origin, finish_by)
}

/// Asks by `ticket` for a read of `shared`.
pub(crate) fn start_join(
    fleet: &Arc<Fleet>,
    shared: &Arc<Hold>,
    ticket: &Ticket,
) -> (Arc<Hold>, Pending) {
    let request = &ticket.request;
    let pending = Pending::start(fleet, request.kind.join(&shared.id, request.lease));
    (Arc::clone(shared), pending)
}

/// A caller that waits for a verdict; dropping it withdraws.
struct Waiting<'a> {
    core: &'a Arc<Core>,
    ticket: Arc<Ticket>,
}

impl Waiting<'_> {
    /// Where the ticket is now, and the attempt that it is the caller's to send, if there is one.
    fn pass_gate(
        &self,
        fleet: &Arc<Fleet>,
        now: Moment,
    ) -> Result<(Arrival<Pending>, Option<Arc<Hold>>), Error> {
        let (core, ticket) = (self.core, &self.ticket);
        let mut attempt = None;
        let arrival = core.at(ticket.request.kind.names(), |gate, effects| {
            gate.arrive(ticket, now, core.rules(), effects, |shared| {
                if let Some(shared) = shared {
                    return start_join(fleet, shared, ticket);
                }
                let hold = new_hold(core, ticket, now);
                // Who waits is queued by the keeper, in the order of arrival.
                let first = Try {
                    waits: false,
                    mark: Duration::ZERO,
                };
                let call = hold.kind.acquire(&hold.id, hold.lease, first);
                let pending = Pending::start(fleet, call);
                attempt = Some(Arc::clone(&hold));
                (hold, pending)
            })
        });
        // A client that closed before this ticket came has told everybody at its gates: nobody would tell it.
        if core.is_closing() {
            if let Arrival::In(read) = arrival {
                drop_level(core, &ticket.request.entered(read));
            }
            return Err(Error::Closed);
        }
        Ok((arrival, attempt))
    }

    /// The gate knew the answer: there is nothing to wait for.
    fn decide_at_once(&self, verdict: Verdict) -> bool {
        // The gate does not have the ticket, so nobody else decides it and nobody is to be woken.
        self.ticket.decide(verdict, &mut Effects::default());
        false
    }

    /// Sends the first try; then the ticket is decided, or in the queue. It has no timer: the keeper ends a
    /// try that is overdue.
    async fn first_try(&self, hold: &Arc<Hold>, mut pending: Pending) {
        let outcome = poll_fn(|context| {
            if self.ticket.poll_decided(context).is_ready() {
                return Poll::Ready(None);
            }
            pending.poll_unpin(context).map(Some)
        })
        .await;
        if let Some(outcome) = outcome {
            self.ticket.is_awake();
            settle_attempt(self.core, hold, &pending, outcome);
        }
    }

    /// Asks for a read of a hold that is there. Its schedule is that hold's, so the time is counted here.
    async fn join(&self, hold: &Arc<Hold>, pending: Pending) {
        let limit = self.core.config.command_timeout;
        let answered = pending.clone().within(limit);
        let decided = poll_fn(|context| self.ticket.poll_decided(context));
        let outcome = match select(Box::pin(answered), decided).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => return,
        };
        self.ticket.is_awake();
        settle_attempt(self.core, hold, &pending, outcome);
    }

    /// Waits in the queue, or for a try that the keeper makes.
    fn verdict(&self) -> impl Future<Output = Verdict> + Send {
        if self.ticket.request.patience == Patience::Forever || self.ticket.is_decided() {
            poll_fn(|context| self.ticket.poll(context)).left_future()
        } else {
            Box::pin(self.for_a_time()).right_future()
        }
    }

    fn log_wait(&self, verdict: &Verdict) {
        if matches!(verdict, Verdict::Granted(_)) {
            let waited = self.ticket.request.since.until(self.core.now());
            let name = self.ticket.request.kind.names().name();
            tracing::debug!(name, ?waited, "acquired after waiting");
        }
    }

    async fn for_a_time(&self) -> Verdict {
        let core = self.core;
        let Request {
            patience, since, ..
        } = self.ticket.request;
        let at_least = since + core.config.command_timeout;
        // The end of the wait, and of listening to what is still in flight then.
        let soft = match patience {
            Patience::Until(end) => end,
            Patience::Once | Patience::Forever => at_least,
        };
        let hard = soft.max(at_least) + GRACE;
        loop {
            let now = core.now();
            let end = if now < soft { soft } else { hard };
            let decided = poll_fn(|context| self.ticket.poll(context));
            let timers = core.backend.timers();
            if let Some(verdict) = timers.within(now.until(end), decided).await {
                return verdict;
            }
            let now = core.now();
            if now >= soft
                && let Some(verdict) = self.last_word(now, now >= hard)
            {
                return verdict;
            }
        }
    }

    /// The wait is over: what the caller hears, unless its own try is still worth listening to.
    fn last_word(&self, now: Moment, final_: bool) -> Option<Verdict> {
        self.core
            .gates
            .with(self.ticket.request.kind.names(), |gate| {
                if gate.is_trying_for(&self.ticket) {
                    let silent = Verdict::failed(Failure::no_reply());
                    return final_.then_some(silent);
                }
                if !gate.is_queued(&self.ticket) {
                    // Decided this very moment: the next poll has it. At the very end nothing else may come.
                    return (final_ && !self.ticket.is_decided())
                        .then(|| Verdict::failed(Failure::silence()));
                }
                let word = gate.last_word(&self.ticket, now);
                word.or_else(|| final_.then(|| Verdict::failed(Failure::silence())))
            })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // What was collected is its caller's.
        if self.ticket.is_collected() {
            return;
        }
        let names = self.ticket.request.kind.names();
        let uncollected = self
            .core
            .at(names, |gate, effects| gate.withdraw(&self.ticket, effects));
        if let Some(hold) = uncollected {
            drop_level(self.core, &self.ticket.request.entered(hold));
        }
    }
}
