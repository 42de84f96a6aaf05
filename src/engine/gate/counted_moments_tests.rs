//! Moments at the gate of a counted lock, one by one.

use std::task::{Context, Poll, Waker};

use super::*;
use crate::engine::gate::Arrival;
use crate::engine::gate::answers::{GivenBack, ReleaseAnswer, SentAs};
use crate::engine::gate::next::Step;
use crate::engine::gate::ticket::Verdict;
use crate::engine::hold::Origin;
use crate::engine::hold::Rules;
use crate::engine::hold::state::Level;
use crate::engine::made_tests::{RULES, Sort, at, kind, origin, request};

fn passing() -> Rules {
    Rules {
        passes_on: true,
        ..RULES
    }
}

fn grant(reply: Reply) -> Answered {
    Answered::Got(Grant {
        sent_at: at(1),
        server_age: None,
        reply,
    })
}

fn try_of(number: u64, wants: u32) -> Arc<Hold> {
    let made = Origin {
        kind: kind(Sort::Permits(wants)),
        ..origin(number)
    };
    Hold::trying(made, Moment::NEVER)
}

fn ticket(number: u64, wants: u32, patience: Patience) -> Arc<Ticket> {
    Ticket::new(number, request(Sort::Permits(wants), patience))
}

/// `ticket` arrives, tries by itself as `command`, and is granted the hold.
fn first(gate: &mut Gate<u32>, ticket: &Arc<Ticket>, hold: &Arc<Hold>, command: u32) {
    let mut effects = Effects::at(at(1), passing());
    let arrival = gate.arrive(ticket, &mut effects, |_| (Arc::clone(hold), command));
    assert!(matches!(arrival, Arrival::First(..)));
    let _ = effects.carry_out();
}

fn queues(gate: &mut Gate<u32>, ticket: &Arc<Ticket>) {
    let mut effects = Effects::at(at(1), passing());
    let arrival = gate.arrive(ticket, &mut effects, |_| panic!("it is queued"));
    assert!(matches!(arrival, Arrival::Queued));
    let _ = effects.carry_out();
    gate.start_job();
}

fn collects(ticket: &Arc<Ticket>) -> Arc<Hold> {
    let mut context = Context::from_waker(Waker::noop());
    match ticket.poll(&mut context) {
        Poll::Ready(Verdict::Granted(hold)) => hold,
        _ => panic!("it is granted"),
    }
}

/// Of two permits one is held here, and one came back (a message, or the answer to a release). The job decides to try
/// for the head; before it takes the gate's lock again, the held one is passed on to that head. Nobody tries for the
/// next.
#[test]
fn a_head_that_got_a_permit_meanwhile_takes_no_wake_up_with_it() {
    for by_message in [false, true] {
        let mut gate = Gate::<u32>::default();
        let mut effects = Effects::at(at(1), passing());
        let now = at(1);
        let [a, b, c, d] = [1, 2, 3, 4].map(|number| ticket(number, 1, Patience::Forever));
        // Two permits are taken here, and the second grant says that there are no more.
        for (ticket, number, reply) in [
            (&a, 11, Reply::Done(1)),
            (&b, 12, Reply::NextIsBusy(1, None)),
        ] {
            first(&mut gate, ticket, &try_of(number.into(), 1), number);
            let _ = gate.answered(&number, grant(reply), &mut effects);
        }
        let (held_a, held_b) = (collects(&a), collects(&b));
        if !by_message {
            // One is given back; its release is under way.
            let back = gate.give_back(&held_a, Level::Watchdog, Some(|| 21), &mut effects);
            assert!(matches!(back, GivenBack::Sent(21)));
        }
        // Two come, with a try of the first of them answered "busy" before.
        let mut busy = Effects::at(at(1), passing());
        let hold_c = try_of(13, 1);
        first(&mut gate, &c, &hold_c, 13);
        queues(&mut gate, &d);
        gate.set_listening(true);
        let _ = gate.answered(&13, Answered::Busy(None), &mut busy);
        let _ = busy.carry_out();
        if by_message {
            // Another client gave one back: `Event::Released`.
            assert_eq!(gate.received(1, now), 1);
        } else {
            let sent = SentAs::Seat(&21);
            let ended = ReleaseAnswer::Ended { heard_by: Some(1) };
            gate.release_answered(&held_a, &sent, ended, &mut effects);
        }
        // The job: `advance` and `is_time` decide to try for c.
        let Step::Serve { head, at_once, .. } = gate.step(true, &mut effects) else {
            panic!("it serves");
        };
        assert!(Arc::ptr_eq(&head, &c) && (at_once || by_message));
        // Another thread.
        let send = None::<fn() -> u32>;
        let back = gate.give_back(&held_b, Level::Watchdog, send, &mut effects);
        assert!(matches!(back, GivenBack::PassedOn));
        // The job goes on: `try_for`.
        assert!(!gate.try_head(&head, now, |_| panic!("c has one")));
        // One permit is free in Redis, and d waits.
        let Step::Serve { head, at_once, .. } = gate.step(true, &mut effects) else {
            panic!("it serves");
        };
        assert!(Arc::ptr_eq(&head, &d));
        assert!(
            at_once,
            "it sleeps beside a free permit; by_message: {by_message}"
        );
        let _ = effects.carry_out();
    }
}

