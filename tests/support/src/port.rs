//! Ports that stay free for us.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};

use parking_lot::Mutex;

/// Below the usual range of outgoing connections (from 32768), above the well-known services.
const RANGE: std::ops::Range<u16> = 12_000..32_000;
/// A node of a cluster listens on a second port, higher by this.
pub(crate) const BUS: u16 = 10_000;
const NODES: std::ops::Range<u16> = 12_000..22_000;
const DRAWS: usize = 1_000;

/// All ports drawn so far. A server may not listen yet on the port that was drawn for it.
static DRAWN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

fn is_new(port: u16) -> bool {
    DRAWN.lock().get_or_insert_default().insert(port)
}

/// A port that nobody listens on at this moment.
pub(crate) fn draw() -> u16 {
    listen().local_addr().expect("a bound listener").port()
}

/// A port that nobody listens on at this moment, neither on itself nor on the bus port of a cluster node.
pub(crate) fn draw_for_node() -> u16 {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    (0..DRAWS)
        .map(|_| fastrand::u16(NODES))
        .find(|port| free(*port) && free(port + BUS) && is_new(*port))
        .expect("two free ports on loopback")
}

/// A listener on loopback.
pub(crate) fn listen() -> TcpListener {
    (0..DRAWS)
        .map(|_| fastrand::u16(RANGE))
        .filter(|port| is_new(*port))
        .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        .expect("a free port on loopback")
}
