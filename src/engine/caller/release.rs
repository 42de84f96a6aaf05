//! Giving levels back. The last one ends the hold.
//!
//! 1. The last release is decided under the gate's lock. From then on no renewal is sent, the hold cannot be lost (I8),
//!    and callers that want the name wait at the gate. If the hold is passed on, no release is sent.
//! 2. The caller sends the release. The keeper completes it if the caller does not, and repeats it until it is answered
//!    or the lease is over.
//! 3. The caller waits for at most one command time-out, counted from its call, however many tries that takes.
//! 4. A repeat that finds no hold is a success if an earlier send may have run (I2).
//! 5. If levels are left, their count is written, which others read in Redis; or the downgrade of an exclusive hold to a
//!    shared one. The keeper repeats a write that failed, or that overlapped another one.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, select};

use crate::backend::{CommandResult, Failure, Fleet, Pending};
use crate::clock::Moment;
use crate::engine::core::{Core, Mail, settle_release};
use crate::engine::gate::answers::{GivenBack, SentAs};
use crate::engine::hold::Hold;
use crate::engine::hold::owner::HeldLevel;
use crate::engine::hold::state::{HoldState, Level, Phase};
use crate::error::{Error, LostReason};
use crate::log::log;
use crate::names::Names;
use crate::script::Call;

/// Gives a level back; the last one ends the hold.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
pub(crate) fn give_back<'a>(
    core: &'a Arc<Core>,
    entered: &'a HeldLevel,
) -> impl Future<Output = Result<(), Error>> + Send + use<'a> {
    async move {
        let mut sent = match begin(core, entered) {
            ReleaseStart::Over(result) => return result,
            ReleaseStart::Slow(rest) => return rest.await,
            ReleaseStart::Sent(sent) => sent,
        };
        let deadline = sent.deadline;
        let Some(outcome) = sent.outcome().await else {
            let failure = sent.command.unanswered();
            drop(sent);
            let hold = entered.hold.in_redis();
            return repeated(core, hold, failure, deadline).boxed().await;
        };
        // The caller has the answer, so it settles it; the drop of `sent` must not leave it to the keeper.
        sent.hold = None;
        let hold = entered.hold.in_redis();
        let in_seat = SentAs::Seat(&sent.command);
        let Err(failure) = settle_release(core, hold, &in_seat, outcome) else {
            return hold.outcome();
        };
        drop(sent);
        repeated(core, hold, failure, deadline).boxed().await
    }
}

