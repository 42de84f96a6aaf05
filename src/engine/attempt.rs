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

use super::gate::Entered;
use super::hold::Hold;
use super::kind::Kind;
use super::owner::{Found, OwnerState};
use super::release::drop_level;
use super::settle::{reap_unsettled, settle};
use super::state::Level;
use super::ticket::{NewTicket, Patience, Ticket, Verdict};
use super::{Core, reentry};
use crate::backend::{Failure, Outcome, Pending};
use crate::clock::Moment;
use crate::error::{ConfigError, Error};
use crate::lease::{Lease, LeaseMs};

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
            Verdict::Granted(hold) if hold.lost_reason(core.now()).is_none() => {
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
            let hold = new_hold(core, &request.kind, ticket, now);
            let call = request.kind.acquire(&hold.id, lease);
            (hold, core.backend.start(&lane, call))
        })
    });
    // A client that closed before this ticket came has told everybody at its gates: nobody would tell it.
    if core.is_closing() {
        return Err(Error::Closed);
    }
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
    let at_once = first.as_ref().map(|first| first.hold.number);
    let verdict = waiting.verdict(first, times).await;
    if matches!(&verdict, Verdict::Granted(hold) if Some(hold.number) != at_once) {
        let waited = times.started.until(core.now());
        tracing::debug!(name = &*names.name, ?waited, "acquired after waiting");
    }
    Ok(verdict)
}

/// A new attempt; the keeper looks after it when its caller does not.
pub(crate) fn new_hold(
    core: &Core,
    kind: &Arc<dyn Kind>,
    ticket: &Ticket,
    now: Moment,
) -> Arc<Hold> {
    let number = core.number();
    let id = format!("{}:{number}", core.client_text()).into();
    let hold = Hold::trying(Arc::clone(kind), id, number, ticket);
    core.look_by(&hold, now + core.config.command_timeout);
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
            let now = core.now();
            let end = if now < times.soft {
                times.soft
            } else {
                times.hard
            };
            let try_end = first.as_ref().map_or(Moment::NEVER, |first| first.deadline);
            let timer = now.until(end.min(self_check).min(try_end));
            match self.next(first.as_ref(), timer).await {
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
    async fn next(&self, first: Option<&First>, timer: Duration) -> Event {
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
        if tokio::runtime::Handle::try_current().is_err() {
            // Moved here from a runtime in the middle of its wait.
            let error = ConfigError::NoRuntime.into();
            return Event::Verdict(Verdict::Failed(error));
        }
        tokio::time::timeout(timer, event)
            .await
            .unwrap_or(Event::Timer)
    }

    fn settle(&self, first: Option<First>, outcome: Outcome) {
        if let Some(first) = first {
            self.ticket.is_awake();
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
            drop_level(self.core, &hold, self.ticket.level);
        }
        reap_unsettled(self.core, &self.ticket);
    }
}
