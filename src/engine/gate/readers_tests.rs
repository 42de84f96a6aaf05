//! Shares of a hold, at a gate where nothing else happens.

use super::*;
use crate::engine::gate::ticket::{Patience, Verdict};
use crate::engine::hold::owner::OwnerState;
use crate::engine::made_tests::{LEASE, RULES, Sort, at, held, of_owner, request};
use crate::script::Reply;

/// A lock that is held, its hold in Redis and the first read of it.
struct Made {
    gate: Gate<u32>,
    hold: Arc<Hold>,
    read: Arc<Hold>,
    rest: Effects,
}

fn asks(sort: Sort, level: Level) -> Request {
    Request {
        level,
        ..request(sort, Patience::Forever)
    }
}

fn first_by(request: Request) -> Made {
    let (mut gate, mut effects) = (Gate::default(), Effects::at(at(0), RULES));
    let hold = held(1, request.level);
    let ticket = Ticket::new(1, request);
    let grant = Grant {
        sent_at: at(0),
        server_age: None,
        reply: Reply::WriterWaits,
    };
    gate.grant_reads(&hold, &ticket, grant, &mut effects);
    let read = gate.reads().next().cloned().expect("its first read");
    Made {
        gate,
        hold,
        read,
        rest: effects.carry_out(),
    }
}

fn first(sort: Sort, level: Level) -> Made {
    first_by(asks(sort, level))
}

fn is_in(holds: &[Arc<Hold>], hold: &Arc<Hold>) -> bool {
    holds.iter().any(|other| Arc::ptr_eq(other, hold))
}

impl Made {
    fn with<R>(
        &mut self,
        now: Moment,
        change: impl FnOnce(&mut Gate<u32>, &mut Effects) -> R,
    ) -> R {
        let mut effects = Effects::at(now, RULES);
        let result = change(&mut self.gate, &mut effects);
        self.rest = effects.carry_out();
        result
    }

    /// One more, that lasts from the start for `seconds`.
    fn read(&mut self, number: u64, request: Request, seconds: u64) -> Option<Arc<Hold>> {
        let ticket = Ticket::new(number, request);
        let term = Term {
            valid_until: at(seconds),
            ends_at: at(seconds + 1),
            sent_at: at(0),
        };
        self.with(at(0), |gate, effects| gate.add_read(&ticket, term, effects))
    }

    /// One more for the holder of `read`, at `now`.
    fn beside(&mut self, read: &Arc<Hold>, request: &Request, now: Moment) -> Option<Arc<Hold>> {
        let term = LEASE.term(now);
        self.with(now, |gate, effects| {
            gate.read_beside(read, request, 9, term, effects)
        })
    }

    fn enter(&mut self, level: Level, now: Moment) -> Result<Option<u32>, LostReason> {
        let read = Arc::clone(&self.read);
        self.with(now, |gate, effects| gate.enter_read(&read, level, effects))
    }

    fn leave(&mut self, level: Level, now: Moment) -> Option<GivenBack<u32>> {
        let read = Arc::clone(&self.read);
        self.with(now, |gate, effects| gate.leave_read(&read, level, effects))
    }

    fn expire(&mut self, now: Moment) -> bool {
        let read = Arc::clone(&self.read);
        self.with(now, |gate, effects| gate.expire_read(&read, effects))
    }

    fn leave_behind(&mut self) -> bool {
        let read = Arc::clone(&self.read);
        self.with(at(1), |gate, effects| gate.leave_behind(&read, 8, effects))
    }

    fn is_watched(&self) -> bool {
        self.hold.with(|state| state.is_watched())
    }
}

#[test]
fn a_read_is_looked_after_and_its_owner_knows_it() {
    let owners = [OwnerState::new(), OwnerState::new()];
    let by = |index: usize| of_owner(asks(Sort::Reads, Level::Watchdog), &owners[index]);
    let names = Arc::clone(&by(0).kind.names);
    let mut made = first_by(by(0));
    assert!(is_in(&made.rest.looks, &made.read));
    assert!(owners[0].has(&names, at(1)) && !owners[1].has(&names, at(1)));
    let another = made.read(2, by(1), 30).unwrap();
    assert!(is_in(&made.rest.looks, &another) && is_in(&made.rest.looks, &made.hold));
    assert!(owners[1].has(&names, at(1)));
    let third = OwnerState::new();
    let read = Arc::clone(&made.read);
    let asked = of_owner(asks(Sort::Reads, Level::Watchdog), &third);
    let beside = made.beside(&read, &asked, at(1)).unwrap();
    assert!(is_in(&made.rest.looks, &beside) && is_in(&made.rest.looks, &made.hold));
    assert!(third.has(&names, at(1)));
}

