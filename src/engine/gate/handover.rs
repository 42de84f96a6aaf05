//! What a gate knows of its wake-up channel: whether it listens, which messages are its own, who else heard.

/// Pure bookkeeping; a hold is known by its number.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    /// Whether the channel is subscribed and confirmed.
    live: bool,
    /// Our own releases whose message is still to come back to us.
    echoes: u32,
    /// The holds that those are of, as long as their release is not answered: one, rarely more.
    expected: Vec<u64>,
    /// So many other clients heard our last release; until somebody asks for it.
    released: Option<u32>,
    /// Whether nobody else listened to our last release.
    alone: bool,
}

impl Wakeups {
    /// Whether wake-ups arrive here, and nowhere else as far as is known.
    pub(crate) fn are_ours_alone(&self) -> bool {
        self.live && self.alone
    }

    /// A queue that Redis keeps says whether the next wake-up is for this client.
    pub(crate) fn next_is_ours(&mut self, ours: bool) {
        self.alone = ours;
    }

    /// How many other clients heard the release that freed the seat; once.
    pub(crate) fn take_released(&mut self) -> Option<u32> {
        self.released.take()
    }

    /// A last release of the hold `number` is being sent: its message comes back to us if we listen, once,
    /// however often it is sent. To count too few costs a look, to count too many a wake-up.
    pub(crate) fn expect_echo(&mut self, number: u64) {
        if self.live && !self.expected.contains(&number) {
            self.expected.push(number);
            self.echoes += 1;
        }
    }

    /// The release of the hold `number` was answered. `told`: so many clients, when it was published to them.
    pub(crate) fn release_answered(&mut self, number: u64, told: Option<u32>) {
        // Who listens is counted: that nobody was told means that the message went elsewhere, as it does while a slot of
        // a cluster migrates. Then others may have missed it, too.
        let told = told.filter(|told| *told > 0 || !self.live);
        let before = self.expected.len();
        self.expected.retain(|expected| *expected != number);
        if self.expected.len() < before && told.is_none() {
            self.echoes = self.echoes.saturating_sub(1);
        }
        self.released = told.map(|listeners| listeners.saturating_sub(u32::from(self.live)));
        self.alone = self.released == Some(0);
    }

    /// So many messages came: how many are news, and not the echo of our own release.
    pub(crate) fn news(&mut self, messages: u32) -> u32 {
        let own = self.echoes.min(messages);
        self.echoes -= own;
        if messages > own {
            self.alone = false;
        }
        messages - own
    }

    /// One more channel is subscribed and confirmed; what a queue that Redis keeps said is as true as before.
    pub(crate) fn hears_more(&mut self) {
        self.live = true;
    }

    /// Whether messages arrive from now on.
    pub(crate) fn listening(&mut self, live: bool) {
        *self = Self {
            live,
            released: self.released,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening() -> Wakeups {
        let mut wakeups = Wakeups::default();
        wakeups.listening(true);
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
        wakeups.listening(true);
        assert_eq!(wakeups.news(1), 1);
    }

    #[test]
    fn a_release_that_told_nobody_is_not_heard_and_those_of_others_are() {
        // With somebody who listens, "nobody" is as good as not published.
        for told in [None, Some(0)] {
            let mut wakeups = listening();
            wakeups.expect_echo(1);
            wakeups.expect_echo(2);
            wakeups.release_answered(1, told);
            assert_eq!(wakeups.take_released(), None);
            assert!(!wakeups.are_ours_alone());
            assert_eq!(wakeups.news(2), 1, "that of 2 was still to come");
            wakeups.expect_echo(4);
            wakeups.release_answered(3, told);
            assert_eq!(wakeups.news(2), 1, "nothing was expected of 3");
        }
    }

    #[test]
    fn how_many_others_heard_is_told_once() {
        for (live, heard) in [(true, 2), (false, 3)] {
            let mut wakeups = Wakeups::default();
            wakeups.listening(live);
            wakeups.release_answered(1, Some(3));
            assert_eq!(wakeups.take_released(), Some(heard), "besides ourselves");
            assert_eq!(wakeups.take_released(), None);
        }
        let mut wakeups = Wakeups::default();
        wakeups.release_answered(1, Some(0));
        assert_eq!(wakeups.take_released(), Some(0));
    }

    #[test]
    fn wake_ups_are_ours_alone_as_long_as_nobody_else_is_heard_of() {
        let mut wakeups = listening();
        assert!(!wakeups.are_ours_alone(), "nothing is known");
        wakeups.expect_echo(1);
        wakeups.release_answered(1, Some(1));
        assert!(wakeups.are_ours_alone());
        assert_eq!(wakeups.news(1), 0);
        assert!(wakeups.are_ours_alone(), "it was our own message");
        assert_eq!(wakeups.news(1), 1);
        assert!(!wakeups.are_ours_alone(), "it was somebody else's");
        wakeups.release_answered(2, Some(1));
        wakeups.release_answered(3, Some(2));
        assert!(!wakeups.are_ours_alone(), "somebody else heard it");
    }

    #[test]
    fn what_a_queue_says_holds_for_as_long_as_one_listens() {
        let mut wakeups = Wakeups::default();
        wakeups.next_is_ours(true);
        assert!(!wakeups.are_ours_alone(), "nothing is heard");
        wakeups.hears_more();
        assert!(wakeups.are_ours_alone());
        wakeups.next_is_ours(false);
        assert!(!wakeups.are_ours_alone());
    }

    #[test]
    fn who_listens_anew_knows_nothing_but_who_heard_the_last_release() {
        for live in [true, false] {
            let mut wakeups = listening();
            wakeups.expect_echo(1);
            wakeups.release_answered(1, Some(1));
            assert!(wakeups.are_ours_alone());
            wakeups.listening(live);
            assert!(!wakeups.are_ours_alone());
            wakeups.next_is_ours(true);
            assert_eq!(wakeups.are_ours_alone(), live);
            assert_eq!(wakeups.take_released(), Some(0));
            assert_eq!(wakeups.news(1), 1, "its own message may have been missed");
        }
    }
}
