//! How a connection is made: to an address, to the master that sentinels name, or to a node of a cluster; and what the
//! server at its other end says of itself.

mod address;
mod connection;
mod dial;
mod hello;
mod master_term;
mod node;
mod redirect;
mod sentinel;
mod socket;
#[cfg(feature = "tls")]
mod tls;

pub(crate) use self::address::check_tls;
pub(crate) use self::connection::Connection;
pub(crate) use self::dial::Dialer;
pub(crate) use self::hello::{Hello, Server};
pub(crate) use self::master_term::Turn;
pub(crate) use self::node::Node;
pub(crate) use self::redirect::{Place, Range, Redirect, ranges};
pub(crate) use self::sentinel::Sentinels;
