//! The gate: the local front of one name in one client.
//!
//! 1. One of {an attempt, a hold, a release} of a name is in the seat at a time, so that a process asks
//!    Redis for a name with one voice. Late releases of lost or tainted holds are apart: they can touch
//!    nothing but their own field.
//! 2. Behind the seat waits a queue, first come first served. Only the keeper's job serves it, so no
//!    caller that is not polled holds anybody up.
//! 3. Busy is said only on knowledge: a hold of this client that is valid, or a head whose last answer
//!    was busy.
//! 4. The gate does no I/O and no waking: it is changed under a lock, and wakes are done afterwards.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::hold::Hold;
use super::queue::Queue;
use super::state::Phase;
use super::ticket::{Patience, Ticket, Verdict, Wakes};
use super::wakeups::Wakeups;
use crate::backend::{Failure, Pending};
use crate::clock::Moment;
use crate::error::Error;

/// What is known of the lock from its last answer.
#[derive(Debug, Clone, Default)]
pub(crate) enum Known {
    #[default]
    Nothing,
    /// Held by a stranger; when its lease ends, if it does.
    Busy(Option<Moment>),
    Failed(Failure),
}

/// What occupies the name.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) hold: Arc<Hold>,
    /// Whose attempt it is, while it is one.
    pub(crate) ticket: Option<Arc<Ticket>>,
    /// The command in flight: of an attempt or of a last release.
    pub(crate) pending: Option<Pending>,
    /// When the command was started.
    pub(crate) since: Moment,
    /// The last release is left to the job, which sends the next try along with it.
    hands_over: bool,
}

/// After so many holds in a row that were handed over, the lock is free for a moment: those who poll
/// without a subscription get a chance, too.
const IN_A_ROW: u32 = 8;

/// The keeper's job for a name, as the gate sees it.
#[derive(Default)]
pub(crate) struct Job {
    /// Told when something changed at the gate; a permit is kept.
    pub(crate) changed: Notify,
}

#[derive(Default)]
pub(crate) struct Gate {
    seat: Option<Seat>,
    queue: Queue,
    job: Option<Arc<Job>>,
    pub(crate) known: Known,
    /// Since when there is no clean answer (got it, or busy): the start of the first try that failed.
    failing_since: Option<Moment>,
    /// A grant that its caller did not collect yet, and since when.
    granted: Option<(Arc<Ticket>, Moment)>,
    pub(crate) wakeups: Wakeups,
    /// Whether the head must try at once: it is new, or the seat was just given up.
    prompt: bool,
    /// How many holds in a row were handed over.
    handed_over: u32,
}

/// Where an acquire finds itself.
pub(crate) enum Entered {
    /// In the seat: the caller sends the first try.
    First(Arc<Hold>, Pending),
    Queued,
    Busy,
}

/// What the keeper's job has to do next.
pub(crate) enum Step {
    /// See the command in the seat through.
    Finish(Seat),
    /// Somebody else sees the release in the seat through.
    AwaitRelease,
    /// Send the last release, and right behind it the try for the head of the queue.
    HandOver {
        hold: Arc<Hold>,
        head: Option<Arc<Ticket>>,
    },
    /// Watch over our own hold: others wait behind it, or its grant is not collected.
    Watch {
        hold: Arc<Hold>,
        uncollected: Option<(Arc<Ticket>, Moment)>,
    },
    /// Get the lock for the head of the queue; at once when `prompt`. When that is because of a release of
    /// ours: how many other clients heard it.
    Serve {
        head: Arc<Ticket>,
        prompt: bool,
        released: Option<u32>,
    },
    /// Nobody waits.
    Idle,
}

impl Gate {
    /// An acquire arrives. `attempt` makes what is put into a free seat.
    pub(crate) fn enter(
        &mut self,
        ticket: &Arc<Ticket>,
        now: Moment,
        attempt: impl FnOnce() -> (Arc<Hold>, Pending),
    ) -> Entered {
        if self.seat.is_none() && self.queue.is_empty() {
            let (hold, pending) = attempt();
            self.sit(Arc::clone(&hold), ticket, pending.clone(), now);
            return Entered::First(hold, pending);
        }
        if ticket.request.patience == Patience::Once && self.knows_busy(now) {
            return Entered::Busy;
        }
        self.queue.insert(ticket);
        Entered::Queued
    }