/// The job waits in `Step::Watch` (somebody has not collected a grant), where it reads messages. A caller's try is under
/// way; the message of a release that ran behind it is read before the answer.
#[test]
fn a_message_that_overtakes_the_answer_to_a_callers_try_counts() {
    let mut gate = Gate::<u32>::default();
    let mut effects = Effects::at(at(1), passing());
    let now = at(1);
    let [a, b, c, d] = [1, 2, 3, 4].map(|number| ticket(number, 1, Patience::Forever));
    // b waits behind a's try, so there is a job, and it gets its grant by the job.
    first(&mut gate, &a, &try_of(11, 1), 11);
    queues(&mut gate, &b);
    gate.set_listening(true);
    let answer = grant(Reply::Done(1));
    let _ = gate.answered(&11, answer.clone(), &mut effects);
    let Step::Serve { head, .. } = gate.step(true, &mut effects) else {
        panic!("it serves");
    };
    assert!(gate.try_head(&head, now, |_| (try_of(12, 1), 12)));
    let _ = gate.answered(&12, answer, &mut effects);
    let step = gate.step(true, &mut effects);
    assert!(matches!(step, Step::Watch { .. }), "it reads messages");
    let _ = collects(&b);
    // The job still waits in `watch`, for 100 ms.
    first(&mut gate, &c, &try_of(13, 1), 13);
    // Redis grants c the last permit; then another client gives one back, and its message is read first. `watch` does
    // nothing with it.
    assert_eq!(gate.received(1, now), 1);
    assert!(gate.watched().is_none());
    let last = grant(Reply::NextIsBusy(1, None));
    let _ = gate.answered(&13, last, &mut effects);
    let _ = collects(&c);
    // One permit is free in Redis.
    let arrival = gate.arrive(&d, &mut effects, |_| (try_of(14, 1), 14));
    let tries = match arrival {
        Arrival::First(..) => true,
        _ => matches!(
            gate.step(true, &mut effects),
            Step::Serve { at_once: true, .. }
        ),
    };
    let _ = effects.carry_out();
    assert!(tries, "it sleeps beside a free permit");
}

/// The last waiter left a note. It gets "busy", and its caller drops the future without polling it. While the note is being
/// removed, somebody else comes and asks for less.
#[test]
fn who_comes_while_a_note_is_removed_is_tried_for() {
    let mut gate = Gate::<u32>::default();
    let mut effects = Effects::at(at(1), passing());
    let now = at(1);
    let a = ticket(1, 1, Patience::Forever);
    let w = ticket(2, 3, Patience::Until(at(1)));
    first(&mut gate, &a, &try_of(11, 1), 11);
    queues(&mut gate, &w);
    gate.set_listening(true);
    let _ = gate.answered(&11, grant(Reply::Done(1)), &mut effects);
    gate.note_writer_waits(&kind(Sort::Permits(3)), now);
    assert!(gate.try_head(&w, now, |_| (try_of(12, 3), 12)));
    let _ = gate.answered(&12, Answered::Busy(None), &mut effects);
    assert!(w.is_decided());
    assert!(gate.withdraw(&w, &mut effects).is_none());
    assert!(gate.withdraw_writer_waits().is_some());
    let c = ticket(3, 1, Patience::Forever);
    queues(&mut gate, &c);
    let step = gate.step(true, &mut effects);
    let _ = effects.carry_out();
    assert!(
        matches!(step, Step::Serve { at_once: true, .. }),
        "nobody tried for it, and nothing is known to be busy"
    );
}

/// Before the job tries for the head, the head is passed over, is polled, and comes back at its place.
#[test]
fn who_comes_back_at_its_place_is_not_taken_for_who_it_was() {
    let mut gate = Gate::<u32>::default();
    let mut effects = Effects::at(at(1), passing());
    let now = at(1);
    let [first_in, asleep, passed, polled, last] =
        [1, 2, 3, 4, 5].map(|number| ticket(number, 1, Patience::Forever));
    first(&mut gate, &first_in, &try_of(11, 1), 11);
    queues(&mut gate, &asleep);
    gate.set_listening(true);
    let _ = gate.answered(&11, grant(Reply::Done(1)), &mut effects);
    let Step::Serve { head, .. } = gate.step(true, &mut effects) else {
        panic!("it serves");
    };
    assert!(gate.try_head(&head, now, |_| (try_of(12, 1), 12)));
    let _ = gate.answered(&12, grant(Reply::NextIsBusy(1, None)), &mut effects);
    for waiter in [&passed, &polled, &last] {
        queues(&mut gate, waiter);
    }
    // A grant is not collected: those behind it are called.
    let later = now + super::super::ticket::CALL_AFTER;
    effects.now = later;
    assert!(gate.take_back(&mut effects).is_none());
    let Step::Serve { head, .. } = gate.step(true, &mut effects) else {
        panic!("it serves");
    };
    assert!(Arc::ptr_eq(&head, &passed));
    // The job waits for a message. Meanwhile one of them is polled, and then the head.
    let taken = gate.present(&polled, &mut effects);
    assert!(taken.is_some(), "it gets the lock");
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(
        passed.poll(&mut context),
        Poll::Ready(Verdict::Again)
    ));
    let again = Ticket::new(99, passed.request.again(&passed));
    queues(&mut gate, &again);
    // A message: the job goes on, with `try_for`.
    let started = gate.try_head(&head, later, |_| (try_of(13, 1), 13));
    assert!(
        gate.is_queued(&again) || gate.try_for(&again).is_some(),
        "nobody serves it any more; started {started}"
    );
    let _ = effects.carry_out();
}
