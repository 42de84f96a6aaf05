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
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::gate::{Entered, Gate, Known};
use super::hold::{Due, Hold, Level, Phase};
use super::kind::Kind;
use super::owner::{Found, OwnerState};
use super::ticket::{NewTicket, Patience, Ticket, Verdict, Wakes};
use super::{Core, Mail, reentry};
use crate::backend::{Failure, Outcome, Pending};
use crate::clock::Moment;
use crate::error::{ConfigError, Error};
use crate::lease::{Lease, LeaseMs};
use crate::script::Acquired;

/// What a caller asks for.
pub(crate) struct Request {
    pub(crate) kind: Arc<dyn Kind>,
    pub(crate) owner: Option<Arc<OwnerState>>,
    pub(crate) lease: Lease,
    /// For how long; `None` for ever.
    pub(crate) wait: Option<Duration>,
}

/// How long a try that is in flight at the very end of a wait is still listened to.
const GRACE: Duration = Duration::from_millis(25);

/// After how long a waiter looks whether it waits for itself.
const SELF_CHECK: Duration = Duration::from_secs(1);

/// Starts or enters a hold; `None` when the lock stayed busy.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    request: &Request,
) -> Result<Option<(Arc<Hold>, Level)>, Error> {
    core.check_open()?;
    let lease = request
        .lease
        .resolve(core.config.watchdog_lease, &core.config.lease_bounds)?;
    let level = match request.lease {
        Lease::Watchdog => Level::Watchdog,
        Lease::Fixed(_) => Level::Fixed,
    };
    let times = Times::new(core, request.wait);
    loop {
        if let Some(owner) = &request.owner {
            match owner.find(request.kind.names(), core.now()) {
                Found::Lost(reason) => return Err(Error::Lost { reason }),
                Found::Live(hold) => {
                    let entry = reentry::enter(core, &hold, level, lease, times.patience).await?;
                    if entry == reentry::Entry::In {
                        return Ok(Some((hold, level)));
                    }
                }
                Found::Nothing => {}
            }
        }
        core.check_accepting()?;
        match start(core, request, lease, level, &times).await? {
            Verdict::Granted(hold) => return Ok(Some((hold, level))),
            Verdict::Busy => return Ok(None),
            Verdict::Failed(error) => return Err(error),
            Verdict::Again => {}
        }
    }
}

/// When a wait ends.
struct Times {
    started: Moment,
    patience: Patience,
    /// The end of the wait.
    soft: Moment,
    /// The end of listening to what is still in flight then.
    hard: Moment,
}

impl Times {
    fn new(core: &Core, wait: Option<Duration>) -> Self {
        let started = core.now();
        let command = core.config.command_timeout;
        let (patience, soft, hard) = match wait {
            None => (Patience::Forever, Moment::NEVER, Moment::NEVER),
            Some(Duration::ZERO) => (Patience::Once, started + command, started + command),
            Some(wait) => {
                let soft = started + wait;
                (Patience::Until(soft), soft, soft.max(started + command))
            }
        };
        Self {
            started,
            patience,
            soft,
            hard: hard + GRACE,
        }
    }
}

/// One pass through the gate.
async fn start(
    core: &Arc<Core>,
    request: &Request,
    lease: LeaseMs,
    level: Level,
    times: &Times,
) -> Result<Verdict, Error> {
    let Some(lane) = core.backend.callers_lane() else {
        return Err(ConfigError::NoRuntime.into());
    };
    let now = core.now();
    let ticket = Ticket::new(NewTicket {
        number: core.number(),
        kind: Arc::clone(&request.kind),
        owner: request.owner.clone(),
        lease,
        level,
        patience: times.patience,
        arrived_at: now,
    });
    let waiting = Waiting {
        core,
        kind: &request.kind,
        ticket,
    };
    let ticket = &waiting.ticket;
    let names = request.kind.names();
    let entered = core.gates.with(names, |gate| {
        gate.enter(ticket, now, || {
            let hold = new_hold(core, &request.kind, ticket);
            let call = request.kind.acquire(&hold.id, lease);
            (hold, core.backend.start(&lane, call))
        })
    });
    let first = match entered {
        Entered::Busy => return Ok(Verdict::Busy),
        Entered::First(hold, pending) => Some(First {
            hold,
            deadline: now + core.config.command_timeout,
            pending,
        }),
        Entered::Queued => {
            core.serve(names, true);
            None
        }
    };
    Ok(waiting.verdict(first, times).await)
}

