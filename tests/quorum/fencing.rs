//! Fencing tokens over a quorum: they grow from holder to holder, whichever majority each had.

use watchlock::{Client, Lease, Quorum};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};

use crate::common::{LONG, ms, script, soon};
use crate::{Five, of};

async fn token_of(quorum: &Quorum) -> u64 {
    let guard = soon(quorum.get_fenced_lock("x").lock()).await.unwrap();
    let token = guard.token().as_u64();
    guard.unlock().await.unwrap();
    token
}

async fn stored(five: &Five, server: usize) -> u64 {
    let token = &["GET", "redisson_lock_token:{x}"];
    let stored: Option<u64> = five.0[server].query(token).await;
    stored.unwrap_or(0)
}

#[tokio::test]
async fn tokens_grow_over_majorities_that_have_one_server_in_common() {
    let five = Five::start();
    let quorum = five.connect().await;
    let mut last = token_of(&quorum).await;
    // Each time two others are away, and come back empty.
    for away in [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]] {
        for server in away {
            five.0[server].kill();
        }
        let token = token_of(&quorum).await;
        assert!(token > last, "{away:?}: {token} after {last}");
        last = token;
        for server in away {
            five.0[server].restart();
        }
    }
}

/// The clocks of the servers differ: the next majority knows only what was written back.
#[tokio::test]
async fn the_largest_token_is_written_back_to_a_majority() {
    let five = Five::start();
    let ahead = 8_000_000_000_000_000_u64;
    let set = ["SET", "redisson_lock_token:{x}", &ahead.to_string()];
    five.0[4].cmd(&set).await;
    five.0[0].kill();
    five.0[1].kill();
    let quorum = five.connect().await;
    let first = token_of(&quorum).await;
    assert!(first > ahead);
    for server in [2, 3, 4] {
        assert!(stored(&five, server).await >= first, "server {server}");
    }
    five.0[4].kill();
    five.0[0].restart();
    five.0[1].restart();
    let second = token_of(&quorum).await;
    assert!(second > first, "{second} after {first}");
}

#[tokio::test]
async fn a_server_that_is_taken_back_knows_the_token() {
    let five = Five::start();
    let quorum = five.connect_for(ms(2_000)).await;
    five.0[4]
        .cmd(&["SET", "redisson_lock_token:{x}", "8000000000000000"])
        .await;
    five.0[0].kill();
    five.0[1].kill();
    let guard = quorum.get_fenced_lock("x").lock().await.unwrap();
    let token = guard.token().as_u64();
    five.0[0].restart();
    five.0[1].restart();
    five.until(5, "x").await;
    for server in 0..5 {
        eventually("it has the token", LONG, async || {
            stored(&five, server).await >= token
        })
        .await;
    }
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_token_belongs_to_the_hold() {
    let five = Five::start();
    let quorum = five.connect().await;
    let owner = quorum.new_owner();
    let fenced = owner.get_fenced_lock("x");
    let outer = fenced.lock().await.unwrap();
    let inner = soon(fenced.lock()).await.unwrap();
    assert_eq!(outer.token(), inner.token());
    let again = outer.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(again.token(), outer.token());
    let before = outer.token();
    for level in [outer, inner, again] {
        level.unlock().await.unwrap();
    }
    // A hold that began without a token takes one when a fenced handle enters it.
    let plain = owner.get_lock("x").lock().await.unwrap();
    assert!(plain.fencing_token().is_none());
    let entered = soon(fenced.lock()).await.unwrap();
    assert!(entered.token() > before);
    assert_eq!(plain.fencing_token(), Some(entered.token()));
    entered.unlock().await.unwrap();
    plain.unlock().await.unwrap();
    assert!(token_of(&quorum).await > before.as_u64());
}

#[tokio::test]
async fn it_goes_on_where_the_fenced_lock_of_one_server_was() {
    let five = Five::start();
    let quorum = five.connect().await;
    let first = token_of(&quorum).await;
    let client = Client::connect(&five.0[0].url()).await.unwrap();
    let guard = client.get_fenced_lock("x").lock().await.unwrap();
    assert!(stored(&five, 0).await == guard.token().as_u64());
    guard.unlock().await.unwrap();
    assert!(token_of(&quorum).await > first);
}

/// The hold began without a token, so its own kind has no key for one.
#[tokio::test]
async fn a_server_is_taken_back_into_a_plain_hold_with_a_fenced_level() {
    let five = Five::start();
    let quorum = five.connect().await;
    let owner = quorum.new_owner();
    let plain = owner.get_lock("x").lock().await.unwrap();
    let fenced = owner.get_fenced_lock("x").lock().await.unwrap();
    let token = fenced.token().as_u64();
    five.until(5, "x").await;
    five.0[1].restart();
    five.until(5, "x").await;
    eventually("it has the token", LONG, async || {
        stored(&five, 1).await >= token
    })
    .await;
    fenced.unlock().await.unwrap();
    plain.unlock().await.unwrap();
}

/// A wait for a server that somebody else had ends while a fenced level of a plain hold takes its token.
#[tokio::test]
async fn a_server_that_joins_while_the_token_is_taken_knows_it() {
    let five = Five::start();
    five.0[0]
        .cmd(&["SET", "redisson_lock_token:{x}", "8000000000000000"])
        .await;
    let proxies: Vec<_> = five.0[..4].iter().map(Proxy::to).collect();
    let mut urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    urls.push(five.0[4].url());
    let builder = of(&urls).node_timeout(ms(6_000));
    let quorum = builder.connect().await.unwrap();
    let client = Client::connect(&five.0[4].url()).await.unwrap();
    let other = client.get_lock("x").lock().await.unwrap();
    let owner = quorum.new_owner();
    let plain = owner.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    let raises = Match::script(&script("fenced/raise.lua"));
    let held: Vec<_> = proxies
        .iter()
        .map(|proxy| {
            // Meanwhile repair asks the other server, as it does once a second.
            let delay = Fault::DelayRequest(ms(2_500));
            proxy.inject(delay).on(raises.clone()).arm()
        })
        .collect();
    let fenced = owner.get_fenced_lock("x");
    let entering = tokio::spawn(async move { fenced.lock().await });
    eventually("it raises", LONG, async || {
        held.iter().all(|held| held.fired() > 0)
    })
    .await;
    other.unlock().await.unwrap();
    let entered = soon(entering).await.unwrap().unwrap();
    five.until(5, "x").await;
    let token = entered.token().as_u64();
    eventually("it knows the token", LONG, async || {
        stored(&five, 4).await >= token
    })
    .await;
    entered.unlock().await.unwrap();
    plain.unlock().await.unwrap();
}
