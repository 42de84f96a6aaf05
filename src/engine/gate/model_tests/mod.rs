//! Gate, ticket, owner and hold together, with every order of what callers, the keeper and Redis do.
//!
//! A [`World`] has one name, a few callers, the keeper and a Redis; a [`Choice`] is one step of one of them. What
//! they decide is decided by the code that runs in production; the world only carries commands and replies. All
//! orders are tried, but none is continued from a state that was seen before. Faults are among the choices, as many
//! as a scenario allows. After each step the rules of [`World::check`] hold. When nothing can happen any more, those
//! of [`World::check_end`] hold: nothing is left over.

mod callers;
mod check;
mod choices;
mod counts;
mod fingerprint;
mod job;
mod permits;
mod queued;
mod redis;
mod replies;
mod scenarios;
mod steps;
mod turn;
mod world;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use self::counts::CountWrite;
use self::permits::Permits;
use self::queued::Places;
use self::world::origin;
use crate::backend::Failure;
use crate::clock::Moment;
use crate::engine::gate::LastAnswer;
use crate::engine::gate::answers::{Answered, GivenBack, Grant, ReleaseAnswer, SentAs, Settled};
use crate::engine::gate::next::Step;
use crate::engine::gate::seat::{Attempt, Seat};
use crate::engine::gate::ticket::{Patience, Request, Ticket, Verdict};
use crate::engine::gate::{Arrival, Gate};
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules, RedisQueue, Sharing};
use crate::engine::hold::owner::{HeldLevel, OwnerState};
use crate::engine::hold::state::{HoldState, Level, Phase};
use crate::engine::hold::{Effects, Hold, Origin, Rules, TaskId};
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::names::{Family, Names};
use crate::script::Reply;

const RULES: Rules = Rules {
    command_timeout: Duration::from_secs(1),
    unavailable_after: Duration::from_secs(5),
    runs_since: Moment::from_nanos(0),
    watchdog_lease: DAY,
    passes_on: true,
};

/// The lease of every hold.
const DAY: LeaseMs = LeaseMs::from_millis(24 * 3600 * 1000);

/// Steps that a caller, the keeper or Redis may take next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// A caller looks whether its owner holds the lock, and enters it if so.
    Look(usize),
    /// It passes the gate.
    Arrive(usize),
    /// Its future is polled.
    Poll(usize),
    /// Its future, or its guard, is dropped.
    Drop(usize),
    Unlock(usize),
    Detach(usize),
    /// Its owner ends.
    EndOwner(usize),
    /// The last handle is gone, and the client ends.
    Close,
    /// The job of the name takes a step.
    Job,
    /// The job's poll comes.
    JobPoll,
    /// It hears a message about permits.
    Message,
    /// A command time-out passes.
    Tick,
    /// A grant is not collected, and the waiters behind it are called.
    Call,
    /// So much time passes that the pass-on window is over.
    Later,
    /// The time for which the lock was left to others is over.
    Left,
    /// The keeper asks for the hold in the seat.
    Ask,
    /// It hears the answer.
    Hear(usize),
    /// The keeper goes on with a last release.
    Reap(usize),
    /// The keeper's schedule finds a command overdue.
    Overdue(usize),
    /// Redis executes the next command of a connection: a caller's, or the keeper's.
    Execute(usize),
    /// Redis refuses it for a while.
    Refuse(usize),
    /// The reply to a command is lost.
    LoseReply(usize),
    /// Too few replicas acknowledge what a command granted.
    Unacknowledge(usize),
    /// The lease of a caller's read is over.
    Expire(usize),
    /// The keeper goes on with downgrading a hold.
    Downgrade(usize),
    /// A caller sends the count of the levels that are left.
    Write(usize),
    /// The keeper goes on with writing a count.
    Count(usize),
    /// The keeper hears that the note was removed.
    NoteRemoved(usize),
    /// A writer elsewhere notes that it waits, or gives up.
    StrangerNotes,
    /// The key is deleted.
    Vanish,
    /// The keeper hears that the hold is not there.
    Lose,
    /// A stranger takes the free lock, or gives it back.
    Stranger,
    /// A stranger comes to wait in the queue that Redis keeps.
    StrangerWaits,
    /// One that waits there dies.
    StrangerDies,
    /// Redis forgets the queue.
    Forget,
    /// It drops our places ahead of a stranger's, having heard nothing of us for long.
    ForgetFirst,
    /// The client vouches for its places.
    Vouch,
    /// The keeper hears of the places that it asked for.
    Placed(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyState {
    InFlight,
    Done(Reply),
    Refused,
    /// It was granted, but does not count.
    Unacknowledged,
    /// No reply came: it may still run.
    Silence,
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Acquires {
        /// Whether it notes that a writer waits when it finds the lock busy.
        notes: bool,
        /// Whether it takes a place then, where Redis keeps a queue.
        waits: bool,
    },
    /// Asks for places in that queue.
    Enqueues,
    Joins,
    Releases,
    Downgrades,
    Asks,
    /// Writes the hold count.
    Counts(u32),
    Notes,
    RemovesNote,
}

#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Command {
    hold: Arc<Hold>,
    /// The holds that it asks for permits or places for, too, and the hold behind whose place these go.
    others: Vec<Arc<Hold>>,
    ahead: Option<u64>,
    what: What,
    lane: usize,
    executed: Option<Reply>,
    refused: bool,
    reply_lost: bool,
    unacknowledged: bool,
    ended: bool,
    at: Moment,
}

