//! What stands for the metrics without their feature: a type without a size, and functions without a body.

use std::time::Duration;

pub(crate) use self::{
    NoMetrics as CommandTimer, NoMetrics as LockMetrics, NoMetrics as Metrics, NoMetrics as Waits,
};
use crate::clock::{Clock, Moment};
use crate::error::LostReason;

#[derive(Debug, Clone, Default)]
pub(crate) struct NoMetrics(());

#[expect(clippy::unused_self, reason = "what has the feature uses it")]
impl NoMetrics {
    pub(crate) fn start(_: &Clock, _: Option<fn(&str) -> Option<&'static str>>) -> Self {
        Self(())
    }

    pub(crate) fn of_lock(&self, _: &'static str, _: &str) -> Self {
        Self(())
    }

    pub(crate) fn connected<R>(&self, _: &'static str, result: R) -> R {
        result
    }

    pub(crate) fn renewal(&self, _: &'static str) {}

    pub(crate) fn slack(&self, _: Duration, _: Duration) {}

    pub(crate) fn polling(&self, _: f64) {}

    pub(crate) fn unreleased(&self, _: f64) {}

    pub(crate) fn command(&self, _: &'static str) -> Self {
        Self(())
    }

    pub(crate) fn ended(self, _: impl FnOnce() -> &'static str) {}

    pub(crate) fn is_on(&self) -> bool {
        false
    }

    pub(crate) fn acquired(&self, _: &'static str, _: Duration) {}

    pub(crate) fn hold_begins(&self) {}

    pub(crate) fn hold_ends(&self, _: &'static str, _: Moment) {}

    pub(crate) fn lost(&self, _: LostReason) {}

    pub(crate) fn begin(&mut self, _: &Self) {}
}