/// A new attempt; the keeper looks after it when its caller does not.
pub(crate) fn new_hold(core: &Core, kind: &Arc<dyn Kind>, ticket: &Ticket) -> Arc<Hold> {
    let number = core.number();
    let id = format!("{}:{number}", core.client_text()).into();
    let hold = Hold::trying(Arc::clone(kind), id, number, ticket);
    core.look_by(&hold, core.now() + core.config.command_timeout);
    hold
}

/// The try that the caller sends itself.
struct First {
    hold: Arc<Hold>,
    deadline: Moment,
    pending: Pending,
}

enum Event {
    Verdict(Verdict),
    Answer(Outcome),
    Timer,
}

/// A caller that waits for a verdict; dropping it withdraws.
struct Waiting<'a> {
    core: &'a Arc<Core>,
    kind: &'a Arc<dyn Kind>,
    ticket: Arc<Ticket>,
}

impl Waiting<'_> {
    async fn verdict(&self, mut first: Option<First>, times: &Times) -> Verdict {
        let core = self.core;
        let mut self_check = times.started + SELF_CHECK;
        loop {
            let soft = if core.now() < times.soft {
                times.soft
            } else {
                times.hard
            };
            let try_end = first.as_ref().map_or(Moment::NEVER, |first| first.deadline);
            match self
                .next(first.as_ref(), soft.min(self_check).min(try_end))
                .await
            {
                Event::Verdict(verdict) => return verdict,
                Event::Answer(outcome) => self.settle(first.take(), outcome),
                Event::Timer => {
                    let now = core.now();
                    if now >= try_end
                        && let Some(first) = first.take()
                    {
                        first.pending.overdue();
                        self.settle(Some(first), Err(Failure::no_reply()));
                    }
                    if now >= self_check {
                        self_check = Moment::NEVER;
                        self.warn_of_self();
                    }
                    if now >= times.soft
                        && let Some(verdict) = self.last_word(now, now >= times.hard)
                    {
                        return verdict;
                    }
                }
            }
        }
    }

    /// The first of: a verdict, the answer to the first try, the timer.
    async fn next(&self, first: Option<&First>, timer: Moment) -> Event {
        let mut pending = first.map(|first| first.pending.outcome());
        let event = poll_fn(|context| {
            if let Poll::Ready(verdict) = self.ticket.poll(context) {
                return Poll::Ready(Event::Verdict(verdict));
            }
            match &mut pending {
                Some(pending) => std::pin::Pin::new(pending).poll(context).map(Event::Answer),
                None => Poll::Pending,
            }
        });
        let span = self.core.now().until(timer);
        tokio::time::timeout(span, event)
            .await
            .unwrap_or(Event::Timer)
    }

    fn settle(&self, first: Option<First>, outcome: Outcome) {
        if let Some(first) = first {
            settle(self.core, &first.hold, &self.ticket, outcome);
        }
    }

    /// The wait is over: what the caller hears, unless its own try is still worth listening to.
    fn last_word(&self, now: Moment, final_: bool) -> Option<Verdict> {
        self.core.gates.with(self.kind.names(), |gate| {
            if gate.trying_by(&self.ticket).is_some() {
                let silent = Verdict::Failed(Failure::no_reply().into());
                return final_.then_some(silent);
            }
            if !gate.is_queued(&self.ticket) {
                // Decided this very moment: the next poll has it. At the very end nothing else may come.
                return (final_ && !self.ticket.is_decided())
                    .then(|| Verdict::Failed(Failure::silence().into()));
            }
            let word = gate.last_word(now);
            word.or_else(|| final_.then(|| Verdict::Failed(Failure::silence().into())))
        })
    }

    fn warn_of_self(&self) {
        let task = self.ticket.task;
        let names = self.kind.names();
        let holder = self.core.gates.with(names, |gate| gate.holder_task());
        if task.is_some() && holder == task {
            tracing::warn!(
                name = &*names.name,
                "a task waits for a lock that it holds itself under another owner: \
                 to enter again use guard.reenter(), one Owner, or Client::scope"
            );
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let names = self.kind.names();
        let uncollected = self.ticket.close();
        let abandoned = self.core.gates.with(names, |gate| {
            gate.leave(&self.ticket);
            gate.trying_by(&self.ticket).is_some()
        });
        if abandoned {
            self.core.serve(names, true);
        }
        if let Some(hold) = uncollected {
            super::release::drop_level(self.core, &hold, self.ticket.level);
        }
        reap_unsettled(self.core, &self.ticket);
    }
}

