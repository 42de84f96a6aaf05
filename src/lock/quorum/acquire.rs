//! Starting a hold at a quorum: the caller's side.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

use super::Nodes;
use super::gate::{Arrival, Flight, Tried};
use super::job;
use super::round::round;
use super::ticket::{Patience, Request, Ticket, Verdict};
use super::token;
use crate::clock::Moment;
use crate::error::Error;
use crate::lock::LockGuard;

/// How much later than it should an acquire may return.
const GRACE: Duration = Duration::from_millis(25);

/// Enters what the owner holds, or starts a hold; `None` when the lock stayed busy.
pub(super) async fn acquire(
    nodes: &Arc<Nodes>,
    request: Request,
) -> Result<Option<LockGuard>, Error> {
    let name = Arc::clone(&request.name);
    loop {
        nodes.check_open()?;
        if let Some(owner) = &request.owner
            && let Some(level) = owner.enter(&name, request.lease).await?
        {
            if request.fenced && level.hold().token().is_none() {
                token::take_for(nodes, &request, level.hold()).await?;
            }
            return Ok(Some(LockGuard::of_several(level)));
        }
        let waiting = Waiting::enter(nodes, &name, request.clone());
        match waiting.verdict().await {
            Verdict::Got(guard) if guard.is_valid() => return Ok(Some(guard)),
            Verdict::Busy => return Ok(None),
            Verdict::Failed(error) => return Err(error),
            // It lay uncollected until it was lost, or was taken back.
            Verdict::Got(_) | Verdict::Again => {}
        }
    }
}

/// The round for `ticket`, which settles itself.
fn flight_of(nodes: &Arc<Nodes>, ticket: &Arc<Ticket>) -> Flight {
    let (nodes, ticket) = (Arc::clone(nodes), Arc::clone(ticket));
    let flying = async move {
        let tried = if ticket.is_waiting() {
            round(&nodes, &ticket.request).await
        } else {
            Tried::Failed(Error::Closed)
        };
        let name = &ticket.request.name;
        let (now, after) = (nodes.now(), nodes.config().unavailable_after);
        let ((), effects) = nodes.gates.at(name, |gate, effects| {
            gate.settle(&ticket, tried, now, after, effects);
        });
        if let Some(granted) = effects.granted {
            take_back_later(&nodes, granted);
        }
        if effects.start_job {
            start_job(&nodes, &ticket.request);
        }
    };
    Flight::new(flying.boxed())
}

/// Makes the round for the head of a queue; its job drives it.
pub(super) fn begin_round(nodes: &Arc<Nodes>, head: &Arc<Ticket>) {
    let flight = flight_of(nodes, head);
    let name = &head.request.name;
    nodes
        .gates
        .at(name, |gate, _| gate.take_seat(head, &flight));
}

fn start_job(nodes: &Arc<Nodes>, request: &Request) {
    let (name, kind) = (Arc::clone(&request.name), request.kind.clone());
    let job = job::serve(Arc::clone(nodes), name, kind);
    nodes.spawn(job);
}

/// A grant that nobody collects holds up those who wait.
fn take_back_later(nodes: &Arc<Nodes>, granted: Arc<Ticket>) {
    let limit = nodes.config().command_timeout;
    nodes.spawn(async move {
        tokio::time::sleep(limit).await;
        granted.take_back();
    });
}

/// A caller, from its arrival to its verdict.
struct Waiting<'a> {
    nodes: &'a Arc<Nodes>,
    name: &'a Arc<str>,
    ticket: Arc<Ticket>,
    arrival: Arrival,
    flight: Flight,
}

impl<'a> Waiting<'a> {
    fn enter(nodes: &'a Arc<Nodes>, name: &'a Arc<str>, request: Request) -> Self {
        let ticket = Ticket::new(request);
        let flight = flight_of(nodes, &ticket);
        let (arrival, effects) = nodes
            .gates
            .at(name, |gate, effects| gate.arrive(&ticket, &flight, effects));
        if effects.start_job {
            start_job(nodes, &ticket.request);
        }
        Self {
            nodes,
            name,
            ticket,
            arrival,
            flight,
        }
    }

    async fn verdict(mut self) -> Verdict {
        if matches!(self.arrival, Arrival::Busy) {
            return Verdict::Busy;
        }
        let Request {
            patience, since, ..
        } = self.ticket.request;
        let at_least = since + self.nodes.config().command_timeout;
        let soft = match patience {
            Patience::Forever => return self.decided().await,
            Patience::Until(end) => end,
            Patience::Once => at_least,
        };
        let hard = soft.max(at_least) + GRACE;
        loop {
            let now = self.nodes.now();
            let end = if now < soft { soft } else { hard };
            let timers = self.nodes.timers().clone();
            if let Some(verdict) = timers.within(now.until(end), self.decided()).await {
                return verdict;
            }
            if let Some(verdict) = self.last_word(soft, hard) {
                return verdict;
            }
        }
    }

    fn last_word(&self, soft: Moment, hard: Moment) -> Option<Verdict> {
        let now = self.nodes.now();
        if now < soft {
            return None;
        }
        let ask = self.nodes.gates.at(self.name, |gate, _| {
            gate.last_word(&self.ticket, now >= hard)
        });
        ask.0
    }

    /// Drives its own round on, if it has one, until the ticket is decided.
    async fn decided(&mut self) -> Verdict {
        let mut own = matches!(self.arrival, Arrival::First);
        poll_fn(|context| {
            if own && self.flight.poll_unpin(context).is_ready() {
                own = false;
            }
            match self.ticket.poll(context) {
                Poll::Ready(verdict) => Poll::Ready(verdict),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.ticket.end();
        if self.nodes.is_forked() {
            return;
        }
        let (flight, _) = self
            .nodes
            .gates
            .at(self.name, |gate, _| gate.withdraw(&self.ticket));
        if let Some(flight) = flight {
            // What it has under way is seen through, and undone.
            self.nodes.spawn(flight);
        }
        drop(left);
    }
}
