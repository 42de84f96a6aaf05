//! What the engine must know of a lock: its names, and what its kind says of it.
//!
//! The engine has no branch on a kind: whatever differs between kinds is asked here.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::names::Names;
use crate::script::{Acquired, Call, Entered, Forced, Grants, Place, Released, Reply, lock};

/// Of which sort a try is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Try {
    /// Its caller goes on waiting when the lock is busy: it may take a place in a queue that Redis keeps.
    pub(crate) waits: bool,
    /// For how long others are to heed that it waits, if that is for them to heed.
    pub(crate) mark: Duration,
}

/// What a kind of lock says. What it does not say is as with the plain lock: one hash, one field.
///
/// Every command must be harmless when it runs twice or late (I2, I3); replies are `None` when they are none
/// that the script gives.
pub(crate) trait Commands: Send + Sync {
    /// Whether an acquire of the owner `asks` may enter the hold that the owner `holds` has, instead of waiting
    /// behind it. Exclusive kinds let an owner in to what it has.
    fn may_enter(&self, holds: Option<u64>, asks: Option<u64>) -> bool {
        holds.is_some() && holds == asks
    }

    /// Whether the next one here may go on with a hold of this kind as Redis has it, when its owner gives it back: it is
    /// one field with a count of one, and nothing else hangs on a grant or a release.
    fn passes_on(&self) -> bool {
        false
    }

    /// The delays by which its waiters try again, when they do not listen for wake-ups.
    fn backoff(&self) -> Option<Backoff> {
        None
    }

    /// The queue that Redis keeps for the lock, if it does.
    fn queue(&self) -> Option<&dyn RedisQueue> {
        None
    }

    /// Whether callers get a share of the hold in Redis instead of the hold itself: those of some kinds of this
    /// family may have it at the same time.
    fn has_reads(&self) -> bool {
        false
    }

    /// Whether its holds let in all of their kind.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether it wants to have alone what others of its family share.
    fn wants_it_alone(&self) -> bool {
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

    /// Asks whether one more of this kind may share a hold that is there; answered as an acquire is.
    fn join<'a>(&'a self, names: &'a Names, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        self.verify(names, hold_id, lease)
    }

    /// Whether an acquire or a join that was granted says that others of this kind need not ask.
    fn is_open(&self, _reply: &Reply) -> bool {
        false
    }

    /// Turns a hold into one that is shared.
    fn downgrade<'a>(
        &'a self,
        _names: &'a Names,
        _hold_id: &'a str,
        _lease: LeaseMs,
    ) -> Option<Call<'a>> {
        None
    }

    /// What the shares of a hold are of that was turned into a shared one.
    fn downgraded(&self) -> Option<KindCommands> {
        None
    }

    /// Says for how long others are to heed that somebody of `client` waits to have the lock alone; with nothing,
    /// that nobody does any more.
    fn mark<'a>(
        &'a self,
        _names: &'a Names,
        _client: &'a str,
        _mark: Duration,
    ) -> Option<Call<'a>> {
        None
    }

    /// Adds a level to a hold that is there.
    fn reenter<'a>(
        &'a self,
        names: &'a Names,
        hold_id: &'a str,
        count: u32,
        lease: LeaseMs,
    ) -> Call<'a> {
        lock::reenter(names, hold_id, count, lease)
    }

    /// Adds a level to a hold that has no fencing token. A kind whose guards have one takes one for the hold.
    fn reenter_tokenless<'a>(
        &'a self,
        names: &'a Names,
        hold_id: &'a str,
        count: u32,
        lease: LeaseMs,
    ) -> Call<'a> {
        self.reenter(names, hold_id, count, lease)
    }

    /// What adding a level was answered.
    fn entered(&self, reply: &Reply) -> Option<Entered> {
        let found = self.found(reply)?;
        Some(if found {
            Entered::In(None)
        } else {
            Entered::Missing
        })
    }

    /// Asks whether a hold is there, by a write.
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

    /// Gives a level back; with none left the hold ends.
    fn release<'a>(&'a self, names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
        lock::release(names, hold_id, left)
    }

    /// What a last release was answered.
    fn released(&self, reply: &Reply) -> Option<Released> {
        lock::released(reply)
    }

    /// Whether the hold was there, by the reply to any of the three.
    fn found(&self, reply: &Reply) -> Option<bool> {
        lock::found(reply)
    }

    /// Ends whoever holds the lock; `client` tells own holds from strangers'.
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
/// Each waiter has a place under its hold id: from [`enqueue`](Self::enqueue), or its first try that waits, until it is
/// granted or released. Redis grants the lock to the first place only; a client uses its places in the order of its
/// waiters.
pub(crate) trait RedisQueue {
    /// Gives places to hold ids of this client, in this order; none, if the one that its waiter `ahead` of them had is
    /// lost. Grants nothing.
    fn enqueue<'a>(
        &'a self,
        names: &'a Names,
        ahead: Option<&'a str>,
        hold_ids: &[&'a str],
    ) -> Call<'a>;

