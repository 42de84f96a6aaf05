//! Count-down latches for code without `async`.

use std::time::Duration;

use super::{Blocking, wait, within};
use crate::error::Error;
use crate::lock::CountDownLatch;

impl Blocking<CountDownLatch> {
    /// As [`CountDownLatch::try_set_count`](crate::CountDownLatch::try_set_count).
    pub fn try_set_count(&self, count: u32) -> Result<bool, Error> {
        wait(self.0.try_set_count(count))
    }

    /// As [`CountDownLatch::count_down`](crate::CountDownLatch::count_down).
    pub fn count_down(&self) -> Result<u64, Error> {
        wait(self.0.count_down())
    }

    /// As [`CountDownLatch::count`](crate::CountDownLatch::count).
    pub fn count(&self) -> Result<u64, Error> {
        wait(self.0.count())
    }

    /// As [`CountDownLatch::wait`](crate::CountDownLatch::wait).
    pub fn wait(&self) -> Result<(), Error> {
        wait(self.0.wait())
    }

    /// As [`wait`](Self::wait), for at most `limit`. Returns false if no answer said within it that the latch is open.
    pub fn wait_within(&self, limit: Duration) -> Result<bool, Error> {
        match within(Some(self.0.timers()), limit, self.0.wait()) {
            Some(waited) => waited.map(|()| true),
            None => Ok(false),
        }
    }

    /// As [`CountDownLatch::delete`](crate::CountDownLatch::delete).
    pub fn delete(&self) -> Result<bool, Error> {
        wait(self.0.delete())
    }
}
