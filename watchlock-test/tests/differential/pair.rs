//! A real server and one in memory, side by side.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use watchlock_support::server::RedisServer;
use watchlock_test::core::{Options, SessionId, Store};

use crate::Step;
use crate::compare::{Order, difference};
use crate::wire::{Reply, command, read};

/// In the message that the real server did not answer.
pub(crate) const SILENT: &str = "the real server";
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
            if let Some(what) = difference(&real, &ours, Order::of(&step.words)) {
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
        for _ in 0..=LISTENER {
            let stream = TcpStream::connect(("127.0.0.1", self.real.port()));
            let stream = stream.map_err(|error| error.to_string())?;
            stream
                .set_nodelay(true)
                .map_err(|error| error.to_string())?;
            stream
                .set_read_timeout(Some(Duration::from_secs(3)))
                .map_err(|error| error.to_string())?;
            self.connections.push(BufReader::new(stream));
            self.sessions.push(self.store.connect());
        }
        for index in 1..=LISTENER {
            self.send(index, &words(&["HELLO", "3"]))?;
        }
        let settings = [
            "maxmemory",
            "0",
            "min-replicas-to-write",
            "0",
            "notify-keyspace-events",
            "",
        ];
        self.send(0, &words(&[&["CONFIG", "SET"], &settings[..]].concat()))?;
        self.send(0, &words(&["FLUSHALL"]))?;
        self.send(0, &words(&["SCRIPT", "FLUSH"]))?;
        self.send(0, &words(&["ACL", "DELUSER", "x", "y"]))?;
        for channel in CHANNELS {
            self.send(LISTENER, &words(&["SUBSCRIBE", channel]))?;
        }
        self.send(LISTENER, &words(&["PSUBSCRIBE", "c[h]*"]))?;
        self.send(LISTENER, &words(&["SSUBSCRIBE", "ch"]))?;
        Ok(())
    }

    /// The replies of both to a command. What else the connections get is compared here, except for the listener's
    /// messages.
    fn send(&mut self, index: usize, words: &[Vec<u8>]) -> Result<(Reply, Reply), String> {
        let bytes = command(words);
        let connection = &mut self.connections[index];
        connection
            .get_mut()
            .write_all(&bytes)
            .map_err(|error| error.to_string())?;
        // The real server runs the command before ours gets the time.
        let mut real = vec![
            read(connection)
                .map_err(|error| format!("{SILENT}: {error}: {}", bytes.escape_ascii()))?,
        ];
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.store.set_time(since_1970.unwrap_or_default());
        self.store.push(self.sessions[index], &bytes);
        self.store
            .run_next(self.sessions[index])
            .ok_or("the command did not run")?;
        let ours = self.read_ours(index)?;
        self.read_real(index, ours.len(), &mut real)?;
        for other in (0..CONNECTIONS).filter(|other| *other != index) {
            let ours = self.read_ours(other)?;
            let mut real = Vec::new();
            self.read_real(other, ours.len(), &mut real)?;
            let (real, ours) = (Reply::Many('>', real), Reply::Many('>', ours));
            if let Some(what) = difference(&real, &ours, Order::Counts) {
                return Err(format!("connection {other}: {what}"));
            }
        }
        Ok((one(real), one(ours)))
    }

    /// Reads until there are `count` replies.
    fn read_real(
        &mut self,
        index: usize,
        count: usize,
        replies: &mut Vec<Reply>,
    ) -> Result<(), String> {
        while replies.len() < count {
            let reply = read(&mut self.connections[index]);
            let missing = |error| format!("{SILENT} sent {replies:?}, but not {count}: {error}");
            replies.push(reply.map_err(missing)?);
        }
        Ok(())
    }

    fn read_ours(&mut self, index: usize) -> Result<Vec<Reply>, String> {
        let output = self.store.take_output(self.sessions[index]);
        let mut rest = output.as_slice();
        let mut replies = Vec::new();
        while !rest.is_empty() {
            replies.push(
                read(&mut rest).map_err(|error| format!("{error}: {}", output.escape_ascii()))?,
            );
        }
        Ok(replies)
    }

    /// Compares all that the listener got.
    fn compare_messages(&mut self) -> Result<(), String> {
        let ping = command(&words(&["PING", "the end"]));
        let is_end = |reply: &Reply| matches!(reply, Reply::Text('$', text) if text == b"the end");
        let connection = &mut self.connections[LISTENER];
        connection
            .get_mut()
            .write_all(&ping)
            .map_err(|error| error.to_string())?;
        let mut real = Vec::new();
        while !real.last().is_some_and(is_end) {
            real.push(read(connection).map_err(|error| error.to_string())?);
        }
        let id = self.sessions[LISTENER];
        self.store.push(id, &ping);
        self.store.run_next(id);
        let ours = self.read_ours(LISTENER)?;
        let (real, ours) = (Reply::Many('>', real), Reply::Many('>', ours));
        match difference(&real, &ours, Order::Counts) {
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
        if let Some(what) = difference(&real, &ours, Order::IsAny) {
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
                if let Some(what) = difference(&real, &ours, Order::of(&look)) {
                    return Err(format!("{}: {what}", name.escape_ascii()));
                }
            }
        }
        Ok(())
    }
}

/// Several replies as one.
fn one(mut replies: Vec<Reply>) -> Reply {
    if replies.len() == 1 {
        replies.remove(0)
    } else {
        Reply::Many('>', replies)
    }
}
