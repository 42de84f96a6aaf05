//! What the command line and the metrics cost: a table, with what each figure should be at most. It asserts nothing.
//!
//! What is compared is measured in turns, so that a busy machine slows both down; of many rounds the middle one counts.
//! The program `watchlock` is expected beside this one: `make bench-tools` builds both.

use std::error::Error;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use redis::Connection;
use rustix::time::{ClockId, clock_gettime};
use watchlock::{Client, ReentrantLock};
use watchlock_support::server::RedisServer;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RUNS: usize = 200;
const KEYS: usize = 100_000;
const ROUNDS_OF_LS: usize = 5;
const ROUNDS: usize = 100;
const PAIRS: u32 = 1000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    println!("{:<58} {:>12}   target", "what", "measured");
    // Before there is a recorder.
    let server = RedisServer::start();
    let silent = locks(&server, "silent").await?;
    let recorder = PrometheusBuilder::new().install_recorder()?;
    metrics(&server, &silent, &recorder).await?;
    run_beside_flock(&server)?;
    ls(false)?;
    ls(true)?;
    frozen(&server)?;
    Ok(())
}

fn row(what: &str, measured: &str, target: &str) {
    println!("{what:<58} {measured:>12}   {target}");
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn middle<T: Copy + PartialOrd>(mut all: Vec<T>) -> Option<T> {
    all.sort_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    all.get(all.len() / 2).copied()
}

/// A lock of a client of its own, which has its instruments once it was used.
async fn locks(server: &RedisServer, name: &str) -> Result<ReentrantLock> {
    let lock = Client::connect(server.url()).await?.get_lock(name);
    pairs(&lock).await?;
    Ok(lock)
}

async fn pairs(lock: &ReentrantLock) -> Result<()> {
    for _ in 0..PAIRS {
        lock.lock().await?.unlock().await?;
    }
    Ok(())
}

/// CPU time of all threads of this process for a pair, in µs.
async fn cpu_of_a_pair(lock: &ReentrantLock) -> Result<f64> {
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(
            time.tv_sec.unsigned_abs(),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    };
    let before = now();
    pairs(lock).await?;
    let used = now().saturating_sub(before);
    Ok(used.as_secs_f64() * 1e6 / f64::from(PAIRS))
}

async fn metrics(
    server: &RedisServer,
    silent: &ReentrantLock,
    recorder: &PrometheusHandle,
) -> Result<()> {
    let recorded = locks(server, "recorded").await?;
    let (mut without, mut more) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Each comes first as often as the other.
        let first = cpu_of_a_pair(if round % 2 == 0 { silent } else { &recorded }).await?;
        let second = cpu_of_a_pair(if round % 2 == 0 { &recorded } else { silent }).await?;
        let (silent, recorded) = if round % 2 == 0 {
            (first, second)
        } else {
            (second, first)
        };
        without.push(silent);
        more.push(recorded - silent);
        // As a scrape does it now and then.
        let _ = recorder.render();
    }
    let kinds = recorder.render().lines().count();
    let us = |all| middle(all).map_or(String::new(), |us: f64| format!("{us:.2} us"));
    row(
        "CPU of a pair, feature metrics, no recorder",
        &us(without),
        "",
    );
    row(
        &format!("  with a recorder ({kinds} lines a scrape), more"),
        &us(more),
        "2 us",
    );
    Ok(())
}

fn watchlock(arguments: &[&str], url: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?.with_file_name("watchlock"));
    command.args(arguments).env("WATCHLOCK_URL", url);
    command.stdout(Stdio::null());
    Ok(command)
}

