//! Who has a lock next when this client gives it back: one of its own waiters, or another client. And what is known of
//! other clients that listen for its releases.
//!
//! 1. The *pass-on window* begins with a hold that any client could have got. While it lasts, holds are passed on or
//!    handed over inside this client. The first release after [`PASS_ON_FOR`] closes the window, and is sent alone.
//! 2. Behind a release that other clients heard, nobody here tries during the *gap*, so that one of them can get the
//!    lock, however far away it is. If nobody came in the gap, the next one is twice as long, up to [`LONGEST`], and
//!    then [`SHORTEST`] again. If somebody came, it keeps its length. A release of somebody else ends the gap.
//! 3. Clients that poll without a subscription are not counted, and they must get in, too. So a release that closes a
//!    window and that nobody heard leaves the lock free for [`SHORTEST`].
//! 4. No gap begins for [`REST`] times as long as the lock was left free. A subscription that wants nothing is counted
//!    among those that heard a release, so a gap may be in vain; in this way at most 5 % of the time is.

use std::time::Duration;

use crate::clock::Moment;

/// For how long a lock stays with one client.
pub(crate) const PASS_ON_FOR: Duration = Duration::from_millis(10);

/// The bounds of the gap.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);

/// How many times as long as the lock was left free no gap begins.
pub(super) const REST: u32 = 20;

#[derive(Debug)]
pub(super) struct Succession {
    /// When the pass-on window began.
    window: Option<Moment>,
    /// The release that closes the window is sent.
    closing: bool,
    /// How long the next gap is.
    gap: Duration,
    /// The last gap, until it is known whether somebody came.
    pub(super) left: Option<Gap>,
    /// No gap begins before that.
    rest_until: Moment,
}

#[derive(Debug)]
pub(super) struct Gap {
    since: Moment,
    until: Moment,
    /// Others heard that the lock is free.
    heard: bool,
}

impl Default for Succession {
    fn default() -> Self {
        Self {
            window: None,
            closing: false,
            gap: SHORTEST,
            left: None,
            rest_until: Moment::default(),
        }
    }
}

impl Succession {
    /// The client got a hold that any client could have got. So nobody came in the last gap, or its outcome is known.
    pub(super) fn got(&mut self, now: Moment) {
        self.window = Some(now);
        self.closing = false;
        if self.left.take().is_some_and(|gap| gap.heard) {
            self.gap = match self.gap {
                LONGEST => SHORTEST,
                gap => (gap * 2).min(LONGEST),
            };
        }
    }

    /// Others wait who precede this client's waiters, or it is not known whether any do.
    pub(super) fn leave(&mut self) {
        self.window = None;
    }

    /// Whether somebody came in the last gap does not matter any more: another client has the lock, or nobody is left to
    /// see it.
    pub(super) fn forget_gap(&mut self) {
        self.left = None;
    }

    /// Another client released the lock.
    pub(super) fn heard_release(&mut self, now: Moment) {
        if let Some(gap) = self.left.take_if(|gap| now < gap.until) {
            self.rest_until = now + gap.since.until(now) * REST;
        }
        self.left = None;
    }

    /// Whether the window is open: holds are passed on or handed over.
    pub(super) fn passes_on(&self, now: Moment) -> bool {
        self.window
            .is_some_and(|since| since.until(now) < PASS_ON_FOR)
    }

    /// The last level was given back, and others wait here. Returns whether the lock stays with this client. If not, the
    /// release that is sent now closes the window.
    pub(super) fn stays(&mut self, now: Moment) -> bool {
        self.closing = !self.passes_on(now);
        !self.closing
    }

    /// A release, which was sent alone, is over. `others`: how many other clients heard it, if that is known.
    pub(super) fn released(&mut self, others: Option<u32>, now: Moment) {
        let closing = std::mem::take(&mut self.closing);
        let heard = others.is_some_and(|others| others > 0);
        self.left = None;
        if now < self.rest_until || !(heard || closing) {
            return;
        }
        let length = if heard { self.gap } else { SHORTEST };
        let until = now + length;
        self.rest_until = until + length * REST;
        self.left = Some(Gap {
            since: now,
            until,
            heard,
        });
    }

    /// Until when the lock is left to others, if it is.
    pub(super) fn left_until(&self, now: Moment) -> Option<Moment> {
        let until = self.left.as_ref().map(|gap| gap.until);
        until.filter(|until| now < *until)
    }
}

/// The wake-up channel: whether the client listens, which messages are its own, and who else listens. It knows holds by
/// their numbers.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    /// Whether the channel is subscribed and confirmed.
    live: bool,
    /// Whether the channel is subscribed since before the last try that was answered "busy", so that the holder's release
    /// would be heard.
    hear_holder: bool,
    /// How many messages of our own releases are still to arrive.
    echoes: u32,
    /// The holds whose release is not answered and whose message is counted in `echoes`: one, rarely more.
    expected: Vec<u64>,
    /// Whether this client is the next to get the lock when it releases it.
    next_is_ours: bool,
}

impl Wakeups {
    /// Whether no other client waits for our release, as far as is known.
    pub(super) fn allow_handover(&self) -> bool {
        self.live && self.next_is_ours
    }

    pub(super) fn hear_holder(&self) -> bool {
        self.hear_holder
    }

    /// A try was answered "busy". The job does not begin to listen while it awaits an answer, so if the channel is live
    /// now, it was when the try was sent.
    pub(super) fn answered_busy(&mut self) {
        self.hear_holder = self.live;
    }

    /// A queue that Redis keeps says whether its next place is of this client.
    pub(super) fn set_next_is_ours(&mut self, ours: bool) {
        self.next_is_ours = ours;
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
    /// Returns how many others did, if that is known.
    pub(super) fn release_answered(&mut self, number: u64, heard_by: Option<u32>) -> Option<u32> {
        // If we listen and nobody got the message, it went elsewhere, as it does while a slot of a cluster migrates.
        // Then others may have missed it, too.
        let heard_by = heard_by.filter(|count| *count > 0 || !self.live);
        let before = self.expected.len();
        self.expected.retain(|expected| *expected != number);
        if self.expected.len() < before && heard_by.is_none() {
            self.echoes = self.echoes.saturating_sub(1);
        }
        let others_heard = heard_by.map(|count| count.saturating_sub(u32::from(self.live)));
        self.next_is_ours = others_heard == Some(0);
        others_heard
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

    /// One more channel is subscribed and confirmed. What a queue in Redis said still counts.
    pub(super) fn channel_added(&mut self) {
        self.live = true;
    }

    /// Whether messages arrive from now on.
    pub(super) fn set_listening(&mut self, live: bool) {
        *self = Self {
            live,
            ..Self::default()
        };
    }
}

#[cfg(test)]
#[path = "succession_tests.rs"]
mod tests;
