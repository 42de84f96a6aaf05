//! (a) Ten processes read a counter, think, and write it back: what a lock is for.

use std::io::{BufRead, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::AsyncCommands;
use watchlock::Client;

use crate::Result;
use crate::stage::{Row, Stage, headline, step};

const CLIENTS: u32 = 10;
const TIMES: u32 = 10;
const THINK: Duration = Duration::from_millis(5);

pub(crate) async fn scene(stage: &Stage) -> Result<Vec<Row>> {
    headline(
        'a',
        "10 processes add 1 to a counter, 10 times each: read it, think for 5 ms, write it back",
    );
    let without = count(stage, "without a lock", "free").await?;
    let with = count(stage, "with the lock", "locked").await?;
    let all = CLIENTS * TIMES;
    Ok(vec![
        Row::new(
            "counter without a lock",
            "less than 100",
            without,
            without < all,
        ),
        Row::new("counter with the lock", "100", with, with == all),
    ])
}

/// Lets the processes count, and returns what the counter says then.
async fn count(stage: &Stage, how: &str, mode: &str) -> Result<u32> {
    let name = stage.name(&format!("counter:{mode}"));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(start(stage, &name, mode)?);
    }
    // All are connected before the first begins.
    for client in &mut clients {
        let output = client.stdout.as_mut().ok_or("no output")?;
        std::io::BufReader::new(output).read_line(&mut String::new())?;
    }
    for client in &mut clients {
        writeln!(client.stdin.as_mut().ok_or("no input")?, "go")?;
    }
    for client in &mut clients {
        if !client.wait()?.success() {
            return Err("a client of the counter failed".into());
        }
    }
    let count = stage
        .redis()
        .get::<_, Option<u32>>(&name)
        .await?
        .unwrap_or(0);
    step(format!(
        "{how}: {} updates, the counter says {count}",
        CLIENTS * TIMES
    ));
    Ok(count)
}

fn start(stage: &Stage, name: &str, mode: &str) -> Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .args(["counter-client", name, mode])
        .env("REDIS_URL", &stage.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(child)
}

/// One of the ten: says that it is ready, waits for the start, counts.
pub(crate) async fn client(url: &str, name: &str, locked: bool) -> Result<()> {
    let client = Client::connect(url).await?;
    let lock = client.get_lock(&format!("{name}:lock"));
    let mut redis = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    println!("ready");
    if std::io::stdin().lock().read_line(&mut String::new())? == 0 {
        return Err("nobody is there to start".into());
    }
    for _ in 0..TIMES {
        let guard = if locked {
            Some(lock.lock().await?)
        } else {
            None
        };
        let seen: Option<u32> = redis.get(name).await?;
        tokio::time::sleep(THINK).await;
        redis.set::<_, _, ()>(name, seen.unwrap_or(0) + 1).await?;
        if let Some(guard) = guard {
            guard.unlock().await?;
        }
    }
    client.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