/// Fails with what the command said if it failed.
fn succeeds(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    let output = command.stderr(Stdio::piped()).output()?;
    let took = start.elapsed();
    if output.status.success() {
        return Ok(took);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("{command:?} failed ({}): {}", output.status, said.trim());
    Err(text.into())
}

fn time(command: &mut Command) -> Result<(Duration, Option<i32>)> {
    let start = Instant::now();
    let status = command.status()?;
    Ok((start.elapsed(), status.code()))
}

fn run_beside_flock(server: &RedisServer) -> Result<()> {
    let file = server.dir().join("lock");
    let (mut alone, mut flock, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        alone.push(succeeds(&mut Command::new("true"))?);
        let by_file = succeeds(Command::new("flock").arg(&file).arg("true"))?;
        let by_redis = succeeds(&mut watchlock(&["run", "job", "true"], &server.url())?)?;
        flock.push(by_file);
        more.push(by_redis.saturating_sub(by_file));
    }
    let show = |all| middle(all).map_or(String::new(), ms);
    row("true", &show(alone), "");
    row("flock FILE true", &show(flock), "");
    row(
        "watchlock run NAME true, more than flock",
        &show(more),
        "15 ms",
    );
    Ok(())
}

/// Fills a server: with keys of others and a thousand locks among them, or with locks only.
fn fill(connection: &mut Connection, all_locks: bool) -> Result<()> {
    let mut commands = redis::pipe();
    let client = "0b2d6cc1-6fc0-4f4b-a9f3-0f4a6bb2dd57";
    for number in 0..KEYS {
        let key = format!("some:thing:{number}");
        match number % 100 {
            0 => commands
                .cmd("HSET")
                .arg(key)
                .arg(format!("{client}:{number}"))
                .arg(1),
            _ if all_locks => commands
                .cmd("HSET")
                .arg(key)
                .arg(format!("{client}:7"))
                .arg(1),
            1..30 => commands.cmd("HSET").arg(key).arg("name").arg("x"),
            30..40 => commands.cmd("ZADD").arg(key).arg(1).arg("x"),
            _ => commands.cmd("SET").arg(key).arg("x"),
        };
        if number % 1000 == 999 {
            let _: () = commands.ignore().query(connection)?;
            commands = redis::pipe();
        }
    }
    let _: () = redis::cmd("SET").arg("permits").arg(3).query(connection)?;
    let add = ["{permits}:timeout", "922337203685477", "0123456789abcdef"];
    let _: () = redis::cmd("ZADD").arg(&add).query(connection)?;
    Ok(())
}

/// The longest time that another client waits for an answer, until it is stopped.
fn longest_wait(mut connection: Connection, stop: &AtomicBool) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let _: String = redis::cmd("PING").query(&mut connection)?;
        longest = longest.max(start.elapsed());
    }
    Ok(longest)
}

/// `work`, and how long another client waited meanwhile at most.
fn beside_another<T>(
    server: &RedisServer,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Duration)> {
    let connection = redis::Client::open(server.url())?.get_connection()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let other = std::thread::spawn(move || {
        longest_wait(connection, &stopped).map_err(|error| error.to_string())
    });
    let done = work();
    stop.store(true, Ordering::Relaxed);
    let waited = other.join().map_err(|_| "the other client panicked")??;
    Ok((done?, waited))
}

fn ls(all_locks: bool) -> Result<()> {
    let server = RedisServer::start();
    let mut connection = redis::Client::open(server.url())?.get_connection()?;
    fill(&mut connection, all_locks)?;
    let config = [
        "SET",
        "slowlog-log-slower-than",
        "0",
        "slowlog-max-len",
        "1000000",
    ];
    let _: () = redis::cmd("CONFIG").arg(&config).query(&mut connection)?;
    let limit = (2 * KEYS).to_string();
    let url = server.url();
    let (mut times, mut waits) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS_OF_LS {
        let list = || succeeds(&mut watchlock(&["ls", "--limit", &limit], &url)?);
        let (took, waited) = beside_another(&server, list)?;
        times.push(took);
        waits.push(waited);
    }
    let locks = if all_locks { KEYS } else { KEYS / 100 };
    let what = format!("ls, {KEYS} keys, {locks} of them locks");
    let show = |all| middle(all).map_or(String::new(), ms);
    row(&what, &show(times), "2 s");
    let least = |all: Vec<Duration>| all.into_iter().min().map_or(String::new(), ms);
    let what = "  another client waits at most, in the calmest round";
    row(what, &least(waits), "5 ms");
    let longest = longest_command(&mut connection)?;
    row("  the longest command", &ms(longest), "5 ms");
    let idle = || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    };
    let mut waits = Vec::new();
    for _ in 0..ROUNDS_OF_LS {
        waits.push(beside_another(&server, idle)?.1);
    }
    row("  the same for 1 s on an idle server", &least(waits), "");
    let show = |arguments: &[&str]| -> Result<()> {
        let (took, code) = time(&mut watchlock(arguments, &url)?)?;
        row(
            &format!("  {} (status {code:?})", arguments.join(" ")),
            &ms(took),
            "1 s",
        );
        Ok(())
    };
    show(&["show", "some:thing:0"])?;
    show(&["show", "permits"])?;
    show(&["doctor"])
}

/// Of those that the server logged.
fn longest_command(connection: &mut Connection) -> Result<Duration> {
    let log: Vec<Vec<redis::Value>> = redis::cmd("SLOWLOG").arg("GET").arg(-1).query(connection)?;
    let took = log.iter().filter_map(|entry| match entry.get(2) {
        Some(redis::Value::Int(us)) => Some(us.unsigned_abs()),
        _ => None,
    });
    Ok(Duration::from_micros(took.max().unwrap_or(0)))
}

/// What people see when a server does not answer.
fn frozen(server: &RedisServer) -> Result<()> {
    server.freeze();
    for arguments in [&["ls"] as &[&str], &["show", "x"], &["doctor"]] {
        let mut command = watchlock(arguments, &server.url())?;
        let (took, code) = time(command.stderr(Stdio::null()))?;
        let what = format!(
            "{} of a frozen server (status {code:?})",
            arguments.join(" ")
        );
        row(&what, &ms(took), "1 s");
    }
    server.resume();
    Ok(())
}
