//! What a failed command means, and when to try again.

pub(crate) mod application;
mod cause;
mod class;
mod pace;

pub(crate) use self::cause::Failure;
pub(crate) use self::class::{Class, is_unknown_command};
pub(crate) use self::pace::AttemptPace;