enum At {
    Start,
    /// Its owner holds nothing.
    Looked,
    /// The command is that of its own first try, if it makes one.
    Waiting(Arc<Ticket>, Option<usize>),
    /// It adds a level, whose count is being written.
    Entering(HeldLevel, u32, usize),
    Holding(HeldLevel),
    /// It gave back a level that was not the last, and writes how many are left.
    Leaving(Arc<Hold>, u32, Option<usize>),
    Unlocking(Arc<Hold>, usize, Moment),
    /// The keeper releases; it waits for the end.
    Watching(Arc<Hold>),
    Detached,
    Gone,
}

struct Caller {
    at: At,
    owner: Option<Arc<OwnerState>>,
    owner_ended: bool,
    patience: Patience,
    /// How often it acquires.
    rounds: u32,
    manner: Manner,
    side: Side,
    /// Whether its permits were not free at some time since it arrived, as far as the client knows.
    found_none: bool,
}

/// Which lock a caller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// An exclusive one.
    Plain,
    /// One that is passed on.
    Passed,
    /// One whose queue Redis keeps.
    Queued,
    /// So many permits of a counted one.
    Permits(u32),
    Reads,
    /// Reads with a lease of its own, which ends at any step.
    ReadsFixed,
    Writes,
}

/// What a caller does with what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Manner {
    Unlocks,
    /// As `Unlocks`, and it is not dropped while it waits.
    Stays,
    /// Its futures and guards are dropped at any step.
    Drops,
    /// It detaches its guard, and its owner ends at any step.
    Detaches,
    /// Its future is polled no more once it waits.
    Sleeps,
}

enum Reaping {
    Begun,
    /// An old acquire may still run, so the release is repeated behind it.
    Again,
    /// The command if it has the seat, the command, when it was sent, and whether an acquire may run behind it.
    Sent(Option<usize>, usize, Moment, bool),
    Over,
}

