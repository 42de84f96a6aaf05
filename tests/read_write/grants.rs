//! Grants that nobody collects, and late answers: their subject may be over by then.

use std::time::Duration;

use watchlock::{Client, Clock, Error, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, poll_once, soon};

/// Nobody has looked at the hold that all levels share since then.
#[tokio::test]
async fn i8_after_a_suspend_the_first_look_at_a_level_says_that_it_is_over() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    let reading = client.get_read_write_lock("x").read_lock();
    let reading = reading.lock().await.unwrap();
    let writing = client.get_read_write_lock("y").write_lock();
    let writing = writing.lock().await.unwrap().into_guard();
    // The watchdog's lease.
    ahead.advance(LONG);
    for guard in [&reading, &writing] {
        let checked = guard.check();
        let over = matches!(
            &checked,
            Err(Error::Lost {
                reason: LostReason::Expired,
                ..
            })
        );
        assert!(over && !guard.is_valid(), "{checked:?}");
    }
    for guard in [reading, writing] {
        assert_eq!(soon(guard.lost()).await, LostReason::Expired);
        assert!(guard.unlock().await.unwrap_err().is_lost());
    }
    clean(&server).await;
}

/// The answer to its question lay unread until the hold that it was to share was over.
#[tokio::test]
async fn a_reader_that_sees_its_join_too_late_starts_afresh() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock);
    let client = client.connect().await.unwrap();
    let read = client.get_read_write_lock("x").read_lock();
    let reading = read.lock().await.unwrap();
    // Longer than what is promised, so it has to ask.
    let mut longer = Box::pin(read.lock_with_lease(Duration::from_secs(600)));
    assert!(poll_once(&mut longer).await.is_none());
    // Over the same connection: the answer before this one is there, too.
    assert!(read.is_locked().await.unwrap());
    ahead.advance(LONG);
    // Nothing comes between the two, so the keeper did not look.
    let seen = poll_once(&mut longer).await;
    let guard = match seen {
        Some(got) => got.unwrap(),
        None => soon(longer).await.unwrap(),
    };
    guard.check().unwrap();
    assert!(reading.unlock().await.unwrap_err().is_lost());
    guard.unlock().await.unwrap();
    clean(&server).await;
}

/// Otherwise the keeper would renew it for ever.
#[tokio::test]
async fn i9_a_read_level_that_nobody_collects_is_given_back() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).command_timeout(ms(800));
    let client = builder.connect().await.unwrap();
    let lock = client.get_read_write_lock("x");
    let (read, write) = (lock.read_lock(), lock.write_lock());
    let writing = write.lock().await.unwrap();
    let mut asleep = Box::pin(read.lock());
    assert!(poll_once(&mut asleep).await.is_none());
    let grants = server.calls_of("hset").await;
    writing.unlock().await.unwrap();
    eventually("it was granted", LONG, async || {
        server.calls_of("hset").await > grants
    })
    .await;
    let other = connect(&server).await.get_read_write_lock("x").write_lock();
    soon(other.lock()).await.unwrap().unlock().await.unwrap();
    // A caller that comes back to it later starts afresh.
    soon(asleep).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// Another reader of the client is refused for a strange writer meanwhile, which the uncollected level keeps out.
#[tokio::test]
async fn i9_a_read_level_that_nobody_collects_keeps_no_stranger_out() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).command_timeout(ms(2_000));
    let client = builder.connect().await.unwrap();
    // Readers heed its note for longer than anybody here waits.
    let builder = Client::builder(&server.url()).watchdog_lease(LONG * 10);
    let other = builder.connect().await.unwrap();
    let read = client.get_read_write_lock("x").read_lock();
    let write = other.get_read_write_lock("x").write_lock();
    let held = write.lock().await.unwrap();
    let mut asleep = Box::pin(read.lock());
    assert!(poll_once(&mut asleep).await.is_none());
    let grants = server.calls_of("hset").await;
    held.unlock().await.unwrap();
    eventually("it was granted", LONG, async || {
        server.calls_of("hset").await > grants
    })
    .await;
    let writing = tokio::spawn(async move { write.lock().await });
    eventually("it is noted", LONG, async || {
        server.exists("watchlock_writers:{x}").await
    })
    .await;
    let late = client.get_read_write_lock("x").read_lock();
    // Longer than what is promised, so it has to ask. It may come before the writer, so it ends by itself.
    let reading = tokio::spawn(async move {
        let reading = late.lock_with_lease(LONG * 10).await?;
        reading.unlock().await
    });
    soon(writing)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    soon(reading).await.unwrap().unwrap();
    soon(asleep).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// When its answer comes, the hold that it asked for is over.
#[tokio::test]
async fn a_reader_whose_shared_hold_runs_out_during_its_join_gets_a_fresh_one() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = client.connect().await.unwrap();
    let lock = client.get_read_write_lock("x").read_lock();
    let first = lock.lock_with_lease(ms(1_500)).await.unwrap();
    let scripts = Match::when(|command| command.name() == "EVALSHA");
    let late = proxy.inject(Fault::DelayReply(ms(4_000)));
    let aim = late.on(Match::arg("x").and(scripts)).arm();
    let joins = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock_with_lease(LONG * 2).await }
    });
    eventually("it asks", LONG, async || aim.fired() == 1).await;
    assert_eq!(soon(first.lost()).await, LostReason::Expired);
    let fresh = soon(joins).await.unwrap().unwrap();
    fresh.verify().await.unwrap();
    fresh.unlock().await.unwrap();
    clean(&server).await;
}
