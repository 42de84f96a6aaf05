//! The keeper's job for one name that somebody waits for, or whose attempt a caller abandoned.
//!
//! For the head of the queue, the job subscribes, waits for the confirmation, and tries. Then it sleeps until the first
//! of a wake-up, the end of the holder's lease, and the poll, and tries again. No wake-up is lost (I5: a free lock and a
//! live waiter lead to an acquire): a wake-up is a permit, which is consumed before the try. Without a subscription only
//! the poll is left. A kind may have a backoff of its own: its waiters need no subscription, and while one of them is the
//! head, tries come at its pace.
//!
//! While this client has the lock and others of it wait, the job verifies the hold at each poll, and at each wake-up that
//! is not the echo of our own release, because somebody may have released it by force.
//!
//! While a writer waits for a shared lock, the job leaves a note in Redis, so that other clients let no reader in for a
//! while. It lasts for 3 s. Tries that find the lock busy leave one, and in between the job leaves it again every
//! [`NOTE_AGAIN`], also while this client's own hold is shared. Readers heed the notes of all clients for the watchdog's
//! lease from the first one on, then none for a third of it, over and over: some clients may not heed notes, and those
//! that do must not wait for ever.
//!
//! The note of a request for permits is left once the request has waited for [`OLD`], and then every [`NOTE_AGAIN`], for the
//! head of the queue: younger requests of other clients leave it as many permits as it asks for. A note that is still there
//! for an earlier head is replaced within [`OLD`], and before the next try. It is removed by a grant of Redis, or when nobody
//! waits here any more.
//!
//! The gate decides what is next ([`steps`](crate::engine::gate::next)). Each step awaits something or changes the gate.

mod fair;
mod latch;
mod listening;
mod policy;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::fair::{QueuePlaces, give_places_back};
pub(super) use self::latch::watch_latch;
use self::listening::{ChannelNews, LINGER, Listening};
use self::policy::WaitPolicy;
use crate::backend::{CommandResult, Failure, Pending};
use crate::clock::Moment;
use crate::engine::caller::acquire::{new_hold, start_join, untried_hold};
use crate::engine::caller::release;
use crate::engine::core::{Core, settle_attempt, settle_release};
use crate::engine::gate::answers::SentAs;
use crate::engine::gate::next::Step;
use crate::engine::gate::ticket::{Patience, Ticket};
use crate::engine::gate::{Gate, LastAnswer};
use crate::engine::hold::Hold;
use crate::engine::hold::kind::{Kind, Try};
use crate::engine::keeper::Keeper;
use crate::host::own;
use crate::lease::LeaseMs;
use crate::log::log;
use crate::names::Names;
use crate::script::Reply;

/// For how many waiters with a place in a queue of Redis' the job listens: for the next, and the one behind it.
const LISTENS_FOR: usize = 2;

/// How often the job looks for a task that waits for itself.
const SELF_CHECK: Duration = Duration::from_secs(1);

/// How often the note is left again that a writer waits.
const NOTE_AGAIN: Duration = Duration::from_secs(1);

/// From when on a request for permits precedes younger ones of other clients: its note is left then.
const OLD: Duration = Duration::from_millis(100);

pub(super) async fn serve(keeper: Arc<Keeper>, names: Arc<Names>) {
    let Some(job) = keeper.core.gates.with(&names, |gate| gate.job()) else {
        return;
    };
    let has_redis_queue = names.has_redis_queue();
    let mut job = NameJob {
        policy: WaitPolicy::new(keeper.core.config.backoff, fastrand::u64(..)),
        listening: Listening::new(&keeper, &names),
        places: has_redis_queue.then(|| QueuePlaces::new(fastrand::u64(..))),
        keeper,
        names,
        job,
        note_at: Moment::default(),
        note_left: Moment::default(),
        left: None,
        noted: 0,
        self_check_at: Moment::default(),
    };
    while job.advance().await {}
}

/// Why a job stops waiting.
enum Event {
    /// It is time to try, or to verify: somebody else released, or the poll came.
    Due,
    /// Messages for the next waiter arrive from now on. That is a reason to try, and none to verify our own hold: it comes
    /// with each waiter.
    Subscribed,
    /// It is only time to ask the gate again, which may have changed.
    Nothing,
}

