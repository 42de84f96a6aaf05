//! `ls`: the locks that are held.

use std::collections::BTreeMap;

use crate::connect::Masters;
use crate::inspect::{Held, Inspector};
use crate::options::ListOptions;
use crate::status::{Failure, Status};
use crate::text::{print, shown, table, time, warn};

pub(crate) async fn ls(options: &ListOptions) -> Result<Status, Failure> {
    let masters = options.server.masters().await?;
    let (mut locks, more) = locks(options, masters).await?;
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    if options.json {
        for lock in &locks {
            print(&format!("{}\n", lock.json()))?;
        }
    } else {
        let head = ["NAME", "KIND", "HOLDER", "COUNT", "TTL", "WAITING"].map(str::to_owned);
        let rows = locks.iter().flat_map(rows);
        let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
        print(&table(&rows))?;
    }
    if more {
        warn(&format!("there are more; --limit is {}", options.limit));
    }
    Ok(Status::DONE)
}

/// A row for each holder.
fn rows(lock: &Held) -> impl Iterator<Item = [String; 6]> {
    lock.holders.iter().map(|holder| {
        [
            shown(&lock.name),
            lock.kind_name().to_owned(),
            holder.shown(),
            holder.count.to_string(),
            // A reader and a permit have an end of their own.
            (holder.ttl_ms.or(lock.ttl_ms)).map_or_else(|| "none".to_owned(), time),
            lock.waiting
                .map_or_else(|| "?".to_owned(), |waiting| waiting.to_string()),
        ]
    })
}

/// The locks, and whether there are more.
async fn locks(options: &ListOptions, masters: Masters) -> Result<(Vec<Held>, bool), Failure> {
    let Masters {
        servers,
        mut failure,
    } = masters;
    let mut inspector = Inspector::new(&servers, &options.server.prefix);
    let mut answered = 0;
    let mut by_name = BTreeMap::<Vec<u8>, (Held, usize)>::new();
    let mut locks = Vec::new();
    for server in &servers {
        let most = if options.server.quorum {
            // Each server has an order of its own, so parts of their lists would not be of the same locks.
            usize::MAX
        } else {
            // One more shows that there are more.
            options.limit.saturating_add(1)
        };
        let found = match inspector.locks(server, &options.pattern, most).await {
            Ok(found) => found,
            Err(error) => {
                failure = Some(error);
                continue;
            }
        };
        answered += 1;
        for lock in found {
            if options.server.quorum {
                let name = lock.name.clone();
                by_name.entry(name).or_insert((lock, 0)).1 += 1;
            } else {
                locks.push(lock);
            }
        }
    }
    options.server.enough(answered, failure)?;
    // Of a quorum: what a majority of all its servers has.
    let needed = options.server.majority();
    let held = by_name
        .into_values()
        .filter(|(_, servers)| *servers >= needed);
    locks.extend(held.map(|(lock, _)| lock));
    let more = locks.len() > options.limit;
    locks.truncate(options.limit);
    Ok((locks, more))
}
