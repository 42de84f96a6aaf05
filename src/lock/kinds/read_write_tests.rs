//! What is sent for a read/write lock.

use redis::Cmd;

use super::*;
use crate::lease::LeaseMs;

const TRY: Try<'_> = Try {
    waits: true,
    note: Duration::from_millis(700),
    beside: &[],
};

fn names() -> Names {
    Names::of(&FAMILY, "", "x").unwrap()
}

fn hold(names: &Names) -> HoldRef<'_> {
    let (id, lease) = ("id", LeaseMs::from_millis(30_000));
    HoldRef { names, id, lease }
}

fn words(cmd: &Cmd) -> Vec<String> {
    let words = cmd.args_iter().map(|arg| match arg {
        redis::Arg::Simple(word) => String::from_utf8(word.to_vec()).unwrap(),
        _ => panic!("no word"),
    });
    words.collect()
}

#[test]
fn a_read_hold_has_the_timeout_key_that_redisson_gives_it() {
    let names = names();
    let key = "{x}:id:rwlock_timeout:1".to_owned();
    let (hold, read) = (hold(&names), Mode::Read);
    for call in [
        read.acquire(hold, TRY),
        read.verify(hold),
        read.reenter(hold, 1, false),
        Mode::Write.release(&names, "id", 1),
        read.join(hold),
        read.release(&names, "id", 0),
        read.verify_apart(hold, Some(Reply::Done(1))).unwrap(),
        Mode::Write.downgrade(hold).unwrap(),
    ] {
        assert!(words(call.encode().cmd()).contains(&key));
    }
}

#[test]
fn a_note_is_left_for_as_long_as_is_said() {
    let names = names();
    let said = |note| {
        let call = Mode::Write
            .note(&names, "client", Duration::ZERO, note)
            .unwrap();
        words(call.encode().cmd())[6].clone()
    };
    assert_eq!(said(Duration::ZERO), "0");
    assert_eq!(said(Duration::from_millis(1_500)), "1500");
    assert_eq!(said(Duration::MAX), u64::MAX.to_string());
    let write = Mode::Write.acquire(hold(&names), TRY).encode();
    assert_eq!(words(write.cmd()).last().unwrap(), "700");
}

#[test]
fn a_read_hold_that_is_asserted_by_its_lock_alone_has_another_key_to_assert() {
    let names = names();
    for (reply, found, more) in [
        (Reply::Gone, Some(false), false),
        (Reply::Done(1), Some(true), true),
        (Reply::Done(0), Some(true), false),
        (Reply::Other, None, false),
    ] {
        assert_eq!(reply.found(), found, "{reply:?}");
        let timeout = Mode::Read.verify_apart(hold(&names), Some(reply));
        assert_eq!(timeout.is_some(), more, "{reply:?}");
    }
}
