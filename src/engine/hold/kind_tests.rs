//! What a kind says unless it says otherwise, and what it is asked by.

use super::*;
use crate::names::Family;
use crate::script::Order;

const LEASE: LeaseMs = LeaseMs::from_millis(30_000);

/// A kind without commands of its own.
struct Silent;

impl Commands for Silent {}

/// Shares its hold in this way.
struct Shares(Sharing);

impl Commands for Shares {
    fn rules(&self) -> KindRules {
        KindRules {
            sharing: self.0,
            ..KindRules::DEFAULT
        }
    }

    fn reenter<'a>(&self, hold: HoldRef<'a>, count: u32, has_token: bool) -> Call<'a> {
        if has_token {
            Silent.reenter(hold, count, has_token)
        } else {
            Call::plain("TOKEN")
        }
    }
}

/// Redis keeps a queue for it.
struct Queued;

impl Commands for Queued {
    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(self)
    }
}

impl RedisQueue for Queued {
    fn enqueue<'a>(&self, _: &'a Names, _: Option<&'a str>, _: &[&'a str]) -> Call<'a> {
        Call::ping()
    }

    fn vouch<'a>(&self, _: &'a Names, _: &'a str, _: &[&'a str]) -> Call<'a> {
        Call::ping()
    }

    fn length<'a>(&self, names: &'a Names) -> Call<'a> {
        Call::plain("LLEN").lock(names)
    }

    fn channel(&self, names: &Names, _hold_id: &str) -> Box<str> {
        names.channel().into()
    }
}

fn kind(commands: impl Commands + 'static) -> Kind {
    Kind {
        names: Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap()),
        commands: KindCommands::OfOne(Arc::new(commands)),
        metrics: crate::report::LockMetrics::default(),
    }
}

fn sent(call: &Call) -> Vec<u8> {
    call.encode().cmd().get_packed_command()
}

#[test]
fn a_kind_that_says_nothing_is_had_by_one_and_waited_for_here() {
    let silent = kind(Silent);
    let rules = silent.commands.rules();
    assert!(!rules.passes_on && !rules.needs_time && !rules.is_string);
    assert!(rules.backoff.is_none() && !silent.has_queue());
    assert!(silent.commands.downgraded().is_none());
    assert!(kind(Queued).has_queue());
    for (sharing, reads, shared, writer) in [
        (rules.sharing, false, false, false),
        (Sharing::Reads, true, true, false),
        (Sharing::Writes, true, false, true),
    ] {
        let kind = kind(Shares(sharing));
        let commands = &*kind.commands;
        let found = (
            commands.has_reads(),
            commands.is_shared(),
            commands.is_writer(),
        );
        assert_eq!(found, (reads, shared, writer), "{sharing:?}");
    }
}

#[test]
fn what_is_granted_counts_when_replicas_have_it_and_what_is_given_back_waits_for_nobody() {
    let kind = kind(Silent);
    let sort = Try::ONCE;
    let token = FencingToken::new(7);
    for call in [
        kind.acquire("id", LEASE, sort),
        kind.join("id", LEASE),
        kind.verify("id", LEASE),
        kind.reenter("id", token, 2, LEASE),
        kind.reenter("id", None, 2, LEASE),
    ] {
        assert_eq!(call.order, Order::Acknowledged);
    }
    assert_eq!(kind.release("id", 0).order, Order::Free);
    assert!(kind.acquire("id", LEASE, sort).look().is_some());
    assert!(kind.verify("id", LEASE).look().is_none());
    assert_eq!(
        sent(&kind.join("id", LEASE)),
        sent(&kind.verify("id", LEASE))
    );
}

#[test]
fn a_level_in_a_hold_without_a_token_is_asked_for_apart() {
    let kind = kind(Shares(Sharing::Exclusive));
    let token = FencingToken::new(7);
    let plain = Silent.reenter(kind.hold("id", LEASE), 2, true);
    assert_eq!(sent(&kind.reenter("id", token, 2, LEASE)), sent(&plain));
    let apart = Call::plain("TOKEN");
    assert_eq!(sent(&kind.reenter("id", None, 2, LEASE)), sent(&apart));
    let silent = self::kind(Silent);
    assert_eq!(sent(&silent.reenter("id", None, 2, LEASE)), sent(&plain));
}

#[test]
fn a_kind_that_says_nothing_has_one_key_and_one_sort_of_hold() {
    let kind = kind(Silent);
    assert!(kind.verify_apart("id", LEASE, None).is_none());
    assert!(kind.downgrade("id", LEASE).is_none());
    let (names, note) = (&kind.names, Duration::ZERO);
    assert!(
        kind.commands
            .note(names, "client", Duration::ZERO, note)
            .is_none()
    );
}
