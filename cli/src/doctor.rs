//! `doctor`: what of a server can let two holders in, or none.
//!
//! Each check has a verdict. *Bad* means that a lock is not safe there, or cannot be taken; *advice*, that more could be
//! done; *unknown*, that the server does not tell this user.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use watchlock::redis;

use crate::connect::{Server, text};
use crate::inspect::beside;
use crate::options::DoctorOptions;
use crate::status::{Failure, Status};
use crate::text::{print, shown, table};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Advice,
    Bad,
    Unknown,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Advice => "advice",
            Self::Bad => "bad",
            Self::Unknown => "unknown",
        }
    }
}

struct Check {
    name: &'static str,
    value: String,
    verdict: Verdict,
    /// What to do about it.
    advice: &'static str,
    /// What is a time.
    ms: Option<i64>,
}

impl Check {
    fn new(
        name: &'static str,
        value: impl Into<String>,
        verdict: Verdict,
        advice: &'static str,
    ) -> Self {
        Self {
            name,
            value: value.into(),
            verdict,
            advice,
            ms: None,
        }
    }

    fn with_ms(self, ms: i64) -> Self {
        let ms = Some(ms);
        Self { ms, ..self }
    }

    fn unknown(name: &'static str) -> Self {
        Self::new(
            name,
            "?",
            Verdict::Unknown,
            "the server does not tell this user",
        )
    }
}

pub(crate) async fn doctor(options: &DoctorOptions) -> Result<Status, Failure> {
    let servers = options.server.servers().await?;
    let one = servers.len() == 1;
    let mut status = Status::DONE;
    for server in servers {
        let examined = match server {
            Ok(server) => match examine(&server, options).await {
                Ok(checks) => Ok((server.at, checks)),
                Err(failure) => Err((server.at, failure)),
            },
            failed => failed.map(|server| (server.at, Vec::new())),
        };
        let (at, checks) = match examined {
            Ok(examined) => examined,
            Err((at, failure)) if one => return Err(failure.at(&at)),
            Err((at, failure)) => {
                let advice = "the others must carry all locks alone";
                let check = Check::new("connect", failure.message, Verdict::Bad, advice);
                (at, vec![check])
            }
        };
        if checks.iter().any(|check| check.verdict == Verdict::Bad) {
            status = Status::NO;
        }
        print(&if options.json {
            lines(&at, &checks)
        } else {
            page(&at, &checks)
        })?;
    }
    Ok(status)
}

fn lines(at: &str, checks: &[Check]) -> String {
    let line = |check: &Check| {
        let line = json!({
            "server": shown(at.as_bytes()),
            "check": check.name.replace([' ', '-'], "_"),
            "value": shown(check.value.as_bytes()),
            "ms": check.ms,
            "verdict": check.verdict.name(),
            "advice": check.advice,
        });
        format!("{line}\n")
    };
    checks.iter().map(line).collect()
}

fn page(at: &str, checks: &[Check]) -> String {
    let cells = |check: &Check| {
        let [name, verdict, advice] = [check.name, check.verdict.name(), check.advice];
        let value = shown(check.value.as_bytes());
        [name, verdict, &value, advice].map(str::to_owned)
    };
    let rows: Vec<_> = checks.iter().map(cells).collect();
    format!("{}\n{}", shown(at.as_bytes()), table(&rows))
}

/// Fails if the server stops to answer.
async fn examine(server: &Server, options: &DoctorOptions) -> Result<Vec<Check>, Failure> {
    let info = Info::of(server).await?;
    let quorum = options.server.quorum;
    let fails_over = options.server.sentinel.is_some() || server.in_cluster;
    let mut checks = vec![version(&info), role(&info), eviction(&info)];
    checks.push(persistence(&info, server, quorum).await);
    checks.push(replicas(&info, fails_over));
    checks.extend(clocks(server).await);
    checks.push(rights(server, &options.server.prefix).await);
    Ok(checks)
}

/// What `INFO` says; nothing if it is denied.
struct Info(BTreeMap<String, String>);

