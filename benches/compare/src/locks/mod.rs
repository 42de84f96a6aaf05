//! The entrants: one small file each, the floor and watchlock here, the others in their own workspace.

mod floor;
mod kinds;
mod majority;
mod raw;
pub(crate) mod script;
mod watchlock;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::load::{self, Job};

use floor::Floor;
use raw::Raw;
pub use script::client_with_nodelay;
pub(crate) use script::{LEASE_MS, Scripts, channel};
use watchlock::Watchlock;

/// How an entrant is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setup {
    /// As its quickstart shows it.
    Default,
    /// As fast as its options make it.
    Tuned,
}

/// Something that holds for as long as it lives.
pub type Held = Box<dyn Any + Send>;

/// The times of pairs of one lock, and of several as one, in µs.
#[derive(Debug, Default)]
pub struct Together {
    /// Of one lock.
    pub one: Vec<f64>,
    /// Of several locks.
    pub all: Vec<f64>,
}

/// The times of an acquire of one server, of a majority sent raw, of a quorum, and of one that lacks a minority, in µs.
#[derive(Debug, Default)]
pub struct Majorities {
    /// Of one server.
    pub one: Vec<f64>,
    /// Of a majority of the same servers, without a quorum: its commands sent raw.
    pub raw: Vec<f64>,
    /// Of all of a quorum.
    pub all: Vec<f64>,
    /// Of a quorum that lacks a minority and knows of it.
    pub some: Vec<f64>,
}

/// The lease of holds in an outage.
pub(crate) const OUTAGE_LEASE: Duration = Duration::from_secs(9);

/// A hold that reports its loss.
pub trait Watched: Send + Sync {
    /// How long it is valid.
    fn valid_for(&self) -> Duration;

    /// Ends once the hold is lost.
    fn lost(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// What an entrant can do.
pub trait LockUnderTest: Clone + Send + Sync + 'static {
    /// Connects to the server.
    fn connect(url: &str, setup: Setup) -> impl Future<Output = Result<Self>> + Send;

    /// What one task uses: shared, unless the crate is meant to be used differently.
    fn for_task(&self) -> impl Future<Output = Result<Self>> + Send {
        std::future::ready(Ok(self.clone()))
    }

    /// Locks `name`, waiting for it; runs `body` to its end; unlocks.
    fn section<B>(&self, name: &str, body: B) -> impl Future<Output = Result<()>> + Send
    where
        B: Future<Output = ()> + Send + 'static;

    /// As [`section`](Self::section), but writes, for locks whose other sections read.
    fn write<B>(&self, _name: &str, _body: B) -> impl Future<Output = Result<()>> + Send
    where
        B: Future<Output = ()> + Send + 'static,
    {
        std::future::ready(Err("its locks are not read/write locks".into()))
    }

    /// Holds `name`, enters it again and gives that level back until the time is over; returns the time of each entry,
    /// in µs. `None` when the crate's locks cannot be entered again.
    fn reenter(
        &self,
        _name: &str,
        _end: Instant,
    ) -> impl Future<Output = Result<Option<Vec<f64>>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Locks and unlocks the first of `names`, then all of them at once, until the time is over. `None` when the crate
    /// has no such lock.
    fn together(
        &self,
        _names: Vec<String>,
        _end: Instant,
    ) -> impl Future<Output = Result<Option<Together>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Locks a name at the first of the servers, by raw commands at all of `quorums[0]`, at a quorum of these, and at
    /// one of `quorums[1]`, of which a minority is away, in turn, until the time is over. `None` when the crate has no
    /// such lock.
    fn majorities(
        &self,
        _quorums: [Vec<String>; 2],
        _window: Duration,
    ) -> impl Future<Output = Result<Option<Majorities>>> + Send {
        std::future::ready(Ok(None))
    }

    /// The same with acquires that the replica of the server must acknowledge. `None` when the crate waits for none.
    fn acknowledged(&self, _url: &str) -> impl Future<Output = Result<Option<Self>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Asks whether anybody has `name`.
    fn is_locked(&self, _name: &str) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Err("it cannot be asked".into()))
    }

    /// Holds `name` and keeps it alive; `None` when the crate does not renew.
    fn hold(&self, _name: &str) -> impl Future<Output = Result<Option<Held>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Ends the client, which gives back what it holds; waits for the holders for at most `wait`. False when the crate has
    /// no such end.
    fn shut_down(&self, _wait: Duration) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Ok(false))
    }

    /// A client that renews its holds with a lease of 9 s; `None` when the crate does not report losses.
    fn with_short_lease(&self, _url: &str) -> impl Future<Output = Result<Option<Self>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Holds `name`; returns until when that is valid and a future that ends once the hold is lost.
    fn watched(&self, _name: &str) -> impl Future<Output = Result<Box<dyn Watched>>> + Send {
        std::future::ready(Err("it reports no loss to its holders".into()))
    }
}