struct NameJob {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
    job: Arc<Notify>,
    listening: Listening,
    /// The places of this client's waiters, if Redis keeps a queue.
    places: Option<QueuePlaces>,
    policy: WaitPolicy,
    /// When to leave the note again that a request waits.
    note_at: Moment,
    note_left: Moment,
    /// The note that was left last.
    left: Option<(Kind, Pending)>,
    /// The number of the ticket whose request for permits the note is about.
    noted: u64,
    /// When to look again for a task that waits for itself.
    self_check_at: Moment,
}

impl NameJob {
    fn now(&self) -> Moment {
        self.keeper.core.now()
    }

    /// Lets `change` act on the gate, whose job this is.
    fn with<R>(&self, change: impl FnOnce(&mut Gate<Pending>) -> R) -> R {
        self.keeper.core.gates.with(&self.names, change)
    }

    /// Does one step. Returns false when the job has ended.
    async fn advance(&mut self) -> bool {
        if let Some(places) = &mut self.places {
            places.update(&self.keeper.core, &self.names);
        }
        let now = self.now();
        // In a queue of Redis', the next waiter listens to another channel.
        let listening = self.listening.is_live() && self.places.is_none();
        // Under one lock: without a job nobody would remove the note. What is sent from here on comes behind the removal.
        let (step, note, waits) = self.keeper.core.at(&self.names, now, |gate, effects| {
            let step = gate.step(listening, effects);
            let note = gate.withdraw_writer_waits();
            (step, note, gate.needs_note())
        });
        if note.is_some() {
            // The next writer's note may be left sooner than a repeated one.
            self.note_at = self.note_at.min(self.note_left + OLD);
        }
        self.remove_note(note);
        if !waits {
            self.remove_late_note();
        }
        match step {
            Step::FinishAttempt(hold, command, since) => {
                if let Some(outcome) = self.outcome(&command, since).await {
                    // Its place was asked for before, so that is most often answered, too.
                    if let Some(places) = &mut self.places {
                        places.check(&self.keeper.core);
                    }
                    settle_attempt(&self.keeper.core, &hold, &command, outcome);
                }
            }
            Step::FinishRelease(hold, command, since) => {
                if let Some(outcome) = self.outcome(&command, since).await {
                    let core = &self.keeper.core;
                    // If the release must be repeated, the gate leaves it to the reaper.
                    let _ = settle_release(core, &hold, &SentAs::Seat(&command), outcome);
                }
            }
            Step::HandOver { hold } => self.hand_over(&hold),
            Step::AwaitRelease => tokio::select! {
                biased;
                () = self.job.notified() => {}
                () = is_due(self.places.as_ref(), &self.keeper.core) => {}
            },
            Step::Watch { collect_by } => {
                self.policy.watch();
                self.watch(collect_by).await;
            }
            Step::Serve {
                head,
                at_once,
                collect_by,
            } => {
                self.policy
                    .serve(head.number, head.request.kind.commands.rules().backoff);
                let many_wait = self.places.as_ref().is_some_and(QueuePlaces::many_wait);
                self.policy.leaves_polls(many_wait, now);
                if at_once || self.is_time(collect_by).await {
                    self.try_for(&head);
                }
            }
            Step::LeaveFree(until) => {
                self.event(until, false).await;
            }
            Step::Linger => self.linger().await,
            Step::Over => {
                self.end().await;
                return false;
            }
        }
        true
    }

    /// Awaits the command in the seat, whoever sent it, because its caller may be dropped (I9: that delays nobody).
    /// `None` if something changed meanwhile.
    async fn outcome(&mut self, command: &Pending, since: Moment) -> Option<CommandResult> {
        let core = &self.keeper.core;
        let limit = core.config.command_timeout;
        let outcome = tokio::select! {
            biased;
            outcome = command.clone().within_of(since, limit) => outcome,
            () = self.job.notified() => return None,
            () = is_due(self.places.as_ref(), core) => return None,
        };
        self.policy.again();
        Some(outcome)
    }

    /// Sends a last release, and right behind it, on the same connection, the try for the next ticket.
    fn hand_over(&mut self, hold: &Arc<Hold>) {
        let core = Arc::clone(&self.keeper.core);
        let since = core.now();
        let release = hold.kind.release(&hold.id, 0).in_order();
        let release = Pending::start(&core.backend.keepers, release);
        let mut first = vec![release.clone()];
        let next = self.with(|gate| {
            first.extend(give_places_back(&core, gate));
            // Under the gate's lock: a ticket that leaves from now on finds that it is tried for.
            let next = gate.head().map(|ticket| {
                let note = note_of(gate, &ticket, &core, since);
                let (hold, command) =
                    start_try(&core, &ticket, gate.lease_to_ask(&ticket), &[], note, since);
                (ticket, hold, command)
            });
            let command = next.as_ref().map(|(_, _, command)| command.clone());
            gate.handed_over(hold, release, next, since);
            command
        });
        for command in first.into_iter().chain(next) {
            // The first poll sends it.
            let _ = command.now_or_never();
        }
    }

