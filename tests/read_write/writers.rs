//! Writers: alone, and not starved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use watchlock::{Client, Clock, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, connect_short, ms, poll_once, soon, without_polls};
use crate::{reads, try_read, try_write};

const NOTES: &str = "watchlock_writers:{x}";

#[tokio::test]
async fn a_writer_gets_in_among_overlapping_readers() {
    let server = RedisServer::start();
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for _ in 0..4 {
        let client = connect(&server).await;
        for number in 0..8 {
            let lock = client.get_read_write_lock("x").read_lock();
            let over = Arc::clone(&over);
            readers.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let guard = lock.lock().await.unwrap();
                    tokio::time::sleep(ms(5 + number)).await;
                    guard.unlock().await.unwrap();
                }
            }));
        }
    }
    let client = connect(&server).await;
    eventually("they read", LONG, async || reads(&server, "x").await >= 3).await;
    let write = client.get_read_write_lock("x").write_lock();
    for _ in 0..5 {
        let guard = soon(write.lock()).await.unwrap();
        assert_eq!(reads(&server, "x").await, 0);
        guard.unlock().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    for reader in readers {
        soon(reader).await.unwrap();
    }
    clean(&server).await;
}

/// The note of the one before is removed; that of the next comes sooner than one that is left again after a second.
#[tokio::test]
async fn a_writer_behind_one_that_gave_up_is_noted_soon() {
    let server = RedisServer::start();
    let (clock, ahead) = Clock::driven();
    let client = Client::builder(&server.url()).clock(clock).connect();
    let client = client.await.unwrap();
    ahead.stop();
    let lock = client.get_read_write_lock("x");
    let reading = lock.read_lock().lock().await.unwrap();
    let noted = async |is: bool| {
        eventually("as it should be", LONG, async || {
            server.exists(NOTES).await == is
        })
        .await;
    };
    for _ in 0..5 {
        let write = lock.write_lock();
        let waits = tokio::spawn(async move { write.lock().await });
        noted(true).await;
        waits.abort();
        noted(false).await;
        ahead.advance(ms(100));
    }
    reading.unlock().await.unwrap();
    drop(client);
    clean(&server).await;
}

#[tokio::test]
async fn a_writer_that_waits_leaves_a_note_and_takes_it_away() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let reading = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    assert!(try_write(&b, "x").await.is_none());
    assert!(!server.exists(NOTES).await, "one try leaves none");
    let write = b.get_read_write_lock("x").write_lock();
    let mut writing = Box::pin(write.lock());
    assert!(poll_once(&mut writing).await.is_none());
    eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
    let left = server.pttl(NOTES).await;
    assert!((1..=3_000).contains(&left), "{left}");
    let member: Vec<String> = server.query(&["ZRANGE", NOTES, "0", "-1"]).await;
    assert_eq!(member, ["cycle", &b.id().to_string()]);
    assert!(try_read(&b, "x").await.is_none());
    tokio::time::sleep(ms(60)).await;
    assert!(
        try_read(&a, "x").await.is_none(),
        "readers elsewhere heed it"
    );
    // The note is left again and again.
    tokio::time::sleep(ms(3_500)).await;
    assert!(server.exists(NOTES).await);
    let late = a.get_read_write_lock("x").read_lock();
    let waiting = tokio::spawn(async move { late.lock().await.unwrap() });
    tokio::time::sleep(ms(100)).await;
    drop(writing);
    soon(waiting).await.unwrap().unlock().await.unwrap();
    eventually("the note is gone", LONG, async || {
        !server.exists(NOTES).await
    })
    .await;
    reading.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_writer_waits_behind_its_own_clients_readers_and_is_noted() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let reading = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let write = a.get_read_write_lock("x").write_lock();
    let waiting = tokio::spawn(async move { write.lock().await.unwrap() });
    eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
    assert!(try_read(&b, "x").await.is_none());
    assert!(try_read(&a, "x").await.is_none());
    reading.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap();
    assert!(!server.exists(NOTES).await, "the grant takes it away");
    guard.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_client_that_ends_takes_its_note_with_it() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let reading = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let write = b.get_read_write_lock("x").write_lock();
    let waiting = tokio::spawn(async move { write.lock().await.map(drop) });
    eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
    b.shutdown(ms(100)).await;
    assert!(soon(waiting).await.unwrap().is_err());
    assert!(!server.exists(NOTES).await);
    let again = soon(a.get_read_write_lock("x").read_lock().lock())
        .await
        .unwrap();
    again.unlock().await.unwrap();
    reading.unlock().await.unwrap();
    clean(&server).await;
}

/// Leaves the note of a writer elsewhere, for so many ms.
pub(crate) async fn note(server: &RedisServer, left: u64) {
    let now: Vec<u64> = server.query(&["TIME"]).await;
    let heeded = (now[0] * 1_000 + now[1] / 1_000 + left).to_string();
    server.cmd(&["ZADD", NOTES, &heeded, "somebody"]).await;
}

