//! The world: servers, the processes' links to them, and everything that is under way at a moment.
//!
//! Time is that of the runtime, which is paused: it passes when no task has anything to do, by whole milliseconds, the
//! steps of tokio's timers. The network and the servers count microseconds. What is due within the present millisecond
//! happens now, in order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use watchlock::__simulation::HostStream as Stream;
use watchlock_test::core::{SessionId, Store};

use crate::replica::{Due, Replica};
use crate::trace::Trace;

/// Microseconds since the world began.
pub type Micros = u64;

/// What a server's clock shows when the world begins.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// What a command costs a server, and what each call of a script adds.
const COMMAND: Micros = 8;
const CALL: Micros = 2;

/// After how long the systems of both ends give up a connection on which nothing passes (TCP keepalive).
const KEEPALIVE: Micros = 30_000_000;

/// How much a connection takes that the server has not read yet.
const BUFFER: usize = 256 * 1024;

/// How a process reaches one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// From here to there, and back.
    pub up: Micros,
    pub down: Micros,
    /// Up to so much is added to each way of a piece.
    pub jitter: Micros,
    /// New connections are refused.
    pub refuses: bool,
    /// Nothing arrives, in both directions, until it ends.
    pub hole: bool,
}

/// A shared world.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    begun: Instant,
}

struct State {
    servers: Vec<Server>,
    /// By process and server.
    links: BTreeMap<(usize, usize), Link>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// A connection has ended.
    ended: Arc<Notify>,
    events: BinaryHeap<Reverse<Event>>,
    next_event: u64,
    rng: Rng,
    trace: Trace,
    commands: u64,
}

struct Server {
    store: Store,
    /// It is working, or stands still, until then.
    busy_until: Micros,
    /// The connections with input that was not looked at, in order.
    runnable: VecDeque<u64>,
    /// An event for its next command is under way.
    is_due: bool,
    /// How much its clock is off.
    offset: i64,
    /// The largest that it has been.
    furthest: i64,
    /// How often its data may have changed.
    changes: u64,
    replica: Option<Replica>,
    /// The connections whose `WAIT` has no answer yet.
    waiting: Vec<u64>,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that may happen to a connection"
)]
struct Connection {
    process: usize,
    server: usize,
    session: SessionId,
    /// Bytes that the client wrote and the server has not read.
    in_flight: usize,
    /// What the client can read.
    readable: VecDeque<u8>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    end: Option<End>,
    /// The times of the last piece in each direction: pieces do not overtake each other.
    last_up: Micros,
    last_down: Micros,
    /// From now on nothing of the client arrives, or nothing of the server.
    mute: bool,
    deaf: bool,
    /// Nothing of the server arrives behind the next piece.
    last_piece: bool,
    is_runnable: bool,
    /// How often the server's data had changed after its last command.
    changes: u64,
    /// Until when its `WAIT` waits for the replica.
    waits_until: Option<Micros>,
    /// What waits for the end of a hole, in each direction.
    held_up: Vec<Vec<u8>>,
    held_down: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Micros,
    number: u64,
    what: What,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Bytes reach the server.
    Arrives(u64, Vec<u8>),
    /// Bytes reach the client.
    Delivered(u64, Vec<u8>),
    /// The client has closed its end.
    Left(u64),
    /// The server has closed its end.
    Ended(u64),
    /// A server runs its next command.
    Runs(usize),
    /// The systems of both ends find out that nothing passes.
    TimesOut(u64),
    /// What a server sent, in this term, reaches its replica; and the server knows that.
    Replicated(usize, u64),
    Acknowledged(usize, u64),
    /// A `WAIT` on a server has taken its time.
    WaitEnds(usize),
}

impl World {
    /// A world with so many servers that begins now.
    pub fn new(servers: usize, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let servers = (0..servers)
            .map(|_| Server {
                store: Store::new(watchlock_test::core::Options {
                    seed: rng.u64(..),
                    ..Default::default()
                }),
                busy_until: 0,
                runnable: VecDeque::new(),
                is_due: false,
                offset: 0,
                furthest: 0,
                changes: 0,
                replica: None,
                waiting: Vec::new(),
            })
            .collect();
        Self {
            state: Arc::new(Mutex::new(State {
                servers,
                links: BTreeMap::new(),
                connections: BTreeMap::new(),
                next_connection: 0,
                ended: Arc::default(),
                events: BinaryHeap::new(),
                next_event: 0,
                rng,
                trace: Trace::default(),
                commands: 0,
            })),
            changed: Arc::default(),
            begun: Instant::now(),
        }
    }

