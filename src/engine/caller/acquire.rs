//! Starting a hold: the caller's side of an acquire.
//!
//! 1. If nobody in this client uses the name, the caller sends the first try itself. Every other caller joins the queue
//!    and waits for a verdict.
//! 2. Whoever sees an attempt's outcome first settles it, once, under the gate's lock: its caller, or the keeper if
//!    others queue, the caller is gone, or the outcome is overdue.
//! 3. Dropping the future at any point leaves the rest to the keeper: it awaits what is in flight, and gives back what
//!    that gets.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::{FutureExt, TryFutureExt};

use super::enter::{self, NewLevel, new_level};
use super::release::drop_level;
use crate::backend::{Failure, Fleet, Pending};
use crate::clock::{Moment, millis};
use crate::engine::core::{Core, settle_attempt};
use crate::engine::gate::Arrival;
use crate::engine::gate::ticket::{GRACE, Patience, Request, Ticket, Verdict};
use crate::engine::hold::kind::{Kind, Try};
use crate::engine::hold::owner::OwnerState;
use crate::engine::hold::state::Level;
use crate::engine::hold::{Hold, Origin};
use crate::error::Error;
use crate::lease::{Lease, LeaseMs};
use crate::log::log;
use crate::report::{LockMetrics, Waits};

/// The target of the span of an acquire.
pub(crate) const HANDLE: &str = "watchlock::lock::handle";

/// The request of a caller. A limited wait begins now.
pub(crate) fn request(
    core: &Core,
    kind: Kind,
    owner: Option<Arc<OwnerState>>,
    lease: Lease,
    wait: Option<Duration>,
) -> Result<Request, Error> {
    let since = core.now();
    if kind.commands.has_reads() {
        lease.of_several()?;
    }
    let resolved = lease.resolve(core.watchdog_lease, core.config.max_lease)?;
    let (level, at_most) = match lease {
        Lease::Watchdog => (Level::Watchdog, None),
        Lease::Fixed(_) => (Level::Fixed, None),
        Lease::AtMost(_) => (Level::Limited, Some(resolved)),
    };
    Ok(Request {
        kind,
        owner,
        lease: at_most.map_or(resolved, |limit| limit.min(core.watchdog_lease)),
        level,
        at_most,
        patience: Patience::of(wait, since),
        since,
        turn: None,
        rounds: 0,
        sent: false,
    })
}

pub(crate) enum AcquireOutcome<L> {
    In(L),
    /// Somebody else has it, up to that time if it is known.
    Busy(Option<Moment>),
}

/// The result of the first step of an acquire.
enum FirstStep<'a> {
    /// The owner re-entered its hold.
    In(NewLevel<'a>),
    /// The ticket is at the gate: queued if `true`, decided otherwise.
    Asked(Waiting<'a>, bool),
}

/// Starts or enters a hold.
pub(crate) fn acquire(
    core: &Arc<Core>,
    request: Request,
) -> impl Future<Output = Result<AcquireOutcome<NewLevel<'_>>, Error>> + Send {
    // Boxed, so that it takes no memory while a task waits.
    let mut begun = Box::pin(begin_measured(core, request));
    async move {
        let failed = loop {
            let (mut waiting, queued) = match begun.await? {
                FirstStep::In(entered) => return Ok(AcquireOutcome::In(entered)),
                FirstStep::Asked(waiting, queued) => (waiting, queued),
            };
            if queued {
                waiting.waits.begin(&waiting.ticket.request.kind.metrics);
            }
            match waiting.verdict().await {
                Verdict::Granted(hold) => {
                    // First of all: from now on nobody else gives it back.
                    let level = new_level(core, waiting.ticket.request.entered(hold));
                    if waiting.is_granted(&level.1.hold, queued) {
                        // Before the return: what a function returns is leaked if a drop panics behind it.
                        drop(waiting);
                        return Ok(AcquireOutcome::In(level));
                    }
                }
                Verdict::Busy(until) => {
                    waiting.is_over("busy");
                    return Ok(AcquireOutcome::Busy(until));
                }
                Verdict::Failed(error) => {
                    waiting.is_over("failed");
                    // Boxed, as above.
                    break Box::pin(waiting.failed(error));
                }
                Verdict::Again => {}
            }
            begun = Box::pin(begin_measured(
                core,
                waiting.ticket.request.again(&waiting.ticket),
            ));
        };
        Err(failed.await)
    }
}