/// Sees to an attempt that nobody will try again, and whose outcome is unknown.
fn reap_unsettled(core: &Core, ticket: &Ticket) {
    if let Some(hold) = ticket.unsettled.lock().take() {
        discard(core, &hold);
    }
}

/// Gives back what an unwanted attempt may have got.
fn discard(core: &Core, hold: &Arc<Hold>) {
    hold.with(|state| state.phase = Phase::Ending);
    if hold.reap() {
        core.post(Mail::Reap(Arc::clone(hold)));
    }
}

/// Decides what an attempt's outcome means; once, whoever comes first.
pub(crate) fn settle(core: &Arc<Core>, hold: &Arc<Hold>, ticket: &Arc<Ticket>, outcome: Outcome) {
    let mut wakes = Wakes::default();
    let now = core.now();
    let answer = outcome.and_then(|answer| {
        let acquired = hold.kind.acquired(&answer.reply);
        let acquired = acquired.ok_or_else(Failure::strange_reply)?;
        Ok((acquired, answer.sent_at))
    });
    let names = hold.kind.names();
    let (settled, start_job) = core.gates.with(names, |gate| {
        if !gate.is_trying(hold) {
            return (Settled::Before, false);
        }
        let mut scene = Scene {
            core,
            gate,
            hold,
            ticket,
            now,
            wakes: &mut wakes,
        };
        let settled = match answer {
            Ok((Acquired::Got, sent_at)) => scene.got(sent_at + ticket.lease.vouched()),
            Ok((Acquired::Busy(ttl), _)) => scene.busy(ttl),
            Ok((Acquired::WrongType, _)) => scene.failed(Error::WrongType),
            Err(failure) if failure.is_transient() => scene.retry(failure),
            Err(failure) => scene.failed(failure.into()),
        };
        (settled, gate.wants_job(false))
    });
    drop(wakes);
    if start_job {
        core.post(Mail::Serve(Arc::clone(names)));
    }
    match settled {
        Settled::Before => {}
        Settled::Held => {
            let look = hold.with(|state| state.due(&core.plan, now, now, core.jitter()));
            if let Due::Later(moment) = look {
                core.look_by(hold, moment);
            }
        }
        Settled::Unwanted => {
            core.schedule.forget(hold);
            tracing::debug!(name = &*names.name, "abandoned attempt cleaned up");
            discard(core, hold);
        }
        Settled::Over => {
            core.schedule.forget(hold);
            hold.end(Ok(()));
        }
        Settled::Unsettled => core.schedule.forget(hold),
    }
    if !ticket.is_waiting() && !matches!(settled, Settled::Held) {
        reap_unsettled(core, ticket);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    /// By somebody else.
    Before,
    Held,
    /// Got, and nobody wants it (any more).
    Unwanted,
    /// Certainly not got.
    Over,
    /// Unknown: to be tried again under the same hold id.
    Unsettled,
}

/// One outcome at one gate.
struct Scene<'a> {
    core: &'a Arc<Core>,
    gate: &'a mut Gate,
    hold: &'a Arc<Hold>,
    ticket: &'a Arc<Ticket>,
    now: Moment,
    wakes: &'a mut Wakes,
}

