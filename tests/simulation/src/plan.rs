//! What a seed stands for: how many processes, how far away, which locks, which faults.

use std::time::Duration;

use fastrand::Rng;
use watchlock_support::history::LockKind;

use crate::world::{Link, Micros};

/// How much faster or slower the clocks of processes may run, in millionths.
pub(crate) const MOST_DRIFT: u32 = 4_000;

/// How rough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Calm,
    Rare,
    Rough,
}

/// Everything that a seed decides before the run begins.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub processes: usize,
    /// One, or those of a quorum.
    pub servers: usize,
    pub owners: usize,
    pub names: usize,
    pub kinds: Vec<LockKind>,
    pub links: Vec<Link>,
    /// How much faster each process's clock runs, in millionths.
    pub drifts: Vec<i64>,
    pub watchdog_lease: Duration,
    pub command_timeout: Duration,
    pub weather: Weather,
    /// How many sections to run.
    pub sections: usize,
    /// How often a caller's future is not polled for a while, or dropped: one time in so many.
    pub careless: u32,
    /// Some sections take several names as one; their kinds are those of `MEMBERS`.
    pub several: bool,
    /// Many owners want one name, each for a moment.
    pub is_crowd: bool,
    /// How many permits each semaphore has.
    pub permits: u32,
    /// How far the server's replica is behind, which must acknowledge what clients get; none: there is no replica.
    pub replica: Option<Micros>,
    /// The faults that are left out, by their numbers.
    pub skipped: Vec<usize>,
}

const KINDS: [LockKind; 7] = [
    LockKind::Lock,
    LockKind::Fair,
    LockKind::Read,
    LockKind::Fenced,
    LockKind::Spin,
    LockKind::Simple,
    LockKind::Lock,
];

/// The kinds of names that are also taken as one, by their numbers.
pub const MEMBERS: [LockKind; 3] = [LockKind::Lock, LockKind::Fenced, LockKind::Lock];

/// How many owners a crowd has.
const CROWDS: [usize; 4] = [50, 200, 500, 1_000];

/// How many clients wait for one fair lock.
const QUEUE: usize = 40;

/// How far replicas are behind.
const LAGS: [Micros; 4] = [1_000, 2_000, 5_000, 20_000];

/// Round trips, in milliseconds.
const ROUND_TRIPS: [Micros; 10] = [0, 0, 0, 0, 1, 1, 3, 20, 80, 250];

impl Plan {
    /// Whether faults come one upon the other.
    #[must_use]
    pub fn is_rough(&self) -> bool {
        self.weather == Weather::Rough
    }

    /// The longest round trip, in milliseconds.
    pub(crate) fn furthest_ms(&self) -> u64 {
        let ways = self
            .links
            .iter()
            .map(|link| link.up + link.down + 2 * link.jitter);
        ways.max().unwrap_or(0) / 1_000
    }

