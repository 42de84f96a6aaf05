//! Gate, ticket, owner and hold together, with every order of what callers, the keeper and Redis do.
//!
//! A [`World`] has one name, a few callers, the keeper and a Redis; a [`Choice`] is one step of one of them. What
//! they decide is decided by the code that runs in production; the world only carries commands and replies. All
//! orders are tried: a state that was seen before is not gone on from. Faults are among the choices, as many as a
//! scenario allows. After each step the rules of [`World::check`] hold, and where nothing is left to do nothing may
//! be left over.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::effects::Effects;
use super::gate::{Arrival, Gate, Rules};
use super::hold::{Hold, Origin};
use super::kind::{Commands, Kind};
use super::outcomes::{Answered, GivenBack, ReleaseAnswer, SentAs};
use super::owner::{Entered, Found, OwnerState};
use super::seat::{Attempt, Seat};
use super::state::{Level, Phase, State};
use super::steps::Step;
use super::ticket::{Patience, Request, Ticket, Verdict};
use crate::backend::Failure;
use crate::clock::Moment;
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::names::Names;
use crate::script::{Acquired, Call, Forced, Released, Renewal, Renewed, Reply};

const RULES: Rules = Rules {
    command_timeout: Duration::from_secs(1),
    unavailable_after: Duration::from_secs(5),
};

/// Steps that a caller, the keeper or Redis may take next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// A caller looks whether its owner holds the lock, and enters it if so.
    Look(usize),
    /// It passes the gate.
    Arrive(usize),
    /// Its future is polled.
    Poll(usize),
    /// Its future, or its guard, is dropped.
    Drop(usize),
    Unlock(usize),
    Detach(usize),
    /// Its owner ends.
    EndOwner(usize),
    /// The last handle is gone, and the client ends.
    Close,
    /// The job of the name takes a step.
    Job,
    /// The job's poll comes.
    JobPoll,
    /// A command time-out passes.
    Tick,
    /// The keeper goes on with a last release.
    Reap(usize),
    /// The keeper's schedule finds a command overdue.
    Overdue(usize),
    /// Redis executes the next command of a connection: a caller's, or the keeper's.
    Execute(usize),
    /// Redis refuses it for a while.
    Refuse(usize),
    /// The reply to a command is lost.
    LoseReply(usize),
    /// The key is deleted.
    Vanish,
    /// The keeper hears that the hold is not there.
    Lose,
    /// A stranger takes the free lock, or gives it back.
    Stranger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    InFlight,
    Done(i64),
    Refused,
    /// No reply came: it may still run.
    Silence,
}

#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Command {
    hold: Arc<Hold>,
    acquires: bool,
    lane: usize,
    executed: Option<i64>,
    refused: bool,
    reply_lost: bool,
    ended: bool,
    at: Moment,
}

enum At {
    Start,
    /// Its owner holds nothing.
    Looked,
    /// A first try of its own, if it has one.
    Waiting(Arc<Ticket>, Option<usize>),
    Holding(Entered),
    Unlocking(Arc<Hold>, usize, Moment),
    /// The keeper releases; it waits for the end.
    Watching(Arc<Hold>),
    Detached,
    Gone,
}

struct Caller {
    at: At,
    owner: Option<Arc<OwnerState>>,
    owner_ended: bool,
    patience: Patience,
    /// How often it acquires.
    rounds: u32,
    manner: Manner,
}

/// What a caller does with what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Unlocks,
    /// Its futures and guards are dropped somewhere.
    Drops,
    /// It detaches its guard, and its owner ends somewhere.
    Detaches,
    /// Its future is polled no more once it waits.
    Sleeps,
}

enum Reaping {
    Begun,
    /// An old acquire may still run: once more behind it.
    Haunted,
    Sent(Option<usize>, usize, Moment),
    Over,
}

/// What the job of the name waits for, beside a change at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asleep {
    /// For nothing: it takes a step next.
    Awake,
    Change,
    Command(usize),
    /// Its poll, or the end of its own hold's lease.
    Poll,
    /// The end of listening.
    Linger,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    gate: Gate<usize>,
    job: bool,
    asleep: Asleep,
    /// Whether the job listens to the channel.
    listening: bool,
    callers: Vec<Caller>,
    reaps: Vec<(Arc<Hold>, Reaping)>,
    commands: Vec<Command>,
    /// Who has the lock in Redis: a hold's number, or 0 for a stranger.
    held_by: Option<u64>,
    /// Releases that found what they were to end.
    ended: BTreeSet<u64>,
    busy_told: Vec<Arc<Ticket>>,
    numbers: u64,
    now: Moment,
    faults: u32,
    polls: u32,
    ticks: u32,
    strangers: u32,
    closes: bool,
    closed: bool,
    kind: Kind,
}

/// Owner, patience, manner, rounds.
type Role = (Option<u8>, Patience, Manner, u32);

/// What a scenario allows.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    callers: &'static [Role],
    faults: u32,
    polls: u32,
    ticks: u32,
    strangers: u32,
    closes: bool,
    /// Wake-ups arrive, and nobody else listens.
    alone: bool,
}

struct Silent;

impl Commands for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }
    fn acquire(&self, _: &Names, _: &str, _: LeaseMs) -> Call {
        Call::ping()
    }
    fn acquired(&self, _: &Reply) -> Option<Acquired> {
        None
    }
    fn reenter(&self, _: &Names, _: &str, _: u32, _: LeaseMs) -> Call {
        Call::ping()
    }
    fn verify(&self, _: &Names, _: &str, _: LeaseMs) -> Call {
        Call::ping()
    }
    fn release(&self, _: &Names, _: &str, _: u32) -> Call {
        Call::ping()
    }
    fn released(&self, _: &Reply) -> Option<Released> {
        None
    }
    fn found(&self, _: &Reply) -> Option<bool> {
        None
    }
    fn renew(&self, _: &[Renewal<'_>]) -> Call {
        Call::ping()
    }
    fn renewed(&self, _: &Reply) -> Option<Vec<Renewed>> {
        None
    }
    fn force(&self, _: &Names, _: &str) -> Call {
        Call::ping()
    }
    fn forced(&self, _: &Reply) -> Option<Forced> {
        None
    }
    fn look(&self, _: &Names) -> Call {
        Call::ping()
    }
    fn looked(&self, _: &Reply) -> Option<bool> {
        None
    }
}

