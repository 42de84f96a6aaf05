//! Fencing at data in Redis: the late write of a holder that was frozen past its lease changes nothing.
//!
//! ```text
//! $ cargo run --example fencing_redis
//! ```
//!
//! The same story as `fencing_sql`, with a Redis as the resource: a script writes only if the token is not smaller than
//! that of the last write. It may be another Redis than that of the lock.
//!
//! A is this program again, as a process that can be frozen. It needs a Unix with `kill`.

use std::error::Error;
use std::io::BufRead;
use std::process::Stdio;
use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use watchlock::{Client, FencingToken};

const REPORT: &str = "fencing_redis:report";

/// Compares and writes in one step. Lua's numbers are exact up to 2^53, the largest token.
const WRITE: &str = "
    local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
    if fence > tonumber(ARGV[1]) then return 0 end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'author', ARGV[2])
    return 1";

/// Whether Redis accepted the write.
async fn write(
    redis: &mut MultiplexedConnection,
    token: FencingToken,
    author: &str,
) -> redis::RedisResult<bool> {
    let script = redis::Script::new(WRITE);
    let mut call = script.key(REPORT);
    call.arg(token.as_u64()).arg(author);
    call.invoke_async(redis).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    // While it is alive the watchdog keeps its lock; frozen it loses the lock after a second. The default is 30 s.
    let builder = Client::builder(&url).watchdog_lease(Duration::from_secs(1));
    let client = builder.connect().await?;
    let resource = redis::Client::open(url)?;
    let mut resource = resource.get_multiplexed_async_connection().await?;
    if std::env::args().nth(1).is_some_and(|role| role == "a") {
        return a(&client, &mut resource).await;
    }
    let result = b(&client, &mut resource).await;
    let () = resource.del(REPORT).await?;
    result
}

/// The holder that is frozen between its last look at the lock and its write.
async fn a(client: &Client, resource: &mut MultiplexedConnection) -> Result<(), Box<dyn Error>> {
    let guard = client.get_fenced_lock("fencing_redis:lock").lock().await?;
    guard.check()?;
    println!("A is in, and has just checked that the lock is its own");
    std::io::stdin().lock().read_line(&mut String::new())?;

    let taken = write(resource, guard.token(), "A").await?;
    println!("A writes, and Redis takes it: {taken}");
    let unlocked = guard.unlock().await;
    let lost = unlocked.is_err_and(|error| error.is_lost());
    println!("A gives the lock back, and hears that it was lost: {lost}");
    Ok(())
}

/// The next holder, which also freezes A.
async fn b(client: &Client, resource: &mut MultiplexedConnection) -> Result<(), Box<dyn Error>> {
    let mut a = Command::new(std::env::current_exe()?);
    let a = a.arg("a").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut a = a.kill_on_drop(true).spawn()?;
    let mut said = BufReader::new(a.stdout.take().ok_or("no output")?).lines();
    println!("{}", said.next_line().await?.ok_or("A ended")?);
    signal(&a, "-STOP").await?;
    println!("A is frozen, as by a long pause of its machine");

    let guard = client.get_fenced_lock("fencing_redis:lock").lock().await?;
    let taken = write(resource, guard.token(), "B").await?;
    println!("B is in, and writes, and Redis takes it: {taken}");
    guard.unlock().await?;

    signal(&a, "-CONT").await?;
    a.stdin.take().ok_or("no input")?.write_all(b"on\n").await?;
    while let Some(line) = said.next_line().await? {
        println!("{line}");
    }
    let author: String = resource.hget(REPORT, "author").await?;
    println!("the report is by {author}");
    Ok(())
}

async fn signal(process: &Child, signal: &str) -> Result<(), Box<dyn Error>> {
    let pid = process.id().ok_or("it has ended")?.to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().await?;
    if sent.success() {
        Ok(())
    } else {
        Err("kill failed".into())
    }
}
