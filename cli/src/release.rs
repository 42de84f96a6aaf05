//! `release NAME`: takes a lock away from its holder, which learns of it with its next renewal.

use std::io::{BufRead, Write};
use std::time::Duration;

use tokio::time::timeout;

use crate::options::{Kind, ReleaseOptions};
use crate::show::{look, text_of};
use crate::status::{Failure, Status};

/// How long the end may take, if Redis does not answer.
const SHUTDOWN: Duration = Duration::from_secs(3);

pub(crate) async fn release(options: &ReleaseOptions) -> Result<Status, Failure> {
    let server = &options.server;
    let free = || {
        eprintln!("watchlock: {:?} is free", options.name);
        Ok(Status::NO)
    };
    let servers = server.masters().await?;
    let Some((lock, details)) = look(server, &servers, &options.name, options.kind).await? else {
        return free();
    };
    let kind = match options.kind {
        Some(kind) => kind,
        None if lock.kind == Kind::Simple => {
            let text = "the key is a string; if it is a simple lock, say --kind simple";
            return Err(Failure::new(Status::CONFIG, text));
        }
        None => lock.kind,
    };
    server.check(kind)?;
    eprint!("{}", text_of(&lock, &details));
    if !options.yes && !confirmed() {
        eprintln!("watchlock: nothing was released");
        return Ok(Status::NO);
    }
    let locks = server.connect(None, None).await?;
    let released = locks.get(kind, &options.name).force_unlock().await;
    let _ = timeout(SHUTDOWN, locks.shutdown(Duration::ZERO)).await;
    if released? { Ok(Status::DONE) } else { free() }
}

fn confirmed() -> bool {
    eprint!("Release it? The holder may still be at work. [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
