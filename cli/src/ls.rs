//! `ls`: the locks that are held.

use std::collections::BTreeMap;

use crate::connect::Server;
use crate::inspect::{Held, Inspector};
use crate::options::ListOptions;
use crate::status::{Failure, Status};
use crate::text::{print, shown, table, time};

pub(crate) async fn ls(options: &ListOptions) -> Result<Status, Failure> {
    let servers = options.server.masters().await?;
    let (mut locks, more) = locks(options, &servers).await?;
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    if options.json {
        for lock in &locks {
            print(&format!("{}\n", lock.json()));
        }
    } else {
        let head = ["NAME", "KIND", "HOLDER", "COUNT", "TTL", "WAITING"].map(str::to_owned);
        let rows = locks.iter().flat_map(rows);
        let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
        print(&table(&rows));
    }
    if more {
        eprintln!("watchlock: there are more; --limit is {}", options.limit);
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
async fn locks(options: &ListOptions, servers: &[Server]) -> Result<(Vec<Held>, bool), Failure> {
    let mut inspector = Inspector::new(servers, &options.server.prefix);
    let mut by_name = BTreeMap::<Vec<u8>, (Held, usize)>::new();
    let mut locks = Vec::new();
    for server in servers {
        // One more shows that there are more.
        let most = options.limit.saturating_add(1);
        for lock in inspector.locks(server, &options.pattern, most).await? {
            if options.server.quorum {
                let name = lock.name.clone();
                by_name.entry(name).or_insert((lock, 0)).1 += 1;
            } else {
                locks.push(lock);
            }
        }
    }
    // Of a quorum: what a majority of all its servers has.
    let needed = options.server.url.len() / 2 + 1;
    let held = by_name
        .into_values()
        .filter(|(_, servers)| *servers >= needed);
    locks.extend(held.map(|(lock, _)| lock));
    let more = locks.len() > options.limit;
    locks.truncate(options.limit);
    Ok((locks, more))
}
