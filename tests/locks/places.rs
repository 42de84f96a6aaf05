//! Where and when guards end, and what a view of the hold reports.

use std::time::Duration;

use futures_util::FutureExt;
use watchlock::Error;
use watchlock_support::server::RedisServer;

use crate::common::{connect, gone, poll_once, soon};

#[tokio::test]
async fn a_view_follows_the_hold_and_keeps_nothing() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("view").lock().await.unwrap();
    let view = guard.hold();
    let elsewhere = tokio::spawn({
        let view = view.clone();
        async move { (view.is_valid(), view.check().is_ok()) }
    });
    assert_eq!(elsewhere.await.unwrap(), (true, true));
    assert!(view.valid_for() > Duration::from_secs(20));
    assert!(view.lost().now_or_never().is_none());
    guard.unlock().await.unwrap();
    assert!(!view.is_valid() && view.valid_for() == Duration::ZERO);
    assert!(matches!(view.check(), Err(Error::NotOwner { .. })));
    assert!(view.lost().now_or_never().is_none(), "it was not lost");
}

#[tokio::test]
async fn i8_sending_the_last_release_ends_the_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("ending");
    let guard = lock
        .lock_with_lease(Duration::from_millis(300))
        .await
        .unwrap();
    let view = guard.hold();
    server.freeze();
    let mut unlock = Box::pin(guard.unlock());
    assert!(poll_once(&mut unlock).await.is_none());
    assert!(!view.is_valid());
    // Its lease passes without an answer, and it is still no loss.
    let lost = tokio::time::timeout(Duration::from_millis(500), view.lost()).await;
    assert!(lost.is_err());
    server.resume();
    let _ = soon(unlock).await;
    assert!(view.lost().now_or_never().is_none());
    gone(&server, "ending").await;
}
