//! Fencing at an SQL database: the late write of a holder that was frozen past its lease changes nothing.
//!
//! ```text
//! $ cargo run --example fencing_sql
//! ```
//!
//! A lock with a lease cannot keep a holder from writing late: it may be frozen between its last look at the lock and
//! the write, for longer than the lease. Only the database can refuse that write. It remembers the fencing token of the
//! last write, and accepts a write only if its token is not smaller.
//!
//! A is this program again, as a process that can be frozen. It needs a Unix with `kill`.

use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rusqlite::Connection;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use watchlock::{Client, FencingToken};

/// Made once, with the data: 0 is smaller than any token.
const TABLE: &str =
    "CREATE TABLE reports (id INTEGER PRIMARY KEY, author TEXT, fence INTEGER NOT NULL DEFAULT 0);
                     INSERT INTO reports (id) VALUES (1);";

/// Every write looks like this: one statement that compares and writes. With a check before it, and no transaction
/// around both, another write could come in between.
const WRITE: &str = "UPDATE reports SET author = ?2, fence = ?1 WHERE id = 1 AND fence <= ?1";

/// Whether the database accepted the write.
fn write(database: &Connection, token: FencingToken, author: &str) -> rusqlite::Result<bool> {
    let rows = database.execute(WRITE, (i64::from(token), author))?;
    Ok(rows == 1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    // While it is alive the watchdog keeps its lock; frozen it loses the lock after a second. The default is 30 s.
    let builder = Client::builder(&url).watchdog_lease(Duration::from_secs(1));
    let client = builder.connect().await?;
    if let Some(file) = std::env::args_os().nth(1) {
        return a(&client, file.as_ref()).await;
    }
    let file = std::env::temp_dir().join(format!("fencing_sql-{}.db", std::process::id()));
    let result = b(&client, &file).await;
    std::fs::remove_file(&file)?;
    result
}

/// The holder that is frozen between its last look at the lock and its write.
async fn a(client: &Client, file: &Path) -> Result<(), Box<dyn Error>> {
    let guard = client.get_fenced_lock("fencing_sql:report").lock().await?;
    guard.check()?;
    println!("A is in, and has just checked that the lock is its own");
    std::io::stdin().lock().read_line(&mut String::new())?;

    let taken = write(&Connection::open(file)?, guard.token(), "A")?;
    println!("A writes, and the database takes it: {taken}");
    let unlocked = guard.unlock().await;
    let lost = unlocked.is_err_and(|error| error.is_lost());
    println!("A gives the lock back, and hears that it was lost: {lost}");
    Ok(())
}

/// The next holder, which also freezes A.
async fn b(client: &Client, file: &Path) -> Result<(), Box<dyn Error>> {
    let database = Connection::open(file)?;
    database.execute_batch(TABLE)?;
    let mut a = Command::new(std::env::current_exe()?);
    let a = a.arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut a = a.kill_on_drop(true).spawn()?;
    let mut said = BufReader::new(a.stdout.take().ok_or("no output")?).lines();
    println!("{}", said.next_line().await?.ok_or("A ended")?);
    signal(&a, "-STOP").await?;
    println!("A is frozen, as by a long pause of its machine");

    let guard = client.get_fenced_lock("fencing_sql:report").lock().await?;
    let taken = write(&database, guard.token(), "B")?;
    println!("B is in, and writes, and the database takes it: {taken}");
    guard.unlock().await?;

    signal(&a, "-CONT").await?;
    a.stdin.take().ok_or("no input")?.write_all(b"on\n").await?;
    while let Some(line) = said.next_line().await? {
        println!("{line}");
    }
    let author: String = database.query_row("SELECT author FROM reports", (), |row| row.get(0))?;
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
