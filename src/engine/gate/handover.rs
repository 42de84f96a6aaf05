//! When the lock goes from one waiter of this client to the next: what is known of others who listen, and for how long.
//!
//! 1. The *pass-on window* begins with a hold that any client could have got. While it lasts, holds are passed on or
//!    handed over inside this client.
//! 2. After [`PASS_ON_FOR`] the next release is sent alone, and once that is answered the lock is left free for
//!    [`LEAVE_FREE_FOR`]. Nobody counts those who poll without a subscription, and they must get in, too.

use std::time::Duration;

use crate::clock::Moment;

/// For how long a lock stays with one client.
pub(crate) const PASS_ON_FOR: Duration = Duration::from_millis(10);

/// For how long it is left free after that.
pub(super) const LEAVE_FREE_FOR: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct PassOnWindow {
    since: Option<Moment>,
    /// The release that closes the window is sent, and the lock was not left free yet.
    closing: bool,
    free_until: Moment,
}

impl PassOnWindow {
    /// The client got a hold that any client could have got.
    pub(super) fn open(&mut self, now: Moment) {
        self.since = Some(now);
        self.closing = false;
    }

    pub(super) fn is_open(&self, now: Moment) -> bool {
        self.since
            .is_some_and(|since| since.until(now) < PASS_ON_FOR)
    }

    /// The release is sent that closes the window.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// A release was answered: the lock is free.
    pub(super) fn lock_freed(&mut self, now: Moment) {
        if std::mem::take(&mut self.closing) {
            self.free_until = now + LEAVE_FREE_FOR;
        }
    }

    /// Whether this client leaves the lock to others now.
    pub(super) fn leaves_free(&self, now: Moment) -> bool {
        self.closing || now < self.free_until
    }

    /// The lock is free. Returns until when it is left to others, if it is.
    pub(super) fn leave_free(&mut self, now: Moment) -> Option<Moment> {
        // The lease may have ended before the release was answered.
        self.lock_freed(now);
        Some(self.free_until).filter(|until| now < *until)
    }
}

/// The wake-up channel: whether the client listens, which messages are its own, and who else listens. It knows holds by
/// their numbers.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    /// Whether the channel is subscribed and confirmed.
    live: bool,
    /// How many messages of our own releases are still to arrive.
    echoes: u32,
    /// The holds whose release is not answered and whose message is counted in `echoes`: one, rarely more.
    expected: Vec<u64>,
    /// How many other clients heard our last release, until somebody asks.
    others_heard: Option<u32>,
    /// Whether this client is the next to get the lock when it releases it.
    next_is_ours: bool,
}

impl Wakeups {
    /// Whether no other client waits for our release, as far as is known.
    pub(super) fn allow_handover(&self) -> bool {
        self.live && self.next_is_ours
    }

    /// A queue that Redis keeps says whether its next place is of this client.
    pub(super) fn set_next_is_ours(&mut self, ours: bool) {
        self.next_is_ours = ours;
    }

    /// How many other clients heard the release that freed the seat; once.
    pub(super) fn take_others_heard(&mut self) -> Option<u32> {
        self.others_heard.take()
    }

    /// A last release of the hold `number` is sent. If we listen, its message comes back once, however often it is
    /// sent. An echo counted too few costs a needless try, one too many costs a wake-up.
    pub(super) fn expect_echo(&mut self, number: u64) {
        if self.live && !self.expected.contains(&number) {
            self.expected.push(number);
            self.echoes += 1;
        }
    }

    /// The release of the hold `number` was answered. `heard_by`: how many clients got its message, if it was published.
    pub(super) fn release_answered(&mut self, number: u64, heard_by: Option<u32>) {
        // If we listen and nobody got the message, it went elsewhere, as it does while a slot of a cluster migrates.
        // Then others may have missed it, too.
        let heard_by = heard_by.filter(|count| *count > 0 || !self.live);
        let before = self.expected.len();
        self.expected.retain(|expected| *expected != number);
        if self.expected.len() < before && heard_by.is_none() {
            self.echoes = self.echoes.saturating_sub(1);
        }
        self.others_heard = heard_by.map(|count| count.saturating_sub(u32::from(self.live)));
        self.next_is_ours = self.others_heard == Some(0);
    }

    /// Messages arrived. Returns how many are news, and not the echo of our own release.
    pub(super) fn news(&mut self, messages: u32) -> u32 {
        let own = self.echoes.min(messages);
        self.echoes -= own;
        if messages > own {
            self.next_is_ours = false;
        }
        messages - own
    }

    /// One more channel is subscribed and confirmed; what a queue in Redis said is as true as before.
    pub(super) fn channel_added(&mut self) {
        self.live = true;
    }

    /// Whether messages arrive from now on.
    pub(super) fn set_listening(&mut self, live: bool) {
        *self = Self {
            live,
            others_heard: self.others_heard,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
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
}
