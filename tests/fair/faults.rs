//! Lost replies, cut connections, lost scripts and data: each waiter gets its turn, and no key is left.

use std::time::{Duration, Instant};

use watchlock::{Client, Error};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, script, soon, without_polls};
use crate::{LINE, QUEUE, SCORES, WAITERS, Waiter, queue, queued, waiter};

/// A client behind a proxy.
async fn behind(server: &RedisServer) -> (Client, Proxy) {
    let proxy = Proxy::to(server);
    let builder = Client::builder(&proxy.url()).unavailable_after(LONG * 2);
    let builder = builder.command_timeout(ms(1_000));
    (builder.connect().await.expect("a client"), proxy)
}

fn of_script(file: &str) -> Match {
    let text = script(&format!("fair/{file}.lua"));
    Match::script(&text).and(Match::key(LINE))
}

/// The waiter gets the lock and gives it back, with or without an answer.
async fn serves(waiter: Waiter) {
    let guard = soon(waiter).await.unwrap().unwrap();
    match soon(guard.unlock()).await {
        Ok(()) | Err(Error::Unavailable { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn f3_a_reply_that_is_lost_while_one_waits_costs_no_place_and_leaves_nothing() {
    for file in ["enqueue", "acquire", "release"] {
        for fault in [
            Fault::SwallowRequest,
            Fault::SwallowReply,
            Fault::ResetBefore,
            Fault::ResetAfter,
        ] {
            let server = RedisServer::start();
            let other = connect(&server).await;
            let (client, proxy) = behind(&server).await;
            drop(client.get_fair_lock("warm").lock().await.unwrap());
            let held = other.get_fair_lock(LINE).lock().await.unwrap();
            // The second acquire of a waiter is the keeper's.
            let nth = if file == "acquire" { 2 } else { 1 };
            let aim = proxy
                .inject(fault.clone())
                .on(of_script(file))
                .nth(nth)
                .arm();
            let lock = client.get_fair_lock(LINE);
            let first = tokio::spawn(async move { lock.lock().await });
            queued(&server, 1).await;
            let (second, _) = waiter(&server, &other).await;
            held.unlock().await.unwrap();
            serves(first).await;
            serves(second).await;
            eventually("it was hit", LONG, async || aim.fired() == 1).await;
            eventually("nobody waits", LONG, async || {
                queue(&server).await.is_empty()
            })
            .await;
            drop((client, other));
            clean(&server).await;
        }
    }
}

#[tokio::test]
async fn f3_who_goes_away_while_its_place_is_asked_for_leaves_nothing() {
    for fault in [
        Fault::SwallowReply,
        Fault::DelayRequest(ms(300)),
        Fault::ResetAfter,
    ] {
        let server = RedisServer::start();
        let other = connect(&server).await;
        let (client, proxy) = behind(&server).await;
        drop(client.get_fair_lock("warm").lock().await.unwrap());
        let held = other.get_fair_lock(LINE).lock().await.unwrap();
        let aim = proxy.inject(fault).on(of_script("enqueue")).arm();
        let lock = client.get_fair_lock(LINE);
        let waiting = tokio::spawn(async move { lock.lock().await });
        eventually("it was hit", LONG, async || aim.fired() == 1).await;
        waiting.abort();
        eventually("its place is gone", LONG, async || {
            server.keys().await == [LINE]
        })
        .await;
        held.unlock().await.unwrap();
        // The place may be given late. It is taken back.
        tokio::time::sleep(ms(1_000)).await;
        eventually("nothing is left", LONG, async || {
            server.keys().await.is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn f5_subscriptions_that_are_cut_cost_no_more_than_a_poll() {
    let server = RedisServer::start();
    let other = connect(&server).await;
    let (client, proxy) = behind(&server).await;
    let held = other.get_fair_lock(LINE).lock().await.unwrap();
    let (first, place) = waiter(&server, &client).await;
    let (second, _) = waiter(&server, &client).await;
    let channel = format!("redisson_lock__channel:{{line}}:{place}");
    let listens = async || server.subscribers(&channel).await == 1;
    eventually("it listens", LONG, listens).await;
    assert!(proxy.reset_subscribers() > 0);
    eventually("it listens again", LONG, listens).await;
    held.unlock().await.unwrap();
    serves(first).await;
    serves(second).await;
    drop((client, other));
    clean(&server).await;
}

#[tokio::test]
async fn f6_who_waits_when_redis_loses_its_data_queues_anew() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(waiter(&server, &other).await.0);
    }
    server.cmd(&["FLUSHALL"]).await;
    for waiter in waiters {
        serves(waiter).await;
    }
    assert!(matches!(held.unlock().await, Err(Error::Lost { .. })));
    drop((one, other));
    clean(&server).await;
}

/// They do not know yet that the queue is lost, and still came first.
#[tokio::test]
async fn f6_who_comes_after_the_queue_was_lost_is_behind_the_waiters_of_its_client() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(waiter(&server, &other).await.0);
    }
    let places = queue(&server).await;
    server.cmd(&["DEL", QUEUE, SCORES, WAITERS]).await;
    let lock = other.get_fair_lock(LINE);
    waiters.push(tokio::spawn(async move { lock.lock().await }));
    queued(&server, 4).await;
    assert_eq!(queue(&server).await[..3], places);
    held.unlock().await.unwrap();
    for waiter in waiters {
        serves(waiter).await;
    }
    drop((one, other));
    clean(&server).await;
}

/// A later waiter would overtake them meanwhile. The first of them gets a place again with its next try.
#[tokio::test]
async fn f6_places_are_looked_for_as_soon_as_a_connection_broke() {
    let server = RedisServer::start();
    let other = connect(&server).await;
    let (client, proxy) = behind(&server).await;
    let held = other.get_fair_lock(LINE).lock().await.unwrap();
    let (first, place) = waiter(&server, &client).await;
    let (second, _) = waiter(&server, &client).await;
    let (places, placed) = (queue(&server).await, Instant::now());
    let channel = format!("redisson_lock__channel:{{line}}:{place}");
    let listens = async || server.subscribers(&channel).await == 1;
    eventually("it listens", LONG, listens).await;
    server.cmd(&["DEL", QUEUE, SCORES, WAITERS]).await;
    assert!(proxy.reset_subscribers() > 0);
    queued(&server, 2).await;
    assert_eq!(queue(&server).await, places);
    // Without the broken connection, the client looks for them every 5 s.
    assert!(placed.elapsed() < Duration::from_secs(5));
    held.unlock().await.unwrap();
    serves(first).await;
    serves(second).await;
    drop((client, other));
    clean(&server).await;
}

#[tokio::test]
async fn f7_scripts_that_are_forgotten_while_one_waits_cost_nothing() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (first, head) = waiter(&server, &other).await;
    server.cmd(&["SCRIPT", "FLUSH"]).await;
    let (second, next) = waiter(&server, &one).await;
    server.cmd(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(queue(&server).await, [head, next]);
    held.unlock().await.unwrap();
    serves(first).await;
    server.cmd(&["SCRIPT", "FLUSH"]).await;
    serves(second).await;
    drop((one, other));
    clean(&server).await;
}

/// Redis refuses writes that need memory. Waiters keep their places, leave, and get their turns.
#[tokio::test]
async fn f9_without_memory_who_waits_keeps_its_place() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.get_fair_lock(LINE).lock().await.unwrap();
    let (first, head) = waiter(&server, &other).await;
    let (second, next) = waiter(&server, &one).await;
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let third = connect(&server).await;
    let lock = third.get_fair_lock(LINE);
    let refused = lock.try_lock(ms(300), Duration::from_secs(10)).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(queue(&server).await, [head, next]);
    second.abort();
    queued(&server, 1).await;
    held.unlock().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    serves(first).await;
    drop((one, other, third, lock));
    clean(&server).await;
}

/// The release and the try for the next one here travel together, when the next one is here.
#[tokio::test]
async fn a_client_hands_the_lock_over_in_one_round_trip() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let warm = client.get_fair_lock("warm").lock().await.unwrap();
    warm.unlock().await.unwrap();
    let held = client.get_fair_lock(LINE).lock().await.unwrap();
    let asked = server.calls_of("hexists").await;
    let (next, place) = waiter(&server, &client).await;
    // The client knows that it is subscribed when it asks after its own hold. A later answer says that it has this one.
    eventually("it listens", LONG, async || {
        server.calls_of("hexists").await > asked
    })
    .await;
    assert!(!client.get_lock("other").is_locked().await.unwrap());
    proxy.hold(Direction::Replies);
    let unlocking = tokio::spawn(held.unlock());
    eventually("the next one has it", LONG, async || {
        server.hash(LINE).await.contains_key(&place)
    })
    .await;
    assert!(!unlocking.is_finished(), "nobody has heard of the release");
    proxy.heal();
    soon(unlocking).await.unwrap().unwrap();
    serves(next).await;
}

/// Nobody polls here, so each waiter depends on its wake-up.
#[tokio::test]
async fn a_release_wakes_the_next_one_wherever_it_is() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(without_polls(&server).connect().await.unwrap());
    }
    let held = clients[0].get_fair_lock(LINE).lock().await.unwrap();
    let mut waiters = Vec::new();
    for number in 0..24 {
        waiters.push(waiter(&server, &clients[number * number % 7 % 3]).await.0);
    }
    held.unlock().await.unwrap();
    for waiter in waiters {
        serves(waiter).await;
    }
    drop(clients);
    clean(&server).await;
}