#[test]
fn the_hold_is_under_the_watchdog_while_a_read_is() {
    let mut made = first(Sort::Writes, Level::Fixed);
    assert!(!made.is_watched());
    assert!(matches!(made.enter(Level::Watchdog, at(1)), Ok(Some(2))));
    assert!(made.is_watched() && is_in(&made.rest.looks, &made.hold));
    made.hold
        .with(|state| state.prolong(LEASE.term(at(5)), at(5)));
    assert!(matches!(
        made.leave(Level::Watchdog, at(6)),
        Some(GivenBack::Levels(1))
    ));
    assert!(!made.is_watched() && is_in(&made.rest.looks, &made.read));
    let left = made.read.with(|state| state.valid_until());
    assert_eq!(left, made.hold.valid_until(), "it was promised that");
}

#[test]
fn nothing_is_entered_or_left_behind_the_end_of_the_hold() {
    let late = at(40);
    let mut made = first(Sort::Writes, Level::Watchdog);
    assert!(made.enter(Level::Watchdog, late).is_err());
    for more in [0, 1] {
        let mut made = first(Sort::Writes, Level::Watchdog);
        for _ in 0..more {
            assert!(matches!(made.enter(Level::Watchdog, at(1)), Ok(Some(2))));
        }
        let left = made.leave(Level::Watchdog, late);
        assert!(matches!(left, Some(GivenBack::Lost(LostReason::Expired))));
    }
}

#[test]
fn a_reader_who_reads_once_more_is_the_same_reader() {
    for (sort, entered_by) in [(Sort::Reads, 1), (Sort::Writes, 9)] {
        let mut made = first(sort, Level::Watchdog);
        let read = Arc::clone(&made.read);
        let asked = asks(Sort::Reads, Level::Watchdog);
        let beside = made.beside(&read, &asked, at(1)).unwrap();
        assert_eq!(beside.entered_by, entered_by);
        assert_eq!(made.gate.reads_of(&made.hold).len(), 2);
    }
}

#[test]
fn a_read_that_is_over_has_none_beside() {
    let mut made = first(Sort::Reads, Level::Watchdog);
    let short = asks(Sort::Reads, Level::Fixed);
    let short = made.read(2, short, 2).unwrap();
    let asked = asks(Sort::Reads, Level::Watchdog);
    assert!(made.beside(&short, &asked, at(3)).is_none());
    assert_eq!(made.gate.reads().count(), 2);
}

#[test]
fn who_wrote_and_goes_on_reading_has_the_hold_turned() {
    for lasts in [true, false] {
        let mut made = first(Sort::Writes, Level::Fixed);
        let read = Arc::clone(&made.read);
        let asked = asks(Sort::Reads, Level::Watchdog);
        made.beside(&read, &asked, at(1)).unwrap();
        if lasts {
            let left = made.leave(Level::Fixed, at(2));
            assert!(matches!(left, Some(GivenBack::Downgrade)));
        } else {
            made.hold
                .with(|state| state.prolong(LEASE.term(at(20)), at(20)));
            assert!(made.expire(at(40)));
            let [(turned, moment)] = &made.rest.downgrades[..] else {
                panic!("it is turned once");
            };
            assert!(Arc::ptr_eq(turned, &made.hold));
            assert_eq!(*moment, LEASE.term(at(0)).ends_at, "its whole lease");
        }
        assert_eq!(made.hold.phase(), Phase::Held);
        assert_eq!(made.gate.reads().count(), 1);
    }
}

#[test]
fn the_last_read_that_expires_ends_the_hold_and_what_it_was_promised_is_waited_for() {
    let mut made = first(Sort::Reads, Level::Watchdog);
    let short = asks(Sort::Reads, Level::Fixed);
    let short = made.read(2, short, 20).unwrap();
    assert!(matches!(
        made.leave(Level::Watchdog, at(1)),
        Some(GivenBack::ReadEnded)
    ));
    made.read = short;
    assert!(made.expire(at(20)));
    assert_eq!(made.hold.phase(), Phase::Lost(LostReason::Expired));
    assert_eq!(made.hold.with(|state| state.owed_until()), at(21));
    assert!(is_in(&made.rest.releases, &made.hold));
    assert!(made.gate.seat.is_free());
    assert!(!made.expire(at(21)), "it ended before");
}

