use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::engine::hold::state::Level;
use crate::engine::made_tests;
use crate::error::LostReason;
use crate::lease::Term;

fn at(ms: u64) -> Moment {
    Moment::default() + Duration::from_millis(ms)
}

fn until(ms: u64) -> Term {
    Term {
        sent_at: at(0),
        valid_until: at(ms),
        ends_at: at(ms),
    }
}

/// A hold that ends then.
fn ending(number: u64, ms: u64) -> Arc<Hold> {
    let hold = made_tests::hold(number);
    assert!(hold.with(|state| state.grant(Level::Watchdog, until(ms), at(0))));
    hold
}

/// It ends then, if that is later than it was to end.
fn prolong(hold: &Hold, ms: u64) {
    hold.with(|state| state.prolong(until(ms), at(0)));
}

fn end(hold: &Hold) {
    assert!(hold.with(|state| state.lose(LostReason::Missing)));
}

fn queue() -> RenewalQueue {
    let timeouts = LEAST..=Duration::from_secs(1);
    RenewalQueue::new(Backoff::new(), timeouts, Clock::system())
}

fn answer(queue: &mut RenewalQueue, batch: RenewalBatch, outcome: RenewalOutcome, now: Moment) {
    let holds = batch.holds.into_iter();
    queue.answered(holds.map(|hold| (hold, outcome)), now);
}

fn numbers(batch: &RenewalBatch) -> Vec<u64> {
    batch.holds.iter().map(|hold| hold.number).collect()
}

#[test]
fn a_hold_in_a_batch_is_asked_for_once_more_and_not_at_the_same_time() {
    let mut queue = queue();
    let hold = ending(1, 60_000);
    queue.want(&hold, true);
    let batch = queue.take(at(0)).unwrap();
    for _ in 0..5 {
        queue.want(&hold, true);
        assert!(queue.take(at(0)).is_none());
    }
    answer(&mut queue, batch, RenewalOutcome::Answered, at(1));
    let again = queue.take(at(1)).unwrap();
    queue.want(&hold, false);
    answer(&mut queue, again, RenewalOutcome::Answered, at(2));
    assert!(queue.take(at(2)).is_none(), "any answer serves a renewal");
    assert_eq!(queue.next(at(2)), Moment::NEVER);
}

#[test]
fn one_near_its_end_goes_alone_and_first() {
    let mut queue = queue();
    for number in 0..10 {
        queue.want(&ending(number, 60_000), false);
    }
    queue.want(&ending(10, 90), false);
    let urgent = queue.take(at(0)).unwrap();
    assert_eq!(numbers(&urgent), [10]);
    assert_eq!(urgent.timeout, Duration::from_millis(45));
    let rest = queue.take(at(0)).unwrap();
    assert_eq!(rest.holds.len(), 10);
    assert_eq!(rest.timeout, Duration::from_secs(1));
}

#[test]
fn while_calls_fail_there_is_one_at_a_time_and_ever_more_rarely() {
    let mut queue = queue();
    for number in 0..(BATCH * IN_FLIGHT) as u64 {
        queue.want(&ending(number, 3_600_000), false);
    }
    let out: Vec<_> = std::iter::from_fn(|| queue.take(at(0))).collect();
    assert_eq!(out.len(), IN_FLIGHT);
    for batch in out {
        answer(&mut queue, batch, RenewalOutcome::Failed, at(0));
    }
    let (mut now, mut calls) = (at(0), 0);
    while now < at(60_000) {
        now = queue.next(now);
        let batch = queue.take(now).unwrap();
        assert!(queue.take(now).is_none(), "one at a time");
        assert_eq!(batch.holds.len(), 2);
        assert_eq!(queue.next(now), Moment::NEVER);
        calls += 1;
        answer(&mut queue, batch, RenewalOutcome::Failed, now);
        assert!(queue.has_trouble());
    }
    assert!((60..140).contains(&calls), "{calls} calls in a minute");
    let batch = queue.take(queue.next(now)).unwrap();
    answer(&mut queue, batch, RenewalOutcome::Answered, now);
    assert!(!queue.has_trouble());
    assert_eq!(std::iter::from_fn(|| queue.take(now)).count(), IN_FLIGHT);
}

