//! Asking Redis whether a hold is there: one round trip by the caller.
//!
//! The question is a write that changes as little as can be: the lease is lengthened to what this client
//! vouches for. So a server that became a replica, and may know a lock that its master has given to
//! somebody else, cannot answer it.

use std::sync::Arc;

use super::Core;
use super::hold::Hold;
use super::reentry::{missing, prolong};
use crate::backend::{CommandResult, Failure, Pending};
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::LeaseMs;

/// Asks once, and once more if the connection was cut, within a command time-out.
pub(crate) async fn verify(core: &Arc<Core>, hold: &Arc<Hold>) -> Result<(), Error> {
    let hold = hold.in_redis();
    let end = core.now() + core.config.command_timeout;
    let (mut lease, mut outcome) = ask(core, hold, end).await?;
    if matches!(&outcome, Err(failure) if failure.is_of_connection()) && core.now() < end {
        (lease, outcome) = ask(core, hold, end).await?;
    }
    let answer = outcome?;
    match hold.kind.found(&answer.reply) {
        Some(true) => {
            prolong(core, hold, lease.term(answer.sent_at));
            match hold.lost_reason(core.now()) {
                Some(reason) => Err(Error::lost(reason)),
                None => Ok(()),
            }
        }
        Some(false) => Err(missing(core, hold)),
        None => Err(Failure::strange_reply().into()),
    }
}

async fn ask(core: &Core, hold: &Hold, end: Moment) -> Result<(LeaseMs, CommandResult), Error> {
    let fleet = core.backend.callers_fleet()?;
    let now = core.now();
    let (watched, ends) = hold.with(|state| (state.is_watched(), state.lease_ends()));
    let lease = if watched {
        core.config.watchdog_lease
    } else {
        LeaseMs::left(now.until(ends))
    };
    let pending = Pending::start(&fleet, hold.kind.verify(&hold.id, lease));
    Ok((lease, pending.within(now.until(end)).await))
}
