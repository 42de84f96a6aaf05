//! The gate: the local front of one name in one client.
//!
//! 1. One attempt, hold or release of a name is in the [seat](seat::Seat) at a time, so a process sends one command for
//!    a name at a time. Late releases of lost or tainted holds need no seat (I3: only our own field is touched).
//! 2. Behind the seat waits a queue, first come first served. Only the keeper's job serves it (I9: a future that is not
//!    polled delays others for a moment at most).
//! 3. The gate answers "busy" by itself only if it knows: this client has a valid hold, or Redis answered "busy" to
//!    somebody who still waits, the holder's lease has not ended, and the release would have been heard: the channel is
//!    subscribed since before that try, whoever shares the lock publishes, and no message came. While a try is under
//!    way, its answer decides.
//! 4. Nobody waits behind a hold of its own owner. A ticket of that owner is sent to enter the hold, both when it
//!    arrives later and when it waits while the hold is granted.
//! 5. The gate does no I/O, wakes nobody and drops nothing that may run code of others. It changes under a lock, and its
//!    [`Effects`] are carried out afterwards.
//!
//! A hold is *passed on* when the next waiter of this client gets the lock without a command to Redis:
//!
//! 6. The field in Redis stays as it is. The previous hold ends, and a new one with the same hold id and the same validity
//!    takes its seat, so the certain windows of the two do not overlap (I1).
//! 7. A hold is passed on only while nothing about it is uncertain: its acquire was answered, its count in Redis is one,
//!    and two thirds of its lease are left, so no renewal is due. Both levels are under the watchdog, and both kinds allow
//!    it (`KindRules::passes_on`).
//! 8. Whatever Redis says of a field concerns the hold that has it now ([`Gate::current_hold`]).
//! 9. Holds are passed on while the [window](Succession) is open. While it is, a hold that cannot be passed on is handed
//!    over: its release and the next try travel together. Permits are not handed over.
//!
//! `C` is a command in flight.

pub(crate) mod answers;
mod counted;
pub(crate) mod fair;
#[cfg(test)]
mod model_tests;
pub(crate) mod next;
mod readers;
pub(crate) mod seat;
mod shared_hold;
pub(crate) mod succession;
pub(crate) mod ticket;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use self::seat::{Attempt, Seat};
use self::succession::{Succession, Wakeups};
use self::ticket::{CALL_AFTER, Patience, Queue, Ticket, Uncollected, Verdict};
use super::hold::kind::Kind;
use super::hold::owner::OwnerState;
use super::hold::state::{HoldState, Level, Phase};
use super::hold::{Effects, Hold, Rules};
use crate::backend::{Failure, Pending};
use crate::clock::Moment;
use crate::error::Error;
use crate::names::{ByNames, Names};

/// The most waiters of a client that have a place in a queue that Redis keeps; the others wait behind them. Each grant
/// makes Redis walk that queue.
const MOST_PLACES: usize = 64;

/// What is known of the lock from the last answer of Redis.
#[derive(Debug, Clone, Default)]
pub(crate) enum LastAnswer {
    #[default]
    Nothing,
    /// Another client holds it: until then, if its lease ends.
    Busy(Option<Moment>),
    Failed(Failure),
}

pub(crate) struct Gate<C> {
    seat: Seat<C>,
    /// The seats of a counted lock's holds, by their numbers: the gate's seat is for tries only. A hold has its own from its
    /// grant until it is passed on, or its last release is answered, so a release of one hold delays no other.
    own_seats: BTreeMap<u64, Seat<C>>,
    /// The grants that were delivered and may not be collected yet, in the order in which they are taken back.
    uncollected: VecDeque<Uncollected>,
    queue: Queue,
    /// The places of tickets that left the queue, in the one that Redis keeps, until they are given back.
    left_places: Vec<Arc<Hold>>,
    /// Wakes the keeper's job when something changes at the gate. It stores one permit.
    job: Option<Arc<Notify>>,
    last_answer: LastAnswer,
    /// How much of the lock the last busy answer was about.
    busy_for: u32,
    /// The most requests that one try asks for.
    together: u32,
    /// When somebody was last known to have the lock, if `last_answer` does not say so.
    held_at: Moment,
    /// The start of the first of the tries that failed since the last "got it" or "busy".
    failing_since: Option<Moment>,
    wakeups: Wakeups,
    /// Whether the head must try at once: it is new, or the seat was just vacated.
    try_at_once: bool,
    succession: Succession,
    /// When the job looks at the gate next if nobody wakes it.
    job_sleeps_until: Moment,
    /// Boxed: there is a gate for every hold, and few writers wait.
    writer_waits: Option<Box<WriterWaits>>,
    /// Commands that nobody awaits here any more. The drop of a command may run any code, so they are dropped after the
    /// gate's lock is released.
    discarded: Vec<C>,
}

