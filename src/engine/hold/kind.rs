//! What the engine must know of a lock: its names, and the commands and rules of its kind.
//!
//! The engine does not branch on a kind. Whatever differs between kinds is in its [`KindRules`], or a method of [`Commands`]
//! with a default, which is the plain lock's: one hash with one field a hold. All kinds answer alike ([`Reply`]).

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::config::Config;
use crate::error::Error;
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::names::{Family, Names};
use crate::report::LockMetrics;
use crate::script::call::{ACQUIRE, FORCE_RELEASE, REENTER, RELEASE, VERIFY};
use crate::script::{Call, HoldRef, Reply, Startable};

/// How a try is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Try<'a> {
    /// Its caller goes on waiting if the lock is busy, so it may take a place in a queue that Redis keeps.
    pub(crate) waits: bool,
    /// For how long readers give way to writers before these give way to readers, if it waits for the lock exclusively.
    pub(crate) note: Duration,
    /// Of a counted lock, the ids of further holds that ask for the same. They are started in their order, until one does
    /// not fit.
    pub(crate) beside: &'a [&'a str],
}

impl Try<'_> {
    /// For a caller that does not wait, or does not wait yet.
    pub(crate) const ONCE: Self = Self {
        waits: false,
        note: Duration::ZERO,
        beside: &[],
    };
}

/// How callers share the hold that Redis has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The hold is of one owner, and an owner may enter its own hold.
    Exclusive,
    /// Callers get a read of the hold, and all of this kind share it.
    Reads,
    /// Callers want exclusively what others of the family share. They get a read of the hold, which has no other.
    Writes,
}

/// What differs between kinds beside their commands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KindRules {
    /// Its name in metrics and reports.
    pub(crate) name: &'static str,
    pub(crate) sharing: Sharing,
    /// Whether this client may pass a hold of this kind on to its next waiter without asking Redis. The hold must be
    /// one field with a count of one, and a grant or release must not change anything else.
    pub(crate) passes_on: bool,
    /// Whether its scripts ask for the time of the server.
    pub(crate) needs_time: bool,
    /// The delays between tries, for a kind whose waiters do not listen for wake-ups.
    pub(crate) backoff: Option<Backoff>,
    /// Whether the lock is a string, as other libraries have it, which publish no releases.
    pub(crate) is_string: bool,
    /// For a counted lock, of which a client may have several holds: how many permits this request is for.
    pub(crate) permits: Option<u32>,
}

impl KindRules {
    pub(crate) const DEFAULT: Self = Self {
        name: "plain",
        sharing: Sharing::Exclusive,
        passes_on: false,
        needs_time: false,
        backoff: None,
        is_string: false,
        permits: None,
    };
}

/// The commands and rules of one kind of lock. The defaults are the plain lock's: one hash, one field.
///
/// Every command must be harmless when it runs twice or late (I2: a command may run twice; I3: only our own field is
/// touched).
pub(crate) trait Commands: Send + Sync {
    fn rules(&self) -> KindRules {
        KindRules::DEFAULT
    }

    /// The queue of the lock, for a kind that keeps one in Redis.
    fn queue(&self) -> Option<&dyn RedisQueue> {
        None
    }

    /// Starts a hold.
    fn acquire<'a>(&self, hold: HoldRef<'a>, _try: Try<'_>) -> Call<'a> {
        ACQUIRE.on(hold.names).arg(hold.id).arg(hold.lease)
    }

