//! Readers: many at once; to Redis, each client is one.

use std::time::{Duration, Instant};

use futures_util::future::join;
use watchlock::{Client, Error, Lease, LockGuard, LostReason, ReadLock, Ttl};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{
    LONG, SHORT, clean, connect, connect_short, ms, poll_once, script, soon, without_polls,
};
use crate::{reads, timeout_keys, try_read, try_write};

#[tokio::test]
async fn many_read_at_once_and_nobody_writes() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let first = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let second = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let theirs = b.get_read_write_lock("x").read_lock().lock().await.unwrap();
    assert!(try_write(&a, "x").await.is_none());
    assert!(try_write(&b, "x").await.is_none());
    let fields = server.hash("x").await;
    assert_eq!(
        fields.len(),
        3,
        "the mode and a field for each client: {fields:?}"
    );
    first.unlock().await.unwrap();
    theirs.unlock().await.unwrap();
    assert!(second.is_valid());
    assert!(try_write(&b, "x").await.is_none(), "one reader is left");
    second.unlock().await.unwrap();
    try_write(&b, "x").await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn the_keys_in_redis_are_those_that_redisson_writes() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x");
    let guard = lock.read_lock().lock().await.unwrap();
    let fields = server.hash("x").await;
    let (id, count) = fields.iter().find(|(field, _)| *field != "mode").unwrap();
    assert_eq!((fields["mode"].as_str(), count.as_str()), ("read", "1"));
    assert!(id.starts_with(&client.id().to_string()));
    let timeout = format!("{{x}}:{id}:rwlock_timeout:1");
    assert_eq!(timeout_keys(&server).await, std::slice::from_ref(&timeout));
    for key in ["x", &timeout] {
        let left = server.pttl(key).await;
        assert!((20_000..=30_000).contains(&left), "{key}: {left}");
    }
    guard.unlock().await.unwrap();
    let guard = lock.write_lock().lock().await.unwrap();
    let fields = server.hash("x").await;
    let (id, count) = fields.iter().find(|(field, _)| *field != "mode").unwrap();
    assert_eq!((fields["mode"].as_str(), count.as_str()), ("write", "1"));
    assert!(id.ends_with(":write"));
    assert!(timeout_keys(&server).await.is_empty());
    guard.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_reader_beside_readers_of_its_client_sends_no_command() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let first = lock.lock().await.unwrap();
    // The chance lasts only a moment, so the test makes several rounds.
    let mut fewest = u64::MAX;
    for _ in 0..20 {
        lock.lock().await.unwrap().unlock().await.unwrap();
        let before = server.calls_of("evalsha").await;
        for _ in 0..10 {
            lock.lock().await.unwrap().unlock().await.unwrap();
        }
        fewest = fewest.min(server.calls_of("evalsha").await - before);
    }
    assert_eq!(fewest, 0, "no command for ten readers");
    first.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn one_question_lets_in_all_readers_that_come_meanwhile() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let first = lock.lock().await.unwrap();
    tokio::time::sleep(ms(60)).await;
    let before = server.calls_of("evalsha").await;
    let guards = futures_util::future::join_all((0..64).map(|_| lock.lock())).await;
    let asked = server.calls_of("evalsha").await - before;
    assert!(asked <= 4, "{asked} commands for 64 readers");
    for guard in guards {
        guard.unwrap().unlock().await.unwrap();
    }
    first.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_reader_that_came_after_the_question_that_let_it_in_has_its_whole_lease() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let lease = Duration::from_secs(5);
    // From then on Redis knows the script, so one command is enough.
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.freeze();
    let mut first = Box::pin(lock.lock_with_lease(lease));
    assert!(poll_once(&mut first).await.is_none());
    tokio::time::sleep(ms(300)).await;
    let asked = Instant::now();
    let mut second = Box::pin(lock.lock_with_lease(lease));
    assert!(poll_once(&mut second).await.is_none());
    server.resume();
    let (first, second) = soon(join(first, second)).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    let drift = ms(2) + lease / 100;
    assert!(asked.elapsed() + second.valid_for() + drift >= lease);
    first.unlock().await.unwrap();
    second.unlock().await.unwrap();
    clean(&server).await;
}