    /// Waits until it is time to try for the head of the queue. Returns false if something else comes first.
    async fn is_time(&mut self, collect_by: Option<Moment>) -> bool {
        match self.event(collect_by.unwrap_or(Moment::NEVER), true).await {
            Event::Due | Event::Subscribed => true,
            Event::Nothing => {
                self.take_back();
                false
            }
        }
    }

    /// Tries for the head of the queue.
    fn try_for(&mut self, head: &Arc<Ticket>) {
        self.policy.again();
        let core = Arc::clone(&self.keeper.core);
        let now = core.now();
        let counted = head.request.kind.commands.leaves_the_seat();
        if counted && self.noted != head.number && self.with(|gate| gate.has_writer_waits()) {
            // The note of a request that is gone would let this one go before older ones of others.
            self.note_left = Moment::default();
            self.leave_note();
        }
        let (mut left, mut tried) = (Vec::new(), None);
        self.with(|gate| {
            left = give_places_back(&core, gate);
            let note = note_of(gate, head, &core, now);
            let beside = match core.config.acks {
                None if counted => gate.beside(head),
                _ => Vec::new(),
            };
            let finish_by = now + core.config.command_timeout;
            let beside = beside.into_iter().map(|ticket| {
                let hold = ticket.unsettled().unwrap_or_else(|| {
                    untried_hold(&core, &ticket, ticket.request.lease, finish_by)
                });
                (ticket, hold)
            });
            let beside: Vec<_> = beside.collect();
            let lease = gate.lease_to_ask(head);
            let starts = gate.try_head(head, now, |shared| {
                let (hold, command) = match shared {
                    Some(shared) => start_join(&core.backend.keepers, shared, head),
                    None => start_try(&core, head, lease, &beside, note, now),
                };
                tried = Some(command.clone());
                (hold, command)
            });
            if starts && !beside.is_empty() {
                gate.tries_beside(beside);
            }
        });
        for command in left {
            // The first poll sends it.
            let _ = command.now_or_never();
        }
        // The lock stays free until the try arrives.
        if let Some(command) = tried {
            command.send_at_once();
        }
    }

    /// Waits for a reason to verify our own hold while others wait, and takes back a grant that nobody collects.
    async fn watch(&mut self, collect_by: Option<Moment>) {
        let end = collect_by.unwrap_or(Moment::NEVER);
        let verifies = self.with(|gate| gate.watched().is_some());
        let event = self.event(end.min(self.self_check_at), verifies).await;
        if self.take_back() {
            return;
        }
        self.check_for_self();
        // The hold may have been passed on meanwhile.
        let held = self.with(|gate| gate.watched().cloned());
        if let Some(hold) = held
            && matches!(event, Event::Due)
        {
            self.policy.again();
            self.keeper.watchdog.verify(&hold);
        }
    }

    /// Takes back a grant that nobody collected in time. Returns whether there was one.
    fn take_back(&self) -> bool {
        let core = &self.keeper.core;
        let taken = core.at(&self.names, core.now(), Gate::take_back);
        if let Some((hold, ticket)) = &taken {
            release::drop_level(core, &ticket.request.entered(Arc::clone(hold)));
        }
        taken.is_some()
    }

    /// Warns of a task that waits for itself.
    fn check_for_self(&mut self) {
        let now = self.now();
        if now < self.self_check_at {
            return;
        }
        self.self_check_at = now + SELF_CHECK;
        if self.with(|gate| gate.report_self_wait(now)) {
            let names = Arc::clone(&self.names);
            log(move || {
                tracing::warn!(
                    name = names.name(),
                    "a task waits for a lock that it holds itself under another owner: \
                     to enter again use guard.reenter(lease), one Owner, or Client::scope; \
                     nothing is wrong if it gave its guard to another task, or if another of its \
                     futures gives it back"
                );
            });
        }
    }

