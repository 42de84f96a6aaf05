//! What the engine must know of a lock: its names, and the commands and rules of its kind.
//!
//! The engine does not branch on a kind. Whatever differs between kinds is a method of [`Commands`] with a default,
//! which is the plain lock's: one hash with one field a hold.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::names::Names;
use crate::script::{Acquired, Call, Forced, Placed, Released, Reply, Undoable, lock};

/// How a try is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Try {
    /// Its caller goes on waiting if the lock is busy, so it may take a place in a queue that Redis keeps.
    pub(crate) waits: bool,
    /// For how long readers give way to writers before these give way to readers, if it waits for the lock exclusively.
    pub(crate) mark: Duration,
}

/// The commands and rules of one kind of lock. The defaults are the plain lock's: one hash, one field.
///
/// Every command must be harmless when it runs twice or late (I2, I3). A method that decodes a reply returns `None` for
/// a reply that the script never gives.
pub(crate) trait Commands: Send + Sync {
    /// Whether an acquire by the owner `asks` may enter the hold of the owner `holds` instead of waiting for its end.
    /// Exclusive kinds let an owner re-enter its own hold.
    fn may_enter(&self, holds: Option<u64>, asks: Option<u64>) -> bool {
        holds.is_some() && holds == asks
    }

    /// Whether this client may pass a hold of this kind on to its next waiter without asking Redis. The hold must be
    /// one field with a count of one, and a grant or release must not change anything else.
    fn passes_on(&self) -> bool {
        false
    }

    /// Whether its scripts ask for the time of the server.
    fn needs_time(&self) -> bool {
        false
    }

    /// The delays between tries, for a kind whose waiters do not listen for wake-ups.
    fn backoff(&self) -> Option<Backoff> {
        None
    }

    /// Whether everybody who shares the lock publishes its release.
    fn publishes_releases(&self) -> bool {
        true
    }

    /// The queue of the lock, for a kind that keeps one in Redis.
    fn queue(&self) -> Option<&dyn RedisQueue> {
        None
    }

    /// Whether callers get a read of the hold in Redis instead of the hold itself, because some kinds of this family
    /// may share it. The hold of a writer has one read, its own.
    fn has_reads(&self) -> bool {
        false
    }

    /// Whether it shares its hold with all others of its kind, as readers do.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether it wants exclusively what others of its family share, as writers do.
    fn is_writer(&self) -> bool {
        self.has_reads() && !self.is_shared()
    }

    /// Starts a hold.
    fn acquire<'a>(
        &'a self,
        names: &'a Names,
        hold_id: &'a str,
        lease: LeaseMs,
        _try: Try,
    ) -> Call<'a> {
        lock::acquire(names, hold_id, lease)
    }

    fn acquired(&self, reply: &Reply) -> Option<Acquired> {
        lock::acquired(reply)
    }

    /// Asks whether an acquire would find the lock busy, and writes nothing. The reply is the key's PTTL, or 1 or 0.
    fn look_for_holder<'a>(&'a self, names: &'a Names) -> Call<'a> {
        Call::plain("PTTL").lock(names)
    }

    /// Asks whether one more of this kind may share a hold that is there. The reply is that of an acquire.
    fn join<'a>(&'a self, names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        self.verify(names, hold_id, lease)
    }

    /// Whether the grant of an acquire or a join also allows others of this kind to share the hold without asking.
    fn is_open(&self, _reply: &Reply) -> bool {
        false
    }

    /// Turns an exclusive hold into a shared one.
    fn downgrade<'a>(
        &'a self,
        _names: &'a Names,
        _hold_id: &'a str,
        _lease: LeaseMs,
    ) -> Option<Call<'a>> {
        None
    }

    /// The kind of the reads that a downgraded hold has.
    fn downgraded(&self) -> Option<KindCommands> {
        None
    }

    /// Notes in Redis that a writer of `client` waits. Readers heed such notes for `mark`. Zero removes the note.
    fn mark<'a>(
        &'a self,
        _names: &'a Names,
        _client: &'a str,
        _mark: Duration,
    ) -> Option<Call<'a>> {
        None
    }

    /// Adds a level to a hold that exists.
    fn reenter<'a>(
        &'a self,
        names: &'a Names,
        hold_id: &'a str,
        count: u32,
        lease: LeaseMs,
    ) -> Call<'a> {
        lock::reenter(names, hold_id, count, lease)
    }

    /// Adds a level to a hold without a fencing token. A kind whose guards carry a token draws one for the hold.
    fn reenter_tokenless<'a>(
        &'a self,
        names: &'a Names,
        hold_id: &'a str,
        count: u32,
        lease: LeaseMs,
    ) -> Call<'a> {
        self.reenter(names, hold_id, count, lease)
    }

    /// Decodes the reply to adding a level.
    fn entered(&self, reply: &Reply) -> Option<Acquired> {
        let found = self.found(reply)?;
        Some(if found {
            Acquired::Got(None)
        } else {
            Acquired::Missing
        })
    }

    /// Asks whether a hold exists, by a write that may lengthen its lease.
    fn verify<'a>(&'a self, names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        lock::verify(names, hold_id, lease)
    }

    /// The same by calls with one key each, for a kind that verifies with several: while a slot of a cluster migrates, no
    /// node may have all of them. Gives the first call, which is answered as [`verify`](Self::verify) is, and then, by
    /// that answer, the call that is needed besides.
    fn verify_apart<'a>(
        &'a self,
        _names: &'a Names,
        _hold_id: &'a str,
        _lease: LeaseMs,
        _first: Option<&Reply>,
    ) -> Option<Call<'a>> {
        None
    }

    /// Gives a level back. With no level left, the hold ends.
    fn release<'a>(&'a self, names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
        lock::release(names, hold_id, left)
    }

    /// Decodes the reply to a last release.
    fn released(&self, reply: &Reply) -> Option<Released> {
        lock::released(reply)
    }

    /// Whether the hold existed, by the reply to any of these commands.
    fn found(&self, reply: &Reply) -> Option<bool> {
        lock::found(reply)
    }

    /// Ends all holds of the lock. The reply says which hold of `client` it ended.
    fn force<'a>(&'a self, names: &'a Names, client: &'a str) -> Call<'a> {
        lock::force_release(names, client)
    }

    fn forced(&self, reply: &Reply) -> Option<Forced> {
        lock::forced(reply)
    }

    /// Asks whether anybody holds the lock.
    fn look<'a>(&'a self, names: &'a Names) -> Call<'a> {
        lock::look(names)
    }

    fn looked(&self, reply: &Reply) -> Option<bool> {
        lock::looked(reply)
    }
}