/// Each waits for a longer lease than the one before it.
#[tokio::test]
async fn one_try_lets_in_waiting_readers_of_any_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (writer, client) = (
        connect(&server).await,
        Client::connect(&proxy.url()).await.unwrap(),
    );
    let lock = client.get_read_write_lock("x").read_lock();
    let write = writer.get_read_write_lock("x").write_lock();
    let write = write.lock().await.unwrap();
    let waiting = [Some(10), Some(20), None].map(|lease| {
        let lock = lock.clone();
        tokio::spawn(async move {
            match lease {
                Some(lease) => lock.lock_with_lease(Duration::from_secs(lease)).await,
                None => lock.lock().await,
            }
        })
    });
    eventually("they were refused", LONG, async || {
        let listens = server.subscribers("redisson_rwlock:{x}").await == 1;
        listens && client.stats().waiters == 3
    })
    .await;
    let joins = Match::script(&script("rw/assert.lua"));
    let joins = proxy.inject(Fault::DelayReply(Duration::ZERO)).on(joins);
    let joins = joins.always().arm();
    write.unlock().await.unwrap();
    let mut reads = Vec::new();
    for reader in waiting {
        reads.push(soon(reader).await.unwrap().unwrap());
    }
    assert!(reads.iter().all(LockGuard::is_valid));
    assert_eq!(joins.seen(), 0, "asked for one more");
}

#[tokio::test]
async fn readers_that_wait_for_a_writer_get_in_together() {
    let server = RedisServer::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let write = a
        .get_read_write_lock("x")
        .write_lock()
        .lock()
        .await
        .unwrap();
    let mut waiting = Vec::new();
    for client in [&a, &b] {
        for _ in 0..10 {
            let lock = client.get_read_write_lock("x").read_lock();
            waiting.push(tokio::spawn(async move { lock.lock().await.unwrap() }));
        }
    }
    tokio::task::yield_now().await;
    write.unlock().await.unwrap();
    let mut guards = Vec::new();
    for waiting in waiting {
        guards.push(soon(waiting).await.unwrap());
    }
    assert!(
        guards.iter().all(LockGuard::is_valid),
        "all at the same time"
    );
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn the_watchdog_keeps_readers_and_both_their_keys() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let (first, second) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    tokio::time::sleep(SHORT * 2).await;
    assert!(first.is_valid() && second.is_valid());
    assert_eq!(timeout_keys(&server).await.len(), 1);
    first.unlock().await.unwrap();
    tokio::time::sleep(SHORT).await;
    assert!(second.is_valid());
    second.unlock().await.unwrap();
    clean(&server).await;
}

/// Each of several readers with leases of their own ends with its own.
#[tokio::test]
async fn a_fixed_level_ends_at_its_own_lease_though_others_read_on() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let watched = lock.lock().await.unwrap();
    let short = lock.lock_with_lease(ms(300)).await.unwrap();
    assert!(short.valid_for() <= ms(300) && watched.valid_for() > ms(10_000));
    assert_eq!(soon(short.lost()).await, LostReason::Expired);
    assert!(!short.is_valid() && watched.is_valid());
    assert!(matches!(
        short.unlock().await,
        Err(Error::Lost {
            reason: LostReason::Expired,
            ..
        })
    ));
    watched.check().unwrap();
    watched.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn the_last_lease_that_ends_frees_the_lock() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let watched = lock.lock().await.unwrap();
    let short = lock.lock_with_lease(ms(400)).await.unwrap();
    watched.unlock().await.unwrap();
    // Redis has a lease of thirty seconds, and the remaining reader was promised less than half a second.
    let write = client.get_read_write_lock("x").write_lock();
    soon(write.lock()).await.unwrap().unlock().await.unwrap();
    assert!(!short.is_valid());
    drop(short);
    clean(&server).await;
}

