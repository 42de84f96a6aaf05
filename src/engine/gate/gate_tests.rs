//! The gate by itself: what a message changes, and how long a gate exists.

use super::*;
use crate::engine::made_tests::at;
use crate::names::Family;

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
