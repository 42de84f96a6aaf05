//! One connection.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::Bytes;
use super::reply::{Reply, write_push};
use super::request::Inbox;

/// Names a connection to one [`Store`](super::Store); the same number as `CLIENT ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A transaction that is being put together.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) commands: Vec<Vec<Bytes>>,
    /// One of them was refused, so none will run.
    pub(super) is_broken: bool,
}

/// A key that must not change before `EXEC`.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) db: usize,
    pub(super) key: Bytes,
    pub(super) revision: u64,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) inbox: Inbox,
    pub(super) output: Bytes,
    /// Of the protocol: 2 or 3.
    pub(super) resp: u8,
    pub(super) db: usize,
    pub(super) user: Option<String>,
    pub(super) name: Bytes,
    pub(super) library: Bytes,
    pub(super) library_version: Bytes,
    pub(super) address: String,
    pub(super) channels: BTreeSet<Bytes>,
    pub(super) patterns: BTreeSet<Bytes>,
    pub(super) shard_channels: BTreeSet<Bytes>,
    pub(super) transaction: Option<Transaction>,
    pub(super) watched: Vec<Watched>,
    pub(super) since: Duration,
    pub(super) last_at: Duration,
    pub(super) last_command: &'static str,
    /// It is closed behind the reply to its current command.
    pub(super) is_leaving: bool,
}

impl Session {
    pub(super) fn new(address: String, user: Option<String>, now: Duration) -> Self {
        Self {
            inbox: Inbox::default(),
            output: Bytes::new(),
            resp: 2,
            db: 0,
            user,
            name: Bytes::new(),
            library: Bytes::new(),
            library_version: Bytes::new(),
            address,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            shard_channels: BTreeSet::new(),
            transaction: None,
            watched: Vec::new(),
            since: now,
            last_at: now,
            last_command: "NULL",
            is_leaving: false,
        }
    }

    pub(super) fn reply(&mut self, reply: &Reply) {
        reply.write(self.resp, &mut self.output);
    }

    pub(super) fn push(&mut self, items: &[Reply]) {
        write_push(items, self.resp, &mut self.output);
    }

    /// Channels and patterns that it listens to, without those of shards.
    pub(super) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    pub(super) fn listens(&self) -> bool {
        self.subscriptions() + self.shard_channels.len() > 0
    }
}
