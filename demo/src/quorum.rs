//! (g) Five servers: two are killed while a job holds, nobody else gets in, two come back, and the job never noticed.

use std::time::Duration;

use watchlock::{Lease, Quorum};
use watchlock_support::server::RedisServer;

use crate::Result;
use crate::stage::{LEASE, Row, headline, step};

/// So many servers.
const SERVERS: usize = 5;

pub(crate) async fn scene() -> Result<Vec<Row>> {
    headline(
        'g',
        "a quorum of five servers: two are killed while a job holds, and come back empty",
    );
    let servers: Vec<_> = (0..SERVERS).map(|_| RedisServer::start()).collect();
    let (quorum, other) = (connect(&servers).await?, connect(&servers).await?);
    let job = quorum.get_lock("job").lock().await?;
    step("a job has the lock; two of the servers are killed");
    servers[0].kill();
    servers[1].kill();
    let mut others = 0;
    let lock = other.get_lock("job");
    for _ in 0..10 {
        let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await?;
        others += u32::from(tried.is_some());
        tokio::time::sleep(LEASE / 5).await;
    }
    step("two leases later; the two are started again, without their memory");
    servers[0].restart();
    servers[1].restart();
    let back = holders(&servers).await;
    let valid = job.is_valid();
    job.unlock().await?;
    step(format!(
        "{back} of {SERVERS} servers have the job's lock again"
    ));
    let next = lock.try_lock(LEASE, Lease::Watchdog).await?;
    let free = next.is_some();
    Ok(vec![
        Row::new(
            "others who got in while two servers were dead",
            "0",
            others,
            others == 0,
        ),
        Row::new(
            "servers that have the hold in the end",
            "5",
            back,
            back == SERVERS,
        ),
        Row::new(
            "the job's hold in the end",
            "valid",
            if valid { "valid" } else { "lost" },
            valid,
        ),
        Row::new(
            "the next one, once it is given back",
            "in",
            if free { "in" } else { "out" },
            free,
        ),
    ])
}

/// The servers have just been started: with the default they would have no vote for a lease.
async fn connect(servers: &[RedisServer]) -> Result<Quorum> {
    let urls = servers.iter().map(RedisServer::url);
    let builder = Quorum::builder(urls).watchdog_lease(LEASE);
    Ok(builder.restart_delay(Duration::ZERO).connect().await?)
}

/// How many servers have the lock, once all do or some seconds have passed.
async fn holders(servers: &[RedisServer]) -> usize {
    let mut have = 0;
    for _ in 0..100 {
        have = 0;
        for server in servers {
            have += usize::from(server.exists("job").await);
        }
        if have == servers.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    have
}