/// As [`begin`], and reports an acquire that is over then.
fn begin_measured(
    core: &Arc<Core>,
    request: Request,
) -> impl Future<Output = Result<FirstStep<'_>, Error>> + Send {
    let (metrics, since, sent) = (request.kind.metrics.clone(), request.since, request.sent);
    let entered = if request.rounds > 0 { "waited" } else { "free" };
    let begun = begin(core, request).inspect(move |first| match first {
        Ok(FirstStep::In(_)) => is_over(core, &metrics, since, entered),
        Ok(FirstStep::Asked(..)) => {}
        Err(_) => is_over(core, &metrics, since, "failed"),
    });
    begun.map_err(move |error| error.after_a_send(sent))
}

/// Reports the end of an acquire to metrics, and to its span.
fn is_over(core: &Core, metrics: &LockMetrics, since: Moment, outcome: &'static str) {
    let span = tracing::Span::current();
    let is_own = |span: &tracing::Metadata<'_>| span.target() == HANDLE && span.name() == "acquire";
    let is_own = span.metadata().is_some_and(is_own);
    if !is_own && !metrics.is_on() {
        return;
    }
    let after = since.until(core.now());
    metrics.acquired(outcome, after);
    if is_own {
        span.record("outcome", outcome)
            .record("waited_ms", millis(after));
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
        core.check_supported(request.kind.commands.rules().needs_time)?;
        let fleet = core.backend.callers_fleet()?;
        let now = core.now();
        let ticket = Ticket::new(core.number(), request);
        let waiting = Waiting {
            core,
            ticket,
            waits: Waits::default(),
        };
        let arrived = waiting.pass_gate(&fleet, now)?;
        drop(fleet);
        let queued = match arrived {
            Arrival::First(hold, pending) => {
                waiting.first_try(&hold, pending).await;
                !waiting.ticket.is_decided()
            }
            Arrival::Join(hold, pending) => {
                Box::pin(waiting.join(&hold, pending)).await;
                !waiting.ticket.is_decided()
            }
            Arrival::Decided(_) => false,
            Arrival::Queued => true,
        };
        Ok(FirstStep::Asked(waiting, queued))
    }
}

/// Enters what the owner holds, if it holds the lock.
async fn enter_own<'a>(
    core: &'a Arc<Core>,
    request: &Request,
) -> Result<Option<NewLevel<'a>>, Error> {
    let Some(owner) = &request.owner else {
        return Ok(None);
    };
    let (kind, now) = (&request.kind, core.now());
    let shared = kind.commands.is_shared();
    let found = owner.find(&kind.names, shared, now).map_err(Error::lost)?;
    let Some(hold) = found else {
        return beside_own(core, owner, request).await;
    };
    // Boxed: few acquires re-enter a hold.
    match Box::pin(enter::enter(core, &hold, request)).await {
        // It has another read, which goes on. The gate sends it back to enter that.
        Err(lost) if shared && lost.is_lost() && owner.has(&kind.names, core.now()) => Ok(None),
        entered => entered,
    }
}

/// Handles an owner that has the lock in the other mode. A writer may add a read beside its hold. A reader that asks to
/// write would wait for itself.
async fn beside_own<'a>(
    core: &'a Arc<Core>,
    owner: &Arc<OwnerState>,
    request: &Request,
) -> Result<Option<NewLevel<'a>>, Error> {
    let commands = &request.kind.commands;
    if !commands.has_reads() {
        return Ok(None);
    }
    let shared = commands.is_shared();
    let found = owner.find(&request.kind.names, !shared, core.now());
    match found.map_err(Error::lost)? {
        None => Ok(None),
        Some(_) if !shared => Err(Error::WouldDeadlock { lock: None }),
        Some(own) => Box::pin(enter::enter_beside(core, &own, request)).await,
    }
}

/// After how long the keeper looks for the answer to an attempt, whose caller may not be polled.
pub(crate) const ANSWER_SEEN_AFTER: Duration = Duration::from_millis(100);

/// A new attempt, which asks for `lease`. The keeper completes it if its caller does not.
pub(crate) fn new_hold(core: &Core, ticket: &Ticket, lease: LeaseMs, now: Moment) -> Arc<Hold> {
    let finish_by = now + ANSWER_SEEN_AFTER.min(core.config.command_timeout);
    let hold = untried_hold(core, ticket, lease, finish_by);
    core.look_by(&hold, finish_by);
    hold
}

