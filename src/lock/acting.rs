//! Acting on one lock: what the verbs of every handle come down to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::ready;
use tracing::Instrument;

use super::guard::LockGuard;
use super::object::{LockInfo, Ttl};
use super::scope;
use crate::backend::{Failure, Fleet, Pending};
use crate::config::Config;
use crate::engine::caller::acquire::{AcquireOutcome, acquire, request};
use crate::engine::caller::{enter, release};
use crate::engine::core::Core;
use crate::engine::hold::kind::Kind;
use crate::engine::hold::owner::{FoundHold, HeldLevel, OwnerState};
use crate::engine::hold::state::HoldState;
use crate::engine::keep_alive::Engine;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::script::{Call, Forced, Reply};

/// One lock of a client: a handle without its type.
#[derive(Clone)]
pub(super) struct LockOfClient {
    engine: Arc<Engine>,
    kind: Result<Kind, Arc<UnusableLock>>,
    owner: Option<Arc<OwnerState>>,
}

impl LockOfClient {
    /// The lock `name`, as `kind` makes it, for this owner.
    pub(super) fn new(
        engine: &Arc<Engine>,
        name: &str,
        owner: Option<&Arc<OwnerState>>,
        kind: impl FnOnce(&Config, &str) -> Result<Kind, Error>,
    ) -> Self {
        let core = &engine.core;
        let kind = kind(&core.config, name).map(|kind| Kind {
            names: core.gates.known(kind.names),
            ..kind
        });
        Self {
            engine: Arc::clone(engine),
            kind: kind.map_err(|error| {
                let name = name.into();
                Arc::new(UnusableLock { name, error })
            }),
            owner: owner.cloned(),
        }
    }

    /// A lock that acts for nobody.
    pub(super) fn ownerless(engine: &Arc<Engine>, kind: &Kind) -> Self {
        Self {
            engine: Arc::clone(engine),
            kind: Ok(kind.clone()),
            owner: None,
        }
    }

    /// Fails if the name or a setting cannot be used.
    fn kind(&self) -> Result<&Kind, Error> {
        self.kind.as_ref().map_err(|bad| bad.error.clone())
    }

    pub(super) fn name(&self) -> &str {
        match &self.kind {
            Ok(kind) => kind.names().name(),
            Err(bad) => &bad.name,
        }
    }

    pub(super) fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// Acts for the lock's owner, or the owner of the scope that this is called in, or nobody.
    pub(super) fn acting(&self) -> Acting<'_> {
        let ambient = || scope::current(self.engine.core.client_id);
        Acting {
            handle: self,
            owner: self.owner.clone().or_else(ambient),
        }
    }

    /// Acts for nobody.
    pub(super) fn acting_for_nobody(&self) -> Acting<'_> {
        Acting {
            handle: self,
            owner: None,
        }
    }

    pub(super) fn info(&self) -> LockInfo {
        let core = &self.engine.core;
        let Ok(kind) = &self.kind else {
            return LockInfo::default();
        };
        LockInfo {
            has_queue: kind.has_queue(),
            command_timeout: core.config.command_timeout,
            ..LockInfo::of(core.client_id, kind.names())
        }
    }
}

/// A lock whose every use fails.
struct UnusableLock {
    name: Box<str>,
    error: Error,
}

/// A lock and the owner to act for.
pub(super) struct Acting<'a> {
    handle: &'a LockOfClient,
    owner: Option<Arc<OwnerState>>,
}

impl<'a> Acting<'a> {
    pub(super) fn acquire(
        self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + use<'a> {
        let Self { handle, owner } = self;
        let core = &handle.engine.core;
        let request = handle
            .kind()
            .and_then(|kind| request(core, kind.clone(), owner, lease, wait));
        let acquiring = match request {
            Ok(request) => {
                let span = tracing::debug_span!("acquire", name = handle.name());
                acquire(core, request).instrument(span).left_future()
            }
            Err(error) => ready(Err(error)).right_future(),
        };
        acquiring.map(|got| match got {
            Ok(AcquireOutcome::In(entered)) => {
                Ok(Some(LockGuard::new(Arc::clone(&handle.engine), entered)))
            }
            Ok(AcquireOutcome::Busy(_)) => Ok(None),
            Err(error) => Err(error.about(handle.name())),
        })
    }

