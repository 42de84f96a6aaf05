//! Each code of the table has its meaning, and no other reply has one.

use proptest::prelude::*;

use super::*;
use crate::script::any_reply_tests::{any_value, cases};

fn one(code: i64) -> Value {
    Value::Int(code)
}

fn many(numbers: &[i64]) -> Value {
    Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect())
}

fn token(number: u64) -> Reply {
    Reply::Token(FencingToken::new(number).unwrap())
}

#[test]
fn each_code_has_its_meaning() {
    let ms = |ms| Reply::Busy(Some(Duration::from_millis(ms)));
    for (value, expected) in [
        (one(0), ms(0)),
        (one(30_000), ms(30_000)),
        (one(i64::MAX), ms(i64::MAX.unsigned_abs())),
        (one(-1), Reply::Busy(None)),
        (one(-2), Reply::Done(0)),
        (many(&[-2, 7]), Reply::Done(7)),
        (one(-3), Reply::WrongType),
        (one(-4), Reply::TokenTooLarge),
        (one(-5), Reply::Gone),
        (one(-6), Reply::WriterWaits),
        (one(-7), Reply::Woke(0)),
        (many(&[-7, 2]), Reply::Woke(2)),
        (one(-8), Reply::Unheard(0)),
        (many(&[-8, 7]), Reply::Unheard(7)),
        (one(-9), Reply::NextIsOurs(0)),
        (many(&[-9, 3]), Reply::NextIsOurs(3)),
        (many(&[-10, 9]), token(9)),
        (many(&[-10, 1 << 53]), token(1 << 53)),
        (many(&[-11, 5]), Reply::DoneNegative(5)),
        (many(&[-12, 1 << 31]), Reply::OutOfRange(1 << 31)),
    ] {
        assert_eq!(Reply::from_value(&value), expected, "{value:?}");
        if let Value::Int(code) = value {
            // A number that is 0 may be left out.
            assert_eq!(Reply::from_value(&many(&[code, 0])), expected, "{code}");
        }
    }
}

#[test]
fn what_is_not_in_the_table_has_no_meaning() {
    let mixed = Value::Array(vec![Value::Int(-2), Value::Nil]);
    let text = Value::BulkString(b"-2".to_vec());
    let others = [Value::Okay, Value::Nil, Value::Boolean(true), text, mixed];
    let codes = [-13, -14, i64::MIN].map(one);
    let numbers = [-3, -4, -5, -6, -1, 0, 30_000, -13, -14].map(|code| many(&[code, 1]));
    let negative = [-2, -7, -8, -9, -10, -11, -12].map(|code| many(&[code, -1]));
    let tokens = [one(-10), many(&[-10, 0])];
    let shapes = [
        many(&[]),
        many(&[-2]),
        many(&[-2, 1, 1]),
        many(&[-7, 1 << 32]),
    ];
    let all = others
        .into_iter()
        .chain(codes)
        .chain(numbers)
        .chain(negative);
    for value in all.chain(tokens).chain(shapes) {
        assert_eq!(Reply::from_value(&value), Reply::Other, "{value:?}");
    }
}

#[test]
fn what_a_code_means_for_a_hold() {
    for (reply, is_grant, found, of_token) in [
        (Reply::Busy(None), false, None, None),
        (Reply::Done(0), true, Some(true), None),
        (Reply::WrongType, false, None, None),
        (Reply::TokenTooLarge, false, None, None),
        (Reply::Gone, false, Some(false), None),
        (Reply::WriterWaits, true, None, None),
        (Reply::Woke(1), false, None, None),
        (Reply::Unheard(0), false, Some(true), None),
        (Reply::NextIsOurs(0), true, None, None),
        (token(9), true, None, FencingToken::new(9)),
        (Reply::DoneNegative(1), false, None, None),
        (Reply::OutOfRange(1), false, None, None),
        (Reply::Other, false, None, None),
    ] {
        assert_eq!(reply.is_grant(), is_grant, "{reply:?}");
        assert_eq!(reply.found(), found, "{reply:?}");
        assert_eq!(reply.token(), of_token, "{reply:?}");
    }
}

proptest! {
    #![proptest_config(cases(10_000))]
    /// No reply makes the reader panic, and none stands for a lock that is busy for longer than an integer can say.
    #[test]
    fn every_reply_of_a_script_is_read(value in any_value()) {
        let reply = Reply::from_value(&value);
        if let Reply::Busy(Some(ttl)) = reply {
            prop_assert!(i64::try_from(ttl.as_millis()).is_ok());
        }
        let integers = match &value {
            Value::Int(_) => true,
            Value::Array(items) => items.len() == 2 && items.iter().all(|item| matches!(item, Value::Int(_))),
            _ => false,
        };
        prop_assert!(integers || reply == Reply::Other, "{:?}", value);
    }
}
