//! One lock of a client: the verbs of every kind of handle.

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
use crate::engine::keeper::Engine;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::script::{Call, Forced, Reply};

/// One lock of a client: a handle without its type.
#[derive(Clone)]
pub(super) struct LockOfClient {
    engine: Arc<Engine>,
    /// Or its name, and why it cannot be used.
    kind: Result<Kind, Arc<(Box<str>, Error)>>,
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
            kind: kind.map_err(|error| Arc::new((name.into(), error))),
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
        self.kind.as_ref().map_err(|unusable| unusable.1.clone())
    }

    pub(super) fn name(&self) -> &str {
        match &self.kind {
            Ok(kind) => kind.names().name(),
            Err(unusable) => &unusable.0,
        }
    }

    pub(super) fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// The owner to act for: its own, or that of the scope that this is called in.
    fn acts_for(&self) -> Option<Arc<OwnerState>> {
        let ambient = || scope::current(self.engine.core.client_id);
        self.owner.clone().or_else(ambient)
    }

    fn about(&self, error: Error) -> Error {
        error.about(self.name())
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

    /// Without `wait` it waits without a limit.
    pub(super) fn acquire(
        &self,
        wait: Option<Duration>,
        lease: Lease,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send {
        let core = &self.engine.core;
        let request = self
            .kind()
            .and_then(|kind| request(core, kind.clone(), self.acts_for(), lease, wait));
        let acquiring = match request {
            Ok(request) => {
                let span = tracing::debug_span!("acquire", name = self.name());
                acquire(core, request).instrument(span).left_future()
            }
            Err(error) => ready(Err(error)).right_future(),
        };
        acquiring.map(|got| match got {
            Ok(AcquireOutcome::In(entered)) => {
                Ok(Some(LockGuard::new(Arc::clone(&self.engine), entered)))
            }
            Ok(AcquireOutcome::Busy(_)) => Ok(None),
            Err(error) => Err(self.about(error)),
        })
    }

    pub(super) async fn unlock(&self) -> Result<(), Error> {
        let given_back = match self.take_detached() {
            Ok(entered) => release::give_back(&self.engine.core, &entered).await,
            Err(error) => Err(error),
        };
        given_back.map_err(|error| self.about(error))
    }

    /// Takes the newest detached level from the owner.
    fn take_detached(&self) -> Result<HeldLevel, Error> {
        let kind = self.kind()?;
        let owner = self.acts_for().ok_or_else(Error::not_owner)?;
        let level = owner.take_detached(kind.names(), kind.commands.is_shared());
        level.ok_or_else(Error::not_owner)
    }

    pub(super) fn hold_count(&self) -> u32 {
        let (Ok(kind), Some(owner)) = (self.kind(), self.acts_for()) else {
            return 0;
        };
        let core = &self.engine.core;
        match owner.find(kind.names(), kind.commands.is_shared(), core.now()) {
            FoundHold::Live(hold) => enter::levels(core, &hold),
            FoundHold::Nothing | FoundHold::Lost(_) => 0,
        }
    }

    pub(super) async fn is_locked(&self) -> Result<bool, Error> {
        let locked = async {
            let kind = self.kind()?;
            let reply = look_up(&self.engine.core, kind.commands.look(kind.names())).await?;
            let locked = kind.commands.looked(&reply);
            locked.ok_or_else(|| Failure::strange_reply().into())
        };
        locked.await.map_err(|error| self.about(error))
    }

    pub(super) async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        let ttl = async {
            let call = Call::plain("PTTL").lock(self.kind()?.names());
            let reply = look_up(&self.engine.core, call).await?;
            match reply.integer() {
                Some(-2) => Ok(Ttl::Free),
                Some(-1) => Ok(Ttl::NoExpiry),
                Some(ms) => Ok(Ttl::Left(Duration::from_millis(
                    u64::try_from(ms).unwrap_or_default(),
                ))),
                None => Err(Failure::strange_reply().into()),
            }
        };
        ttl.await.map_err(|error| self.about(error))
    }

    pub(super) async fn force_unlock(&self) -> Result<bool, Error> {
        self.force().await.map_err(|error| self.about(error))
    }

    async fn force(&self) -> Result<bool, Error> {
        let core = &self.engine.core;
        let kind = self.kind()?;
        let names = kind.names();
        let fleet = open_fleet(core)?;
        // A repeat could not report what the first command did, so it is sent once, over a connection that a round trip
        // has just checked. Any answer shows that the connection works.
        let probe = kind.commands.look(names);
        if let Err(silence @ Error::Unavailable { .. }) = look_up(core, probe).await {
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
                // An acquire that still waits for its answer is repeated instead.
                if let Some(hold) = hit.filter(|hold| !hold.with(HoldState::undo)) {
                    core.lose(&hold, LostReason::Forced);
                }
                Ok(true)
            }
            None => Err(Failure::strange_reply().into()),
        }
    }
}

/// Sends a command that changes nothing. Repeats it once if the connection was cut.
async fn look_up(core: &Core, call: Call<'_>) -> Result<Reply, Error> {
    let fleet = open_fleet(core)?;
    let end = core.now() + core.config.command_timeout;
    let pending = Pending::start(&fleet, call.clone());
    let mut outcome = pending.within(core.now().until(end)).await;
    if matches!(&outcome, Err(failure) if failure.is_of_connection()) && core.now() < end {
        // The runtime of the connection may have ended, or this task may run on another one by now.
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