fn lease() -> LeaseMs {
    let day = Duration::from_secs(24 * 3600);
    LeaseMs::new(day, &(day..=day)).unwrap()
}

/// The keeper's connection; a caller's is its own number.
const KEEPER: usize = 99;

impl World {
    fn new(scenario: Scenario) -> Self {
        let mut owners: Vec<(u8, Arc<OwnerState>)> = Vec::new();
        let callers = scenario.callers.iter();
        let callers = callers.map(|&(owner, patience, manner, rounds)| {
            let owner = owner.map(|owner| {
                if let Some((_, known)) = owners.iter().find(|(known, _)| *known == owner) {
                    return Arc::clone(known);
                }
                owners.push((owner, OwnerState::new()));
                Arc::clone(&owners.last().unwrap().1)
            });
            Caller {
                at: At::Start,
                owner,
                owner_ended: false,
                patience,
                rounds,
                manner,
            }
        });
        let mut world = Self {
            gate: Gate::default(),
            job: false,
            asleep: Asleep::Awake,
            listening: false,
            callers: callers.collect(),
            reaps: Vec::new(),
            commands: Vec::new(),
            held_by: None,
            ended: BTreeSet::new(),
            busy_told: Vec::new(),
            numbers: 0,
            now: Moment::from_nanos(1_000_000_000_000),
            faults: scenario.faults,
            polls: scenario.polls,
            ticks: scenario.ticks,
            strangers: scenario.strangers,
            closes: scenario.closes,
            closed: false,
            kind: Kind {
                names: Arc::new(Names::plain("", "x", 512).unwrap()),
                commands: &Silent,
            },
        };
        if scenario.alone {
            world.gate.wakeups.listening(true);
            world.gate.wakeups.release_answered(0, Some(1));
            world.gate.wakeups.take_released();
        }
        world
    }

    /// As `Core::at`.
    fn at<R>(&mut self, change: impl FnOnce(&mut Gate<usize>, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let result = change(&mut self.gate, &mut effects);
        if self.gate.start_job() {
            self.job = true;
            self.asleep = Asleep::Awake;
            // As a name that others wait for now and then: its subscription is there at once.
            self.listening = true;
        }
        if let Some(job) = self.gate.job() {
            let mut told = std::pin::pin!(job.changed.notified());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            if told.as_mut().poll(&mut context).is_ready() {
                self.asleep = Asleep::Awake;
            }
        }
        for hold in effects.carry_out() {
            self.reaps.push((hold, Reaping::Begun));
        }
        result
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn send(&mut self, hold: &Arc<Hold>, acquires: bool, lane: usize) -> usize {
        self.commands.push(Command {
            hold: Arc::clone(hold),
            acquires,
            lane,
            executed: None,
            refused: false,
            reply_lost: false,
            ended: false,
            at: self.now,
        });
        self.commands.len() - 1
    }

    fn new_hold(&mut self, ticket: &Ticket) -> Arc<Hold> {
        let number = self.number();
        let origin = Origin {
            kind: self.kind.clone(),
            id: number.to_string().into(),
            number,
            lease: lease(),
            owner: ticket.request.owner_number(),
            task: None,
        };
        Hold::trying(origin, self.now + RULES.command_timeout)
    }

    fn told(&self, command: usize) -> Told {
        let command = &self.commands[command];
        match command {
            Command { ended: true, .. } => Told::Silence,
            Command { refused: true, .. } => Told::Refused,
            Command {
                executed: Some(reply),
                reply_lost: false,
                ..
            } => Told::Done(*reply),
            _ => Told::InFlight,
        }
    }

    /// Everything that may happen next.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (i, caller) in self.callers.iter().enumerate() {
            choices.extend(self.choices_of(i, caller));
        }
        if self.closes && !self.closed && self.callers.iter().all(|c| matches!(c.at, At::Gone)) {
            choices.push(Choice::Close);
        }
        if self.is_over() {
            return Vec::new();
        }
        if self.job && self.job_is_able() {
            choices.push(Choice::Job);
        }
        let polls = self.polls > 0 && self.asleep == Asleep::Poll && self.gate.seat.is_free();
        if self.job && (polls || self.asleep == Asleep::Linger) {
            choices.push(Choice::JobPoll);
        }
        if let Seat::Held {
            uncollected: Some((ticket, _)),
            ..
        } = &self.gate.seat
            && self.job
            && (self.ticks > 0 || self.is_asleep(ticket))
            && ticket.is_decided()
        {
            choices.push(Choice::Tick);
        }
        for (i, (hold, reaping)) in self.reaps.iter().enumerate() {
            match reaping {
                Reaping::Begun => choices.push(Choice::Reap(i)),
                Reaping::Haunted if self.has_no_ghost(hold) => choices.push(Choice::Reap(i)),
                Reaping::Sent(_, command, _) if self.told(*command) != Told::InFlight => {
                    choices.push(Choice::Reap(i));
                }
                Reaping::Sent(..) | Reaping::Haunted | Reaping::Over => {}
            }
        }
        let mut lanes = BTreeSet::new();
        for (i, command) in self.commands.iter().enumerate() {
            let waits = command.executed.is_none() && !command.refused;
            if waits && lanes.insert(command.lane) {
                choices.push(Choice::Execute(command.lane));
                if self.faults > 0 && !command.ended {
                    choices.push(Choice::Refuse(command.lane));
                }
            }
            let lost = command.reply_lost || command.ended;
            if self.faults > 0 && !lost && !command.refused && command.executed.is_some() {
                choices.push(Choice::LoseReply(i));
            }
            // Silence comes by a fault, behind a reply that was lost, or when nobody polls for the reply.
            if !command.ended
                && !command.refused
                && (self.is_free_to_end(command) || (waits && self.faults > 0))
            {
                choices.push(Choice::Overdue(i));
            }
        }
        if self.faults > 0 && self.held_by.is_some_and(|by| by > 0) {
            choices.push(Choice::Vanish);
            if self
                .gate
                .seat
                .held()
                .is_some_and(|hold| hold.phase() == Phase::Held)
            {
                choices.push(Choice::Lose);
            }
        }
        if self.held_by == Some(0) || (self.strangers > 0 && self.held_by.is_none()) {
            choices.push(Choice::Stranger);
        }
        choices
    }

