//! The bytes that are sent for a call.

use std::sync::Arc;

use super::*;
use crate::names::Family;
use crate::script::call::{ACQUIRE, ALL, RELEASE};
use crate::script::{Reply, lock, rw};

const LEASE: LeaseMs = LeaseMs::from_millis(30_000);

fn names() -> Names {
    let family = Family {
        others: &["marks"],
        ..Family::PLAIN
    };
    Names::of(&family, "", "x").unwrap()
}

fn hold(names: &Names) -> HoldRef<'_> {
    let (id, lease) = ("id", LEASE);
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
fn a_script_goes_by_its_digest_or_with_its_text() {
    let names = names();
    let call = Call::script(&RELEASE)
        .lock(&names)
        .key("second")
        .arg("id")
        .arg(u64::MAX);
    let sent = call.encode();
    assert_eq!(sent.digest(), Some(RELEASE.sha()));
    let rest = ["2", "x", "second", "id", "18446744073709551615"];
    let (name, sent_rest) = words(sent.cmd()).split_at_checked(2).map(owned).unwrap();
    assert_eq!(name, ["EVALSHA", RELEASE.sha()]);
    assert_eq!(sent_rest, rest);
    let text = sent.with_text().unwrap();
    let (name, sent_rest) = words(&text).split_at_checked(2).map(owned).unwrap();
    assert_eq!(name, ["EVAL", RELEASE.text]);
    assert_eq!(sent_rest, rest);
}

fn owned((head, rest): (&[String], &[String])) -> (Vec<String>, Vec<String>) {
    (head.to_vec(), rest.to_vec())
}

#[test]
fn a_plain_command_is_sent_as_it_is() {
    let sent = Call::plain("EXISTS").arg("x").encode();
    assert_eq!(words(sent.cmd()), ["EXISTS", "x"]);
    assert_eq!(sent.digest(), None);
    assert!(sent.with_text().is_none());
}

#[test]
fn how_a_script_publishes_is_its_last_argument_where_that_is_not_the_classic_way() {
    let call = Call::script(&RELEASE).arg("a").publishes();
    let mut sent = call.encode();
    let classic = words(sent.cmd());
    assert_eq!(classic.last().unwrap(), "a");
    let mut sharded = classic.clone();
    sharded.push("SPUBLISH".to_owned());
    // The call goes to several nodes, one after the other.
    for (publish, expected) in [
        (Publish::Classic, &classic),
        (Publish::Sharded, &sharded),
        (Publish::Sharded, &sharded),
        (Publish::Classic, &classic),
        (Publish::Classic, &classic),
        (Publish::Sharded, &sharded),
    ] {
        sent.publish_as(publish);
        assert_eq!(&words(sent.cmd()), expected);
    }
}

#[test]
fn what_does_not_publish_is_sent_alike_to_all() {
    let mut sent = Call::script(&ACQUIRE).arg("a").encode();
    let before = words(sent.cmd());
    sent.publish_as(Publish::Sharded);
    assert_eq!(words(sent.cmd()), before);
}

#[test]
fn a_call_on_a_lock_is_for_the_node_that_has_it() {
    let names = names();
    assert_eq!(Call::ping().target(), Target::Any);
    assert_ne!(names.target(), Target::Any);
    assert_eq!(Call::ping().lock(&names).target(), names.target());
    assert_eq!(Call::ping().for_node_of(&names).target(), names.target());
}

struct Takes(Arc<Names>);

impl Undoable for Takes {
    fn look(&self) -> Call<'_> {
        Call::plain("PTTL").arg("x")
    }

    fn undo<'a>(&'a self, hold_id: &'a str) -> Call<'a> {
        lock::release(&self.0, hold_id, 0)
    }

    fn boxed(&self) -> Box<dyn Undoable> {
        Box::new(Self(Arc::clone(&self.0)))
    }
}

#[test]
fn what_replicas_must_have_says_so_and_how_it_is_taken_back() {
    let call = || Call::script(&ACQUIRE);
    assert_eq!(call().order(), Order::Free);
    assert_eq!(call().in_order().order(), Order::Kept);
    assert_eq!(call().acknowledged().order(), Order::Acknowledged);
    assert!(call().undo().is_none());
    let takes = Takes(Arc::new(names()));
    let taken = call().undone_by(&takes, "id");
    let undo = taken.undo().unwrap();
    let expected = lock::release(&takes.0, "id", 0).encode();
    assert_eq!(words(undo.encode().cmd()), words(expected.cmd()));
}

#[test]
fn each_script_has_a_digest_of_its_own() {
    let digests: std::collections::HashSet<_> = ALL.iter().map(|script| script.sha()).collect();
    assert_eq!(digests.len(), ALL.len());
    let is_digest = |sha: &&str| sha.len() == 40 && sha.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(digests.iter().all(is_digest));
}

#[test]
fn a_read_hold_has_the_timeout_key_that_redisson_gives_it() {
    let names = names();
    let key = "{x}:id:rwlock_timeout:1".to_owned();
    let hold = hold(&names);
    for call in [
        rw::acquire_to_read(hold),
        rw::assert(hold, 1),
        rw::count(&names, "id", 1),
        rw::join(hold),
        rw::release(&names, "id"),
        rw::assert_timeout(hold, Reply::Done(1)).unwrap(),
        rw::downgrade(hold),
    ] {
        assert!(words(call.encode().cmd()).contains(&key));
    }
}

#[test]
fn a_mark_is_left_for_as_long_as_is_said() {
    use std::time::Duration;
    let names = names();
    let said = |mark| words(rw::mark(&names, "client", mark).encode().cmd())[6].clone();
    assert_eq!(said(Duration::ZERO), "0");
    assert_eq!(said(Duration::from_millis(1_500)), "1500");
    assert_eq!(said(Duration::MAX), u64::MAX.to_string());
    let write = rw::acquire_to_write(hold(&names), Duration::from_millis(700)).encode();
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
        let timeout = rw::assert_timeout(hold(&names), reply);
        assert_eq!(timeout.is_some(), more, "{reply:?}");
    }
}
