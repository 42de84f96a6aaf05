//! Everything that a lock of a quorum and its guards can do, as any other lock.

use std::time::Duration;

use watchlock::{Client, Ended, Error, Lease, LeaseError, Lock, MultiLock, Quorum, Ttl};

use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};

use crate::common::{LONG, count, is_free, ms, soon};
use crate::{Five, end, of, try_once};

#[tokio::test]
async fn it_is_held_by_one_and_free_on_all_servers_afterwards() {
    let five = Five::start();
    let (quorum, other) = (five.connect().await, five.connect().await);
    let lock = quorum.get_lock("x");
    let guard = lock.lock().await.unwrap();
    assert!(guard.is_valid() && guard.valid_for() > ms(20_000));
    guard.verify().await.unwrap();
    assert_eq!((guard.name(), guard.hold_count()), ("x", 1));
    five.until(5, "x").await;
    assert!(try_once(&lock).await.is_none(), "in the same process");
    assert!(try_once(&other.get_lock("x")).await.is_none(), "in another");
    assert!(other.get_lock("x").is_locked().await.unwrap());
    let view = guard.hold();
    end(guard).await;
    assert!(!view.is_valid());
    five.clean().await;
    assert!(!lock.is_locked().await.unwrap());
    let again = try_once(&other.get_lock("x")).await.expect("it is free");
    end(again).await;
}

/// The last two of the servers behind proxies, and the addresses of all five.
fn two_behind_proxies(five: &Five) -> (Vec<String>, Vec<Proxy>) {
    let late: Vec<_> = five.0[3..].iter().map(Proxy::to).collect();
    let mut urls = five.urls();
    urls.truncate(3);
    urls.extend(late.iter().map(Proxy::url));
    (urls, late)
}

/// Three answers are enough for the caller. The others are part of the hold as well, and need no repair.
#[tokio::test]
async fn a_grant_answered_after_the_majority_joins_the_hold() {
    let five = Five::start();
    let (urls, late) = two_behind_proxies(&five);
    let quorum = of(&urls).connect().await.unwrap();
    for proxy in &late {
        proxy.latency(ms(60));
    }
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    let end_of_watch = std::time::Instant::now() + ms(500);
    while std::time::Instant::now() < end_of_watch {
        assert_eq!(five.have(&[3, 4], "x").await, 2, "it stays");
    }
    end(guard).await;
    five.clean().await;
}

/// It is given back after the hold; the next try of the same client does not mistake it for somebody's lock.
#[tokio::test]
async fn a_grant_answered_after_the_end_of_the_hold_keeps_nobody_out() {
    let five = Five::start();
    let (urls, late) = two_behind_proxies(&five);
    let timeout = Duration::from_secs(3);
    let quorum = of(&urls).node_timeout(timeout).connect().await.unwrap();
    let lock = quorum.get_lock("x");
    let stranger = Client::connect(&five.0[0].url()).await.unwrap();
    end(lock.lock().await.unwrap()).await;
    // Another thread hears of the end of a hold, and a try may be quicker than that, but not each time.
    for _ in 0..5 {
        five.clean().await;
        for proxy in &late {
            proxy.hold(Direction::Replies);
        }
        end(soon(lock.lock()).await.unwrap()).await;
        let held = soon(stranger.get_lock("x").lock()).await.unwrap();
        let heal = async {
            eventually("the next round began", LONG, async || {
                five.0[1].exists("x").await
            })
            .await;
            for proxy in &late {
                proxy.heal();
            }
        };
        let (got, ()) = tokio::join!(try_once(&lock), heal);
        end(held).await;
        if let Some(guard) = got {
            return end(guard).await;
        }
    }
    panic!("four of five were free, each time");
}

#[tokio::test]
async fn it_is_the_plain_lock_of_that_name_on_each_server() {
    let five = Five::start();
    let quorum = five.connect().await;
    let plain = Client::connect(&five.0[2].url()).await.unwrap();
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    assert!(!is_free(&plain, "x").await);
    end(guard).await;
    // A stranger at a minority keeps nobody out.
    let held = soon(plain.get_lock("x").lock()).await.unwrap();
    let guard = try_once(&quorum.get_lock("x"))
        .await
        .expect("four are free");
    end(guard).await;
    end(held).await;
}

