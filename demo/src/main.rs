//! The story of the lock in a minute, on a real Redis: what it is for, and what happens when something breaks.
//!
//! ```text
//! $ make demo                                   # with a redis-server of its own
//! $ REDIS_URL=redis://somewhere/ make demo      # with yours: only keys under a random prefix are touched
//! ```
//!
//! Whoever is killed or frozen here is a process: the `worker` of the tests, or this program again as a client of
//! the counter, or as a writer that comes too late. Every number is checked, and a wrong one makes the exit status non-zero.

mod counter;
mod frozen;
mod killed;
mod late;
mod nested;
mod permits;
mod quorum;
mod stage;
mod watchdog;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::ExitCode;

use futures_util::FutureExt;
use stage::{Row, Stage};
use tokio::signal::unix::{SignalKind, signal};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [] => all_scenes(&url).await,
        [client, name, locked] if client == "counter-client" => {
            counter::client(&url, name, locked == "locked")
                .await
                .map(|()| true)
        }
        [client, name] if client == "late-writer" => late::writer(&url, name).await.map(|()| true),
        _ => Err("usage: demo".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the demo cannot go on: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All scenes in their order; whether every number was right.
async fn all_scenes(url: &str) -> Result<bool> {
    // Ctrl-C, a time-out, or a terminal that is closed.
    let mut ended = signal(SignalKind::interrupt())?;
    let mut timed_out = signal(SignalKind::terminate())?;
    let mut closed = signal(SignalKind::hangup())?;
    let stage = Stage::set(url).await?;
    let seen = tokio::select! {
        seen = AssertUnwindSafe(scenes(&stage)).catch_unwind() => seen,
        _ = ended.recv() => Ok(Err("it was interrupted".into())),
        _ = timed_out.recv() => Ok(Err("it was interrupted".into())),
        _ = closed.recv() => Ok(Err("it was interrupted".into())),
    };
    // Whatever became of the scenes: the server may be somebody's.
    let cleared = stage.clear().await;
    let mut rows = seen.unwrap_or_else(|panic| resume_unwind(panic))?;
    rows.push(cleared?);
    println!("\n{}", stage::table(&rows));
    let wrong = rows.iter().filter(|row| !row.right).count();
    println!("{} of {} numbers are right", rows.len() - wrong, rows.len());
    Ok(wrong == 0)
}

async fn scenes(stage: &Stage) -> Result<Vec<Row>> {
    let mut rows = counter::scene(stage).await?;
    rows.extend(watchdog::scene(stage).await?);
    rows.extend(nested::scene(stage).await?);
    rows.extend(killed::scene(stage).await?);
    rows.extend(frozen::scene(stage).await?);
    rows.extend(late::scene(stage).await?);
    rows.extend(quorum::scene().await?);
    rows.extend(permits::scene(stage).await?);
    Ok(rows)
}
