//! Steps of a job at a gate that was set up for them.

use super::*;
use crate::engine::gate::LastAnswer;
use crate::engine::gate::seat::Attempt;
use crate::engine::gate::shared_hold::SharedHold;
use crate::engine::gate::ticket::{KEPT_FOR, Verdict};
use crate::engine::hold::state::{Left, Level};
use crate::engine::made_tests::{RULES, Sort, at, held, hold, request, ticket};

fn step(gate: &mut Gate<u32>, now: Moment, listening: bool) -> Step<u32> {
    let mut effects = Effects::at(now, RULES);
    let step = gate.step(listening, &mut effects);
    let _ = effects.carry_out();
    step
}

fn attempt(number: u64) -> Attempt<u32> {
    Attempt::new(hold(number), ticket(number, Sort::Plain), 20, at(0))
}

/// A caller of this client reads, and Redis did not report other waiters.
fn read() -> Gate<u32> {
    let shared = SharedHold::new(held(1, Level::Watchdog), false);
    Gate {
        seat: Seat::Shared { shared, join: None },
        ..Gate::default()
    }
}

#[test]
fn a_job_without_work_listens_for_a_while_and_is_over_then() {
    let mut gate = Gate {
        job: Some(Arc::default()),
        ..Gate::default()
    };
    gate.wakeups.set_listening(true);
    gate.wakeups.expect_echo(1);
    gate.job_sleeps_until(at(5));
    assert!(matches!(step(&mut gate, at(1), true), Step::Linger));
    assert_eq!(gate.job_sleeps_until, Moment::NEVER);
    assert!(gate.job.is_some());
    assert!(matches!(step(&mut gate, at(1), false), Step::Over));
    assert!(gate.job.is_none());
    assert_eq!(gate.received(1, at(1)), 1, "it is nobody's echo any more");
}

#[test]
fn who_is_late_is_answered_and_the_next_one_tries_at_once() {
    let mut gate = Gate {
        last_answer: LastAnswer::Busy(None),
        ..Gate::default()
    };
    let late = Ticket::new(1, request(Sort::Plain, Patience::Until(at(2))));
    let next = ticket(2, Sort::Plain);
    for waiter in [&late, &next] {
        gate.queue.insert(Arc::clone(waiter));
    }
    match step(&mut gate, at(2), true) {
        Step::Serve { head, at_once, .. } => assert!(Arc::ptr_eq(&head, &next) && at_once),
        _ => panic!("somebody waits"),
    }
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let word = late.poll(&mut context);
    assert!(matches!(word, std::task::Poll::Ready(Verdict::Busy(_))));
    match step(&mut gate, at(2), true) {
        Step::Serve { at_once, .. } => assert!(!at_once, "it tries already"),
        _ => panic!("somebody waits"),
    }
}

#[test]
fn while_somebody_asks_for_a_read_those_that_lie_there_are_watched() {
    let mut gate = read();
    let decided = ticket(2, Sort::Reads);
    let mut effects = Effects::at(at(1), RULES);
    decided.decide(Verdict::Again, &mut effects);
    let _ = effects.carry_out();
    gate.expect_collection(&decided, &Effects::at(at(3), RULES));
    let by = at(3) + KEPT_FOR;
    let watches = |step| matches!(step, Step::Watch { collect_by } if collect_by == Some(by));
    assert!(watches(step(&mut gate, at(3), true)));
    gate.queue.insert(ticket(3, Sort::Reads));
    match step(&mut gate, at(3), true) {
        Step::Serve { collect_by, .. } => assert_eq!(collect_by, Some(by)),
        _ => panic!("somebody may have a read"),
    }
}

#[test]
fn a_read_is_asked_for_by_one_at_a_time_who_may_have_one() {
    let mut gate = read();
    let (reader, writer) = (ticket(2, Sort::Reads), ticket(3, Sort::Writes));
    for waiter in [&reader, &writer] {
        gate.queue.insert(Arc::clone(waiter));
    }
    let try_head = |gate: &mut Gate<u32>, head: &Arc<Ticket>| {
        gate.try_head(head, at(1), |shared| (Arc::clone(shared.unwrap()), 20))
    };
    assert!(!try_head(&mut gate, &writer));
    assert!(try_head(&mut gate, &reader));
    let second = ticket(1, Sort::Reads);
    gate.queue.insert(Arc::clone(&second));
    assert!(!try_head(&mut gate, &second), "another one asks");
    assert!(gate.is_queued(&second) && gate.is_queued(&writer));
}

#[test]
fn what_is_overdue_is_the_command_of_its_hold() {
    let mut gate = Gate::default();
    let trying = attempt(2);
    let hold = Arc::clone(&trying.hold);
    gate.seat = Seat::Trying(trying);
    let is_overdue = |gate: &Gate<u32>| match &gate.seat {
        Seat::Trying(attempt) => attempt.overdue,
        _ => panic!("it is tried for"),
    };
    let other = held(3, Level::Watchdog);
    let mut effects = Effects::at(at(1), RULES);
    assert_eq!(gate.overdue(&other, &mut effects), None);
    assert!(!is_overdue(&gate));
    assert_eq!(gate.overdue(&hold, &mut effects), Some(20));
    assert!(is_overdue(&gate));
    assert!(effects.carry_out().releases.is_empty());
}

#[test]
fn a_release_that_is_overdue_is_left_to_the_keeper() {
    let mut gate = Gate::default();
    let (over, other) = (held(2, Level::Watchdog), held(3, Level::Watchdog));
    for hold in [&over, &other] {
        let left = hold.with(|state| state.leave(Level::Watchdog, at(1), at(6)));
        assert_eq!(left, Left::Last);
    }
    gate.seat.release(&over, Some(7), None, at(1));
    for (hold, command, left) in [(&other, None, 0), (&over, Some(7), 1)] {
        let mut effects = Effects::at(at(1), RULES);
        assert_eq!(gate.overdue(hold, &mut effects), command);
        assert_eq!(effects.carry_out().releases.len(), left);
    }
}

#[test]
fn a_grant_that_is_not_collected_is_taken_out_once() {
    let decided = ticket(2, Sort::Reads);
    let mut effects = Effects::at(at(1), RULES);
    decided.decide(Verdict::Again, &mut effects);
    let _ = effects.carry_out();
    let mut gate = Gate::<u32>::default();
    gate.expect_collection(&decided, &Effects::at(at(3), RULES));
    assert_eq!(gate.uncollected().map(|grant| grant.since), Some(at(3)));
    assert!(gate.take_uncollected().is_some());
    assert!(gate.take_uncollected().is_none());
    assert!(gate.uncollected().is_none());
}
