//! Greets a server: can we use it, and do pool and address lead to the same database?

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::backend::{
    Class, Failure, Fleet, Hello, Lane, LaneConfig, Pending, is_unknown_command, round_trip,
    slots_of,
};
use crate::engine::core::{Core, Mail};
use crate::error::{ConfigError, Error};
use crate::host::uuid;
use crate::lease::LeaseMs;
use crate::log::log;
use crate::names::{Family, Names};
use crate::script::Reply;
use crate::script::call::{ACQUIRE, PROBE, RELEASE};

/// Since then no setting makes Redis refuse writes behind `TIME` in scripts.
const REPLICATES_EFFECTS: (u64, u64) = (7, 0);

/// The longest pause before a server is greeted again.
const GREET_AGAIN: Duration = Duration::from_secs(5);

/// How many different reasons are logged while it cannot be used.
const REASONS: usize = 16;

const PROBE_LEASE: LeaseMs = LeaseMs::from_millis(5_000);

/// Greets the server over the lane home, within the time of one attempt to connect. In a cluster that lane rests afterwards.
pub(super) async fn greet(core: &Core, fleet: &Fleet) -> Result<(), Error> {
    let config = &core.backend.config;
    let limit = config.dialer.limit(config.connect_timeout);
    let introducing = Box::pin(introduce(core, fleet.home()));
    let timers = core.backend.timers();
    let introduced = timers.within_run_time(limit, introducing).await;
    introduced.unwrap_or_else(|| Err(Failure::slow_connect(config.connect_timeout).into()))?;
    fleet.settle();
    if core.config.label.is_some() {
        core.post(Mail::ShowLabel);
    }
    Ok(())
}

/// Greets the server until it can be used, for a client that does not wait for it: a password may be corrected, a right
/// granted, a replica promoted. Runs as a task of the keeper.
pub(super) async fn greet_later(core: Arc<Core>) {
    let backoff = core.config.backoff.at_most(GREET_AGAIN);
    let mut delays = backoff.delays(fastrand::u64(..));
    let mut logged = BTreeSet::new();
    while core.check_open().is_ok() {
        let Err(error) = greet(&core, &core.backend.keepers).await else {
            return core.set_unfit(None);
        };
        // A server that cannot be reached now may come back as what it was.
        if matches!(error, Error::Config(_)) {
            core.set_unfit(Some(error.clone()));
        }
        if !error.is_transient() && logged.len() < REASONS && logged.insert(chain(&error)) {
            log(move || {
                let cause = std::error::Error::source(&error);
                tracing::error!(
                    %error,
                    cause,
                    "the server cannot be used for locks: connect would have refused it; trying again"
                );
            });
        }
        core.backend.timers().sleep(delays.step()).await;
        // Another address, or another server behind the same one, may be fit by now.
        core.backend.keepers.home().rest();
        // Replaces the connection if it is broken or silent: perhaps no other command would notice.
        let knock = Pending::knock(core.backend.keepers.home());
        let _ = knock.within(core.config.command_timeout).await;
    }
}

/// The texts of an error and its sources.
fn chain(error: &Error) -> Vec<String> {
    let first: &dyn std::error::Error = error;
    let texts = std::iter::successors(Some(first), |error| error.source());
    texts.map(ToString::to_string).collect()
}

async fn introduce(core: &Core, lane: &Lane) -> Result<(), Error> {
    let config = &core.backend.config;
    let mut connection = match lane.connect().await {
        Ok(connected) => connected.connection,
        Err(failure) => return Err(why(config, failure).await),
    };
    let hello = Hello::of(&mut connection).await?;
    check_server(core, &hello)?;
    if core.config.acks.is_some() {
        check_wait(&mut connection, &hello).await?;
    }
    if hello.is_in_cluster() {
        look_for_gaps(core, &mut connection, false).await?;
        return join(core, &mut connection).await;
    }
    if config.dialer.has_pool() {
        let limit = config.connect_timeout;
        let connecting = config.dialer.connect_by_address(&config.timers, limit);
        let mut other = connecting.await?;
        check_same(core, &mut connection, &mut other).await?;
    }
    if config.asks_server {
        // A server that joins a quorum later gets no command before it is known to be none of the others.
        return Ok(());
    }
    let asks_for_writes = hello.is_older_than(REPLICATES_EFFECTS);
    look_for_gaps(core, &mut connection, asks_for_writes).await
}

