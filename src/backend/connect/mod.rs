//! How a connection is made, to an address, to the master that sentinels name, or to a cluster node; and what the server
//! reports about itself.

mod address;
mod cluster_node;
mod connection;
mod dial;
mod hello;
mod redirect;
mod sentinel;
mod socket;
#[cfg(feature = "tls")]
mod tls;

pub(crate) use self::address::Endpoint;
#[cfg(not(feature = "tls"))]
pub(crate) use self::address::check_tls;
pub(crate) use self::cluster_node::ClusterNode;
pub(crate) use self::connection::Connection;
pub(crate) use self::dial::{Dialer, MasterTerm};
pub(crate) use self::hello::{Hello, ServerInfo};
pub(crate) use self::redirect::{Range, Redirect, slots_of};
pub(crate) use self::sentinel::Sentinels;
#[cfg(feature = "tls")]
pub(crate) use self::tls::check_tls;
