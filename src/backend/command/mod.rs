//! How a command is sent over a lane, what its reply says, and how replicas acknowledge it.

mod acknowledge;
mod in_flight;
mod lane;
mod send;
mod timers;

pub(crate) use self::acknowledge::{Commit, Commits};
pub(crate) use self::lane::{Lane, LaneConfig};
pub(crate) use self::send::{
    Answer, Outcome, Pending, TELLING, Wrong, asking_once, once, round_trip,
};
pub(crate) use self::timers::Timers;
