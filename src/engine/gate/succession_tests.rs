//! The pass-on window, the gap that is left to other clients, and what is known of those that listen.

use std::hash::Hash;

use proptest::prelude::*;

use super::*;

impl Succession {
    /// All that the future depends on, for the model.
    pub(in crate::engine::gate) fn future(&self, now: Moment) -> impl Hash + use<> {
        let left = self.left.as_ref().map(|gap| (gap.heard, now < gap.until));
        let rests = now < self.rest_until;
        (self.closing, self.gap, left, rests)
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(after: u64) -> Moment {
    Moment::default() + ms(1_000 + after)
}

#[test]
fn a_window_is_open_for_ten_milliseconds_and_no_longer() {
    let mut succession = Succession::default();
    assert!(!succession.passes_on(at(0)), "nothing was got");
    succession.got(at(0));
    assert!(succession.passes_on(at(9)));
    assert!(!succession.passes_on(at(10)));
}

#[test]
fn behind_a_window_that_nobody_listens_to_the_lock_is_left_free_for_a_millisecond_once() {
    for others in [None, Some(0)] {
        let mut succession = Succession::default();
        succession.got(at(0));
        succession.released(others, at(5));
        assert_eq!(succession.left_until(at(5)), None, "no window has closed");
        assert!(!succession.stays(at(13)));
        succession.released(others, at(13));
        assert_eq!(succession.left_until(at(13)), Some(at(14)));
        assert_eq!(succession.left_until(at(14)), None);
        succession.got(at(14));
        assert!(succession.passes_on(at(23)), "a new window");
        // The lock lay free for 1 ms, so it does not again for 20 ms.
        assert!(!succession.stays(at(33)));
        succession.released(others, at(33));
        assert_eq!(succession.left_until(at(33)), None);
        assert!(!succession.stays(at(34)));
        succession.released(others, at(34));
        assert_eq!(succession.left_until(at(34)), Some(at(35)), "as long");
    }
}

/// Releases as soon as a gap may begin, and returns how long that gap is.
fn next_gap(succession: &mut Succession, now: &mut Moment) -> Duration {
    *now = succession.rest_until.max(*now);
    succession.released(Some(1), *now);
    let until = succession.left_until(*now).expect("a gap");
    let length = now.until(until);
    *now = until;
    length
}

#[test]
fn a_gap_in_which_nobody_comes_doubles_the_next_one_up_to_a_limit() {
    let (mut succession, mut now) = (Succession::default(), at(0));
    for expected in [1, 2, 4, 8, 16, 32, 50, 1, 2] {
        assert_eq!(next_gap(&mut succession, &mut now), ms(expected));
        succession.got(now);
    }
}

#[test]
fn a_gap_in_which_somebody_comes_keeps_its_length() {
    let (mut succession, mut now) = (Succession::default(), at(0));
    for expected in [1, 2, 4] {
        assert_eq!(next_gap(&mut succession, &mut now), ms(expected));
        succession.got(now);
    }
    for _ in 0..3 {
        assert_eq!(next_gap(&mut succession, &mut now), ms(8));
        succession.forget_gap();
        // The next grant follows the release of somebody else.
        succession.heard_release(now + ms(5));
        succession.got(now + ms(5));
    }
}

#[test]
fn a_release_of_somebody_else_ends_the_gap_and_shortens_the_rest() {
    let (mut succession, mut now) = (Succession::default(), at(0));
    for _ in 0..4 {
        next_gap(&mut succession, &mut now);
        succession.got(now);
    }
    let begin = succession.rest_until;
    succession.released(Some(2), begin);
    assert_eq!(succession.left_until(begin), Some(begin + ms(16)));
    succession.heard_release(begin + ms(3));
    assert_eq!(succession.left_until(begin + ms(3)), None);
    succession.got(begin + ms(3));
    succession.released(Some(2), begin + ms(62));
    assert_eq!(
        succession.left_until(begin + ms(62)),
        None,
        "3 ms, 20 times"
    );
    succession.released(Some(2), begin + ms(63));
    let until = succession.left_until(begin + ms(63));
    assert_eq!(until, Some(begin + ms(79)), "somebody came");
}

/// The turns of a client that waits `way` from a release to its try, beside one that always has another waiter and
/// sections of `section`, for `whole`: the longest time between two of them, and for how long the lock lay free.
fn beside_a_crowd(way: Duration, section: Duration, whole: Duration) -> (Duration, Duration) {
    let (start, mut succession) = (at(0), Succession::default());
    let (mut now, mut turn, mut longest, mut free) = (start, start, ms(0), ms(0));
    succession.got(now);
    while start.until(now) < whole {
        now = now + section;
        if succession.stays(now) {
            continue;
        }
        succession.released(Some(1), now);
        let Some(until) = succession.left_until(now) else {
            succession.got(now);
            continue;
        };
        let length = now.until(until);
        free += length.min(way);
        if way < length {
            longest = longest.max(turn.until(until));
            turn = until;
            succession.forget_gap();
            succession.heard_release(until);
        }
        now = until;
        succession.got(now);
    }
    (longest.max(turn.until(now)), free)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn a_far_client_has_a_turn_each_second_and_the_lock_is_hardly_ever_free(
        way_us in 0_u64..25_000,
        section_us in 100_u64..30_000,
    ) {
        let [way, section] = [way_us, section_us].map(Duration::from_micros);
        let whole = Duration::from_secs(60);
        let (longest, free) = beside_a_crowd(way, section, whole);
        prop_assert!(longest < ms(1_000), "{longest:?}");
        prop_assert!(free * 20 <= whole + ms(50) * 20, "{free:?}");
    }

    /// Whatever happens, what is left free is at most 5 % of the time.
    #[test]
    fn a_lock_is_left_free_for_a_twentieth_of_the_time_at_most(
        events in proptest::collection::vec((0_u8..5, 0_u64..20), 1..200),
    ) {
        let (mut succession, mut now, mut left) = (Succession::default(), at(0), ms(0));
        for (event, pause) in events {
            let before = now;
            now = now + ms(pause);
            let until = succession.left_until(before).unwrap_or(before);
            left += before.until(until.min(now));
            match event {
                0 => succession.got(now),
                1 => succession.forget_gap(),
                2 => succession.heard_release(now),
                3 => succession.closing = true,
                _ => succession.released(Some(u32::try_from(pause % 3).unwrap()), now),
            }
        }
        let whole = at(0).until(now);
        prop_assert!(left * 20 <= whole + LONGEST * 20, "{left:?} of {whole:?}");
    }
}

fn listening() -> Wakeups {
    let mut wakeups = Wakeups::default();
    wakeups.set_listening(true);
    wakeups
}

#[test]
fn the_message_of_our_own_release_is_no_news() {
    let mut wakeups = listening();
    wakeups.expect_echo(1);
    wakeups.expect_echo(1);
    wakeups.expect_echo(2);
    wakeups.release_answered(1, Some(2));
    assert_eq!(wakeups.news(3), 1, "one for each hold, however often sent");
    assert_eq!(wakeups.news(1), 1, "and only once");
}

#[test]
fn the_message_may_come_before_the_answer() {
    let mut wakeups = listening();
    wakeups.expect_echo(1);
    assert_eq!(wakeups.news(1), 0);
    wakeups.release_answered(1, Some(1));
    assert_eq!(wakeups.news(2), 2);
}

#[test]
fn who_does_not_listen_hears_nothing_of_its_own() {
    let mut wakeups = Wakeups::default();
    wakeups.expect_echo(1);
    wakeups.set_listening(true);
    assert_eq!(wakeups.news(1), 1);
}

#[test]
fn a_release_that_nobody_heard_has_no_echo_and_those_of_others_have() {
    // With somebody who listens, "nobody" is as good as not published.
    for heard_by in [None, Some(0)] {
        let mut wakeups = listening();
        wakeups.expect_echo(1);
        wakeups.expect_echo(2);
        assert_eq!(wakeups.release_answered(1, heard_by), None);
        assert!(!wakeups.allow_handover());
        assert_eq!(wakeups.news(2), 1, "that of 2 was still to come");
        wakeups.expect_echo(4);
        wakeups.release_answered(3, heard_by);
        assert_eq!(wakeups.news(2), 1, "nothing was expected of 3");
    }
}

#[test]
fn of_those_who_heard_a_release_the_others_are_reported() {
    for (live, heard_by, others) in [
        (true, 3, Some(2)),
        (true, 1, Some(0)),
        (false, 3, Some(3)),
        (false, 0, Some(0)),
    ] {
        let mut wakeups = Wakeups::default();
        wakeups.set_listening(live);
        assert_eq!(wakeups.release_answered(1, Some(heard_by)), others);
    }
}

#[test]
fn wake_ups_allow_handover_as_long_as_nobody_else_is_heard_of() {
    let mut wakeups = listening();
    assert!(!wakeups.allow_handover(), "nothing is known");
    wakeups.expect_echo(1);
    wakeups.release_answered(1, Some(1));
    assert!(wakeups.allow_handover());
    assert_eq!(wakeups.news(1), 0);
    assert!(wakeups.allow_handover(), "it was our own message");
    assert_eq!(wakeups.news(1), 1);
    assert!(!wakeups.allow_handover(), "it was somebody else's");
    wakeups.release_answered(2, Some(1));
    wakeups.release_answered(3, Some(2));
    assert!(!wakeups.allow_handover(), "somebody else heard it");
}

#[test]
fn what_a_queue_says_counts_while_the_client_listens() {
    let mut wakeups = Wakeups::default();
    wakeups.set_next_is_ours(true);
    assert!(!wakeups.allow_handover(), "nothing is heard");
    wakeups.channel_added();
    assert!(wakeups.allow_handover());
    wakeups.set_next_is_ours(false);
    assert!(!wakeups.allow_handover());
}

#[test]
fn who_subscribes_again_knows_nothing_of_the_time_before() {
    for live in [true, false] {
        let mut wakeups = listening();
        wakeups.expect_echo(1);
        wakeups.release_answered(1, Some(1));
        assert!(wakeups.allow_handover());
        wakeups.set_listening(live);
        assert!(!wakeups.allow_handover());
        wakeups.set_next_is_ours(true);
        assert_eq!(wakeups.allow_handover(), live);
        assert_eq!(wakeups.news(1), 1, "its own message may have been missed");
    }
}

#[test]
fn a_holder_is_heard_by_a_subscription_that_is_older_than_the_answer() {
    let mut wakeups = Wakeups::default();
    wakeups.answered_busy();
    wakeups.set_listening(true);
    assert!(!wakeups.hear_holder(), "it may have gone before that");
    wakeups.answered_busy();
    assert!(wakeups.hear_holder());
    wakeups.set_listening(false);
    wakeups.set_listening(true);
    assert!(!wakeups.hear_holder(), "it may have gone in between");
}