    /// Takes the seat for an attempt.
    pub(crate) fn sit(
        &mut self,
        hold: Arc<Hold>,
        ticket: &Arc<Ticket>,
        pending: Pending,
        now: Moment,
    ) {
        self.seat = Some(Seat {
            hold,
            ticket: Some(Arc::clone(ticket)),
            pending: Some(pending),
            since: now,
            hands_over: false,
        });
    }

    /// By arrival: a head that tried in vain goes back to the front.
    pub(crate) fn enqueue(&mut self, ticket: &Arc<Ticket>) {
        self.queue.insert(ticket);
    }

    /// Takes `ticket` out of the queue.
    pub(crate) fn leave(&mut self, ticket: &Ticket) -> bool {
        let was_head = self
            .queue
            .head()
            .is_some_and(|head| head.number == ticket.number);
        let left = self.queue.remove(ticket);
        if left && was_head {
            self.prompt = true;
            self.tell_job();
        }
        left
    }

    fn knows_busy(&self, now: Moment) -> bool {
        match &self.seat {
            Some(seat) if now < seat.hold.valid_until() => true,
            Some(seat) if seat.ticket.is_none() => false,
            _ => matches!(self.known, Known::Busy(_)),
        }
    }

    /// Whether `hold` is the attempt in the seat.
    pub(crate) fn is_trying(&self, hold: &Arc<Hold>) -> bool {
        self.seat
            .as_ref()
            .is_some_and(|seat| seat.ticket.is_some() && Arc::ptr_eq(&seat.hold, hold))
    }

    /// The attempt in the seat, if it is this ticket's.
    pub(crate) fn trying_by(&self, ticket: &Arc<Ticket>) -> Option<Arc<Hold>> {
        let seat = self.seat.as_ref()?;
        let trying = seat.ticket.as_ref()?;
        Arc::ptr_eq(trying, ticket).then(|| Arc::clone(&seat.hold))
    }

    pub(crate) fn is_queued(&self, ticket: &Ticket) -> bool {
        self.queue.contains(ticket)
    }

    /// The next head has not tried yet.
    pub(crate) fn head_is_new(&mut self) {
        self.prompt = true;
    }

    /// Takes the head out of the queue to try for it, if the seat is free.
    pub(crate) fn call_up(&mut self, head: &Ticket) -> bool {
        self.seat.is_none() && self.queue.remove(head)
    }

    fn has(&self, hold: &Arc<Hold>) -> bool {
        self.seat
            .as_ref()
            .is_some_and(|seat| Arc::ptr_eq(&seat.hold, hold))
    }

    /// The command of `hold` that is in flight, if it has the seat.
    pub(crate) fn command_of(&self, hold: &Arc<Hold>) -> Option<Pending> {
        self.command().filter(|_| self.has(hold))
    }

    /// The hold, or attempt, in the seat.
    pub(crate) fn occupant(&self) -> Option<Arc<Hold>> {
        self.seat.as_ref().map(|seat| Arc::clone(&seat.hold))
    }

    /// The command in flight, if there is one.
    pub(crate) fn command(&self) -> Option<Pending> {
        self.seat.as_ref()?.pending.clone()
    }

    /// The attempt in the seat became a hold.
    pub(crate) fn keep(&mut self, hold: &Arc<Hold>, now: Moment) {
        self.seat = Some(Seat {
            hold: Arc::clone(hold),
            ticket: None,
            pending: None,
            since: now,
            hands_over: false,
        });
        self.known = Known::Nothing;
    }

    /// Notes a grant, to take it back if it is not collected while a job runs.
    pub(crate) fn granted(&mut self, ticket: &Arc<Ticket>, now: Moment) {
        self.failing_since = None;
        if self.job.is_some() {
            self.granted = Some((Arc::clone(ticket), now));
        }
    }

