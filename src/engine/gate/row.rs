//! For how long a client keeps a name to itself, from one hold to the next, without the lock being free for others.
//!
//! 1. A row begins with a hold that anybody could have got, and goes on while holds are passed on or handed over.
//! 2. Once it has lasted for [`LONGEST`], the next release is sent alone, and when that is answered the lock is left
//!    free for [`FREE`]: those who poll without a subscription are counted by nobody, and must get in, too.

use std::time::Duration;

use crate::clock::Moment;

/// For how long a lock goes from one to the next of a client.
pub(crate) const LONGEST: Duration = Duration::from_millis(10);

/// For how long it is left free then.
pub(crate) const FREE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Row {
    since: Option<Moment>,
    /// The release that ends it is sent, and the lock was not left free yet.
    over: bool,
    free_until: Moment,
}

impl Row {
    /// A hold was got that anybody could have got.
    pub(super) fn begin(&mut self, now: Moment) {
        self.since = Some(now);
        self.over = false;
    }

    /// Whether the next one here may have the lock before others can.
    pub(super) fn lasts(&self, now: Moment) -> bool {
        self.since.is_some_and(|since| since.until(now) < LONGEST)
    }

    /// The release is sent that ends it.
    pub(super) fn end(&mut self) {
        self.over = true;
    }

    /// A release was answered: the lock is free.
    pub(super) fn freed(&mut self, now: Moment) {
        if std::mem::take(&mut self.over) {
            self.free_until = now + FREE;
        }
    }

    /// Whether the lock is left to others at the moment.
    pub(super) fn is_left(&self, now: Moment) -> bool {
        self.over || now < self.free_until
    }

    /// The lock is free: until when it is left to others, if it is.
    pub(super) fn leave(&mut self, now: Moment) -> Option<Moment> {
        // It may be free by its lease, without an answer.
        self.freed(now);
        Some(self.free_until).filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(1_000 + ms)
    }

    #[test]
    fn a_row_lasts_for_ten_milliseconds_and_no_longer() {
        let mut row = Row::default();
        assert!(!row.lasts(at(0)), "nothing was got");
        row.begin(at(0));
        assert!(row.lasts(at(9)));
        assert!(!row.lasts(at(10)));
    }

    #[test]
    fn a_lock_that_is_free_without_an_answer_is_left_free_as_well() {
        let mut row = Row::default();
        row.begin(at(0));
        row.end();
        assert_eq!(row.leave(at(30_000)), Some(at(30_001)));
        assert_eq!(row.leave(at(30_001)), None);
    }

    #[test]
    fn behind_a_row_the_lock_is_left_free_for_a_millisecond_once() {
        let mut row = Row::default();
        row.begin(at(0));
        assert_eq!(row.leave(at(5)), None, "no row has ended");
        row.end();
        assert!(row.is_left(at(12)), "until the release is answered, too");
        row.freed(at(13));
        assert_eq!(row.leave(at(13)), Some(at(14)));
        assert!(row.is_left(at(13)));
        assert_eq!(row.leave(at(14)), None);
        assert!(!row.is_left(at(14)));
        row.begin(at(14));
        assert!(row.lasts(at(23)), "a new row");
    }
}
