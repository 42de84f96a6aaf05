//! Everything that a guard of several locks can do, as any other guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use watchlock::{Ended, Error, Lease, LeaseError, Lock, LockExt, LockGuard, LostReason, MultiLock};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use watchlock::Client;

use crate::common::{LONG, SHORT, clean, connect, connect_short, count, ms, soon};
use crate::{end, mixed, multi, owned};

#[tokio::test]
async fn levels_of_one_sort_are_counted_here_and_the_last_one_ends_the_hold() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let all = multi(&client, &["a", "b"]);
    let outer = all.lock().await.unwrap();
    server.reset_calls().await;
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(server.calls_of("evalsha").await, 0, "it is counted here");
    assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
    let third = inner.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(third.hold_count(), 3);
    end(outer).await;
    drop(third);
    assert_eq!(inner.hold_count(), 1);
    inner.verify().await.unwrap();
    assert_eq!(server.keys().await.len(), 2);
    end(inner).await;
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_level_with_the_other_sort_of_lease_enters_each_lock() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let all = multi(&client, &["a", "b"]);
    // Fixed first: the watchdog keeps it for as long as the second level is alive.
    let fixed = all.lock_with_lease(ms(2_000)).await.unwrap();
    let watched = fixed.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(
        (count(&server, "a").await, count(&server, "b").await),
        (2, 2)
    );
    assert_eq!((fixed.hold_count(), watched.hold_count()), (2, 2));
    let again = watched.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!((again.hold_count(), count(&server, "a").await), (3, 2));
    end(fixed).await;
    assert_eq!((again.hold_count(), count(&server, "b").await), (2, 1));
    end(watched).await;
    eventually("it is renewed", LONG, async || {
        again.check().expect("kept alive");
        server.pttl("a").await > i64::try_from(SHORT.as_millis()).unwrap() * 9 / 10
    })
    .await;
    end(again).await;

    // Watched first: the remaining fixed level keeps its lease, and nobody renews it.
    let watched = all.lock().await.unwrap();
    let fixed = watched.reenter(ms(5_000)).await.unwrap();
    end(watched).await;
    assert!(fixed.valid_for() > ms(3_000), "{:?}", fixed.valid_for());
    let longer = fixed.reenter(ms(9_000)).await.unwrap();
    assert!(fixed.valid_for() > ms(7_000), "a longer lease lengthens");
    assert_eq!(
        count(&server, "a").await,
        1,
        "the same sort shares the level"
    );
    end(longer).await;
    end(fixed).await;
    clean(&server).await;
}

#[tokio::test]
async fn entering_again_with_a_fixed_lease_lengthens_it_at_each_lock() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let outer = multi(&client, &["a", "b"]).lock_with_lease(LONG).await;
    let outer = outer.unwrap();
    // From here on the script is known.
    end(outer.reenter(LONG).await.unwrap()).await;
    server.reset_calls().await;
    let inner = outer.reenter(LONG * 2).await.unwrap();
    assert_eq!(server.calls_of("evalsha").await, 2, "one for each lock");
    assert!(outer.valid_for() > LONG && server.pttl("b").await > 31_000);
    end(inner).await;
    end(outer).await;
    clean(&server).await;
}

/// Each level of a read lock is a hold of its own.
#[tokio::test]
async fn with_read_locks_it_is_held_while_one_of_its_levels_is() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let read = |name| client.get_read_write_lock(name).read_lock();
    let both = mixed([read("a").into(), read("b").into()]);
    let sorts = [Lease::Watchdog, Lease::Fixed(LONG)];
    for (first, second) in [(sorts[0], sorts[1]), (sorts[1], sorts[0])] {
        let outer = both.try_lock(LONG, first).await.unwrap().expect("free");
        let inner = outer.reenter(second).await.unwrap();
        let view = inner.hold();
        end(outer).await;
        inner.check().expect("it has a level of each lock");
        inner.verify().await.unwrap();
        assert!(view.is_valid());
        end(inner).await;
        assert_eq!(soon(view.ended()).await, Ended::Released);
    }
    let fixed = both.lock_with_lease(ms(500)).await.unwrap();
    let watched = fixed.reenter(Lease::Watchdog).await.unwrap();
    eventually("the fixed levels are over", LONG, async || {
        watched.hold_count() == 1
    })
    .await;
    watched.check().expect("its levels are kept");
    assert!(fixed.extend(LONG).await.unwrap_err().is_lost());
    end(fixed).await;
    let view = watched.hold();
    server.cmd(&["DEL", "b"]).await;
    assert!(watched.verify().await.unwrap_err().is_lost());
    assert_eq!(soon(view.lost()).await, LostReason::Missing);
    drop(watched);
    clean(&server).await;
}