    /// What this seed stands for on one server.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self::drawn(seed, 1)
    }

    /// What it stands for when every name is a semaphore.
    #[must_use]
    pub fn of_permits(seed: u64) -> Self {
        let mut plan = Self::of(seed);
        plan.permits = 1 + u32::try_from(seed % 5).unwrap_or(0);
        plan.kinds = vec![LockKind::Permits(plan.permits); plan.names];
        plan.several = false;
        plan
    }

    /// What it stands for on a server with a replica.
    #[must_use]
    pub fn of_replica(seed: u64) -> Self {
        let mut plan = if seed.is_multiple_of(4) {
            Self::of_permits(seed)
        } else {
            Self::of(seed)
        };
        plan.replica = Some(LAGS[usize::try_from(seed / 5 % 4).unwrap_or(0)]);
        // A renewal may wait for the acknowledgement of what was sent before it.
        if plan.watchdog_lease.as_millis() <= 4 * u128::from(plan.furthest_ms()) {
            plan.watchdog_lease = Duration::from_secs(3);
        }
        plan
    }

    /// The longest lease that anybody takes, which a fair lock's dead waiters may make longer.
    pub(crate) fn longest_lease(&self) -> Duration {
        let fixed = Duration::from_millis(2_100 + 2 * self.furthest_ms());
        let queued = Duration::from_secs(if self.kinds.contains(&LockKind::Fair) {
            20
        } else {
            0
        });
        self.watchdog_lease.max(fixed).max(queued)
    }

    /// Whether every name is a semaphore.
    pub(crate) fn is_of_permits(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_counted())
    }

    /// Whether the permits of a name have an id; those of every other one do.
    pub(crate) fn has_ids(&self, name: usize) -> bool {
        self.seed.is_multiple_of(2) == name.is_multiple_of(2)
    }

    /// How a plan that was made smaller differs from that of its seed, as options of `simulate`.
    fn smaller(&self) -> String {
        let whole = match self.servers {
            1 if self.replica.is_some() => Self::of_replica(self.seed),
            1 if self.is_of_permits() => Self::of_permits(self.seed),
            1 => Self::of(self.seed),
            _ => Self::of_quorum(self.seed),
        };
        let counts = [
            ("processes", self.processes, whole.processes),
            ("owners", self.owners, whole.owners),
            ("names", self.names, whole.names),
            ("sections", self.sections, whole.sections),
        ];
        let changed = counts.into_iter().filter(|(_, now, before)| now != before);
        let mut options: Vec<_> = changed
            .map(|(word, now, _)| format!("--{word} {now}"))
            .collect();
        if !self.skipped.is_empty() {
            let numbers: Vec<_> = self.skipped.iter().map(ToString::to_string).collect();
            options.push(format!("--skip {}", numbers.join(",")));
        }
        options.join(" ")
    }

    /// The command that runs it again.
    #[must_use]
    pub fn again(&self) -> String {
        let of = match self.servers {
            1 if self.replica.is_some() => " REPLICA=1",
            1 if self.is_of_permits() => " PERMITS=1",
            1 => "",
            _ => " QUORUM=1",
        };
        let smaller = Some(self.smaller()).filter(|options| !options.is_empty());
        let smaller = smaller.map_or_else(String::new, |options| format!(" SMALLER='{options}'"));
        format!("make simulate SEEDS={}{of} TRACE=1{smaller}", self.seed)
    }

    /// What it stands for on the servers of a quorum.
    #[must_use]
    pub fn of_quorum(seed: u64) -> Self {
        Self::drawn(seed, if seed.is_multiple_of(2) { 3 } else { 5 })
    }

    fn drawn(seed: u64, servers: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let processes = rng.usize(1..=4);
        let owners = [1, 2, 3, 6, 12][rng.usize(..5)];
        let names = rng.usize(1..=3);
        let first = rng.usize(..KINDS.len());
        let kind = |name: usize| match servers {
            1 => KINDS[(first + name) % KINDS.len()],
            _ if (first + name).is_multiple_of(3) => LockKind::RedFenced,
            _ => LockKind::Red,
        };
        let kinds: Vec<_> = (0..names).map(kind).collect();
        let far = rng.bool();
        let links = (0..processes).map(|_| {
            let round_trip = if far {
                // A server of a quorum has a quarter of the lease to answer.
                let choice = ROUND_TRIPS.len() - usize::from(servers > 1);
                ROUND_TRIPS[rng.usize(..choice)] * 1_000
            } else {
                0
            };
            Link {
                up: round_trip / 2,
                down: round_trip - round_trip / 2,
                jitter: if rng.u32(..4) == 0 {
                    round_trip / 4 + 1
                } else {
                    0
                },
                ..Link::default()
            }
        });
        let links = links.collect();
        let drifts = (0..processes).map(|_| {
            if rng.bool() {
                0
            } else {
                rng.i64(-i64::from(MOST_DRIFT)..=i64::from(MOST_DRIFT))
            }
        });
        let drifts = drifts.collect();
        let shortest = usize::from(servers > 1);
        let leases = [1_200, 3_000, 10_000, 30_000];
        let watchdog_lease = Duration::from_millis(leases[rng.usize(shortest..4)]);
        let weather = [Weather::Calm, Weather::Rare, Weather::Rough][rng.usize(..3)];
        let careless = [0, 0, 40, 8][rng.usize(..4)];
        let several = servers == 1 && names > 1 && rng.u32(..3) == 0;
        let kinds = if several {
            MEMBERS[..names].to_vec()
        } else {
            kinds
        };
        let is_crowd = servers == 1 && rng.u32(..16) == 0;
        let crowd = CROWDS[rng.usize(..CROWDS.len())];
        let (owners, names, kinds) = if is_crowd {
            let kind = [LockKind::Lock, LockKind::Fair][rng.usize(..2)];
            (crowd / processes, 1, vec![kind])
        } else {
            (owners, names, kinds)
        };
        // So many clients that those behind the first leave the polls to heartbeats.
        let is_queue = is_crowd && crowd == CROWDS[0] && kinds == [LockKind::Fair];
        let (processes, owners) = if is_queue {
            (QUEUE, 1)
        } else {
            (processes, owners)
        };
        let (links, drifts): (Vec<Link>, Vec<i64>) = (links, drifts);
        let links = links.into_iter().cycle().take(processes).collect();
        let drifts = drifts.into_iter().cycle().take(processes).collect();
        Self {
            seed,
            processes,
            servers,
            owners,
            names,
            kinds,
            links,
            drifts,
            watchdog_lease,
            command_timeout: Duration::from_secs(1),
            weather,
            sections: 400,
            careless,
            several: several && !is_crowd,
            is_crowd,
            permits: 1,
            replica: None,
            skipped: Vec::new(),
        }
    }
}