#[tokio::test]
async fn leases_are_those_that_were_asked_for() {
    let five = Five::start();
    let quorum = five
        .builder()
        .max_lease(ms(60_000))
        .connect()
        .await
        .unwrap();
    let lock = quorum.get_lock("x");
    let guard = lock.lock_with_lease(ms(5_000)).await.unwrap();
    assert!(guard.valid_for() < ms(5_000) && guard.valid_for() > ms(2_000));
    for server in [0, 1, 2] {
        assert!(five.0[server].pttl("x").await <= 5_000);
    }
    guard.extend(ms(50_000)).await.unwrap();
    assert!(guard.valid_for() > ms(40_000));
    match lock.remain_time_to_live().await.unwrap() {
        Ttl::Left(left) => assert!(left > ms(40_000), "{left:?}"),
        ttl => panic!("{ttl:?}"),
    }
    let too_long = guard.extend(ms(60_001)).await.expect_err("too long");
    assert!(too_long.to_string().contains("max_lease"), "{too_long}");
    end(guard).await;
    let error = lock
        .lock_with_lease(ms(60_001))
        .await
        .expect_err("too long");
    assert!(
        matches!(
            error,
            Error::InvalidLease { problem: LeaseError::AboveMaxLease { max_lease, .. }, .. }
                if max_lease == ms(60_000)
        ),
        "{error}"
    );
    let limited = lock.try_lock(ms(0), Lease::AtMost(ms(50_000))).await;
    let limited = limited.expect_err("its children have leases of their own");
    assert!(limited.to_string().contains("AtMost"), "{limited}");
    assert_eq!(lock.remain_time_to_live().await.unwrap(), Ttl::Free);
}

#[tokio::test]
async fn where_the_restart_delay_is_set_only_a_max_lease_that_is_set_limits_leases() {
    let five = Five::start();
    let hour = ms(3_600_000);
    let quorum = five.connect().await;
    let guard = quorum.get_lock("x").lock_with_lease(hour).await.unwrap();
    assert!(guard.valid_for() > hour / 2);
    end(guard).await;
    let by_default = Quorum::builder(five.urls()).connect().await.unwrap();
    let error = by_default.get_lock("x").lock_with_lease(hour).await;
    let error = error
        .expect_err("longer than the watchdog's lease")
        .to_string();
    assert!(
        error.contains("longer than the quorum's max_lease, 30s"),
        "{error}"
    );
}

#[tokio::test]
async fn an_owner_enters_again_without_asking_anybody() {
    let five = Five::start();
    let quorum = five.connect().await;
    let owner = quorum.new_owner();
    let lock = owner.get_lock("x");
    assert_eq!((lock.hold_count(), lock.is_held()), (0, false));
    let outer = soon(lock.lock()).await.unwrap();
    five.until(5, "x").await;
    for server in &five.0 {
        server.reset_calls().await;
    }
    let inner = soon(lock.lock()).await.unwrap();
    let third = outer.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!((outer.hold_count(), lock.hold_count()), (3, 3));
    for server in &five.0 {
        assert_eq!(server.calls_of("evalsha").await, 0);
    }
    // A level with the other sort of lease enters the servers, and is there when a majority said so.
    let fixed = soon(lock.lock_with_lease(ms(10_000))).await.unwrap();
    assert_eq!(fixed.hold_count(), 4);
    let mut entered = 0;
    for server in &five.0 {
        entered += usize::from(count(server, "x").await == 2);
    }
    assert!(entered >= 3, "{entered}");
    end(fixed).await;
    end(outer).await;
    end(third).await;
    assert!(try_once(&quorum.get_lock("x")).await.is_none());
    end(inner).await;
    assert_eq!(lock.hold_count(), 0);
    five.clean().await;
}

#[tokio::test]
async fn a_detached_level_is_given_back_by_the_handle_or_at_the_owners_end() {
    let five = Five::start();
    let quorum = five.connect().await;
    let owner = quorum.new_owner();
    let lock = owner.get_lock("x");
    lock.lock().await.unwrap().detach().unwrap();
    lock.lock().await.unwrap().detach().unwrap();
    assert_eq!(lock.hold_count(), 2);
    lock.unlock().await.unwrap();
    assert_eq!(lock.hold_count(), 1);
    lock.unlock().await.unwrap();
    let error = lock.unlock().await.expect_err("nothing is left");
    assert!(matches!(error, Error::NotOwner { .. }), "{error}");
    lock.lock().await.unwrap().detach().unwrap();
    drop(owner);
    five.clean().await;
    assert_eq!(lock.hold_count(), 0);

    let guard = quorum.get_lock("x").lock().await.unwrap();
    let refused = guard.detach().expect_err("nobody owns it");
    assert!(matches!(refused.error(), Error::NotOwner { .. }));
    end(refused.into_guard()).await;
    quorum
        .scope(async {
            let lock = quorum.get_lock("x");
            let outer = lock.lock().await.unwrap();
            let inner = soon(lock.lock()).await.unwrap();
            assert_eq!(lock.hold_count(), 2);
            end(outer).await;
            end(inner).await;
        })
        .await;
    five.clean().await;
}