/// What the job of the name waits for, beside a change at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Asleep {
    /// For nothing: it takes a step next.
    Awake,
    Change,
    Command(usize),
    /// Its poll, or the end of its own hold's lease.
    Poll,
    /// A grant to be collected, or a change.
    Collection,
    /// The end of the time for which the lock is left to others.
    Left(Moment),
    /// The end of listening.
    Linger,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    gate: Gate<usize>,
    job: bool,
    asleep: Asleep,
    /// Whether the job listens to the channel.
    listening: bool,
    callers: Vec<Caller>,
    reaps: Vec<(Arc<Hold>, Reaping)>,
    commands: Vec<Command>,
    /// The hold that has the lock in Redis, by its number; 0 for a stranger.
    held_by: Option<u64>,
    /// The holds that share the lock in Redis.
    read_by: BTreeSet<u64>,
    /// Holds to be turned into shared ones, and the command that does it.
    downgrades: Vec<(Arc<Hold>, Option<usize>)>,
    /// The hold count in Redis.
    count: u32,
    /// The counts that the keeper writes.
    counts: Vec<(Arc<Hold>, CountWrite)>,
    /// Whether Redis says that others need not ask, while no writer waits.
    open: bool,
    /// Whether its last answer to a reader said that a writer waits.
    shut: bool,
    /// The notes in Redis that a writer of this client, or a stranger, waits.
    note: bool,
    stranger_note: bool,
    stranger_notes: u32,
    /// Notes that are being removed: the command, and since when the note was there.
    removed_notes: Vec<(usize, Moment)>,
    /// Whether waiting writers leave a note in Redis.
    leaves_notes: bool,
    /// When the job writes its note again.
    note_at: Moment,
    /// Whether a command was refused, or ended without a reply.
    faulted: bool,
    /// The holds that a release found and ended.
    ended: BTreeSet<u64>,
    found_busy: Vec<Arc<Ticket>>,
    numbers: u64,
    now: Moment,
    faults: u32,
    polls: u32,
    ticks: u32,
    calls: u32,
    laters: u32,
    asks: u32,
    /// When the pass-on window opened.
    window_opened: Moment,
    /// The release that closes the window is under way.
    closes_window: Option<Arc<Hold>>,
    /// Until when nobody here may try, and until when the lock may not be left free again.
    left_until: Moment,
    rest_until: Moment,
    /// The fields that were passed on.
    passed: BTreeSet<u64>,
    strangers: u32,
    deaths: u32,
    forgets: u32,
    shortfalls: u32,
    places: Places,
    permits: Permits,
    /// Whether replicas must acknowledge grants.
    acknowledges: bool,
    /// Whether commands may fail otherwise.
    has_faults: bool,
    closes: bool,
    closed: bool,
    names: Arc<Names>,
}

/// Owner, patience, manner, rounds.
type Role = (Option<u8>, Patience, Manner, u32);

/// What a scenario allows.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    callers: &'static [Role],
    faults: u32,
    polls: u32,
    ticks: u32,
    /// How often waiters are called.
    calls: u32,
    laters: u32,
    asks: u32,
    strangers: u32,
    /// How many strangers die while they wait.
    deaths: u32,
    /// How often Redis forgets the queue, or the first in it.
    forgets: u32,
    /// How often too few replicas acknowledge a grant.
    shortfalls: u32,
    /// How many permits there are.
    permits: u32,
    /// How often a stranger leaves a note that a writer, or a request for permits, waits; none if writers leave no notes here.
    notes: Option<u32>,
    closes: bool,
    /// Wake-ups arrive, and nobody else listens.
    alone: bool,
    /// What each caller does; empty if all use a plain lock.
    sides: &'static [Side],
    /// Whether Redis lets readers join without asking.
    open: bool,
}

impl Commands for Side {
    fn rules(&self) -> KindRules {
        KindRules {
            sharing: match self {
                Self::Plain | Self::Passed | Self::Queued | Self::Permits(_) => Sharing::Exclusive,
                Self::Reads | Self::ReadsFixed => Sharing::Reads,
                Self::Writes => Sharing::Writes,
            },
            passes_on: matches!(self, Self::Passed | Self::Permits(_)),
            permits: match self {
                Self::Permits(permits) => Some(*permits),
                _ => None,
            },
            ..KindRules::DEFAULT
        }
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        (*self == Self::Queued).then_some(self as &dyn RedisQueue)
    }
}

/// The lock is busy for a second.
const BUSY: Reply = Reply::Busy(Some(Duration::from_secs(1)));

/// Its number in Redis.
fn field(hold: &Hold) -> u64 {
    hold.id.parse().unwrap()
}

/// The keeper's connection; a caller's is its own number.
const KEEPER: usize = 99;
