//! The plain lock: Redisson's hash, channel and commands.

use std::sync::Arc;

use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands};
use crate::error::Error;
use crate::names::{Family, Names};

/// The plain lock `name` of a client.
pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    Ok(Kind {
        names: Arc::new(names(config, name)?),
        commands: KindCommands::OfAll(&Plain),
    })
}

/// What the plain lock `name` is called, and all that are the same lock.
pub(super) fn names(config: &Config, name: &str) -> Result<Names, Error> {
    Names::of(&Family::PLAIN, &config.key_prefix, name)
}

/// Its commands are those that every kind has which does not say otherwise.
struct Plain;

impl Commands for Plain {
    fn passes_on(&self) -> bool {
        true
    }
}
