//! Ports that stay free for us, also while a server of ours is down.
//!
//! Test programs run at the same time, so each takes blocks of ports for itself: it listens on the first port of a block for
//! as long as it lives.

use std::net::{Ipv4Addr, TcpListener};

use parking_lot::Mutex;

/// A node of a cluster listens on a second port, higher by this.
pub(crate) const BUS: u16 = 10_000;
/// The lower ports of all blocks; each also has those that are higher by [`BUS`]. All are below the usual range of outgoing
/// connections (from 32768), and above the well-known services.
const LOWER: std::ops::Range<u16> = 12_000..22_000;
/// How many lower ports a block has.
const BLOCK: u16 = 100;
const DRAWS: usize = 1_000;

/// The ports of this program that nobody has drawn yet. A server may not listen yet on the port that was drawn for it.
static OURS: Mutex<Ours> = Mutex::new(Ours {
    blocks: Vec::new(),
    pairs: Vec::new(),
    singles: Vec::new(),
});

struct Ours {
    blocks: Vec<TcpListener>,
    /// The lower ports of those that can be drawn for a node.
    pairs: Vec<u16>,
    /// The bus ports of lower ones that were drawn for something else.
    singles: Vec<u16>,
}

impl Ours {
    fn pair(&mut self) -> u16 {
        if self.pairs.is_empty() {
            self.take_block();
        }
        self.pairs.pop().expect("a block has ports")
    }

    fn single(&mut self) -> u16 {
        self.singles.pop().unwrap_or_else(|| {
            let lower = self.pair();
            self.singles.push(lower + BUS);
            lower
        })
    }

    fn take_block(&mut self) {
        let (first, guard) = (0..DRAWS)
            .map(|_| fastrand::u16(LOWER) / BLOCK * BLOCK)
            .find_map(|first| Some((first, bind(first)?)))
            .expect("a free block of ports on loopback");
        self.blocks.push(guard);
        self.pairs.extend(first + 1..first + BLOCK);
    }
}

fn bind(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}

/// A port that nobody listens on at this moment.
pub(crate) fn draw() -> u16 {
    listen().local_addr().expect("a bound listener").port()
}

/// A port that nobody listens on at this moment, neither on itself nor on the bus port of a cluster node.
pub(crate) fn draw_for_node() -> u16 {
    (0..DRAWS)
        .map(|_| OURS.lock().pair())
        .find(|port| bind(*port).is_some() && bind(port + BUS).is_some())
        .expect("two free ports on loopback")
}

/// A listener on loopback.
pub(crate) fn listen() -> TcpListener {
    (0..DRAWS)
        .find_map(|_| bind(OURS.lock().single()))
        .expect("a free port on loopback")
}
