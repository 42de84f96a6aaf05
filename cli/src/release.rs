//! `release NAME`: takes a lock, or a permit, away from its holder, which learns of it with its next renewal.

use std::io::BufRead;
use std::time::Duration;

use tokio::time::timeout;
use watchlock::PermitId;

use crate::inspect::{Held, HeldKind};
use crate::options::{Kind, ReleaseOptions};
use crate::show::{look, text_of};
use crate::status::{Failure, Status};
use crate::text::{say, warn};

/// How long the end may take, if Redis does not answer.
const SHUTDOWN: Duration = Duration::from_secs(3);

pub(crate) async fn release(options: &ReleaseOptions) -> Result<Status, Failure> {
    let server = &options.server;
    let free = || {
        warn(&format!("{:?} is free", options.name));
        Ok(Status::NO)
    };
    let masters = server.masters().await?;
    let Some((lock, details)) = look(server, masters, &options.name, options.kind).await? else {
        return free();
    };
    let taken = taken(options, &lock)?;
    say(&text_of(&lock, &details));
    if !options.yes && !confirmed() {
        warn("nothing was released");
        return Ok(Status::NO);
    }
    let locks = server.connect(None, None).await?;
    let released = match taken {
        Taken::Lock(kind) => locks.get(kind, &options.name).force_unlock().await,
        Taken::Permit(id) => match locks.semaphore(&options.name) {
            Some(semaphore) => semaphore.release_permit(id).await,
            None => Ok(false),
        },
    };
    let _ = timeout(SHUTDOWN, locks.shutdown(Duration::ZERO)).await;
    match (released?, options.permit) {
        (true, _) => Ok(Status::DONE),
        (false, None) => free(),
        (false, Some(id)) => {
            warn(&format!("permit {id} of {:?} is not taken", options.name));
            Ok(Status::NO)
        }
    }
}

/// What to release.
enum Taken {
    Lock(Kind),
    Permit(PermitId),
}

fn taken(options: &ReleaseOptions, found: &Held) -> Result<Taken, Failure> {
    // One without permits that are taken may be expirable.
    let has_own_records = found.kind == HeldKind::Counting && !found.holders.is_empty();
    let wrong = match (found.kind, options.permit) {
        _ if has_own_records => {
            "it is a semaphore that is not expirable: a permit comes back from its holder, or with its lease"
        }
        (HeldKind::Expirable | HeldKind::Counting, Some(id)) => return Ok(Taken::Permit(id)),
        (HeldKind::Lock(_), Some(_)) => "it is no semaphore, which has permits",
        (HeldKind::Expirable | HeldKind::Counting, None) => "it is a semaphore: say --permit ID",
        (HeldKind::Lock(Kind::Simple), None) if options.kind.is_none() => {
            "the key is a string; if it is a simple lock, say --kind simple"
        }
        (HeldKind::Lock(kind), None) => {
            let kind = options.kind.unwrap_or(kind);
            options.server.check(kind)?;
            return Ok(Taken::Lock(kind));
        }
    };
    Err(Failure::new(Status::CONFIG, wrong))
}

/// Whether somebody reads the question and says yes.
fn confirmed() -> bool {
    if !say("Release it? The holder may still be at work. [y/N] ") {
        return false;
    }
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
