//! Single commands that a caller sends and awaits itself: questions, and changes that no hold is about.

use std::sync::Arc;

use crate::backend::{Fleet, Pending, TimedReply};
use crate::engine::core::Core;
use crate::error::Error;
use crate::script::{Call, Reply};

/// Sends a command that may be repeated. Repeats it once if the connection was cut.
pub(super) async fn ask(core: &Core, call: Call<'_>) -> Result<Reply, Error> {
    Ok(asked(core, call).await?.reply)
}

/// Sends a command that must not be repeated.
pub(super) async fn tell(core: &Core, call: Call<'_>) -> Result<Reply, Error> {
    let pending = Pending::start(&open_fleet(core)?, call);
    Ok(pending.within(core.config.command_timeout).await?.reply)
}

/// What a command that may be repeated came to. It is started once more if the connection was cut.
pub(super) async fn asked(core: &Core, call: Call<'_>) -> Result<TimedReply, Error> {
    let limit = core.config.command_timeout;
    let end = core.now() + limit;
    let pending = Pending::start(&open_fleet(core)?, call.clone());
    let mut outcome = pending.until(limit, end).await;
    let mut was_sent = false;
    if let Err(failure) = &outcome
        && failure.is_of_connection()
        && core.now() < end
    {
        was_sent = !failure.was_not_sent();
        // The runtime of the connection may have ended, or this task may run on another one by now.
        let again = open_fleet(core).map(|fleet| Pending::start(&fleet, call));
        outcome = match again {
            Ok(pending) => pending.until(limit, end).await,
            Err(_) if was_sent => outcome,
            Err(error) => return Err(error),
        };
    }
    outcome.map_err(|failure| {
        let error = Error::from(failure);
        if was_sent {
            error.after_a_send()
        } else {
            error
        }
    })
}

pub(super) fn open_fleet(core: &Core) -> Result<Arc<Fleet>, Error> {
    core.check_open()?;
    core.backend.callers_fleet()
}