/// One section: a lock, perhaps entered again, held for a while.
#[derive(Clone, Debug)]
pub struct Section {
    /// One, or several that are taken as one.
    pub names: Vec<usize>,
    pub kind: LockKind,
    /// None: as long as it takes.
    pub wait_ms: Option<u64>,
    /// The leases of the levels; none: under the watchdog.
    pub leases_ms: Vec<Option<u64>>,
    pub hold: Duration,
    pub pause: Duration,
    pub end: Ending,
    /// What the holder does in the middle.
    pub midst: Midst,
    /// After how long the caller gives up its future, and for how long it is not polled before.
    pub gives_up: Option<Duration>,
    pub rests: Option<Duration>,
    /// `run` or `try_run` calls the body.
    pub runs: bool,
    /// It is entered again by handles of the client in the owner's scope.
    pub scoped: bool,
    /// It is entered again by handles of this kind, which is the same lock.
    pub again: LockKind,
}

/// How a hold is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Unlock,
    Drop,
    LetExpire,
    /// Left to the owner, who gives it back later.
    Detach(Duration),
}

/// What a holder does with its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Midst {
    Nothing,
    Verify,
    Extend(Duration),
    /// A writer goes on as a reader.
    Downgrade,
}

impl Section {
    /// The name of the lock in the history.
    pub fn called(&self) -> String {
        let names = self.names.iter().map(|name| format!("name:{name}"));
        names.collect::<Vec<_>>().join(LockKind::BETWEEN)
    }

