//! Everything that a server knows, apart from its compiled scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::keyspace::Database;
use super::random::Random;
use super::session::{Session, SessionId};
use super::{Bytes, Options};

/// What a server knows.
#[derive(Debug)]
pub(super) struct State {
    pub(super) options: Options,
    pub(super) run_id: String,
    /// Since 1970.
    pub(super) now: Duration,
    pub(super) started_at: Duration,
    pub(super) databases: Vec<Database>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// What closed sessions still have to send.
    pub(super) leaving: BTreeMap<SessionId, Bytes>,
    /// Sessions with output.
    pub(super) ready: BTreeSet<SessionId>,
    pub(super) condition: Condition,
    pub(super) random: Random,
    last_session: u64,
}

/// What the server's owner says about it.
#[derive(Debug, Default)]
pub(super) struct Condition {
    pub(super) is_out_of_memory: bool,
    pub(super) is_read_only: bool,
    pub(super) is_loading: bool,
    pub(super) is_busy: bool,
    pub(super) replicas: usize,
}

impl State {
    pub(super) fn new(options: Options) -> Self {
        let mut random = Random::new(options.seed);
        Self {
            run_id: random.id(),
            now: options.time,
            started_at: options.time,
            databases: vec![Database::default(); options.databases.max(1)],
            sessions: BTreeMap::new(),
            leaving: BTreeMap::new(),
            ready: BTreeSet::new(),
            condition: Condition::default(),
            random,
            last_session: 0,
            options,
        }
    }

    /// Milliseconds since 1970.
    pub(super) fn now_ms(&self) -> i64 {
        i64::try_from(self.now.as_millis()).unwrap_or(i64::MAX)
    }

    pub(super) fn open_session(&mut self, address: Option<String>) -> SessionId {
        self.last_session += 1;
        let id = SessionId(self.last_session);
        let address = address.unwrap_or_else(|| format!("127.0.0.1:{}", 30_000 + id.0 % 30_000));
        let user = self.options.password.is_none().then(|| "default".to_owned());
        let session = Session::new(address, user, self.now);
        self.sessions.insert(id, session);
        id
    }

    /// Closes a session; what it has to send can still be taken.
    pub(super) fn leave(&mut self, id: SessionId) {
        if let Some(session) = self.forget(id) {
            self.leaving.insert(id, session.output);
            self.ready.insert(id);
        }
    }

    /// Closes a session at once.
    pub(super) fn forget(&mut self, id: SessionId) -> Option<Session> {
        self.leaving.remove(&id);
        self.ready.remove(&id);
        self.sessions.remove(&id)
    }
}
