//! A gate of a counted lock, with callers, the keeper and a Redis that act in random orders: never more permits than there
//! are, nobody overtaken, nobody asleep beside permits that it may take, and nothing lost.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::backend::Failure;
use crate::engine::gate::Arrival;
use crate::engine::gate::answers::{Answered, GivenBack, Grant, ReleaseAnswer, SentAs, Settled};
use crate::engine::gate::next::Step;
use crate::engine::gate::ticket::Verdict;
use crate::engine::gate::ticket::{Patience, Request};
use crate::engine::hold::Origin;
use crate::engine::hold::Rules;
use crate::engine::hold::state::{Level, Phase};
use crate::engine::made_tests::{RULES, Sort, at, kind, origin, request};

const TOTAL: u32 = 4;

struct Caller {
    ticket: Arc<Ticket>,
    wants: u32,
    once: bool,
    /// Whether it was right to find the lock busy at any time since it came.
    was_busy: bool,
    hold: Option<Arc<Hold>>,
    over: bool,
}

#[derive(Clone, Copy)]
enum What {
    Try,
    Release,
}

#[derive(Clone)]
struct Command {
    id: u32,
    what: What,
    hold: Arc<Hold>,
    /// The holds of the tickets behind the one that it is for.
    beside: Vec<Arc<Hold>>,
    /// Whether Redis had it, and what it said: how many holds it is done for.
    executed: Option<u64>,
    /// Whether none was left then, or the next one did not fit.
    full: bool,
}

