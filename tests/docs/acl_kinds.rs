//! What docs/acl.md says of the other kinds of lock: with the rights of its row everything works, and each right that
//! it names is needed.

use std::future::ready;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, join_all, select};
use watchlock::{Client, Error, Lease, Lock};
use watchlock_support::eventually;
use watchlock_support::server::{RedisServer, connection};

use crate::acl::documented_rights;
use crate::common::script;

const LONG: Duration = Duration::from_secs(30);
const BRIEF: Duration = Duration::from_millis(50);
/// The watchdog's lease of the clients under test.
const LEASE: Duration = Duration::from_millis(900);

type Get = fn(&Client, &str) -> Box<dyn Lock>;

/// A kind has a row in the document and an entry here, with a lock that excludes it.
const KINDS: [(&str, Get, Get); 6] = [
    ("read", READ, WRITE),
    ("write", WRITE, READ),
    ("fair", FAIR, FAIR),
    ("fenced", FENCED, PLAIN),
    ("spin", SPIN, SPIN),
    ("simple", SIMPLE, SIMPLE),
];

const READ: Get = |of, name| Box::new(of.get_read_write_lock(name).read_lock());
const WRITE: Get = |of, name| Box::new(of.get_read_write_lock(name).write_lock());
const FAIR: Get = |of, name| Box::new(of.get_fair_lock(name));
const PLAIN: Get = |of, name| Box::new(of.get_lock(name));
const FENCED: Get = |of, name| Box::new(of.get_fenced_lock(name));
const SPIN: Get = |of, name| Box::new(of.get_spin_lock(name));
const SIMPLE: Get = |of, name| Box::new(of.get_simple_lock(name));

/// Only noticed when a writer waits or becomes a reader, or among many readers; the test that covers them is
/// `what_a_waiting_writer_needs_now_and_then_is_in_its_row`.
const QUIET: [&str; 8] = [
    "&redisson_rwlock:*",
    "+hrandfield",
    "+set",
    "+time",
    "+zadd",
    "+zcount",
    "+zrem",
    "+zscore",
];

/// Only noticed now and then in a fair lock's queue; the test that covers them is
/// `what_a_fair_queue_needs_now_and_then_is_in_its_row`.
const RARE: [&str; 6] = [
    "+linsert",
    "+lset",
    "+persist",
    "+zcard",
    "+zrangebyscore",
    "+zremrangebyscore",
];

/// What a kind needs beside the plain lock's rights, and what it does not.
pub(crate) fn documented(kind: &str) -> (Vec<&'static str>, Vec<&'static str>) {
    let document = include_str!("../../docs/acl.md");
    let row = format!("|{kind}|");
    let row = document.lines().find(|line| line.starts_with(&row));
    let row = row.unwrap_or_else(|| panic!("docs/acl.md has no row for {kind}"));
    let mut cells = row.split('|').skip(2).map(|cell| {
        let rights = cell.split([' ', '`']).filter(|right| !right.is_empty());
        rights.collect::<Vec<_>>()
    });
    (cells.next().unwrap(), cells.next().unwrap())
}

/// A client of a user with these rights.
pub(crate) async fn client(server: &RedisServer, user: &str, rights: &[&str]) -> Client {
    let set = ["ACL", "SETUSER", user, "reset", "on", ">secret"];
    server.cmd(&[&set, rights].concat()).await;
    let url = format!("redis://{user}:secret@127.0.0.1:{}/", server.port());
    let builder = Client::builder(&url).key_prefix("app:");
    let client = builder.watchdog_lease(LEASE).connect().await;
    client.expect("the user may connect")
}

