//! The settings of a client, with defaults and bounds. They are checked once, when the client connects.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::error::ConfigError;
use crate::lease::Lease;
use crate::names::MAX_KEY_BYTES;
use crate::report::{Metrics, OnLost};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How releases are published in a cluster.
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// use watchlock::{Client, Publish};
///
/// // Beside Java services whose Redisson is older than 3.22.
/// let client = Client::builder("redis://10.0.0.1:6379/")
///     .publish(Publish::Classic)
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Publish {
    /// `PUBLISH`: to every node of the cluster.
    Classic,
    /// `SPUBLISH`: to the nodes that have the lock's slot. Redis 7.0 and later, Valkey.
    Sharded,
}

/// The settings of a client. Outside of the builder they are [checked](Self::check).
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) watchdog_lease: Duration,
    /// The longest fixed lease in a quorum.
    pub(crate) max_lease: Option<Duration>,
    pub(crate) key_prefix: String,
    pub(crate) backoff: Backoff,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) unavailable_after: Duration,
    pub(crate) fencing_token_ttl: Option<Duration>,
    pub(crate) fair_wait: Duration,
    pub(crate) passes_on: bool,
    pub(crate) acks: Option<Acks>,
    pub(crate) label: Option<String>,
    pub(crate) on_lost: Option<OnLost>,
    pub(crate) lock_label: Option<fn(&str) -> Option<&'static str>>,
    /// From the start of the client on.
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
}

/// How many replicas must acknowledge a command, and within what time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acks {
    pub(crate) wanted: u32,
    pub(crate) within: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            watchdog_lease: Duration::from_secs(30),
            max_lease: None,
            key_prefix: String::new(),
            backoff: Backoff::default(),
            command_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            unavailable_after: Duration::from_secs(5),
            fencing_token_ttl: None,
            fair_wait: Duration::from_secs(300),
            passes_on: true,
            acks: None,
            label: None,
            on_lost: None,
            lock_label: None,
            metrics: Metrics::default(),
            clock: Clock::system(),
        }
    }
}

impl Config {
    pub(crate) fn lease_of(&self, lease: Lease) -> Duration {
        match lease {
            Lease::Watchdog => self.watchdog_lease,
            Lease::Fixed(lease) => lease,
            Lease::AtMost(limit) => limit.min(self.watchdog_lease),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let ms = Duration::from_millis;
        let time_outs = ms(10)..=ms(60_000);
        within(
            "watchdog_lease",
            self.watchdog_lease,
            &(ms(500)..=DAY),
            "500 ms to 24 h",
        )?;
        ConfigError::check(
            self.key_prefix.len() < MAX_KEY_BYTES,
            "key_prefix",
            format_args!("{} bytes long", self.key_prefix.len()),
            "shorter than 512 bytes",
        )?;
        let allowed = "10 ms to 60 s";
        within("command_timeout", self.command_timeout, &time_outs, allowed)?;
        within("connect_timeout", self.connect_timeout, &time_outs, allowed)?;
        let up_to_a_day = Duration::ZERO..=DAY;
        within(
            "unavailable_after",
            self.unavailable_after,
            &up_to_a_day,
            "0 to 24 h",
        )?;
        if let Some(ttl) = self.fencing_token_ttl {
            let up_to_a_year = ms(1000)..=365 * DAY;
            within("fencing_token_ttl", ttl, &up_to_a_year, "1 s to 365 days")?;
        }
        let waits = ms(15_000)..=DAY;
        within("fair_wait", self.fair_wait, &waits, "15 s to 24 h")?;
        if let Some(Acks { wanted, within }) = self.acks {
            // A command may wait for the batch before it, its own batch, and one more if it is sent again.
            ConfigError::check(
                (1..=64).contains(&wanted) && within >= ms(1) && within <= self.command_timeout / 4,
                "acknowledged_by",
                format_args!("{wanted} within {within:?}"),
                "1 to 64 replicas within 1 ms to a quarter of command_timeout",
            )?;
        }
        if let Some(label) = &self.label {
            ConfigError::check(
                is_label(label),
                "label",
                format_args!("{} bytes long", label.len()),
                "1 to 256 bytes without control characters",
            )?;
        }
        self.backoff.validate()
    }
}

pub(crate) fn is_label(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.contains(char::is_control)
}

fn within(
    setting: &'static str,
    given: Duration,
    bounds: &RangeInclusive<Duration>,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    ConfigError::check(bounds.contains(&given), setting, given, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_good() {
        assert!(Config::default().check().is_ok());
    }

    #[test]
    fn bounds_are_inclusive() {
        for (lease, ok) in [
            (Duration::ZERO, false),
            (Duration::from_millis(500), true),
            (DAY, true),
            (DAY + Duration::from_nanos(1), false),
            (Duration::from_millis(u64::MAX), false),
            (Duration::MAX, false),
        ] {
            let config = Config {
                watchdog_lease: lease,
                ..Config::default()
            };
            assert_eq!(config.check().is_ok(), ok, "{lease:?}");
        }
    }

    #[test]
    fn every_setting_has_bounds() {
        let acks = |wanted, ms| {
            let within = Duration::from_millis(ms);
            Some(Acks { wanted, within })
        };
        let bad: [&dyn Fn(&mut Config); 17] = [
            &|s| s.acks = acks(0, 100),
            &|s| s.acks = acks(1, 0),
            &|s| s.acks = acks(1, 251),
            &|s| s.watchdog_lease = Duration::from_millis(499),
            &|s| s.watchdog_lease = Duration::MAX,
            &|s| s.key_prefix = "x".repeat(512),
            &|s| s.command_timeout = Duration::ZERO,
            &|s| s.connect_timeout = Duration::MAX,
            &|s| s.unavailable_after = Duration::MAX,
            &|s| s.fencing_token_ttl = Some(Duration::from_millis(999)),
            &|s| s.fencing_token_ttl = Some(Duration::MAX),
            &|s| s.fair_wait = Duration::from_millis(14_999),
            &|s| s.fair_wait = Duration::MAX,
            &|s| s.label = Some(String::new()),
            &|s| s.label = Some("x".repeat(257)),
            &|s| s.label = Some("a\nb".into()),
            &|s| s.backoff = Backoff::new().base(Duration::ZERO),
        ];
        for (i, spoil) in bad.iter().enumerate() {
            let mut settings = Config::default();
            spoil(&mut settings);
            assert!(settings.check().is_err(), "case {i}");
        }
    }
}
