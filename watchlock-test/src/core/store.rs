//! One server, as its owner sees it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

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
    /// The port that `INFO` says.
    pub port: u16,
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
    /// are.
    pub blocks: Duration,
}

/// One Redis.
#[derive(Debug)]
pub struct Store {
    /// Shared with the functions that scripts call.
    state: Arc<Mutex<State>>,
}

impl Store {
    /// An empty server.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(options))),
        }
    }

    /// Sets the time, since 1970, and removes the keys that have expired by then. It may go back.
    pub fn set_time(&mut self, time: Duration) {
        self.state.lock().now = time;
    }

    /// The time, since 1970.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.state.lock().now
    }

    /// Opens a connection.
    pub fn connect(&mut self) -> SessionId {
        self.state.lock().open_session(None)
    }

    /// Opens a connection from this address, which `CLIENT LIST` shows.
    pub fn connect_from(&mut self, address: impl Into<String>) -> SessionId {
        self.state.lock().open_session(Some(address.into()))
    }

    /// The client is gone.
    pub fn disconnect(&mut self, id: SessionId) {
        self.state.lock().forget(id);
    }

    /// Bytes arrived on this connection.
    pub fn push(&mut self, id: SessionId, bytes: &[u8]) {
        if let Some(session) = self.state.lock().sessions.get_mut(&id) {
            session.inbox.push(bytes);
        }
    }

    /// The command that comes next on this connection, if all of it has arrived and it may run now.
    pub fn next_command(&mut self, id: SessionId) -> Option<Vec<Bytes>> {
        dispatch::peek(&mut self.state.lock(), id)
    }

    /// Runs the command that comes next on this connection, if all of it has arrived and it may run now.
    pub fn run_next(&mut self, id: SessionId) -> Option<Ran> {
        let mut state = self.state.lock();
        let arguments = dispatch::take(&mut state, id)?;
        Some(dispatch::run(&mut state, id, &arguments))
    }

    /// Refuses the command that comes next on this connection with this error, which begins with its code.
    pub fn refuse_next(&mut self, id: SessionId, error: &str) -> Option<Ran> {
        let mut state = self.state.lock();
        let arguments = dispatch::take(&mut state, id)?;
        Some(dispatch::refuse(&mut state, id, &arguments, error))
    }

    /// Takes what this connection has to send now.
    pub fn take_output(&mut self, id: SessionId) -> Bytes {
        let mut state = self.state.lock();
        state.ready.remove(&id);
        if let Some(output) = state.leaving.remove(&id) {
            return output;
        }
        let session = state.sessions.get_mut(&id);
        session.map(|session| std::mem::take(&mut session.output)).unwrap_or_default()
    }

    /// The connections that have something to send, in the order in which they were opened.
    #[must_use]
    pub fn sessions_with_output(&self) -> Vec<SessionId> {
        self.state.lock().ready.iter().copied().collect()
    }

    /// Whether the server has closed this connection, and everything that it had to send has been taken.
    #[must_use]
    pub fn is_closed(&self, id: SessionId) -> bool {
        let state = self.state.lock();
        !state.sessions.contains_key(&id) && !state.leaving.contains_key(&id)
    }

    /// Runs a command as the server's owner: at once, whatever the server's condition, without a connection, and without
    /// being counted.
    pub fn run(&mut self, arguments: &[&[u8]]) -> Reply {
        let arguments: Vec<Bytes> = arguments.iter().map(|bytes| bytes.to_vec()).collect();
        dispatch::run_for_owner(&mut self.state.lock(), &arguments)
    }

    /// Whether commands that need memory are refused.
    pub fn set_out_of_memory(&mut self, is_so: bool) {
        self.state.lock().condition.is_out_of_memory = is_so;
    }

    /// Whether it is a replica, which refuses writes.
    pub fn set_read_only(&mut self, is_so: bool) {
        self.state.lock().condition.is_read_only = is_so;
    }

    /// Whether it says that it is loading its data.
    pub fn set_loading(&mut self, is_so: bool) {
        self.state.lock().condition.is_loading = is_so;
    }

    /// Whether it says that it is busy with a script.
    pub fn set_busy(&mut self, is_so: bool) {
        self.state.lock().condition.is_busy = is_so;
    }

    /// How many replicas it says it has, all of which acknowledge each write at once.
    pub fn set_replicas(&mut self, count: usize) {
        self.state.lock().condition.replicas = count;
    }

    /// It stops and starts again: connections, scripts and statistics are gone, keys stay.
    pub fn restart(&mut self) {}

    /// All keys are gone, without a message to anybody.
    pub fn lose_data(&mut self) {}

    /// Takes over all keys of another server, as a replica does when it syncs.
    pub fn copy_data_from(&mut self, _other: &Store) {}

    /// Until when `CLIENT PAUSE` holds commands back, since 1970.
    #[must_use]
    pub fn paused_until(&self) -> Option<Duration> {
        None
    }

    /// When the next key expires, since 1970.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        None
    }

    /// Number of keys in all databases.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.state.lock().databases.iter().map(super::keyspace::Database::len).sum()
    }

    /// Number of channels and patterns that connections listen to, each connection counted.
    #[must_use]
    pub fn subscription_count(&self) -> usize {
        0
    }
}
