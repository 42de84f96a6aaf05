//! Each reply in the scripts' headers has its meaning, and no other reply has one.

use super::*;
use crate::lease::LeaseMs;
use crate::names::{Family, Names};
use crate::script::{fair, fenced, lock, rw};

fn one(code: i64) -> Reply {
    Reply::Integer(code)
}

fn many(codes: &[i64]) -> Reply {
    Reply::Integers(codes.into())
}

fn busy_for(ms: u64) -> Acquired {
    Acquired::Busy(Some(Duration::from_millis(ms)))
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

const BUSY: Option<Acquired> = Some(Acquired::Busy(None));

#[test]
fn values_are_reduced_to_integers() {
    let ints = |ints: &[i64]| Value::Array(ints.iter().map(|n| Value::Int(*n)).collect());
    assert_eq!(Reply::from_value(&Value::Int(7)), one(7));
    assert_eq!(Reply::from_value(&Value::Okay), Reply::Other);
    assert_eq!(Reply::from_value(&ints(&[1, -2])), many(&[1, -2]));
    let mixed = Value::Array(vec![Value::Int(1), Value::Nil]);
    assert_eq!(Reply::from_value(&mixed), Reply::Other);
    assert_eq!(Reply::from_value(&Value::Nil), Reply::Other);
    assert_eq!(one(7).integer(), Some(7));
    assert_eq!(many(&[7]).integer(), None);
}

#[test]
fn what_a_plain_acquire_is_answered() {
    for (reply, expected) in [
        (one(-2), Some(Acquired::Got(None))),
        (one(-3), Some(Acquired::WrongType)),
        (one(-1), BUSY),
        (one(0), Some(busy_for(0))),
        (one(30_000), Some(busy_for(30_000))),
        (one(-4), None),
        (many(&[-2]), None),
        (Reply::Other, None),
    ] {
        assert_eq!(lock::acquired(&reply), expected, "{reply:?}");
    }
}

#[test]
fn what_a_plain_release_is_answered() {
    let ended = |heard_by| {
        let heard_by = Some(heard_by);
        Some(Released::Ended { heard_by })
    };
    for (reply, expected) in [
        (one(0), Some(Released::Missing)),
        (one(-1), Some(Released::Unheard)),
        (one(1), ended(0)),
        (one(3), ended(2)),
        (one(-2), None),
        (one(i64::MAX), None),
        (Reply::Other, None),
    ] {
        assert_eq!(lock::released(&reply), expected, "{reply:?}");
    }
}

#[test]
fn what_is_said_of_a_plain_hold() {
    for (reply, found) in [
        (one(0), Some(false)),
        (one(1), Some(true)),
        (many(&[1]), None),
    ] {
        assert_eq!(lock::found(&reply), found, "{reply:?}");
        assert_eq!(lock::looked(&reply), found, "{reply:?}");
    }
}

#[test]
fn what_a_forced_release_is_answered() {
    let ended = |own, heard| Some(Forced::Ended { own, heard });
    for (reply, expected) in [
        (many(&[0, 0]), Some(Forced::Free)),
        (many(&[-3, 0]), Some(Forced::WrongType)),
        (many(&[1, 0]), ended(None, true)),
        (many(&[1, 7]), ended(Some(7), true)),
        (many(&[2, 7]), ended(Some(7), false)),
        (many(&[2, -1]), ended(None, false)),
        (many(&[3, 0]), None),
        (many(&[1]), None),
        (one(1), None),
    ] {
        assert_eq!(lock::forced(&reply), expected, "{reply:?}");
    }
}

#[test]
fn what_a_fenced_lock_is_answered() {
    for (reply, expected) in [
        (many(&[9]), Some(Acquired::Got(Some(token(9))))),
        (many(&[0]), None),
        (many(&[-1]), None),
        (many(&[1, 2]), None),
        (one(-2), None),
        (one(-3), Some(Acquired::WrongType)),
        (one(-4), Some(Acquired::TokenTooLarge)),
        (one(-1), BUSY),
        (one(500), Some(busy_for(500))),
    ] {
        assert_eq!(fenced::acquired(&reply), expected, "{reply:?}");
    }
    for (reply, expected) in [
        (many(&[9]), Some(Acquired::Got(Some(token(9))))),
        (many(&[1, 2]), None),
        (one(0), Some(Acquired::Missing)),
        (one(1), Some(Acquired::Got(None))),
        (one(-3), Some(Acquired::WrongType)),
        (one(-4), Some(Acquired::TokenTooLarge)),
        (one(2), None),
        (Reply::Other, None),
    ] {
        assert_eq!(fenced::entered(&reply), expected, "{reply:?}");
    }
    assert!(fenced::raised(&one(1)));
    for reply in [one(0), one(-3), Reply::Other] {
        assert!(!fenced::raised(&reply), "{reply:?}");
    }
}

#[test]
fn what_a_read_write_lock_is_answered() {
    for (reply, expected, open) in [
        (one(-2), Some(Acquired::Got(None)), true),
        (one(-6), Some(Acquired::Got(None)), false),
        (one(-3), Some(Acquired::WrongType), false),
        (one(-5), Some(Acquired::Missing), false),
        (one(-1), BUSY, false),
        (one(70), Some(busy_for(70)), false),
        (one(-4), None, false),
        (Reply::Other, None, false),
    ] {
        assert_eq!(rw::acquired(&reply), expected, "{reply:?}");
        assert_eq!(rw::is_open(&reply), open, "{reply:?}");
    }
    for (reply, found) in [
        (one(-5), Some(false)),
        (one(-2), Some(true)),
        (one(40), Some(true)),
        (Reply::Other, None),
    ] {
        assert_eq!(rw::found(&reply), found, "{reply:?}");
    }
    for (reply, expected) in [
        (one(0), Some(Released::Missing)),
        (one(-1), Some(Released::Unheard)),
        (one(-2), Some(Released::Ended { heard_by: None })),
        (one(1), Some(Released::Ended { heard_by: Some(0) })),
        (one(3), Some(Released::Ended { heard_by: Some(2) })),
        (one(-3), None),
        (Reply::Other, None),
    ] {
        assert_eq!(rw::released(&reply), expected, "{reply:?}");
    }
}

#[test]
fn what_a_fair_lock_is_answered() {
    for (reply, expected, next_is_ours) in [
        (many(&[-2, 0]), Some(Acquired::Got(None)), Some(false)),
        (many(&[-2, 1]), Some(Acquired::Got(None)), Some(true)),
        (many(&[-3, 0]), Some(Acquired::WrongType), None),
        (many(&[0, -1]), BUSY, None),
        (many(&[1, -1]), BUSY, None),
        (many(&[0, 60]), Some(busy_for(60)), None),
        (many(&[1, 60]), Some(busy_for(60)), None),
        (many(&[1, -2]), None, None),
        (many(&[2, 60]), None, None),
        (many(&[-2]), None, None),
        (one(-2), None, None),
    ] {
        assert_eq!(fair::acquired(&reply), expected, "{reply:?}");
        assert_eq!(fair::next_is_ours(&reply), next_is_ours, "{reply:?}");
    }
    for (reply, expected) in [
        (one(0), Some(Released::Missing)),
        (one(-1), Some(Released::Unheard)),
        (one(1), Some(Released::Ended { heard_by: None })),
        (one(2), Some(Released::Ended { heard_by: Some(1) })),
        (one(-2), None),
        (Reply::Other, None),
    ] {
        assert_eq!(fair::released(&reply), expected, "{reply:?}");
    }
    for (reply, expected) in [
        (many(&[3, 1]), Some((3, true))),
        (many(&[0, 0]), Some((0, false))),
        (many(&[-3, 0]), None),
        (one(3), None),
    ] {
        let place = fair::placed(&reply);
        let place = place.map(|place| (place.count, place.next_is_ours));
        assert_eq!(place, expected, "{reply:?}");
    }
}

#[test]
fn a_read_hold_that_is_asserted_by_its_lock_alone_has_another_key_to_assert() {
    let names = Names::of(&Family::PLAIN, "", "x").unwrap();
    let lease = LeaseMs::from_millis(100);
    for (reply, expected, more) in [
        (one(-5), Some(false), false),
        (one(0), Some(true), true),
        (one(-2), Some(true), false),
        (Reply::Other, None, false),
    ] {
        assert_eq!(rw::found(&reply), expected, "{reply:?}");
        let timeout = rw::assert_timeout(&names, "id", lease, &reply);
        assert_eq!(timeout.is_some(), more, "{reply:?}");
    }
}