#[test]
fn one_whose_call_fails_beside_another_that_is_answered_stops_nobody() {
    let mut queue = queue();
    queue.want(&ending(1, 1_000), false);
    queue.want(&ending(2, 1_100), false);
    let RenewalBatch { holds, .. } = queue.take(at(0)).unwrap();
    let outcome = |number| match number {
        1 => RenewalOutcome::Failed,
        _ => RenewalOutcome::Answered,
    };
    let outcomes = holds.into_iter().map(|hold| {
        let outcome = outcome(hold.number);
        (hold, outcome)
    });
    queue.answered(outcomes, at(0));
    assert!(queue.has_trouble() && !queue.is_failing());
    assert_eq!(queue.next(at(0)), at(250), "a quarter of what is left");
    assert_eq!(numbers(&queue.take(at(250)).unwrap()), [1]);
}

/// As when the ACL of the client changes: each hold would be asked for again and again.
#[test]
fn a_batch_that_is_refused_as_a_whole_is_an_outage() {
    let mut queue = queue();
    for number in 0..10_000 {
        queue.want(&ending(number, 60_000), false);
    }
    let mut asked = 0;
    let mut now = at(0);
    while now < at(5_000) {
        while let Some(batch) = queue.take(now) {
            asked += batch.holds.len();
            answer(&mut queue, batch, RenewalOutcome::Refused, now);
        }
        now = queue.next(now);
    }
    assert!(queue.is_failing());
    assert!(asked < 2 * BATCH, "{asked} calls");
}

/// Such a silence is too short to blame the server, but no sign of life either.
#[test]
fn a_silence_near_the_end_does_not_end_an_outage() {
    let mut queue = queue();
    for number in 0..10_000 {
        queue.want(&ending(number, 1_000), false);
    }
    let batch = queue.take(at(0)).unwrap();
    answer(&mut queue, batch, RenewalOutcome::Failed, at(333));
    let mut asked = 0;
    let mut now = queue.next(at(333));
    while now < at(1_000) {
        let batch = queue.take(now).unwrap();
        asked += batch.holds.len();
        now = now + batch.timeout;
        answer(&mut queue, batch, RenewalOutcome::Refused, now);
        assert!(queue.is_failing());
        now = queue.next(now);
    }
    assert!((4..100).contains(&asked), "{asked} calls");
}

/// What is nearest its end may fail for itself, again and again.
#[test]
fn while_calls_fail_another_is_asked_for_as_well() {
    for _ in 0..20 {
        let mut queue = queue();
        queue.want(&ending(1, 60_000), false);
        let alone = queue.take(at(0)).unwrap();
        answer(&mut queue, alone, RenewalOutcome::Failed, at(0));
        for number in 2..2_000 {
            queue.want(&ending(number, 60_000 + number), false);
        }
        let now = queue.next(at(0));
        let both = queue.take(now).unwrap();
        assert_eq!((both.holds.len(), both.holds[0].number), (2, 1));
        let outcomes = both.holds.into_iter().map(|hold| {
            let outcome = match hold.number {
                1 => RenewalOutcome::Failed,
                _ => RenewalOutcome::Answered,
            };
            (hold, outcome)
        });
        queue.answered(outcomes, now);
        assert!(!queue.is_failing());
        assert_eq!(queue.take(now).unwrap().holds.len(), BATCH);
    }
}

#[test]
fn a_late_answer_ends_an_outage() {
    let mut queue = queue();
    for number in 0..10 {
        queue.want(&ending(number, 60_000), false);
    }
    let batch = queue.take(at(0)).unwrap();
    answer(&mut queue, batch, RenewalOutcome::Failed, at(1_000));
    assert!(queue.is_failing() && queue.take(at(1_000)).is_none());
    queue.answered_late();
    assert!(!queue.has_trouble());
    assert_eq!(queue.take(at(1_000)).unwrap().holds.len(), 10);
}

