//! `show NAME`: all that Redis knows about one lock.

use serde_json::json;

use crate::connect::{Masters, Server};
use crate::inspect::{Details, Held, HeldKind, Inspector, Permits, details};
use crate::options::{Kind, ServerOptions, ShowOptions};
use crate::status::{Failure, Status};
use crate::text::{print, shown, time};

pub(crate) async fn show(options: &ShowOptions) -> Result<Status, Failure> {
    let masters = options.server.masters().await?;
    let Some((lock, details)) = look(&options.server, masters, &options.name, None).await? else {
        print(&if options.json {
            format!(
                "{}\n",
                json!({ "name": shown(options.name.as_bytes()), "held": false })
            )
        } else {
            format!("{:?} is free\n", options.name)
        })?;
        return Ok(Status::NO);
    };
    print(&if options.json {
        json_of(&lock, &details)
    } else {
        text_of(&lock, &details)
    })?;
    // All permits of a semaphore may be free.
    Ok(if lock.holders.is_empty() {
        Status::NO
    } else {
        Status::DONE
    })
}

/// The lock as it stands; None if it is free. At a quorum, the lock of the first server, if a majority has it.
pub(crate) async fn look(
    options: &ServerOptions,
    masters: Masters,
    name: &str,
    kind: Option<Kind>,
) -> Result<Option<(Held, Details)>, Failure> {
    let Masters {
        servers,
        mut failure,
    } = masters;
    let mut inspector = Inspector::new(&servers, &options.prefix);
    let key = [options.prefix.as_bytes(), name.as_bytes()].concat();
    let (mut found, mut holding, mut answered) = (None, 0, 0);
    for server in &servers {
        match read(&mut inspector, server, name, &key, kind).await {
            Ok(read) => {
                answered += 1;
                holding += usize::from(read.is_some());
                found = found.or(read);
            }
            Err(error) => failure = Some(error),
        }
    }
    let needed = if options.quorum {
        options.majority()
    } else {
        1
    };
    if holding < needed {
        options.enough(answered, failure)?;
        return Ok(None);
    }
    Ok(found)
}

async fn read(
    inspector: &mut Inspector<'_>,
    server: &Server,
    name: &str,
    key: &[u8],
    kind: Option<Kind>,
) -> Result<Option<(Held, Details)>, Failure> {
    let Some(lock) = inspector.lock(server, name, kind).await? else {
        return Ok(None);
    };
    let details = match lock.kind {
        HeldKind::Lock(_) => details(server, key).await?,
        HeldKind::Expirable | HeldKind::Counting => Details::default(),
    };
    Ok(Some((lock, details)))
}

fn json_of(lock: &Held, details: &Details) -> String {
    let mut all = lock.json();
    let queue = details.queue.iter().map(|id| shown(id));
    all["held"] = (!lock.holders.is_empty()).into();
    all["token"] = details.token.clone().into();
    all["queue"] = queue.collect::<Vec<_>>().into();
    all["writers_wait"] = details.writers_wait.into();
    format!("{all}\n")
}

pub(crate) fn text_of(lock: &Held, details: &Details) -> String {
    let ttl = |ms: Option<u64>| ms.map_or_else(|| "none".to_owned(), time);
    let mut lines = vec![
        format!("name      {}", shown(&lock.name)),
        format!("kind      {}", lock.kind_name()),
        format!("ttl       {}", ttl(lock.ttl_ms)),
    ];
    if let Some(permits) = &lock.permits {
        let Permits { free, taken } = permits;
        lines.push(format!("permits   {free} free, {taken} taken"));
    }
    let is_semaphore = lock.permits.is_some();
    for holder in &lock.holders {
        let id = shown(&holder.hold_id);
        let label = holder
            .label
            .as_deref()
            .map(|label| format!("{}, ", shown(label)));
        let label = label.unwrap_or_default();
        if is_semaphore {
            lines.push(format!("permit    {label}{id}, ttl {}", ttl(holder.ttl_ms)));
            continue;
        }
        let own = holder.ttl_ms.map(|ms| format!(", ttl {}", time(ms)));
        lines.push(format!(
            "holder    {label}{id}, count {}{}",
            holder.count,
            own.unwrap_or_default()
        ));
    }
    lines.extend(
        details
            .token
            .iter()
            .map(|token| format!("token     {token}")),
    );
    let waiting = lock
        .waiting
        .map_or_else(|| "?".to_owned(), |waiting| waiting.to_string());
    lines.push(format!("waiting   {waiting}"));
    let queue = details.queue.iter().enumerate();
    lines.extend(queue.map(|(at, id)| format!("queue {:<3} {}", at + 1, shown(id))));
    if details.writers_wait {
        lines.push("a writer waits, so nobody starts to read".to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}
