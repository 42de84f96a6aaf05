//! What a gate knows of its wake-up channel: whether it listens, which messages are its own, who else heard.

use std::sync::atomic::Ordering;

use super::hold::Hold;

#[derive(Default)]
pub(crate) struct Wakeups {
    /// Whether the channel is subscribed and confirmed.
    live: bool,
    /// Our own releases whose message is still to come back to us.
    echoes: u32,
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

    /// How many other clients heard the release that freed the seat; once.
    pub(crate) fn take_released(&mut self) -> Option<u32> {
        self.released.take()
    }

    /// A last release of `hold` is being sent: its message comes back to us if we listen, once, however
    /// often it is sent. To count too few costs a look, to count too many a wake-up.
    pub(crate) fn expect_echo(&mut self, hold: &Hold) {
        if self.live && !hold.echo.swap(true, Ordering::AcqRel) {
            self.echoes += 1;
        }
    }

    /// The release of `hold` was answered. `told`: so many clients, when it was published.
    pub(crate) fn release_answered(&mut self, hold: &Hold, told: Option<u32>) {
        if hold.echo.swap(false, Ordering::AcqRel) && told.is_none() {
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

    /// Whether messages arrive from now on.
    pub(crate) fn listening(&mut self, live: bool) {
        self.live = live;
        self.echoes = 0;
        self.alone = false;
    }
}