/// The note in Redis that a writer of this client waits.
struct WriterWaits {
    since: Moment,
    kind: Kind,
    /// The command that removes it is under way.
    withdrawn: bool,
}

impl<C> Default for Gate<C> {
    fn default() -> Self {
        Self {
            seat: Seat::Free,
            own_seats: BTreeMap::new(),
            uncollected: VecDeque::new(),
            queue: Queue::default(),
            left_places: Vec::new(),
            job: None,
            last_answer: LastAnswer::Nothing,
            busy_for: 1,
            together: 8,
            held_at: Moment::default(),
            failing_since: None,
            wakeups: Wakeups::default(),
            try_at_once: false,
            succession: Succession::default(),
            job_sleeps_until: Moment::NEVER,
            writer_waits: None,
            discarded: Vec::new(),
        }
    }
}

/// What becomes of an acquire that arrives.
pub(crate) enum Arrival<C> {
    /// It has the seat: the caller sends the first try.
    First(Arc<Hold>, C),
    /// Its join has a place beside the hold in the seat: the caller sends the join.
    Join(Arc<Hold>, C),
    Queued,
    /// The gate knows the answer: the lock is busy, its owner holds it and it can enter, or it has a read of the hold in the
    /// seat.
    Decided(Verdict),
}

impl<C: Clone + PartialEq> Gate<C> {
    /// An acquire arrives. `attempt` makes what is put into a free seat, or a join of the hold that it gets.
    pub(crate) fn arrive(
        &mut self,
        ticket: &Arc<Ticket>,
        effects: &mut Effects,
        attempt: impl FnOnce(Option<&Arc<Hold>>) -> (Arc<Hold>, C),
    ) -> Arrival<C> {
        let now = effects.now;
        if self.may_enter(ticket, now) {
            return Arrival::Decided(Verdict::Again);
        }
        if let Seat::Shared { .. } = &self.seat
            && let Some(read) = self.read_without_asking(ticket, effects)
        {
            return Arrival::Decided(Verdict::Granted(read));
        }
        let is_open = self.seat.is_free() && self.succession.left_until(now).is_none();
        let is_counted = ticket.request.kind.commands.leaves_the_seat();
        let is_full = is_counted && self.is_full_for(ticket, now);
        // The note of an older request here would let this one go before those of others.
        let is_noted = is_counted && self.has_writer_waits();
        if is_open && self.queue.is_empty() && !is_noted && !is_full {
            // All callers that got the last answer are gone (3: "busy" only if somebody still listens).
            self.last_answer = LastAnswer::Nothing;
            self.failing_since = None;
            let (hold, command) = attempt(None);
            self.start_attempt(Arc::clone(&hold), ticket, command.clone(), now);
            return Arrival::First(hold, command);
        }
        if self.seat.may_join() && self.queue.is_empty() && self.may_read(ticket, now) {
            let (hold, command) = attempt(self.seat.held());
            self.start_attempt(Arc::clone(&hold), ticket, command.clone(), now);
            return Arrival::Join(hold, command);
        }
        if ticket.request.patience == Patience::Once {
            if self.knows_busy(ticket, now) {
                return Arrival::Decided(Verdict::Busy(None));
            }
            self.recheck_busy(now);
        }
        // The tickets ahead may be of kinds that only poll. The job listens from the first ticket on whose kind does.
        let first_to_listen = ticket.listens() && !self.queue.has_listeners();
        let gets_place = ticket.may_have_place() && self.queue.len() < MOST_PLACES;
        if self.queue.is_empty() || first_to_listen || gets_place {
            self.notify_job();
        }
        // If only the note of another request kept it from trying, the job tries at once.
        self.try_at_once |= is_open && self.queue.is_empty() && !is_full;
        self.queue.insert(Arc::clone(ticket));
        self.recheck_head(now);
        if self.calls() {
            // It is polled, so it may be the first to come.
            ticket.call(effects);
        }
        Arrival::Queued
    }

