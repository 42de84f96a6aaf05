//! How a command is sent over a lane, what its reply means, and how replicas acknowledge it.

mod acknowledge;
mod lane;
mod pending;
mod send;
mod window;

pub(crate) use self::acknowledge::{AckCommand, AckLanes};
pub(crate) use self::lane::{BrokenLinks, Connected, Lane, LaneConfig, MIN_SILENCE};
pub(crate) use self::pending::{Pending, TimedCommand};
pub(crate) use self::send::{
    CommandResult, FailedSend, TimedReply, all_once, connected, once, round_trip,
};
