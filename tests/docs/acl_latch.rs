//! What docs/acl.md says of latches: with the rights of their row everything works, and each right that it names is needed.

use std::time::Duration;

use watchlock::{Client, CountDownLatch, Error};
use watchlock_support::server::RedisServer;

use crate::acl::documented_rights;
use crate::acl_kinds::{client, documented};

const LONG: Duration = Duration::from_secs(30);
const CHANNEL: &str = "&redisson_countdownlatch__channel__*";

/// Everything that is done with a latch.
async fn live(latch: &CountDownLatch, operators: &CountDownLatch) -> Result<(), Error> {
    latch.try_set_count(3).await?;
    latch.count_down().await?;
    latch.count().await?;
    let opens = async {
        for _ in 0..2 {
            operators.count_down().await.expect("the operator may");
        }
    };
    let (waited, ()) = tokio::join!(latch.wait(), opens);
    waited?;
    latch.try_set_count(1).await?;
    latch.count_down().await?;
    latch.try_set_count(1).await?;
    latch.delete().await.map(drop)
}

#[tokio::test]
async fn the_latch_s_row_is_enough_and_each_right_is_needed() {
    let server = RedisServer::start();
    let operator = Client::builder(&server.url()).key_prefix("app:");
    let operator = operator.connect().await.unwrap();
    let (mut more, less) = documented("latch");
    let mut rights = documented_rights();
    rights.retain(|right| !less.contains(right));
    assert_eq!(rights.len() + less.len(), documented_rights().len());
    rights.extend(&more);
    // Without it waiters poll.
    more.retain(|right| *right != CHANNEL);
    let missing = [None].into_iter().chain(more.into_iter().map(Some));
    for (number, missing) in missing.enumerate() {
        let fewer = rights.iter().copied();
        let fewer: Vec<_> = fewer.filter(|right| Some(*right) != missing).collect();
        server.cmd(&["FLUSHALL"]).await;
        let limited = client(&server, &format!("user-{number}"), &fewer).await;
        let [latch, operators] = [&limited, &operator].map(|of| of.get_count_down_latch("x"));
        let lived = tokio::time::timeout(LONG, live(&latch, &operators)).await;
        let lived = lived.unwrap_or_else(|_| panic!("without {missing:?} it hangs"));
        match missing {
            None => assert!(lived.is_ok(), "{lived:?}"),
            Some(missing) => {
                let denied = matches!(lived, Err(Error::Denied { .. }));
                assert!(denied, "without {missing}: {lived:?}");
            }
        }
    }
}
