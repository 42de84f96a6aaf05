//! One client as a process of its own, driven by JSON lines, which tests kill, freeze and cut off.
//!
//! ```text
//! $ cargo run --release --package watchlock-worker
//! {"id":1,"op":"open","url":"redis://127.0.0.1/"}
//! {"id":1,"ok":true,"t_inv":…,"t_ret":…,"result":{"client_id":"…"}}
//! {"id":2,"op":"lock","owner":"a","kind":"lock","name":"x"}
//! {"id":2,"ok":true,"t_inv":…,"t_ret":…,"result":{"count":1}}
//! ```
//!
//! Requests come on standard input, answers and events leave on standard output, one JSON object a line;
//! the log goes to standard error. Requests of one `owner` run one after the other, all others at the same
//! time. The end of the input closes the client and ends the process. Times are nanoseconds of
//! `CLOCK_MONOTONIC`, so those of several processes can be compared.
//!
//! It uses nothing but the public API. The client lives on a runtime of its own with two threads, which
//! `block_runtime` can block; the main thread reads lines and writes events.

mod answers;
mod bench;
mod failure;
mod kinds;
mod latch;
mod owner;
mod permits;
mod request;
mod session;

use std::io::BufRead;

use tokio::sync::mpsc;

use crate::answers::Answers;
use crate::session::Session;

fn main() -> std::io::Result<()> {
    let level = std::env::var("WORKER_LOG").ok();
    let level = level.and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(level.unwrap_or(tracing::Level::WARN))
        .init();
    let users = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let lines = tokio::runtime::Builder::new_current_thread().build()?;
    let (answers, writer) = Answers::begin();
    lines.block_on(serve(users.handle(), answers));
    // The tasks that watch holds are dropped with their runtime, and with the last of them the writer's queue ends.
    drop(lines);
    let _ = writer.join();
    users.shutdown_background();
    Ok(())
}

/// Takes line by line, until the input ends.
async fn serve(users: &tokio::runtime::Handle, answers: Answers) {
    let mut session = Session::new(users.clone(), answers);
    let mut lines = read_lines();
    while let Some(line) = lines.recv().await {
        session.take(&line).await;
    }
    session.close().await;
}

/// Standard input can only be read by a thread that may block.
fn read_lines() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).into_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
