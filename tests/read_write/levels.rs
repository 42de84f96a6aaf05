//! Who enters again, and how a writer becomes a reader.

use std::time::Duration;

use watchlock::{Client, Clock, Error, Lease, LostReason};
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use watchlock_support::eventually;

use crate::common::{
    LONG, SHORT, clean, connect, connect_short, ms, poll_once, script, soon, without_polls,
};
use crate::{reads, timeout_keys, try_read, try_write};

#[tokio::test]
async fn an_owner_enters_again_as_it_may() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let (read, write) = (lock.read_lock(), lock.write_lock());

    let outer = read.lock().await.unwrap();
    let inner = read.lock().await.unwrap();
    assert_eq!((read.hold_count(), write.hold_count()), (2, 0));
    for wait in [Duration::ZERO, ms(100), Duration::MAX] {
        let refused = soon(write.try_lock(wait, Lease::Watchdog)).await;
        assert!(
            matches!(&refused, Err(Error::WouldDeadlock { .. })),
            "{refused:?}"
        );
    }
    let error = soon(write.lock()).await.unwrap_err();
    assert_eq!(error.lock(), Some("x"));
    assert!(!error.is_transient() && !error.is_lost());
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();

    let outer = write.lock().await.unwrap();
    let inner = write.lock().await.unwrap();
    let reading = read.lock().await.unwrap();
    assert_eq!((read.hold_count(), write.hold_count()), (1, 2));
    assert_eq!((outer.hold_count(), reading.hold_count()), (2, 1));
    let fields = server.hash("x").await;
    let write_field = fields
        .iter()
        .find(|(field, _)| field.ends_with(":write"))
        .unwrap();
    assert_eq!(write_field.1, "2");
    assert!(
        !read.is_locked().await.unwrap(),
        "its read levels are local"
    );
    reading.unlock().await.unwrap();
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_reader_enters_again_while_a_writer_waits() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let owner = a.new_owner();
    let read = owner.get_read_write_lock("x").read_lock();
    let outer = read.lock().await.unwrap();
    for client in [&a, &b] {
        let write = client.get_read_write_lock("x").write_lock();
        let mut writing = Box::pin(write.lock());
        assert!(poll_once(&mut writing).await.is_none());
        tokio::time::sleep(ms(100)).await;
        assert!(poll_once(&mut writing).await.is_none());
        let inner = soon(read.lock()).await.unwrap();
        inner.unlock().await.unwrap();
        assert!(try_read(client, "x").await.is_none(), "anybody else waits");
        drop(writing);
    }
    outer.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn downgrade_leaves_no_gap_and_lets_readers_in() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    for client in [&a, &b] {
        for owned in [true, false] {
            let owner = a.new_owner();
            let lock = if owned {
                owner.get_read_write_lock("x")
            } else {
                a.get_read_write_lock("x")
            };
            let write = lock.write_lock().lock().await.unwrap();
            let view = write.hold();
            let other = client.get_read_write_lock("x").read_lock();
            let waiting = tokio::spawn(async move { other.lock().await });
            let third = b.get_read_write_lock("x").write_lock();
            tokio::time::sleep(ms(50)).await;
            let reading = write.downgrade().await.unwrap();
            assert!(reading.is_valid());
            assert!(
                !view.is_valid(),
                "a task that watched the write hold sees its end"
            );
            let theirs = soon(waiting).await.unwrap().unwrap();
            let none = third.try_lock(Duration::ZERO, Lease::Watchdog).await;
            assert!(none.unwrap().is_none(), "nobody writes in between");
            assert_eq!(server.hash("x").await["mode"], "read");
            reading.verify().await.unwrap();
            theirs.unlock().await.unwrap();
            reading.unlock().await.unwrap();
        }
    }
    clean(&server).await;
}

