//! Who holds a lock of a quorum, as its servers have it.

use watchlock::{Error, Lease};
use watchlock_support::eventually;

use crate::common::{LONG, ms, soon};
use crate::{Five, end};

#[tokio::test]
async fn the_holds_of_a_majority_are_shown_with_their_label() {
    let five = Five::start();
    let quorum = five
        .builder()
        .label("billing@host-7")
        .connect()
        .await
        .unwrap();
    let lock = quorum.get_lock("x");
    assert_eq!(lock.holders().await.unwrap(), []);
    let guard = lock.lock().await.unwrap();
    five.until(5, "x").await;
    eventually("all labels are shown", LONG, async || {
        let holders = lock.holders().await.unwrap();
        let labelled = holders
            .iter()
            .filter(|holder| holder.label.as_deref() == Some("billing@host-7"));
        labelled.count() == 5
    })
    .await;
    for server in &five.0[..2] {
        server.freeze();
    }
    assert_eq!(soon(lock.holders()).await.unwrap().len(), 3);
    for server in &five.0[..2] {
        server.resume();
    }
    end(guard).await;
    assert_eq!(lock.holders().await.unwrap(), []);
}

#[tokio::test]
async fn a_minority_is_no_holder_and_too_few_answers_are_none() {
    let five = Five::start();
    let quorum = five
        .builder()
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let lock = quorum.get_lock("x");
    for server in &five.0[..2] {
        server.cmd(&["HSET", "x", "stranger:1", "1"]).await;
    }
    assert_eq!(lock.holders().await.unwrap(), []);
    five.0[2].cmd(&["HSET", "x", "stranger:1", "1"]).await;
    assert_eq!(lock.holders().await.unwrap().len(), 3);
    for server in &five.0[..3] {
        server.cmd(&["DEL", "x"]).await;
    }

    let held = lock.lock().await.unwrap();
    assert_eq!(lock.waiters().await.unwrap(), 0);
    let other = five.connect().await;
    let waiting = tokio::spawn({
        let lock = other.get_lock("x");
        async move { lock.try_lock(LONG, Lease::Watchdog).await }
    });
    eventually("it listens", LONG, async || {
        lock.waiters().await.unwrap() == 1
    })
    .await;
    end(held).await;
    end(soon(waiting).await.unwrap().unwrap().unwrap()).await;

    for server in &five.0[..3] {
        server.freeze();
    }
    for error in [
        soon(lock.holders()).await.err(),
        soon(lock.waiters()).await.err(),
    ] {
        assert!(matches!(error, Some(Error::NoQuorum { .. })), "{error:?}");
    }
    for server in &five.0[..3] {
        server.resume();
    }
}
