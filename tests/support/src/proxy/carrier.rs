//! Carries frames between the two sides of a link.
//!
//! Four futures of one task: each side is read frame by frame into a queue, each queue is written when its frames are
//! due; so a delay holds up what is behind it and nothing else, and many requests are under way at once. Requests
//! leave a mark in `pending`, which the replies consume in order: a fault that concerns a reply finds it there.
//!
//! A client that closes does not take its requests along: they are still delivered, as a kernel would, also to a
//! server that is frozen. A server that closes is passed on to the client, unless the replies go into a black hole.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::fault::{Command, Direction, Fault};
use super::link::{Ending, Link};
use super::pending::{Incoming, Then};
use super::resp::{frame_len, parts};
use super::shared::Shared;

enum Parcel {
    Frame {
        due: Instant,
        bytes: Vec<u8>,
    },
    /// Comes after the frames before it, so that a fault of one command leaves those before it alone.
    Last(Ending),
}

pub(super) struct Carrier<'a> {
    link: &'a Link,
    shared: &'a Arc<Shared>,
    requests: UnboundedSender<Parcel>,
    replies: UnboundedSender<Parcel>,
}

impl<'a> Carrier<'a> {
    pub(super) async fn carry(
        link: &'a Link,
        shared: &'a Arc<Shared>,
        client: &mut TcpStream,
        server: &mut TcpStream,
    ) -> Ending {
        let (from_client, to_client) = client.split();
        let (from_server, mut to_server) = server.split();
        let (requests, requests_out) = unbounded_channel();
        let (replies, replies_out) = unbounded_channel();
        let carrier = Self {
            link,
            shared,
            requests,
            replies,
        };
        let requests_done = async {
            match deliver(shared, Direction::Requests, requests_out, &mut to_server).await {
                Ending::Closed => drop(to_server.shutdown().await),
                fault => return fault,
            }
            pending().await
        };
        tokio::select! {
            ending = carrier.read_requests(from_client) => ending,
            ending = carrier.read_replies(from_server) => ending,
            ending = requests_done => ending,
            ending = deliver(shared, Direction::Replies, replies_out, to_client) => ending,
        }
    }

    async fn read_requests(&self, from: impl AsyncRead + Unpin) -> Ending {
        if let Some(fault) = read_frames(
            from,
            |_| self.shared.count_read(),
            |frame| self.request(frame),
        )
        .await
        {
            return last(&self.requests, fault).await;
        }
        self.link.state.lock().is_left = true;
        self.link.client_gone.notify_one();
        last(&self.requests, Ending::Closed).await
    }

    async fn read_replies(&self, from: impl AsyncRead + Unpin) -> Ending {
        if let Some(fault) = read_frames(from, |_| (), |frame| self.reply(frame)).await {
            return last(&self.replies, fault).await;
        }
        if self.link.state.lock().deaf_to_replies {
            self.link.client_gone.notified().await;
            return Ending::Closed;
        }
        last(&self.replies, Ending::Closed).await
    }

    fn request(&self, frame: &[u8]) -> Option<Ending> {
        if self.link.state.lock().deaf_to_requests {
            return None;
        }
        let command = Command {
            args: parts(frame),
            message: false,
        };
        let fault = self.shared.rules.lock().decide(&command);
        let forward = |wait, then| self.forward(&command, frame, wait, then);
        match fault {
            None => forward(Duration::ZERO, Then::Pass),
            Some(Fault::SwallowRequest) => self.link.state.lock().deaf_to_requests = true,
            Some(Fault::SwallowReply) => forward(Duration::ZERO, Then::Swallow),
            Some(Fault::ResetBefore) => return Some(Ending::Reset),
            Some(Fault::ResetAfter) => forward(Duration::ZERO, Then::Reset),
            Some(Fault::DelayRequest(wait)) => forward(wait, Then::Pass),
            Some(Fault::DelayReply(wait)) => forward(Duration::ZERO, Then::Delay(wait)),
            Some(Fault::HalfOpen) => return Some(Ending::HalfOpen),
            Some(Fault::BlackHole(direction)) => {
                self.link.state.lock().deafen(direction);
                if !direction.includes(Direction::Requests) {
                    forward(Duration::ZERO, Then::Pass);
                }
            }
            Some(Fault::Answer(error)) => {
                let answer = format!("-{error}\r\n").into_bytes();
                self.link.state.lock().pending.inject(answer);
                self.answer_injected();
            }
        }
        None
    }

    fn forward(&self, command: &Command, frame: &[u8], wait: Duration, then: Then) {
        self.link.state.lock().pending.expect(command, then);
        send(&self.requests, self.due(wait), frame);
    }