    fn choices_of(&self, i: usize, caller: &Caller) -> Vec<Choice> {
        let mut choices = Vec::new();
        match &caller.at {
            At::Start if caller.rounds > 0 => {
                if !caller.owner_ended {
                    choices.push(Choice::Look(i));
                }
            }
            At::Looked => choices.push(Choice::Arrive(i)),
            At::Waiting(..) if caller.manner == Manner::Sleeps => {}
            At::Waiting(ticket, first) => {
                let first = first.is_some_and(|command| self.told(command) != Told::InFlight);
                if ticket.is_decided() || first {
                    choices.push(Choice::Poll(i));
                }
                choices.push(Choice::Drop(i));
            }
            At::Holding(_) => {
                if caller.manner == Manner::Detaches {
                    choices.push(Choice::Detach(i));
                }
                if caller.manner == Manner::Drops {
                    choices.push(Choice::Drop(i));
                } else {
                    choices.push(Choice::Unlock(i));
                }
            }
            At::Unlocking(_, command, _) => {
                if self.told(*command) != Told::InFlight {
                    choices.push(Choice::Poll(i));
                }
                if caller.manner == Manner::Drops || self.faults > 0 {
                    choices.push(Choice::Drop(i));
                }
            }
            At::Watching(hold) => {
                if hold.phase() == Phase::Ended || matches!(hold.phase(), Phase::Lost(_)) {
                    choices.push(Choice::Poll(i));
                }
            }
            At::Start | At::Detached | At::Gone => {}
        }
        if caller.manner == Manner::Detaches
            && !caller.owner_ended
            && !matches!(caller.at, At::Start | At::Looked)
        {
            choices.push(Choice::EndOwner(i));
        }
        choices
    }

    /// Whether the caller of `ticket` is not polled.
    fn is_asleep(&self, ticket: &Arc<Ticket>) -> bool {
        self.callers.iter().any(|caller| {
            let its = matches!(&caller.at, At::Waiting(own, _) if Arc::ptr_eq(own, ticket));
            its && caller.manner == Manner::Sleeps
        })
    }

    /// Whether it is no fault that a command ends without a reply.
    fn is_free_to_end(&self, command: &Command) -> bool {
        let sender = self.callers.get(command.lane);
        command.reply_lost || sender.is_some_and(|caller| caller.manner == Manner::Sleeps)
    }

    /// Whether the job would not only wait.
    fn job_is_able(&self) -> bool {
        match self.asleep {
            Asleep::Awake => true,
            Asleep::Command(command) => self.told(command) != Told::InFlight,
            Asleep::Change | Asleep::Poll | Asleep::Linger => false,
        }
    }

    /// A client that was closed sees through what is in flight, and no more.
    fn is_over(&self) -> bool {
        let reaps = self
            .reaps
            .iter()
            .all(|(_, reaping)| matches!(reaping, Reaping::Over));
        self.closed && reaps && !self.gate.is_in_flight()
    }

    fn step(&mut self, choice: Choice) {
        match choice {
            Choice::Look(i) => self.look(i),
            Choice::Arrive(i) => self.arrive(i),
            Choice::Poll(i) => self.poll(i),
            Choice::Drop(i) => self.drop_future(i),
            Choice::Unlock(i) => {
                let At::Holding(entered) = std::mem::replace(&mut self.callers[i].at, At::Gone)
                else {
                    return;
                };
                self.give_back(&entered, Some(i), i);
            }
            Choice::Detach(i) => self.detach(i),
            Choice::EndOwner(i) => self.end_owner(i),
            Choice::Close => self.closed = true,
            Choice::Job => self.job_step(),
            Choice::JobPoll if self.asleep == Asleep::Linger => {
                self.listening = false;
                self.at(|gate, _| gate.wakeups.listening(false));
                self.job_step();
            }
            Choice::JobPoll => {
                self.polls -= 1;
                self.gate.prompt = true;
                self.job_step();
            }
            Choice::Tick => {
                // Who sleeps is waited for once.
                self.ticks = self.ticks.saturating_sub(1);
                self.now = self.now + RULES.command_timeout;
                let now = self.now;
                self.asleep = Asleep::Awake;
                if let Some((hold, ticket)) = self.at(|gate, _| gate.take_back(now, RULES)) {
                    self.give_back(&ticket.request.entered(hold), None, usize::MAX);
                }
            }
            Choice::Reap(i) => self.reap(i),
            Choice::Overdue(i) => {
                if !self.is_free_to_end(&self.commands[i]) {
                    self.faults -= 1;
                }
                self.commands[i].ended = true;
                // The connection is replaced: what is on its way comes whenever it comes.
                self.commands[i].lane = 1_000 + i;
                let hold = Arc::clone(&self.commands[i].hold);
                self.at(|gate, effects| gate.overdue(&hold, effects));
            }
            Choice::Execute(lane) => self.execute(lane),
            Choice::Refuse(lane) => {
                self.faults -= 1;
                let next = self.next_of(lane);
                self.commands[next].refused = true;
            }
            Choice::LoseReply(i) => {
                self.faults -= 1;
                self.commands[i].reply_lost = true;
            }
            Choice::Vanish => {
                self.faults -= 1;
                self.held_by = None;
            }
            Choice::Lose => {
                self.faults -= 1;
                let hold = Arc::clone(self.gate.seat.held().unwrap());
                if hold.with(|state| state.lose(LostReason::Missing)) {
                    self.at(|gate, effects| {
                        gate.vacate(&hold);
                        effects.release(&hold);
                    });
                }
            }
            Choice::Stranger => {
                if self.held_by.is_none() {
                    self.strangers -= 1;
                    self.held_by = Some(0);
                } else {
                    self.held_by = None;
                    self.polls += 1;
                }
            }
        }
        self.check(choice);
    }

