//! Working on a hold that exists: re-entry, downgrade and verification, each in one round trip by the caller.
//!
//! 1. A level counts from before its command is sent until it is refused or given back, so the last release cannot
//!    overtake it.
//! 2. Even if the command runs late, it can only write the count of a hold that still exists, and lengthen its lease.
//! 3. A further level of a reader is one more read of the shared hold.
//! 4. Verification asks by a write that changes as little as possible: it lengthens the lease to what this client
//!    vouches for already. A server that became a replica cannot run a write, so it cannot confirm a lock that its
//!    master may have granted to somebody else.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use scopeguard::{ScopeGuard, guard};

use super::ask::ask_again;
use super::release::{Writing, drop_level, give_back};
use crate::backend::{Failure, Pending};
use crate::backoff::OUTAGE;
use crate::clock::Moment;
use crate::engine::core::{Core, error_of};
use crate::engine::gate::ticket::{GRACE, Patience, Request};
use crate::engine::hold::Hold;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::HeldLevel;
use crate::error::{Error, LostReason};
use crate::lease::Term;
use crate::script::Reply;

/// A new level. It is given back unless it is taken out for its guard: before that, a subscriber or a recorder of the
/// application may panic.
pub(crate) type NewLevel<'a> = ScopeGuard<(&'a Core, HeldLevel), fn((&'a Core, HeldLevel))>;

pub(super) fn new_level(core: &Core, entered: HeldLevel) -> NewLevel<'_> {
    guard((core, entered), |(core, entered)| {
        drop_level(core, &entered);
    })
}

/// Takes the level out, for its guard.
pub(crate) fn taken(level: NewLevel<'_>) -> HeldLevel {
    ScopeGuard::into_inner(level).1
}

/// Adds a level to `hold`, as `request` asks. Returns `None` if the hold's last release is under way: then the caller has
/// to wait at the gate.
pub(crate) async fn enter<'a>(
    core: &'a Arc<Core>,
    hold: &Arc<Hold>,
    request: &Request,
) -> Result<Option<NewLevel<'a>>, Error> {
    core.check_open()?;
    if hold.kind.commands.is_shared() {
        return enter_beside(core, hold, request).await;
    }
    let Some(count) = add_level(core, hold, request).map_err(Error::lost)? else {
        return Ok(None);
    };
    let entered = new_level(core, request.entered(Arc::clone(hold)));
    write(core, hold, request, count).await?;
    Ok(Some(entered))
}

fn add_level(core: &Core, hold: &Arc<Hold>, request: &Request) -> Result<Option<u32>, LostReason> {
    let now = core.now();
    if hold.shared_hold().is_none() {
        return hold.with(|state| state.enter(request.level, now));
    }
    core.at(&hold.kind.names, now, |gate, effects| {
        gate.enter_read(hold, request.level, effects)
    })
}

/// How many levels the holder of `hold` has.
pub(crate) fn levels(core: &Core, hold: &Arc<Hold>) -> u32 {
    if !hold.kind.commands.is_shared() {
        return hold.count();
    }
    let (names, now) = (&hold.kind.names, core.now());
    core.gates.with(names, |gate| gate.levels_of(hold, now))
}

/// Adds a read beside `own`, of the same holder and shared hold, as `request` asks. It sends a command only if the
/// shared hold's acknowledged lease is too short. Returns `None` if the last release is under way.
pub(crate) async fn enter_beside<'a>(
    core: &'a Arc<Core>,
    own: &Arc<Hold>,
    request: &Request,
) -> Result<Option<NewLevel<'a>>, Error> {
    core.check_open()?;
    let (number, now) = (core.number(), core.now());
    let term = request.lease.term(now);
    let read = core.at(&own.kind.names, now, |gate, effects| {
        gate.read_beside(own, request, number, term, effects)
    });
    let Some(read) = read else {
        return own.check(core.now()).map(|()| None);
    };
    let entered = new_level(core, request.entered(Arc::clone(&read)));
    let shared = read.in_redis();
    let promised = shared.with(|state| state.covers(request.level, term, core.watchdog_lease, now));
    if !promised {
        write(core, &read, request, 0).await?;
    }
    Ok(Some(entered))
}

/// Replaces a writer's level with a read. The lock is never free in between.
pub(crate) async fn downgrade<'a>(
    core: &'a Arc<Core>,
    entered: &HeldLevel,
) -> Result<NewLevel<'a>, Error> {
    let read = add_read(core, entered).map(|read| new_level(core, read));
    give_back(core, entered).await?;
    let hold = &entered.hold;
    let lost = || Error::lost(hold.lost_reason(core.now()).unwrap_or(LostReason::Missing));
    read.ok_or_else(lost)
}

/// Adds a read of the hold with the lease of `entered`.
fn add_read(core: &Core, entered: &HeldLevel) -> Option<HeldLevel> {
    let HeldLevel {
        hold, level, owner, ..
    } = entered;
    let (names, now) = (&hold.kind.names, core.now());
    let (valid_until, ends_at) = hold.with(|state| (state.vouched_until(), state.lease_ends()));
    let term = Term {
        sent_at: now,
        valid_until,
        ends_at,
    };
    let commands = hold.kind.commands.downgraded()?;
    let metrics = &core.config.metrics;
    let request = Request {
        kind: Kind {
            metrics: metrics.of_lock(commands.rules().name, names.name()),
            names: Arc::clone(names),
            commands,
        },
        owner: owner.clone(),
        lease: hold.lease,
        level: *level,
        at_most: None,
        patience: Patience::Once,
        since: now,
        turn: None,
        rounds: 0,
        sent: false,
    };
    let number = core.number();
    let read = core.at(names, now, |gate, effects| {
        gate.read_beside(hold, &request, number, term, effects)
    });
    read.map(|read| request.entered(read))
}