    fn reply(&self, frame: &[u8]) -> Option<Ending> {
        let incoming = {
            let mut state = self.link.state.lock();
            if state.deaf_to_replies {
                return None;
            }
            state.pending.arrived(frame)
        };
        match incoming {
            Incoming::Reply(Then::Pass) => send(&self.replies, self.due(Duration::ZERO), frame),
            Incoming::Reply(Then::Delay(wait)) => send(&self.replies, self.due(wait), frame),
            Incoming::Reply(Then::Swallow) => self.link.state.lock().deaf_to_replies = true,
            Incoming::Reply(Then::Reset) => return Some(Ending::Reset),
            Incoming::Message(message) => return self.message(&message, frame),
        }
        self.answer_injected();
        None
    }

    fn message(&self, message: &Command, frame: &[u8]) -> Option<Ending> {
        let wait = match self.shared.rules.lock().decide(message) {
            None | Some(Fault::Answer(_)) => Duration::ZERO,
            Some(Fault::DelayRequest(wait) | Fault::DelayReply(wait)) => wait,
            Some(Fault::SwallowRequest | Fault::SwallowReply) => return None,
            Some(Fault::ResetBefore | Fault::ResetAfter) => return Some(Ending::Reset),
            Some(Fault::HalfOpen) => return Some(Ending::HalfOpen),
            Some(Fault::BlackHole(direction)) => {
                self.link.state.lock().deafen(direction);
                return None;
            }
        };
        send(&self.replies, self.due(wait), frame);
        None
    }

    fn answer_injected(&self) {
        let mut state = self.link.state.lock();
        while let Some(answer) = state.pending.next_injected() {
            send(&self.replies, self.due(Duration::ZERO), &answer);
        }
    }

    fn due(&self, wait: Duration) -> Instant {
        Instant::now() + self.shared.one_way() + wait
    }
}

/// The end comes when the queue has come to it.
async fn last(queue: &UnboundedSender<Parcel>, ending: Ending) -> Ending {
    let _ = queue.send(Parcel::Last(ending));
    pending().await
}

fn send(queue: &UnboundedSender<Parcel>, due: Instant, frame: &[u8]) {
    let bytes = frame.to_vec();
    let _ = queue.send(Parcel::Frame { due, bytes });
}

/// Hands each frame over until one of them ends the link (`Some`) or the stream ends (`None`).
async fn read_frames(
    mut from: impl AsyncRead + Unpin,
    has_read: impl Fn(usize),
    mut hand_over: impl FnMut(&[u8]) -> Option<Ending>,
) -> Option<Ending> {
    let mut bytes = Vec::with_capacity(16 * 1024);
    while let Ok(read @ 1..) = from.read_buf(&mut bytes).await {
        has_read(read);
        let mut done = 0;
        while let Some(len) = frame_len(&bytes[done..]) {
            let ending = hand_over(&bytes[done..done + len]);
            if ending.is_some() {
                return ending;
            }
            done += len;
        }
        bytes.drain(..done);
    }
    None
}

/// Writes what is due, together with what is due as well; ends with the queue. What cannot be written is dropped.
async fn deliver(
    shared: &Shared,
    direction: Direction,
    mut queue: UnboundedReceiver<Parcel>,
    mut to: impl AsyncWrite + Unpin,
) -> Ending {
    let mut waiting = VecDeque::new();
    while let Some(parcel) = next(&mut waiting, &mut queue).await {
        let (due, mut bytes) = match parcel {
            Parcel::Frame { due, bytes } => (due, bytes),
            Parcel::Last(ending) => return ending,
        };
        shared.alarm.until(due).await;
        shared.passable(direction).await;
        while let Ok(parcel) = queue.try_recv() {
            waiting.push_back(parcel);
        }
        append_due(&mut bytes, &mut waiting);
        let _ = to.write_all(&bytes).await;
    }
    Ending::Closed
}

fn append_due(bytes: &mut Vec<u8>, waiting: &mut VecDeque<Parcel>) {
    let now = Instant::now();
    while let Some(Parcel::Frame { due, bytes: more }) = waiting.front() {
        if *due > now {
            return;
        }
        bytes.extend_from_slice(more);
        waiting.pop_front();
    }
}

async fn next(
    waiting: &mut VecDeque<Parcel>,
    queue: &mut UnboundedReceiver<Parcel>,
) -> Option<Parcel> {
    match waiting.pop_front() {
        Some(parcel) => Some(parcel),
        None => queue.recv().await,
    }
}
