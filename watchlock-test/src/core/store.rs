//! One server, as its owner sees it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::keyspace::Database;
use super::lua::Scripts;
use super::runner::Runner;
use super::session::SessionId;
use super::state::State;
use super::{Bytes, Reply, dispatch};

/// How a server is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// As `INFO` and `HELLO` say it.
    pub version: String,
    /// Everything that looks random follows from it.
    pub seed: u64,
    /// The password of the user `default`.
    pub password: Option<String>,
    /// Number of databases.
    pub databases: usize,
    /// The port that `INFO` and `CLIENT LIST` say.
    pub port: u16,
    /// The process that `INFO` says.
    pub process_id: u32,
    /// The time at the start, since 1970.
    pub time: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: "7.0.15".to_owned(),
            seed: 0,
            password: None,
            databases: 16,
            port: 6379,
            process_id: 1,
            time: Duration::from_secs(1_700_000_000),
        }
    }
}

/// A command that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ran {
    /// In lower case, as `INFO commandstats` names it: `get`, `client|list`.
    pub command: String,
    /// Commands that it ran itself: by `redis.call` of a script, or queued by `MULTI`.
    pub calls: usize,
    /// How long a real server would have waited before it replied: the timeout of a `WAIT` for more replicas than there
    /// are; [`Duration::MAX`] for ever.
    pub blocks: Duration,
}

/// One Redis.
#[derive(Debug)]
pub struct Store {
    runner: Runner,
}

impl Store {
    /// An empty server.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let runner = Runner {
            state: Arc::new(Mutex::new(State::new(options))),
            scripts: Scripts::default(),
        };
        Self { runner }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.runner.state.lock())
    }

    /// Sets the time, since 1970, and removes the keys that have expired by then. It may go back.
    pub fn set_time(&mut self, time: Duration) {
        self.with(|state| state.set_time(time));
    }

    /// The time, since 1970.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.with(|state| state.now)
    }

    /// Opens a connection.
    pub fn connect(&mut self) -> SessionId {
        self.with(|state| state.open_session(None))
    }

    /// Opens a connection from this address, which `CLIENT LIST` shows.
    pub fn connect_from(&mut self, address: impl Into<String>) -> SessionId {
        self.with(|state| state.open_session(Some(address.into())))
    }

    /// The client is gone.
    pub fn disconnect(&mut self, id: SessionId) {
        self.with(|state| state.forget(id));
    }

    /// Bytes arrived on this connection.
    pub fn push(&mut self, id: SessionId, bytes: &[u8]) {
        self.with(|state| {
            if let Some(session) = state.sessions.get_mut(&id) {
                session.inbox.push(bytes);
            }
        });
    }

    /// The command that comes next on this connection, if all of it has arrived and it may run now.
    pub fn next_command(&mut self, id: SessionId) -> Option<Vec<Bytes>> {
        self.with(|state| {
            if !dispatch::is_ready(state, id) {
                return None;
            }
            let session = state.sessions.get_mut(&id)?;
            let next = session.inbox.peek(session.user.is_some());
            next.ok().flatten().map(<[_]>::to_vec)
        })
    }

    /// Runs the command that comes next on this connection, if all of it has arrived and it may run now.
    pub fn run_next(&mut self, id: SessionId) -> Option<Ran> {
        self.runner.run_next(id, None)
    }

    /// Refuses the command that comes next on this connection with this error, which begins with its code.
    pub fn refuse_next(&mut self, id: SessionId, error: &str) -> Option<Ran> {
        self.runner.run_next(id, Some(error))
    }

    /// Takes what this connection has to send now.
    pub fn take_output(&mut self, id: SessionId) -> Bytes {
        self.with(|state| {
            state.ready.remove(&id);
            if let Some(output) = state.leaving.remove(&id) {
                return output;
            }
            let session = state.sessions.get_mut(&id);
            session
                .map(|session| std::mem::take(&mut session.output))
                .unwrap_or_default()
        })
    }

    /// The connections that have something to send, in the order in which they were opened.
    #[must_use]
    pub fn sessions_with_output(&self) -> Vec<SessionId> {
        self.with(|state| state.ready.iter().copied().collect())
    }

    /// Whether the server has closed this connection, and everything that it had to send has been taken.
    #[must_use]
    pub fn is_closed(&self, id: SessionId) -> bool {
        self.with(|state| !state.sessions.contains_key(&id) && !state.leaving.contains_key(&id))
    }

    /// Runs a command in database 0 as the server's owner: at once, whatever the server's condition, without a
    /// connection, and without being counted.
    pub fn run<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Reply {
        let arguments: Vec<Bytes> = arguments
            .iter()
            .map(|word| word.as_ref().to_vec())
            .collect();
        self.runner.run_for_owner(&arguments)
    }

    /// Whether commands that need memory are refused.
    pub fn set_out_of_memory(&mut self, is_so: bool) {
        self.with(|state| state.condition.is_out_of_memory = is_so);
    }

    /// Whether it is a replica, which refuses writes.
    pub fn set_read_only(&mut self, is_so: bool) {
        self.with(|state| state.condition.is_read_only = is_so);
    }

    /// Whether it says that it is loading its data.
    pub fn set_loading(&mut self, is_so: bool) {
        self.with(|state| state.condition.is_loading = is_so);
    }

    /// Whether it says that it is busy with a script.
    pub fn set_busy(&mut self, is_so: bool) {
        self.with(|state| state.condition.is_busy = is_so);
    }

    /// How many replicas it says it has, all of which acknowledge each write at once.
    pub fn set_replicas(&mut self, count: usize) {
        self.with(|state| state.condition.replicas = count);
    }

    /// It stops and starts again: connections, scripts and statistics are gone; keys, settings and users stay.
    pub fn restart(&mut self) {
        self.runner.scripts = Scripts::default();
        self.with(State::restart);
    }

    /// All keys are gone, without a message to anybody.
    pub fn lose_data(&mut self) {
        self.with(|state| state.databases.iter_mut().for_each(Database::clear));
    }

    /// Takes over all keys of another server, as a replica does when it syncs.
    pub fn copy_data_from(&mut self, other: &Store) {
        let databases = other.with(|state| state.databases.clone());
        self.with(|state| {
            state.databases = databases;
            // Keys that have expired here in the meantime go at once.
            state.set_time(state.now);
        });
    }

    /// Until when `CLIENT PAUSE` holds commands back, since 1970.
    #[must_use]
    pub fn paused_until(&self) -> Option<Duration> {
        self.with(|state| {
            let until = state.pause.map(|pause| pause.until);
            until.filter(|until| *until > state.now)
        })
    }

    /// The time at which the next key is gone, since 1970.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        self.with(|state| {
            let next = state.databases.iter().filter_map(Database::next_expiry);
            let at = next.map(|(at, _)| *at).min()?;
            // A key lives through its last millisecond.
            u64::try_from(at.saturating_add(1))
                .ok()
                .map(Duration::from_millis)
        })
    }

    /// Number of keys in all databases.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.with(|state| state.databases.iter().map(Database::len).sum())
    }

    /// Number of channels and patterns that connections listen to, each connection counted.
    #[must_use]
    pub fn subscription_count(&self) -> usize {
        self.with(|state| {
            let hub = &state.hub;
            hub.channels.total() + hub.patterns.total() + hub.shard_channels.total()
        })
    }
}