    /// The next section of an owner.
    pub fn draw(rng: &mut Rng, plan: &Plan) -> Self {
        let mut names = vec![rng.usize(..plan.names)];
        let mut kind = plan.kinds[names[0]];
        if plan.several && plan.names > 1 && rng.u32(..3) > 0 {
            kind = LockKind::Multi;
            names = (0..plan.names).collect();
            rng.shuffle(&mut names);
            names.truncate(rng.usize(2..=plan.names));
        }
        if kind == LockKind::Read && rng.u32(..3) == 0 {
            kind = LockKind::Write;
        }
        if kind.is_counted() {
            let many = rng.u32(..4) == 0;
            kind = LockKind::Permits(if many { rng.u32(1..=plan.permits) } else { 1 });
        }
        let wait_ms = match rng.u32(..10) {
            0..4 => None,
            4..6 => Some(0),
            6..9 => Some(rng.u64(1..400)),
            // By a clock that drifts, a long wait is not as long as it seems.
            _ if plan.drifts.iter().any(|drift| *drift != 0) => Some(rng.u64(400..2_000)),
            _ => Some(rng.u64(400..20_000)),
        };
        let is_entered_again = kind != LockKind::Read && !kind.is_counted();
        let levels = if is_entered_again && !plan.is_crowd && rng.u32(..4) == 0 {
            rng.usize(2..4)
        } else {
            1
        };
        // A lease that is over before its grant arrives is an error after a while, and nobody else's turn meanwhile.
        let least = if plan.servers == 1 {
            100 + 2 * plan.furthest_ms()
        } else {
            400 + 8 * plan.furthest_ms()
        };
        // Each batch of acknowledged commands waits until the replica has it, behind a batch before it.
        let acknowledged = least + plan.replica.map_or(0, |lag| 16 * lag / 1_000);
        let fixed = |rng: &mut Rng| {
            (rng.u32(..3) == 0).then(|| rng.u64(least..least + 2_000).max(acknowledged))
        };
        let mut leases_ms: Vec<_> = (0..levels).map(|_| fixed(rng)).collect();
        let watchdog = u64::try_from(plan.watchdog_lease.as_millis()).unwrap_or(0);
        let (moment, while_ms) = (rng.u64(..2_000), rng.u64(2..60));
        let (short_ms, long_ms) = (
            rng.u64(least..least + 200).max(acknowledged),
            rng.u64(watchdog / 2..3 * watchdog),
        );
        let hold = match rng.u32(..1_000) {
            // What each of a crowd holds for long, all others wait for.
            _ if plan.is_crowd => Duration::from_micros(moment),
            0..880 => Duration::from_micros(moment),
            880..970 => Duration::from_millis(while_ms),
            970..985 => {
                leases_ms = vec![Some(short_ms)];
                Duration::from_millis(2 * short_ms)
            }
            _ => {
                leases_ms = vec![None];
                Duration::from_millis(long_ms)
            }
        };
        let careless = plan.careless > 0 && rng.u32(..plan.careless) == 0;
        let rests = careless && wait_ms.is_none() && rng.bool();
        let gives_up = careless && rng.bool();
        let runs = leases_ms.len() == 1 && !careless && rng.u32(..8) == 0;
        if runs && kind.is_counted() {
            kind = LockKind::Permits(1);
        }
        let downgrades = kind == LockKind::Write && leases_ms == [None] && rng.bool();
        Self {
            names,
            kind,
            wait_ms,
            leases_ms,
            hold,
            pause: Duration::from_millis(if rng.u32(..3) == 0 { rng.u64(..50) } else { 0 }),
            end: match rng.u32(..22) {
                15.. if kind.is_counted() => Ending::Drop,
                0..15 => Ending::Unlock,
                15..19 => Ending::Drop,
                19 => Ending::LetExpire,
                _ => Ending::Detach(Duration::from_millis(rng.u64(..20))),
            },
            midst: match rng.u32(..20) {
                _ if downgrades && !runs => Midst::Downgrade,
                0 => Midst::Verify,
                1 => Midst::Extend(Duration::from_millis(rng.u64(1..5_000))),
                _ => Midst::Nothing,
            },
            gives_up: gives_up.then(|| Duration::from_millis(rng.u64(..600))),
            // A caller that does not poll is late by itself: it would break the bound of its wait.
            rests: rests.then(|| Duration::from_millis(rng.u64(..900))),
            runs,
            scoped: rng.u32(..3) == 0,
            again: match kind {
                LockKind::Lock | LockKind::Fenced | LockKind::Spin if levels > 1 => {
                    [LockKind::Lock, LockKind::Fenced, LockKind::Spin][rng.usize(..3)]
                }
                LockKind::Red | LockKind::RedFenced if levels > 1 => {
                    [LockKind::Red, LockKind::RedFenced][rng.usize(..2)]
                }
                _ => kind,
            },
        }
    }
}