/// The result of the first step of giving a level back.
enum ReleaseStart<'a> {
    Over(Result<(), Error>),
    Sent(SentRelease<'a>),
    /// Boxed: this is rare, or slow anyway.
    Slow(BoxFuture<'a, Result<(), Error>>),
}

fn begin<'a>(core: &'a Arc<Core>, entered: &'a HeldLevel) -> ReleaseStart<'a> {
    let hold = &entered.hold;
    if let Err(closed) = core.check_open() {
        // If the hold was lost, the caller gets that error: it says more.
        let lost = hold.check(core.now());
        return ReleaseStart::Over(lost.and(Err(closed)));
    }
    let since = core.now();
    let deadline = since + core.config.command_timeout;
    // Outside of a runtime no connection can live, so the keeper sends.
    let fleet = core.backend.callers_fleet().ok();
    let (hold, count) = match part_with(core, entered, fleet.as_ref(), since) {
        GivenBack::Lost(reason) => return ReleaseStart::Over(Err(Error::lost(reason))),
        GivenBack::ReadEnded | GivenBack::PassedOn => return ReleaseStart::Over(Ok(())),
        GivenBack::Sent(command) => {
            return ReleaseStart::Sent(SentRelease {
                core,
                hold: Some(hold.in_redis()),
                command,
                deadline,
            });
        }
        GivenBack::LeftToKeeper => {
            let slow = Failure::slow_reply(core.config.command_timeout);
            return ReleaseStart::Slow(repeated(core, hold.in_redis(), slow, deadline).boxed());
        }
        GivenBack::Downgrade => (hold.in_redis(), None),
        GivenBack::Levels(count) => (hold, Some(count)),
    };
    let Some(fleet) = fleet else {
        leave_to_keeper(core, hold, count);
        return ReleaseStart::Over(Ok(()));
    };
    ReleaseStart::Slow(write(core, hold, count, fleet, deadline).boxed())
}

/// Gives a level back without waiting.
pub(crate) fn drop_level(core: &Core, entered: &HeldLevel) {
    if core.check_open().is_err() {
        return;
    }
    let hold = &entered.hold;
    match part_with(core, entered, None, core.now()) {
        GivenBack::Levels(count) => leave_to_keeper(core, hold, Some(count)),
        GivenBack::Downgrade => leave_to_keeper(core, hold.in_redis(), None),
        _ => {}
    }
}

/// Removes the level. If it is the last one, starts the release on `fleet`, if there is one. The release needs no
/// timer: the schedule has an entry for it.
fn part_with(
    core: &Core,
    entered: &HeldLevel,
    fleet: Option<&Arc<Fleet>>,
    now: Moment,
) -> GivenBack<Pending> {
    let HeldLevel {
        hold, level, owner, ..
    } = entered;
    let send = fleet.map(|fleet| || Pending::start(fleet, hold.kind.release(&hold.id, 0)));
    let given_back = core.at(&hold.kind.names, now, |gate, effects| {
        gate.give_back(hold, *level, send, effects)
    });
    match given_back {
        GivenBack::Sent(_) | GivenBack::LeftToKeeper => {
            core.look_by(hold.in_redis(), now + core.config.command_timeout);
        }
        GivenBack::PassedOn => core.schedule.forget(hold),
        _ => {}
    }
    let is_over = !matches!(given_back, GivenBack::Levels(_) | GivenBack::Lost(_));
    if is_over && hold.shared_hold().is_some() {
        // A read sends no release, so no answer would remove it later. Its lease may end in a year.
        core.schedule.forget(hold);
    }
    if let Some(owner) = owner
        && hold.count() == 0
    {
        owner.remove(hold);
    }
    given_back
}

fn leave_to_keeper(core: &Core, hold: &Arc<Hold>, count: Option<u32>) {
    // A write that is dropped before it was sent is left to the keeper.
    drop(Writing::begun(core, hold, count));
}

/// Writes the number of levels left, or the downgrade. Only others need it, so a failed write is no error for the
/// caller: the keeper writes it later.
async fn write(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    count: Option<u32>,
    fleet: Arc<Fleet>,
    deadline: Moment,
) -> Result<(), Error> {
    let mut writing = Writing::begun(core, hold, count);
    let pending = Pending::start(&fleet, writing.call());
    writing.sent(&pending);
    let answered = pending.until(core.config.command_timeout, deadline);
    // Once the hold is over, nobody needs the count.
    match select(pin!(answered), pin!(hold.over())).await {
        Either::Left((Ok(answer), _)) if answer.reply.found() == Some(false) => {
            core.lose(hold, LostReason::Missing);
        }
        Either::Left((Ok(answer), _)) => {
            writing.acknowledged();
            written(core, hold, count, answer.sent_at);
        }
        Either::Left((Err(failure), _)) => {
            let names = Arc::clone(&hold.kind.names);
            log(move || {
                tracing::debug!(name = names.name(), cause = %failure, "hold count not written");
            });
        }
        Either::Right(_) => {}
    }
    // A hold that was lost during the write is lost. A hold that its other levels ended is not.
    hold.check(core.now())
}

/// A write of the hold count, or of a downgrade, that is under way. If it is dropped before it was acknowledged, the
/// count in Redis is uncertain.
pub(crate) struct Writing<'a> {
    core: &'a Core,
    hold: &'a Arc<Hold>,
    count: Option<u32>,
    acknowledged: bool,
    /// What was sent.
    command: Option<Pending>,
}

impl<'a> Writing<'a> {
    pub(crate) fn begin(core: &'a Core, hold: &'a Arc<Hold>, count: Option<u32>) -> Self {
        hold.with(HoldState::write_begins);
        Self::begun(core, hold, count)
    }

    /// Goes on with a write that has begun.
    pub(crate) fn begun(core: &'a Core, hold: &'a Arc<Hold>, count: Option<u32>) -> Self {
        Self {
            core,
            hold,
            count,
            acknowledged: false,
            command: None,
        }
    }

