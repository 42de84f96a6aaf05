//! What the server's thread owns: the store, its time, and where replies go.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use watchlock::ClockDriver;

use crate::Fault;
use crate::core::{Options, Reply, SessionId, Store};

/// How many bytes may wait for a client that does not read, before its connection is cut.
const BACKLOG: usize = 64 << 20;

/// What a connection's task does next.
pub(crate) enum Output {
    Bytes(Vec<u8>),
    Pause(Duration),
}

/// The state's end of a connection.
struct Link {
    /// `None`: the connection ends when what is queued is sent.
    output: Option<UnboundedSender<Output>>,
    backlog: Rc<Cell<usize>>,
    cut: Rc<Notify>,
    is_silent: bool,
}

/// The task's end of a connection.
pub(crate) struct Accepted {
    pub(crate) session: SessionId,
    pub(crate) output: UnboundedReceiver<Output>,
    pub(crate) backlog: Rc<Cell<usize>>,
    pub(crate) cut: Rc<Notify>,
    pub(crate) frozen: watch::Receiver<bool>,
}

pub(crate) struct State {
    store: Store,
    clock: ClockDriver,
    /// What the clock of the server shows when the client's clock shows zero.
    epoch: Duration,
    links: BTreeMap<SessionId, Link>,
    faults: VecDeque<Fault>,
    arrived: BTreeMap<String, u64>,
    frozen: watch::Sender<bool>,
    is_down: bool,
}

impl State {
    pub(crate) fn new(port: u16, clock: ClockDriver) -> Self {
        let today = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let options = Options {
            port,
            process_id: std::process::id(),
            // Two servers are never the same one.
            seed: RandomState::new().hash_one(port),
            time: today,
            ..Options::default()
        };
        Self {
            store: Store::new(options),
            epoch: today.saturating_sub(clock.now()),
            clock,
            links: BTreeMap::new(),
            faults: VecDeque::new(),
            arrived: BTreeMap::new(),
            frozen: watch::Sender::new(false),
            is_down: false,
        }
    }

    /// A client connects; none while the server is down.
    pub(crate) fn connect(&mut self, from: SocketAddr) -> Option<Accepted> {
        if self.is_down {
            return None;
        }
        let session = self.store.connect_from(from.to_string());
        let (sender, output) = unbounded_channel();
        let link = Link {
            output: Some(sender),
            backlog: Rc::default(),
            cut: Rc::default(),
            is_silent: false,
        };
        let accepted = Accepted {
            session,
            output,
            backlog: Rc::clone(&link.backlog),
            cut: Rc::clone(&link.cut),
            frozen: self.frozen.subscribe(),
        };
        self.links.insert(session, link);
        Some(accepted)
    }

    pub(crate) fn disconnect(&mut self, session: SessionId) {
        if let Some(link) = self.links.remove(&session) {
            link.cut.notify_one();
            self.store.disconnect(session);
        }
    }

    /// The client sends nothing more: its connection ends when the replies are sent.
    pub(crate) fn finish(&mut self, session: SessionId) {
        if let Some(link) = self.links.get_mut(&session) {
            link.output = None;
        }
    }

    /// Runs the commands that have arrived. Returns when to go on if `CLIENT PAUSE` holds some back.
    pub(crate) fn receive(&mut self, session: SessionId, bytes: &[u8]) -> Option<Duration> {
        self.store.push(session, bytes);
        while self.is_open(session) && self.run_next(session) {}
        let now = self.look_at_clock();
        // After a protocol error nothing ran, and the session ended.
        self.deliver();
        let until = self.store.paused_until()?;
        Some(until.saturating_sub(now)).filter(|left| !left.is_zero())
    }

    fn is_open(&self, session: SessionId) -> bool {
        let link = self.links.get(&session);
        link.is_some_and(|link| link.output.is_some())
    }

    /// Runs the next command of a session. Returns false if there is none.
    fn run_next(&mut self, session: SessionId) -> bool {
        self.look_at_clock();
        let fault = self.take_fault(session);
        let ran = match &fault {
            Some(Fault::Refused(error)) => self.store.refuse_next(session, error),
            _ => self.store.run_next(session),
        };
        let Some(ran) = ran else {
            self.faults.extend(fault);
            return false;
        };
        let may_close_others =
            ran.command.starts_with("client|") || ran.command.starts_with("acl|");
        *self.arrived.entry(ran.command).or_default() += 1;
        let reply = self.store.take_output(session);
        match fault {
            // The client sends the script next, and that is the command.
            Some(fault) if reply.starts_with(b"-NOSCRIPT") => self.faults.push_front(fault),
            Some(Fault::Silent) => {
                if let Some(link) = self.links.get_mut(&session) {
                    link.is_silent = true;
                }
            }
            Some(Fault::Cut) => self.disconnect(session),
            Some(Fault::Delayed(span)) => self.send(session, Output::Pause(span)),
            Some(Fault::Refused(_)) | None => {}
        }
        if !ran.blocks.is_zero() {
            self.send(session, Output::Pause(ran.blocks));
        }
        self.send(session, Output::Bytes(reply));
        self.deliver();
        if may_close_others {
            self.cut(|state, other| other != session && state.store.is_closed(other));
        }
        true
    }