    /// Waits without a limit, so the lock cannot be busy at the end.
    pub(super) fn acquire_forever(
        self,
        lease: Lease,
    ) -> impl Future<Output = Result<LockGuard, Error>> + Send + use<'a> {
        self.acquire(None, lease)
            .map(|got| got?.ok_or(Error::Closed))
    }

    fn core(&self) -> &'a Arc<Core> {
        &self.handle.engine.core
    }

    pub(super) async fn unlock(self) -> Result<(), Error> {
        let (core, handle) = (self.core(), self.handle);
        let given_back = match self.detached() {
            Ok(entered) => release::give_back(core, &entered).await,
            Err(error) => Err(error),
        };
        given_back.map_err(|error| error.about(handle.name()))
    }

    /// Takes the newest detached level from the owner.
    fn detached(&self) -> Result<HeldLevel, Error> {
        let kind = self.handle.kind()?;
        let owner = self.owner.as_ref().ok_or_else(Error::not_owner)?;
        let level = owner.take_detached(kind.names(), kind.commands.is_shared());
        level.ok_or_else(Error::not_owner)
    }

    pub(super) fn hold_count(self) -> u32 {
        let (Ok(kind), Some(owner)) = (self.handle.kind(), &self.owner) else {
            return 0;
        };
        let shared = kind.commands.is_shared();
        match owner.find(kind.names(), shared, self.core().now()) {
            FoundHold::Live(hold) => enter::levels(self.core(), &hold),
            FoundHold::Nothing | FoundHold::Lost(_) => 0,
        }
    }

    pub(super) async fn locked(self) -> Result<bool, Error> {
        let kind = self.kind()?;
        let reply = self.look_up(kind.commands.look(kind.names())).await?;
        let locked = kind.commands.looked(&reply);
        locked.ok_or_else(|| self.strange_reply())
    }

    pub(super) async fn remain_time_to_live(self) -> Result<Ttl, Error> {
        let kind = self.kind()?;
        let reply = self.look_up(Call::plain("PTTL").lock(kind.names())).await?;
        match reply.integer() {
            Some(-2) => Ok(Ttl::Free),
            Some(-1) => Ok(Ttl::NoExpiry),
            Some(ms) => Ok(Ttl::Left(Duration::from_millis(
                u64::try_from(ms).unwrap_or_default(),
            ))),
            None => Err(self.strange_reply()),
        }
    }

    fn kind(&self) -> Result<&'a Kind, Error> {
        let kind = self.handle.kind();
        kind.map_err(|error| error.about(self.handle.name()))
    }

    async fn look_up(&self, question: Call<'_>) -> Result<Reply, Error> {
        let answered = look_up(self.core(), question).await;
        answered.map_err(|error| error.about(self.handle.name()))
    }

    fn strange_reply(&self) -> Error {
        Error::from(Failure::strange_reply()).about(self.handle.name())
    }

    pub(super) async fn force_unlock(self) -> Result<bool, Error> {
        let forced = self.force().await;
        forced.map_err(|error| error.about(self.handle.name()))
    }

    async fn force(&self) -> Result<bool, Error> {
        let core = self.core();
        let kind = self.handle.kind()?;
        let names = kind.names();
        let fleet = open_fleet(core)?;
        // The command is sent only once, as the answer to a repeat does not show what the first one did. So a round trip
        // first checks that the connection works, which any answer shows.
        let probe = kind.commands.look(names);
        if let Err(silence @ Error::Unavailable { .. }) = look_up(self.core(), probe).await {
            return Err(silence);
        }
        let call = kind.commands.force(names, core.client_text());
        let pending = Pending::start(&fleet, call.clone());
        let answer = pending.within(core.config.command_timeout).await?;
        match kind.commands.forced(&answer.reply) {
            Some(Forced::Free) => Ok(false),
            Some(Forced::WrongType) => Err(Error::wrong_type()),
            Some(Forced::Ended { own, heard }) => {
                if !heard {
                    core.warn_wake_up_denied(names.name());
                }
                let hit = own.and_then(|number| {
                    let id = core.hold_id(number);
                    core.gates.with(names, |gate| gate.hold(&id).cloned())
                });
                // An attempt whose answer is on the way is repeated instead.
                if let Some(hold) = hit.filter(|hold| !hold.with(HoldState::undo)) {
                    core.lose(&hold, LostReason::Forced);
                }
                Ok(true)
            }
            None => Err(Failure::strange_reply().into()),
        }
    }
}

/// Sends a command that changes nothing, again if the connection was cut.
async fn look_up(core: &Core, call: Call<'_>) -> Result<Reply, Error> {
    let fleet = open_fleet(core)?;
    let end = core.now() + core.config.command_timeout;
    let pending = Pending::start(&fleet, call.clone());
    let mut outcome = pending.within(core.now().until(end)).await;
    if matches!(&outcome, Err(failure) if failure.is_of_connection()) && core.now() < end {
        // The runtime of the connection may have ended, or this may be polled on another one by now.
        let fleet = open_fleet(core)?;
        let pending = Pending::start(&fleet, call);
        outcome = pending.within(core.now().until(end)).await;
    }
    Ok(outcome?.reply)
}

fn open_fleet(core: &Core) -> Result<Arc<Fleet>, Error> {
    core.check_open()?;
    core.backend.callers_fleet()
}
