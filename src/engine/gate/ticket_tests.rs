//! A ticket by itself: who is woken, what was collected, and how long its caller waits.

use std::time::Duration;

use super::*;
use crate::engine::made_tests::{
    RULES, Sort, Woken, at, held, hold, kind, of_owner, request, ticket,
};

const INSTANT: Duration = Duration::from_nanos(1);

fn polled(ticket: &Ticket, waker: &Waker) -> bool {
    let mut context = Context::from_waker(waker);
    ticket.poll_decided(&mut context).is_ready()
}

fn granted(ticket: &Ticket) {
    let mut effects = Effects::at(at(1), RULES);
    let hold = held(1, Level::Watchdog);
    ticket.decide(Verdict::Granted(hold), &mut effects);
    let _ = effects.carry_out();
}

#[test]
fn the_last_who_polled_is_woken_once() {
    let ticket = ticket(1, Sort::Plain);
    let ((first, before), (last, now)) = (Woken::new(), Woken::new());
    assert!(!polled(&ticket, &before) && !polled(&ticket, &now));
    assert!(!polled(&ticket, &now));
    granted(&ticket);
    assert_eq!((first.times(), last.times()), (0, 1));
    assert!(polled(&ticket, &now));
}

#[test]
fn who_sees_to_the_result_itself_is_not_woken() {
    let ticket = ticket(1, Sort::Plain);
    let (woken, waker) = Woken::new();
    assert!(!polled(&ticket, &waker));
    drop(ticket.take_waker());
    granted(&ticket);
    assert_eq!(woken.times(), 0);
    assert!(polled(&ticket, &waker));
}

#[test]
fn a_result_is_collected_by_who_takes_it() {
    let ticket = ticket(1, Sort::Plain);
    let (_, waker) = Woken::new();
    granted(&ticket);
    assert!(!ticket.is_collected());
    let taken = ticket.poll(&mut Context::from_waker(&waker));
    assert!(matches!(taken, Poll::Ready(Verdict::Granted(_))));
    assert!(ticket.is_collected() && ticket.revoke().is_none());
}

#[test]
fn a_wait_is_over_at_its_end() {
    let ticket = |patience| Ticket::new(1, request(Sort::Plain, patience));
    let until = ticket(Patience::Until(at(3)));
    assert!(!until.is_over(at(3).minus(INSTANT)) && until.is_over(at(3)));
    assert!(ticket(Patience::Once).is_over(at(0)));
    assert!(!ticket(Patience::Forever).is_over(Moment::NEVER));
}

#[test]
fn a_task_that_waits_for_itself_is_reported_once() {
    let ticket = ticket(1, Sort::Plain);
    let long = at(0) + SELF_CHECK;
    assert!(!ticket.report_self_wait(long.minus(INSTANT)));
    assert!(ticket.report_self_wait(long));
    assert!(!ticket.report_self_wait(long));
}

#[test]
fn a_hold_that_is_shared_has_no_owner_and_its_reads_have() {
    let owner = OwnerState::new();
    let owned = |sort| Ticket::new(1, of_owner(request(sort, Patience::Forever), &owner));
    assert_eq!(owned(Sort::Plain).owner_of_hold(), Some(owner.number));
    for sort in [Sort::Reads, Sort::Writes] {
        assert_eq!(owned(sort).owner_of_hold(), None);
        assert_eq!(owned(sort).request.owner_number(), Some(owner.number));
    }
    assert_eq!(ticket(1, Sort::Plain).owner_of_hold(), None);
}

#[test]
fn a_kind_without_a_queue_has_no_places() {
    for patience in [Patience::Once, Patience::Forever] {
        let ticket = Ticket::new(1, request(Sort::Plain, patience));
        assert!(!ticket.may_have_place());
    }
    assert!(!kind(Sort::Plain).has_queue());
}

#[test]
fn who_closes_gets_the_grant_and_who_is_closed_none() {
    let closed = ticket(1, Sort::Plain);
    granted(&closed);
    assert!(closed.close().is_some() && closed.close().is_none());
    granted(&closed);
    assert!(!closed.is_decided(), "nobody is there to take it");
    let again = ticket(2, Sort::Plain);
    again.set_unsettled(Some(&hold(2)));
    assert!(again.unsettled().is_some() && again.take_unsettled().is_some());
    assert!(again.take_unsettled().is_none());
}