    /// How many servers there are.
    pub fn servers(&self) -> usize {
        self.state.lock().servers.len()
    }

    /// Microseconds since it began.
    pub fn now(&self) -> Micros {
        micros(self.begun.elapsed())
    }

    /// Lets happen what is under way, for ever.
    pub async fn run(self) {
        loop {
            let (wakers, next) = {
                let mut state = self.state.lock();
                let wakers = state.run_until(self.now() + 999);
                (wakers, state.events.peek().map(|Reverse(event)| event.at))
            };
            let woke = !wakers.is_empty();
            wakers.into_iter().for_each(Waker::wake);
            match next {
                _ if woke => tokio::task::yield_now().await,
                Some(at) => {
                    // The millisecond in which it is due.
                    let at = self.begun + Duration::from_millis(at / 1_000);
                    tokio::select! {
                        biased;
                        () = self.changed.notified() => {}
                        () = sleep_until(at) => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Connects a process to the server whose number is the port, counted from 1.
    pub fn connect(&self, process: usize, port: u16) -> BoxFuture<'static, io::Result<Stream>> {
        let world = self.clone();
        async move {
            let server = usize::from(port) - 1;
            let link = world.link(process, server);
            sleep(Duration::from_micros(link.up + link.down)).await;
            loop {
                let link = world.link(process, server);
                if link.refuses {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                if !link.hole {
                    break;
                }
                sleep(Duration::from_millis(200)).await;
            }
            let number = world.state.lock().open(process, server);
            Ok(Box::new(Piped { world, number }) as Stream)
        }
        .boxed()
    }

    pub fn link(&self, process: usize, server: usize) -> Link {
        let state = self.state.lock();
        state
            .links
            .get(&(process, server))
            .copied()
            .unwrap_or_default()
    }

    pub fn set_link(&self, process: usize, server: usize, link: Link) {
        let now = self.now();
        let mut state = self.state.lock();
        state.links.insert((process, server), link);
        let wakers = if link.hole {
            Vec::new()
        } else {
            state.let_through(process, server, now)
        };
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_one();
    }

    /// Cuts the connections of a process, or of all, to a server: both ends see it at once.
    pub fn cut(&self, process: Option<usize>, server: usize) {
        let wakers = self.state.lock().cut(process, server);
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_one();
    }

    /// Whether nothing arrives any more on the connections that a process has now: of what it sends, or of what it is sent.
    /// Returns the connections.
    pub fn silence(&self, process: usize, server: usize, mute: bool, deaf: bool) -> Vec<u64> {
        let at = self.now() + KEEPALIVE;
        let mut state = self.state.lock();
        let mut silent = Vec::new();
        for (number, connection) in state.connections_of(Some(process), server) {
            connection.mute |= mute;
            connection.deaf |= deaf;
            silent.push(*number);
        }
        for number in &silent {
            state.at(at, What::TimesOut(*number));
        }
        silent
    }

    /// Resolves when none of these connections is there any more.
    pub async fn has_none(&self, numbers: &[u64]) {
        let ended = Arc::clone(&self.state.lock().ended);
        loop {
            let next = ended.notified();
            let is_open = |number: &u64| {
                let state = self.state.lock();
                let connection = state.connections.get(number);
                connection.is_some_and(|connection| connection.end.is_none())
            };
            if !numbers.iter().any(is_open) {
                return;
            }
            next.await;
        }
    }

    /// From the second piece from now on nothing arrives on one of the connections of a process.
    /// Returns it.
    pub fn silence_behind_next(&self, process: usize, server: usize) -> Vec<u64> {
        let mut state = self.state.lock();
        let drawn = state.rng.usize(..);
        let mut all: Vec<_> = state.connections_of(Some(process), server).collect();
        let count = all.len().max(1);
        let Some((number, connection)) = all.get_mut(drawn % count) else {
            return Vec::new();
        };
        connection.last_piece = true;
        vec![**number]
    }

    /// The server does nothing for so long.
    pub fn stall(&self, server: usize, span: Duration) {
        let now = self.now();
        let server = &mut self.state.lock().servers[server];
        server.busy_until = server.busy_until.max(now) + micros(span);
    }

    /// The server restarts: all connections are cut.
    pub fn restart(&self, server: usize, loses_memory: bool) {
        let wakers = {
            let mut state = self.state.lock();
            let wakers = state.cut(None, server);
            let server = &mut state.servers[server];
            server.store.restart();
            if loses_memory {
                server.store.lose_data();
                server.changes += 1;
                // Tokens grow over a loss only if the clock is not behind.
                server.offset = server.furthest;
            }
            wakers
        };
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_one();
    }

    /// The server has a replica from now on, which is behind by so much, and again as much until the server knows what it has.
    pub fn replicate(&self, server: usize, lag: Micros) {
        let server = &mut self.state.lock().servers[server];
        server.store.set_replicas(1);
        server.replica = Some(Replica::new(lag));
    }

    /// The replica hears nothing of the server for so long.
    pub fn stall_replica(&self, server: usize, span: Duration) {
        let until = self.now() + micros(span);
        if let Some(replica) = &mut self.state.lock().servers[server].replica {
            replica.stall(until);
        }
    }

    /// The replica takes the server's place, and what it lacks is gone. All connections are cut.
    pub fn fail_over(&self, server: usize) {
        let now = self.now();
        let wakers = {
            let mut state = self.state.lock();
            let wakers = state.cut(None, server);
            let of = &mut state.servers[server];
            of.store.restart();
            if let Some(replica) = &mut of.replica {
                replica.take_over(&mut of.store, now);
            }
            of.changes += 1;
            state.replicate(server, now);
            wakers
        };
        wakers.into_iter().for_each(Waker::wake);
        self.changed.notify_one();
    }

    /// Whether a replica has taken a server's place within so long.
    pub fn has_failed_over(&self, server: usize, within: Duration) -> bool {
        let since = self.now().saturating_sub(micros(within));
        let replica = &self.state.lock().servers[server].replica;
        let at = replica.as_ref().and_then(Replica::took_over_at);
        at.is_some_and(|at| at >= since)
    }

    /// Works on a server's data.
    pub fn at<T>(&self, server: usize, work: impl FnOnce(&mut Store) -> T) -> T {
        let now = self.now();
        let done = {
            let mut state = self.state.lock();
            state.servers[server].set_time(now);
            let done = work(&mut state.servers[server].store);
            state.servers[server].changes += 1;
            state.replicate(server, now);
            state.send_outputs(server, now);
            done
        };
        self.changed.notify_one();
        done
    }

    /// The server's clock steps.
    pub fn step_clock(&self, server: usize, by_micros: i64) {
        let server = &mut self.state.lock().servers[server];
        server.offset += by_micros;
        server.furthest = server.furthest.max(server.offset);
    }

    /// How many commands ran, and what distinguishes this run from any other.
    pub fn ran(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.commands, state.trace.sum())
    }

    /// The connections that are open, for people.
    pub fn open_connections(&self) -> Vec<String> {
        let state = self.state.lock();
        let open = state
            .connections
            .iter()
            .filter(|(_, connection)| connection.end.is_none());
        open.map(|(number, connection)| {
            format!(
                "{number} of process {}{}{}",
                connection.process,
                if connection.mute { ", mute" } else { "" },
                if connection.deaf { ", deaf" } else { "" },
            )
        })
        .collect()
    }

    /// Keeps a line for each piece that arrives, and for each change of what a command answers.
    pub fn keep_trace(&self, watched: Option<&str>) {
        self.state.lock().trace.keep(watched);
    }

    pub fn trace(&self) -> Vec<String> {
        self.state.lock().trace.lines()
    }
}

fn micros(span: Duration) -> Micros {
    Micros::try_from(span.as_micros()).unwrap_or(Micros::MAX)
}

impl Server {
    fn set_time(&mut self, at: Micros) {
        let at = EPOCH + Duration::from_micros(at);
        let offset = Duration::from_micros(self.offset.unsigned_abs());
        let at = if self.offset < 0 {
            at.saturating_sub(offset)
        } else {
            at + offset
        };
        self.store.set_time(at);
    }
}

impl State {
    fn at(&mut self, at: Micros, what: What) {
        let number = self.next_event;
        self.next_event += 1;
        self.events.push(Reverse(Event { at, number, what }));
    }

    fn open(&mut self, process: usize, server: usize) -> u64 {
        let number = self.next_connection;
        self.next_connection += 1;
        let session = self.servers[server].store.connect();
        self.connections.insert(
            number,
            Connection {
                process,
                server,
                session,
                in_flight: 0,
                readable: VecDeque::new(),
                reader: None,
                writer: None,
                end: None,
                last_up: 0,
                last_down: 0,
                mute: false,
                deaf: false,
                last_piece: false,
                is_runnable: false,
                changes: 0,
                waits_until: None,
                held_up: Vec::new(),
                held_down: Vec::new(),
            },
        );
        number
    }

    fn connections_of(
        &mut self,
        process: Option<usize>,
        server: usize,
    ) -> impl Iterator<Item = (&u64, &mut Connection)> {
        self.connections.iter_mut().filter(move |(_, connection)| {
            connection.server == server
                && process.is_none_or(|process| process == connection.process)
        })
    }

    fn link_of(&self, process: usize, server: usize) -> Link {
        self.links
            .get(&(process, server))
            .copied()
            .unwrap_or_default()
    }

    /// A hole has ended: what waited arrives now, in order, and before what comes later.
    #[must_use]
    fn let_through(&mut self, process: usize, server: usize, now: Micros) -> Vec<Waker> {
        let mut events = Vec::new();
        for (number, connection) in &mut self.connections {
            if (connection.process, connection.server) != (process, server) {
                continue;
            }
            let up = connection
                .held_up
                .drain(..)
                .map(|bytes| What::Arrives(*number, bytes));
            events.extend(up);
            let down = connection.held_down.drain(..);
            events.extend(down.map(|bytes| What::Delivered(*number, bytes)));
            connection.last_up = connection.last_up.max(now);
            connection.last_down = connection.last_down.max(now);
        }
        // At once: what is due in this moment was sent later.
        let mut wakers = Vec::new();
        for what in events {
            let (at, number) = (now, 0);
            self.happens(Event { at, number, what }, &mut wakers);
        }
        wakers
    }

    #[must_use]
    fn cut(&mut self, process: Option<usize>, server: usize) -> Vec<Waker> {
        let all: Vec<_> = self
            .connections_of(process, server)
            .map(|(number, _)| *number)
            .collect();
        let mut wakers = Vec::new();
        for number in all {
            self.reset(number, &mut wakers);
        }
        wakers
    }

    fn reset(&mut self, number: u64, wakers: &mut Vec<Waker>) {
        if let Some(connection) = self.connections.get_mut(&number)
            && connection.end.is_none()
        {
            connection.end = Some(End::Reset);
            self.ended.notify_waiters();
            connection.readable.clear();
            wakers.extend(connection.reader.take());
            wakers.extend(connection.writer.take());
            let (server, session) = (connection.server, connection.session);
            self.servers[server].store.disconnect(session);
        }
    }

    fn run_until(&mut self, horizon: Micros) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(Reverse(event)) = self.events.peek() {
            if event.at > horizon {
                break;
            }
            let Some(Reverse(event)) = self.events.pop() else {
                break;
            };
            self.happens(event, &mut wakers);
        }
        wakers
    }

    fn happens(&mut self, Event { at, what, .. }: Event, wakers: &mut Vec<Waker>) {
        match what {
            What::Arrives(number, bytes) => {
                let Some(connection) = self.connections.get_mut(&number) else {
                    return;
                };
                if connection.end.is_some() || connection.mute {
                    return;
                }
                let (process, server) = (connection.process, connection.server);
                let hole = self.link_of(process, server).hole;
                let Some(connection) = self.connections.get_mut(&number) else {
                    return;
                };
                if hole {
                    return connection.held_up.push(bytes);
                }
                connection.in_flight -= bytes.len();
                wakers.extend(connection.writer.take());
                self.trace.note(at, process, server, &bytes);
                let session = connection.session;
                let was_runnable = std::mem::replace(&mut connection.is_runnable, true);
                let server_state = &mut self.servers[server];
                server_state.store.push(session, &bytes);
                if !was_runnable {
                    server_state.runnable.push_back(number);
                }
                self.wake_server(server, at);
            }
            What::Runs(server) => self.run_command(server, at),
            What::TimesOut(number) => self.reset(number, wakers),
            What::Replicated(server, term) => {
                let replica = self.servers[server].replica.as_mut();
                if let Some(due) = replica.and_then(|replica| replica.arrived(term, at)) {
                    self.at(due.at, What::Acknowledged(server, due.term));
                }
            }
            What::Acknowledged(server, term) => {
                if let Some(replica) = &mut self.servers[server].replica {
                    replica.acknowledges(term);
                }
                self.replicate(server, at);
                self.looks_at_waits(server, at);
            }
            What::WaitEnds(server) => self.looks_at_waits(server, at),
            What::Delivered(number, bytes) => {
                let Some(connection) = self.connections.get_mut(&number) else {
                    return;
                };
                if connection.end.is_some() || connection.deaf {
                    return;
                }
                let (process, server) = (connection.process, connection.server);
                let hole = self.link_of(process, server).hole;
                if let Some(connection) = self.connections.get_mut(&number) {
                    if hole {
                        return connection.held_down.push(bytes);
                    }
                    connection.readable.extend(bytes);
                    wakers.extend(connection.reader.take());
                    if connection.last_piece {
                        connection.deaf = true;
                        self.at(at + KEEPALIVE, What::TimesOut(number));
                    }
                }
            }
            What::Left(number) => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    if !connection.held_up.is_empty() {
                        // It is behind what waits.
                        return self.at(at + 50_000, What::Left(number));
                    }
                    if connection.mute {
                        // The server does not hear of it, and gives the connection up some time.
                        connection.mute = false;
                        return self.at(at + 60_000_000, What::Left(number));
                    }
                    let (server, session) = (connection.server, connection.session);
                    if connection.end.is_none() {
                        self.servers[server].store.disconnect(session);
                    }
                    self.connections.remove(&number);
                    self.ended.notify_waiters();
                }
            }
            What::Ended(number) => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    if connection.deaf {
                        return;
                    }
                    if !connection.held_down.is_empty() {
                        return self.at(at + 50_000, What::Ended(number));
                    }
                    connection.end.get_or_insert(End::Closed);
                    self.ended.notify_waiters();
                    wakers.extend(connection.reader.take());
                    wakers.extend(connection.writer.take());
                }
            }
        }
    }

    fn wake_server(&mut self, server: usize, at: Micros) {
        let due = &mut self.servers[server];
        if !due.is_due && !due.runnable.is_empty() {
            due.is_due = true;
            let at = due.busy_until.max(at);
            self.at(at, What::Runs(server));
        }
    }

    fn run_command(&mut self, index: usize, at: Micros) {
        let server = &mut self.servers[index];
        server.is_due = false;
        if server.busy_until > at {
            // It was stalled meanwhile.
            return self.wake_server(index, at);
        }
        while let Some(number) = self.servers[index].runnable.front().copied() {
            let session = match self.connections.get(&number) {
                Some(connection) if connection.end.is_none() => connection.session,
                _ => {
                    self.servers[index].runnable.pop_front();
                    continue;
                }
            };
            if self.waits(index, number, session, at) {
                continue;
            }
            let server = &mut self.servers[index];
            server.set_time(at);
            let Some(ran) = server.store.run_next(session) else {
                server.runnable.pop_front();
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.is_runnable = false;
                }
                continue;
            };
            if ran.command == "wait" && server.replica.is_some() {
                server.store.set_replicas(1);
            }
            self.commands += 1;
            server.changes += 1;
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.changes = server.changes;
            }
            self.trace.watch(at, index, &mut server.store);
            let cost = COMMAND + CALL * Micros::try_from(ran.calls).unwrap_or(0);
            server.busy_until = at + cost;
            break;
        }
        self.replicate(index, at);
        self.send_outputs(index, at);
        let busy_until = self.servers[index].busy_until;
        self.wake_server(index, busy_until);
    }

    /// Sends what a replica lacks.
    fn replicate(&mut self, index: usize, at: Micros) {
        let server = &mut self.servers[index];
        let Some(replica) = &mut server.replica else {
            return;
        };
        if let Some(Due { at, term }) = replica.send(&server.store, server.changes, at) {
            self.at(at, What::Replicated(index, term));
        }
    }

    /// Whether the next command of a connection is a `WAIT` that has no answer yet. The store itself answers at once, with
    /// the number of replicas that it is said to have.
    fn waits(&mut self, index: usize, number: u64, session: SessionId, at: Micros) -> bool {
        let server = &mut self.servers[index];
        let (Some(replica), Some(connection)) =
            (&server.replica, self.connections.get_mut(&number))
        else {
            return false;
        };
        let next = server.store.next_command(session).unwrap_or_default();
        if !next
            .first()
            .is_some_and(|word| word.eq_ignore_ascii_case(b"WAIT"))
        {
            return false;
        }
        let has_all = replica.has(connection.changes);
        let is_new = connection.waits_until.is_none();
        let limit_ms = || {
            std::str::from_utf8(next.get(2)?)
                .ok()?
                .parse::<Micros>()
                .ok()
        };
        let until = *connection
            .waits_until
            .get_or_insert_with(|| at + 1_000 * limit_ms().unwrap_or(0));
        if has_all || until <= at {
            connection.waits_until = None;
            server.store.set_replicas(usize::from(has_all));
            return false;
        }
        server.runnable.pop_front();
        server.waiting.push(number);
        if is_new {
            self.at(until, What::WaitEnds(index));
        }
        true
    }

    /// Those whose `WAIT` waits look again.
    fn looks_at_waits(&mut self, index: usize, at: Micros) {
        let server = &mut self.servers[index];
        let waiting = std::mem::take(&mut server.waiting);
        server.runnable.extend(waiting);
        self.wake_server(index, at);
    }

    /// Puts on the way what a server has to send.
    fn send_outputs(&mut self, index: usize, at: Micros) {
        let ready: Vec<SessionId> = self.servers[index].store.sessions_with_output();
        if ready.is_empty() {
            return;
        }
        for session in ready {
            let output = self.servers[index].store.take_output(session);
            let is_closed = self.servers[index].store.is_closed(session);
            let found = self.connections.iter().find(|(_, connection)| {
                connection.server == index
                    && connection.session == session
                    && connection.end.is_none()
            });
            let Some((number, process)) = found.map(|(number, found)| (*number, found.process))
            else {
                continue;
            };
            let due = self.due_down(number, process, index, at);
            if !output.is_empty() {
                self.at(due, What::Delivered(number, output));
            }
            if is_closed {
                self.at(due, What::Ended(number));
            }
        }
    }

    fn due_down(&mut self, number: u64, process: usize, server: usize, at: Micros) -> Micros {
        let link = self.link_of(process, server);
        let jitter = if link.jitter > 0 {
            self.rng.u64(..link.jitter)
        } else {
            0
        };
        match self.connections.get_mut(&number) {
            Some(connection) => {
                connection.last_down = connection.last_down.max(at + link.down + jitter);
                connection.last_down
            }
            None => at,
        }
    }
}