/// Levels of one owner, or of one guard, are no exception.
#[tokio::test]
async fn a_fixed_level_inside_of_a_watched_one_ends_at_its_own_lease() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    for owned in [true, false] {
        let lock = if owned {
            owner.get_read_write_lock("x").read_lock()
        } else {
            client.get_read_write_lock("x").read_lock()
        };
        let outer = lock.lock().await.unwrap();
        let inner = outer.reenter(ms(300)).await.unwrap();
        assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
        assert!(inner.valid_for() <= ms(300) && outer.valid_for() > ms(10_000));
        assert_eq!(soon(inner.lost()).await, LostReason::Expired);
        assert_eq!(outer.hold_count(), 1);
        assert!(outer.is_valid() && lock.is_held() == owned);
        for error in [
            inner.reenter(Lease::Watchdog).await.unwrap_err(),
            inner.extend(LONG).await.unwrap_err(),
            inner.verify().await.unwrap_err(),
            inner.unlock().await.unwrap_err(),
        ] {
            let reason = LostReason::Expired;
            assert!(matches!(&error, Error::Lost { reason: lost, .. } if *lost == reason));
        }
        let again = outer.reenter(LONG).await.unwrap();
        again.unlock().await.unwrap();
        outer.unlock().await.unwrap();
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_fixed_level_keeps_nothing_once_its_lease_is_over() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x").read_lock();
    let fixed = lock.lock_with_lease(ms(400)).await.unwrap();
    let watched = lock.lock().await.unwrap();
    assert_eq!(soon(fixed.lost()).await, LostReason::Expired);
    watched.unlock().await.unwrap();
    // The loss is reported a moment before the level ends; Redis has a lease of thirty seconds.
    eventually("it is given back", LONG / 3, async || {
        !server.exists("x").await
    })
    .await;
    assert!(
        matches!(lock.lock().await, Err(Error::Lost { .. })),
        "its guard is left"
    );
    drop(fixed);
    lock.lock().await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_level_that_the_watchdog_leaves_keeps_what_it_was_promised() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x").read_lock();
    let watched = lock.lock().await.unwrap();
    let short = lock.lock_with_lease(ms(700)).await.unwrap();
    watched.unlock().await.unwrap();
    assert!(short.is_valid() && short.valid_for() <= ms(700));
    assert_eq!(reads(&server, "x").await, 1);
    // Redis has a lease of thirty seconds.
    let write = client.get_read_write_lock("x").write_lock();
    soon(write.lock()).await.unwrap().unlock().await.unwrap();
    assert!(short.unlock().await.unwrap_err().is_lost());
    clean(&server).await;
}

/// The `unlock` that would have given a level back reports its end.
#[tokio::test]
async fn detached_levels_end_each_at_its_own_lease() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x").read_lock();
    let (watched, short) = (Lease::Watchdog, Lease::Fixed(ms(200)));
    for leases in [[watched, short], [short, watched]] {
        for lease in leases {
            let got = lock.try_lock(Duration::ZERO, lease).await.unwrap();
            got.unwrap().detach().unwrap();
        }
        assert_eq!(lock.hold_count(), 2);
        eventually("the short one ends", LONG, async || lock.hold_count() == 1).await;
        // A level that comes now is given back before either.
        lock.lock().await.unwrap().detach().unwrap();
        lock.unlock().await.unwrap();
        for lease in leases.into_iter().rev() {
            let answer = lock.unlock().await;
            assert_eq!(answer.is_ok(), lease == watched, "{lease:?}: {answer:?}");
        }
        assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
        clean(&server).await;
    }
}

