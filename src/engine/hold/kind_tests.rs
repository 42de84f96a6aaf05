//! What a kind says unless it says otherwise, and what it is asked by.

use super::*;
use crate::names::Family;
use crate::script::Order;

const LEASE: LeaseMs = LeaseMs::from_millis(30_000);

/// A kind without commands of its own.
struct Silent;

impl Commands for Silent {}

/// Callers get reads of its holds.
struct Shares {
    reads: bool,
}

impl Commands for Shares {
    fn has_reads(&self) -> bool {
        true
    }

    fn is_shared(&self) -> bool {
        self.reads
    }

    fn reenter_tokenless<'a>(
        &'a self,
        _names: &'a Names,
        _hold_id: &'a str,
        _count: u32,
        _lease: LeaseMs,
    ) -> Call<'a> {
        Call::plain("TOKEN")
    }
}

/// Redis keeps a queue for it.
struct Queued;

impl Commands for Queued {
    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(self)
    }

    fn is_open(&self, reply: &Reply) -> bool {
        *reply == Reply::Integer(1)
    }
}

impl RedisQueue for Queued {
    fn enqueue<'a>(&'a self, _: &'a Names, _: Option<&'a str>, _: &[&'a str]) -> Call<'a> {
        Call::ping()
    }

    fn vouch<'a>(&'a self, _: &'a Names, _: &'a str, _: &[&'a str]) -> Call<'a> {
        Call::ping()
    }

    fn placed(&self, _reply: &Reply) -> Option<Placed> {
        None
    }

    fn next_is_ours(&self, _reply: &Reply) -> Option<bool> {
        None
    }

    fn channel(&self, names: &Names, _hold_id: &str) -> Box<str> {
        names.channel().into()
    }
}

fn kind(commands: impl Commands + 'static) -> Kind {
    Kind {
        names: Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap()),
        commands: KindCommands::OfOne(Arc::new(commands)),
    }
}

fn sent(call: &Call) -> Vec<u8> {
    call.encode().cmd().get_packed_command()
}

#[test]
fn only_an_owner_is_let_in_to_what_it_has() {
    assert!(Silent.may_enter(Some(1), Some(1)));
    for (holds, asks) in [
        (Some(1), Some(2)),
        (Some(1), None),
        (None, Some(1)),
        (None, None),
    ] {
        assert!(!Silent.may_enter(holds, asks), "{holds:?} {asks:?}");
    }
}

#[test]
fn a_kind_that_says_nothing_is_had_by_one_and_waited_for_here() {
    assert!(!Silent.passes_on() && !Silent.has_reads() && !Silent.is_shared());
    assert!(!Silent.is_writer(), "there is nobody to share it with");
    assert!(!Silent.is_open(&Reply::Integer(-2)));
    assert!(Silent.backoff().is_none() && !kind(Silent).has_queue());
    assert!(Silent.downgraded().is_none());
    assert!(Shares { reads: false }.is_writer());
    assert!(!Shares { reads: true }.is_writer());
}

#[test]
fn what_is_granted_counts_when_replicas_have_it_and_what_is_given_back_waits_for_nobody() {
    let kind = kind(Silent);
    let sort = Try {
        waits: false,
        mark: Duration::ZERO,
    };
    let token = FencingToken::new(7);
    for call in [
        kind.acquire("id", LEASE, sort),
        kind.join("id", LEASE),
        kind.verify("id", LEASE),
        kind.reenter("id", token, 2, LEASE),
        kind.reenter("id", None, 2, LEASE),
    ] {
        assert_eq!(call.order(), Order::Acknowledged);
    }
    assert_eq!(kind.release("id", 0).order(), Order::Free);
    let undo = kind.acquire("id", LEASE, sort).undo().unwrap();
    assert!(undo.is_needed_behind(&Reply::Integer(-2)), "acquired");
    assert!(!undo.is_needed_behind(&Reply::Integer(500)), "busy");
    assert_eq!(
        undo.encode().cmd().get_packed_command(),
        sent(&kind.release("id", 0))
    );
    assert_eq!(
        sent(&kind.join("id", LEASE)),
        sent(&kind.verify("id", LEASE))
    );
}

#[test]
fn what_a_kind_says_of_itself_is_heard() {
    let queued = kind(Queued);
    assert!(queued.has_queue());
    assert!(queued.is_open(&Reply::Integer(1)));
    assert!(!queued.is_open(&Reply::Other));
}

#[test]
fn a_level_in_a_hold_without_a_token_is_asked_for_apart() {
    let kind = kind(Shares { reads: false });
    let plain = kind.commands.reenter(&kind.names, "id", 2, LEASE);
    let apart = Call::plain("TOKEN");
    let token = FencingToken::new(7);
    assert_eq!(sent(&kind.reenter("id", token, 2, LEASE)), sent(&plain));
    assert_eq!(sent(&kind.reenter("id", None, 2, LEASE)), sent(&apart));
    let silent = self::kind(Silent);
    assert_eq!(sent(&silent.reenter("id", None, 2, LEASE)), sent(&plain));
}

#[test]
fn replies_are_those_of_the_plain_lock() {
    let kind = kind(Silent);
    let of = Reply::Integer;
    assert_eq!(kind.entered(&of(1)), Some(Acquired::Got(None)));
    assert_eq!(kind.entered(&of(0)), Some(Acquired::Missing));
    assert_eq!(kind.entered(&Reply::Other), None);
    assert_eq!(kind.found(&of(1)), Some(true));
    assert_eq!(kind.found(&of(0)), Some(false));
    assert_eq!(kind.found(&Reply::Other), None);
    assert_eq!(kind.acquired(&of(-2)), Some(Acquired::Got(None)));
    assert_eq!(kind.released(&of(0)), Some(Released::Missing));
    assert_eq!(Silent.looked(&of(0)), Some(false));
    assert_eq!(Silent.looked(&of(1)), Some(true));
    let codes = Reply::Integers([0, 0].into());
    assert_eq!(Silent.forced(&codes), Some(Forced::Free));
    assert!(kind.verify_apart("id", LEASE, None).is_none());
    assert!(Silent.downgrade(&kind.names, "id", LEASE).is_none());
    assert!(Silent.mark(&kind.names, "client", Duration::ZERO).is_none());
}
