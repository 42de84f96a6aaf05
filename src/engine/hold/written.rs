//! What Redis was told of a hold count: whether the last write was acknowledged, as far as anybody can know.
//!
//! Levels come and go at the same time, and their writes travel over several connections. Only a write that was
//! alone, was acknowledged, and wrote the present count makes Redis' count the present one.

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Written {
    in_flight: u32,
    /// Writes overlapped, so nobody knows which was executed last.
    overlapped: bool,
    /// The count in Redis may be another.
    stale: bool,
    /// The keeper writes it.
    claimed: bool,
    /// A write was never acknowledged, and may be executed whenever the server gets to it.
    doubtful: bool,
}

impl Written {
    pub(crate) fn begins(&mut self) {
        self.overlapped |= self.in_flight > 0;
        self.in_flight += 1;
        self.stale = true;
    }

    /// A write is over; `good` when it was `acknowledged` and wrote the present count.
    pub(crate) fn ends(&mut self, acknowledged: bool, good: bool) {
        self.doubtful |= !acknowledged;
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 {
            let overlapped = std::mem::take(&mut self.overlapped);
            self.stale = overlapped || !good;
        }
    }

    /// Whether Redis has the present count, and no write can change it any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_flight == 0 && !self.stale && !self.doubtful
    }

    /// Whether the keeper has to write it: true for the first who asks.
    pub(crate) fn claim(&mut self) -> bool {
        let needed = self.in_flight == 0 && self.stale;
        needed && !std::mem::replace(&mut self.claimed, true)
    }

    /// Whether the keeper has to go on, for a hold that is `held`.
    pub(crate) fn goes_on(&mut self, held: bool) -> bool {
        self.claimed = held && self.stale;
        self.claimed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_still_be_written_is_not_settled() {
        let mut written = Written::default();
        assert!(written.is_settled());
        written.begins();
        assert!(!written.is_settled(), "under way");
        written.ends(true, false);
        assert!(!written.is_settled(), "another count is there");
        written.begins();
        written.ends(true, true);
        assert!(written.is_settled());
        for acknowledged in [false, true] {
            written.begins();
            written.ends(acknowledged, acknowledged);
            assert!(!written.is_settled(), "the first may run whenever it likes");
        }
    }

    #[test]
    fn a_write_that_was_alone_and_acknowledged_is_enough() {
        let mut written = Written::default();
        written.begins();
        written.ends(true, true);
        assert!(!written.claim());
    }

    #[test]
    fn the_keeper_writes_what_failed_and_what_overlapped_once() {
        for good in [true, false] {
            let mut written = Written::default();
            written.begins();
            if good {
                written.begins();
                written.ends(true, true);
                assert!(!written.claim(), "another one is in flight");
            }
            written.ends(good, good);
            assert!(written.claim());
            assert!(!written.claim(), "one writer is enough");
            assert!(written.goes_on(true));
            written.begins();
            written.ends(true, true);
            assert!(!written.goes_on(true));
        }
    }

    #[test]
    fn nobody_writes_for_a_hold_that_is_over() {
        let mut written = Written::default();
        written.begins();
        written.ends(false, false);
        assert!(written.claim());
        assert!(!written.goes_on(false));
    }
}