#[tokio::test]
async fn the_level_that_was_detached_last_is_given_back_first() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x").read_lock();
    let (watched, fixed) = (
        lock.lock().await.unwrap(),
        lock.lock_with_lease(LONG).await.unwrap(),
    );
    let view = watched.hold();
    fixed.detach().unwrap();
    watched.detach().unwrap();
    lock.unlock().await.unwrap();
    assert!(!view.is_valid() && lock.is_held());
    lock.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_lease_longer_than_the_promised_one_needs_a_command() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let watched = lock.lock().await.unwrap();
    let long = lock
        .lock_with_lease(Duration::from_secs(100))
        .await
        .unwrap();
    let left = server.pttl("x").await;
    assert!(left > 90_000, "{left}");
    let timeout = server.pttl(&timeout_keys(&server).await[0]).await;
    assert!(timeout > 90_000, "{timeout}");
    // Strangers may shorten the key's lease, so the client relies on no more than it keeps writing.
    assert!(long.valid_for() <= Duration::from_secs(30));
    watched.unlock().await.unwrap();
    long.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn let_expire_leaves_a_read_level_to_its_lease() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let watched = client
        .get_read_write_lock("x")
        .read_lock()
        .lock()
        .await
        .unwrap();
    let left = lock.read_lock().lock_with_lease(ms(1_000)).await.unwrap();
    left.let_expire().unwrap();
    assert_eq!(lock.read_lock().hold_count(), 0);
    watched.unlock().await.unwrap();
    assert_eq!(reads(&server, "x").await, 1, "it is left to its lease");
    assert!(try_write(&client, "x").await.is_none());
    soon(lock.write_lock().lock())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_level_under_the_watchdog_cannot_be_left_to_its_lease() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client
        .get_read_write_lock("x")
        .read_lock()
        .lock()
        .await
        .unwrap();
    let refused = guard.let_expire().unwrap_err();
    assert!(matches!(refused.error(), Error::InvalidLease { .. }));
    refused.into_guard().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_lost_hold_is_lost_for_all_its_readers() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x").read_lock();
    let mine = lock.lock().await.unwrap();
    let other = client
        .get_read_write_lock("x")
        .read_lock()
        .lock()
        .await
        .unwrap();
    server.cmd(&["DEL", "x"]).await;
    assert_eq!(soon(mine.lost()).await, LostReason::Missing);
    assert_eq!(soon(other.lost()).await, LostReason::Missing);
    // A caller that has guards of it hears of it; any other starts afresh.
    assert!(matches!(lock.lock().await, Err(Error::Lost { .. })));
    let fresh = try_read(&client, "x").await.unwrap();
    assert!(matches!(mine.unlock().await, Err(Error::Lost { .. })));
    assert!(other.unlock().await.is_err());
    let again = lock.lock().await.unwrap();
    again.unlock().await.unwrap();
    fresh.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn verify_and_extend_ask_for_the_hold_that_is_shared() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let fixed = lock.lock_with_lease(ms(2_000)).await.unwrap();
    fixed.verify().await.unwrap();
    fixed.extend(Duration::from_secs(20)).await.unwrap();
    assert!(fixed.valid_for() > Duration::from_secs(15));
    server.cmd(&["DEL", "x"]).await;
    assert!(matches!(
        fixed.verify().await,
        Err(Error::Lost {
            reason: LostReason::Missing,
            ..
        })
    ));
    assert!(!fixed.is_valid());
    drop(fixed);
    clean(&server).await;
}