    fn look(&mut self, i: usize) {
        let now = self.now;
        let owner = self.callers[i].owner.clone();
        let names = Arc::clone(&self.kind.names);
        self.callers[i].rounds -= 1;
        self.callers[i].at = match owner.as_ref().map(|owner| owner.find(&names, now)) {
            Some(Found::Live(hold)) => match hold.with(|state| state.enter(Level::Watchdog, now)) {
                Ok(_) => At::Holding(Entered {
                    hold,
                    level: Level::Watchdog,
                    owner,
                    open: true,
                }),
                Err(_) => At::Looked,
            },
            Some(Found::Lost(_)) => At::Gone,
            Some(Found::Nothing) | None => At::Looked,
        };
    }

    fn arrive(&mut self, i: usize) {
        let number = self.number();
        let request = Request {
            kind: self.kind.clone(),
            owner: self.callers[i].owner.clone(),
            lease: lease(),
            level: Level::Watchdog,
            patience: self.callers[i].patience,
            since: self.now,
        };
        let ticket = Ticket::new(number, request);
        let hold = self.new_hold(&ticket);
        let command = self.commands.len();
        let (now, made) = (self.now, Arc::clone(&hold));
        let arrival = self.at(|gate, _| gate.arrive(&ticket, now, || (made, command)));
        self.callers[i].at = match arrival {
            Arrival::First(_) => {
                self.send(&hold, true, i);
                At::Waiting(ticket, Some(command))
            }
            Arrival::Queued => At::Waiting(ticket, None),
            Arrival::Busy => {
                let ours = self.gate.seat.held().is_some();
                let told = self.busy_told.iter().any(|ticket| ticket.is_waiting());
                assert!(ours || told, "busy by an answer to somebody long gone");
                At::Gone
            }
            Arrival::Again => {
                self.callers[i].rounds += 1;
                At::Start
            }
        };
    }

    fn poll(&mut self, i: usize) {
        match std::mem::replace(&mut self.callers[i].at, At::Gone) {
            At::Waiting(ticket, first) => {
                if !ticket.is_decided()
                    && let Some(command) = first.filter(|c| self.told(*c) != Told::InFlight)
                {
                    self.settle(command);
                }
                self.callers[i].at = self.collect(i, ticket);
            }
            At::Unlocking(hold, command, since) => {
                let over = self.settle_release(&hold, Some(command), command, since);
                self.callers[i].at = if over { At::Gone } else { At::Watching(hold) };
            }
            At::Watching(hold) => self.check_outcome(&hold),
            other => self.callers[i].at = other,
        }
        self.again(i);
    }

    /// A caller that is done begins anew while it has rounds left.
    fn again(&mut self, i: usize) {
        let caller = &mut self.callers[i];
        if matches!(caller.at, At::Gone) && caller.rounds > 0 {
            caller.at = At::Start;
        }
    }

    fn collect(&mut self, i: usize, ticket: Arc<Ticket>) -> At {
        if !ticket.is_decided() {
            return At::Waiting(ticket, None);
        }
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match ticket.poll(&mut context) {
            std::task::Poll::Ready(Verdict::Granted(hold)) => {
                let entered = ticket.request.entered(hold);
                if self.now < entered.hold.valid_until() {
                    return At::Holding(entered);
                }
                self.give_back(&entered, None, usize::MAX);
                At::Gone
            }
            std::task::Poll::Ready(Verdict::Again) => {
                self.callers[i].rounds += 1;
                At::Start
            }
            std::task::Poll::Ready(Verdict::Busy | Verdict::Failed(_)) => At::Gone,
            std::task::Poll::Pending => At::Waiting(ticket, None),
        }
    }

    fn drop_future(&mut self, i: usize) {
        match std::mem::replace(&mut self.callers[i].at, At::Gone) {
            At::Waiting(ticket, _) => {
                let uncollected = self.at(|gate, effects| gate.withdraw(&ticket, effects));
                if let Some(hold) = uncollected {
                    self.give_back(&ticket.request.entered(hold), None, usize::MAX);
                }
            }
            At::Holding(entered) => self.give_back(&entered, None, usize::MAX),
            At::Unlocking(hold, ..) if hold.phase() == Phase::Ending => {
                self.at(|_, effects| effects.release(&hold));
            }
            _ => {}
        }
        self.again(i);
    }

    fn detach(&mut self, i: usize) {
        let At::Holding(entered) = std::mem::replace(&mut self.callers[i].at, At::Gone) else {
            return;
        };
        let owner = entered.owner.clone().unwrap();
        self.callers[i].at = if owner.detach(&entered.hold, entered.level) {
            At::Detached
        } else {
            self.callers[i].manner = Manner::Unlocks;
            At::Holding(entered)
        };
    }

