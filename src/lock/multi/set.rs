//! The locks of a multi-lock, checked when it is made.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::error::SetError;
use crate::lock::object::{Lock, LockInfo};
use crate::lock::several::MOST;

/// Used when no lock reports the command time-out of its client.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);

/// Locks that are taken together.
pub struct Set {
    /// Their names, joined.
    pub(super) name: Arc<str>,
    pub(super) locks: Box<[Arc<dyn Lock>]>,
    pub(super) info: LockInfo,
    /// The place of the lock to wait for first.
    pub(super) first: usize,
}

impl Set {
    pub(super) fn of(locks: Vec<Arc<dyn Lock>>) -> Result<Self, SetError> {
        let given = locks.len();
        if !(2..=MOST).contains(&given) {
            return Err(SetError::Number { given });
        }
        let infos: Vec<_> = locks.iter().map(Lock::info).collect();
        each_once(&infos)?;
        let queue = only_queue(&locks, &infos)?;
        let names: Vec<_> = locks.iter().map(Lock::name).collect();
        // Sets that begin with the same lock queue there, instead of blocking each other half-way.
        let least = (0..given).min_by_key(|at| names[*at]);
        Ok(Self {
            name: names.join(", ").into(),
            first: queue.or(least).unwrap_or_default(),
            info: joined(infos),
            locks: locks.into(),
        })
    }

    /// The longest command time-out of the locks' clients.
    pub(super) fn command_timeout(&self) -> Duration {
        match self.info.command_timeout {
            Duration::ZERO => COMMAND_TIMEOUT,
            timeout => timeout,
        }
    }
}

fn each_once(infos: &[LockInfo]) -> Result<(), SetError> {
    let mut seen = HashSet::new();
    let mut all = infos.iter().flat_map(|info| &info.locks);
    match all.find(|(client, names)| !seen.insert((client, names.key()))) {
        Some((_, names)) => Err(SetError::Twice {
            lock: names.name().into(),
        }),
        None => Ok(()),
    }
}

/// The place of the lock with a queue, if there is one.
fn only_queue(locks: &[Arc<dyn Lock>], infos: &[LockInfo]) -> Result<Option<usize>, SetError> {
    let mut queues = (0..infos.len()).filter(|at| infos[*at].has_queue);
    let first = queues.next();
    match (first, queues.next()) {
        (Some(first), Some(second)) => Err(SetError::Queues {
            first: locks[first].name().into(),
            second: locks[second].name().into(),
        }),
        _ => Ok(first),
    }
}

fn joined(infos: Vec<LockInfo>) -> LockInfo {
    let mut joined = LockInfo::default();
    for info in infos {
        joined.locks.extend(info.locks);
        joined.has_queue |= info.has_queue;
        joined.command_timeout = joined.command_timeout.max(info.command_timeout);
    }
    joined
}
