//! The command line: commands, options, and how their values are written.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use watchlock::PermitId;

use crate::status::OF_RUN;

/// Distributed locks in Redis, shared with Redisson and with programs that use the Rust crate watchlock.
#[derive(Debug, Parser)]
#[command(name = "watchlock", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take a lock, run a command, release the lock
    ///
    /// CMD runs without a shell. If the lock cannot be kept, CMD is ended before anybody else can take it: TERM, then KILL.
    Run(Box<RunOptions>),
    /// List the locks and permits that are held, those of Java services with Redisson too
    ///
    /// It only reads. Simple locks are not found, and a fair lock for which nobody waits looks like a plain one. Of
    /// semaphores that are not expirable Redisson does not record the permits.
    Ls(Box<ListOptions>),
    /// Show one lock or semaphore: holders, leases, token, queue, permits
    ///
    /// Exits with 0 if it is held, or a permit is taken, and with 1 if it is free.
    Show(Box<ShowOptions>),
    /// Release a lock by force, or give back a permit
    ///
    /// It shows the holder and asks first. The holder learns of it with its next renewal, and may be at work until then. Exits
    /// with 1 if the lock was free, or nothing was released.
    Release(Box<ReleaseOptions>),
    /// Check whether a server keeps locks safe
    ///
    /// It only reads. What the server hides from this user is `unknown`. Exits with 1 if a lock is not safe there.
    Doctor(Box<DoctorOptions>),
    /// Print a script for the completion of a shell
    Completions(CompletionOptions),
}

/// `run`.
#[derive(Debug, Args)]
#[command(override_usage = "watchlock run [OPTIONS] NAME [--] CMD [ARG]...", after_help = exit_statuses())]
pub(crate) struct RunOptions {
    /// The name of the lock
    pub(crate) name: String,
    /// The command, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    /// How long to wait while the lock is busy: `5`, `0.5` (seconds), `500ms`, `2m`, `1h` [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: `--wait 0`
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// The exit status when the lock stayed busy
    #[arg(short = 'E', long, value_name = "N", default_value_t = 1)]
    pub(crate) conflict_exit_code: u8,
    /// The kind of lock
    #[arg(long, value_enum, default_value_t = Kind::Plain)]
    pub(crate) kind: Kind,
    /// Take one of TOTAL permits of an expirable semaphore instead of a lock, so that TOTAL commands at most run at once.
    /// A number that is set in Redis already stays as it is
    #[arg(
        long,
        value_name = "TOTAL",
        value_parser = value_parser!(u32).range(1..=i64::from(i32::MAX)),
        conflicts_with_all = ["kind", "at_least", "quorum"]
    )]
    pub(crate) permits: Option<u32>,
    /// The lease, which is renewed every third of it: 500ms to 24h. If `run` dies, the lock is free after it
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = lease)]
    pub(crate) watchdog: Duration,
    /// Keep the lock for so long from its acquire, even if CMD ends earlier: one run per interval on many hosts
    #[arg(long, value_name = "TIME", value_parser = at_least)]
    pub(crate) at_least: Option<Duration>,
    /// The time from TERM to KILL, at most half the lease [default: a third of the lease, at most 5s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Say on stderr how long it waited, and for whom
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Messages on stderr as JSON, an object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// `ls`.
#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    /// Which names, as Redis matches them: `*`, `?`, `[a-z]`
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// How many locks at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: usize,
    /// As JSON, an object for each lock and line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowOptions {
    /// The name of the lock
    pub(crate) name: String,
    /// As JSON, an object in a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// `release`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseOptions {
    /// The name of the lock
    pub(crate) name: String,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// The kind of lock [default: as it looks in Redis; `simple` must be said]
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Give back the permit with this id, of an expirable semaphore
    #[arg(long, value_name = "ID", conflicts_with_all = ["kind", "quorum"])]
    pub(crate) permit: Option<PermitId>,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// As JSON, an object for each check and line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionOptions {
    /// The shell
    pub(crate) shell: Shell,
}

