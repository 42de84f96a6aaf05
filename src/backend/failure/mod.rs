//! What a failed command means, when to try again, and which connections broke.

pub(crate) mod application;
mod broken_links;
mod cause;
mod class;
mod pace;

pub(crate) use self::broken_links::BrokenLinks;
pub(crate) use self::cause::Failure;
pub(crate) use self::class::{Class, is_unknown_command};
pub(crate) use self::pace::AttemptPace;
