//! Whose turn it is, when several clients wait for one name.
//!
//! A release wakes one waiter of every client that listens, and whoever is quickest gets in; inside a client
//! it is first come first served. So a client that had its turn leaves the lock to the others for a moment until they had
//! theirs, as far as it can know: a release tells how many listened to it, and every release of theirs is
//! heard. Nobody is made to wait for a client that does not want the lock: leaving it costs a moment, and
//! when nobody takes it, it is not done again for a while.

use std::time::Duration;

/// How long a client that had its turn leaves the lock to others.
pub(crate) const WAY: Duration = Duration::from_millis(1);

/// After nobody took the turn that was offered: so many releases are not offered.
const OFFENDED: u32 = 16;

pub(crate) struct Turns {
    /// How many other clients listened to our last release.
    others: u32,
    /// How many releases of others were heard since.
    since: u32,
    /// How many of our releases are not to be offered.
    offended: u32,
}

impl Turns {
    /// A client that had no turn yet.
    pub(crate) fn new() -> Self {
        Self {
            others: 0,
            since: u32::MAX,
            offended: 0,
        }
    }

    /// We released, and so many others heard it.
    pub(crate) fn released(&mut self, others: u32) {
        self.others = others;
        self.since = 0;
        self.offended = self.offended.saturating_sub(1);
    }

    /// Others released.
    pub(crate) fn heard(&mut self, releases: u32) {
        self.since = self.since.saturating_add(releases);
        self.offended = 0;
    }

    /// Nobody took the lock while we left it to others.
    pub(crate) fn in_vain(&mut self) {
        self.offended = OFFENDED;
    }

    /// Whether the lock is to be left to others for a moment.
    pub(crate) fn leaves_it_to_others(&self) -> bool {
        self.since < self.others && self.offended == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn after_our_turn_it_is_the_others() {
        let mut turns = Turns::new();
        assert!(!turns.leaves_it_to_others(), "there was no turn yet");
        turns.released(0);
        assert!(!turns.leaves_it_to_others(), "nobody else listens");
        turns.released(2);
        assert!(turns.leaves_it_to_others());
        turns.heard(1);
        assert!(turns.leaves_it_to_others(), "one of two had it");
        turns.heard(1);
        assert!(!turns.leaves_it_to_others());
    }

    #[test]
    fn nobody_waits_for_those_who_do_not_come() {
        let mut turns = Turns::new();
        turns.released(1);
        assert!(turns.leaves_it_to_others());
        turns.in_vain();
        for _ in 1..OFFENDED {
            turns.released(1);
            assert!(!turns.leaves_it_to_others());
        }
        turns.released(1);
        assert!(
            turns.leaves_it_to_others(),
            "it is tried again now and then"
        );
        turns.in_vain();
        turns.released(1);
        turns.heard(1);
        turns.released(1);
        assert!(turns.leaves_it_to_others(), "the other one is back");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        /// The next turn goes to one who does not leave it to others, or to anybody when all do.
        #[test]
        fn everybody_has_a_turn_in_every_round(clients in 2_usize..8, picks: [u8; 64]) {
            let mut all: Vec<_> = (0..clients).map(|_| Turns::new()).collect();
            let mut last = vec![0; clients];
            for (turn, pick) in picks.into_iter().enumerate() {
                let mut able: Vec<_> = (0..clients).filter(|&c| !all[c].leaves_it_to_others()).collect();
                if able.is_empty() {
                    able = (0..clients).collect();
                }
                let next = able[usize::from(pick) % able.len()];
                for (client, turns) in all.iter_mut().enumerate() {
                    if client == next {
                        turns.released(u32::try_from(clients - 1).unwrap());
                    } else {
                        turns.heard(1);
                    }
                }
                last[next] = turn;
                let longest = last.iter().map(|last| turn - last).max().unwrap();
                prop_assert!(longest < 2 * clients, "{last:?}");
            }
        }
    }
}
