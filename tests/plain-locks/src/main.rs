//! Takes a plain lock again and again: `plain-locks REDIS_URL TIMES [contended]`. `scripts/house.sh` counts which files
//! of the library run for it.
//!
//! Uncontended, each lock has another name, and none is released. Contended, one client holds the lock and two tasks of
//! another wait: a message wakes the first, and the first hands the lock to the second. The subscription stays open from
//! one round to the next.

use std::error::Error;
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use watchlock::{Client, ReentrantLock};

/// Under valgrind everything takes fifty times as long.
const AGES: Duration = Duration::from_secs(30);

/// The most locks of one run. All handles are made beforehand, so that making them does not grow with the locks taken.
const MOST: usize = 100;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (url, times, contended) = match &args[..] {
        [url, times] => (url, times.parse()?, false),
        [url, times, how] if how == "contended" => (url, times.parse()?, true),
        _ => return Err("usage: plain-locks REDIS_URL TIMES [contended]".into()),
    };
    if times > MOST {
        return Err(format!("at most {MOST} times").into());
    }
    let (client, other) = (connect(url).await?, connect(url).await?);
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(AGES))
        .set_response_timeout(Some(AGES));
    let mut redis = redis::Client::open(url.as_str())?
        .get_multiplexed_async_connection_with_config(&patient)
        .await?;
    // The locks of an earlier run are still held: it ended without releasing them.
    let run = std::process::id();
    let locks: Vec<_> = (0..MOST)
        .map(|number| client.get_lock(&format!("plain {run} {number}")))
        .collect();
    let (lock, others) = (client.get_lock("plain"), other.get_lock("plain"));
    let mut held = Vec::new();
    for lock_of_its_own in &locks[..times] {
        if contended {
            round(&lock, &others, &mut redis).await?;
        } else {
            held.push(lock_of_its_own.lock().await?);
        }
    }
    // The locks are not released: that is another way through the library.
    std::process::exit(0)
}

async fn connect(url: &str) -> Result<Client> {
    let patient = Client::builder(url)
        .command_timeout(AGES)
        .connect_timeout(AGES)
        .watchdog_lease(40 * AGES);
    Ok(patient.connect().await?)
}

/// One client holds the lock while two tasks of another wait for it, and then get it one after the other.
async fn round(
    lock: &ReentrantLock,
    others: &ReentrantLock,
    redis: &mut MultiplexedConnection,
) -> Result<()> {
    let held = lock.lock().await?;
    let before = scripts(redis).await?;
    let first = tokio::spawn(pass(others.clone()));
    let second = tokio::spawn(pass(others.clone()));
    // The first task tries once by itself, and the keeper once for it as soon as it listens.
    while scripts(redis).await? < before + 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    held.unlock().await?;
    first.await??;
    second.await??;
    Ok(())
}

async fn pass(lock: ReentrantLock) -> Result<()> {
    lock.lock().await?.unlock().await?;
    Ok(())
}

/// How many scripts the server has run.
async fn scripts(redis: &mut MultiplexedConnection) -> Result<u64> {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(redis)
        .await?;
    let calls = |command: &str| {
        let line = info.lines().find(|line| line.starts_with(command))?;
        line.split("calls=").nth(1)?.split(',').next()?.parse().ok()
    };
    let all = ["cmdstat_evalsha:", "cmdstat_eval:"].map(|command| calls(command).unwrap_or(0));
    Ok(all.iter().sum())
}