    pub(crate) fn head(&self) -> Option<Arc<Ticket>> {
        self.queue.head().cloned()
    }

    /// Whether `ticket` can enter the hold in the seat (4: nobody waits behind its own owner).
    fn may_enter(&self, ticket: &Ticket, now: Moment) -> bool {
        let request = &ticket.request;
        if let Seat::Shared { .. } = &self.seat {
            let owner = request.owner.as_ref();
            return owner.is_some_and(|owner| owner.has(&request.kind.names, now));
        }
        let held = self.seat.held().filter(|hold| now < hold.valid_until());
        let asks = request.owner_number();
        held.is_some_and(|hold| asks.is_some() && hold.owner == asks)
    }

    /// Puts an attempt into the free seat, or a join beside the shared hold in it.
    fn start_attempt(&mut self, hold: Arc<Hold>, ticket: &Arc<Ticket>, command: C, now: Moment) {
        let attempt = Attempt::new(hold, Arc::clone(ticket), command, now);
        match &mut self.seat {
            Seat::Shared { join, .. } => *join = Some(attempt),
            seat => *seat = Seat::Trying(attempt),
        }
    }

    /// The caller of `ticket` is gone. Returns a grant that it did not collect, to be given back.
    pub(crate) fn withdraw(
        &mut self,
        ticket: &Arc<Ticket>,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let uncollected = ticket.close();
        let concerns_job =
            self.seat.is_trying_for(ticket) || self.is_head(ticket) || self.has_writer_waits();
        if self.queue.remove(ticket.number).is_some() && concerns_job {
            self.try_at_once = true;
        }
        if concerns_job {
            // The job serves the next head, or completes the attempt.
            self.notify_job();
            // All callers that got this answer and listen for the release are gone (3).
            self.forget_busy(effects.now);
        }
        self.abandon(ticket, effects);
        uncollected
    }

    /// Decides a ticket that does not get the lock now.
    fn conclude(&mut self, ticket: &Arc<Ticket>, verdict: Verdict, effects: &mut Effects) {
        ticket.decide(verdict, effects);
        self.abandon(ticket, effects);
    }

    /// Gives a waiting ticket its grant. While a job runs, the job sees to it that the grant is collected.
    fn deliver(&mut self, ticket: &Arc<Ticket>, hold: Arc<Hold>, effects: &mut Effects) {
        if self.job.is_some() {
            self.expect_collection(ticket, effects);
        }
        ticket.decide(Verdict::Granted(hold), effects);
    }

    /// `owner` has `hold` now, so its waiting tickets are sent to enter it.
    fn owner_holds(
        &mut self,
        owner: Option<&Arc<OwnerState>>,
        hold: &Arc<Hold>,
        effects: &mut Effects,
    ) {
        let Some(owner) = owner else {
            return;
        };
        owner.insert(hold);
        while let Some(ticket) = self.queue.take_of(owner.number) {
            self.conclude(&ticket, Verdict::Again, effects);
        }
    }

    /// Gives up an attempt of `ticket` that nobody will repeat. One in flight is given up when it is answered.
    fn abandon(&mut self, ticket: &Arc<Ticket>, effects: &mut Effects) {
        if !self.seat.is_trying_for(ticket)
            && let Some(hold) = ticket.take_unsettled()
        {
            effects.change(&hold, HoldState::give_up);
            effects.release(&hold);
            self.leaves_place(&hold);
            // The first ticket without a place may have this one's.
            if ticket.may_have_place() && self.queue.len() >= MOST_PLACES {
                self.notify_job();
            }
        }
    }

    /// Messages came on the channel. Returns how many are not the echo of our own releases.
    pub(crate) fn received(&mut self, messages: u32, now: Moment) -> u32 {
        let news = self.wakeups.news(messages);
        if news > 0 {
            self.forget_busy(now);
            self.heard_beside_try();
            self.succession.heard_release(now);
        }
        news
    }

    /// A message came, or messages come from now on. A try for a counted lock that is under way may have run before: its
    /// "busy" may be old.
    fn heard_beside_try(&mut self) {
        let attempt = self.seat.attempt();
        if attempt.is_some_and(|attempt| attempt.hold.kind.commands.leaves_the_seat()) {
            self.seat.is_early();
        }
    }

    /// Whether messages of the channel arrive from now on.
    pub(crate) fn set_listening(&mut self, live: bool) {
        self.wakeups.set_listening(live);
        self.heard_beside_try();
    }