    /// Asks whether an acquire would find the lock busy, and writes nothing.
    fn look_for_holder<'a>(&self, names: &'a Names) -> Call<'a> {
        look(names)
    }

    /// Asks whether one more of this kind may share a hold that is there. The reply is that of an acquire.
    fn join<'a>(&self, hold: HoldRef<'a>) -> Call<'a> {
        self.verify(hold)
    }

    /// Turns an exclusive hold into a shared one.
    fn downgrade<'a>(&self, _hold: HoldRef<'a>) -> Option<Call<'a>> {
        None
    }

    /// The kind of the reads that a downgraded hold has.
    fn downgraded(&self) -> Option<KindCommands> {
        None
    }

    /// Notes in Redis that a request of `client` has `waited` for its turn: a writer, or a request for permits. Others heed
    /// such notes for `note`. Zero removes the note.
    fn note<'a>(
        &self,
        _names: &'a Names,
        _client: &'a str,
        _waited: Duration,
        _note: Duration,
    ) -> Option<Call<'a>> {
        None
    }

    /// Adds a level to a hold that exists. A kind whose guards carry a token draws one for a hold that `has_token` not.
    fn reenter<'a>(&self, hold: HoldRef<'a>, count: u32, _has_token: bool) -> Call<'a> {
        let call = REENTER.on(hold.names).arg(hold.id);
        call.arg(count).arg(hold.lease)
    }

    /// Asks whether a hold exists, by a write that may lengthen its lease.
    fn verify<'a>(&self, hold: HoldRef<'a>) -> Call<'a> {
        VERIFY.on(hold.names).arg(hold.id).arg(hold.lease)
    }

    /// The same by calls with one key each, for a kind that verifies with several: while a slot of a cluster migrates, no
    /// node may have all of them. Gives the first call, which is answered as [`verify`](Self::verify) is, and then, by
    /// that answer, the call that is needed besides.
    fn verify_apart<'a>(&self, _hold: HoldRef<'a>, _first: Option<Reply>) -> Option<Call<'a>> {
        None
    }

    /// Gives a level back. With no level left, the hold ends.
    fn release<'a>(&self, names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
        RELEASE.on(names).arg(hold_id).arg(left).wakes(names)
    }

    /// Ends all holds of the lock. The number of the reply is that of an ended hold of `client`, if there was one.
    fn force<'a>(&self, names: &'a Names, client: &'a str) -> Call<'a> {
        FORCE_RELEASE.on(names).arg(client).wakes(names)
    }

    /// Asks for how long anybody holds the lock.
    fn look<'a>(&self, names: &'a Names) -> Call<'a> {
        look(names)
    }
}

/// Asks for how long anybody holds the lock: busy for so long, or done when it is free.
pub(crate) fn look(names: &Names) -> Call<'_> {
    Call::plain("PTTL").lock(names)
}

impl dyn Commands + '_ {
    /// Whether callers get a read of the hold in Redis instead of the hold itself.
    pub(crate) fn has_reads(&self) -> bool {
        self.rules().sharing != Sharing::Exclusive
    }

    /// Whether it shares its hold with all others of its kind.
    pub(crate) fn is_shared(&self) -> bool {
        self.rules().sharing == Sharing::Reads
    }

    pub(crate) fn is_writer(&self) -> bool {
        self.rules().sharing == Sharing::Writes
    }

    /// Whether a grant leaves the seat, so that the next try may follow: of a counted lock a client may have several
    /// holds.
    pub(crate) fn leaves_the_seat(&self) -> bool {
        self.rules().permits.is_some()
    }

    /// How much of the lock it asks for. If it is busy for so much, it is busy for more. A writer asks for more than a reader:
    /// while others read, it is busy for that one only.
    pub(crate) fn wants(&self) -> u32 {
        let permits = self.rules().permits;
        permits.unwrap_or(if self.is_writer() { 2 } else { 1 })
    }

    /// Whether its requests leave notes in Redis while they wait.
    pub(crate) fn leaves_notes(&self) -> bool {
        self.is_writer() || self.leaves_the_seat()
    }
}

/// A queue that Redis keeps over all clients, for a lock that is granted in the order of arrival.
///
/// Each waiter has a place under its hold id, from [`enqueue`](Self::enqueue) or its first try that waits until it is
/// granted or released. Redis grants the lock to the first place only. A client uses its places in the order of its
/// waiters.
pub(crate) trait RedisQueue {
    /// Gives places to hold ids of this client, in this order, and says how many it gave or found. Gives none if the place
    /// of its waiter `ahead` of them is lost. Grants nothing.
    fn enqueue<'a>(&self, names: &'a Names, ahead: Option<&'a str>, ids: &[&'a str]) -> Call<'a>;

    /// Keeps the places of `client`, which should be those of these hold ids, and says how many there are. The client sends
    /// it every few seconds.
    fn vouch<'a>(&self, names: &'a Names, client: &'a str, ids: &[&'a str]) -> Call<'a>;

    /// Asks how many places there are, of all clients.
    fn length<'a>(&self, names: &'a Names) -> Call<'a>;

    /// The channel on which Redis announces that it is the turn of a hold id.
    fn channel(&self, names: &Names, hold_id: &str) -> Box<str>;
}

