//! Everything that a server knows, apart from its compiled scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::acl::Users;
use super::failure::Failure;
use super::hub::Hub;
use super::keyspace::Database;
use super::random::Random;
use super::reply::Reply;
use super::script_call::ScriptRun;
use super::session::{Session, SessionId};
use super::settings::Settings;
use super::statistics::Statistics;
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
    pub(super) hub: Hub,
    pub(super) users: Users,
    pub(super) settings: Settings,
    pub(super) statistics: Statistics,
    pub(super) condition: Condition,
    /// What `CLIENT PAUSE` asked for.
    pub(super) pause: Option<Pause>,
    /// The script that runs now.
    pub(super) script: Option<ScriptRun>,
    pub(super) random: Random,
    last_session: u64,
}

/// What the server's owner says about it.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // they are set one by one
pub(super) struct Condition {
    pub(super) is_out_of_memory: bool,
    pub(super) is_read_only: bool,
    pub(super) is_loading: bool,
    pub(super) is_busy: bool,
    pub(super) replicas: usize,
}

/// Commands wait until then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    pub(super) until: Duration,
    pub(super) only_writes: bool,
}

/// Smaller limits than this count as used up.
const USED_MEMORY: u64 = 1 << 20;

impl State {
    pub(super) fn new(options: Options) -> Self {
        let mut random = Random::new(options.seed);
        let databases = options.databases.max(1);
        Self {
            run_id: random.id(),
            now: options.time,
            started_at: options.time,
            databases: vec![Database::default(); databases],
            sessions: BTreeMap::new(),
            leaving: BTreeMap::new(),
            ready: BTreeSet::new(),
            hub: Hub::default(),
            users: Users::new(options.password.as_deref()),
            settings: Settings::new(databases),
            statistics: Statistics::default(),
            condition: Condition::default(),
            pause: None,
            script: None,
            random,
            last_session: 0,
            options,
        }
    }

    /// Milliseconds since 1970.
    pub(super) fn now_ms(&self) -> i64 {
        i64::try_from(self.now.as_millis()).unwrap_or(i64::MAX)
    }

    /// Removes what has expired by then. A key lives through its last millisecond.
    pub(super) fn set_time(&mut self, time: Duration) {
        self.now = time;
        let now = self.now_ms();
        for db in 0..self.databases.len() {
            while let Some((at, key)) = self.databases[db].next_expiry() {
                if *at >= now {
                    break;
                }
                let key = key.clone();
                self.databases[db].remove(&key);
                self.statistics.expired += 1;
                self.notify('x', "expired", db, &key);
            }
        }
    }

    /// The index of a database by its number.
    pub(super) fn database(&self, number: i64) -> Result<usize, Failure> {
        if i32::try_from(number).is_err() {
            return Err(Failure::fixed(
                "ERR value is out of range, value must between -2147483648 and 2147483647",
            ));
        }
        let index = usize::try_from(number).ok();
        let index = index.filter(|index| *index < self.databases.len());
        index.ok_or(Failure::fixed("ERR DB index is out of range"))
    }

    pub(super) fn is_out_of_memory(&self) -> bool {
        let most = self.settings.most_memory();
        self.condition.is_out_of_memory || most > 0 && most < USED_MEMORY
    }

    /// Whether fewer replicas are there than writes need.
    pub(super) fn lacks_replicas(&self) -> bool {
        let needed = self.settings.number("min-replicas-to-write");
        (self.condition.replicas as u64) < needed
    }

    pub(super) fn open_session(&mut self, address: Option<String>) -> SessionId {
        self.last_session += 1;
        self.statistics.connections += 1;
        let id = SessionId(self.last_session);
        let address = address.unwrap_or_else(|| format!("127.0.0.1:{}", 30_000 + id.0 % 30_000));
        let mut session = Session::new(address, self.users.at_connect(), self.now);
        if self.sessions.len() as u64 >= self.settings.number("maxclients") {
            session.reply(&Reply::Error(b"ERR max number of clients reached".to_vec()));
            self.leaving.insert(id, session.output);
            self.ready.insert(id);
        } else {
            self.sessions.insert(id, session);
        }
        id
    }

    /// Closes a session; what it has to send can still be taken.
    pub(super) fn leave(&mut self, id: SessionId) {
        if let Some(session) = self.forget(id) {
            self.leaving.insert(id, session.output);
            self.ready.insert(id);
        }
    }

    /// Closes a session at once; the one that asks for it, behind the reply.
    pub(super) fn kill(&mut self, id: SessionId, by: SessionId) {
        match self.sessions.get_mut(&id) {
            Some(session) if id == by => session.is_leaving = true,
            _ => {
                self.forget(id);
            }
        }
    }

    /// Closes a session at once.
    pub(super) fn forget(&mut self, id: SessionId) -> Option<Session> {
        self.leaving.remove(&id);
        self.ready.remove(&id);
        let session = self.sessions.remove(&id)?;
        for channel in &session.channels {
            self.hub.channels.remove(channel, id);
        }
        for pattern in &session.patterns {
            self.hub.patterns.remove(pattern, id);
        }
        for channel in &session.shard_channels {
            self.hub.shard_channels.remove(channel, id);
        }
        Some(session)
    }

    /// Stops and starts: keys, settings and users stay.
    pub(super) fn restart(&mut self) {
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            self.forget(id);
        }
        self.leaving.clear();
        self.ready.clear();
        self.statistics = Statistics::default();
        self.pause = None;
        self.started_at = self.now;
        self.run_id = self.random.id();
    }
}
