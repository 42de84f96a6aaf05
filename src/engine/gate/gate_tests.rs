//! The gate by itself: what a message changes, and how long a gate exists.

use super::answers::{Answered, Grant, ReleaseAnswer, SentAs, Settled};
use super::ticket::Request;
use super::*;
use crate::engine::made_tests::{RULES, Sort, at, hold, request, ticket};
use crate::lease::LeaseMs;
use crate::names::Family;
use crate::script::Reply;

/// Listens, and expects the message of one release of its own.
fn gate(last_answer: LastAnswer) -> Gate<u32> {
    let mut gate = Gate {
        last_answer,
        ..Gate::default()
    };
    gate.wakeups.set_listening(true);
    gate.wakeups.expect_echo(1);
    gate
}

#[test]
fn a_message_of_somebody_else_ends_what_is_known_of_a_busy_lock() {
    let mut busy = gate(LastAnswer::Busy(None));
    assert_eq!(busy.received(1, at(1)), 0, "the echo of our own release");
    assert!(matches!(busy.last_answer, LastAnswer::Busy(_)));
    assert_eq!(busy.received(2, at(1)), 2);
    assert!(matches!(busy.last_answer, LastAnswer::Nothing));
}

#[test]
fn a_message_says_nothing_of_what_failed() {
    let mut failed = gate(LastAnswer::Failed(Failure::no_reply()));
    assert_eq!(failed.received(3, at(1)), 2);
    assert!(matches!(failed.last_answer, LastAnswer::Failed(_)));
}

#[test]
fn a_gate_exists_for_as_long_as_it_is_used() {
    let gates = Gates::new();
    let names = Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap());
    gates.with(&names, |_| ());
    assert!(gates.names().is_empty(), "a look leaves nothing");
    gates.with(&names, |gate| gate.job = Some(Arc::default()));
    assert_eq!(gates.names().len(), 1);
    gates.with(&names, |gate| gate.job = None);
    assert!(gates.names().is_empty());
}

#[test]
fn maps_shrink_when_few_gates_are_left() {
    const MANY: usize = 20_000;
    let gates = Gates::new();
    let names = (0..MANY).map(|number| Names::of(&Family::PLAIN, "", &number.to_string()));
    let names: Vec<_> = names.map(|names| Arc::new(names.unwrap())).collect();
    let room = || {
        let shards = gates.shards.iter();
        shards.map(|shard| shard.lock().capacity()).sum::<usize>()
    };
    for names in &names {
        gates.with(names, |gate| gate.job = Some(Arc::default()));
    }
    assert!(room() >= MANY);
    for names in &names {
        gates.with(names, |gate| gate.job = None);
    }
    let most = LEAST * gates.shards.len();
    assert!(gates.names().is_empty() && room() <= most, "{}", room());
}

fn grant(sent_at: Moment) -> Answered {
    Answered::Got(Grant {
        sent_at,
        server_age: None,
        reply: Reply::Done(1),
    })
}

/// Lets `ticket`, whose lease is a second, be tried for at `now`. Its grant is answered after the end of that, and given back.
fn granted_too_late(gate: &mut Gate<u32>, ticket: &Arc<Ticket>, number: u32, now: Moment) {
    let tried = hold(number.into());
    let mut effects = Effects::at(now + RULES.command_timeout / 2, RULES);
    if gate.is_queued(ticket) {
        assert!(gate.try_head(ticket, now, |_| (Arc::clone(&tried), number)));
    } else {
        gate.arrive(ticket, &mut effects, |_| (Arc::clone(&tried), number));
    }
    let _ = gate.answered(&number, grant(now), &mut effects);
    let ended = ReleaseAnswer::Ended { heard_by: None };
    gate.release_answered(&tried, &SentAs::Keeper(now), ended, &mut effects);
    let _ = effects.carry_out();
}

/// Others have their turns in between, so nobody waits for ever behind a lease that is too short.
#[test]
fn a_caller_that_was_answered_busy_between_two_late_grants_is_tried_for_again() {
    let mut gate = Gate::<u32>::default();
    let fixed = Request {
        lease: LeaseMs::from_millis(1_000),
        level: Level::Fixed,
        ..request(Sort::Plain, Patience::Forever)
    };
    let ticket = Ticket::new(1, fixed);
    granted_too_late(&mut gate, &ticket, 11, at(1));
    assert!(gate.try_head(&ticket, at(5), |_| (hold(12), 12)));
    let mut effects = Effects::at(at(6), RULES);
    let _ = gate.answered(&12, Answered::Busy(None), &mut effects);
    let _ = effects.carry_out();
    granted_too_late(&mut gate, &ticket, 13, at(20));
    assert!(ticket.is_waiting());
    granted_too_late(&mut gate, &ticket, 14, at(31));
    assert!(!ticket.is_waiting(), "all were late for long enough");
}

/// Only a hold that is to be joined can be missing. A try that starts one would be repeated at once, for ever.
#[test]
fn a_server_that_says_of_a_new_hold_that_it_is_missing_is_not_asked_again() {
    let mut gate = Gate::<u32>::default();
    let waits = ticket(1, Sort::Plain);
    let mut effects = Effects::at(at(1), RULES);
    gate.arrive(&waits, &mut effects, |_| (hold(11), 11));
    let settled = gate.answered(&11, Answered::Missing, &mut effects);
    assert!(matches!(settled, Some((_, Settled::Over))));
    assert!(waits.is_decided() && gate.queue.is_empty());
    let _ = effects.carry_out();
}