/// Notes which commands the server does not know, as some managed services, and warns of what does not work without them.
/// What an ACL denies may be allowed later, and is reported by the call that is denied.
async fn look_for_gaps(
    core: &Core,
    connection: &mut MultiplexedConnection,
    asks_for_writes: bool,
) -> Result<(), Error> {
    let names = probe_names(core, uuid())?;
    let mut probe = redis::cmd("EVAL");
    probe.arg(PROBE.text);
    if asks_for_writes {
        probe.arg(1).arg(names.key());
    } else {
        probe.arg(0);
    }
    let said = connection
        .send_packed_command(probe.arg(names.channel()))
        .await;
    let reply = match said.and_then(Value::extract_error) {
        Ok(said) => Reply::from_value(&said),
        Err(error) if is_unknown_command(&error) => {
            core.lacks("EVAL");
            log(|| tracing::warn!("the server does not know EVAL: no lock works there"));
            return Ok(());
        }
        // The next call meets whatever it is.
        Err(_) => return Ok(()),
    };
    let Reply::Done(lacks) = reply else {
        return Ok(());
    };
    let [time, write, publish] = [1, 2, 4].map(|bit| lacks & bit == 0);
    if !write {
        core.lacks("PEXPIRE");
        log(|| {
            tracing::warn!(
                "the server refuses writes behind TIME or PTTL in scripts (lua-replicate-commands no): no lock works there"
            );
        });
    } else if !time {
        core.lacks("TIME");
        log(|| {
            tracing::warn!(
                "the server does not know TIME: only plain, spin and simple locks work there"
            );
        });
    }
    if !publish {
        log(|| tracing::warn!("the server does not know PUBLISH: waiters of other clients poll"));
    }
    Ok(())
}

/// The names of a lock that nobody uses.
fn probe_names(core: &Core, id: uuid::Uuid) -> Result<Names, Error> {
    let name = format!("watchlock:probe:{id}");
    Names::of_any_length(&Family::PLAIN, &core.config.key_prefix, &name)
}

/// Why there is no connection: the denial of the server, if there is one.
async fn why(config: &LaneConfig, failure: Failure) -> Error {
    let (dialer, timers) = (&config.dialer, &config.timers);
    let limit = config.connect_timeout;
    if failure.class != Class::Unreached {
        return failure.into();
    }
    match dialer.refusal(timers, limit).await {
        Some(refusal) if matches!(refusal.class, Class::Denied | Class::UnknownService) => {
            refusal.into()
        }
        // A server without TLS would wait for the rest of the question.
        _ if failure.is_of_socket() && dialer.lacks_tls(timers, limit).await => {
            unsupported("it expects TLS: its address begins with rediss://")
        }
        _ => failure.into(),
    }
}

/// There is a cluster: from now on commands go to its nodes.
async fn join(core: &Core, connection: &mut MultiplexedConnection) -> Result<(), Error> {
    let dialer = &core.backend.config.dialer;
    if dialer.has_pool() {
        return Err(unsupported(
            "it is in cluster mode, and a pool leads to one server",
        ));
    }
    let slots = slots_of(connection, dialer.host()).await?;
    core.backend.cluster.join(slots);
    Ok(())
}

fn check_server(core: &Core, hello: &Hello) -> Result<(), Error> {
    let config = &core.backend.config;
    let problem = match hello.is_in_cluster() {
        true if !config.asks_server => None,
        false if config.dialer.for_cluster => Some("it is not in cluster mode"),
        _ => hello.problem_alone(),
    };
    problem.map_or(Ok(()), |problem| Err(unsupported(problem)))
}

/// Fails if the server has no `WAIT`, as with some managed services. Does not wait.
async fn check_wait(connection: &mut MultiplexedConnection, hello: &Hello) -> Result<(), Error> {
    let mut wait = redis::cmd("WAIT");
    wait.arg(0).arg(0);
    let waited = connection.send_packed_command(&wait).await;
    match waited.and_then(Value::extract_error) {
        Ok(_) => Ok(()),
        Err(error) if is_unknown_command(&error) => Err(unsupported(
            "it does not know WAIT, which acknowledged_by needs",
        )),
        Err(error) => match Failure::from(error) {
            // The address may lead to a replica of a cluster, which rejects WAIT because only masters execute it.
            failure if hello.is_replica() && failure.class == Class::Rejected => Ok(()),
            failure => Err(failure.into()),
        },
    }
}

fn unsupported(reason: &'static str) -> Error {
    ConfigError::Unsupported { reason }.into()
}

/// Takes a lock over the pool, and fails if it is not found over the address.
async fn check_same(
    core: &Core,
    by_pool: &mut MultiplexedConnection,
    by_address: &mut MultiplexedConnection,
) -> Result<(), Error> {
    let id = uuid();
    let names = probe_names(core, id)?;
    let hold_id = format!("{id}:0");
    let take = ACQUIRE.on(&names).arg(&*hold_id).arg(PROBE_LEASE);
    let release = RELEASE.on(&names).arg(&*hold_id).arg(0_u32).wakes(&names);
    let found = match round_trip(by_pool, &take).await {
        Ok(_) => round_trip(by_address, &release).await,
        Err(failure) => Err(failure),
    };
    match found {
        Ok(Reply::Gone) => {
            // Best effort: the lease ends it anyway.
            let _ = round_trip(by_pool, &release).await;
            Err(ConfigError::PoolMismatch.into())
        }
        Ok(_) => Ok(()),
        Err(failure) if failure.class == Class::Denied => {
            log(|| {
                tracing::warn!(
                    "the ACL denies the probe that pool and address lead to one database"
                );
            });
            Ok(())
        }
        Err(failure) => Err(failure.into()),
    }
}