/// The client's end of a connection.
struct Piped {
    world: World,
    number: u64,
}

impl Drop for Piped {
    fn drop(&mut self) {
        let now = self.world.now();
        let mut state = self.world.state.lock();
        if let Some(connection) = state.connections.get_mut(&self.number) {
            let (process, server) = (connection.process, connection.server);
            let last = connection.last_up;
            let at = last.max(now + state.link_of(process, server).up);
            state.at(at, What::Left(self.number));
        }
        drop(state);
        self.world.changed.notify_one();
    }
}

impl AsyncRead for Piped {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.world.state.lock();
        let Some(connection) = state.connections.get_mut(&self.number) else {
            return Poll::Ready(Ok(()));
        };
        if connection.readable.is_empty() {
            return match connection.end {
                Some(End::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                Some(End::Closed) => Poll::Ready(Ok(())),
                None => {
                    connection.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        }
        let (first, _) = connection.readable.as_slices();
        let count = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..count]);
        connection.readable.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Piped {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let now = self.world.now();
        let mut state = self.world.state.lock();
        let Some(connection) = state.connections.get(&self.number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let (process, server) = (connection.process, connection.server);
        if connection.end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let link = state.link_of(process, server);
        let jitter = if link.jitter > 0 {
            state.rng.u64(..link.jitter)
        } else {
            0
        };
        // Now and then what is written arrives in two pieces.
        let split = bytes.len() > 1 && state.rng.u32(..64) == 0;
        let cut_at = if split {
            state.rng.usize(1..bytes.len())
        } else {
            bytes.len()
        };
        let Some(connection) = state.connections.get_mut(&self.number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if connection.in_flight >= BUFFER {
            connection.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        connection.in_flight += bytes.len();
        let at = connection.last_up.max(now + link.up + jitter);
        let second = at + if split { jitter + 1_000 } else { 0 };
        connection.last_up = second;
        state.at(at, What::Arrives(self.number, bytes[..cut_at].to_vec()));
        if split {
            state.at(second, What::Arrives(self.number, bytes[cut_at..].to_vec()));
        }
        drop(state);
        self.world.changed.notify_one();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
