//! How long to pause after a round that met others. Nothing is held during the pause, so of two callers that blocked each
//! other one gets everything.

use std::time::Duration;

/// The longest pause, however long a round took.
pub(in crate::lock) const LONGEST: Duration = Duration::from_millis(250);
const SHORTEST: Duration = Duration::from_millis(1);

/// How often the limit of a pause doubles: from one round to sixteen. With longer pauses a caller that needs many locks
/// would starve beside those that need few.
const DOUBLINGS: u32 = 4;

/// Random pauses, whose limit grows with each round.
pub(in crate::lock) struct Pauses {
    rounds: u32,
    random: fastrand::Rng,
}

impl Pauses {
    pub(in crate::lock) fn new() -> Self {
        Self::with_seed(fastrand::u64(..))
    }

    fn with_seed(seed: u64) -> Self {
        Self {
            rounds: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Whether the pauses grow no more: competing callers have got out of each other's way by then.
    pub(in crate::lock) fn are_over(&self) -> bool {
        self.rounds == DOUBLINGS
    }

    /// The next pause, after a round that took this long.
    pub(in crate::lock) fn after(&mut self, round: Duration) -> Duration {
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
