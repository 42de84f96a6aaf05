//! Starting a hold: the caller's side of an acquire.
//!
//! 1. The caller sends the first try itself when the name is free here; everybody else joins the queue
//!    and only waits for a verdict.
//! 2. Whoever sees an attempt's outcome first settles it, once, under the gate's lock: its caller, or
//!    the keeper when somebody queues behind, the caller is gone, or the outcome is overdue.
//! 3. Dropping the future at any point leaves the rest to the keeper: what is in flight is awaited, and
//!    what comes of it is given back.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::gate::Entered;
use super::hold::Hold;
use super::kind::Kind;
use super::owner::{Found, OwnerState};
use super::release::drop_level;
use super::settle::{reap_unsettled, settle};
use super::state::Level;
use super::ticket::{NewTicket, Patience, Ticket, Verdict};
use super::{Core, heard, reentry};
use crate::backend::{Failure, Outcome, Pending};
use crate::clock::Moment;
use crate::error::{ConfigError, Error};
use crate::lease::{Lease, LeaseMs};

/// What a caller asks for.
pub(crate) struct Request {
    pub(crate) kind: Kind,
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
                    let entering = reentry::enter(core, &hold, level, lease, times.patience);
                    // Apart, so that the many who wait without an owner do not pay for its size.
                    if Box::pin(entering).await? == reentry::Entry::In {
                        return Ok(Some((hold, level)));
                    }
                }
                Found::Nothing => {}
            }
        }
        core.check_accepting()?;
        match start(core, request, lease, level, &times).await? {
            Verdict::Granted(hold) if core.now() < hold.valid_until() => {
                return Ok(Some((hold, level)));
            }
            // It lay uncollected until it was lost.
            Verdict::Granted(hold) => drop_level(core, &hold, level),
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
        kind: request.kind.clone(),
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
            let hold = new_hold(core, &request.kind, ticket, now);
            let call = request.kind.acquire(&hold.id, lease);
            (hold, core.backend.start(&lane, call))
        })
    });
    // A client that closed before this ticket came has told everybody at its gates: nobody would tell it.
    if core.is_closing() {
        return Err(Error::Closed);
    }
    match entered {
        Entered::Busy => return Ok(Verdict::Busy),
        Entered::First(hold, pending) => {
            if let Some(verdict) = waiting.first_try(&hold, &pending).await {
                return Ok(verdict);
            }
        }
        Entered::Queued => core.serve(names, true),
    }
    // Apart, since most do not get here.
    let verdict = Box::pin(waiting.in_queue(times)).await;
    if matches!(verdict, Verdict::Granted(_)) {
        let waited = times.started.until(core.now());
        tracing::debug!(name = names.name(), ?waited, "acquired after waiting");
    }
    Ok(verdict)
}

/// A new attempt; the keeper looks after it when its caller does not.
pub(crate) fn new_hold(core: &Core, kind: &Kind, ticket: &Ticket, now: Moment) -> Arc<Hold> {
    let number = core.number();
    let id = format!("{}:{number}", core.client_text()).into();
    let finish_by = now + core.config.command_timeout;
    let hold = Hold::trying(kind.clone(), id, number, ticket, finish_by);
    core.look_by(&hold, finish_by);
    hold
}

/// A caller that waits for a verdict; dropping it withdraws.
struct Waiting<'a> {
    core: &'a Arc<Core>,
    kind: &'a Kind,
    ticket: Arc<Ticket>,
}

enum FirstTry {
    Verdict(Verdict),
    Answer(Outcome),
}

impl Waiting<'_> {
    /// Sends the first try; `None` when it was in vain and the ticket is in the queue now. It has no timer:
    /// the keeper ends a try that is overdue.
    async fn first_try(&self, hold: &Arc<Hold>, pending: &Pending) -> Option<Verdict> {
        let mut answer = pin!(heard(pending));
        let first = poll_fn(|context| {
            if let Poll::Ready(verdict) = self.ticket.poll(context) {
                return Poll::Ready(FirstTry::Verdict(verdict));
            }
            answer.as_mut().poll(context).map(FirstTry::Answer)
        });
        match first.await {
            FirstTry::Verdict(verdict) => Some(verdict),
            FirstTry::Answer(outcome) => {
                self.ticket.is_awake();
                settle(self.core, hold, &self.ticket, outcome);
                self.ticket.take()
            }
        }
    }

    /// Waits in the queue, or for a try that the keeper makes.
    async fn in_queue(&self, times: &Times) -> Verdict {
        let core = self.core;
        let mut self_check = times.started + SELF_CHECK;
        loop {
            if tokio::runtime::Handle::try_current().is_err() {
                // Moved here from a runtime in the middle of its wait.
                return Verdict::Failed(ConfigError::NoRuntime.into());
            }
            let now = core.now();
            let end = if now < times.soft {
                times.soft
            } else {
                times.hard
            };
            let timer = now.until(end.min(self_check));
            let decided = poll_fn(|context| self.ticket.poll(context));
            if let Ok(verdict) = tokio::time::timeout(timer, decided).await {
                return verdict;
            }
            let now = core.now();
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
                name = names.name(),
                "a task waits for a lock that it holds itself under another owner: \
                 to enter again use guard.reenter(), one Owner, or Client::scope"
            );
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.ticket.is_collected() {
            let uncollected = self.ticket.close();
            let names = self.kind.names();
            let abandoned = self.core.gates.with(names, |gate| {
                gate.leave(&self.ticket);
                gate.trying_by(&self.ticket).is_some()
            });
            if abandoned {
                self.core.serve(names, true);
            }
            if let Some(hold) = uncollected {
                drop_level(self.core, &hold, self.ticket.level);
            }
        }
        reap_unsettled(self.core, &self.ticket);
    }
}
