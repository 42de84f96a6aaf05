//! One client's connection through the proxy: its state, and how it comes to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

use super::carrier::Carrier;
use super::fault::Direction;
use super::pending::Pending;
use super::shared::Shared;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Closed,
    Reset,
    HalfOpen,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) state: Mutex<State>,
    pub(super) client_gone: Notify,
    ending: watch::Sender<Option<Ending>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pending: Pending,
    pub(super) deaf_to_requests: bool,
    pub(super) deaf_to_replies: bool,
    /// The client has closed its side.
    pub(super) is_left: bool,
}

impl State {
    pub(super) fn deafen(&mut self, direction: Direction) {
        self.deaf_to_requests |= direction.includes(Direction::Requests);
        self.deaf_to_replies |= direction.includes(Direction::Replies);
    }
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            client_gone: Notify::new(),
            ending: watch::channel(None).0,
        }
    }

    /// Asks for an end; it comes a moment later.
    pub(super) fn end(&self, ending: Ending) {
        self.ending.send_replace(Some(ending));
    }

    pub(super) async fn run(&self, shared: &Arc<Shared>, mut client: TcpStream) {
        let target = shared.target.load(Ordering::SeqCst);
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
            let _ = client.set_zero_linger();
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let carried = Carrier::carry(self, shared, &mut client, &mut server);
        let ending = tokio::select! {
            ending = carried => ending,
            ending = self.told(|_| true) => ending,
        };
        match ending {
            Ending::Closed => {}
            Ending::Reset => drop(client.set_zero_linger()),
            Ending::HalfOpen => {
                drop(server);
                self.hold_open(client).await;
            }
        }
    }

    async fn hold_open(&self, mut client: TcpStream) {
        let mut nowhere = Vec::new();
        let read_on = async {
            while client.read_buf(&mut nowhere).await.is_ok_and(|n| n > 0) {
                nowhere.clear();
            }
            Ending::Closed
        };
        let ending = tokio::select! {
            ending = read_on => ending,
            ending = self.told(|ending| ending != Ending::HalfOpen) => ending,
        };
        if ending == Ending::Reset {
            let _ = client.set_zero_linger();
        }
    }

    async fn told(&self, counts: impl Fn(Ending) -> bool) -> Ending {
        let mut ending = self.ending.subscribe();
        let told = ending.wait_for(|ending| ending.is_some_and(&counts)).await;
        told.ok()
            .and_then(|ending| *ending)
            .unwrap_or(Ending::Closed)
    }
}
