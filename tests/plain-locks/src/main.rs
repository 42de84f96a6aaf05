//! Takes a plain lock again and again: `plain-locks REDIS_URL TIMES [contended]`. `scripts/house.sh` looks on which files
//! of the library that passes.
//!
//! Alone, each lock has another name, and nothing is given back. Contended, one client holds and two tasks of another
//! wait: the first is woken through Redis, the second gets the lock from the first.

use std::error::Error;
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use watchlock::{Client, ReentrantLock};

/// Under valgrind everything takes fifty times as long.
const AGES: Duration = Duration::from_secs(30);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (url, times, contended) = match &args[..] {
        [url, times] => (url, times.parse()?, false),
        [url, times, how] if how == "contended" => (url, times.parse()?, true),
        _ => return Err("usage: plain-locks REDIS_URL TIMES [contended]".into()),
    };
    let (client, other) = (connect(url).await?, connect(url).await?);
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(AGES))
        .set_response_timeout(Some(AGES));
    let mut redis = redis::Client::open(url.as_str())?
        .get_multiplexed_async_connection_with_config(&patient)
        .await?;
    let mut held = Vec::new();
    for time in 0..times {
        if contended {
            let lock = client.get_lock("plain");
            in_a_row(&lock, &other.get_lock("plain"), &mut redis).await?;
        } else {
            held.push(client.get_lock(&format!("plain {time}")).lock().await?);
        }
    }
    // Without giving back what is held: to unlock is another way.
    std::process::exit(0)
}

async fn connect(url: &str) -> Result<Client> {
    let patient = Client::builder(url)
        .command_timeout(AGES)
        .connect_timeout(AGES)
        .watchdog_lease(40 * AGES);
    Ok(patient.connect().await?)
}

/// One holds, two of another client wait.
async fn in_a_row(
    lock: &ReentrantLock,
    others: &ReentrantLock,
    redis: &mut MultiplexedConnection,
) -> Result<()> {
    let held = lock.lock().await?;
    let first = tokio::spawn(pass(others.clone()));
    let second = tokio::spawn(pass(others.clone()));
    while subscribers(redis).await? == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    held.unlock().await?;
    first.await??;
    second.await??;
    while subscribers(redis).await? > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn pass(lock: ReentrantLock) -> Result<()> {
    lock.lock().await?.unlock().await?;
    Ok(())
}

/// How many listen for the release of the lock.
async fn subscribers(redis: &mut MultiplexedConnection) -> Result<u64> {
    let counted: (String, u64) = redis::cmd("PUBSUB")
        .arg("NUMSUB")
        .arg("redisson_lock__channel:{plain}")
        .query_async(redis)
        .await?;
    Ok(counted.1)
}
