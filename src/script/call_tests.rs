//! The bytes that are sent for a call.

use super::*;
use crate::names::Family;
use crate::script::call::{ACQUIRE, ALL, RELEASE};

fn names() -> Names {
    Names::of(&Family::PLAIN, "", "x").unwrap()
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
    assert_eq!(Call::ping().target, Target::Any);
    assert_ne!(names.target(), Target::Any);
    assert_eq!(Call::ping().lock(&names).target, names.target());
    assert_eq!(Call::ping().for_node_of(&names).target, names.target());
}

struct OnePttl;

impl Startable for OnePttl {
    fn look(&self) -> Call<'_> {
        Call::plain("PTTL").arg("x")
    }
}

#[test]
fn what_replicas_must_have_says_so_and_what_starts_a_hold_can_look_first() {
    let call = || Call::script(&ACQUIRE);
    assert_eq!(call().order, Order::Free);
    assert_eq!(call().in_order().order, Order::Kept);
    assert_eq!(call().acknowledged().order, Order::Acknowledged);
    assert!(call().look().is_none());
    let look = call().starts(&OnePttl).look().unwrap();
    assert_eq!(words(&look), words(OnePttl.look().encode().cmd()));
}

#[test]
fn each_script_has_a_digest_of_its_own() {
    let digests: std::collections::HashSet<_> = ALL.iter().map(|script| script.sha()).collect();
    assert_eq!(digests.len(), ALL.len());
    let is_digest = |sha: &&str| sha.len() == 40 && sha.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(digests.iter().all(is_digest));
}
