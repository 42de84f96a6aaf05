//! What `INFO` counts.

use std::collections::BTreeMap;

use super::Bytes;
use super::failure::Failure;

/// How often a command ran.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Calls {
    pub(super) run: u64,
    /// Refused before it ran.
    pub(super) rejected: u64,
    /// Ran and answered with an error.
    pub(super) failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Statistics {
    commands: BTreeMap<&'static str, Calls>,
    errors: BTreeMap<Bytes, u64>,
    pub(super) connections: u64,
    pub(super) processed: u64,
    pub(super) expired: u64,
}

impl Statistics {
    pub(super) fn ran(&mut self, command: &'static str, failure: Option<&Failure>) {
        let calls = self.commands.entry(command).or_default();
        calls.run += 1;
        calls.failed += u64::from(failure.is_some());
        self.processed += 1;
        if let Some(failure) = failure {
            self.count(failure);
        }
    }

    pub(super) fn rejected(&mut self, command: Option<&'static str>, failure: &Failure) {
        if let Some(command) = command {
            self.commands.entry(command).or_default().rejected += 1;
        }
        self.count(failure);
    }

    fn count(&mut self, failure: &Failure) {
        *self.errors.entry(failure.code().to_vec()).or_default() += 1;
    }

    pub(super) fn commands(&self) -> impl Iterator<Item = (&str, &Calls)> {
        self.commands.iter().map(|(name, calls)| (*name, calls))
    }

    pub(super) fn errors(&self) -> impl Iterator<Item = (&Bytes, u64)> {
        self.errors.iter().map(|(code, count)| (code, *count))
    }
}
