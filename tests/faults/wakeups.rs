//! F5 and F19: a message is missed, and nothing reports that. In most tests no poll comes in time to make up for it.

use std::time::Instant;

use watchlock::{Backoff, Client, LockGuard, ReentrantLock};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match};
use watchlock_support::server::RedisServer;

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE, TIMEOUT, hasty, minute, proxied};
use crate::common::{LONG, channel, clean, connect, ms, subscribed, without_polls};

/// A stranger's hold that lasts longer than any test.
async fn held(server: &RedisServer, name: &str) -> (Client, LockGuard) {
    let client = connect(server).await;
    let lock = client.get_lock(name);
    let guard = lock.lock_with_lease(HALF_A_MINUTE * 2).await.unwrap();
    (client, guard)
}

fn wait_for(lock: ReentrantLock) -> tokio::task::JoinHandle<LockGuard> {
    tokio::spawn(async move { lock.lock().await.expect("the lock in the end") })
}

/// Gets in long before the stranger's lease would end.
async fn gets_in(waiter: tokio::task::JoinHandle<LockGuard>) {
    let got = tokio::time::timeout(BEFORE_THE_LEASE, waiter).await;
    let guard = got.expect("woken in time").unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn f5_i5_a_connection_that_breaks_at_the_message_costs_no_wake_up() {
    let (server, proxy) = proxied().await;
    let (_stranger, guard) = held(&server, "cut").await;
    let client = hasty(&proxy.url())
        .backoff(minute())
        .connect()
        .await
        .unwrap();
    let waiter = wait_for(client.get_lock("cut"));
    subscribed(&server, "cut").await;
    let message = Match::message(&channel("cut"));
    let aim = proxy.inject(Fault::ResetBefore).on(message).arm();
    guard.unlock().await.unwrap();
    gets_in(waiter).await;
    assert_eq!(aim.fired(), 1);
    clean(&server).await;
}

#[tokio::test]
async fn f5_i5_a_killed_subscriber_comes_back_and_tries() {
    let server = RedisServer::start();
    let (_stranger, guard) = held(&server, "killed").await;
    let client = without_polls(&server).connect().await.unwrap();
    let waiter = wait_for(client.get_lock("killed"));
    for _ in 0..5 {
        subscribed(&server, "killed").await;
        server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    }
    guard.unlock().await.unwrap();
    gets_in(waiter).await;
    clean(&server).await;
}

#[tokio::test]
async fn f5_i5_a_message_that_is_lost_costs_no_more_than_a_poll() {
    let (server, proxy) = proxied().await;
    let (_stranger, guard) = held(&server, "lost").await;
    let polls = Backoff::new().base(ms(100)).cap(ms(300));
    let client = hasty(&proxy.url()).backoff(polls).connect().await.unwrap();
    let waiter = wait_for(client.get_lock("lost"));
    subscribed(&server, "lost").await;
    let message = Match::message(&channel("lost"));
    let aim = proxy.inject(Fault::SwallowReply).on(message).always().arm();
    guard.unlock().await.unwrap();
    gets_in(waiter).await;
    assert!(aim.fired() >= 1);
    clean(&server).await;
}

/// A link with only one end left: nothing comes, and nothing says that nothing will.
#[tokio::test]
async fn f5_i5_a_half_open_subscription_is_found_by_asking() {
    let (server, proxy) = proxied().await;
    let (_stranger, guard) = held(&server, "half").await;
    let client = hasty(&proxy.url())
        .backoff(minute())
        .connect()
        .await
        .unwrap();
    let waiter = wait_for(client.get_lock("half"));
    subscribed(&server, "half").await;
    let ping = Match::command("PING");
    let aim = proxy.inject(Fault::HalfOpen).on(ping).always().arm();
    eventually("it is asked", BEFORE_THE_LEASE, async || aim.fired() > 0).await;
    guard.unlock().await.unwrap();
    aim.cancel();
    gets_in(waiter).await;
    clean(&server).await;
}

/// The answer may be behind thousands of messages.
#[tokio::test]
async fn f5_i5_a_subscription_that_brings_messages_is_kept_though_no_ping_is_answered() {
    let (server, proxy) = proxied().await;
    let (_stranger, guard) = held(&server, "flood").await;
    let builder = hasty(&proxy.url()).backoff(minute());
    let client = builder.connect().await.unwrap();
    let waiter = wait_for(client.get_lock("flood"));
    subscribed(&server, "flood").await;
    let ping = Match::command("PING");
    let aim = proxy.inject(Fault::SwallowRequest).on(ping).arm();
    let mut asked_at = None;
    eventually("two time-outs have passed", BEFORE_THE_LEASE, async || {
        server.cmd(&["PUBLISH", &channel("flood"), "0"]).await;
        if aim.fired() > 0 {
            asked_at.get_or_insert_with(Instant::now);
        }
        asked_at.is_some_and(|at: Instant| at.elapsed() >= TIMEOUT * 2)
    })
    .await;
    assert_eq!(proxy.commands()["SUBSCRIBE"], 1);
    guard.unlock().await.unwrap();
    gets_in(waiter).await;
    clean(&server).await;
}

/// Two names may share a channel: a name with braces is its own tag.
#[tokio::test]
async fn i5_two_names_that_share_a_channel_are_both_woken() {
    let server = RedisServer::start();
    let (_one, guard) = held(&server, "x").await;
    let (_other, braced) = held(&server, "{x}").await;
    let (_third, after) = held(&server, "after").await;
    let client = without_polls(&server).connect().await.unwrap();
    let first = wait_for(client.get_lock("x"));
    subscribed(&server, "x").await;
    let second = wait_for(client.get_lock("{x}"));
    eventually("both listen", BEFORE_THE_LEASE, async || {
        server.calls_of("subscribe").await == 2
    })
    .await;
    guard.unlock().await.unwrap();
    gets_in(first).await;
    // A subscription that ends after the first one's: by then the first one's end is over, and the second one's is not.
    let later = wait_for(client.get_lock("after"));
    subscribed(&server, "after").await;
    after.unlock().await.unwrap();
    gets_in(later).await;
    eventually("the later one is over", BEFORE_THE_LEASE, async || {
        server.subscribers(&channel("after")).await == 0
    })
    .await;
    assert_eq!(server.subscribers(&channel("x")).await, 1);
    braced.unlock().await.unwrap();
    gets_in(second).await;
    clean(&server).await;
}

/// The end of the previous subscription is on its way.
#[tokio::test]
async fn i5_a_waiter_that_comes_while_the_subscription_of_its_channel_ends_is_woken() {
    let (server, proxy) = proxied().await;
    let (_one, guard) = held(&server, "x").await;
    let (_other, braced) = held(&server, "{x}").await;
    let (_third, keeps) = held(&server, "keeps the connection").await;
    let builder = Client::builder(&proxy.url()).command_timeout(HALF_A_MINUTE);
    let client = builder.backoff(minute()).connect().await.unwrap();
    let keeping = wait_for(client.get_lock("keeps the connection"));
    let first = wait_for(client.get_lock("x"));
    subscribed(&server, "x").await;
    let ends = Match::command("UNSUBSCRIBE");
    let aim = proxy
        .inject(Fault::DelayReply(ms(1_000)))
        .on(ends)
        .nth(1)
        .arm();
    guard.unlock().await.unwrap();
    gets_in(first).await;
    eventually("it ends", BEFORE_THE_LEASE, async || aim.fired() == 1).await;
    let second = wait_for(client.get_lock("{x}"));
    subscribed(&server, "x").await;
    braced.unlock().await.unwrap();
    gets_in(second).await;
    keeps.unlock().await.unwrap();
    gets_in(keeping).await;
    clean(&server).await;
}

/// The end of the previous subscription is not answered. Whoever comes meanwhile need not wait for that.
#[tokio::test]
async fn f5_i5_a_waiter_that_comes_while_the_end_of_a_subscription_is_not_answered_polls() {
    let (server, proxy) = proxied().await;
    let (_one, guard) = held(&server, "x").await;
    let (_other, keeps) = held(&server, "keeps the connection").await;
    let polls = Backoff::new().base(ms(100)).cap(ms(300));
    let builder = Client::builder(&proxy.url()).command_timeout(HALF_A_MINUTE);
    let client = builder.backoff(polls).connect().await.unwrap();
    let keeping = wait_for(client.get_lock("keeps the connection"));
    let first = wait_for(client.get_lock("x"));
    subscribed(&server, "x").await;
    let ends = Match::command("UNSUBSCRIBE");
    let aim = proxy.inject(Fault::SwallowRequest).on(ends).arm();
    guard.unlock().await.unwrap();
    gets_in(first).await;
    eventually("it ends", BEFORE_THE_LEASE, async || aim.fired() == 1).await;
    let (_one, guard) = held(&server, "x").await;
    let second = wait_for(client.get_lock("x"));
    eventually("both wait", BEFORE_THE_LEASE, async || {
        client.stats().waiters == 2
    })
    .await;
    guard.unlock().await.unwrap();
    gets_in(second).await;
    keeps.unlock().await.unwrap();
    gets_in(keeping).await;
    // Or the server would have the subscription until the time-out.
    proxy.reset_subscribers();
    clean(&server).await;
}

/// The client pings the subscription's own connection every five seconds, and no other more often than once a second.
#[tokio::test]
async fn who_waits_is_quiet() {
    let server = RedisServer::start();
    let (_stranger, guard) = held(&server, "quiet").await;
    let client = without_polls(&server).connect().await.unwrap();
    let waiter = wait_for(client.get_lock("quiet"));
    subscribed(&server, "quiet").await;
    let began = std::time::Instant::now();
    server.reset_calls().await;
    eventually("nothing is said on it for two seconds", LONG, async || {
        let connections = server.clients().await;
        let idle = connections.iter().find(|each| each["sub"] != "0");
        idle.is_some_and(|each| each["idle"].parse::<u64>().unwrap() >= 2)
    })
    .await;
    let asked = server.calls_of("ping").await;
    let span = began.elapsed();
    // The keepers' own: the holder's and the waiter's.
    assert!(asked <= 2 * (1 + span.as_secs()), "{asked} in {span:?}");
    guard.unlock().await.unwrap();
    gets_in(waiter).await;
    clean(&server).await;
}

/// The server cuts off a subscriber that does not keep up.
#[tokio::test]
async fn f19_i5_a_subscriber_that_the_server_cut_off_comes_back_and_tries() {
    let server = RedisServer::options()
        .config("client-output-buffer-limit", "pubsub 64kb 64kb 1")
        .start();
    let (_stranger, guard) = held(&server, "slow").await;
    let client = without_polls(&server).connect().await.unwrap();
    let waiter = wait_for(client.get_lock("slow"));
    subscribed(&server, "slow").await;
    let flood = "x".repeat(1 << 20);
    server.cmd(&["PUBLISH", &channel("slow"), &flood]).await;
    guard.unlock().await.unwrap();
    gets_in(waiter).await;
    clean(&server).await;
}

/// The server has the subscription, but the confirmation was lost.
#[tokio::test]
async fn i7_a_subscription_is_ended_whose_waiter_left_before_it_was_confirmed() {
    let (server, proxy) = proxied().await;
    let (_stranger, guard) = held(&server, "late").await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let late = Fault::DelayReply(ms(800));
    proxy.inject(late).on(Match::command("SUBSCRIBE")).arm();
    let waiter = wait_for(client.get_lock("late"));
    subscribed(&server, "late").await;
    waiter.abort();
    eventually("nobody listens", BEFORE_THE_LEASE, async || {
        server.channels().await.is_empty()
    })
    .await;
    guard.unlock().await.unwrap();
    clean(&server).await;
}
