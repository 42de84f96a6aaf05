//! What is known of others who listen.

use super::*;

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
