//! What the proxy's thread, its links and the test share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::alarm::Alarm;
use super::fault::Direction;
use super::link::{Ending, Link};
use super::rules::Rules;

/// What clients sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    /// How many bytes their commands had.
    pub bytes: u64,
    /// How many reads that took: one for what a client writes at once, up to 16 KiB.
    pub reads: u64,
}

/// What holds for all links at once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Modes {
    pub(super) round_trip: Duration,
    pub(super) held: Option<Direction>,
    pub(super) black_hole: Option<Direction>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) target: AtomicU16,
    pub(super) rules: Mutex<Rules>,
    pub(super) modes: watch::Sender<Modes>,
    pub(super) alarm: Alarm,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    accepted: AtomicU64,
    reads: AtomicU64,
}

impl Shared {
    pub(super) fn new(target: u16) -> Self {
        Self {
            target: AtomicU16::new(target),
            rules: Mutex::default(),
            modes: watch::channel(Modes::default()).0,
            alarm: Alarm::start(),
            links: Mutex::default(),
            accepted: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }

    pub(super) async fn serve(self: Arc<Self>, client: TcpStream) {
        let number = self.accepted.fetch_add(1, Ordering::SeqCst);
        let link = Arc::new(Link::new());
        self.links.lock().insert(number, Arc::clone(&link));
        // Looked at after the link is known: a black hole that begins now reaches it one way or the other.
        let black_hole = self.modes.borrow().black_hole;
        if let Some(direction) = black_hole {
            link.state.lock().deafen(direction);
        }
        link.run(&self, client).await;
        self.links.lock().remove(&number);
    }

    /// Something was read from a client.
    pub(super) fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            bytes: self.rules.lock().bytes,
            reads: self.reads.load(Ordering::SeqCst),
        }
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// The links whose client is there, oldest first.
    pub(super) fn open_links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock();
        let open = links.values().filter(|link| !link.state.lock().is_left);
        open.cloned().collect()
    }

    /// Ends the chosen ones of the open links and counts each as a fault.
    pub(super) fn end(&self, kind: &'static str, ending: Ending, links: &[Arc<Link>]) -> usize {
        for link in links {
            link.end(ending);
            self.rules.lock().count_fault(kind);
        }
        links.len()
    }

    pub(super) fn one_way(&self) -> Duration {
        self.modes.borrow().round_trip / 2
    }

    /// Waits until frames may pass in this direction.
    pub(super) async fn passable(&self, direction: Direction) {
        let is_held = |modes: &Modes| modes.held.is_some_and(|held| held.includes(direction));
        if is_held(&self.modes.borrow()) {
            let mut modes = self.modes.subscribe();
            let _ = modes.wait_for(|modes| !is_held(modes)).await;
        }
    }
}