/// The plain lock: what the other crates have as well.
pub const PLAIN: &str = "lock";
/// The plain lock with a deadline for each wait, and with an owner for each section.
pub(crate) const DEADLINES: &str = "deadlines";
pub(crate) const SCOPES: &str = "scopes";
/// A read lock that the client holds already.
pub(crate) const READ_HELD: &str = "read, held";

/// A permit of a semaphore, and how many of them each has.
pub(crate) const OF_SEMAPHORE: &str = "permits";
pub(crate) const PERMITS: u32 = 4;

/// The role of an entrant in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Nothing can be cheaper.
    Floor,
    /// watchlock.
    Ours,
    /// What users could pick instead.
    Peer,
}

/// What the bench knows of an entrant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Info {
    /// Its name in the tables.
    pub name: String,
    /// Its role in the comparison.
    pub role: Role,
    /// The category: [`PLAIN`], or one of the other kinds of lock, or another way to take the plain one.
    pub kind: String,
    /// How it is set up.
    pub setup: Setup,
    /// The commands that it sends itself, as the server counts them.
    pub commands: Vec<String>,
    /// Its set-up, described for the reader.
    pub note: String,
    /// Whether it waits for a busy lock; the floor only fails.
    pub waits: bool,
    /// Whether a held lock can be entered again.
    pub reenters: bool,
    /// Whether it keeps what is held alive.
    pub renews: bool,
}

impl Info {
    /// A library that waits; by default it neither renews nor lets a holder in again.
    #[must_use]
    pub fn peer(name: &str, setup: Setup, commands: &[&str], note: &str) -> Self {
        Self {
            name: name.to_owned(),
            role: Role::Peer,
            kind: PLAIN.to_owned(),
            setup,
            commands: commands.iter().map(|&command| command.to_owned()).collect(),
            note: note.to_owned(),
            waits: true,
            reenters: false,
            renews: false,
        }
    }
}

/// An entrant, in the program that can run it.
#[derive(Clone)]
pub struct Entrant {
    pub(crate) info: Info,
    pub(crate) run: fn(&Job) -> Result<String>,
}

impl Entrant {
    /// Makes `L` an entrant.
    #[must_use]
    pub fn of<L: LockUnderTest>(info: Info) -> Self {
        Self {
            info,
            run: load::run::<L>,
        }
    }
}

impl fmt::Debug for Entrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

/// The entrants of this program.
pub(crate) fn own() -> Vec<Entrant> {
    let raw = "the two scripts of watchlock, raw EVALSHA on one multiplexed connection, no library";
    let floor = Info {
        role: Role::Floor,
        waits: false,
        reenters: true,
        ..Info::peer("floor", Setup::Default, &["evalsha"], raw)
    };
    let commands = &[
        "evalsha",
        "eval",
        "script|load",
        "subscribe",
        "unsubscribe",
        "ping",
    ];
    let note = "defaults: lease 30 s under the watchdog";
    let ours = Info {
        role: Role::Ours,
        reenters: true,
        renews: true,
        ..Info::peer("watchlock", Setup::Default, commands, note)
    };
    let of_kind = |info: &Info, kind: &str, name: &str| Info {
        kind: kind.to_owned(),
        name: name.to_owned(),
        ..info.clone()
    };
    let raw = |kind: &str| of_kind(&floor, kind, &format!("{kind}, raw"));
    let kind = |kind: &str| of_kind(&ours, kind, &format!("watchlock {kind}"));
    vec![
        Entrant::of::<Raw<raw::Fenced>>(raw("fenced")),
        Entrant::of::<kinds::Fenced>(kind("fenced")),
        Entrant::of::<Raw<raw::Simple>>(raw("simple")),
        Entrant::of::<kinds::Simple>(kind("simple")),
        Entrant::of::<Raw<raw::Spin>>(raw("spin")),
        Entrant::of::<kinds::Spin>(kind("spin")),
        Entrant::of::<Raw<raw::Fair>>(raw("fair")),
        Entrant::of::<kinds::Fair>(kind("fair")),
        Entrant::of::<Raw<raw::Read>>(raw("read")),
        Entrant::of::<kinds::Read>(kind("read")),
        Entrant::of::<Raw<raw::Write>>(raw("write")),
        Entrant::of::<kinds::Write>(kind("write")),
        Entrant::of::<Raw<raw::Permits>>(raw(OF_SEMAPHORE)),
        Entrant::of::<kinds::Permits>(kind(OF_SEMAPHORE)),
        Entrant::of::<kinds::ReadHeld>(kind(READ_HELD)),
        Entrant::of::<kinds::WithDeadline>(of_kind(&ours, DEADLINES, "watchlock, a deadline each")),
        Entrant::of::<kinds::InScope>(of_kind(&ours, SCOPES, "watchlock, a scope each")),
        Entrant::of::<Floor>(floor),
        Entrant::of::<Watchlock>(ours),
    ]
}
