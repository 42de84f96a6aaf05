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
