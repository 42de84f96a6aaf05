//! The plain lock: Redisson's hash, channel and commands.

use crate::config::Config;
use crate::engine::kind::{Commands, Kind};
use crate::error::Error;
use crate::lease::LeaseMs;
use crate::names::Names;
use crate::script::{self, Acquired, Call, Forced, Released, Renewal, Renewed, Reply};

/// The plain lock `name` of a client.
pub(crate) fn kind(config: &Config, name: &str) -> Result<Kind, Error> {
    let names = Names::plain(&config.key_prefix, name, config.max_key_bytes)?;
    Ok(Kind {
        names: names.into(),
        commands: &Plain,
    })
}

/// The plain lock's commands.
struct Plain;

impl Commands for Plain {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn acquire(&self, names: &Names, hold_id: &str, lease: LeaseMs) -> Call {
        script::lock::acquire(names, hold_id, lease)
    }

    fn acquired(&self, reply: &Reply) -> Option<Acquired> {
        script::lock::acquired(reply)
    }

    fn reenter(&self, names: &Names, hold_id: &str, count: u32, lease: LeaseMs) -> Call {
        script::lock::reenter(names, hold_id, count, lease)
    }

    fn verify(&self, names: &Names, hold_id: &str, lease: LeaseMs) -> Call {
        script::lock::verify(names, hold_id, lease)
    }

    fn release(&self, names: &Names, hold_id: &str, left: u32) -> Call {
        script::lock::release(names, hold_id, left)
    }

    fn released(&self, reply: &Reply) -> Option<Released> {
        script::lock::released(reply)
    }

    fn found(&self, reply: &Reply) -> Option<bool> {
        script::lock::found(reply)
    }

    fn renew(&self, holds: &[Renewal<'_>]) -> Call {
        script::lock::renew(holds)
    }

    fn renewed(&self, reply: &Reply) -> Option<Vec<Renewed>> {
        script::lock::renewed(reply)
    }

    fn force(&self, names: &Names, client: &str) -> Call {
        script::lock::force_release(names, client)
    }

    fn forced(&self, reply: &Reply) -> Option<Forced> {
        script::lock::forced(reply)
    }

    fn look(&self, names: &Names) -> Call {
        script::lock::look(names)
    }

    fn looked(&self, reply: &Reply) -> Option<bool> {
        script::lock::looked(reply)
    }
}
