//! The plain lock: Redisson's hash, channel and commands.

use std::sync::Arc;

use crate::config::Config;
use crate::engine::kind::{Commands, Kind};
use crate::error::Error;
use crate::names::{Family, Names};

/// The plain lock `name` of a client.
pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    let names = Names::of(
        &Family::PLAIN,
        &config.key_prefix,
        name,
        config.max_key_bytes,
    )?;
    Ok(Kind {
        names: Arc::new(names),
        commands: Arc::new(Plain),
    })
}

/// Its commands are those that every kind has which does not say otherwise.
struct Plain;

impl Commands for Plain {
    fn name(&self) -> &'static str {
        "lock"
    }
}
