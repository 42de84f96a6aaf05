//! The settings of a client, with defaults and bounds. They are checked once, when the client connects.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::error::ConfigError;
use crate::lease::{Lease, LeaseMs};
use crate::names::MAX_KEY_BYTES;

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

/// Settings as the builder collects them.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
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
    pub(crate) clock: Clock,
}

/// How many replicas must acknowledge a command, and within what time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acks {
    pub(crate) wanted: u32,
    pub(crate) within: Duration,
}

impl Default for Settings {
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
            clock: Clock::system(),
        }
    }
}

/// Settings that were checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) watchdog_lease: LeaseMs,
    /// The longest fixed lease in a quorum.
    pub(crate) max_lease: Option<Duration>,
    pub(crate) key_prefix: Box<str>,
    pub(crate) backoff: Backoff,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) unavailable_after: Duration,
    pub(crate) fencing_token_ttl: Option<LeaseMs>,
    pub(crate) fair_wait: LeaseMs,
    pub(crate) passes_on: bool,
    pub(crate) acks: Option<Acks>,
    pub(crate) clock: Clock,
}

impl Config {
    /// How long a lease is.
    pub(crate) fn lease_of(&self, lease: Lease) -> Duration {
        match lease {
            Lease::Watchdog => self.watchdog_lease.duration(),
            Lease::Fixed(lease) => lease,
        }
    }
}

impl Settings {
    pub(crate) fn validate(self) -> Result<Config, ConfigError> {
        let ms = Duration::from_millis;
        let time_outs = ms(10)..=ms(60_000);
        let watchdog_lease = lease(
            "watchdog_lease",
            self.watchdog_lease,
            ms(500)..=DAY,
            "500 ms to 24 h",
        )?;
        check(
            self.key_prefix.len() < MAX_KEY_BYTES,
            "key_prefix",
            format_args!("{} bytes long", self.key_prefix.len()),
            "shorter than 512 bytes",
        )?;
        check(
            time_outs.contains(&self.command_timeout),
            "command_timeout",
            self.command_timeout,
            "10 ms to 60 s",
        )?;
        check(
            time_outs.contains(&self.connect_timeout),
            "connect_timeout",
            self.connect_timeout,
            "10 ms to 60 s",
        )?;
        check(
            self.unavailable_after <= DAY,
            "unavailable_after",
            self.unavailable_after,
            "0 to 24 h",
        )?;
        let year = ms(1000)..=365 * DAY;
        let fencing_token_ttl = self
            .fencing_token_ttl
            .map(|ttl| lease("fencing_token_ttl", ttl, year, "1 s to 365 days"))
            .transpose()?;
        let fair_wait = lease(
            "fair_wait",
            self.fair_wait,
            ms(15_000)..=DAY,
            "15 s to 24 h",
        )?;
        if let Some(Acks { wanted, within }) = self.acks {
            // A command may wait for the batch before it, its own batch, and one more if it is sent again.
            check(
                (1..=64).contains(&wanted) && within >= ms(1) && within <= self.command_timeout / 4,
                "acknowledged_by",
                format_args!("{wanted} within {within:?}"),
                "1 to 64 replicas within 1 ms to a quarter of command_timeout",
            )?;
        }
        self.backoff.validate()?;
        Ok(Config {
            watchdog_lease,
            max_lease: self.max_lease,
            key_prefix: self.key_prefix.into(),
            backoff: self.backoff,
            command_timeout: self.command_timeout,
            connect_timeout: self.connect_timeout,
            unavailable_after: self.unavailable_after,
            fencing_token_ttl,
            fair_wait,
            passes_on: self.passes_on,
            acks: self.acks,
            clock: self.clock,
        })
    }
}

fn lease(
    setting: &'static str,
    given: Duration,
    bounds: RangeInclusive<Duration>,
    allowed: &'static str,
) -> Result<LeaseMs, ConfigError> {
    LeaseMs::new(given, &bounds).ok_or_else(|| ConfigError::out_of_range(setting, given, allowed))
}

fn check(
    ok: bool,
    setting: &'static str,
    given: impl Debug,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    if ok {
        return Ok(());
    }
    Err(ConfigError::out_of_range(setting, given, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_good() {
        assert!(Settings::default().validate().is_ok());
    }

    #[test]
    fn every_setting_has_bounds() {
        let acks = |wanted, ms| {
            let within = Duration::from_millis(ms);
            Some(Acks { wanted, within })
        };
        let bad: [&dyn Fn(&mut Settings); 14] = [
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
            &|s| s.backoff = Backoff::new().base(Duration::ZERO),
        ];
        for (i, spoil) in bad.iter().enumerate() {
            let mut settings = Settings::default();
            spoil(&mut settings);
            assert!(settings.validate().is_err(), "case {i}");
        }
    }
}