/// Where Redis is, for all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Redis")]
pub(crate) struct ServerOptions {
    /// The address: redis://, rediss:// or unix:. Several with --sentinel, --cluster or --quorum, also as a list with
    /// spaces. The variable keeps passwords out of `ps`
    #[arg(
        long,
        value_name = "URL",
        env = "WATCHLOCK_URL",
        hide_env_values = true,
        value_delimiter = ' ',
        required = true
    )]
    pub(crate) url: Vec<String>,
    /// The addresses are those of sentinels, which know the master as SERVICE
    #[arg(long, value_name = "SERVICE", conflicts_with_all = ["cluster", "quorum"])]
    pub(crate) sentinel: Option<String>,
    /// User, password, database and encryption of the servers that sentinels name; host and port are ignored
    #[arg(
        long,
        value_name = "URL",
        env = "WATCHLOCK_SERVER_URL",
        hide_env_values = true,
        requires = "sentinel"
    )]
    pub(crate) server_url: Option<String>,
    /// The addresses are those of nodes of a cluster
    #[arg(long, conflicts_with = "quorum")]
    pub(crate) cluster: bool,
    /// The addresses are those of independent servers, of which a majority grants a lock
    #[arg(long)]
    pub(crate) quorum: bool,
    /// The prefix of every key
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) prefix: String,
    /// Trust these certificate authorities instead of the system's (PEM)
    #[arg(long, value_name = "FILE", conflicts_with = "quorum")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The client's certificate (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "quorum"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the client's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// A kind of lock, as in the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// One holder
    Plain,
    /// One holder, in the order of arrival
    Fair,
    /// One holder, with a token that grows from holder to holder
    Fenced,
    /// Many readers
    Read,
    /// One writer, and no reader
    Write,
    /// One string, shared with redsync, node-redlock and the like
    Simple,
}

impl Kind {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fair => "fair",
            Self::Fenced => "fenced",
            Self::Read => "read",
            Self::Write => "write",
            Self::Simple => "simple",
        }
    }
}

/// In seconds.
const DAY: u64 = 24 * 3600;

fn exit_statuses() -> String {
    let rows = OF_RUN.map(|(status, when)| format!("  {status:<10} {when}"));
    format!("Exit status:\n{}", rows.join("\n"))
}

/// The units of a time, longer names first where one ends like another.
const UNITS: [(&str, f64); 5] = [
    ("ms", 0.001),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
];

/// `5`, `0.5` (seconds), `500ms`, `2m`, `1h`, in whole milliseconds.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = UNITS.iter().find_map(|(unit, seconds)| {
        let number = text.strip_suffix(unit)?;
        Some((number, *seconds))
    });
    let (number, seconds) = unit.unwrap_or((text, 1.0));
    let plain = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let number = number.parse::<f64>().ok().filter(|_| plain);
    let wrong = || "not a time such as 5, 0.5 (seconds), 500ms, 2m or 1h".to_owned();
    let seconds = number.ok_or_else(wrong)? * seconds;
    // No client lives longer than a hundred years.
    if seconds > 3.2e9 {
        return Err("too long".into());
    }
    let ms = (seconds * 1000.0).round() / 1000.0;
    Duration::try_from_secs_f64(ms).map_err(|_| wrong())
}

fn between(text: &str, least: Duration, most: Duration, range: &str) -> Result<Duration, String> {
    let given = duration(text)?;
    if given < least || given > most {
        return Err(format!("must be {range}"));
    }
    Ok(given)
}

fn lease(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(500), Duration::from_secs(DAY));
    between(text, least, most, "500ms to 24h")
}

fn at_least(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(10), Duration::from_secs(365 * DAY));
    between(text, least, most, "10ms to 365d")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_are_written_as_for_flock_and_with_units() {
        let ms = |text| duration(text).map(|time| time.as_millis());
        let right = [
            ("5", 5000),
            ("0.5", 500),
            (".5", 500),
            ("0", 0),
            ("500ms", 500),
            ("7s", 7000),
            ("2m", 120_000),
            ("1.5h", 5_400_000),
            ("1d", 86_400_000),
        ];
        for (text, expected) in right {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for text in [
            "", "s", "-1", "+1", "1x", "nan", "inf", "1 s", "1e30", "ms", "0x1",
        ] {
            assert!(ms(text).is_err(), "{text}");
        }
    }
}