/// The watchdog's levels keep the hold.
#[tokio::test]
async fn with_read_locks_a_fixed_level_is_entered_anew_when_those_before_it_are_over() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let read = |name| client.get_read_write_lock(name).read_lock();
    let both = mixed([read("a").into(), read("b").into()]);
    let watched = both.lock().await.unwrap();
    let over = watched.reenter(ms(500)).await.unwrap();
    eventually("the fixed levels are over", LONG, async || {
        watched.hold_count() == 1
    })
    .await;
    let fixed = watched.reenter(LONG).await.expect("it is held");
    let beside = over.reenter(LONG).await.expect("it is held");
    end(watched).await;
    fixed.check().expect("it has a level of each lock");
    assert!(fixed.valid_for() > LONG / 2, "{:?}", fixed.valid_for());
    fixed.extend(LONG).await.unwrap();
    for guard in [over, beside, fixed] {
        end(guard).await;
    }
    clean(&server).await;
}

#[tokio::test]
async fn a_fixed_lease_is_extended_on_each_lock() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = multi(&client, &["a", "b"])
        .lock_with_lease(ms(3_000))
        .await
        .unwrap();
    guard.extend(ms(20_000)).await.unwrap();
    for name in ["a", "b"] {
        assert!(server.pttl(name).await > 15_000, "{name}");
    }
    assert!(guard.valid_for() > ms(15_000) && guard.valid_for() < ms(20_000));
    end(guard).await;
}

#[tokio::test]
async fn it_is_valid_for_as_long_as_the_shortest_of_its_locks() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let (a, b) = (owner.get_lock("a"), owner.get_lock("b"));
    let longer = a.lock_with_lease(ms(60_000)).await.unwrap();
    let both = owned(&owner, &["a", "b"])
        .lock_with_lease(ms(5_000))
        .await
        .unwrap();
    assert!(both.valid_for() < ms(5_000) && both.valid_for() > ms(3_000));
    assert!(longer.valid_for() > ms(50_000));
    let lengthened = b.lock_with_lease(ms(30_000)).await.unwrap();
    assert!(both.valid_for() > ms(25_000));
    end(both).await;
    assert!(
        longer.is_valid() && lengthened.is_valid(),
        "others have levels of their own"
    );
    end(longer).await;
    end(lengthened).await;
}

#[tokio::test]
async fn an_owner_enters_again_and_gives_back_its_detached_levels() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let all = owned(&owner, &["a", "b"]);
    assert_eq!((all.hold_count(), all.is_held()), (0, false));
    let first = soon(all.lock()).await.unwrap();
    let second = soon(all.lock()).await.unwrap();
    assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
    assert_eq!((all.hold_count(), count(&server, "a").await), (2, 2));
    let view = first.hold();
    first.detach().unwrap();
    second.detach().unwrap();
    assert!(view.is_valid() && all.is_held());
    view.check().unwrap();
    all.unlock().await.unwrap();
    assert_eq!(all.hold_count(), 1);
    assert!(view.is_valid());
    all.unlock().await.unwrap();
    assert!(!view.is_valid());
    assert!(matches!(view.check(), Err(Error::NotOwner { .. })));
    let error = all.unlock().await.expect_err("nothing is detached");
    assert!(matches!(error, Error::NotOwner { .. }), "{error}");
    assert!(server.keys().await.is_empty());

    // A scope is an owner, too, and a set's locks may be used on their own in it.
    let plain = multi(&client, &["a", "b"]);
    client
        .scope(async {
            let outer = plain.lock().await.unwrap();
            let one = soon(client.get_lock("a").lock()).await.unwrap();
            let inner = soon(plain.lock()).await.unwrap();
            assert_eq!((inner.hold_count(), one.hold_count()), (2, 3));
            end(outer).await;
            end(one).await;
            end(inner).await;
        })
        .await;
    clean(&server).await;
}