/// Everything that is done with a lock.
async fn live(get: Get, rival: Get, client: &Client, operator: &Client) -> Result<(), Error> {
    let lock = get(client, "x");
    let rival = rival(operator, "x");
    let held = rival.lock_with_lease(LONG).await.expect("the operator may");
    // The caller makes the first try itself, and it is answered, however short the wait.
    assert!(lock.try_lock(BRIEF, Lease::Watchdog).await?.is_none());
    held.unlock().await.expect("the operator may");
    let outer = lock.lock().await?;
    let inner = outer.reenter(Lease::Watchdog).await?;
    let lost = tokio::time::timeout(LEASE * 2, outer.lost()).await;
    assert!(lost.is_err() || !outer.is_valid());
    inner.verify().await?;
    inner.unlock().await?;
    outer.unlock().await?;
    assert!(!lock.is_locked().await?);

    let held = rival.lock_with_lease(LONG).await.expect("the operator may");
    assert!(
        lock.try_lock(Duration::ZERO, Lease::Watchdog)
            .await?
            .is_none()
    );
    lock.remain_time_to_live().await?;
    let mut waits = Box::pin(lock.lock_with_lease(LONG));
    assert!((&mut waits).now_or_never().is_none(), "it is asked");
    // On the same connection, behind the try: whatever the answer to this, the try ran before.
    let _ = lock.is_locked().await;
    // Without a place in the queue it may still be the first.
    let has_place = async {
        let queue = operator.get_fair_lock("x");
        let is_queued = async || queue.waiters().await.expect("the operator may") > 0;
        if lock.info().has_queue() {
            eventually("it is queued", LONG, is_queued).await;
        }
    };
    let early = match select(waits, Box::pin(has_place)).await {
        Either::Left((waited, _)) => Either::Left(ready(waited)),
        Either::Right(((), waits)) => Either::Right(waits),
    };
    let (waited, given_back) = tokio::join!(early, held.unlock());
    given_back.expect("the operator may");
    waited?.unlock().await?;
    let held = get(operator, "x");
    let held = held.lock_with_lease(LONG).await.expect("the operator may");
    assert!(lock.force_unlock().await?);
    drop(held);
    Ok(())
}

#[tokio::test]
async fn the_rights_of_a_kinds_row_are_enough_and_each_is_needed() {
    // Each takes seconds, in which it waits.
    let rows = KINDS.map(|(kind, get, rival)| row(kind, get, rival));
    join_all(rows).await;
}

async fn row(kind: &str, get: Get, rival: Get) {
    let server = RedisServer::start();
    let operator = Client::builder(&server.url()).key_prefix("app:");
    let operator = operator.connect().await.unwrap();
    let (mut more, less) = documented(kind);
    let mut rights = documented_rights();
    rights.retain(|right| !less.contains(right));
    assert_eq!(
        rights.len() + less.len(),
        documented_rights().len(),
        "{kind}"
    );
    rights.extend(&more);
    let enough = client(&server, "enough", &rights).await;
    let lived = tokio::time::timeout(LONG, live(get, rival, &enough, &operator)).await;
    let lived = lived.unwrap_or_else(|_| panic!("{kind} hangs"));
    assert!(lived.is_ok(), "{kind}: {lived:?}");

    more.retain(|right| kind != "fair" || !RARE.contains(right));
    more.retain(|right| kind != "write" || !QUIET.contains(right));
    more.retain(|right| kind != "read" || !QUIET.contains(right) || *right == "+set");
    for (number, missing) in more.into_iter().enumerate() {
        let fewer: Vec<_> = rights.iter().copied().filter(|r| *r != missing).collect();
        let user = format!("without-{number}");
        let limited = client(&server, &user, &fewer).await;
        server.cmd(&["FLUSHALL"]).await;
        let lived = tokio::time::timeout(LONG, live(get, rival, &limited, &operator)).await;
        let reported = matches!(lived, Ok(Err(Error::Denied { .. } | Error::Lost { .. })));
        assert!(reported, "{kind} without {missing}: {lived:?}");
        for key in server.keys().await {
            assert_ne!(
                server.pttl(&key).await,
                -1,
                "{kind} without {missing}: {key}"
            );
        }
    }
}