struct World {
    gate: Gate<u32>,
    rules: Rules,
    random: fastrand::Rng,
    free: u32,
    /// What Redis has recorded, by the id of the hold.
    records: BTreeMap<Arc<str>, u32>,
    passed_on: u32,
    strangers: u32,
    callers: Vec<Caller>,
    commands: Vec<Command>,
    /// Last releases that are left to the keeper.
    reaped: Vec<Arc<Hold>>,
    listening: bool,
    messages: u32,
    /// A message, or the confirmation of the subscription, for the job.
    permit: bool,
    /// The job is about to try for it, and does not have the lock of the gate.
    decided: Option<Arc<Ticket>>,
    next: u32,
    number: u64,
    faults: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            gate: Gate::default(),
            rules: Rules {
                passes_on: seed.is_multiple_of(2),
                ..RULES
            },
            random: fastrand::Rng::with_seed(seed),
            free: TOTAL,
            records: BTreeMap::new(),
            passed_on: 0,
            strangers: 0,
            callers: Vec::new(),
            commands: Vec::new(),
            reaped: Vec::new(),
            listening: false,
            messages: 0,
            permit: false,
            decided: None,
            next: 0,
            number: 0,
            faults: 2,
        }
    }

    fn command(&mut self, what: What, hold: &Arc<Hold>) -> u32 {
        self.next += 1;
        let (id, hold) = (self.next, Arc::clone(hold));
        self.commands.push(Command {
            id,
            what,
            hold,
            beside: Vec::new(),
            executed: None,
            full: false,
        });
        id
    }

    fn attempt(&mut self, ticket: &Ticket) -> (Arc<Hold>, u32) {
        let hold = self.attempt_for(ticket);
        let command = self.command(What::Try, &hold);
        (hold, command)
    }

    fn attempt_for(&mut self, ticket: &Ticket) -> Arc<Hold> {
        ticket.unsettled().unwrap_or_else(|| {
            self.number += 1;
            let wants = ticket.request.kind.commands.wants();
            let made = Origin {
                kind: kind(Sort::Permits(wants)),
                ..origin(self.number)
            };
            Hold::trying(made, Moment::NEVER)
        })
    }

    fn carry_out(&mut self, effects: Effects) {
        let work = effects.carry_out();
        self.reaped.extend(work.releases);
        self.gate.start_job();
    }

    fn arrives(&mut self) {
        let wants = self.random.u32(1..=3);
        let once = self.random.u8(0..4) == 0;
        let patience = if once {
            Patience::Once
        } else {
            Patience::Forever
        };
        self.number += 1;
        let ticket = Ticket::new(self.number, request(Sort::Permits(wants), patience));
        let mut effects = Effects::at(at(1), self.rules);
        let (hold, command) = self.attempt(&ticket);
        let first = command;
        let arrival = self.gate.arrive(&ticket, &mut effects, |_| (hold, command));
        if !matches!(arrival, Arrival::First(..)) {
            self.commands.retain(|command| command.id != first);
        }
        if matches!(arrival, Arrival::Decided(Verdict::Busy(_))) {
            ticket.decide(Verdict::Busy(None), &mut effects);
        }
        self.callers.push(Caller {
            ticket,
            wants,
            once,
            was_busy: false,
            hold: None,
            over: false,
        });
        self.see_busy();
        self.carry_out(effects);
    }

    /// Notes whose "busy" would be right now: who wants more than there is, or comes behind others.
    fn see_busy(&mut self) {
        let mut ahead = false;
        for caller in &mut self.callers {
            let waits = !caller.over && caller.ticket.is_waiting();
            caller.was_busy |= ahead || self.free < caller.wants;
            ahead |= waits;
        }
    }

    fn execute(&mut self, index: usize) {
        let Command {
            what, hold, beside, ..
        } = self.commands[index].clone();
        let done = match what {
            What::Try => {
                let asked = 1 + beside.len() as u64;
                let holds = std::iter::once(hold).chain(beside);
                let granted = holds.take_while(|hold| self.takes(hold)).count() as u64;
                self.commands[index].full = granted < asked || self.free < 1;
                granted
            }
            What::Release => self.give_back(&hold.id).into(),
        };
        self.commands[index].executed = Some(done);
        self.see_busy();
    }

    /// Redis grants a request, if it fits.
    fn takes(&mut self, hold: &Hold) -> bool {
        let wants = hold.kind.commands.wants();
        if self.records.contains_key(&hold.id) {
            return true;
        }
        let fits = self.free >= wants;
        if fits {
            self.free -= wants;
            self.records.insert(Arc::clone(&hold.id), wants);
        }
        fits
    }

    fn give_back(&mut self, id: &str) -> bool {
        let back = self.records.remove(id);
        self.free += back.unwrap_or(0);
        self.messages += u32::from(back.is_some() && self.listening);
        back.is_some()
    }

    fn answer(&mut self, index: usize, lost: bool) {
        let command = self.commands.remove(index);
        let granted = command.executed.unwrap_or(0);
        let done = granted > 0;
        let mut effects = Effects::at(at(1), self.rules);
        match command.what {
            What::Try => {
                let grant = Grant {
                    sent_at: at(1),
                    server_age: None,
                    reply: if command.full {
                        Reply::NextIsBusy(granted, None)
                    } else {
                        Reply::Done(granted)
                    },
                };
                let answer = match (lost, done) {
                    (true, _) => Answered::Failed(Failure::no_reply()),
                    (false, true) => Answered::Got(grant),
                    (false, false) => Answered::Busy(None),
                };
                let waiting = self.waiting();
                let gate = &mut self.gate;
                let settled = gate.answered(&command.id, answer, &mut effects);
                let (hold, settled) = settled.expect("nobody else settles it");
                if settled == Settled::Over {
                    hold.end(Ok(()));
                }
                // Who was granted came before all that still wait. A single try may have found it busy.
                let patient = self.callers.iter().filter(|caller| !caller.once);
                let patient = patient.filter(|caller| waiting.contains(&caller.ticket.number));
                let decided: Vec<_> = patient.map(|caller| caller.ticket.is_decided()).collect();
                assert!(
                    decided.is_sorted_by(|first, next| first >= next),
                    "somebody was overtaken"
                );
            }
            What::Release => {
                let answer = match (lost, done) {
                    (true, _) => ReleaseAnswer::Failed(Failure::no_reply()),
                    (false, true) => ReleaseAnswer::Ended { heard_by: Some(1) },
                    (false, false) => ReleaseAnswer::Missing,
                };
                let sent = SentAs::Seat(&command.id);
                let gate = &mut self.gate;
                gate.release_answered(&command.hold, &sent, answer, &mut effects);
            }
        }
        self.carry_out(effects);
    }

    /// The numbers of the tickets that wait, in their order.
    fn waiting(&self) -> Vec<u64> {
        let waits = self.callers.iter().filter(|caller| !caller.over);
        let waits = waits.filter(|caller| caller.ticket.is_waiting());
        waits.map(|caller| caller.ticket.number).collect()
    }

    fn reap(&mut self) {
        let hold = self.reaped.remove(0);
        let answer = if self.give_back(&hold.id) {
            ReleaseAnswer::Ended { heard_by: Some(1) }
        } else {
            ReleaseAnswer::Missing
        };
        let (sent, mut effects) = (SentAs::Keeper(at(1)), Effects::at(at(1), self.rules));
        self.gate
            .release_answered(&hold, &sent, answer, &mut effects);
        // A tainted hold is given back again.
        let _ = effects.carry_out();
        self.see_busy();
    }

    fn job(&mut self) {
        if let Some(head) = self.decided.take() {
            self.tries(&head);
            return;
        }
        if self.gate.job().is_none() {
            return;
        }
        let mut effects = Effects::at(at(1), self.rules);
        let step = self.gate.step(true, &mut effects);
        self.carry_out(effects);
        let Step::Serve { head, at_once, .. } = step else {
            return;
        };
        if at_once || std::mem::take(&mut self.permit) {
            self.decided = Some(head);
        } else if !self.listening {
            self.listening = true;
            self.gate.set_listening(true);
            self.permit = true;
        }
    }

    fn tries(&mut self, head: &Arc<Ticket>) {
        let known = self.next;
        let (hold, command) = self.attempt(head);
        let beside = self.gate.beside(head).into_iter();
        let beside = beside.map(|ticket| {
            let hold = self.attempt_for(&ticket);
            (ticket, hold)
        });
        let beside: Vec<_> = beside.collect();
        if let Some(command) = self.commands.last_mut() {
            command.beside = beside.iter().map(|(_, hold)| Arc::clone(hold)).collect();
        }
        if self.gate.try_head(head, at(1), |_| (hold, command)) {
            self.gate.tries_beside(beside);
        } else {
            self.commands.retain(|command| command.id <= known);
        }
    }

    fn hears(&mut self) {
        self.messages -= 1;
        self.permit |= self.gate.received(1, at(1)) > 0;
    }

    fn polls(&mut self, index: usize) {
        let mut context = Context::from_waker(Waker::noop());
        let caller = &mut self.callers[index];
        if caller.over || caller.hold.is_some() {
            return;
        }
        match caller.ticket.poll(&mut context) {
            Poll::Pending => {}
            Poll::Ready(Verdict::Granted(hold)) => caller.hold = Some(hold),
            Poll::Ready(Verdict::Busy(_)) => {
                assert!(caller.once && caller.was_busy, "there were permits for it");
                caller.over = true;
            }
            Poll::Ready(_) => {
                assert!(caller.once, "only a single try fails by a lost reply");
                caller.over = true;
            }
        }
    }

    /// It gives its permits back, or goes away.
    fn leaves(&mut self, index: usize) {
        let mut effects = Effects::at(at(1), self.rules);
        let caller = &mut self.callers[index];
        if std::mem::replace(&mut caller.over, true) {
            return;
        }
        let (ticket, hold) = (Arc::clone(&caller.ticket), caller.hold.take());
        let (hold, sends) = match hold {
            Some(hold) => (Some(hold), self.random.bool()),
            None => (self.gate.withdraw(&ticket, &mut effects), false),
        };
        if let Some(hold) = hold {
            let command = self.command(What::Release, &hold);
            let send = sends.then_some(|| command);
            let gate = &mut self.gate;
            let back = gate.give_back(&hold, Level::Watchdog, send, &mut effects);
            self.passed_on += u32::from(matches!(back, GivenBack::PassedOn));
            if !matches!(back, GivenBack::Sent(_)) {
                self.commands.retain(|known| known.id != command);
            }
        }
        self.carry_out(effects);
        self.see_busy();
    }

    fn stranger(&mut self) {
        if self.strangers > 0 && self.random.bool() {
            self.strangers -= 1;
            self.free += 1;
            self.messages += u32::from(self.listening);
        } else if self.free > 0 {
            self.strangers += 1;
            self.free -= 1;
        }
        self.see_busy();
    }

    fn check(&self) {
        let recorded: u32 = self.records.values().sum();
        assert_eq!(self.free + recorded + self.strangers, TOTAL);
        let held = self.gate.holds().filter(|hold| hold.phase() == Phase::Held);
        let mut valid = 0;
        for hold in held {
            assert!(self.records.contains_key(&hold.id), "{}", hold.number);
            valid += hold.kind.commands.wants();
        }
        assert!(valid + self.strangers <= TOTAL);
    }

    fn executed(&self, executed: bool) -> Option<usize> {
        let mut commands = self.commands.iter();
        commands.position(|command| command.executed.is_some() == executed)
    }

    fn step(&mut self) {
        let caller = (!self.callers.is_empty()).then(|| self.random.usize(..self.callers.len()));
        match (self.random.u8(0..10), caller) {
            (0, _) if self.waiting().len() < 6 => self.arrives(),
            (1, _) => self.stranger(),
            (2, Some(caller)) => self.leaves(caller),
            (3, Some(caller)) => self.polls(caller),
            (4, _) if !self.reaped.is_empty() => self.reap(),
            (5, _) if self.messages > 0 => self.hears(),
            (6, _) => self.job(),
            (7, _) if !self.commands.is_empty() => {
                let index = self.random.usize(..self.commands.len());
                if self.commands[index].executed.is_none() {
                    self.execute(index);
                }
            }
            (_, _) => {
                if let Some(index) = self.executed(true) {
                    let lost = self.faults > 0 && self.random.u8(0..20) == 0;
                    self.faults -= u32::from(lost);
                    self.answer(index, lost);
                }
            }
        }
        self.check();
    }

    /// Lets everything that is under way come to its end.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if let Some(index) = self.executed(false) {
                self.execute(index);
            } else if let Some(index) = self.executed(true) {
                self.answer(index, false);
            } else if !self.reaped.is_empty() {
                self.reap();
            } else if self.messages > 0 {
                self.hears();
            } else {
                let before = (self.next, self.listening);
                self.job();
                if before == (self.next, self.listening) && self.decided.is_none() {
                    return;
                }
            }
            self.check();
        }
        panic!("it does not end");
    }

    fn end(mut self) {
        self.settle();
        // No fault is in the way any more: who waits now does so because there are too few permits.
        let head = self.gate.head();
        if let Some(head) = head.filter(|_| self.faults == 2) {
            let wants = head.request.kind.commands.wants();
            assert!(self.free < wants, "it sleeps beside {} permits", self.free);
        }
        self.free += std::mem::take(&mut self.strangers);
        for caller in 0..self.callers.len() {
            self.polls(caller);
            self.leaves(caller);
        }
        self.settle();
        assert_eq!(
            (self.free, self.records.len()),
            (TOTAL, 0),
            "a permit is lost"
        );
        let mut effects = Effects::at(at(1), self.rules);
        let _ = self.gate.step(false, &mut effects);
        let _ = effects.carry_out();
        let _ = self.gate.withdraw_writer_waits();
        self.gate.writer_waits_withdrawn(at(1));
        assert!(self.gate.is_unused(), "something is left at the gate");
    }
}