/// Writes the hold count and lengthens the lease, as `request` asks. Repeats that while its patience lasts.
pub(crate) async fn write(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    request: &Request,
    count: u32,
) -> Result<(), Error> {
    while_held(core, hold, repeat(core, hold, request, count)).await
}

async fn repeat(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    request: &Request,
    count: u32,
) -> Result<(), Error> {
    let limit = core.config.command_timeout;
    let since = request.since;
    // Without a limit the last try ends by a silence: it may have to wait for its turn.
    let last = request.returns_by(limit) + GRACE;
    // Whether a try that failed was, or may have been, sent.
    let mut sent = false;
    // Since when all tries have failed.
    let mut failing_since = None;
    let mut delays = core.config.backoff.at_most(OUTAGE).delays(hold.number);
    // Redis has no count of the levels of a reader.
    let counted = !hold.kind.commands.is_shared();
    let mut writing = counted.then(|| Writing::begin(core, hold, Some(count)));
    loop {
        let tried = send(core, hold, request, count, last, writing.as_mut()).await;
        let tried = tried.map_err(|error| error.after_a_send(sent))?;
        let Some((failure, counts_from)) = tried else {
            if let Some(writing) = writing {
                writing.acknowledged();
            }
            return Ok(());
        };
        sent |= !failure.was_not_sent();
        let failing_since = *failing_since.get_or_insert(counts_from);
        core.notice_pause(core.now());
        // When no other try begins.
        let ends = match request.patience {
            Patience::Once => since + limit / 2,
            Patience::Until(end) => end.max(since + limit / 2),
            Patience::Forever => {
                failing_since.max(core.runs_since()) + core.config.unavailable_after
            }
        };
        let left = core.now().until(ends);
        if left == Duration::ZERO {
            return Err(Error::from(failure).after_a_send(sent));
        }
        let timers = core.backend.timers();
        timers.sleep(delays.step().min(left)).await;
    }
}

/// Awaits an answer about `hold`, but no longer than the hold lasts: the answer to a lost hold is that it is lost.
pub(crate) async fn while_held<T>(
    core: &Core,
    hold: &Arc<Hold>,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = match select(pin!(asked), pin!(hold.over())).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Error::not_owner()),
    };
    let lost = hold.lost_reason(core.now());
    lost.map_or(answer, |reason| Err(Error::lost(reason)))
}

/// Marks the hold lost because Redis does not have it.
fn missing(core: &Core, hold: &Arc<Hold>) -> Error {
    core.lose(hold, LostReason::Missing);
    Error::lost(LostReason::Missing)
}

/// Tries to re-enter. Returns why it failed, if a repeat may succeed, and from when on that counts.
async fn send(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    request: &Request,
    count: u32,
    last: Moment,
    writing: Option<&mut Writing<'_>>,
) -> Result<Option<(Failure, Moment)>, Error> {
    let fleet = core.backend.callers_fleet()?;
    let (kind, lease, since) = (&request.kind, request.lease, core.now());
    let call = kind.reenter(&hold.id, hold.token(), count, lease);
    hold.in_redis().with(|state| state.asks_for(lease));
    let pending = Pending::start(&fleet, call);
    if let Some(writing) = writing {
        writing.sent(&pending);
    }
    let limit = core.config.command_timeout;
    let answer = match pending.clone().heard_until(since, limit, last).await {
        Err(failure) if failure.is_transient() => {
            return Ok(Some((failure, pending.counts_from(since))));
        }
        outcome => outcome?,
    };
    match answer.reply {
        Reply::Done(_) | Reply::Token(_) => {
            if let Some(token) = answer.reply.token() {
                hold.keep_token(token);
            }
            hold.with(|state| request.limit(state, answer.sent_at));
            prolong(core, hold, lease.term(answer.sent_at));
            Ok(None)
        }
        Reply::Gone => Err(missing(core, hold)),
        refusal => Err(error_of(refusal)),
    }
}

/// Records an acknowledged lease. The keeper may have to look earlier than planned, because the watchdog may keep the
/// hold only from now on.
pub(crate) fn prolong(core: &Core, hold: &Arc<Hold>, term: Term) {
    let now = core.now();
    hold.with(|state| state.prolong(term, now));
    core.look_in_time(hold, now);
    if let Some(shared) = hold.shared_hold() {
        shared.with(|state| state.prolong(term, now));
        core.look_in_time(shared, now);
    }
}

/// Asks Redis whether the hold exists.
pub(crate) async fn verify(core: &Arc<Core>, hold: &Arc<Hold>) -> Result<(), Error> {
    while_held(core, hold, ask_about(core, hold.in_redis())).await
}

async fn ask_about(core: &Arc<Core>, hold: &Arc<Hold>) -> Result<(), Error> {
    let mut renewed = None;
    let answer = ask_again(core, |fleet| {
        let written;
        (renewed, written) = core.vouched(hold);
        Pending::start(fleet, hold.kind.verify(&hold.id, written))
    });
    let answer = answer.await?;
    match answer.reply.found() {
        Some(true) => {
            let now = core.now();
            hold.with(|state| state.found(renewed, answer.sent_at, now));
            core.look_in_time(hold, now);
            Ok(())
        }
        Some(false) => Err(missing(core, hold)),
        None => Err(Failure::strange_reply().into()),
    }
}