#[tokio::test]
async fn a_hold_that_lost_its_majority_is_lost_and_stays_so() {
    let five = Five::start();
    let quorum = five.connect_for(ms(1_200)).await;
    let owner = quorum.new_owner();
    let lock = owner.get_lock("x");
    let guard = lock.lock().await.unwrap();
    five.until(5, "x").await;
    for server in [0, 1, 2] {
        five.0[server].freeze();
    }
    let lost = Ended::Lost(soon(guard.lost()).await);
    assert!(!guard.is_valid());
    assert_eq!(soon(guard.hold().ended()).await, lost);
    let error = lock.lock().await.expect_err("its guard is alive");
    assert!(error.is_lost(), "{error}");
    for server in [0, 1, 2] {
        five.0[server].resume();
    }
    let error = guard.unlock().await.expect_err("it was lost");
    assert!(error.is_lost(), "{error}");
    let again = soon(lock.lock()).await.unwrap();
    end(again).await;
    five.clean().await;
}

#[tokio::test]
async fn run_cancels_its_body_when_the_majority_is_gone() {
    let five = Five::start();
    let quorum = five.connect_for(ms(1_200)).await;
    let lock = quorum.get_lock("x");
    assert_eq!(lock.run(async |guard| guard.name().len()).await.unwrap(), 1);
    let running = lock.run(async |_| {
        for server in &five.0[..3] {
            server.kill();
        }
        std::future::pending::<()>().await;
    });
    let error = soon(running).await.expect_err("it is lost");
    assert!(error.is_lost(), "{error}");
}

#[tokio::test]
async fn it_can_be_one_of_several_locks() {
    let five = Five::start();
    let quorum = five.connect().await;
    let client = Client::connect(&five.0[0].url()).await.unwrap();
    let both = MultiLock::new([
        Into::<std::sync::Arc<dyn Lock>>::into(quorum.get_lock("x")),
        client.get_lock("y").into(),
    ])
    .unwrap();
    let guard = both.lock().await.unwrap();
    assert!(try_once(&quorum.get_lock("x")).await.is_none());
    end(guard).await;
    let twice = MultiLock::new([quorum.get_lock("x"), quorum.get_lock("x")]);
    assert!(matches!(twice, Err(Error::InvalidSet(_))));
    five.clean().await;
}

#[tokio::test]
async fn force_unlock_frees_it_on_all_servers() {
    let five = Five::start();
    let (quorum, other) = (five.connect().await, five.connect().await);
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    assert!(other.get_lock("x").force_unlock().await.unwrap());
    assert_eq!(five.have(&[0, 1, 2, 3, 4], "x").await, 0);
    assert!(guard.unlock().await.expect_err("it was forced").is_lost());
    assert!(!other.get_lock("x").force_unlock().await.unwrap());
}

#[tokio::test]
async fn a_hold_left_to_its_lease_stays_on_the_servers() {
    let five = Five::start();
    let quorum = five.connect().await;
    let guard = quorum
        .get_lock("x")
        .lock_with_lease(ms(20_000))
        .await
        .unwrap();
    five.until(5, "x").await;
    guard.let_expire().unwrap();
    assert!(try_once(&quorum.get_lock("x")).await.is_none());
    assert_eq!(five.have(&[0, 1, 2, 3, 4], "x").await, 5);
}

/// A server that had granted it, and whose answer had not come yet, released it again.
#[tokio::test]
async fn a_grant_answered_after_let_expire_is_left_to_its_lease_too() {
    let five = Five::start();
    let (urls, late) = two_behind_proxies(&five);
    let quorum = of(&urls).node_timeout(ms(10_000)).connect().await.unwrap();
    // Another name: a try for this one would wait for the answer to its release, which may still be on its way.
    let warm = quorum.get_lock("warm").lock().await.unwrap();
    // Each server has a connection then, also those that the majority did not wait for.
    five.until(5, "warm").await;
    end(warm).await;
    five.clean().await;
    for proxy in &late {
        proxy.hold(Direction::Replies);
    }
    let lock = quorum.get_lock("x");
    let guard = soon(lock.lock_with_lease(ms(30_000))).await.unwrap();
    five.until(5, "x").await;
    guard.let_expire().unwrap();
    for proxy in &late {
        proxy.heal();
    }
    let end_of_watch = std::time::Instant::now() + ms(500);
    while std::time::Instant::now() < end_of_watch {
        assert_eq!(five.have(&[3, 4], "x").await, 2, "it stays");
    }
    assert!(try_once(&lock).await.is_none());
}

