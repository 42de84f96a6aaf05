//! (f) A holder that is frozen between its last look at the lock and its write: the resource refuses the late write.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use watchlock::{Client, FencingToken};
use watchlock_support::process;

use crate::Result;
use crate::stage::{LEASE, Row, Stage, headline, step};

/// The resource: takes a write only with a token that is not smaller than that of whoever wrote last.
const WRITE: &str = "
    local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
    if fence > tonumber(ARGV[1]) then return 0 end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'author', ARGV[2])
    return 1";

pub(crate) async fn scene(stage: &Stage) -> Result<Vec<Row>> {
    headline(
        'f',
        "a fenced lock: a holder is frozen just before its write, which comes too late",
    );
    let name = stage.name("late");
    let mut late = start(stage, &name)?;
    let mut said = BufReader::new(late.0.stdout.take().ok_or("no output")?).lines();
    let before = said.next().ok_or("the writer ended")??;
    process::freeze(late.0.id());
    step(format!("frozen; it has the token {before}"));

    let client = Client::connect(&stage.url).await?;
    let guard = client.get_fenced_lock(&name).lock().await?;
    let token = guard.token();
    let taken = write(&stage.url, &name, token, "the next one").await?;
    step(format!(
        "the next one has {token}, and writes: {}",
        answer(taken)
    ));
    guard.unlock().await?;

    process::resume(late.0.id());
    writeln!(late.0.stdin.take().ok_or("no input")?, "go")?;
    let late_write = said.next().ok_or("the writer ended")??;
    step(format!("awake again, and it writes: {late_write}"));
    let mut redis = stage.redis();
    let author: String = redis::AsyncCommands::hget(&mut redis, resource(&name), "author").await?;
    redis::AsyncCommands::del::<_, ()>(&mut redis, resource(&name)).await?;
    let is_larger = before
        .parse()
        .is_ok_and(|before: u64| before < token.as_u64());
    Ok(vec![
        Row::new(
            "the next one's token",
            "larger",
            if is_larger { "larger" } else { "not larger" },
            is_larger && taken,
        ),
        Row::new(
            "the late write",
            "refused",
            &late_write,
            late_write == "refused",
        ),
        Row::new(
            "the last writer",
            "the next one",
            &author,
            author == "the next one",
        ),
    ])
}

/// A process that ends with its scene, also when it is frozen.
struct Late(Child);

impl Drop for Late {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(stage: &Stage, name: &str) -> Result<Late> {
    let child = Command::new(std::env::current_exe()?)
        .args(["late-writer", name])
        .env("REDIS_URL", &stage.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(Late(child))
}

/// The one that is frozen: takes the lock, checks that it has it, waits for a line on its input, writes.
pub(crate) async fn writer(url: &str, name: &str) -> Result<()> {
    let builder = Client::builder(url).watchdog_lease(LEASE);
    let client = builder.connect().await?;
    let guard = client.get_fenced_lock(name).lock().await?;
    guard.check()?;
    println!("{}", guard.token());
    if std::io::stdin().lock().read_line(&mut String::new())? == 0 {
        return Err("nobody is there to go on".into());
    }
    let taken = write(url, name, guard.token(), "the late one").await?;
    println!("{}", answer(taken));
    Ok(())
}

fn resource(name: &str) -> String {
    format!("{name}:resource")
}

async fn write(url: &str, name: &str, token: FencingToken, author: &str) -> Result<bool> {
    let client = redis::Client::open(url)?;
    let mut redis = client.get_multiplexed_async_connection().await?;
    let script = redis::Script::new(WRITE);
    let mut call = script.key(resource(name));
    call.arg(token.as_u64()).arg(author);
    Ok(call.invoke_async(&mut redis).await?)
}

fn answer(taken: bool) -> &'static str {
    if taken { "taken" } else { "refused" }
}