/// The echo of an own release comes only if the next waiter is here. The message of another client's release must not
/// pass for it. Nobody polls here, and no lease ends.
#[tokio::test]
async fn i5_a_wake_up_of_a_stranger_is_not_taken_for_the_echo_of_an_own_release() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let server = RedisServer::start();
    let one = without_polls(&server).connect().await.unwrap();
    let other = without_polls(&server).connect().await.unwrap();
    let waits = async |client: &Client| {
        let before = queue(&server).await.len();
        let lock = client.get_fair_lock(LINE);
        let waiting = tokio::spawn(async move { lock.lock_with_lease(HOUR).await });
        queued(&server, before + 1).await;
        let place = queue(&server).await.pop().unwrap();
        (waiting, format!("redisson_lock__channel:{{line}}:{place}"))
    };
    for round in 0..8 {
        let mut held = one.get_fair_lock(LINE).lock_with_lease(HOUR).await.unwrap();
        let mut line = Vec::new();
        // Neighbours of one client, and then strangers in turn.
        for client in [&one, &one, &other, &one, &other, &other, &one] {
            line.push(waits(client).await);
        }
        for (waiting, channel) in line {
            eventually("the next one listens", LONG, async || {
                server.subscribers(&channel).await == 1
            })
            .await;
            soon(held.unlock()).await.unwrap();
            // Less than the five seconds after which a vouch would also wake the head.
            let got = tokio::time::timeout(Duration::from_secs(4), waiting).await;
            let got = got.unwrap_or_else(|_| panic!("round {round}: nobody was woken"));
            held = got.unwrap().unwrap();
        }
        held.unlock().await.unwrap();
    }
}