    pub(crate) fn channel_added(&mut self) {
        self.wakeups.channel_added();
    }

    /// Whether the next place in a queue that Redis keeps is of this client.
    pub(crate) fn set_next_is_ours(&mut self, ours: bool) {
        self.wakeups.set_next_is_ours(ours);
    }

    /// Ends everybody's wait.
    pub(crate) fn close(&mut self, effects: &mut Effects) {
        for ticket in self.queue.take_if(|_| true) {
            self.conclude(&ticket, Verdict::failed(Error::Closed), effects);
        }
        let tried = self
            .seat
            .attempt()
            .map(|attempt| Arc::clone(&attempt.ticket));
        if let Some(ticket) = tried {
            self.conclude(&ticket, Verdict::failed(Error::Closed), effects);
        }
        self.leave_abandoned_reads(effects);
        self.notify_job();
    }

    /// Frees the seat of a hold that is lost, or left to its lease; the next one here may try.
    pub(crate) fn vacate(&mut self, hold: &Arc<Hold>) {
        if let Seat::Shared { .. } = &self.seat {
            self.requeue_join(hold);
        }
        let is_vacated = self.own_seats.remove(&hold.number).is_some() || self.seat.vacate(hold);
        let is_counted = hold.kind.commands.leaves_the_seat();
        if is_counted {
            // The try that is under way may have run before. An attempt whose answer was lost has no seat, but may have had
            // permits.
            self.seat.is_early();
        } else if !is_vacated {
            return;
        }
        let next = self.seat.attempt().filter(|_| !is_counted);
        let next = next.map(|next| next.ticket.number);
        self.try_at_once = next.is_none();
        if let Some(number) = next {
            self.queue.remove(number);
        }
        if self.own_seats.is_empty() {
            // Nothing is left to be collected.
            self.uncollected.clear();
        }
        self.last_answer = LastAnswer::Nothing;
        self.notify_job();
    }

    /// The command of the try for `ticket` that is under way, and when it began.
    pub(crate) fn try_for(&self, ticket: &Arc<Ticket>) -> Option<(&C, Moment)> {
        let tries = self.seat.tries().filter(|attempt| attempt.is_for(ticket));
        tries.map(|attempt| (&attempt.command, attempt.since))
    }

    /// The try of `command` counts from `moment` on. That it waited in this process before is not the server's silence.
    pub(crate) fn counts_from(&mut self, command: &C, moment: Moment) {
        if let Some(attempt) = self.seat.attempt_by(command) {
            attempt.since = attempt.since.max(moment);
        }
    }

    fn is_head(&self, ticket: &Ticket) -> bool {
        let head = self.queue.head();
        head.is_some_and(|head| head.number == ticket.number)
    }

    pub(crate) fn is_queued(&self, ticket: &Ticket) -> bool {
        self.queue.contains(ticket.number)
    }

    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(crate) fn has_writer_waits(&self) -> bool {
        self.writer_waits.is_some()
    }

    /// The hold in the seat that others wait behind.
    pub(crate) fn watched(&self) -> Option<&Arc<Hold>> {
        self.seat.held().filter(|_| self.has_queue())
    }

    /// Whether messages are to wake a waiter.
    pub(crate) fn has_listeners(&self) -> bool {
        self.queue.has_listeners()
    }

    /// The last answer about others' holds, by which the next try is planned. Nothing while this client's own hold is
    /// watched: the refusal of a join says nothing of that hold.
    pub(crate) fn last_answer(&self, now: Moment) -> &LastAnswer {
        let watches = match &self.seat {
            Seat::Held { .. } => true,
            Seat::Shared { .. } => !self.head_may_read(now),
            _ => false,
        };
        if watches {
            &LastAnswer::Nothing
        } else {
            &self.last_answer
        }
    }

