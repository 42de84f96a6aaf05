//! How long to stay away after a round that met others: nothing is held meanwhile, so that of two who took what the
//! other wanted one comes back first.

use std::time::Duration;

/// No pause is longer, however long a round took.
pub(super) const LONGEST: Duration = Duration::from_millis(250);
const SHORTEST: Duration = Duration::from_millis(1);

/// How often the span of a pause doubles, from the length of a round to sixteen. Longer ones would leave the locks to
/// those who come back first, and who needs many of them would starve.
const DOUBLINGS: u32 = 4;

/// Pauses that grow with each round, drawn at random from all of their span.
pub(super) struct Pauses {
    rounds: u32,
    random: fastrand::Rng,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self::with_seed(fastrand::u64(..))
    }

    fn with_seed(seed: u64) -> Self {
        Self {
            rounds: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The next one, after a round that took so long.
    pub(super) fn after(&mut self, round: Duration) -> Duration {
        let base = round.max(SHORTEST);
        let span = base.saturating_mul(1 << self.rounds).min(LONGEST);
        self.rounds = (self.rounds + 1).min(DOUBLINGS);
        span.mul_f64(self.random.f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn they_grow_with_the_rounds_up_to_their_longest(
            seed: u64, rounds in prop::collection::vec(0u64..10_000, 1..20),
        ) {
            let mut pauses = Pauses::with_seed(seed);
            for (number, round) in rounds.into_iter().map(Duration::from_micros).enumerate() {
                let most = round.max(SHORTEST) * (1 << number.min(4));
                prop_assert!(pauses.after(round) <= most.min(LONGEST));
            }
        }
    }
}