/// Two owners of one client, and one of another between them, on a new name each time.
#[tokio::test]
async fn i5_one_behind_a_stranger_behind_its_own_client_is_woken() {
    let server = RedisServer::start();
    let one = without_polls(&server).connect().await.unwrap();
    let other = without_polls(&server).connect().await.unwrap();
    for round in 0..40 {
        let name = format!("scene:{round}");
        let held = one.new_owner().get_fair_lock(&name).lock().await.unwrap();
        let queue = format!("redisson_lock_queue:{{{name}}}");
        let mut waiters = Vec::new();
        for (number, client) in [&other, &one].into_iter().enumerate() {
            let lock = client.new_owner().get_fair_lock(&name);
            waiters.push(tokio::spawn(async move {
                let wait = Duration::from_secs(60);
                lock.try_lock(wait, watchlock::Lease::Watchdog).await
            }));
            eventually("it queues", LONG, async || {
                server.query::<usize>(&["LLEN", &queue]).await == number + 1
            })
            .await;
        }
        held.unlock().await.unwrap();
        for waiting in waiters {
            let got = tokio::time::timeout(Duration::from_secs(4), waiting).await;
            let got = got.unwrap_or_else(|_| panic!("round {round}: nobody was woken"));
            let guard = got.unwrap().unwrap().unwrap();
            tokio::time::sleep(ms(20)).await;
            guard.unlock().await.unwrap();
        }
    }
}