    fn end_owner(&mut self, i: usize) {
        let owner = self.callers[i].owner.clone().unwrap();
        for caller in &mut self.callers {
            caller.owner_ended |= caller
                .owner
                .as_ref()
                .is_some_and(|o| Arc::ptr_eq(o, &owner));
        }
        for entered in owner.end() {
            self.give_back(&entered, None, usize::MAX);
        }
        for caller in &mut self.callers {
            if caller.owner_ended && matches!(caller.at, At::Detached) {
                caller.at = At::Gone;
            }
        }
    }

    /// As `release::give_back`, with a connection, or as `release::drop_level`.
    fn give_back(&mut self, entered: &Entered, lane: Option<usize>, caller: usize) {
        let (now, command) = (self.now, self.commands.len());
        let send = lane.map(|_| || command);
        let hold = &entered.hold;
        let given_back =
            self.at(|gate, effects| gate.give_back(hold, entered.level, now, RULES, send, effects));
        if let Some(owner) = &entered.owner
            && hold.count() == 0
        {
            owner.remove(hold);
        }
        let at = match given_back {
            GivenBack::Sent(command) => {
                self.send(hold, false, lane.unwrap());
                At::Unlocking(Arc::clone(hold), command, now)
            }
            GivenBack::Left if lane.is_some() => At::Watching(Arc::clone(hold)),
            GivenBack::Left | GivenBack::Levels(_) | GivenBack::Lost(_) => At::Gone,
        };
        if let Some(caller) = self.callers.get_mut(caller) {
            caller.at = at;
        }
    }

    fn job_step(&mut self) {
        let now = self.now;
        let listening = self.listening;
        self.asleep = Asleep::Awake;
        let step = self.at(|gate, effects| gate.step(now, RULES, listening, effects));
        match step {
            Step::FinishAttempt(_, command, _) | Step::FinishRelease(_, command, _)
                if self.told(command) == Told::InFlight =>
            {
                self.asleep = Asleep::Command(command);
            }
            Step::FinishAttempt(_, command, _) => self.settle(command),
            Step::FinishRelease(hold, command, since) => {
                self.settle_release(&hold, Some(command), command, since);
            }
            Step::HandOver { hold, head } => {
                let release = self.send(&hold, false, KEEPER);
                let next = head.map(|ticket| {
                    let (hold, command) = self.start_try(&ticket);
                    Attempt {
                        hold,
                        ticket,
                        command,
                        since: now,
                        early: true,
                        overdue: false,
                    }
                });
                self.at(|gate, _| gate.handed_over(&hold, release, next, now));
            }
            Step::Serve { head, prompt, .. } => {
                if prompt {
                    let (hold, command) = self.start_try(&head);
                    let sits = self.at(|gate, _| gate.call_up(&head, now, || (hold, command)));
                    assert!(sits, "the head of a free seat sits");
                } else {
                    self.asleep = Asleep::Poll;
                }
            }
            Step::Watch { collect_by, .. } => {
                // The job waits until then, and takes the grant back: it must be there to be taken.
                let lies = match &self.gate.seat {
                    Seat::Held { uncollected, .. } => uncollected
                        .as_ref()
                        .is_some_and(|(ticket, _)| ticket.is_decided()),
                    _ => false,
                };
                assert_eq!(collect_by.is_some(), lies, "a job that spins");
                self.asleep = Asleep::Poll;
            }
            Step::Over => self.job = false,
            Step::AwaitRelease => self.asleep = Asleep::Change,
            Step::Linger => self.asleep = Asleep::Linger,
        }
    }

    fn start_try(&mut self, ticket: &Arc<Ticket>) -> (Arc<Hold>, usize) {
        let hold = ticket.unsettled().unwrap_or_else(|| self.new_hold(ticket));
        let command = self.send(&hold, true, KEEPER);
        (hold, command)
    }

    /// As `settle::settle_attempt`.
    fn settle(&mut self, command: usize) {
        let now = self.now;
        let answer = match self.told(command) {
            Told::Done(-2) => Answered::Got(lease().term(self.commands[command].at)),
            Told::Done(_) => Answered::Busy(None),
            Told::Refused => Answered::Failed(Failure::too_late()),
            Told::Silence | Told::InFlight => Answered::Failed(Failure::no_reply()),
        };
        if matches!(answer, Answered::Busy(_)) {
            let mut waiting: Vec<_> = self.gate.queue.iter().cloned().collect();
            if let Seat::Trying(attempt) = &self.gate.seat {
                waiting.push(Arc::clone(&attempt.ticket));
            }
            self.busy_told = waiting;
        }
        self.at(|gate, effects| gate.answered(&command, answer, now, RULES, effects));
    }

    /// As `settle::settle_release`: whether it is over.
    fn settle_release(
        &mut self,
        hold: &Arc<Hold>,
        in_seat: Option<usize>,
        command: usize,
        since: Moment,
    ) -> bool {
        let now = self.now;
        let answer = match self.told(command) {
            Told::Done(0) => ReleaseAnswer::Missing,
            Told::Done(_) => ReleaseAnswer::Ended { heard_by: Some(1) },
            Told::Refused => ReleaseAnswer::Failed(Failure::too_late()),
            Told::Silence | Told::InFlight => ReleaseAnswer::Failed(Failure::no_reply()),
        };
        let sent = match &in_seat {
            Some(command) => SentAs::Seat(command),
            None => SentAs::Keeper(since),
        };
        let over = self
            .at(|gate, effects| gate.release_answered(hold, &sent, answer, now, RULES, effects));
        if over {
            self.check_outcome(hold);
        }
        over
    }