/// A new attempt that was not sent yet.
pub(crate) fn untried_hold(
    core: &Core,
    ticket: &Ticket,
    lease: LeaseMs,
    finish_by: Moment,
) -> Arc<Hold> {
    let number = core.number();
    let id = core.hold_id(number);
    let origin = Origin {
        owner: ticket.owner_of_hold(),
        lease,
        ..ticket.request.origin(&id, number, ticket.task)
    };
    Hold::trying(origin, finish_by)
}

/// Asks Redis for a read of `shared`, for `ticket`.
pub(crate) fn start_join(
    fleet: &Arc<Fleet>,
    shared: &Arc<Hold>,
    ticket: &Ticket,
) -> (Arc<Hold>, Pending) {
    let request = &ticket.request;
    shared.with(|state| state.asks_for(request.lease));
    let pending = Pending::start(fleet, request.kind.join(&shared.id, request.lease));
    (Arc::clone(shared), pending)
}

/// A caller that waits for a verdict. Its drop withdraws the ticket.
struct Waiting<'a> {
    core: &'a Arc<Core>,
    ticket: Arc<Ticket>,
    waits: Waits,
}

impl Waiting<'_> {
    fn is_over(&self, outcome: &'static str) {
        let request = &self.ticket.request;
        is_over(self.core, &request.kind.metrics, request.since, outcome);
    }

    /// Passes the gate: returns where the ticket is now, and what the caller sends.
    fn pass_gate(&self, fleet: &Arc<Fleet>, now: Moment) -> Result<Arrival<Pending>, Error> {
        let (core, ticket) = (self.core, &self.ticket);
        let arrival = core.at(&ticket.request.kind.names, now, |gate, effects| {
            let arrival = gate.arrive(ticket, effects, |shared| {
                if let Some(shared) = shared {
                    return start_join(fleet, shared, ticket);
                }
                let hold = new_hold(core, ticket, ticket.request.lease, now);
                // The keeper asks for places in Redis' queue, in the order of arrival.
                let call = hold.kind.acquire(&hold.id, hold.lease, Try::ONCE);
                let patient = ticket.request.patience != Patience::Once;
                let pending = Pending::start(fleet, call.of_new_caller(patient));
                (hold, pending)
            });
            if let Arrival::Decided(verdict) = &arrival {
                ticket.decide(verdict.clone(), effects);
            }
            arrival
        });
        // The client failed everybody at its gates when it closed. It would not fail a ticket that comes later.
        if core.is_closing() {
            return Err(Error::Closed);
        }
        Ok(arrival)
    }

    /// Sends the first try. After it the ticket is decided or queued. It has no timer: the keeper ends an overdue try.
    async fn first_try(&self, hold: &Arc<Hold>, mut pending: Pending) {
        let outcome = poll_fn(|context| {
            if self.ticket.poll_decided(context).is_ready() {
                return Poll::Ready(None);
            }
            pending.poll_unpin(context).map(Some)
        })
        .await;
        if let Some(outcome) = outcome {
            drop(self.ticket.take_waker());
            settle_attempt(self.core, hold, &pending, outcome);
        }
    }

    /// Asks for a read of a hold that exists. The schedule has no entry for it, so it has a timer of its own.
    async fn join(&self, hold: &Arc<Hold>, pending: Pending) {
        let limit = self.core.config.command_timeout;
        let end = self.ticket.request.returns_by(limit);
        let answered = pending.clone().until(limit, end);
        let decided = poll_fn(|context| self.ticket.poll_decided(context));
        let outcome = match select(Box::pin(answered), decided).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => return,
        };
        drop(self.ticket.take_waker());
        settle_attempt(self.core, hold, &pending, outcome);
    }

    /// Waits in the queue, or for a try that the keeper makes.
    fn verdict(&self) -> impl Future<Output = Verdict> + Send {
        if self.ticket.request.patience == Patience::Forever || self.ticket.is_decided() {
            poll_fn(|context| self.poll(context)).left_future()
        } else {
            Box::pin(self.for_a_time()).right_future()
        }
    }

    /// Collects the verdict. If the lock waits for a caller that is polled, it may be this one.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Verdict> {
        let verdict = self.ticket.poll(context);
        if verdict.is_ready() || !self.ticket.is_called() {
            return verdict;
        }
        let names = &self.ticket.request.kind.names;
        let grant = self.core.at(names, self.core.now(), |gate, effects| {
            gate.present(&self.ticket, effects)
        });
        if let Some((hold, uncollected)) = grant {
            drop_level(self.core, &uncollected.request.entered(hold));
        }
        self.ticket.poll(context)
    }

    /// Reports a grant, which was waited for if `queued`. False when it was lost before the caller collected it.
    fn is_granted(&self, hold: &Hold, queued: bool) -> bool {
        let request = &self.ticket.request;
        if queued {
            let waited = request.since.until(self.core.now());
            let waited_ms = millis(waited);
            let names = Arc::clone(&request.kind.names);
            // A quorum waits for its servers' locks on a thread of its own.
            log(move || tracing::debug!(name = names.name(), waited_ms, "acquired after waiting"));
        }
        let is_valid = self.core.now() < hold.valid_until();
        if is_valid {
            let waited = queued || request.rounds > 0;
            self.is_over(if waited { "waited" } else { "free" });
        }
        is_valid
    }

    /// The error of the acquire. If too few replicas acknowledged what it got, this first waits for the release, so that the
    /// lock is free by the time of the error.
    async fn failed(self, error: Box<Error>) -> Error {
        let core = self.core;
        let (now, limit) = (core.now(), core.config.command_timeout);
        let end = self.ticket.request.returns_by(limit).min(now + limit);
        if let Some(refused) = self.ticket.take_refused().filter(|_| !core.is_closing()) {
            let _ = core.backend.timers().until(end, refused.ended()).await;
        }
        error.after_a_send(self.ticket.was_sent())
    }

    async fn for_a_time(&self) -> Verdict {
        let core = self.core;
        let request = &self.ticket.request;
        let limit = core.config.command_timeout;
        // The wait ends at `soft`. The caller still waits until `hard` for the reply to its own try.
        let soft = match request.patience {
            Patience::Until(end) => end,
            Patience::Once | Patience::Forever => request.since + limit,
        };
        let hard = request.returns_by(limit) + GRACE;
        loop {
            let now = core.now();
            let end = if now < soft { soft } else { hard };
            let decided = poll_fn(|context| self.poll(context));
            let timers = core.backend.timers();
            if let Some(verdict) = timers.until(end, decided).await {
                return verdict;
            }
            let now = core.now();
            if now >= soft
                && let Some(verdict) = self.final_verdict(now, now >= hard)
            {
                return verdict;
            }
        }
    }

    /// The verdict at the end of the wait. `None` while the caller still waits for the reply to its own try.
    fn final_verdict(&self, now: Moment, is_end: bool) -> Option<Verdict> {
        let limit = self.core.config.command_timeout;
        self.core.notice_pause(now);
        self.core
            .gates
            .with(&self.ticket.request.kind.names, |gate| {
                if let Some((command, since)) = gate.try_for(&self.ticket) {
                    if !is_end {
                        return None;
                    }
                    let since = command.counts_from(since).max(self.core.runs_since());
                    let known = gate.verdict_without_answer(&self.ticket, since, limit, now);
                    let silent = || Verdict::failed(Failure::slow_reply(limit));
                    return Some(known.unwrap_or_else(silent));
                }
                if !gate.is_queued(&self.ticket) {
                    // It was decided just now: the next poll returns that. At `hard` the wait ends in any case.
                    return (is_end && !self.ticket.is_decided())
                        .then(|| Verdict::failed(Failure::silence()));
                }
                if !is_end {
                    return gate.final_verdict(&self.ticket, now);
                }
                let known = gate.verdict_at_end(&self.ticket, limit, now);
                known.or_else(|| Some(Verdict::failed(Failure::silence())))
            })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A verdict that was collected belongs to the caller.
        if self.ticket.is_collected() {
            return;
        }
        // Dropped last, when no lock is held: it may own a guard of the same lock.
        let _waker = self.ticket.take_waker();
        let names = &self.ticket.request.kind.names;
        let (unsent, uncollected) = self.core.at(names, self.core.now(), |gate, effects| {
            let unsent = gate.attempt_of(&self.ticket);
            (unsent, gate.withdraw(&self.ticket, effects))
        });
        if let Some(command) = unsent {
            command.take_back();
        }
        if let Some(hold) = uncollected {
            drop_level(self.core, &self.ticket.request.entered(hold));
        }
        // Behind all that must be done: a subscriber or a recorder may panic. A client that closes has failed it.
        if !self.core.is_closing() {
            self.is_over("abandoned");
        }
    }
}