#[test]
fn in_any_order_permits_are_never_too_many_and_nobody_is_overtaken_or_asleep_beside_them() {
    let (mut granted, mut passed_on) = (0, 0);
    for seed in 0..10_000 {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..150 {
                world.step();
            }
            let granted = world.callers.iter().filter(|c| c.hold.is_some()).count();
            let on = world.passed_on;
            world.end();
            (granted, on)
        });
        let (of_world, on) = outcome.unwrap_or_else(|_| panic!("seed {seed}"));
        granted += of_world;
        passed_on += on;
    }
    assert!(granted > 1_000, "{granted}");
    assert!(passed_on > 300, "{passed_on}");
}

/// The caller of the first came back often without being polled, so its grant is kept for longer.
#[test]
fn a_grant_that_is_kept_for_long_delays_taking_back_none_behind_it() {
    let mut gate = Gate::<u32>::default();
    // The last two are kept for a command time-out.
    for (number, rounds) in [(1, 5), (2, 0), (3, 1), (4, 0), (5, 8), (6, 6)] {
        let asked = Request {
            rounds,
            ..request(Sort::Permits(1), Patience::Forever)
        };
        let ticket = Ticket::new(number, asked);
        ticket.decide(Verdict::Busy(None), &mut Effects::at(at(1), RULES));
        gate.expect_collection(&ticket, &Effects::at(at(number), RULES));
    }
    let mut order = Vec::new();
    while let Some(ticket) = gate.take_uncollected() {
        order.push(ticket.number);
    }
    assert_eq!(order, [2, 3, 4, 1, 5, 6]);
}

#[test]
fn a_try_for_one_that_is_not_first_is_for_nobody_else() {
    let mut world = World::new(0);
    for _ in 0..5 {
        let ticket = Ticket::new(world.number, request(Sort::Permits(1), Patience::Forever));
        world.number += 1;
        world.gate.queue.insert(ticket);
    }
    let all: Vec<_> = world.gate.queue.iter().cloned().collect();
    assert_eq!(world.gate.beside(&all[0]).len(), 4);
    assert!(world.gate.beside(&all[2]).is_empty());
}