    /// By I2: Ok means that a release ended it, or that nobody can know.
    fn check_outcome(&self, hold: &Arc<Hold>) {
        let releases = |c: &&Command| !c.acquires && c.hold.number == hold.number;
        let unanswered = self.commands.iter().filter(releases).any(|c| c.ended);
        if hold.outcome().is_ok() && !matches!(hold.phase(), Phase::Lost(_)) {
            let ended = self.ended.contains(&hold.number);
            assert!(
                ended || unanswered,
                "unlocked with Ok, and it was lost before"
            );
        }
    }

    fn reap(&mut self, i: usize) {
        let hold = Arc::clone(&self.reaps[i].0);
        let reaping = std::mem::replace(&mut self.reaps[i].1, Reaping::Over);
        self.reaps[i].1 = match reaping {
            Reaping::Begun => {
                if let Some(command) = self.gate.release_of(&hold) {
                    Reaping::Sent(Some(command), command, self.now)
                } else {
                    let command = self.send(&hold, false, KEEPER);
                    Reaping::Sent(None, command, self.now)
                }
            }
            Reaping::Sent(in_seat, command, since) => {
                let over = self.settle_release(&hold, in_seat, command, since);
                // For as long as an old acquire may still run.
                match over {
                    false => Reaping::Begun,
                    true if hold.is_tainted() && !self.is_laid(&hold) => Reaping::Haunted,
                    true => Reaping::Over,
                }
            }
            Reaping::Haunted => Reaping::Begun,
            Reaping::Over => Reaping::Over,
        };
    }

    /// Whether no acquire of the hold can run any more, and what it may have got was released behind it.
    fn is_laid(&self, hold: &Arc<Hold>) -> bool {
        self.has_no_ghost(hold) && self.held_by != Some(hold.number)
    }

    fn has_no_ghost(&self, hold: &Arc<Hold>) -> bool {
        let of_hold = |c: &&Command| c.acquires && c.hold.number == hold.number;
        let mut ghosts = self.commands.iter().filter(of_hold);
        ghosts.all(|c| c.executed.is_some() || c.refused)
    }

    fn next_of(&self, lane: usize) -> usize {
        let next = |c: &Command| c.lane == lane && c.executed.is_none() && !c.refused;
        self.commands.iter().position(next).unwrap()
    }

    fn execute(&mut self, lane: usize) {
        let next = self.next_of(lane);
        let number = self.commands[next].hold.number;
        let reply = if self.commands[next].acquires {
            if self.held_by.is_none_or(|by| by == number) {
                self.held_by = Some(number);
                -2
            } else {
                1000
            }
        } else if self.held_by == Some(number) {
            self.held_by = None;
            self.ended.insert(number);
            // Whoever waits here hears of it.
            2
        } else {
            0
        };
        self.commands[next].executed = Some(reply);
    }

    /// What holds after every step.
    fn check(&self, choice: Choice) {
        let holding: Vec<_> = self
            .callers
            .iter()
            .filter_map(|caller| match &caller.at {
                At::Holding(entered) => Some((caller, entered)),
                _ => None,
            })
            .collect();
        for (_, entered) in &holding {
            let phase = entered.hold.phase();
            let good = matches!(phase, Phase::Held | Phase::Lost(_));
            assert!(good, "{choice:?}: a guard for a hold that is {phase:?}");
        }
        let mut certain: Vec<_> = holding
            .iter()
            .filter(|(_, entered)| entered.hold.phase() == Phase::Held)
            .map(|(_, entered)| entered.hold.number)
            .collect();
        certain.dedup();
        assert!(certain.len() <= 1, "{choice:?}: two holders, {certain:?}");
        if let Some(held) = self
            .gate
            .seat
            .held()
            .filter(|hold| self.now < hold.valid_until())
        {
            let behind = |ticket: &Arc<Ticket>| {
                held.owner.is_some() && ticket.request.owner_number() == held.owner
            };
            let waits = self.gate.queue.iter().any(behind);
            assert!(!waits, "{choice:?}: an owner waits behind its own hold");
        }
        if let Seat::Held {
            uncollected: Some((ticket, _)),
            ..
        } = &self.gate.seat
        {
            let seen_to = self.job || !ticket.is_decided();
            assert!(seen_to, "{choice:?}: a grant that nobody takes back");
        }
        let deaf = matches!(self.asleep, Asleep::Linger);
        let waits = match &self.gate.seat {
            Seat::HandingOver { .. } => true,
            Seat::Trying(attempt) => attempt.overdue || !attempt.ticket.is_waiting(),
            Seat::Held {
                uncollected: Some((ticket, _)),
                ..
            } => ticket.is_decided(),
            _ => self.gate.has_queue(),
        };
        assert!(
            !(self.job && deaf && waits),
            "{choice:?}: a job that nobody told"
        );
        assert!(
            self.job || !self.gate.has_queue(),
            "{choice:?}: a queue that nobody serves"
        );
        assert_eq!(self.job, self.gate.job().is_some(), "{choice:?}");
        let claimed: HashSet<_> = self.reaps.iter().map(|(hold, _)| hold.number).collect();
        assert_eq!(
            claimed.len(),
            self.reaps.len(),
            "{choice:?}: one reaper a hold"
        );
    }

