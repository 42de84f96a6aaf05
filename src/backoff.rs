//! Backoff as data: an iterator of durations, without timers or I/O.

use std::time::Duration;

use crate::error::ConfigError;

/// The longest pause between tries while the server does not answer: others wait for the lock.
pub(crate) const OUTAGE: Duration = Duration::from_millis(200);

/// How long to wait between tries: exponential, capped, jittered.
///
/// The n-th delay is random in the upper half of `min(cap, base * factor^n)` ("equal jitter"), so that many waiters spread
/// out. Waiters are woken by messages; a missed message costs one delay at most.
///
/// Defaults: base 20 ms, factor 2, cap 1 s, jitter on.
///
/// ```
/// use std::time::Duration;
/// use watchlock::Backoff;
/// let backoff = Backoff::new().base(Duration::from_millis(5)).cap(Duration::from_millis(250));
/// # let _ = watchlock::Client::builder("redis://127.0.0.1/").backoff(backoff);
/// ```
#[doc(alias = "BackOff")]
#[doc(alias = "ExponentialBackOff")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    base: Duration,
    factor: f64,
    cap: Duration,
    jitter: bool,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(20),
            factor: 2.0,
            cap: Duration::from_secs(1),
            jitter: true,
        }
    }
}

impl Backoff {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The first delay: 1 ms up to the cap. Default 20 ms.
    #[must_use]
    pub fn base(self, base: Duration) -> Self {
        Self { base, ..self }
    }

    /// How much longer each delay is than the one before: 1 to 10. Default 2.
    #[must_use]
    pub fn factor(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// The longest delay: up to 60 s. Default 1 s.
    #[must_use]
    pub fn cap(self, cap: Duration) -> Self {
        Self { cap, ..self }
    }

    /// Whether delays are drawn at random from their upper half. Default true; without it many
    /// waiters may try at the same instant.
    #[must_use]
    pub fn jitter(self, jitter: bool) -> Self {
        Self { jitter, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let (base, factor, cap) = (self.base, self.factor, self.cap);
        let ms = Duration::from_millis(1);
        let is_allowed = (ms..=Duration::from_secs(60)).contains(&cap);
        ConfigError::check(is_allowed, "Backoff::cap", cap, "1 ms to 60 s")?;
        let allowed = "1 ms to Backoff::cap";
        ConfigError::check((ms..=cap).contains(&base), "Backoff::base", base, allowed)?;
        let is_allowed = (1.0..=10.0).contains(&factor);
        ConfigError::check(is_allowed, "Backoff::factor", factor, "1 to 10")
    }

    /// The delays, endless, from a seed.
    pub(crate) fn delays(self, seed: u64) -> Delays {
        Delays {
            backoff: self,
            next: self.base,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    pub(crate) fn at_most(self, cap: Duration) -> Self {
        Self {
            base: self.base.min(cap),
            cap: self.cap.min(cap),
            ..self
        }
    }

    pub(crate) const fn cap_delay(&self) -> Duration {
        self.cap
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Delays {
    backoff: Backoff,
    next: Duration,
    random: fastrand::Rng,
}

impl Delays {
    pub(crate) fn reset(&mut self) {
        self.next = self.backoff.base;
    }

    /// A delay that is no longer than any other, for a state that changes soon. The next delay is the first again.
    pub(crate) fn shortest(&mut self) -> Duration {
        self.reset();
        if self.backoff.jitter {
            self.backoff.base / 4
        } else {
            self.backoff.base
        }
    }

    pub(crate) fn step(&mut self) -> Duration {
        let full = self.next;
        let grown = full.as_secs_f64() * self.backoff.factor;
        self.next = Duration::from_secs_f64(grown.min(self.backoff.cap.as_secs_f64()));
        if self.backoff.jitter {
            full.mul_f64(0.5 + self.random.f64() / 2.0)
        } else {
            full
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn first(count: usize, mut delays: Delays) -> Vec<Duration> {
        (0..count).map(|_| delays.step()).collect()
    }

    #[test]
    fn without_jitter_it_doubles_up_to_the_cap() {
        let delays = first(8, Backoff::new().jitter(false).delays(0));
        let millis: Vec<_> = delays.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    }

    #[test]
    fn bad_settings_are_refused() {
        let ms = Duration::from_millis;
        for (backoff, ok) in [
            (Backoff::new(), true),
            (Backoff::new().base(Duration::ZERO), false),
            (Backoff::new().base(ms(2000)), false),
            (Backoff::new().cap(Duration::ZERO), false),
            (Backoff::new().cap(Duration::MAX), false),
            (Backoff::new().factor(0.5), false),
            (Backoff::new().factor(f64::NAN), false),
            (Backoff::new().factor(f64::INFINITY), false),
        ] {
            assert_eq!(backoff.validate().is_ok(), ok, "{backoff:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn delays_stay_in_their_bounds_and_repeat_by_seed(
            base in 1u64..1_000, more in 0u64..5_000, factor in 1.0f64..10.0, seed: u64,
        ) {
            let (base, cap) = (Duration::from_millis(base), Duration::from_millis(base + more));
            let backoff = Backoff::new().base(base).cap(cap).factor(factor);
            prop_assert!(backoff.validate().is_ok());
            let delays = first(20, backoff.delays(seed));
            prop_assert_eq!(&delays, &first(20, backoff.delays(seed)));
            let mut begun = backoff.delays(seed);
            for _ in 0..6 {
                begun.step();
            }
            let shortest = begun.shortest();
            prop_assert!(delays.iter().all(|delay| *delay >= shortest));
            prop_assert!(begun.step() <= base, "it begins anew");
            for delay in &delays {
                prop_assert!(*delay >= base / 2 && *delay <= cap, "{:?}", delay);
            }
            prop_assert!(delays[19] >= backoff.delays(seed).step() / 2);
        }
    }
}