    /// The attempt in the seat is over, for now.
    pub(crate) fn stand(&mut self, known: Known, now: Moment) {
        let seat = self.seat.take();
        self.prompt = false;
        match known {
            Known::Failed(failure) => self.fails(failure, seat.map_or(now, |seat| seat.since)),
            known => {
                self.failing_since = None;
                self.known = known;
            }
        }
    }

    /// The try that began at `since` gave no clean answer.
    pub(crate) fn fails(&mut self, failure: Failure, since: Moment) {
        self.failing_since.get_or_insert(since);
        self.known = Known::Failed(failure);
    }

    /// Frees the seat if `hold` has it, and lets the head try at once.
    pub(crate) fn vacate(&mut self, hold: &Arc<Hold>) {
        if self.has(hold) {
            self.seat = None;
            self.known = Known::Nothing;
            self.prompt = true;
            self.tell_job();
        }
    }

    /// The last release of `hold` is decided; `pending` when its caller sends it.
    pub(crate) fn release(&mut self, hold: &Arc<Hold>, pending: Option<Pending>, now: Moment) {
        if let Some(seat) = &mut self.seat
            && Arc::ptr_eq(&seat.hold, hold)
        {
            if !std::mem::take(&mut seat.hands_over) {
                self.handed_over = 0;
            }
            seat.pending = pending;
            seat.since = now;
            self.tell_job();
        }
    }

    /// The last release of `hold` is decided. Whether the job sends it, since others wait here and nobody
    /// elsewhere: it gets the lock for the next one in the same round trip.
    pub(crate) fn hand_over(&mut self, hold: &Arc<Hold>, now: Moment) -> bool {
        let wanted = self.job.is_some() && !self.queue.is_empty();
        let fair = self.wakeups.are_ours_alone() && self.handed_over < IN_A_ROW;
        let Some(seat) = &mut self.seat else {
            return false;
        };
        if !(wanted && fair && Arc::ptr_eq(&seat.hold, hold)) {
            return false;
        }
        seat.hands_over = true;
        seat.since = now;
        self.handed_over += 1;
        self.tell_job();
        true
    }

    /// Puts a try that was sent along with a release into the free seat.
    pub(crate) fn follow(
        &mut self,
        hold: &Arc<Hold>,
        ticket: &Arc<Ticket>,
        pending: &Pending,
        since: Moment,
    ) -> bool {
        let free = self.seat.is_none();
        if free {
            self.queue.remove(ticket);
            self.prompt = false;
            self.wakeups.take_released();
            self.sit(Arc::clone(hold), ticket, pending.clone(), since);
        }
        free
    }

    /// Answers those in the queue that a hold of this client, or a busy answer, decides.
    pub(crate) fn tell_busy(&mut self, now: Moment, wakes: &mut Wakes) {
        self.queue
            .remove_bounded(|ticket| ticket.is_over(now) && ticket.decide(Verdict::Busy, wakes));
    }

    /// Sends those in the queue that belong to the hold's owner in again: they can enter now.
    pub(crate) fn admit_owner(&mut self, winner: &Ticket, wakes: &mut Wakes) {
        let Some(owner) = &winner.request.owner else {
            return;
        };
        self.queue.remove_owned(|ticket| {
            let same = ticket
                .request
                .owner
                .as_ref()
                .is_some_and(|o| Arc::ptr_eq(o, owner));
            same && ticket.decide(Verdict::Again, wakes)
        });
    }

    /// Gives up for those who would wait for ever, when no clean answer came for `patience`.
    pub(crate) fn give_up(&mut self, now: Moment, patience: Duration, wakes: &mut Wakes) {
        let Known::Failed(failure) = &self.known else {
            return;
        };
        let error = Error::from(failure.clone());
        let failing_since = self.failing_since.unwrap_or(now);
        self.queue.remove_if(|ticket| {
            let since = ticket.request.since.max(failing_since);
            let over = ticket.request.patience == Patience::Forever && since.until(now) >= patience;
            over && ticket.decide(Verdict::failed(error.clone()), wakes)
        });
    }