#[derive(Clone)]
pub(crate) enum KindCommands {
    /// The same for all locks of the kind: nothing is allocated or reference-counted.
    OfAll(&'static dyn Commands),
    /// With settings of one lock.
    OfOne(Arc<dyn Commands>),
}

impl Deref for KindCommands {
    type Target = dyn Commands;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::OfAll(commands) => *commands,
            Self::OfOne(commands) => &**commands,
        }
    }
}

/// A lock of some kind, by name. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Kind {
    pub(crate) names: Arc<Names>,
    pub(crate) commands: KindCommands,
    pub(crate) metrics: LockMetrics,
}

impl Kind {
    /// The lock `name` of this family, with these commands.
    pub(crate) fn new(
        family: &Family,
        config: &Config,
        name: &str,
        commands: KindCommands,
    ) -> Result<Self, Error> {
        let names = Arc::new(Names::of(family, &config.key_prefix, name)?);
        let metrics = config.metrics.of_lock(commands.rules().name, name);
        Ok(Self {
            names,
            commands,
            metrics,
        })
    }

    /// Whether Redis keeps a queue for the lock.
    pub(crate) fn has_queue(&self) -> bool {
        self.commands.queue().is_some()
    }

    fn hold<'a>(&'a self, id: &'a str, lease: LeaseMs) -> HoldRef<'a> {
        let names = &self.names;
        HoldRef { names, id, lease }
    }

    /// If replicas must acknowledge what is granted, a try is for one hold.
    pub(crate) fn acquire<'a>(
        &'a self,
        hold_id: &'a str,
        lease: LeaseMs,
        sort: Try<'_>,
    ) -> Call<'a> {
        let call = self.commands.acquire(self.hold(hold_id, lease), sort);
        call.acknowledged().starts(self)
    }

    pub(crate) fn join<'a>(&'a self, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        self.commands.join(self.hold(hold_id, lease)).acknowledged()
    }

    pub(crate) fn downgrade<'a>(&'a self, hold_id: &'a str, lease: LeaseMs) -> Option<Call<'a>> {
        let call = self.commands.downgrade(self.hold(hold_id, lease));
        call.map(|call| call.acknowledged().of_hold())
    }

    /// Adds a level to a hold, with or without a fencing token.
    pub(crate) fn reenter<'a>(
        &'a self,
        hold_id: &'a str,
        token: Option<FencingToken>,
        count: u32,
        lease: LeaseMs,
    ) -> Call<'a> {
        let hold = self.hold(hold_id, lease);
        let call = self.commands.reenter(hold, count, token.is_some());
        call.acknowledged().of_hold()
    }

    pub(crate) fn verify<'a>(&'a self, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        let call = self.commands.verify(self.hold(hold_id, lease));
        call.acknowledged().of_hold().verifies()
    }

    pub(crate) fn verify_apart<'a>(
        &'a self,
        hold_id: &'a str,
        lease: LeaseMs,
        first: Option<Reply>,
    ) -> Option<Call<'a>> {
        let hold = self.hold(hold_id, lease);
        let call = self.commands.verify_apart(hold, first)?;
        Some(call.acknowledged().of_hold())
    }

    pub(crate) fn release<'a>(&'a self, hold_id: &'a str, left: u32) -> Call<'a> {
        self.commands.release(&self.names, hold_id, left).of_hold()
    }
}

impl Startable for Kind {
    fn look(&self) -> Call<'_> {
        self.commands.look_for_holder(&self.names)
    }
}

#[cfg(test)]
#[path = "kind_tests.rs"]
mod tests;