    /// Keeps the places of `client`, which is to be said every few seconds.
    fn vouch<'a>(&'a self, names: &'a Names, client: &'a str) -> Call<'a>;

    /// What either of the two was answered.
    fn placed(&self, reply: &Reply) -> Option<Place>;

    /// Whether the place behind a hold that was granted is of this client, by what its acquire was answered.
    fn next_is_ours(&self, reply: &Reply) -> Option<bool>;

    /// Where a hold id is told that it is its turn.
    fn channel(&self, names: &Names, hold_id: &str) -> Box<str>;
}

/// What a kind says of a lock.
#[derive(Clone)]
pub(crate) enum KindCommands {
    /// The same of all its locks: nothing is allocated or counted for it.
    OfAll(&'static dyn Commands),
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

    /// Whether Redis keeps a queue for it.
    pub(crate) fn has_queue(&self) -> bool {
        self.commands.queue().is_some()
    }

    pub(crate) fn acquire<'a>(&'a self, hold_id: &'a str, lease: LeaseMs, sort: Try) -> Call<'a> {
        let call = self.commands.acquire(&self.names, hold_id, lease, sort);
        call.acknowledged().taken_back_by(self, hold_id)
    }

    pub(crate) fn acquired(&self, reply: &Reply) -> Option<Acquired> {
        self.commands.acquired(reply)
    }

    pub(crate) fn join<'a>(&'a self, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        let call = self.commands.join(&self.names, hold_id, lease);
        call.acknowledged()
    }

    pub(crate) fn is_open(&self, reply: &Reply) -> bool {
        self.commands.is_open(reply)
    }

    /// Adds a level to a hold that has a fencing token, or has none.
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
        call.acknowledged()
    }

    pub(crate) fn entered(&self, reply: &Reply) -> Option<Entered> {
        self.commands.entered(reply)
    }

    pub(crate) fn verify<'a>(&'a self, hold_id: &'a str, lease: LeaseMs) -> Call<'a> {
        let call = self.commands.verify(&self.names, hold_id, lease);
        call.acknowledged()
    }

    pub(crate) fn verify_apart<'a>(
        &'a self,
        hold_id: &'a str,
        lease: LeaseMs,
        first: Option<&Reply>,
    ) -> Option<Call<'a>> {
        let commands = &self.commands;
        let call = commands.verify_apart(&self.names, hold_id, lease, first)?;
        Some(call.acknowledged())
    }

    pub(crate) fn release<'a>(&'a self, hold_id: &'a str, left: u32) -> Call<'a> {
        self.commands.release(&self.names, hold_id, left)
    }

    pub(crate) fn released(&self, reply: &Reply) -> Option<Released> {
        self.commands.released(reply)
    }

    pub(crate) fn found(&self, reply: &Reply) -> Option<bool> {
        self.commands.found(reply)
    }
}

impl Grants for Kind {
    fn granted(&self, reply: &Reply) -> bool {
        matches!(self.acquired(reply), Some(Acquired::Got(_)))
    }

    fn take_back<'a>(&'a self, hold_id: &'a str) -> Call<'a> {
        self.release(hold_id, 0)
    }

    fn keep(&self) -> Box<dyn Grants> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
#[path = "kind_tests.rs"]
mod tests;