/// With the plain lock's rights a plain hold can be taken, but no token.
#[tokio::test]
async fn a_plain_hold_is_entered_with_a_token_by_the_rights_of_the_fenced_row() {
    let server = RedisServer::start();
    let (more, _) = documented("fenced");
    for missing in more.iter().copied().map(Some).chain([None]) {
        let mut rights = documented_rights();
        rights.extend(more.iter().filter(|right| Some(**right) != missing));
        let client = client(&server, "limited", &rights).await;
        let owner = client.new_owner();
        let plain = owner.get_lock("x").lock().await.unwrap();
        let entered = owner.get_fenced_lock("x").lock().await;
        match missing {
            None => entered.unwrap().unlock().await.unwrap(),
            Some(_) => assert!(matches!(entered, Err(Error::Denied { .. })), "{missing:?}"),
        }
        assert_eq!(plain.hold_count(), 1, "{missing:?}");
        plain.unlock().await.unwrap();
        let tokens = server.keys().await.len();
        assert_eq!(tokens, usize::from(missing.is_none()), "{missing:?}");
    }
}

/// A waiter is put back, two waiters of a client change places, and only Redisson's are left.
#[tokio::test]
async fn what_a_fair_queue_needs_now_and_then_is_in_its_row() {
    let (more, _) = documented("fair");
    let server = RedisServer::start();
    for missing in RARE.map(Some).into_iter().chain([None]) {
        assert!(missing.is_none_or(|missing| more.contains(&missing)));
        server.cmd(&["FLUSHALL"]).await;
        let mut rights = [documented_rights(), more.clone()].concat();
        rights.retain(|right| Some(*right) != missing);
        let set = ["ACL", "SETUSER", "queue", "reset", "on", ">secret"];
        server.cmd(&[&set[..], &rights].concat()).await;
        let url = format!("redis://queue:secret@127.0.0.1:{}/", server.port());
        let mut user = connection(&url).await;
        let mut run = async |file: &str, args: &[&str]| {
            let mut call = redis::cmd("EVAL");
            call.arg(script(&format!("fair/{file}.lua")));
            call.arg(4).arg("app:x").arg("redisson_lock_queue:{app:x}");
            call.arg("redisson_lock_timeout:{app:x}");
            call.arg("watchlock_waiters:{app:x}");
            call.arg(300_000)
                .arg("redisson_lock__channel:{app:x}")
                .arg(args);
            call.query_async::<redis::Value>(&mut user).await.is_ok()
        };
        let mut done = run("enqueue", &["", "a:1"]).await;
        done &= run("enqueue", &["", "b:1"]).await;
        server.cmd(&["LPOP", "redisson_lock_queue:{app:x}"]).await;
        server
            .cmd(&["ZREM", "redisson_lock_timeout:{app:x}", "a:1"])
            .await;
        done &= run("vouch", &["a"]).await;
        done &= run("acquire", &["a:2", "30000", "1"]).await;
        server
            .cmd(&["RPUSH", "redisson_lock_queue:{app:x}", "java:1"])
            .await;
        for id in ["a:1", "a:2", "b:1"] {
            done &= run("release", &[id, "0"]).await;
        }
        assert_eq!(done, missing.is_none(), "without {missing:?}");
    }
}

/// A note is left, heeded and taken away, and a writer becomes a reader, which leaves many others behind.
#[tokio::test]
async fn what_a_waiting_writer_needs_now_and_then_is_in_its_row() {
    let (more, _) = documented("write");
    let server = RedisServer::start();
    let quiet = QUIET.into_iter().filter(|right| right.starts_with('+'));
    for (number, missing) in quiet.map(Some).chain([None]).enumerate() {
        assert!(missing.is_none_or(|missing| more.contains(&missing)));
        server.cmd(&["FLUSHALL"]).await;
        let mut rights = [documented_rights(), more.clone()].concat();
        rights.retain(|right| Some(*right) != missing);
        let set = ["ACL", "SETUSER", "writer", "reset", "on", ">secret"];
        server.cmd(&[&set[..], &rights].concat()).await;
        let url = format!("redis://writer:secret@127.0.0.1:{}/", server.port());
        let mut user = connection(&url).await;
        let mut run = async |file: &str, keys: &[&str], args: &[&str]| {
            let mut call = redis::cmd("EVAL");
            call.arg(script(&format!("rw/{file}.lua")));
            call.arg(keys.len()).arg(keys).arg(args);
            call.query_async::<redis::Value>(&mut user).await.is_ok()
        };
        let (lock, writers) = ("app:x", "watchlock_writers:{app:x}");
        let timeout = "{app:x}:a:1:rwlock_timeout:1";
        let channel = "redisson_rwlock:{app:x}";
        let mut done = run("write_acquire", &[lock, writers], &["a:1", "30000", "0"]).await;
        done &= run("downgrade", &[lock, timeout], &["a:1", "30000", channel]).await;
        done &= run("note", &[lock, writers], &["b", "3000", channel]).await;
        done &= run("note", &[lock, writers], &["b", "0", channel]).await;
        for reader in 0..40 {
            let field = format!("dead:{reader}");
            server.cmd(&["HSET", lock, &field, "1"]).await;
        }
        done &= run("release", &[lock, timeout, channel], &["a:1"]).await;
        assert_eq!(done, missing.is_none(), "{number}: without {missing:?}");
    }
}