    /// Waits for a message, a change at the gate, or `end`, and for the poll if the step `polls`. A step that does nothing at
    /// a poll must not wait for one: if the poll was planned for the end of a lease, it would be due again at once.
    async fn event(&mut self, end: Moment, polls: bool) -> Event {
        if self.policy.is_open() {
            self.listening.retry(self.now());
        }
        self.listen();
        let end = end.min(self.leave_note());
        let poll_at = if polls {
            self.next_try()
        } else {
            Moment::NEVER
        };
        let look_at = poll_at.min(end);
        self.with(|gate| gate.job_sleeps_until(look_at));
        let timer = self.keeper.core.backend.timers().sleep_until(look_at);
        tokio::select! {
            biased;
            () = self.job.notified() => Event::Nothing,
            news = self.listening.news() => self.hear(&news),
            () = is_due(self.places.as_ref(), &self.keeper.core) => Event::Nothing,
            () = timer => {
                if self.now() < poll_at {
                    return Event::Nothing;
                }
                self.policy.again();
                Event::Due
            }
        }
    }

    /// Subscribes to the channels that may wake the waiters of this client.
    fn listen(&mut self) {
        let names = &self.names;
        if self.places.is_none() {
            if self.with(|gate| gate.has_listeners()) {
                self.listening.start(&[names.channel()]);
            }
            return;
        }
        let channels = self.with(|gate| gate.channels(LISTENS_FOR));
        self.listening.start(&channels);
    }

    fn hear(&mut self, news: &ChannelNews) -> Event {
        match *news {
            ChannelNews::Confirmed => {
                self.policy.again();
                if self.places.is_some() {
                    self.with(Gate::channel_added);
                    Event::Subscribed
                } else {
                    self.with(|gate| gate.set_listening(true));
                    Event::Due
                }
            }
            ChannelNews::Messages(messages) => {
                let now = self.now();
                match self.with(|gate| gate.received(messages, now)) {
                    0 => Event::Nothing,
                    _ => Event::Due,
                }
            }
            ChannelNews::Broken => {
                self.with(|gate| gate.set_listening(false));
                // Subscribing again may fail, too, so the next try comes sooner than was planned.
                self.policy.again();
                self.plan(&LastAnswer::Failed(Failure::no_connection()));
                if let Some(places) = &mut self.places {
                    places.doubt();
                }
                Event::Nothing
            }
            ChannelNews::Nothing => Event::Nothing,
        }
    }

    fn next_try(&mut self) -> Moment {
        let now = self.now();
        let known = self.with(|gate| gate.last_answer(now).clone());
        self.plan(&known)
    }

    fn plan(&mut self, known: &LastAnswer) -> Moment {
        let listeners = self.with(|gate| gate.has_listeners());
        let (now, listening) = (self.now(), self.listening.is_live());
        self.policy.next_try(now, known, listening, listeners)
    }

    /// Leaves the note that a request waits. Returns when to look at that again.
    fn leave_note(&mut self) -> Moment {
        let Some(first) = self.with(|gate| gate.first_writer().cloned()) else {
            return Moment::NEVER;
        };
        let now = self.now();
        let kind = &first.request.kind;
        if self.noted != first.number && kind.commands.leaves_the_seat() {
            // The note before was another request's. If Redis still has it, it is replaced.
            self.noted = first.number;
            let replaces = self.with(|gate| gate.has_writer_waits());
            let old_at = first.request.since + OLD;
            self.note_at = if replaces {
                self.note_left + OLD
            } else {
                old_at
            };
        }
        if now >= self.note_at {
            // Whoever leaves after this sees the note, and has it removed.
            let still_waits = self.with(|gate| {
                let waits = gate.is_queued(&first);
                if waits {
                    gate.note_writer_waits(kind, now);
                }
                waits
            });
            if !still_waits {
                return now;
            }
            (self.note_left, self.note_at) = (now, now + NOTE_AGAIN);
            let core = &self.keeper.core;
            let (waited, note) = (first.request.since.until(now), self.note(kind));
            if let Some(sent) = send_note(core, kind, waited, note) {
                self.left = Some((kind.clone(), sent.clone()));
                // If it is lost, the next one makes up for it.
                tokio::spawn(own(sent.within(core.config.command_timeout)));
            }
        }
        self.note_at
    }

    /// For how long others heed the note of a request of `kind`.
    fn note(&self, kind: &Kind) -> Duration {
        if kind.commands.is_writer() {
            self.keeper.core.watchdog_lease.duration()
        } else {
            NOTE_AGAIN * 3
        }
    }

    /// Removes a note from Redis, if there is one, and then from the gate.
    fn remove_note(&mut self, note: Option<(Kind, Moment)>) {
        let Some((kind, since)) = note else {
            return;
        };
        let core = Arc::clone(&self.keeper.core);
        let removed = remove(&core, &kind);
        let late = self.remove_late_note();
        tokio::spawn(own(async move {
            removed.await;
            if let Some(late) = late {
                let _ = late.await;
            }
            let names = &kind.names;
            core.gates
                .with(names, |gate| gate.writer_waits_withdrawn(since));
        }));
    }