/// The client sends the script that gives places again when the server does not know it. Before that arrives, the lock
/// may be granted and released over another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_a_place_that_is_given_behind_its_own_release_is_given_back() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    for round in 0..300 {
        server.cmd(&["SCRIPT", "FLUSH"]).await;
        // Known again, but for the one that gives places.
        let warm = client.get_fair_lock("warm").lock().await.unwrap();
        warm.unlock().await.unwrap();
        let name = format!("late:{round}");
        let held = other.get_fair_lock(&name).lock().await.unwrap();
        let lock = client.get_fair_lock(&name);
        let waiting = tokio::spawn(async move { lock.lock().await });
        held.unlock().await.unwrap();
        let guard = soon(waiting).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
    eventually("nothing is left", LONG, async || {
        server.query::<usize>(&["DBSIZE"]).await == 0
    })
    .await;
}

/// Nobody polls here, because the client has the lock itself. Only its vouches keep the place.
#[tokio::test]
async fn f3_a_client_vouches_for_a_place_whose_reply_was_lost() {
    let server = RedisServer::start();
    let other = connect(&server).await;
    let (client, proxy) = behind(&server).await;
    let held = client.get_fair_lock(LINE).lock().await.unwrap();
    let lost = proxy
        .inject(Fault::SwallowReply)
        .on(of_script("enqueue"))
        .arm();
    let (first, place) = waiter(&server, &client).await;
    assert_eq!(lost.fired(), 1);
    let (second, next) = waiter(&server, &other).await;
    // Longer than a silent client keeps its places.
    tokio::time::sleep(Duration::from_secs(19)).await;
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap().unwrap();
    assert!(server.hash(LINE).await.contains_key(&place));
    assert_eq!(queue(&server).await, [next]);
    guard.unlock().await.unwrap();
    serves(second).await;
    drop((client, other));
    clean(&server).await;
}

#[tokio::test]
async fn f4_i7_a_place_that_was_given_up_and_comes_late_is_given_back() {
    let server = RedisServer::start();
    let (client, proxy) = behind(&server).await;
    let held = client.get_fair_lock(LINE).lock().await.unwrap();
    let late = Fault::DelayRequest(ms(10_000));
    let aim = proxy.inject(late).on(of_script("enqueue")).arm();
    // After a second without a reply, the client asks again over another connection.
    let (waiting, _) = waiter(&server, &client).await;
    assert_eq!(aim.fired(), 1);
    let given = server.calls_of("rpush").await;
    waiting.abort();
    eventually("its place is gone", LONG, async || {
        server.keys().await == [LINE]
    })
    .await;
    eventually("what was given up has run", LONG, async || {
        server.calls_of("rpush").await > given
    })
    .await;
    eventually("it is taken back", LONG, async || {
        server.keys().await == [LINE]
    })
    .await;
    held.unlock().await.unwrap();
    drop(client);
    clean(&server).await;
}

/// A place has no lease. The script that gives it may run long after its waiter's lease would have ended.
#[tokio::test]
async fn f4_a_place_that_is_given_late_is_taken_back_however_short_the_lease_was() {
    let late = ms(6_000);
    let server = RedisServer::start();
    let other = connect(&server).await;
    let (client, proxy) = behind(&server).await;
    drop(client.get_fair_lock("warm").lock().await.unwrap());
    let held = other.get_fair_lock(LINE).lock().await.unwrap();
    let aim = proxy
        .inject(Fault::DelayRequest(late))
        .on(of_script("enqueue"))
        .arm();
    let lock = client.get_fair_lock(LINE);
    let waiting = tokio::spawn(async move { lock.lock_with_lease(ms(200)).await });
    eventually("it was hit", LONG, async || aim.fired() == 1).await;
    // The client asks again over another connection.
    queued(&server, 1).await;
    waiting.abort();
    queued(&server, 0).await;
    tokio::time::sleep(late + ms(500)).await; // by then the old command has run
    queued(&server, 0).await;
    held.unlock().await.unwrap();
    eventually("nothing is left", LONG, async || {
        server.keys().await.is_empty()
    })
    .await;
}