    /// The attempts and the holds of this client: what is in a seat, the try sent along with a release, and those that a
    /// try is for beside the first.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        let others = self.seat.commands().map(|(hold, _)| hold);
        let occupant = self.seat.occupant();
        let others =
            others.filter(move |hold| occupant.is_none_or(|occupant| !Arc::ptr_eq(hold, occupant)));
        let own = self.own_seats.values().filter_map(Seat::occupant);
        let beside = self.seat.tries().map_or(&[][..], |tried| &tried.beside);
        let beside = beside.iter().map(|(_, hold)| hold);
        occupant.into_iter().chain(others).chain(own).chain(beside)
    }

    /// How many holds callers have: reads, where callers get those.
    pub(crate) fn count_holds(&self) -> usize {
        let own = match &self.seat {
            Seat::Held { hold } => Some(hold),
            _ => None,
        };
        let permits = self.own_seats.values().filter_map(Seat::occupant);
        let held = |hold: &&Arc<Hold>| hold.phase() == Phase::Held && !hold.is_abandoned;
        self.reads().chain(own).chain(permits).filter(held).count()
    }

    pub(crate) fn count_waiters(&self) -> usize {
        let attempt = self.seat.attempt();
        let tried = attempt.is_some_and(|attempt| attempt.ticket.is_waiting());
        self.queue.len() + usize::from(tried)
    }

    /// The hold, or attempt, of that hold id.
    pub(crate) fn hold(&self, id: &str) -> Option<&Arc<Hold>> {
        self.holds().find(|hold| &*hold.id == id)
    }

    /// The command of `hold`'s last release, while it is in flight.
    pub(crate) fn release_of(&self, hold: &Arc<Hold>) -> Option<C> {
        self.seat_of(hold).release_of(hold)?.0.cloned()
    }

    /// The commands in flight.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &C> {
        let commands = self.seats().flat_map(Seat::commands);
        commands.map(|(_, command)| command)
    }

    /// Whether something is under way that must be completed before the client ends.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.seats().any(Seat::is_in_flight) || self.has_writer_waits()
    }

    /// Whether a task has waited for a while for a lock that it holds itself. Reports each ticket once.
    pub(crate) fn report_self_wait(&self, now: Moment) -> bool {
        let own = match &self.seat {
            Seat::Held { hold } => Some(hold.task()),
            // A shared hold outlives the read of the task that asked for it, so only its reads count.
            _ => None,
        };
        let reads = self.reads().map(|read| read.task());
        let tasks: HashSet<_> = reads.chain(own).collect();
        let mut waiters = self.queue.iter();
        waiters.any(|ticket| tasks.contains(&ticket.task) && ticket.report_self_wait(now))
    }

    /// Whether a job has to be started: somebody waits, nobody completes an attempt, or the lock is left to others, which
    /// the gate must not forget.
    pub(crate) fn start_job(&mut self) -> bool {
        let attempt = self.seat.attempt();
        let left = attempt.is_some_and(|attempt| attempt.overdue || !attempt.ticket.is_waiting());
        let waits = !self.queue.is_empty() || self.succession.left.is_some();
        let start = self.job.is_none() && (left || waits);
        if start {
            self.job = Some(Arc::default());
        }
        start
    }

    /// Wakes the job, if there is one.
    pub(crate) fn job(&self) -> Option<Arc<Notify>> {
        self.job.clone()
    }

    /// When the job looks at the gate next if nobody wakes it.
    pub(crate) fn job_sleeps_until(&mut self, moment: Moment) {
        self.job_sleeps_until = moment;
    }

    fn notify_job(&self) {
        if let Some(job) = &self.job {
            job.notify_one();
        }
    }

    fn is_unused(&self) -> bool {
        let free = self.seat.is_free() && self.own_seats.is_empty();
        let at_rest = free && self.queue.is_empty();
        at_rest && self.job.is_none() && !self.has_writer_waits()
    }
}

/// Passing a hold on, and handing it over.
impl<C: Clone + PartialEq> Gate<C> {
    /// Passes `hold`, which has the seat and no level any more, on to the head of the queue. Returns whether it did: then
    /// `hold` has ended.
    fn pass_on(&mut self, hold: &Arc<Hold>, effects: &mut Effects) -> bool {
        let (now, rules) = (effects.now, effects.rules);
        let Some(ticket) = self.next_holder(hold, now, rules) else {
            return false;
        };
        let Some(state) = effects.change(hold, |state| state.pass_on(rules.watchdog_lease, now))
        else {
            return false;
        };
        let request = &ticket.request;
        let next = Hold::begun(ticket.origin(&hold.id), state);
        effects.begins(&next);
        self.queue.remove(ticket.number);
        self.failing_since = None;
        if request.kind.commands.leaves_the_seat() {
            self.own_seats.remove(&hold.number);
            self.give_own_seat(&next);
            self.recheck_head(now);
        } else {
            self.last_answer = LastAnswer::Nothing;
            let hold = Arc::clone(&next);
            self.seat = Seat::Held { hold };
            self.owner_holds(request.owner.as_ref(), &next, effects);
            self.conclude_late(effects);
        }
        effects.look(&next);
        self.deliver(&ticket, next, effects);
        if self.job_sleeps_until > now + CALL_AFTER {
            // The job would wake too late if the grant is not collected.
            self.notify_job();
        }
        true
    }

