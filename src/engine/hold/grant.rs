//! What Redis granted, and for how long.

use std::time::Duration;

use crate::clock::Moment;
use crate::fencing::FencingToken;
use crate::lease::{LeaseMs, Term};

/// What was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// Just before the command was sent.
    pub(crate) sent_at: Moment,
    /// For how long, if not for what was asked.
    pub(crate) lease: Option<LeaseMs>,
    /// How long the server had been up, if it was asked.
    pub(crate) server_age: Option<Duration>,
    /// The hold's, if the kind has any.
    pub(crate) token: Option<FencingToken>,
    /// Others who share it need not ask.
    pub(crate) open: bool,
}

impl Grant {
    /// What it is worth to one who `asked` for a lease.
    pub(crate) fn term(&self, asked: LeaseMs) -> Term {
        self.lease.unwrap_or(asked).term(self.sent_at)
    }
}