impl Scene<'_> {
    fn got(&mut self, valid_until: Moment) -> Settled {
        let (hold, ticket, now) = (self.hold, self.ticket, self.now);
        self.gate.keep(hold, now);
        *ticket.unsettled.lock() = None;
        let wanted = ticket.is_waiting();
        let granted = wanted && hold.with(|state| state.grant(ticket.level, valid_until, now));
        if granted {
            if let Some(owner) = &ticket.owner {
                owner.insert(hold);
            }
            self.gate.admit_owner(ticket, self.wakes);
            self.gate.tell_busy(self.now, self.wakes);
            if ticket.decide(Verdict::Granted(Arc::clone(hold)), self.wakes) {
                self.gate.granted(ticket, now);
                return Settled::Held;
            }
            if let Some(owner) = &ticket.owner {
                owner.remove(hold);
            }
        }
        // The news came too late, or to nobody: released, and tried again if somebody still waits.
        hold.with(|state| state.phase = Phase::Ending);
        self.requeue(|| Verdict::Failed(Failure::no_reply().into()));
        Settled::Unwanted
    }

    fn busy(&mut self, ttl: Option<Duration>) -> Settled {
        let until = ttl.map(|ttl| self.now + ttl);
        self.gate.stand(Known::Busy(until), self.now);
        self.gate.tell_busy(self.now, self.wakes);
        self.requeue(|| Verdict::Busy);
        self.after()
    }

    fn failed(&mut self, error: Error) -> Settled {
        self.gate.stand(Known::Nothing, self.now);
        self.gate.head_is_new();
        self.ticket.decide(Verdict::Failed(error), self.wakes);
        self.after()
    }

    fn retry(&mut self, failure: Failure) -> Settled {
        let first_break =
            failure.is_of_connection() && !self.ticket.retried.swap(true, Ordering::Relaxed);
        if failure.is_unanswered() {
            self.hold.taint();
        }
        if self.hold.is_tainted() {
            *self.ticket.unsettled.lock() = Some(Arc::clone(self.hold));
        }
        self.gate.stand(Known::Failed(failure.clone()), self.now);
        if first_break && self.ticket.patience == Patience::Once && self.is_early() {
            // An idle connection that was cut says so at the first command: one more try is due.
            self.gate.enqueue(self.ticket);
            self.gate.head_is_new();
        } else {
            self.requeue(|| Verdict::Failed(failure.into()));
        }
        let patience = self.core.config.unavailable_after;
        self.gate.give_up(self.now, patience, self.wakes);
        self.after()
    }

    /// Whether there is time for one more try within a command time-out.
    fn is_early(&self) -> bool {
        self.ticket.arrived_at + self.core.config.command_timeout / 2 > self.now
    }

    /// Back to the queue, or the end of the wait.
    fn requeue(&mut self, verdict: impl FnOnce() -> Verdict) {
        if self.ticket.is_over(self.now) {
            self.ticket.decide(verdict(), self.wakes);
        } else if self.ticket.is_waiting() {
            self.gate.enqueue(self.ticket);
        }
    }

    fn after(&self) -> Settled {
        if self.hold.is_tainted() {
            Settled::Unsettled
        } else {
            Settled::Over
        }
    }
}

impl Core {
    /// Spreads renewals: up to a tenth of a period.
    pub(crate) fn jitter(&self) -> Duration {
        (self.plan.period() / 10).mul_f64(fastrand::f64())
    }
}