    /// The ticket that `hold` may be passed on to (7).
    fn next_holder(&self, hold: &Arc<Hold>, now: Moment, rules: Rules) -> Option<Arc<Ticket>> {
        let head = self.queue.head().filter(|_| rules.passes_on)?;
        let request = &head.request;
        let (from, to) = (&hold.kind.commands, &request.kind.commands);
        let kinds = from.rules().passes_on && to.rules().passes_on && from.wants() == to.wants();
        let watched = request.level == Level::Watchdog;
        // An attempt that is not settled may still get the lock, and only a try of its own releases that.
        let wants = head.is_waiting() && !head.is_over(now) && head.unsettled().is_none();
        (kinds && !hold.has_token() && watched && wants).then(|| Arc::clone(head))
    }

    /// The hold that has the field of `hold` now (8).
    pub(crate) fn current_hold(&self, hold: &Arc<Hold>) -> Arc<Hold> {
        if self.own_seats.contains_key(&hold.number) {
            return Arc::clone(hold);
        }
        let mut held = self.seats().filter_map(Seat::held);
        Arc::clone(held.find(|held| held.id == hold.id).unwrap_or(hold))
    }

    /// A last release of `hold` is sent, and its message comes back where all clients listen to one channel. In a queue
    /// that Redis keeps, the message is for the next waiter alone, and the client that gets it has to try.
    /// Each message about permits is news, also our own: it may have run behind a try of this client.
    pub(crate) fn expect_echo(&mut self, hold: &Hold) {
        if !hold.kind.has_queue() && !hold.kind.commands.leaves_the_seat() {
            self.wakeups.expect_echo(hold.number);
        }
    }
}

type Shard = Mutex<ByNames<Box<Gate<Pending>>>>;

/// All gates of a client, by name. A gate exists for as long as it is used.
pub(crate) struct Gates {
    shards: Box<[Shard]>,
}

/// Enough that two names rarely share a mutex.
const SHARDS: u64 = 32;

/// The room for gates that each shard keeps once it had it.
const LEAST: usize = 64;

/// Gives memory back when far fewer gates are left than there were. Each time takes as long as the removals before it.
fn shrink(gates: &mut ByNames<Box<Gate<Pending>>>) {
    if gates.len() < gates.capacity() / 8 && gates.capacity() > LEAST {
        gates.shrink_to(gates.len() * 2);
    }
}

impl Gates {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, names: &Names) -> &Shard {
        // The map takes the low bits.
        let shard = usize::try_from((names.hash_code() >> 32) % SHARDS).unwrap_or(0);
        &self.shards[shard]
    }

    /// Lets `change` act on the gate of `names`.
    pub(crate) fn with<R>(
        &self,
        names: &Arc<Names>,
        change: impl FnOnce(&mut Gate<Pending>) -> R,
    ) -> R {
        // Declared before the lock, so it is dropped after it.
        let _discarded;
        let mut gates = self.shard(names).lock();
        if let Some(gate) = gates.get_mut(names) {
            let result = change(gate);
            _discarded = std::mem::take(&mut gate.discarded);
            if gate.is_unused() {
                gates.remove(names);
                shrink(&mut gates);
            }
            return result;
        }
        let mut gate = Gate::default();
        let result = change(&mut gate);
        if !gate.is_unused() {
            gates.insert(Arc::clone(names), Box::new(gate));
        }
        result
    }

    /// The gate's copy of these names, so that waiters with handles of their own share one copy.
    pub(crate) fn known(&self, names: Arc<Names>) -> Arc<Names> {
        let gates = self.shard(&names).lock();
        let known = gates.get_key_value(&names).map(|(known, _)| known);
        known.map_or(names, Arc::clone)
    }

    /// The names that have a gate now.
    pub(crate) fn names(&self) -> Vec<Arc<Names>> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.lock().keys().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Lets `look` see every gate there is.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&Gate<Pending>)) {
        for shard in &self.shards {
            shard.lock().values().for_each(|gate| look(gate));
        }
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