#[test]
fn who_writes_leaves_the_hold_with_its_only_level() {
    let mut made = first(Sort::Writes, Level::Fixed);
    assert!(made.leave_behind());
    assert_eq!(made.read.phase(), Phase::Ended);
    assert_eq!(made.hold.phase(), Phase::Ended);
    let mut made = first(Sort::Writes, Level::Fixed);
    let read = Arc::clone(&made.read);
    let asked = asks(Sort::Reads, Level::Watchdog);
    made.beside(&read, &asked, at(1)).unwrap();
    assert!(!made.leave_behind());
    assert_eq!(made.read.phase(), Phase::Held);
}

#[test]
fn who_reads_leaves_a_read_that_nobody_has() {
    let mut made = first(Sort::Reads, Level::Fixed);
    let other = asks(Sort::Reads, Level::Watchdog);
    let other = made.read(2, other, 30).unwrap();
    assert!(made.leave_behind());
    assert_eq!(made.read.phase(), Phase::Ended);
    assert_eq!(made.gate.reads().count(), 2);
    let left = made.gate.reads().find(|read| read.is_abandoned);
    let left = Arc::clone(left.unwrap());
    assert!(is_in(&made.rest.looks, &left) && !Arc::ptr_eq(&left, &made.read));
    let lasts_until = left.with(|state| state.valid_until());
    assert_eq!(lasts_until, LEASE.term(at(0)).ends_at, "its whole lease");
    // While anybody has one, the client that ends gives the hold back.
    made.with(at(5), Gate::leave_abandoned_reads);
    assert_eq!(made.hold.phase(), Phase::Held);
    assert!(!made.leave_behind(), "it is left already");
    made.read = other;
    assert!(matches!(
        made.leave(Level::Watchdog, at(2)),
        Some(GivenBack::ReadEnded)
    ));
    made.with(at(5), Gate::leave_abandoned_reads);
    assert_eq!(made.hold.phase(), Phase::Ended);
    assert!(made.hold.has_ended() && made.gate.seat.is_free());
}

#[test]
fn a_hold_that_was_turned_is_one_of_those_who_share() {
    let mut made = first(Sort::Writes, Level::Fixed);
    made.hold
        .with(|state| state.prolong(LEASE.term(at(20)), at(20)));
    let before = made.hold.valid_until();
    let hold = Arc::clone(&made.hold);
    made.with(at(5), |gate, effects| {
        gate.downgraded(&hold, at(5), effects);
    });
    assert!(matches!(&made.gate.seat, Seat::Shared { shared, .. } if !shared.is_exclusive()));
    assert!(
        made.hold.valid_until() < before,
        "strangers may cut it short"
    );
    assert!(is_in(&made.rest.looks, &made.hold) && made.gate.try_at_once);
    made.gate.try_at_once = false;
    made.with(at(5), |gate, effects| {
        gate.downgraded(&hold, at(5), effects);
    });
    assert!(!made.gate.try_at_once && made.rest.looks.is_empty(), "once");
}

#[test]
fn levels_that_are_over_are_not_counted() {
    let mut made = first(Sort::Reads, Level::Fixed);
    let read = Arc::clone(&made.read);
    let asked = asks(Sort::Reads, Level::Fixed);
    made.beside(&read, &asked, at(0)).unwrap();
    made.read(7, asked, 30).unwrap();
    let end = made.read.valid_until();
    assert_eq!(made.gate.levels_of(&read, at(1)), 2, "and a stranger's");
    assert_eq!(made.gate.levels_of(&read, end), 1);
}

#[test]
fn a_read_that_ended_before_it_was_collected_is_not_waited_for_after_the_last_one() {
    let mut made = first(Sort::Reads, Level::Watchdog);
    let ticket = Ticket::new(2, asks(Sort::Reads, Level::Watchdog));
    made.with(at(0), |gate, effects| {
        gate.expect_collection(&ticket, effects);
        ticket.decide(Verdict::Busy(None), effects);
    });
    assert!(made.gate.uncollected.len() == 1);
    assert!(made.leave(Level::Watchdog, at(1)).is_none(), "the last");
    assert!(made.gate.uncollected.is_empty());
}
