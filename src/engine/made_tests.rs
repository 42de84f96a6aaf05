//! Holds for unit tests.

use std::sync::Arc;

use super::hold::{Hold, Origin};
use super::kind::{Commands, Kind, Says};
use crate::clock::Moment;
use crate::lease::LeaseMs;
use crate::names::{Family, Names};

pub(crate) const LEASE: LeaseMs = LeaseMs::from_millis(30_000);

struct Plain;

impl Commands for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }
}

pub(crate) fn origin(number: u64) -> Origin {
    Origin {
        kind: Kind {
            names: Arc::new(Names::of(&Family::PLAIN, "", "x", 512).unwrap()),
            commands: Says::OfAll(&Plain),
        },
        id: number.to_string().into(),
        number,
        lease: LEASE,
        owner: None,
        entered_by: number,
        task: None,
    }
}

/// One that is tried for.
pub(crate) fn hold(number: u64) -> Arc<Hold> {
    Hold::trying(origin(number), Moment::NEVER)
}