/// A queue that Redis keeps over all clients, for a lock that is granted in the order of arrival.
///
/// Each waiter has a place under its hold id, from [`enqueue`](Self::enqueue) or its first try that waits until it is
/// granted or released. Redis grants the lock to the first place only. A client uses its places in the order of its
/// waiters.
pub(crate) trait RedisQueue {
    /// Gives places to hold ids of this client, in this order. Gives none if the place of its waiter `ahead` of them is
    /// lost. Grants nothing.
    fn enqueue<'a>(
        &'a self,
        names: &'a Names,
        ahead: Option<&'a str>,
        hold_ids: &[&'a str],
    ) -> Call<'a>;

    /// Keeps the places of `client`, which should be those of these hold ids. The client sends it every few seconds.
    fn vouch<'a>(&'a self, names: &'a Names, client: &'a str, hold_ids: &[&'a str]) -> Call<'a>;

    /// Decodes the reply to either of the two.
    fn placed(&self, reply: &Reply) -> Option<Placed>;

    /// Whether the place behind a granted hold belongs to this client, by the reply to the acquire.
    fn next_is_ours(&self, reply: &Reply) -> Option<bool>;

    /// The channel of the message that it is the turn of a hold id.
    fn channel(&self, names: &Names, hold_id: &str) -> Box<str>;
}

/// The commands of a kind.
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
}

impl Kind {
    pub(crate) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// Whether Redis keeps a queue for the lock.
    pub(crate) fn has_queue(&self) -> bool {
        self.commands.queue().is_some()
    }

    pub(crate) fn acquire<'a>(&'a self, hold_id: &'a str, lease: LeaseMs, sort: Try) -> Call<'a> {
        let call = self.commands.acquire(&self.names, hold_id, lease, sort);
        call.acknowledged().undone_by(self, hold_id)
    }

    pub(crate) fn acquired(&self, reply: &Reply) -> Option<Acquired> {
        match reply {
            Reply::Busy => Some(Acquired::Busy(None)),
            reply => self.commands.acquired(reply),
        }
    }

    pub(crate) fn join<'a>(&'a self, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        let call = self.commands.join(&self.names, hold_id, lease);
        call.acknowledged()
    }

    pub(crate) fn is_open(&self, reply: &Reply) -> bool {
        self.commands.is_open(reply)
    }

    /// Adds a level to a hold, with or without a fencing token.
    pub(crate) fn reenter<'a>(
        &'a self,
        hold_id: &'a str,
        token: Option<FencingToken>,
        count: u32,
        lease: LeaseMs,
    ) -> Call<'a> {
        let (names, commands) = (&self.names, &self.commands);
        let call = match token {
            Some(_) => commands.reenter(names, hold_id, count, lease),
            None => commands.reenter_tokenless(names, hold_id, count, lease),
        };
        call.acknowledged().of_hold()
    }

    pub(crate) fn entered(&self, reply: &Reply) -> Option<Acquired> {
        self.commands.entered(reply)
    }

    pub(crate) fn verify<'a>(&'a self, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        let call = self.commands.verify(&self.names, hold_id, lease);
        call.acknowledged().of_hold()
    }

    pub(crate) fn verify_apart<'a>(
        &'a self,
        hold_id: &'a str,
        lease: LeaseMs,
        first: Option<&Reply>,
    ) -> Option<Call<'a>> {
        let commands = &self.commands;
        let call = commands.verify_apart(&self.names, hold_id, lease, first)?;
        Some(call.acknowledged().of_hold())
    }

    pub(crate) fn release<'a>(&'a self, hold_id: &'a str, left: u32) -> Call<'a> {
        self.commands.release(&self.names, hold_id, left).of_hold()
    }

    pub(crate) fn released(&self, reply: &Reply) -> Option<Released> {
        self.commands.released(reply)
    }

    pub(crate) fn found(&self, reply: &Reply) -> Option<bool> {
        self.commands.found(reply)
    }
}

impl Undoable for Kind {
    fn is_grant(&self, reply: &Reply) -> bool {
        matches!(self.acquired(reply), Some(Acquired::Got(_)))
    }

    fn look(&self) -> Call<'_> {
        self.commands.look_for_holder(&self.names)
    }

    fn undo<'a>(&'a self, hold_id: &'a str) -> Call<'a> {
        self.release(hold_id, 0)
    }

    fn boxed(&self) -> Box<dyn Undoable> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
#[path = "kind_tests.rs"]
mod tests;