/// A reader that does not heed notes.
async fn reads_for_ever(server: &RedisServer) {
    let timeout = "{x}:java:1:rwlock_timeout:1";
    for command in [
        &["HSET", "x", "mode", "read", "java:1", "1"][..],
        &["SET", timeout, "1", "PX", "600000"],
        &["PEXPIRE", "x", "600000"],
    ] {
        server.cmd(command).await;
    }
}

#[tokio::test]
async fn a_note_is_heeded_for_the_watchdogs_lease_and_no_longer() {
    let server = RedisServer::start();
    let a = connect(&server).await;
    let builder = watchlock::Client::builder(&server.url()).watchdog_lease(ms(1_500));
    let b = builder.connect().await.unwrap();
    reads_for_ever(&server).await;
    let write = b.get_read_write_lock("x").write_lock();
    let mut writing = Box::pin(write.lock());
    assert!(poll_once(&mut writing).await.is_none());
    eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
    assert!(try_read(&a, "x").await.is_none());
    let guard = soon(a.get_read_write_lock("x").read_lock().lock())
        .await
        .unwrap();
    assert!(poll_once(&mut writing).await.is_none(), "it still waits");
    guard.unlock().await.unwrap();
    drop(writing);
}

/// Neither client leaves a note while the other one pauses.
#[tokio::test]
async fn a_reader_gets_in_beside_writers_of_two_clients() {
    let server = RedisServer::start();
    let reader = connect(&server).await;
    let builder = || watchlock::Client::builder(&server.url()).watchdog_lease(ms(1_500));
    let (a, b) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    reads_for_ever(&server).await;
    let (one, two) = (a.get_read_write_lock("x"), b.get_read_write_lock("x"));
    let (one, two) = (one.write_lock(), two.write_lock());
    let mut first = Box::pin(one.lock());
    assert!(poll_once(&mut first).await.is_none());
    tokio::time::sleep(ms(1_000)).await; // half of the time from one pause to the next
    let mut second = Box::pin(two.lock());
    assert!(poll_once(&mut second).await.is_none());
    let lock = reader.get_read_write_lock("x").read_lock();
    for _ in 0..3 {
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
        eventually("they are heeded again", LONG, async || {
            try_read(&reader, "x").await.is_none()
        })
        .await;
    }
}

#[tokio::test]
async fn two_clients_that_write_in_a_loop_and_a_reader_get_in_by_turns() {
    let server = RedisServer::start();
    let reader = connect(&server).await;
    let written = Arc::new(AtomicU32::new(0));
    let mut writers = Vec::new();
    for _ in 0..2 {
        let lock = connect(&server).await.get_read_write_lock("x").write_lock();
        let written = Arc::clone(&written);
        writers.push(tokio::spawn(async move {
            loop {
                let guard = lock.lock().await.unwrap();
                written.fetch_add(1, Ordering::Relaxed);
                guard.unlock().await.unwrap();
            }
        }));
    }
    let lock = reader.get_read_write_lock("x").read_lock();
    for _ in 0..10 {
        let before = written.load(Ordering::Relaxed);
        let guard = soon(lock.lock()).await.unwrap();
        let turns = written.load(Ordering::Relaxed) - before;
        assert!(turns < 1_000, "the writers had {turns} turns");
        let before = written.load(Ordering::Relaxed);
        guard.unlock().await.unwrap();
        eventually("a writer gets in, too", LONG, async || {
            written.load(Ordering::Relaxed) > before
        })
        .await;
    }
    for writer in writers {
        writer.abort();
    }
}

/// Others who come later need not do without it either.
#[tokio::test]
async fn a_new_writer_is_heeded_beside_one_whose_time_is_over() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect_short(&server).await);
    reads_for_ever(&server).await;
    let write = b.get_read_write_lock("x").write_lock();
    let mut first = Box::pin(write.lock());
    assert!(poll_once(&mut first).await.is_none());
    eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
    eventually("it is heeded no more", LONG, async || {
        try_read(&a, "x").await.is_some()
    })
    .await;
    let mut second = Box::pin(write.lock());
    assert!(poll_once(&mut second).await.is_none());
    drop(first);
    eventually("the other one is heeded", LONG, async || {
        try_read(&a, "x").await.is_none()
    })
    .await;
    drop(second);
}

#[tokio::test]
async fn on_a_free_lock_nobody_heeds_a_note() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    note(&server, 3_000).await;
    server.cmd(&["PEXPIRE", NOTES, "3000"]).await;
    let guard = try_read(&client, "x").await.unwrap();
    assert!(try_read(&client, "x").await.is_none(), "the next one does");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn local_readers_and_writers_come_in_turn() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x");
    let first = lock.read_lock().lock().await.unwrap();
    let write = lock.write_lock();
    let mut writing = Box::pin(write.lock());
    assert!(poll_once(&mut writing).await.is_none());
    let behind = lock.read_lock();
    let mut reading = Box::pin(behind.lock());
    assert!(
        poll_once(&mut reading).await.is_none(),
        "nobody passes a writer"
    );
    first.unlock().await.unwrap();
    let guard = soon(&mut writing).await.unwrap();
    assert!(poll_once(&mut reading).await.is_none());
    guard.unlock().await.unwrap();
    soon(&mut reading).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_writer_that_gives_up_lets_those_behind_it_in() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x");
    let first = lock.read_lock().lock().await.unwrap();
    let write = lock.write_lock();
    let gives_up = tokio::spawn(async move { write.try_lock(ms(300), Lease::Watchdog).await });
    tokio::time::sleep(ms(50)).await;
    let behind = lock.read_lock();
    let reading = tokio::spawn(async move { behind.lock().await });
    assert!(soon(gives_up).await.unwrap().unwrap().is_none());
    soon(reading)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    first.unlock().await.unwrap();
    clean(&server).await;
}