    /// Ends everybody's wait.
    pub(crate) fn close(&mut self, wakes: &mut Wakes) {
        self.queue.remove_if(|ticket| {
            ticket.decide(Verdict::failed(Error::Closed), wakes);
            true
        });
        if let Some(ticket) = self.seat.as_ref().and_then(|seat| seat.ticket.as_ref()) {
            ticket.decide(Verdict::failed(Error::Closed), wakes);
        }
        self.tell_job();
    }

    /// What one whose wait is over hears: the last error, or busy.
    pub(crate) fn last_word(&self, now: Moment) -> Option<Verdict> {
        if self.knows_busy(now) {
            return Some(Verdict::Busy);
        }
        match &self.known {
            Known::Nothing => None,
            Known::Busy(_) => Some(Verdict::Busy),
            Known::Failed(failure) => Some(Verdict::failed(failure.clone())),
        }
    }

    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a task waits that holds the name itself, for long enough, and was not told of before.
    pub(crate) fn waits_for_itself(&self, now: Moment) -> bool {
        let seat = self.seat.as_ref().filter(|seat| seat.ticket.is_none());
        let task = seat.and_then(|seat| seat.hold.task);
        task.is_some() && self.queue.any(|ticket| ticket.told_of_itself(task, now))
    }

    /// The hold in the seat, if it is one of this client's with that number.
    pub(crate) fn hold(&self, number: u64) -> Option<Arc<Hold>> {
        let seat = self.seat.as_ref()?;
        (seat.hold.number == number).then(|| Arc::clone(&seat.hold))
    }

    /// Whether a job has to be started for this gate; its half of it, if so.
    pub(crate) fn wants_job(&mut self, needed: bool) -> bool {
        if self.job.is_some() {
            self.tell_job();
            return false;
        }
        let start = needed || !self.queue.is_empty();
        if start {
            self.job = Some(Arc::default());
        }
        start
    }

    pub(crate) fn job(&self) -> Option<Arc<Job>> {
        self.job.clone()
    }

    pub(crate) fn tell_job(&self) {
        if let Some(job) = &self.job {
            job.changed.notify_one();
        }
    }

    /// The job ends, unless somebody came meanwhile.
    pub(crate) fn end_job(&mut self) -> bool {
        let idle = self.queue.is_empty() && !self.needs_finishing() && self.granted.is_none();
        if idle {
            self.job = None;
            self.wakeups.listening(false);
        }
        idle
    }

    fn needs_finishing(&self) -> bool {
        let seat = self.seat.as_ref();
        seat.is_some_and(|seat| seat.ticket.is_some() || seat.hands_over)
    }

    /// What the job has to do next.
    pub(crate) fn step(&mut self, now: Moment, wakes: &mut Wakes) -> Step {
        self.granted.take_if(|(ticket, _)| !ticket.is_decided());
        match &self.seat {
            Some(seat) if seat.hands_over => Step::HandOver {
                hold: Arc::clone(&seat.hold),
                head: self.queue.head().cloned(),
            },
            Some(seat) if seat.pending.is_some() => Step::Finish(seat.clone()),
            Some(seat) if seat.hold.with(|state| state.phase) == Phase::Ending => {
                if self.queue.is_empty() {
                    Step::Idle
                } else {
                    Step::AwaitRelease
                }
            }
            Some(seat) if !self.queue.is_empty() || self.granted.is_some() => Step::Watch {
                hold: Arc::clone(&seat.hold),
                uncollected: self.granted.clone(),
            },
            Some(_) => Step::Idle,
            None => self.next_in_line(now, wakes),
        }
    }

    fn next_in_line(&mut self, now: Moment, wakes: &mut Wakes) -> Step {
        while let Some(head) = self.queue.head().map(Arc::clone) {
            let late = matches!(head.request.patience, Patience::Until(end) if now >= end);
            if let Some(word) = self.last_word(now).filter(|_| late) {
                // Its caller would say so itself, if anybody polled it.
                head.decide(word, wakes);
            }
            if head.is_waiting() {
                return Step::Serve {
                    head,
                    prompt: std::mem::take(&mut self.prompt),
                    released: self.wakeups.take_released(),
                };
            }
            self.queue.remove(&head);
            self.prompt = true;
        }
        Step::Idle
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.seat.is_none() && self.queue.is_empty() && self.job.is_none()
    }
}