#[tokio::test]
async fn a_server_that_lost_it_keeps_nobody_from_leaving_it_to_its_lease() {
    let five = Five::start();
    let quorum = five.connect().await;
    let guard = quorum
        .get_lock("x")
        .lock_with_lease(ms(20_000))
        .await
        .unwrap();
    five.until(5, "x").await;
    // A stranger has it there, so it is not repaired; the question finds that it is lost.
    five.0[1].cmd(&["DEL", "x"]).await;
    five.0[1].cmd(&["HSET", "x", "stranger:1", "1"]).await;
    for _ in 0..20 {
        guard.verify().await.unwrap();
    }
    guard.let_expire().unwrap();
    assert!(try_once(&quorum.get_lock("x")).await.is_none());
    assert_eq!(five.have(&[0, 1, 2, 3, 4], "x").await, 5);
}

#[tokio::test]
async fn a_dropped_guard_gives_all_back() {
    let five = Five::start();
    let quorum = five.connect().await;
    drop(quorum.get_lock("x").lock().await.unwrap());
    five.clean().await;
    let error = quorum.get_lock("").lock().await.expect_err("no name");
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    let lock = quorum.get_lock("x");
    let waited = lock.try_lock(LONG, Duration::from_secs(5));
    end(soon(waited).await.unwrap().expect("it is free")).await;
}

#[tokio::test]
async fn handles_of_an_owner_that_was_dropped_enter_what_it_holds() {
    let five = Five::start();
    let quorum = five.connect().await;
    let owner = quorum.new_owner();
    let lock = owner.get_lock("x");
    let guard = lock.lock().await.unwrap();
    drop(owner);
    assert!(guard.is_valid());
    let again = try_once(&lock).await.expect("its own hold");
    assert_eq!(lock.hold_count(), 2);
    end(again).await;
    end(guard).await;
    five.clean().await;
}

/// It waits for no server for long.
async fn hasty(five: &Five) -> Quorum {
    let builder = five.builder().command_timeout(ms(1_500));
    let connecting = builder.unavailable_after(ms(1_500)).connect();
    connecting.await.unwrap()
}

/// No single server's answer stands for those of all.
#[tokio::test]
async fn a_hold_whose_servers_are_mostly_silent_says_that_there_is_no_quorum() {
    let five = Five::start();
    let quorum = hasty(&five).await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    let fixed = guard.reenter(ms(20_000)).await.unwrap();
    five.until(5, "x").await;
    for silent in &five.0[..3] {
        silent.freeze();
    }
    let is_silence = |answer: Result<(), Error>| {
        let error = answer.expect_err("two of three");
        // One that is well may be slow on a busy machine.
        let too_few = matches!(
            error,
            Error::NoQuorum {
                reached: ..3,
                needed: 3,
                ..
            }
        );
        assert!(too_few, "{error:?}");
    };
    is_silence(soon(guard.verify()).await);
    is_silence(soon(fixed.extend(ms(25_000))).await);
    let third = soon(guard.reenter(ms(21_000))).await;
    is_silence(third.map(drop));
    guard.check().unwrap();
    // While the hold goes on, nothing has to be deleted.
    end(fixed).await;
    is_silence(soon(guard.unlock()).await);
    for silent in &five.0[..3] {
        silent.resume();
    }
    five.clean().await;
}

/// A server that refuses for good does not speak for those that are silent.
#[tokio::test]
async fn one_server_that_denies_does_not_speak_for_silent_ones() {
    let five = Five::start();
    let quorum = hasty(&five).await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    five.0[4]
        .cmd(&["ACL", "SETUSER", "default", "-evalsha", "-eval"])
        .await;
    guard.verify().await.expect("four have it");
    for silent in &five.0[..2] {
        silent.freeze();
    }
    let error = soon(guard.verify()).await.expect_err("two of three");
    assert!(
        matches!(error, Error::NoQuorum { reached: ..3, .. }),
        "{error:?}"
    );
    for silent in &five.0[..2] {
        silent.resume();
    }
    five.0[4].cmd(&["ACL", "SETUSER", "default", "+@all"]).await;
    end(guard).await;
    five.clean().await;
}