#[tokio::test]
async fn the_loss_of_a_detached_hold_is_reported_to_a_caller_that_asks() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let owner = client.new_owner();
    let all = owned(&owner, &["a", "b"]);
    let guard = all.lock().await.unwrap();
    let view = guard.hold();
    guard.detach().unwrap();
    server.cmd(&["DEL", "b"]).await;
    soon(view.lost()).await;
    assert!(!view.is_valid());
    let error = all.unlock().await.expect_err("one was lost");
    assert!(error.is_lost(), "{error}");
    clean(&server).await;
}

#[tokio::test]
async fn a_guard_that_cannot_be_detached_or_left_to_expire_is_returned_unchanged() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = multi(&client, &["a", "b"]).lock().await.unwrap();
    let refused = guard.detach().expect_err("nobody owns it");
    assert!(matches!(refused.error(), Error::NotOwner { .. }));
    let refused = refused
        .into_guard()
        .let_expire()
        .expect_err("it is watched");
    assert!(matches!(
        refused.error(),
        Error::InvalidLease {
            problem: LeaseError::Watchdog,
            ..
        }
    ));
    let guard = refused.into_guard();
    assert_eq!((guard.hold_count(), guard.is_valid()), (1, true));
    let refused = guard.reenter(Lease::AtMost(LONG)).await.unwrap_err();
    assert!(refused.to_string().contains("AtMost"), "{refused}");
    end(guard).await;

    let owner = client.new_owner();
    let half = mixed([owner.get_lock("a").into(), client.get_lock("b").into()]);
    let refused = half
        .lock()
        .await
        .unwrap()
        .detach()
        .expect_err("nobody owns the second");
    assert!(matches!(refused.error(), Error::NotOwner { .. }));
    assert_eq!(owner.get_lock("a").hold_count(), 1);
    end(refused.into_guard()).await;
    let error = owner.get_lock("a").unlock().await;
    assert!(error.is_err(), "the first was not left to its owner");
    clean(&server).await;

    let outer = owned(&owner, &["a", "b"])
        .lock_with_lease(LONG)
        .await
        .unwrap();
    let inner = outer.reenter(LONG).await.unwrap();
    let refused = outer.detach().expect_err("its levels are shared");
    let refused = refused
        .into_guard()
        .let_expire()
        .expect_err("its levels are shared");
    assert!(matches!(
        refused.error(),
        Error::InvalidLease {
            problem: LeaseError::OtherLevels,
            ..
        }
    ));
    drop(refused);
    let other = owner.get_lock("b").lock_with_lease(LONG).await.unwrap();
    let refused = inner
        .let_expire()
        .expect_err("one of its locks has another level");
    let inner = refused.into_guard();
    inner.check().unwrap();
    end(other).await;
    // On its own, each lock is left to its lease.
    inner.let_expire().unwrap();
    assert_eq!(server.keys().await.len(), 2);
    assert_eq!(owned(&owner, &["a", "b"]).hold_count(), 0);
}

