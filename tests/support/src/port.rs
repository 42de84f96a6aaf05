//! Ports that stay free for us.

use std::net::{Ipv4Addr, TcpListener};

/// Below the usual range of outgoing connections (from 32768), above the well-known services.
const RANGE: std::ops::Range<u16> = 12_000..32_000;
const DRAWS: usize = 1_000;

/// A port that nobody listens on at this moment.
pub(crate) fn draw() -> u16 {
    listen().local_addr().expect("a bound listener").port()
}

/// A listener on loopback.
pub(crate) fn listen() -> TcpListener {
    (0..DRAWS)
        .find_map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, fastrand::u16(RANGE))).ok())
        .expect("a free port on loopback")
}