    /// What holds when nothing can happen any more.
    fn check_end(&self) {
        let held = self.callers.iter().any(|caller| match &caller.at {
            At::Holding(entered) => entered.hold.phase() == Phase::Held,
            At::Detached => true,
            _ => false,
        });
        assert!(!held, "nobody ends with a guard");
        for (i, caller) in self.callers.iter().enumerate() {
            match &caller.at {
                At::Waiting(..) if caller.manner == Manner::Sleeps => {}
                At::Waiting(ticket, _) => {
                    // Who waits for ever behind a stranger is polled by the clock, which is not among the choices.
                    let queued = self.gate.queue.contains(ticket.number);
                    assert!(queued && self.job, "caller {i} waits for nothing");
                }
                At::Unlocking(..) | At::Watching(_) => panic!("caller {i} waits for its release"),
                _ => {}
            }
        }
        let done = |c: &Caller| match &c.at {
            At::Gone | At::Start => true,
            // What nobody polls for waits, or was decided.
            At::Waiting(ticket, _) => c.manner == Manner::Sleeps && ticket.is_decided(),
            _ => false,
        };
        if self.callers.iter().all(done) {
            assert!(self.held_by.is_none_or(|by| by == 0), "a key is left");
            if !self.closed {
                assert!(!self.job, "a job is left");
                assert!(self.gate.is_unused(), "a gate is left");
            }
        }
    }

    /// All that the future depends on. Holds, tickets and commands go by their rank: which numbers they have
    /// makes no difference.
    fn fingerprint(&self) -> String {
        let mut text = self.seat_text();
        let gate = &self.gate;
        let queue: Vec<_> = gate
            .queue
            .iter()
            .map(|ticket| format!("t{}", ticket.number))
            .collect();
        let _ = write!(
            text,
            "|{queue:?} {:?} {:?} {} {} {} {:?}",
            (self.job, self.listening, self.asleep_text()),
            gate.known,
            gate.failing_since.is_some(),
            gate.prompt,
            gate.handed_over,
            gate.wakeups,
        );
        for caller in &self.callers {
            let _ = write!(
                text,
                "|{} {} {} {}",
                Self::caller_text(caller),
                caller.rounds,
                caller.owner_ended,
                caller.manner as u8
            );
        }
        for (of, reaping) in &self.reaps {
            let reaping = match reaping {
                Reaping::Over => continue,
                Reaping::Begun => "begun".to_owned(),
                Reaping::Haunted => "haunted".to_owned(),
                Reaping::Sent(in_seat, command, _) => format!("{} c{command}", in_seat.is_some()),
            };
            let _ = write!(text, "|reap {} {reaping}", hold_text(of));
        }
        for (i, c) in self.commands.iter().enumerate() {
            let open = c.executed.is_none() && !c.refused;
            let unsure = !c.acquires && c.ended && c.hold.outcome().is_ok();
            if open || unsure || text.contains(&format!("c{i}")) {
                let _ = write!(
                    text,
                    "|c{i} h{} {} {} {:?} {} {} {}",
                    c.hold.number, c.acquires, c.lane, c.executed, c.refused, c.reply_lost, c.ended
                );
            }
        }
        let _ = write!(
            text,
            "|{:?} {} {} {} {} {}",
            self.held_by.map(|by| format!("h{by}")),
            self.faults,
            self.polls,
            self.ticks,
            self.strangers,
            self.closed,
        );
        let waiting = self
            .busy_told
            .iter()
            .filter(|ticket| ticket.is_waiting())
            .count();
        let _ = write!(text, "|{waiting}");
        ranked(&text)
    }

    fn asleep_text(&self) -> String {
        match self.asleep {
            Asleep::Command(command) => format!("c{command}"),
            other => format!("{other:?}"),
        }
    }

    fn seat_text(&self) -> String {
        match &self.gate.seat {
            Seat::Free => "free".to_owned(),
            Seat::Trying(a) => format!("try {} {} {}", attempt_text(a), a.early, a.overdue),
            Seat::Held { hold, uncollected } => {
                let ticket = uncollected
                    .as_ref()
                    .map(|(ticket, _)| format!("t{}", ticket.number));
                format!("held {} {ticket:?}", hold_text(hold))
            }
            Seat::HandingOver { hold } => format!("over {}", hold_text(hold)),
            Seat::Releasing {
                hold,
                command,
                next,
                ..
            } => {
                let next = next.as_ref().map(attempt_text);
                let command = command.map(|command| format!("c{command}"));
                format!("release {} {command:?} {next:?}", hold_text(hold))
            }
        }
    }

    fn caller_text(caller: &Caller) -> String {
        match &caller.at {
            At::Start => "start".to_owned(),
            At::Looked => "looked".to_owned(),
            At::Waiting(ticket, first) => {
                let first = first.map(|command| format!("c{command}"));
                let unsettled = ticket.unsettled().map(|hold| hold_text(&hold));
                let breaks = ticket.breaks.load(std::sync::atomic::Ordering::Relaxed);
                let waits = ticket.is_waiting();
                format!(
                    "wait t{} {first:?} {unsettled:?} {breaks} {waits}",
                    ticket.number
                )
            }
            At::Holding(entered) => format!("hold {}", hold_text(&entered.hold)),
            At::Unlocking(hold, command, _) => format!("unlock {} c{command}", hold_text(hold)),
            At::Watching(hold) => format!("watch {}", hold_text(hold)),
            At::Detached => "detached".to_owned(),
            At::Gone => "gone".to_owned(),
        }
    }
}

fn hold_text(hold: &Hold) -> String {
    hold.with(|state: &mut State| format!("h{}:{state:?}", hold.number))
}

fn attempt_text(attempt: &Attempt<usize>) -> String {
    let Attempt {
        hold,
        ticket,
        command,
        ..
    } = attempt;
    format!("{} t{} c{command}", hold_text(hold), ticket.number)
}