/// What people may ask about a lock, and what a missing right takes away.
#[tokio::test]
async fn each_right_of_those_who_ask_is_needed_and_costs_no_more_than_the_page_says() {
    let server = RedisServer::start();
    let document = include_str!("../../docs/acl.md").replace("\\|", "/");
    let needed = |call: &str| {
        let row = document
            .lines()
            .find(|line| line.starts_with(&format!("|`{call}`|")));
        let cell = row.and_then(|row| row.split('|').nth(2)).expect("a row");
        let rights = cell
            .split('`')
            .skip(1)
            .step_by(2)
            .flat_map(|part| part.split(' '));
        rights
            .map(|right| right.replace('/', "|"))
            .collect::<Vec<_>>()
    };
    let (label, holders, waiters) = (needed("label"), needed("holders"), needed("waiters"));
    let all = [label.clone(), holders.clone(), waiters.clone()].concat();
    let cluster = "+pubsub|shardnumsub";
    assert_eq!(all.iter().filter(|right| *right == cluster).count(), 1);
    let mut missing = vec![None];
    missing.extend(all.iter().filter(|right| *right != cluster).map(Some));
    for (number, missing) in missing.into_iter().enumerate() {
        server.cmd(&["FLUSHALL"]).await;
        let (fair, _) = documented("fair");
        let mut rights = [documented_rights(), fair].concat();
        let granted = all
            .iter()
            .filter(|right| Some(*right) != missing && *right != cluster);
        rights.extend(granted.map(String::as_str));
        let user = format!("asks-{number}");
        let set = ["ACL", "SETUSER", &user, "reset", "on", ">secret"];
        server.cmd(&[&set, &rights[..]].concat()).await;
        let url = format!("redis://{user}:secret@127.0.0.1:{}/", server.port());
        let builder = Client::builder(&url).key_prefix("app:").label("somebody");
        let client = builder.connect().await.expect("the user may connect");
        let lock = client.get_lock("x");
        let guard = lock.lock().await.expect("a label is no part of a lock");
        let hides = |rights: &[String]| missing.is_some_and(|missing| rights.contains(missing));
        let is_shown = async || lock.holders().await.expect("an answer")[0].label.is_some();
        if hides(&label) || hides(&holders) {
            // Behind the try of the keeper to write it.
            client
                .get_lock("y")
                .lock()
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
            assert!(!is_shown().await, "without {missing:?}");
        } else {
            watchlock_support::eventually("the label is shown", LONG, is_shown).await;
        }
        let denied = |asked: Result<u64, Error>| matches!(asked, Err(Error::Denied { .. }));
        let of_plain = denied(lock.waiters().await);
        let of_fair = denied(client.get_fair_lock("x").waiters().await);
        let queue = missing.is_some_and(|missing| missing == "+llen");
        assert_eq!(of_fair, queue, "without {missing:?}");
        assert_eq!(of_plain, hides(&waiters) && !queue, "without {missing:?}");
        guard.unlock().await.expect("held to the end");
    }
}
