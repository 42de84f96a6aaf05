//! A real server and one in memory, side by side.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use watchlock_support::server::RedisServer;
use watchlock_test::core::{Options, SessionId, Store};

use crate::Step;
use crate::compare::{difference, is_unordered};
use crate::wire::{Reply, command, read};

/// Connections that send commands: the first two speak RESP2 and RESP3.
pub(crate) const CONNECTIONS: usize = 2;
/// Listens to messages, in RESP3.
const LISTENER: usize = 2;

/// Channels that somebody listens to from the beginning.
const CHANNELS: [&str; 3] = ["ch", "__keyevent@0__:hset", "__keyspace@0__:a"];

pub(crate) struct Pair {
    real: RedisServer,
    connections: Vec<BufReader<TcpStream>>,
    store: Store,
    sessions: Vec<SessionId>,
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

impl Pair {
    pub(crate) fn start() -> Self {
        Self {
            real: RedisServer::start(),
            connections: Vec::new(),
            store: Store::new(Options::default()),
            sessions: Vec::new(),
        }
    }

    /// Runs the steps on empty servers; an error says what differed.
    pub(crate) fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        self.reset()?;
        for (number, step) in steps.iter().enumerate() {
            let (real, ours) = self.send(step.connection, &step.words)?;
            if let Some(what) = difference(&real, &ours, is_unordered(&step.words)) {
                return Err(format!("command {number}: {what}"));
            }
        }
        self.compare_messages()?;
        self.compare_keys()
    }

    /// New connections, no keys, no scripts.
    fn reset(&mut self) -> Result<(), String> {
        self.connections.clear();
        for id in self.sessions.drain(..) {
            self.store.disconnect(id);
        }
        for index in 0..=LISTENER {
            let stream = TcpStream::connect(("127.0.0.1", self.real.port()));
            let stream = stream.map_err(|error| error.to_string())?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(|error| error.to_string())?;
            self.connections.push(BufReader::new(stream));
            self.sessions.push(self.store.connect());
            if index > 0 {
                self.send(index, &words(&["HELLO", "3"]))?;
            }
        }
        let settings = ["maxmemory", "0", "min-replicas-to-write", "0", "notify-keyspace-events", ""];
        self.send(0, &words(&[&["CONFIG", "SET"], &settings[..]].concat()))?;
        self.send(0, &words(&["FLUSHALL"]))?;
        self.send(0, &words(&["SCRIPT", "FLUSH"]))?;
        for channel in CHANNELS {
            self.send(LISTENER, &words(&["SUBSCRIBE", channel]))?;
        }
        self.send(LISTENER, &words(&["PSUBSCRIBE", "c[h]*"]))?;
        self.send(LISTENER, &words(&["SSUBSCRIBE", "ch"]))?;
        Ok(())
    }

    /// The replies of both to a command.
    fn send(&mut self, index: usize, words: &[Vec<u8>]) -> Result<(Reply, Reply), String> {
        let bytes = command(words);
        let connection = &mut self.connections[index];
        let failed = |error: std::io::Error| format!("the real server: {error}: {words:?}");
        connection.get_mut().write_all(&bytes).map_err(failed)?;
        let real = read(connection).map_err(failed)?;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.store.set_time(since_1970.unwrap_or_default());
        let id = self.sessions[index];
        self.store.push(id, &bytes);
        self.store.run_next(id).ok_or("the command did not run")?;
        let output = self.store.take_output(id);
        let mut output = output.as_slice();
        let ours = read(&mut output).map_err(|error| error.to_string())?;
        if output.is_empty() {
            Ok((real, ours))
        } else {
            Err(format!("more than one reply: {}", output.escape_ascii()))
        }
    }

    /// Compares all that the listener got.
    fn compare_messages(&mut self) -> Result<(), String> {
        let ping = command(&words(&["PING", "the end"]));
        let is_end = |reply: &Reply| matches!(reply, Reply::Text('$', text) if text == b"the end");
        let connection = &mut self.connections[LISTENER];
        connection.get_mut().write_all(&ping).map_err(|error| error.to_string())?;
        let mut real = Vec::new();
        while !real.last().is_some_and(is_end) {
            real.push(read(connection).map_err(|error| error.to_string())?);
        }
        let id = self.sessions[LISTENER];
        self.store.push(id, &ping);
        self.store.run_next(id);
        let output = self.store.take_output(id);
        let mut output = output.as_slice();
        let mut ours = Vec::new();
        while !output.is_empty() {
            ours.push(read(&mut output).map_err(|error| error.to_string())?);
        }
        let (real, ours) = (Reply::Many('>', real), Reply::Many('>', ours));
        match difference(&real, &ours, false) {
            None => Ok(()),
            Some(what) => Err(format!("messages: {what}")),
        }
    }

    /// Compares what the first database holds.
    fn compare_keys(&mut self) -> Result<(), String> {
        // Whatever the connections were in the middle of.
        for index in 0..CONNECTIONS {
            self.send(index, &words(&["RESET"]))?;
        }
        let keys = words(&["KEYS", "*"]);
        let (real, ours) = self.send(0, &keys)?;
        if let Some(what) = difference(&real, &ours, true) {
            return Err(format!("keys: {what}"));
        }
        let Reply::Many(_, names) = real else {
            return Err(format!("no keys: {real:?}"));
        };
        for name in names {
            let Reply::Text(_, name) = name else {
                continue;
            };
            let (kind, _) = self.send(0, &[b"TYPE".to_vec(), name.clone()])?;
            let Reply::Line('+', kind) = kind else {
                continue;
            };
            let look: &[&str] = match kind.as_slice() {
                b"string" => &["GET"],
                b"hash" => &["HGETALL"],
                b"list" => &["LRANGE", "0", "-1"],
                b"zset" => &["ZRANGE", "0", "-1", "WITHSCORES"],
                _ => &["SMEMBERS"],
            };
            let mut look = words(look);
            look.insert(1, name.clone());
            for look in [look, vec![b"PTTL".to_vec(), name.clone()]] {
                let (real, ours) = self.send(0, &look)?;
                if let Some(what) = difference(&real, &ours, is_unordered(&look)) {
                    return Err(format!("{}: {what}", name.escape_ascii()));
                }
            }
        }
        Ok(())
    }
}
