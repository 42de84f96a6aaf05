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

use futures_util::FutureExt;

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
pub(crate) struct Asking {
    kind: Kind,
    owner: Option<Arc<OwnerState>>,
    lease: LeaseMs,
    level: Level,
    times: Times,
}

impl Asking {
    /// The wait, if it has an end, begins now.
    pub(crate) fn new(
        core: &Core,
        kind: Kind,
        owner: Option<Arc<OwnerState>>,
        lease: Lease,
        wait: Option<Duration>,
    ) -> Result<Self, Error> {
        core.check_open()?;
        Ok(Self {
            kind,
            owner,
            lease: lease.resolve(core.config.watchdog_lease, &core.config.lease_bounds)?,
            level: match lease {
                Lease::Watchdog => Level::Watchdog,
                Lease::Fixed(_) => Level::Fixed,
            },
            times: Times::new(core, wait),
        })
    }

    pub(crate) fn name(&self) -> &str {
        self.kind.names().name()
    }
}

/// How long a try that is in flight at the very end of a wait is still listened to.
const GRACE: Duration = Duration::from_millis(25);

/// What the first steps of an acquire led to.
enum Begun<'a> {
    /// The owner's hold was entered again.
    In(Arc<Hold>),
    Over(Verdict),
    Waits(Waiting<'a>),
}

/// Starts or enters a hold; `None` when the lock stayed busy.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice, and thousands may wait"
)]
pub(crate) fn acquire(
    core: &Arc<Core>,
    asking: Asking,
) -> impl Future<Output = Result<Option<(Arc<Hold>, Level)>, Error>> + Send {
    async move {
        loop {
            // Apart: none of it is left while a task waits.
            let verdict = match Box::pin(begin(core, &asking)).await? {
                Begun::In(hold) => return Ok(Some((hold, asking.level))),
                Begun::Over(verdict) => verdict,
                Begun::Waits(waiting) => {
                    let verdict = waiting.in_queue(&asking.times).await;
                    waiting.tell_of_wait(&verdict);
                    verdict
                }
            };
            match verdict {
                Verdict::Granted(hold) if core.now() < hold.valid_until() => {
                    return Ok(Some((hold, asking.level)));
                }
                // It lay uncollected until it was lost.
                Verdict::Granted(hold) => drop_level(core, &hold, asking.level),
                Verdict::Busy => return Ok(None),
                Verdict::Failed(error) => return Err(error),
                Verdict::Again => {}
            }
        }
    }
}

/// Enters what the owner holds, or passes the gate and sends the first try.
async fn begin<'a>(core: &'a Arc<Core>, asking: &Asking) -> Result<Begun<'a>, Error> {
    let (lease, level, patience) = (asking.lease, asking.level, asking.times.patience);
    if let Some(owner) = &asking.owner {
        match owner.find(asking.kind.names(), core.now()) {
            Found::Lost(reason) => return Err(Error::Lost { reason }),
            Found::Live(hold) => {
                let entry = reentry::enter(core, &hold, level, lease, patience).await?;
                if entry == reentry::Entry::In {
                    return Ok(Begun::In(hold));
                }
            }
            Found::Nothing => {}
        }
    }
    core.check_accepting()?;
    start(core, asking).await
}

/// When a wait ends.
struct Times {
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
            patience,
            soft,
            hard: hard + GRACE,
        }
    }
}

/// One pass through the gate.
async fn start<'a>(core: &'a Arc<Core>, asking: &Asking) -> Result<Begun<'a>, Error> {
    let Some(lane) = core.backend.callers_lane() else {
        return Err(ConfigError::NoRuntime.into());
    };
    let now = core.now();
    let waiting = Waiting {
        core,
        ticket: Ticket::new(NewTicket {
            number: core.number(),
            kind: asking.kind.clone(),
            owner: asking.owner.clone(),
            lease: asking.lease,
            level: asking.level,
            patience: asking.times.patience,
            arrived_at: now,
        }),
    };
    let ticket = &waiting.ticket;
    let names = asking.kind.names();
    let entered = core.gates.with(names, |gate| {
        gate.enter(ticket, now, || {
            let hold = new_hold(core, &asking.kind, ticket, now);
            let call = asking.kind.acquire(&hold.id, asking.lease);
            (hold, core.backend.start(&lane, call))
        })
    });
    // A client that closed before this ticket came has told everybody at its gates: nobody would tell it.
    if core.is_closing() {
        return Err(Error::Closed);
    }
    match entered {
        Entered::Busy => return Ok(Begun::Over(Verdict::Busy)),
        Entered::First(hold, pending) => {
            if let Some(verdict) = waiting.first_try(&hold, &pending).await {
                return Ok(Begun::Over(verdict));
            }
        }
        Entered::Queued => core.serve(names, true),
    }
    Ok(Begun::Waits(waiting))
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
    fn in_queue(&self, times: &Times) -> impl Future<Output = Verdict> + Send {
        if times.patience == Patience::Forever {
            poll_fn(|context| self.ticket.poll(context)).left_future()
        } else {
            Box::pin(self.for_a_time(times)).right_future()
        }
    }

    fn tell_of_wait(&self, verdict: &Verdict) {
        if matches!(verdict, Verdict::Granted(_)) {
            let waited = self.ticket.arrived_at.until(self.core.now());
            let name = self.ticket.kind.names().name();
            tracing::debug!(name, ?waited, "acquired after waiting");
        }
    }

    async fn for_a_time(&self, times: &Times) -> Verdict {
        let core = self.core;
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
            let decided = poll_fn(|context| self.ticket.poll(context));
            if let Ok(verdict) = tokio::time::timeout(now.until(end), decided).await {
                return verdict;
            }
            let now = core.now();
            if now >= times.soft
                && let Some(verdict) = self.last_word(now, now >= times.hard)
            {
                return verdict;
            }
        }
    }

    /// The wait is over: what the caller hears, unless its own try is still worth listening to.
    fn last_word(&self, now: Moment, final_: bool) -> Option<Verdict> {
        self.core.gates.with(self.ticket.kind.names(), |gate| {
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
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.ticket.is_collected() {
            let uncollected = self.ticket.close();
            let names = self.ticket.kind.names();
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