/// A reader in one client that did not come back in time.
#[tokio::test]
async fn a_dead_reader_holds_nobody_up_for_longer_than_its_lease() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let dead = format!("{}:1", uuid());
    server.cmd(&["HSET", "x", "mode", "read", &dead, "1"]).await;
    let timeout = format!("{{x}}:{dead}:rwlock_timeout:1");
    server.cmd(&["SET", &timeout, "1", "PX", "300"]).await;
    server.cmd(&["PEXPIRE", "x", "300"]).await;
    // Another one overlaps it, and keeps the hash alive.
    let guard = client
        .get_read_write_lock("x")
        .read_lock()
        .lock()
        .await
        .unwrap();
    tokio::time::sleep(ms(400)).await;
    assert!(server.hash("x").await.contains_key(&dead));
    guard.unlock().await.unwrap();
    assert!(
        !server.exists("x").await,
        "its field went with the last one who lives"
    );
    try_write(&client, "x")
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_release_leaves_others_their_promised_leases() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let other = format!("{}:1", uuid());
    server
        .cmd(&["HSET", "x", "mode", "read", &other, "2"])
        .await;
    for (level, lease) in [("1", "5000"), ("2", "9000")] {
        let timeout = format!("{{x}}:{other}:rwlock_timeout:{level}");
        server.cmd(&["SET", &timeout, "1", "PX", lease]).await;
    }
    server.cmd(&["PEXPIRE", "x", "9000"]).await;
    let guard = client
        .get_read_write_lock("x")
        .read_lock()
        .lock()
        .await
        .unwrap();
    assert!(server.pttl("x").await > 20_000);
    guard.unlock().await.unwrap();
    let left = server.pttl("x").await;
    assert!(
        (7_000..=9_000).contains(&left),
        "the longest that remains: {left}"
    );
    assert_eq!(server.hash("x").await.len(), 2);
}

#[tokio::test]
async fn a_key_of_another_kind_is_reported_and_left_alone() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    server.cmd(&["SET", "text", "1"]).await;
    let plain = client.get_lock("plain").lock().await.unwrap();
    let before = server.hash("plain").await;
    for name in ["text", "plain"] {
        let lock = client.get_read_write_lock(name);
        for got in [
            lock.read_lock().lock().await.map(drop),
            lock.write_lock().lock().await.map(drop),
            lock.read_lock().force_unlock().await.map(drop),
            lock.write_lock().force_unlock().await.map(drop),
        ] {
            assert!(
                matches!(got, Err(Error::WrongType { .. })),
                "{name}: {got:?}"
            );
        }
        assert!(!lock.read_lock().is_locked().await.unwrap());
        assert!(!lock.write_lock().is_locked().await.unwrap());
    }
    assert_eq!(server.hash("plain").await, before);
    plain.unlock().await.unwrap();
    assert_eq!(server.keys().await, ["text"]);
    let read = client
        .get_read_write_lock("x")
        .read_lock()
        .lock()
        .await
        .unwrap();
    let got = client.get_lock("x").lock().await;
    assert!(matches!(got, Err(Error::WrongType { .. })));
    read.unlock().await.unwrap();
}

#[tokio::test]
async fn a_dropped_reader_leaves_nothing() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    for polls in 0..6 {
        let mut reading = Box::pin(lock.lock());
        for _ in 0..polls {
            if poll_once(&mut reading).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(reading);
    }
    clean(&server).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_readers_and_gives_back_the_rest() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x").read_lock();
    let (first, second) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let closing = client.clone();
    let ending = tokio::spawn(async move { closing.shutdown(ms(300)).await });
    soon(client.shutting_down()).await;
    assert!(first.is_valid());
    first.unlock().await.unwrap();
    let report = soon(ending).await.unwrap();
    assert_eq!(report.held, ["x"]);
    assert_eq!(soon(second.lost()).await, LostReason::Shutdown);
    drop(second);
    clean(&server).await;
}