/// The owner of the last lock ends while all are detached: the result is as if either had come first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_detached_whole_or_not_at_all() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let names: Vec<_> = (0..24).map(|number| format!("of:{number}")).collect();
    for _ in 0..200 {
        let ending = client.new_owner();
        let locks = names.iter().map(|name| owner.get_lock(name));
        let all = MultiLock::new(locks.chain([ending.get_lock("last")])).unwrap();
        let guard = all.lock().await.unwrap();
        let begun = Arc::new(AtomicBool::new(false));
        let ended = std::thread::spawn({
            let begun = Arc::clone(&begun);
            move || {
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                // At some moment while the other side is at work.
                for _ in 0..fastrand::u32(..2_000) {
                    std::hint::spin_loop();
                }
                drop(ending);
            }
        });
        begun.store(true, Ordering::Release);
        match guard.detach() {
            Ok(()) => {
                for name in &names {
                    owner.get_lock(name).unlock().await.expect("it was left");
                }
            }
            Err(refused) => {
                assert!(matches!(refused.error(), Error::NotOwner { .. }));
                refused.error().lock().expect("whose it was");
                end(refused.into_guard()).await;
            }
        }
        ended.join().unwrap();
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_dropped_guard_gives_all_back() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let all = multi(&client, &["a", "b", "c"]);
    drop(all.lock().await.unwrap());
    clean(&server).await;
    let guard = all.lock().await.unwrap();
    drop(guard.unlock());
    clean(&server).await;
}

#[tokio::test]
async fn run_gives_all_back_and_returns_the_bodys_output() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let all = multi(&client, &["a", "b"]);
    let said = all.run(async |guard| guard.name().len()).await.unwrap();
    assert_eq!(said, 4);
    assert!(server.keys().await.is_empty());
    let held = client.get_lock("b").lock().await.unwrap();
    let said = all
        .try_run(Duration::ZERO, Lease::Watchdog, async |_| ())
        .await
        .unwrap();
    assert!(said.is_none());
    end(held).await;
    let dynamic: &dyn Lock = &all;
    end(dynamic.lock().await.unwrap()).await;
    let said = dynamic.run(async |guard| guard.name().len()).await;
    assert_eq!(said.unwrap(), 4);
}

#[tokio::test]
async fn a_view_ends_with_the_hold_however_that_ends() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let all = multi(&client, &["a", "b"]);
    let watch = |guard: &LockGuard| {
        let view = guard.hold();
        tokio::spawn(async move { (view.ended().await, view.ended().await) })
    };
    let outer = all.lock().await.unwrap();
    let inner = outer.reenter(ms(60_000)).await.unwrap();
    let watched = watch(&outer);
    end(outer).await;
    assert!(inner.is_valid() && !watched.is_finished());
    end(inner).await;
    let ended = soon(watched).await.unwrap();
    assert_eq!(ended, (Ended::Released, Ended::Released));

    let left = all.lock_with_lease(ms(300)).await.unwrap();
    let watched = watch(&left);
    left.let_expire().unwrap();
    assert_eq!(soon(watched).await.unwrap(), (Ended::Left, Ended::Left));

    let guard = soon(all.lock()).await.unwrap();
    let watched = watch(&guard);
    client.get_lock("b").force_unlock().await.unwrap();
    let lost = Ended::Lost(LostReason::Forced);
    assert_eq!(soon(watched).await.unwrap(), (lost, lost));
    drop(guard);
    clean(&server).await;
}

#[tokio::test]
async fn force_unlock_frees_all_whoever_has_them() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let all = multi(&client, &["a", "b"]);
    assert!(!all.force_unlock().await.unwrap());
    let guard = multi(&other, &["a", "b"]).lock().await.unwrap();
    assert!(all.force_unlock().await.unwrap());
    assert!(server.keys().await.is_empty());
    assert!(guard.unlock().await.expect_err("it was forced").is_lost());
}

#[tokio::test]
async fn each_lock_is_given_back_whatever_the_others_answer() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let link = Proxy::to(&two);
    let here = connect(&one).await;
    let there = Client::builder(&link.url())
        .command_timeout(ms(800))
        .watchdog_lease(ms(2_000))
        .connect()
        .await
        .unwrap();
    for names in [["a", "b"], ["b", "a"]] {
        let both = mixed([
            here.get_lock(names[0]).into(),
            there.get_lock(names[1]).into(),
        ]);
        let guard = both.lock().await.unwrap();
        link.refuse();
        link.reset_all();
        let error = soon(guard.unlock()).await.expect_err("one is out of reach");
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert_eq!(error.lock(), Some(names[1]));
        assert!(one.keys().await.is_empty(), "the other is free at once");
        link.accept();
        // The release is repeated in the background.
        clean(&two).await;
    }
}