/// The first third of the lease is over when the first one is sent.
#[test]
fn a_hold_that_is_never_answered_for_is_asked_for_three_times_in_a_lease() {
    let ms = Duration::from_millis;
    let mut queue = RenewalQueue::new(Backoff::new(), ms(300)..=ms(60_000), Clock::system());
    queue.want(&ending(1, 1_200), false);
    let (mut now, mut tries) = (at(400), 0);
    while now < at(1_200) {
        let batch = queue.take(now).unwrap();
        tries += 1;
        now = now + batch.timeout;
        answer(&mut queue, batch, RenewalOutcome::Failed, now);
        now = queue.next(now);
    }
    assert_eq!(tries, 3);
}

#[test]
fn one_that_is_refused_for_itself_stops_nobody() {
    let mut queue = queue();
    queue.want(&ending(1, 1_000), false);
    let batch = queue.take(at(0)).unwrap();
    answer(&mut queue, batch, RenewalOutcome::Refused, at(0));
    assert!(queue.has_trouble());
    assert_eq!(queue.next(at(0)), at(250));
    queue.want(&ending(2, 60_000), false);
    assert_eq!(numbers(&queue.take(at(0)).unwrap()), [2]);
    assert_eq!(numbers(&queue.take(at(250)).unwrap()), [1]);
}

#[test]
fn one_that_has_ended_or_lasts_longer_by_now_is_seen_when_its_turn_comes() {
    let mut queue = queue();
    let (gone, longer) = (ending(1, 100), ending(2, 200));
    queue.want(&gone, false);
    queue.want(&longer, false);
    end(&gone);
    prolong(&longer, 60_000);
    let batch = queue.take(at(0)).unwrap();
    assert_eq!(numbers(&batch), [2]);
    assert_eq!(batch.timeout, Duration::from_secs(1));
    assert!(queue.take(at(0)).is_none());
}

#[test]
fn batches_are_full_and_no_more_are_out_than_may_be() {
    let mut queue = queue();
    let all = (BATCH * IN_FLIGHT) as u64 + 1;
    for number in 0..all {
        queue.want(&ending(number, 3_600_000), false);
    }
    let mut out: Vec<_> = std::iter::from_fn(|| queue.take(at(0))).collect();
    assert_eq!(out.len(), IN_FLIGHT);
    assert!(out.iter().all(|batch| batch.holds.len() == BATCH));
    assert_eq!(queue.next(at(0)), Moment::NEVER, "an answer is a change");
    answer(
        &mut queue,
        out.pop().unwrap(),
        RenewalOutcome::Answered,
        at(0),
    );
    assert_eq!(queue.next(at(0)), at(0));
    assert_eq!(queue.take(at(0)).unwrap().holds.len(), 1);
}

#[test]
fn it_is_idle_when_nothing_is_asked_for_and_nothing_is_amiss() {
    let mut queue = queue();
    assert!(queue.is_idle() && !queue.is_failing());
    queue.want(&ending(1, 60_000), false);
    assert!(!queue.is_idle(), "it is to be asked for");
    let batch = queue.take(at(0)).unwrap();
    assert!(!queue.is_idle(), "it is asked for");
    answer(&mut queue, batch, RenewalOutcome::Answered, at(0));
    assert!(queue.is_idle());
    let hold = ending(2, 60_000);
    queue.want(&hold, false);
    let batch = queue.take(at(0)).unwrap();
    end(&hold);
    answer(&mut queue, batch, RenewalOutcome::Failed, at(0));
    assert!(queue.is_failing() && !queue.is_idle(), "that is remembered");
    queue.want(&ending(3, 60_000), false);
    let now = queue.next(at(0));
    let batch = queue.take(now).unwrap();
    answer(&mut queue, batch, RenewalOutcome::Answered, now);
    assert!(!queue.is_failing() && queue.is_idle());
}

