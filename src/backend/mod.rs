//! How commands reach Redis: connections, lanes for commands, and the way to a cluster's nodes.
//!
//! Each room uses only those above it in this list:
//!
//! - [`timers`]: the timers of all time-outs and pauses;
//! - [`failure`]: what a failed command means, and when to try again;
//! - [`connect`]: how a connection is made, and which server is at its other end;
//! - [`command`]: how a command is sent over a lane, and what its reply says;
//! - [`cluster`]: which lane a command takes: by runtime, and by node of a cluster.
//!
//! Commands of callers go over a lane of the caller's own runtime, those of the keeper over a lane of the keeper's
//! thread. So neither waits for the other, and a blocked runtime delays only itself.

mod cluster;
mod command;
mod connect;
mod failure;
mod timers;

pub(crate) use self::cluster::{Backend, Cluster, Fleet, NodeAddress};
pub(crate) use self::command::{
    BrokenLinks, CommandResult, Connected, Lane, LaneConfig, MIN_SILENCE, Pending, TimedReply,
    connected, round_trip,
};
pub(crate) use self::connect::{
    Connection, Dialer, Hello, Redirect, Sentinels, check_tls, slots_of,
};
pub(crate) use self::failure::{AttemptPace, Class, Failure, is_unknown_command};
pub(crate) use self::timers::Timers;