/// The text with each number behind an `h`, `t` or `c` replaced by its rank among those.
fn ranked(text: &str) -> String {
    let is_start = |at: usize| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric())
    };
    let mut found: Vec<(usize, usize, char, u64)> = Vec::new();
    for (at, kind) in text.char_indices().filter(|(_, c)| "htc".contains(*c)) {
        let digits = &text[at + 1..];
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        if end > 0 && is_start(at) {
            found.push((at + 1, at + 1 + end, kind, digits[..end].parse().unwrap()));
        }
    }
    let all: BTreeSet<_> = found
        .iter()
        .map(|(_, _, kind, number)| (*kind, *number))
        .collect();
    let mut ranked = String::with_capacity(text.len());
    let mut done = 0;
    for (begin, end, kind, number) in found {
        let rank = all
            .iter()
            .filter(|known| known.0 == kind && known.1 < number)
            .count();
        ranked.push_str(&text[done..begin]);
        let _ = write!(ranked, "{rank}");
        done = end;
    }
    ranked.push_str(&text[done..]);
    ranked
}

fn replay(scenario: Scenario, choices: &[Choice]) -> World {
    let mut world = World::new(scenario);
    for choice in choices {
        world.step(*choice);
    }
    world
}

/// Goes through all orders of a scenario; how many states there were.
fn explore(scenario: Scenario) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let outcome = std::panic::catch_unwind(|| {
            let world = replay(scenario, &path);
            let choices = world.choices();
            if choices.is_empty() {
                world.check_end();
            }
            (world.fingerprint(), choices)
        });
        let (fingerprint, choices) = outcome.unwrap_or_else(|_| panic!("after {path:?}"));
        assert!(seen.len() < 300_000, "too many states, as after {path:?}");
        if seen.insert(fingerprint) {
            for choice in choices {
                let mut next = path.clone();
                next.push(choice);
                open.push(next);
            }
        }
    }
    seen.len()
}

const FOREVER: Patience = Patience::Forever;
const ONCE: Patience = Patience::Once;

const QUIET: Scenario = Scenario {
    callers: &[],
    faults: 0,
    polls: 1,
    ticks: 1,
    strangers: 0,
    closes: false,
    alone: false,
};

/// Waits for ever and unlocks; or is dropped somewhere.
const PLAIN: Role = (None, FOREVER, Manner::Unlocks, 1);
const CARELESS: Role = (None, FOREVER, Manner::Drops, 1);

fn all_orders(name: &str, scenario: Scenario, at_least: usize) {
    let states = explore(scenario);
    println!("{name}: {states} states");
    assert!(states >= at_least, "{name}: only {states} states");
}

/// Longer ones than can all be gone through: one order each, at random.
#[test]
fn ten_thousand_random_orders() {
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let roles = [
            PLAIN,
            CARELESS,
            (Some(1), FOREVER, Manner::Unlocks, 2),
            (Some(1), FOREVER, Manner::Detaches, 2),
            (None, ONCE, Manner::Drops, 2),
        ];
        let callers: Vec<Role> = (0..4).map(|_| roles[random.usize(..roles.len())]).collect();
        let scenario = Scenario {
            callers: Vec::leak(callers),
            faults: random.u32(..4),
            polls: random.u32(..6),
            ticks: random.u32(..3),
            strangers: random.u32(..3),
            closes: random.bool(),
            alone: random.bool(),
        };
        let mut taken = Vec::new();
        let walked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(scenario);
            for _ in 0..200 {
                let choices = world.choices();
                let Some(choice) = random.choice(choices) else {
                    world.check_end();
                    break;
                };
                taken.push(choice);
                world.step(choice);
            }
        }));
        assert!(walked.is_ok(), "seed {seed}: {scenario:?} after {taken:?}");
    }
}

#[test]
fn two_callers_and_a_fault() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        faults: 1,
        ticks: 0,
        ..QUIET
    };
    all_orders("a fault", scenario, 10_000);
}

#[test]
fn a_caller_behind_one_that_is_not_polled() {
    let scenario = Scenario {
        callers: &[(None, FOREVER, Manner::Sleeps, 1), PLAIN],
        polls: 2,
        ..QUIET
    };
    all_orders("not polled", scenario, 500);
}

#[test]
fn two_callers_whose_grants_lie_there_for_a_time_out() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        ..QUIET
    };
    all_orders("a time-out", scenario, 1_000);
}

#[test]
fn one_caller_and_two_faults() {
    let scenario = Scenario {
        callers: &[PLAIN],
        faults: 2,
        ..QUIET
    };
    all_orders("two faults", scenario, 1_000);
}

#[test]
fn an_owner_that_acquires_twice_at_once() {
    let scenario = Scenario {
        callers: &[
            (Some(1), FOREVER, Manner::Unlocks, 1),
            (Some(1), FOREVER, Manner::Drops, 1),
        ],
        ..QUIET
    };
    all_orders("one owner", scenario, 500);
}

#[test]
fn an_owner_that_ends_while_its_guards_are_detached() {
    let scenario = Scenario {
        callers: &[
            (Some(1), FOREVER, Manner::Detaches, 1),
            (Some(1), FOREVER, Manner::Drops, 1),
        ],
        ticks: 0,
        ..QUIET
    };
    all_orders("detached", scenario, 500);
}

#[test]
fn one_try_beside_those_who_wait_behind_a_stranger() {
    let scenario = Scenario {
        callers: &[CARELESS, PLAIN, (None, ONCE, Manner::Unlocks, 1)],
        strangers: 1,
        polls: 0,
        ticks: 0,
        ..QUIET
    };
    all_orders("one try", scenario, 500);
}

#[test]
fn a_lock_that_is_handed_over() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        faults: 1,
        polls: 0,
        ticks: 0,
        alone: true,
        ..QUIET
    };
    all_orders("handed over", scenario, 500);
}

#[test]
fn a_client_that_ends_behind_its_callers() {
    for alone in [false, true] {
        let scenario = Scenario {
            callers: &[CARELESS, PLAIN],
            closes: true,
            alone,
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders("closed", scenario, 200);
    }
}
