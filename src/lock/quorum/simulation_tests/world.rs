//! Time, servers and the network between them and the clients.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use crate::clock::Moment;

/// Real time, in µs.
pub(super) type Time = u64;

pub(super) const MS: Time = 1_000;

/// A clock runs at this rate, in millionths: 1 % apart at most, as the drift allows.
pub(super) fn rate(random: &mut Rng) -> u64 {
    // The extremes are the hardest cases.
    [995_000, 1_005_000][random.usize(..2)]
}

/// The time on a clock of that rate.
pub(super) fn clock_at(now: Time, rate: u64) -> Moment {
    Moment::from_nanos(now * rate / 1_000)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimCommand {
    Acquire,
    Renew,
    Release,
}

/// A command on its way, or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Letter {
    pub(super) client: usize,
    pub(super) place: usize,
    pub(super) command: SimCommand,
    pub(super) hold_id: u64,
    pub(super) lease_ms: u64,
    /// By the client's clock.
    pub(super) sent_at: Moment,
    /// How long the server had been up at `sent_at`, by the uptime that it reported when the connection started.
    pub(super) age_ms: u64,
    /// Which start of the server the connection leads to.
    pub(super) start: u32,
    pub(super) yes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimEvent {
    Arrives(Letter),
    Answered(Letter),
    /// A client's turn, if it still waits for this one.
    Turn(usize, u64),
    /// The server's place, and whether it loses its data.
    Crash(usize, bool),
    Starts(usize),
}

/// A server.
pub(super) struct SimServer {
    rate: u64,
    pub(super) start: u32,
    up_since: Option<Time>,
    /// The hold id in the key, and when the key expires.
    key: Option<(u64, Time)>,
}

impl SimServer {
    fn new(random: &mut Rng) -> Self {
        Self {
            rate: rate(random),
            start: 0,
            // Up since long ago.
            up_since: Some(0),
            key: None,
        }
    }

    /// The uptime that it reports: whole seconds, and up to one second too many.
    pub(super) fn reported_uptime(&self, now: Time, random: &mut Rng) -> Option<u64> {
        let up = (now - self.up_since?) * self.rate / 1_000_000;
        Some(up / 1_000_000 + random.u64(0..=1))
    }

    fn has(&mut self, now: Time) -> Option<u64> {
        self.key = self.key.filter(|(_, ends)| now < *ends);
        self.key.map(|(id, _)| id)
    }

    fn run(&mut self, letter: &Letter, now: Time) -> bool {
        let holder = self.has(now);
        let own = holder == Some(letter.hold_id);
        match letter.command {
            SimCommand::Acquire if holder.is_some() && !own => false,
            SimCommand::Renew if !own => false,
            SimCommand::Acquire | SimCommand::Renew => {
                let ends = now + letter.lease_ms * MS * 1_000_000 / self.rate;
                let before = self.key.map_or(0, |(_, ends)| ends);
                self.key = Some((letter.hold_id, ends.max(before)));
                true
            }
            SimCommand::Release => {
                if own {
                    self.key = None;
                }
                true
            }
        }
    }
}

/// All that the clients share.
pub(super) struct SimWorld {
    pub(super) now: Time,
    pub(super) random: Rng,
    pub(super) servers: Vec<SimServer>,
    events: BinaryHeap<Reverse<(Time, u64, SimEvent)>>,
    number: u64,
    /// From now on no message is lost or late.
    pub(super) calm: bool,
}

impl SimWorld {
    pub(super) fn new(seed: u64, servers: usize) -> Self {
        let mut random = Rng::with_seed(seed);
        let servers = (0..servers).map(|_| SimServer::new(&mut random)).collect();
        Self {
            // All servers are old.
            now: 100_000 * MS,
            random,
            servers,
            events: BinaryHeap::new(),
            number: 0,
            calm: false,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(super) fn after(&mut self, span: Time, event: SimEvent) {
        let number = self.number();
        self.events.push(Reverse((self.now + span, number, event)));
    }

    /// Takes the next event, and advances the time to it.
    pub(super) fn next(&mut self) -> Option<SimEvent> {
        let Reverse((at, _, event)) = self.events.pop()?;
        self.now = at;
        Some(event)
    }

    /// Most letters take a moment, some take long, a few never arrive.
    fn delay(&mut self) -> Option<Time> {
        match self.random.u32(..100) {
            _ if self.calm => Some(100),
            0..6 => None,
            6..12 => Some(self.random.u64(2 * MS..80 * MS)),
            _ => Some(self.random.u64(20..400)),
        }
    }

    pub(super) fn send(&mut self, letter: Letter) {
        if let Some(delay) = self.delay() {
            self.after(delay, SimEvent::Arrives(letter));
        }
    }

    /// A letter arrives. The server ignores it if it has restarted since.
    pub(super) fn arrives(&mut self, mut letter: Letter) {
        let now = self.now;
        let server = &mut self.servers[letter.place];
        if server.up_since.is_none() || server.start != letter.start {
            return;
        }
        letter.yes = server.run(&letter, now);
        // An answer may come twice.
        for _ in 0..=u32::from(self.random.u32(..20) == 0) {
            if let Some(delay) = self.delay() {
                self.after(delay, SimEvent::Answered(letter));
            }
        }
    }

    pub(super) fn crash(&mut self, place: usize, forgets: bool) {
        let server = &mut self.servers[place];
        server.up_since = None;
        if forgets {
            server.key = None;
        }
        let pause = self.random.u64(1..20 * MS);
        self.after(pause, SimEvent::Starts(place));
    }

    pub(super) fn starts(&mut self, place: usize) {
        let now = self.now;
        let server = &mut self.servers[place];
        server.start += 1;
        server.up_since = Some(now);
    }

    /// Whether the lock is held on any server.
    pub(super) fn is_taken(&mut self) -> bool {
        let now = self.now;
        self.servers
            .iter_mut()
            .any(|server| server.has(now).is_some())
    }
}
