//! What docs/acl.md says of semaphores: with the rights of its row everything works, and each right that it names is
//! needed.

use std::time::Duration;

use watchlock::kind::SemaphoreKind;
use watchlock::{Client, Error, Lease, SemaphoreHandle};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::acl::documented_rights;
use crate::acl_kinds::{client, documented};

const LONG: Duration = Duration::from_secs(30);

/// Everything that is done with a semaphore.
async fn live<K: SemaphoreKind>(
    of: &SemaphoreHandle<K>,
    operators: &SemaphoreHandle<K>,
    server: &RedisServer,
) -> Result<(), Error> {
    let of = of.clone().with_permits(2);
    let both = of.acquire_many(2).await?;
    both.verify().await?;
    assert!(
        of.try_acquire(Duration::ZERO, Lease::Watchdog)
            .await?
            .is_none()
    );
    of.available_permits().await?;
    both.release().await?;

    let held = operators.acquire_many(2).await.expect("the operator may");
    let waits = of.acquire_many(2);
    let gives_back = async {
        eventually("it is noted that it waits", LONG, async || {
            server.exists("watchlock_needs:{app:x}").await
        })
        .await;
        held.release().await
    };
    let (waited, given_back) = tokio::join!(waits, gives_back);
    given_back.expect("the operator may");
    waited?.release().await?;

    server.cmd(&["PEXPIRE", "app:x", "60000"]).await;
    let one = of.acquire().await?;
    server.cmd(&["PERSIST", "app:x"]).await;
    of.acquire().await?.release().await?;
    drop(one);
    of.acquire().await?.forget().await?;
    of.add_permits(1).await?;
    of.delete().await.map(drop)
}

async fn the_row_is_enough_and_each_right_is_needed<K: SemaphoreKind>(
    of_others: &str,
    get: fn(&Client) -> SemaphoreHandle<K>,
) {
    let server = RedisServer::start();
    let operator = Client::builder(&server.url()).key_prefix("app:");
    let operator = operator.connect().await.unwrap();
    let row = "semaphore";
    let (mut more, less) = documented(row);
    more.retain(|right| *right != of_others);
    let mut rights = documented_rights();
    rights.retain(|right| !less.contains(right));
    assert_eq!(rights.len() + less.len(), documented_rights().len());
    rights.extend(&more);
    // Without it waiters poll, and a release says so.
    more.retain(|right| *right != "&redisson_sc:*");
    for (number, missing) in [None]
        .into_iter()
        .chain(more.into_iter().map(Some))
        .enumerate()
    {
        let fewer = rights.iter().copied();
        let fewer: Vec<_> = fewer.filter(|right| Some(*right) != missing).collect();
        server.cmd(&["FLUSHALL"]).await;
        let limited = client(&server, &format!("user-{number}"), &fewer).await;
        let (of, operators) = (get(&limited), get(&operator));
        let lived = live(&of, &operators, &server);
        let lived = tokio::time::timeout(LONG, lived).await;
        let lived = lived.unwrap_or_else(|_| panic!("{row} without {missing:?} hangs"));
        match missing {
            None => assert!(lived.is_ok(), "{row}: {lived:?}"),
            Some(missing) => {
                let denied = matches!(lived, Err(Error::Denied { .. }));
                assert!(denied, "{row} without {missing}: {lived:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_semaphores_row_is_enough_and_each_right_is_needed() {
    let get = |client: &Client| client.get_semaphore("x");
    the_row_is_enough_and_each_right_is_needed("~{app:*", get).await;
}

#[tokio::test]
async fn for_the_expirable_semaphore_the_row_is_enough_and_each_right_is_needed() {
    let get = |client: &Client| client.get_permit_expirable_semaphore("x");
    the_row_is_enough_and_each_right_is_needed("~watchlock_permits:*", get).await;
}