    /// Takes the next fault, if the next command of a session is one that it is for.
    fn take_fault(&mut self, session: SessionId) -> Option<Fault> {
        if self.faults.is_empty() {
            return None;
        }
        let command = self.store.next_command(session)?;
        let name = String::from_utf8_lossy(command.first()?).to_uppercase();
        uses_data(&name).then(|| self.faults.pop_front())?
    }

    fn look_at_clock(&mut self) -> Duration {
        let now = self.epoch + self.clock.now();
        self.store.set_time(now);
        now
    }

    /// Sends what the store has for any client, and ends the connections that it closed.
    fn deliver(&mut self) {
        for session in self.store.sessions_with_output() {
            let bytes = self.store.take_output(session);
            self.send(session, Output::Bytes(bytes));
            if self.store.is_closed(session) {
                self.finish(session);
            }
        }
    }

    fn send(&mut self, session: SessionId, output: Output) {
        let Some(link) = self.links.get(&session) else {
            return;
        };
        if let Output::Bytes(bytes) = &output {
            if bytes.is_empty() || link.is_silent {
                return;
            }
            link.backlog.set(link.backlog.get() + bytes.len());
        }
        if let Some(to) = &link.output {
            // Its task has ended: so has the connection.
            let _ = to.send(output);
        }
        if link.backlog.get() > BACKLOG {
            self.disconnect(session);
        }
    }

    /// Runs a command of our own.
    pub(crate) fn run(&mut self, command: &[&str]) -> Reply {
        self.look_at_clock();
        let command: Vec<&[u8]> = command.iter().map(|part| part.as_bytes()).collect();
        let reply = self.store.run(&command);
        self.deliver();
        reply
    }

    pub(crate) fn add_fault(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    /// How often this command arrived, by its name in small letters.
    pub(crate) fn arrived(&self, name: &str) -> u64 {
        self.arrived.get(name).copied().unwrap_or(0)
    }

    /// How many commands arrived.
    pub(crate) fn arrived_in_all(&self) -> u64 {
        self.arrived.values().sum()
    }

    pub(crate) fn keys(&mut self) -> Vec<String> {
        let Reply::Array(keys) = self.run(&["KEYS", "*"]) else {
            return Vec::new();
        };
        let texts = keys.into_iter().filter_map(|key| match key {
            Reply::Bulk(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            _ => None,
        });
        let mut keys: Vec<String> = texts.collect();
        keys.sort_unstable();
        keys
    }

    /// Whether there is no key and no subscription.
    pub(crate) fn is_clean(&mut self) -> bool {
        self.look_at_clock();
        self.store.key_count() == 0 && self.store.subscription_count() == 0
    }

    pub(crate) fn lose_data(&mut self) {
        self.store.lose_data();
    }

    pub(crate) fn freeze(&mut self, is_frozen: bool) {
        self.frozen.send_replace(is_frozen);
    }

    /// Cuts all connections, and new ones as well.
    pub(crate) fn stop(&mut self) {
        self.is_down = true;
        self.cut(|_, _| true);
    }

    /// What a new process would know: no connection, no script.
    pub(crate) fn restart(&mut self) {
        self.cut(|_, _| true);
        self.store.restart();
        self.faults.clear();
        self.is_down = false;
        self.freeze(false);
    }

    fn cut(&mut self, is_cut: impl Fn(&Self, SessionId) -> bool) {
        let sessions: Vec<SessionId> = self.links.keys().copied().collect();
        for session in sessions {
            if is_cut(self, session) {
                self.disconnect(session);
            }
        }
    }
}

/// Whether a command reads or writes data, or publishes. The others are about a connection or the server.
fn uses_data(name: &str) -> bool {
    !matches!(
        name,
        "" | "ACL"
            | "AUTH"
            | "CLIENT"
            | "CLUSTER"
            | "COMMAND"
            | "CONFIG"
            | "ECHO"
            | "HELLO"
            | "INFO"
            | "PING"
            | "PSUBSCRIBE"
            | "PUBSUB"
            | "PUNSUBSCRIBE"
            | "QUIT"
            | "RESET"
            | "ROLE"
            | "SCRIPT"
            | "SELECT"
            | "SSUBSCRIBE"
            | "SUBSCRIBE"
            | "SUNSUBSCRIBE"
            | "UNSUBSCRIBE"
            | "WAIT"
    )
}