impl Info {
    async fn of(server: &Server) -> Result<Self, Failure> {
        let text: String = match server.ask(&[b"INFO"]).await {
            Err(error) if error.is_timeout() || error.is_io_error() => return Err(error.into()),
            said => said.unwrap_or_default(),
        };
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        let pairs = pairs.map(|(field, value)| (field.to_owned(), value.to_owned()));
        Ok(Self(pairs.collect()))
    }

    fn get(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }
}

fn version(info: &Info) -> Check {
    let name = "version";
    let valkey = info
        .get("valkey_version")
        .map(|version| format!("Valkey {version}"));
    let Some(redis) = info.get("redis_version") else {
        return Check::unknown(name);
    };
    let mut numbers = redis.split('.').map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let value = valkey.unwrap_or_else(|| format!("Redis {redis}"));
    if version < (6, 2) {
        return Check::new(
            name,
            value,
            Verdict::Bad,
            "watchlock needs Redis 6.2 or newer",
        );
    }
    Check::new(name, value, Verdict::Ok, "")
}

fn role(info: &Info) -> Check {
    match info.get("role") {
        None => Check::unknown("role"),
        Some("master") => Check::new("role", "master", Verdict::Ok, ""),
        Some(role) => Check::new("role", role, Verdict::Bad, "locks live on a master"),
    }
}

fn eviction(info: &Info) -> Check {
    let name = "maxmemory-policy";
    let (Some(policy), Some(limit)) = (info.get("maxmemory_policy"), info.number("maxmemory"))
    else {
        return Check::unknown(name);
    };
    let (verdict, advice) = match (policy, limit) {
        ("noeviction", _) => (Verdict::Ok, ""),
        (_, 0) => (Verdict::Ok, "maxmemory is 0, so nothing is evicted"),
        _ => (
            Verdict::Bad,
            "evicts locks when memory is short: noeviction, or a server for locks",
        ),
    };
    Check::new(name, policy, verdict, advice)
}

async fn persistence(info: &Info, server: &Server, quorum: bool) -> Check {
    let name = "append-only file";
    let Some(on) = info.get("aof_enabled") else {
        return Check::unknown(name);
    };
    if on == "0" && quorum {
        let advice = "servers of a quorum do not vote until a lease after their start";
        return Check::new(name, "off", Verdict::Ok, advice);
    }
    if on == "0" {
        return Check::new(
            name,
            "off",
            Verdict::Bad,
            "a restart frees all locks: appendonly yes",
        );
    }
    if info
        .get("aof_last_write_status")
        .is_some_and(|status| status != "ok")
    {
        return Check::new(
            name,
            "failing",
            Verdict::Bad,
            "writes to it fail: see the server's log",
        );
    }
    let words: [&[u8]; 3] = [b"CONFIG", b"GET", b"appendfsync"];
    let config: Vec<String> = server.ask(&words).await.unwrap_or_default();
    match config.get(1).map(String::as_str) {
        Some("always") => Check::new(name, "on, fsync always", Verdict::Ok, ""),
        Some(fsync) => {
            let advice = "a crash of the machine loses the last writes: appendfsync always";
            Check::new(name, format!("on, fsync {fsync}"), Verdict::Advice, advice)
        }
        None => Check::new(
            name,
            "on, fsync ?",
            Verdict::Unknown,
            "the server does not tell this user",
        ),
    }
}

fn replicas(info: &Info, fails_over: bool) -> Check {
    let name = "replicas";
    let Some(count) = info.number("connected_slaves") else {
        return Check::unknown(name);
    };
    // slave0:ip=…,port=…,state=online,offset=…,lag=1
    let lines = (0..count).map_while(|at| info.get(&format!("slave{at}")));
    let acknowledges = |line: &&str| {
        let lag = line.split(',').find_map(|field| field.strip_prefix("lag="));
        let lag = lag.and_then(|lag| lag.parse::<u64>().ok());
        line.contains("state=online") && lag.is_some_and(|lag| lag <= 1)
    };
    let current = lines.filter(acknowledges).count() as u64;
    let value = format!("{count}, {current} acknowledge");
    let (verdict, advice) = match count {
        0 if fails_over => (Verdict::Advice, "nothing takes over when it fails"),
        0 => (Verdict::Ok, ""),
        _ if current < count => (
            Verdict::Advice,
            "a failover may lose locks: see why replicas lag",
        ),
        _ => (
            Verdict::Advice,
            "a failover may lose the newest locks, unless replicas acknowledge them",
        ),
    };
    Check::new(name, value, verdict, advice)
}