#[test]
fn while_calls_fail_what_is_near_its_end_has_its_chances() {
    for _ in 0..20 {
        let mut queue = queue();
        queue.want(&ending(0, 3_600_000), false);
        let mut now = at(0);
        for _ in 0..10 {
            now = queue.next(now);
            let batch = queue.take(now).unwrap();
            answer(&mut queue, batch, RenewalOutcome::Failed, now);
        }
        now = queue.next(now);
        let batch = queue.take(now).unwrap();
        queue.want(&ending(1, now.as_nanos() / 1_000_000 + 400), false);
        answer(&mut queue, batch, RenewalOutcome::Failed, now);
        let next = now.until(queue.next(now));
        assert!(
            next <= Duration::from_millis(100),
            "a quarter of what is left"
        );
    }
}

#[derive(Debug, Clone)]
enum Step {
    Want(u64, bool),
    Take,
    Answer(usize, u8),
    Prolong(u64),
    End(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u64..300, any::<bool>()).prop_map(|(number, again)| Step::Want(number, again)),
        Just(Step::Take),
        (any::<usize>(), 0u8..3).prop_map(|(which, how)| Step::Answer(which, how)),
        (0u64..300).prop_map(Step::Prolong),
        (0u64..300).prop_map(Step::End),
        (0u64..500).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    #[test]
    fn nobody_is_asked_for_twice_at_a_time_and_nobody_forgotten(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut queue = queue();
        let mut holds: HashMap<u64, (Arc<Hold>, u64)> = HashMap::new();
        let mut now = at(1);
        let mut out: Vec<RenewalBatch> = Vec::new();
        for step in steps {
            match step {
                Step::Want(number, again) => {
                    let ms = now.as_nanos() / 1_000_000 + 100 + number * 40;
                    let fresh = || (ending(number, ms), ms);
                    let (hold, _) = holds.entry(number).or_insert_with(fresh);
                    queue.want(hold, again);
                }
                Step::Take => {
                    let failing = queue.outage.is_some();
                    if let Some(batch) = queue.take(now) {
                        prop_assert!(!failing || out.is_empty());
                        prop_assert!(!batch.holds.is_empty() && batch.holds.len() <= BATCH);
                        out.push(batch);
                    } else {
                        prop_assert!(queue.next(now) > now, "no step without progress");
                    }
                }
                Step::Answer(which, how) => {
                    if !out.is_empty() {
                        let batch = out.swap_remove(which % out.len());
                        let outcome = match how {
                            0 => RenewalOutcome::Answered,
                            1 => RenewalOutcome::Refused,
                            _ => RenewalOutcome::Failed,
                        };
                        answer(&mut queue, batch, outcome, now);
                    }
                }
                Step::Prolong(number) => {
                    if let Some((hold, ms)) = holds.get_mut(&number) {
                        *ms += 500;
                        prolong(hold, *ms);
                    }
                }
                Step::End(number) => {
                    if let Some((hold, _)) = holds.remove(&number) {
                        end(&hold);
                    }
                }
                Step::Pass(ms) => now = now + Duration::from_millis(ms),
            }
            let mut asked: Vec<_> = out.iter().flat_map(numbers).collect();
            let all = asked.len();
            asked.sort_unstable();
            asked.dedup();
            prop_assert_eq!(asked.len(), all, "in one batch at a time");
            prop_assert!(out.len() <= IN_FLIGHT);
            for number in &asked {
                let is_asked = matches!(queue.states[number], RenewalState::Asked { .. });
                prop_assert!(is_asked);
            }
            let waiting = queue.wanted.len() + queue.later.len();
            prop_assert_eq!(queue.states.len(), waiting + all, "each mark has its hold");
            // Somebody waits: there is a moment for it, or a call whose end is one.
            prop_assert!(waiting == 0 || !out.is_empty() || queue.next(now) < Moment::NEVER);
        }
        // Whoever is still wanted gets an answer when all goes well.
        for batch in out {
            answer(&mut queue, batch, RenewalOutcome::Answered, now);
        }
        for _ in 0..1_000 {
            let next = queue.next(now);
            if next == Moment::NEVER {
                break;
            }
            now = now.max(next);
            while let Some(batch) = queue.take(now) {
                answer(&mut queue, batch, RenewalOutcome::Answered, now);
            }
        }
        prop_assert!(queue.states.is_empty() && queue.refused.is_empty());
    }
}