    /// Removes a note that is no longer needed and whose command is still unanswered. If the server did not know the script,
    /// it gets the text only after the grant or the removal that should have found the note.
    fn remove_late_note(&mut self) -> Option<JoinHandle<()>> {
        let (kind, sent) = self.left.take()?;
        if sent.clone().now_or_never().is_some() {
            return None;
        }
        let core = Arc::clone(&self.keeper.core);
        Some(tokio::spawn(own(async move {
            let left = sent.within(core.config.command_timeout).await;
            // With any other answer it left no note.
            let is_there = left.is_ok_and(|left| matches!(left.reply, Reply::Done(_)));
            if is_there && !core.gates.with(&kind.names, |gate| gate.needs_note()) {
                remove(&core, &kind).await;
            }
        })))
    }

    /// Ends the job. Another one may have begun for the name.
    async fn end(&mut self) {
        match &mut self.places {
            Some(places) => {
                self.listening.leave();
                places.finish(&self.keeper.core).await;
            }
            None => self.listening.end(),
        }
    }

    /// Nobody waits: listens for a while longer.
    async fn linger(&mut self) {
        self.leave_note();
        tokio::select! {
            biased;
            () = self.job.notified() => {}
            () = self.keeper.core.backend.timers().sleep(LINGER) => {
                self.with(|gate| gate.set_listening(false));
                // Whoever comes next needs this job.
                self.listening.end();
            }
        }
    }
}

/// Waits until the places have something to do.
async fn is_due(places: Option<&QueuePlaces>, core: &Core) {
    match places {
        Some(places) => places.is_due(core).await,
        None => std::future::pending().await,
    }
}

/// Sends a note at once on the connection of the tries: a try that follows finds it, and removes it if it is granted. A new
/// note arrives behind the removal of the one before.
fn send_note(core: &Core, kind: &Kind, waited: Duration, note: Duration) -> Option<Pending> {
    let call = kind
        .commands
        .note(&kind.names, &core.client, waited, note)?;
    let pending = Pending::start(&core.backend.keepers, call.in_order());
    // The first poll sends it.
    let _ = pending.clone().now_or_never();
    Some(pending)
}

/// Sends the removal of a note at once; the future awaits its answer. If it is lost, the note ends by its TTL.
fn remove(core: &Core, kind: &Kind) -> impl Future<Output = ()> + use<> {
    let sent = send_note(core, kind, Duration::ZERO, Duration::ZERO);
    let limit = core.config.command_timeout;
    async move {
        if let Some(sent) = sent {
            let _ = sent.within(limit).await;
        }
    }
}

/// For how long readers heed notes such as a try for `ticket` leaves if it finds the lock busy; zero for no note.
fn note_of(gate: &mut Gate<Pending>, ticket: &Ticket, core: &Core, now: Moment) -> Duration {
    let kind = &ticket.request.kind;
    let waits = ticket.request.patience != Patience::Once;
    if waits && kind.commands.is_writer() {
        gate.note_writer_waits(kind, now);
        core.watchdog_lease.duration()
    } else {
        Duration::ZERO
    }
}

/// Makes a try for `ticket`, and for those `beside` it. If the outcome of the one before is unknown, it has the same hold id.
fn start_try(
    core: &Core,
    ticket: &Arc<Ticket>,
    lease: LeaseMs,
    beside: &[(Arc<Ticket>, Arc<Hold>)],
    note: Duration,
    now: Moment,
) -> (Arc<Hold>, Pending) {
    let hold = match ticket.unsettled() {
        Some(hold) => {
            let finish_by = now + core.config.command_timeout;
            hold.with(|state| state.finish_later(finish_by));
            core.look_by(&hold, finish_by);
            hold
        }
        None => new_hold(core, ticket, lease, now),
    };
    if ticket.may_have_place() {
        ticket.set_unsettled(Some(&hold));
    }
    let beside: Vec<&str> = beside.iter().map(|(_, hold)| &*hold.id).collect();
    let sort = Try {
        waits: ticket.request.patience != Patience::Once,
        note,
        beside: &beside,
    };
    let call = hold.kind.acquire(&hold.id, hold.lease, sort);
    let command = Pending::start(&core.backend.keepers, call);
    (hold, command)
}