/// A busy answer that a reader got a while ago does not make a writer look at its own client's hold again and again.
#[tokio::test]
async fn a_writer_behind_its_own_clients_readers_asks_at_its_polls_only() {
    let server = RedisServer::start();
    let client = without_polls(&server).connect().await.unwrap();
    let lock = client.get_read_write_lock("x");
    let reading = lock.read_lock().lock().await.unwrap();
    // Longer than what is promised, so it has to ask.
    let hour = Lease::Fixed(Duration::from_secs(3_600));
    eventually(
        "a reader is refused for a writer elsewhere",
        LONG,
        async || {
            note(&server, 1_000).await;
            let reader = lock.read_lock().try_lock(Duration::ZERO, hour).await;
            reader.unwrap().is_none()
        },
    )
    .await;
    server.cmd(&["DEL", NOTES]).await;
    let write = lock.write_lock();
    let mut writing = Box::pin(write.lock());
    assert!(poll_once(&mut writing).await.is_none());
    eventually("it listens", LONG, async || {
        server.subscribers("redisson_rwlock:{x}").await > 0
    })
    .await;
    tokio::time::sleep(ms(1_200)).await; // the lease in the reader's answer is over
    server.reset_calls().await;
    tokio::time::sleep(ms(500)).await; // silence is what is looked at
    let asked = server.calls_of("evalsha").await;
    assert!(asked < 20, "{asked} questions in half a second");
    reading.unlock().await.unwrap();
    soon(writing).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// Neither an operator's deletion nor the end of the last reader holds up a waiting writer.
#[tokio::test]
async fn a_writer_gets_in_at_once_when_the_last_reader_goes() {
    let server = RedisServer::start();
    let minute = crate::common::without_polls(&server);
    let (a, b) = (connect(&server).await, minute.connect().await.unwrap());
    let reading = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let write = b.get_read_write_lock("x").write_lock();
    let waiting = tokio::spawn(async move { write.lock().await.unwrap() });
    eventually("somebody listens", LONG, async || {
        server.subscribers("redisson_rwlock:{x}").await > 0
    })
    .await;
    tokio::time::sleep(ms(50)).await;
    reading.unlock().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    guard
        .expect("it is answered")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

/// Nothing lingers then, so the job ends with its waiter.
#[tokio::test]
async fn a_writer_that_may_not_listen_takes_its_note_away() {
    let server = RedisServer::start();
    let rights = ["on", ">deaf", "~*", "&*", "+@all", "-@pubsub", "+publish"];
    server
        .cmd(&[&["ACL", "SETUSER", "deaf"][..], &rights[..]].concat())
        .await;
    let url = format!("redis://deaf:deaf@127.0.0.1:{}/", server.port());
    let (a, b) = (
        connect(&server).await,
        watchlock::Client::connect(&url).await.unwrap(),
    );
    let reading = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let write = b.get_read_write_lock("x").write_lock();
    let writing = tokio::spawn(async move { write.lock().await.map(drop) });
    eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
    let away = server.calls_of("zrem").await;
    writing.abort();
    // By itself it would end silently.
    eventually("it is taken away", LONG, async || {
        server.calls_of("zrem").await > away
    })
    .await;
    assert!(!server.exists(NOTES).await);
    reading.unlock().await.unwrap();
    clean(&server).await;
}

/// A client waits for the end of a note before it ends itself, but not for a note that is gone.
#[tokio::test]
async fn a_client_whose_writer_gave_up_before_ends_at_once() {
    let server = RedisServer::start();
    let a = connect(&server).await;
    let reading = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let mut took = Vec::new();
    for _ in 0..5 {
        let b = connect(&server).await;
        let write = b.get_read_write_lock("x").write_lock();
        let mut writing = Box::pin(write.lock());
        assert!(poll_once(&mut writing).await.is_none());
        eventually("it is noted", LONG, async || server.exists(NOTES).await).await;
        drop(writing);
        eventually("the note is gone", LONG, async || {
            !server.exists(NOTES).await
        })
        .await;
        // Over the connection that took it away, so the client has heard of that.
        let _ = b
            .get_read_write_lock("x")
            .read_lock()
            .is_locked()
            .await
            .unwrap();
        let closing = std::time::Instant::now();
        soon(b.shutdown(LONG)).await;
        took.push(closing.elapsed());
    }
    reading.unlock().await.unwrap();
    let shortest = took.iter().min();
    assert!(
        shortest.is_some_and(|shortest| *shortest < ms(300)),
        "{took:?}"
    );
}