/// Nobody polls here, and no lease is over. Redisson wakes nobody here.
#[tokio::test]
async fn a_downgrade_wakes_a_waiting_reader_of_another_client() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, without_polls(&server).connect());
    let b = b.await.unwrap();
    for owned in [true, false] {
        let owner = a.new_owner();
        let lock = owner.get_read_write_lock("x");
        let write = lock.write_lock().lock_with_lease(LONG * 10).await.unwrap();
        let read = b.get_read_write_lock("x").read_lock();
        let waiting = tokio::spawn(async move { read.lock().await });
        eventually("it listens, and tried again", LONG, async || {
            server.subscribers("redisson_rwlock:{x}").await > 0
        })
        .await;
        tokio::time::sleep(ms(50)).await;
        let reading = if owned {
            let reading = lock.read_lock().lock_with_lease(LONG).await.unwrap();
            write.unlock().await.unwrap();
            reading
        } else {
            write.downgrade().await.unwrap()
        };
        soon(waiting)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
        reading.unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn giving_the_write_level_back_leaves_the_lock_to_its_read_levels() {
    let server = RedisServer::start();
    let (a, b) = (connect_short(&server).await, connect(&server).await);
    let owner = a.new_owner();
    let lock = owner.get_read_write_lock("x");
    let write = lock.write_lock().lock().await.unwrap();
    let reading = lock.read_lock().lock().await.unwrap();
    let other = b.get_read_write_lock("x").read_lock();
    let waiting = tokio::spawn(async move { other.lock().await });
    write.unlock().await.unwrap();
    let theirs = soon(waiting).await.unwrap().unwrap();
    assert_eq!(
        (reads(&server, "x").await, timeout_keys(&server).await.len()),
        (2, 2)
    );
    assert!(matches!(
        lock.write_lock().lock().await,
        Err(Error::WouldDeadlock { .. })
    ));
    let inside = try_read(&a, "x").await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    assert!(reading.is_valid(), "it is renewed as a reader");
    inside.unlock().await.unwrap();
    theirs.unlock().await.unwrap();
    reading.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_dropped_write_level_leaves_the_lock_to_its_read_levels() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    // The keeper writes it to Redis, and then wakes its own client's readers.
    for client in [&b, &a] {
        let owner = a.new_owner();
        let lock = owner.get_read_write_lock("x");
        let write = lock.write_lock().lock().await.unwrap();
        let reading = lock.read_lock().lock().await.unwrap();
        drop(write);
        let theirs = soon(client.get_read_write_lock("x").read_lock().lock())
            .await
            .unwrap();
        assert!(reading.is_valid());
        reading.unlock().await.unwrap();
        theirs.unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn an_inner_write_level_that_is_downgraded_is_a_read_level_of_a_writer() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let outer = lock.write_lock().lock().await.unwrap();
    let inner = lock.write_lock().lock().await.unwrap();
    let reading = inner.downgrade().await.unwrap();
    assert!(lock.write_lock().is_locked().await.unwrap());
    assert!(try_read(&client, "x").await.is_none());
    outer.unlock().await.unwrap();
    assert!(lock.read_lock().is_locked().await.unwrap());
    reading.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_fixed_write_lease_that_ends_leaves_the_lock_to_watched_read_levels() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let owner = a.new_owner();
    let lock = owner.get_read_write_lock("x");
    let write = lock.write_lock().lock_with_lease(ms(800)).await.unwrap();
    let reading = lock.read_lock().lock().await.unwrap();
    assert_eq!(soon(write.lost()).await, LostReason::Expired);
    let theirs = soon(b.get_read_write_lock("x").read_lock().lock())
        .await
        .unwrap();
    assert!(reading.is_valid());
    assert!(write.unlock().await.is_err());
    reading.unlock().await.unwrap();
    theirs.unlock().await.unwrap();
    clean(&server).await;
}

/// As behind any fixed lease that ran out: the drift is the writer's time to stop.
#[tokio::test]
async fn readers_come_in_once_the_whole_lease_of_a_write_level_that_ran_out_is_over() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let builder = Client::builder(&server.url()).clock(clock);
    let (a, b) = (builder.connect().await.unwrap(), connect(&server).await);
    let owner = a.new_owner();
    let lock = owner.get_read_write_lock("x");
    let secs = Duration::from_secs;
    let write = lock.write_lock().lock_with_lease(secs(3_600)).await;
    let write = write.unwrap();
    let reading = lock.read_lock().lock().await.unwrap();
    let pass = async |span| {
        ahead.advance(span);
        eventually("it is renewed", LONG, async || {
            reading.valid_for() > secs(25)
        })
        .await;
    };
    pass(secs(3_550)).await;
    pass(secs(20)).await;
    assert_eq!(soon(write.lost()).await, LostReason::Expired);
    let other = b.get_read_write_lock("x").read_lock();
    let early = other.try_lock(ms(300), Lease::Watchdog).await.unwrap();
    assert!(early.is_none(), "30 s of the lease are left");
    pass(secs(20)).await;
    pass(secs(10)).await;
    let theirs = soon(other.lock()).await.unwrap();
    theirs.unlock().await.unwrap();
    drop(write);
    reading.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_downgraded_fixed_lease_goes_on() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x");
    let write = lock.write_lock().lock_with_lease(ms(800)).await.unwrap();
    let reading = write.downgrade().await.unwrap();
    assert!(reading.valid_for() <= ms(800) && reading.is_valid());
    assert!(server.pttl("x").await <= 800, "no longer than it was");
    assert!(try_read(&client, "x").await.is_some());
    assert_eq!(soon(reading.lost()).await, LostReason::Expired);
    drop(reading);
    clean(&server).await;
}

#[tokio::test]
async fn detached_levels_are_given_back_by_the_lock_that_they_are_of() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    lock.write_lock().lock().await.unwrap().detach().unwrap();
    lock.read_lock().lock().await.unwrap().detach().unwrap();
    lock.write_lock().unlock().await.unwrap();
    assert!(matches!(
        lock.write_lock().unlock().await,
        Err(Error::NotOwner { .. })
    ));
    assert!(try_write(&client, "x").await.is_none());
    lock.read_lock().unlock().await.unwrap();
    assert!(lock.read_lock().unlock().await.is_err());
    try_write(&client, "x")
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    lock.write_lock().lock().await.unwrap().detach().unwrap();
    lock.read_lock().lock().await.unwrap().detach().unwrap();
    drop(owner);
    clean(&server).await;
}

