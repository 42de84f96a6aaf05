//! Single commands that a caller sends and awaits itself: questions, and changes that no hold is about.

use std::sync::Arc;

use crate::backend::{Failure, Fleet, Pending, TimedReply};
use crate::engine::core::Core;
use crate::error::Error;
use crate::script::{Call, Reply};

/// Sends a command that may be repeated. Repeats it once if the connection was cut.
pub(crate) async fn ask(core: &Core, call: Call<'_>) -> Result<Reply, Error> {
    Ok(asked(core, call).await?.reply)
}

/// The same, with all that was answered.
pub(crate) async fn asked(core: &Core, call: Call<'_>) -> Result<TimedReply, Error> {
    ask_again(core, |fleet| Pending::start(fleet, call.clone())).await
}

/// Sends a command that must not run twice. Repeats it once if the connection was cut and it certainly did not run.
pub(crate) async fn tell(core: &Core, call: Call<'_>) -> Result<Reply, Error> {
    let did_not_run = |failure: &Failure| failure.is_of_connection() && !failure.is_unanswered();
    let start = |fleet: &Arc<Fleet>| Pending::start(fleet, call.clone());
    Ok(sent_again(core, did_not_run, start).await?.reply)
}

/// The same, over a connection that `question` has just checked: otherwise a connection that was cut while it was quiet
/// would make the command fail. Any answer shows that the connection works.
pub(crate) async fn tell_behind(
    core: &Core,
    question: Call<'_>,
    call: Call<'_>,
) -> Result<Reply, Error> {
    if let Err(silence @ Error::Unavailable { .. }) = ask(core, question).await {
        return Err(silence);
    }
    tell(core, call).await
}

/// What a command that may be repeated came to. `start` starts it, and starts it once more if the connection was cut, all
/// within one command time-out.
pub(crate) async fn ask_again(
    core: &Core,
    start: impl FnMut(&Arc<Fleet>) -> Pending,
) -> Result<TimedReply, Error> {
    sent_again(core, Failure::is_of_connection, start).await
}

/// `may_repeat`: whether to start it once more after this failure.
async fn sent_again(
    core: &Core,
    may_repeat: impl Fn(&Failure) -> bool,
    mut start: impl FnMut(&Arc<Fleet>) -> Pending,
) -> Result<TimedReply, Error> {
    let limit = core.config.command_timeout;
    let end = core.now() + limit;
    let pending = start(&open_fleet(core)?);
    let mut outcome = pending.until(limit, end).await;
    let mut was_sent = false;
    if let Err(failure) = &outcome
        && may_repeat(failure)
        && core.now() < end
    {
        was_sent = !failure.was_not_sent();
        // The runtime of the connection may have ended, or this task may run on another one by now.
        outcome = match open_fleet(core) {
            Ok(fleet) => start(&fleet).until(limit, end).await,
            Err(_) if was_sent => outcome,
            Err(error) => return Err(error),
        };
    }
    outcome.map_err(|failure| Error::from(failure).after_a_send(was_sent))
}

pub(crate) fn open_fleet(core: &Core) -> Result<Arc<Fleet>, Error> {
    core.check_open()?;
    core.backend.callers_fleet()
}