#[tokio::test]
async fn is_locked_and_the_time_to_live_are_of_the_mode_that_is_held() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x");
    let look = async || {
        let read = lock.read_lock().is_locked().await.unwrap();
        (read, lock.write_lock().is_locked().await.unwrap())
    };
    assert_eq!(look().await, (false, false));
    let guard = lock.read_lock().lock().await.unwrap();
    assert_eq!(look().await, (true, false));
    assert!(matches!(
        lock.read_lock().remain_time_to_live().await.unwrap(),
        Ttl::Left(_)
    ));
    assert!(
        !lock.write_lock().force_unlock().await.unwrap(),
        "not in this mode"
    );
    guard.check().unwrap();
    assert!(lock.read_lock().force_unlock().await.unwrap());
    assert_eq!(soon(guard.lost()).await, LostReason::Forced);
    drop(guard);
    let guard = lock.write_lock().lock().await.unwrap();
    assert_eq!(look().await, (false, true));
    assert!(
        !lock.read_lock().force_unlock().await.unwrap(),
        "not in this mode"
    );
    assert!(lock.write_lock().force_unlock().await.unwrap());
    assert_eq!(soon(guard.lost()).await, LostReason::Forced);
    drop(guard);
    eventually("all is gone", LONG, async || server.keys().await.is_empty()).await;
}

fn uuid() -> &'static str {
    "6a1b0c0e-0000-4000-8000-000000000001"
}

/// The handle can be stored as its own type.
#[tokio::test]
async fn a_handle_is_kept_and_sent() {
    struct Prices {
        lock: ReadLock,
    }
    let server = RedisServer::start();
    let client: Client = connect(&server).await;
    let prices = Prices {
        lock: client.get_read_write_lock("x").read_lock(),
    };
    let reading = tokio::spawn(async move {
        let got = prices.lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        got.unwrap().unwrap().unlock().await
    });
    soon(reading).await.unwrap().unwrap();
}

/// It takes more than one question to find out who has it.
#[tokio::test]
async fn a_lock_that_is_given_back_while_its_holders_are_asked_for_has_none() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let many: Vec<String> = (0..150).map(|reader| format!("java:{reader}")).collect();
    let lock = client.get_read_write_lock("x");
    // The last question about a few readers, or about many.
    for (readers, question) in [(1, "HGETALL"), (150, "HRANDFIELD"), (150, "HGET")] {
        for writes in [false, true] {
            let mut put = vec!["HSET", "x", "mode", "read"];
            put.extend(
                many[..readers]
                    .iter()
                    .flat_map(|field| [field.as_str(), "1"]),
            );
            server.cmd(&put).await;
            let late = Fault::DelayRequest(ms(300));
            let late = proxy.inject(late).on(Match::command(question)).arm();
            let asking = async {
                if writes {
                    lock.write_lock().holders().await
                } else {
                    lock.read_lock().holders().await
                }
            };
            let given_back = async {
                eventually("it is asked", LONG, async || late.fired() == 1).await;
                server.cmd(&["DEL", "x"]).await;
            };
            let (holders, ()) = join(asking, given_back).await;
            assert_eq!(holders.unwrap(), [], "{question}");
        }
    }
}

/// While others read, the lock is busy for a writer. That says nothing about readers behind it.
#[tokio::test]
async fn readers_behind_a_writer_that_does_not_wait_get_in_beside_others() {
    let server = RedisServer::start();
    let (a, b) = (
        connect(&server).await,
        without_polls(&server).connect().await.unwrap(),
    );
    let reading = a.get_read_write_lock("x").read_lock().lock().await.unwrap();
    let (read, write) = (
        b.get_read_write_lock("x").read_lock(),
        b.get_read_write_lock("x").write_lock(),
    );
    // The readers come while the writer's try is under way.
    let (wrote, first, second) = tokio::join!(
        write.try_lock(Duration::ZERO, Lease::Watchdog),
        soon(read.lock()),
        read.try_lock(Duration::ZERO, Lease::Watchdog),
    );
    assert!(wrote.unwrap().is_none());
    let all = [
        first.unwrap(),
        second.unwrap().expect("it is not busy"),
        reading,
    ];
    for guard in all {
        guard.unlock().await.unwrap();
    }
    clean(&server).await;
}