#[tokio::test]
async fn acquires_of_one_owner_at_once_are_put_in_order() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    client
        .scope(async {
            let lock = client.get_read_write_lock("x");
            let (read, write) = (lock.read_lock(), lock.write_lock());
            let (first, second) = tokio::join!(write.lock(), read.lock());
            let (first, second) = (first.unwrap(), second.unwrap());
            first.unlock().await.unwrap();
            second.unlock().await.unwrap();
            let (first, second) = tokio::join!(read.lock(), write.lock());
            first.unwrap().unlock().await.unwrap();
            assert!(matches!(second, Err(Error::WouldDeadlock { .. })));
        })
        .await;
    clean(&server).await;
}

#[tokio::test]
async fn a_level_that_ends_while_another_is_asked_for_is_lost_on_time() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let read = owner.get_read_write_lock("x").read_lock();
    let outer = read.lock_with_lease(SHORT).await.unwrap();
    let view = outer.hold();
    outer.detach().unwrap();
    server.freeze();
    let mut longer = Box::pin(read.lock_with_lease(LONG));
    assert!(poll_once(&mut longer).await.is_none());
    // Not once the requested level is decided, which may be lost in the same moment.
    tokio::select! {
        biased;
        reason = soon(view.lost()) => assert_eq!(reason, LostReason::Expired),
        asked = &mut longer => panic!("{:?}", asked.err()),
    }
    // The requested level counts until it is refused: it ends with the hold in Redis, which is next.
    eventually("nothing is left", LONG, async || !read.is_held()).await;
    assert!(soon(longer).await.unwrap_err().is_lost());
    server.resume();
}

/// Redis answers about the hold of all levels, which goes on.
#[tokio::test]
async fn a_level_that_ends_while_redis_is_asked_about_it_is_lost() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(LONG);
    let client = client.connect().await.unwrap();
    let read = client.get_read_write_lock("x").read_lock();
    let kept = read.lock().await.unwrap();
    let level = read.lock_with_lease(ms(500)).await.unwrap();
    let late = proxy.inject(Fault::DelayReply(SHORT));
    let late = late.on(Match::script(&script("rw/assert.lua"))).arm();
    let verified = soon(level.verify()).await;
    assert_eq!(late.fired(), 1);
    assert!(verified.unwrap_err().is_lost());
    kept.unlock().await.unwrap();
}

/// A Java peer may read beside it and shorten the key's lease, so the client relies on no more than it keeps writing.
#[tokio::test]
async fn a_long_lease_that_was_downgraded_is_vouched_for_and_asserted_as_a_readers() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(9);
    let client = Client::builder(&server.url()).watchdog_lease(lease);
    let client = client.connect().await.unwrap();
    let lock = client.get_read_write_lock("x");
    let hour = Duration::from_secs(3_600);
    let write = lock.write_lock().lock_with_lease(hour).await.unwrap();
    assert!(write.valid_for() > lease);
    let reading = write.downgrade().await.unwrap();
    assert!(reading.valid_for() <= lease, "{:?}", reading.valid_for());
    server.cmd(&["PEXPIRE", "x", "20000"]).await;
    eventually("it has its lease again", LONG, async || {
        server.pttl("x").await > 3_000_000
    })
    .await;
    reading.check().unwrap();
    reading.unlock().await.unwrap();
    clean(&server).await;
}
