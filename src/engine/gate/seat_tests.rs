//! A seat by itself: what is in it, and to whom an answer belongs.

use super::*;
use crate::engine::hold::state::Level;
use crate::engine::made_tests::{Sort, at, held, hold, ticket};

fn attempt(number: u64, command: u32) -> Attempt<u32> {
    Attempt::new(hold(number), ticket(number, Sort::Reads), command, at(0))
}

fn shared(join: Option<Attempt<u32>>) -> Seat<u32> {
    let shared = SharedHold::new(held(1, Level::Watchdog), false);
    Seat::Shared { shared, join }
}

fn releasing(hold: &Arc<Hold>, next: Option<Attempt<u32>>) -> Seat<u32> {
    let mut seat = Seat::Free;
    seat.release(hold, Some(7), next, at(3));
    seat
}

fn commands(seat: &Seat<u32>) -> Vec<(u64, u32)> {
    let all = seat.commands();
    all.map(|(hold, command)| (hold.number, *command)).collect()
}

#[test]
fn a_shared_hold_is_found_by_itself_alone() {
    let (one, other) = (hold(1), hold(2));
    let shared = SharedHold::new(Arc::clone(&one), true);
    let mut seat = Seat::<u32>::Shared { shared, join: None };
    assert!(seat.shared_hold(&one).is_some());
    assert!(
        seat.shared_hold(&other).is_none(),
        "one that is over asks late"
    );
}

#[test]
fn commands_in_flight_come_with_their_holds() {
    assert_eq!(commands(&Seat::Free), []);
    assert_eq!(commands(&Seat::Trying(attempt(2, 20))), [(2, 20)]);
    assert_eq!(commands(&shared(Some(attempt(2, 20)))), [(2, 20)]);
    assert_eq!(commands(&shared(None)), []);
    assert_eq!(commands(&releasing(&hold(1), None)), [(1, 7)]);
    let both = releasing(&hold(1), Some(attempt(2, 20)));
    assert_eq!(commands(&both), [(1, 7), (2, 20)]);
}

#[test]
fn what_leaves_a_key_behind_is_in_flight() {
    let hold = hold(1);
    let handing_over = Seat::HandingOver {
        hold: Arc::clone(&hold),
    };
    for seat in [
        Seat::Trying(attempt(2, 20)),
        handing_over,
        releasing(&hold, None),
    ] {
        assert!(seat.is_in_flight());
    }
    for seat in [
        Seat::Free,
        shared(Some(attempt(2, 20))),
        Seat::Held { hold },
    ] {
        assert!(!seat.is_in_flight());
    }
}

#[test]
fn an_answer_belongs_to_its_command() {
    let seats = [Seat::Trying(attempt(2, 20)), shared(Some(attempt(2, 20)))];
    for (mut seat, is_free) in seats.into_iter().zip([true, false]) {
        assert!(seat.answered(&19).is_none(), "of an older try");
        assert_eq!(commands(&seat), [(2, 20)]);
        assert!(seat.answered(&20).is_some() && seat.answered(&20).is_none());
        assert_eq!(seat.is_free(), is_free);
    }
}

#[test]
fn a_release_is_that_of_its_hold() {
    let (one, other) = (hold(1), hold(2));
    let mut seat = releasing(&one, None);
    assert_eq!(seat.release_of(&one), Some((Some(&7), at(3))));
    assert_eq!(seat.release_of(&other), None);
    assert_eq!(Seat::<u32>::Free.release_of(&one), None);
    assert!(!seat.release_failed(&other, Some(&7)));
    assert!(seat.release_failed(&one, Some(&6)), "it has the seat");
    assert_eq!(commands(&seat), [(1, 7)], "and another command");
    assert!(seat.release_failed(&one, None));
    assert_eq!(commands(&seat), [(1, 7)]);
    assert!(seat.release_failed(&one, Some(&7)));
    assert_eq!(commands(&seat), []);
    assert!(!Seat::<u32>::Free.release_failed(&one, Some(&7)));
}
