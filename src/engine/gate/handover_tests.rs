//! The pass-on window, and what is known of others who listen.

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
        wakeups.release_answered(1, heard_by);
        assert_eq!(wakeups.take_others_heard(), None);
        assert!(!wakeups.allow_handover());
        assert_eq!(wakeups.news(2), 1, "that of 2 was still to come");
        wakeups.expect_echo(4);
        wakeups.release_answered(3, heard_by);
        assert_eq!(wakeups.news(2), 1, "nothing was expected of 3");
    }
}

#[test]
fn how_many_others_heard_is_reported_once() {
    for (live, heard) in [(true, 2), (false, 3)] {
        let mut wakeups = Wakeups::default();
        wakeups.set_listening(live);
        wakeups.release_answered(1, Some(3));
        assert_eq!(
            wakeups.take_others_heard(),
            Some(heard),
            "besides ourselves"
        );
        assert_eq!(wakeups.take_others_heard(), None);
    }
    let mut wakeups = Wakeups::default();
    wakeups.release_answered(1, Some(0));
    assert_eq!(wakeups.take_others_heard(), Some(0));
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
fn who_subscribes_again_knows_only_who_heard_the_last_release() {
    for live in [true, false] {
        let mut wakeups = listening();
        wakeups.expect_echo(1);
        wakeups.release_answered(1, Some(1));
        assert!(wakeups.allow_handover());
        wakeups.set_listening(live);
        assert!(!wakeups.allow_handover());
        wakeups.set_next_is_ours(true);
        assert_eq!(wakeups.allow_handover(), live);
        assert_eq!(wakeups.take_others_heard(), Some(0));
        assert_eq!(wakeups.news(1), 1, "its own message may have been missed");
    }
}

fn at(ms: u64) -> Moment {
    Moment::default() + Duration::from_millis(1_000 + ms)
}

#[test]
fn a_window_is_open_for_ten_milliseconds_and_no_longer() {
    let mut window = PassOnWindow::default();
    assert!(!window.is_open(at(0)), "nothing was got");
    window.open(at(0));
    assert!(window.is_open(at(9)));
    assert!(!window.is_open(at(10)));
}

#[test]
fn a_lock_that_is_free_without_an_answer_is_left_free_as_well() {
    let mut window = PassOnWindow::default();
    window.open(at(0));
    window.close();
    assert_eq!(window.leave_free(at(30_000)), Some(at(30_001)));
    assert_eq!(window.leave_free(at(30_001)), None);
}

#[test]
fn behind_a_window_the_lock_is_left_free_for_a_millisecond_once() {
    let mut window = PassOnWindow::default();
    window.open(at(0));
    assert_eq!(window.leave_free(at(5)), None, "no window has closed");
    window.close();
    assert!(
        window.leaves_free(at(12)),
        "until the release is answered, too"
    );
    window.lock_freed(at(13));
    assert_eq!(window.leave_free(at(13)), Some(at(14)));
    assert!(window.leaves_free(at(13)));
    assert_eq!(window.leave_free(at(14)), None);
    assert!(!window.leaves_free(at(14)));
    window.open(at(14));
    assert!(window.is_open(at(23)), "a new window");
}