    pub(crate) fn call(&self) -> Call<'a> {
        let (core, hold, kind) = (self.core, self.hold, &self.hold.kind);
        let Some(count) = self.count else {
            let (_, lease) = core.vouched(hold);
            let call = kind.downgrade(&hold.id, lease);
            return call.unwrap_or_else(|| kind.verify(&hold.id, lease));
        };
        kind.release(&hold.id, count)
    }

    pub(crate) fn sent(&mut self, command: &Pending) {
        self.command = Some(command.clone());
    }

    pub(crate) fn acknowledged(mut self) {
        self.acknowledged = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let (count, acknowledged) = (self.count, self.acknowledged);
        if let Some(command) = self.command.take().filter(|_| !acknowledged) {
            // It may run behind a write that the keeper sends now.
            command.take_back();
            let hold = Arc::clone(self.hold);
            self.core.post(Mail::WriteBehind(hold, count, command));
            return;
        }
        if self
            .hold
            .with(|state| state.write_ends(count, acknowledged))
        {
            let hold = Arc::clone(self.hold);
            self.core.post(Mail::Write(hold, Moment::default()));
        }
    }
}

/// Records that Redis acknowledged a write that was sent at `sent_at`.
pub(crate) fn written(core: &Core, hold: &Arc<Hold>, count: Option<u32>, sent_at: Moment) {
    if count.is_none() {
        core.at(&hold.kind.names, core.now(), |gate, effects| {
            gate.downgraded(hold, sent_at, effects);
        });
    }
}

/// A last release that its caller sent. If the caller goes away before the answer, the keeper completes it.
struct SentRelease<'a> {
    core: &'a Arc<Core>,
    /// `None` once the caller has the answer.
    hold: Option<&'a Arc<Hold>>,
    command: Pending,
    /// When the caller returns without the answer.
    deadline: Moment,
}

impl SentRelease<'_> {
    /// None at the deadline. It has no timer: the keeper wakes it then.
    fn outcome(&mut self) -> impl Future<Output = Option<CommandResult>> {
        poll_fn(|context| match self.command.poll_unpin(context) {
            Poll::Pending if self.core.now() >= self.deadline => {
                // Nobody may have read the reply yet: this process may have stood still.
                let answered = self.command.is_answered();
                let polled = answered.then(|| self.command.poll_unpin(context).map(Some));
                polled.unwrap_or(Poll::Ready(None))
            }
            polled => polled.map(Some),
        })
    }
}

impl Drop for SentRelease<'_> {
    fn drop(&mut self) {
        let Some(hold) = self.hold else {
            return;
        };
        if hold.phase() == Phase::Ending {
            // The command is still in the gate's seat. The keeper awaits it before it sends its own.
            let (core, names) = (self.core, &hold.kind.names);
            core.at(names, core.now(), |_, effects| effects.release(hold));
        }
    }
}

/// Waits for the keeper, which sends or repeats the release. After `deadline` the caller gets `failure` instead, or that
/// the client is closed.
async fn repeated(
    core: &Core,
    hold: &Hold,
    failure: Failure,
    deadline: Moment,
) -> Result<(), Error> {
    let ended = core.backend.timers().until(deadline, hold.ended()).await;
    // The keeper may have sent it since.
    let failed = || Err(Error::from(failure).after_a_send(true));
    ended.unwrap_or_else(|| core.check_open().and_then(|()| failed()))
}

/// Leaves the hold to its lease. Returns false if it has other levels. A read ends with the lease of its own level.
pub(crate) fn let_expire(core: &Core, entered: &HeldLevel) -> bool {
    let HeldLevel {
        hold, level, owner, ..
    } = entered;
    let left = match hold.shared_hold() {
        None => hold.with(|state| state.let_expire(*level)),
        Some(_) if *level != Level::Fixed => false,
        Some(_) => {
            let (number, now) = (core.number(), core.now());
            core.at(&hold.kind.names, now, |gate, effects| {
                gate.leave_behind(hold, number, effects)
            })
        }
    };
    if left {
        core.schedule.forget(hold);
        if let Some(owner) = owner {
            owner.remove(hold);
        }
    }
    if left && !hold.kind.commands.is_shared() {
        let hold = hold.in_redis();
        core.schedule.forget(hold);
        hold.end(Ok(()));
        core.at(&hold.kind.names, core.now(), |gate, _| gate.vacate(hold));
    }
    left
}

impl Core {
    /// Logs, once per client, that Redis denied the wake-up of a release.
    pub(crate) fn warn_wake_up_denied(&self, names: &Arc<Names>) {
        // Relaxed: only one caller has to find false.
        if !self.wake_up_denied.swap(true, Ordering::Relaxed) {
            let names = Arc::clone(names);
            log(move || {
                tracing::warn!(
                    name = names.name(),
                    "the wake-up of a release was denied: waiters notice the release at \
                     their next poll; allow the channel in the ACL"
                );
            });
        }
    }
}