/// How often the round trip is measured; the middle one counts.
const ROUNDS: usize = 9;

/// The server's clock beside ours, and the round trip.
async fn clocks(server: &Server) -> [Check; 2] {
    let (mut trips, mut offset) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let Ok(there) = server.time().await else {
            return [Check::unknown("clock"), Check::unknown("round trip")];
        };
        let trip = start.elapsed();
        trips.push(trip);
        let there = there.saturating_add(trip / 2);
        let here = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        offset = millis(there) - millis(here);
    }
    trips.sort_unstable();
    let trip = trips[ROUNDS / 2];
    let value = format!(
        "{} ms {}",
        offset.abs(),
        if offset < 0 { "behind" } else { "ahead" }
    );
    let clock = if offset.abs() < 1000 {
        Check::new("clock", value, Verdict::Ok, "")
    } else {
        let advice =
            "a step of the server's clock moves the end of all leases: see its time service";
        Check::new("clock", value, Verdict::Advice, advice)
    };
    let value = format!("{:.1} ms", trip.as_secs_f64() * 1000.0);
    let round_trip = if trip < Duration::from_millis(250) {
        Check::new("round trip", value, Verdict::Ok, "")
    } else {
        let advice = "near the command time-out of 1 s";
        Check::new("round trip", value, Verdict::Advice, advice)
    };
    [clock.with_ms(offset), round_trip.with_ms(millis(trip))]
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The commands of the plain lock, as in docs/acl.md. In a cluster the last two are others.
const COMMANDS: [&str; 13] = [
    "evalsha",
    "eval",
    "pttl",
    "pexpire",
    "hset",
    "hdel",
    "hlen",
    "hgetall",
    "hexists",
    "del",
    "publish",
    "subscribe",
    "unsubscribe",
];

/// Whether this user may do what a plain lock does, as `ACL DRYRUN` says.
async fn rights(server: &Server, prefix: &str) -> Check {
    let name = "rights";
    let Ok(user) = server.ask::<String>(&[b"ACL", b"WHOAMI"]).await else {
        return Check::unknown(name);
    };
    let key = format!("{prefix}watchlock-doctor");
    let channel = beside("redisson_lock__channel", key.as_bytes());
    let mut missing = Vec::new();
    for command in COMMANDS {
        let command = match (command, server.in_cluster) {
            ("publish", true) => "spublish",
            ("subscribe", true) => "ssubscribe",
            ("unsubscribe", true) => "sunsubscribe",
            _ => command,
        };
        let key = key.as_bytes();
        let arguments: &[&[u8]] = match command {
            "evalsha" | "eval" => &[b"x", b"1", key],
            "pexpire" => &[key, b"1"],
            "hset" => &[key, b"x", b"1"],
            "hdel" | "hexists" => &[key, b"x"],
            "publish" | "spublish" => &[&channel, b"0"],
            "subscribe" | "ssubscribe" | "unsubscribe" | "sunsubscribe" => &[&channel],
            _ => &[key],
        };
        let mut words: Vec<&[u8]> = vec![b"ACL", b"DRYRUN", user.as_bytes(), command.as_bytes()];
        words.extend(arguments);
        match server.ask::<redis::Value>(&words).await {
            Ok(redis::Value::Okay) => {}
            Ok(said) if text(&said) == "OK" => {}
            Ok(_) => missing.push(command),
            Err(_) => {
                return Check::new(
                    name,
                    user,
                    Verdict::Unknown,
                    "the server does not tell this user",
                );
            }
        }
    }
    if missing.is_empty() {
        return Check::new(name, user, Verdict::Ok, "");
    }
    let value = format!("{user}: no {}", missing.join(", "));
    Check::new(
        name,
        value,
        Verdict::Bad,
        "a plain lock below this prefix needs them: docs/acl.md",
    )
}
