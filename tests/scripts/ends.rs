//! Keys in their last millisecond, of which Redis says that 0 ms are left, and counts at their ends.

use redis::Value;

use super::{ACQUIRE, LATER, LOCK, MINE, REENTER, Scene, VERIFY, both, faked};
use crate::common::{channel, script};

const LEASE: &str = "30000";
const LEASED: (i64, i64) = (20_000, 30_000);
const TOKEN: &str = "redisson_lock_token:lock";
const WRITERS: &str = "watchlock_writers:{lock}";

/// Keys, arguments, or a command.
type Words<'a> = &'a [&'a str];

fn timeout(hold: &str, level: u32) -> String {
    format!("{{lock}}:{hold}:rwlock_timeout:{level}")
}

fn rw(file: &str) -> String {
    script(&format!("rw/{file}.lua"))
}

/// Calls a script for which each of the keys that `condition` is true for has 0 ms left.
async fn in_the_last_ms(
    scene: &Scene,
    script: &str,
    condition: &str,
    keys: &[&str],
    args: &[&str],
) -> Value {
    let script = faked(script, "PTTL", condition, "0");
    let count = keys.len().to_string();
    let call = [&["EVAL", &script, &count], keys, args].concat();
    scene.server.cmd(&call).await
}

#[tokio::test]
async fn a_strangers_lock_is_busy_to_its_last_ms() {
    let simple = include_str!("../../lua/simple/acquire.lua");
    let fenced = include_str!("../../lua/fenced/acquire.lua");
    let fair = script("fair/acquire.lua");
    let (read, write) = (rw("read_acquire"), rw("write_acquire"));
    let fair_keys = ["lock", "queue", "scores", "waiters"];
    let mine = timeout(MINE, 1);
    let hash = ["HSET", LOCK, LATER, "1"];
    let writer = [
        "HSET",
        LOCK,
        "mode",
        "write",
        &format!("{LATER}:write"),
        "1",
    ];
    let all: [(&str, Words<'_>, Words<'_>, Words<'_>); 6] = [
        (ACQUIRE, &hash, &[LOCK], &[MINE, LEASE]),
        (simple, &["SET", LOCK, LATER], &[LOCK], &[MINE, LEASE]),
        (fenced, &hash, &[LOCK, TOKEN], &[MINE, LEASE, "0"]),
        (&read, &writer, &[LOCK, &mine, WRITERS], &[MINE, LEASE]),
        (&write, &writer, &[LOCK, WRITERS], &[MINE, LEASE, "0"]),
        (
            &fair,
            &hash,
            &fair_keys,
            &["300000", "channel", MINE, LEASE, "0"],
        ),
    ];
    for (script, taken, keys, args) in all {
        let scene = Scene::new().await;
        scene.server.cmd(taken).await;
        scene.server.cmd(&["PEXPIRE", LOCK, LEASE]).await;
        let before = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        let busy = in_the_last_ms(&scene, script, "true", keys, args).await;
        assert_eq!(busy, Value::Int(0), "{taken:?}");
        let after = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        assert_eq!(before, after, "{taken:?}");
        assert_eq!(scene.server.keys().await, [LOCK], "{taken:?}");
    }
}

#[tokio::test]
async fn i4_what_finds_its_own_hold_in_its_last_ms_gives_it_the_whole_lease() {
    let scene = Scene::new().await;
    let calls: [(&str, &[&str], i64); 3] = [
        (ACQUIRE, &[MINE, LEASE], -2),
        (REENTER, &[MINE, "2", LEASE], -2),
        (VERIFY, &[MINE, LEASE], -2),
    ];
    for (script, args, expected) in calls {
        scene.acquire(MINE, "1000").await.unwrap();
        let reply = in_the_last_ms(&scene, script, "true", &[LOCK], args).await;
        assert_eq!(reply, Value::Int(expected));
        let (hash, ttl) = scene.state().await;
        assert_eq!(hash[0].0, MINE);
        assert!(ttl > LEASED.0 && ttl <= LEASED.1, "{ttl}");
        scene.server.cmd(&["DEL", LOCK]).await;
    }
}

#[tokio::test]
async fn i4_what_finds_its_own_read_or_write_hold_in_its_last_ms_gives_it_the_whole_lease() {
    let scene = Scene::new().await;
    let mine = timeout(MINE, 1);
    let keys = [LOCK, &mine, WRITERS];
    let wakes = channel(LOCK);
    let (read, write) = (rw("read_acquire"), rw("write_acquire"));
    let (assert, downgrade) = (rw("assert"), rw("downgrade"));
    // What takes it, and what finds it.
    let calls: [(&str, &str, Words<'_>, Words<'_>, i64); 5] = [
        (&read, &read, &keys, &[MINE, LEASE], -2),
        (&write, &write, &[LOCK, WRITERS], &[MINE, LEASE, "0"], -2),
        (&read, &assert, &keys, &[MINE, LEASE, "0"], -2),
        (&write, &assert, &keys, &[MINE, LEASE, "2"], -2),
        (
            &write,
            &downgrade,
            &[LOCK, &mine],
            &[MINE, LEASE, &wakes],
            -2,
        ),
    ];
    for (takes, finds, keys, args, expected) in calls {
        let reads = takes == read;
        let taken = if reads {
            vec!["EVAL", takes, "3", LOCK, &mine, WRITERS, MINE, "1000"]
        } else {
            vec!["EVAL", takes, "2", LOCK, WRITERS, MINE, "1000", "0"]
        };
        assert_eq!(scene.server.cmd(&taken).await, Value::Int(-2));
        let reply = in_the_last_ms(&scene, finds, "true", keys, args).await;
        assert_eq!(reply, Value::Int(expected));
        for key in scene.server.keys().await {
            let ttl = scene.server.pttl(&key).await;
            assert!(ttl > LEASED.0 && ttl <= LEASED.1, "{key}: {ttl}");
        }
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

/// Java's renewal may have cut the lease of the hash, which has 0 ms left while one of its readers lives on.
#[tokio::test]
async fn a_read_release_leaves_the_lease_of_who_lives_on_behind_a_hash_in_its_last_ms() {
    let scene = Scene::new().await;
    let (read, release) = (rw("read_acquire"), rw("release"));
    for (hold, lease) in [(LATER, LEASE), (MINE, "1000")] {
        let key = timeout(hold, 1);
        let call = ["EVAL", &read, "3", LOCK, &key, WRITERS, hold, lease];
        assert_eq!(scene.server.cmd(&call).await, Value::Int(-2));
    }
    let (mine, wakes) = (timeout(MINE, 1), channel(LOCK));
    let condition = format!("key == '{LOCK}'");
    let keys = [LOCK, &mine, &wakes];
    let reply = in_the_last_ms(&scene, &release, &condition, &keys, &[MINE]).await;
    assert_eq!(reply, Value::Int(-2), "others have it");
    let ttl = scene.server.pttl(LOCK).await;
    assert!(ttl > LEASED.0 && ttl <= LEASED.1, "{ttl}");
}

/// A reader of Redisson has a timeout key for each level. Up to 1 000 are looked at; for more the lease of the hash stands.
#[tokio::test]
async fn a_read_release_finds_the_last_of_a_thousand_levels() {
    let (read, release) = (rw("read_acquire"), rw("release"));
    let (mine, wakes) = (timeout(MINE, 1), channel(LOCK));
    let last = timeout(LATER, 1000);
    // The count of the other one, whether its last level lives, and whether the lock stays.
    for (count, lives, stays) in [
        ("1000", true, true),
        ("1000", false, false),
        ("1001", false, true),
        ("0", true, false),
        ("4294967295", false, true),
    ] {
        let scene = Scene::new().await;
        let call = ["EVAL", &read, "3", LOCK, &mine, WRITERS, MINE, LEASE];
        assert_eq!(scene.server.cmd(&call).await, Value::Int(-2));
        scene.server.cmd(&["HSET", LOCK, LATER, count]).await;
        if lives {
            scene.server.cmd(&["SET", &last, "1", "PX", LEASE]).await;
        }
        let call = ["EVAL", &release, "3", LOCK, &mine, &wakes, MINE];
        let reply = scene.server.cmd(&call).await;
        let expected = if stays { (-2, 0) } else { (-7, 1) };
        assert_eq!(both(reply), expected, "{count}, {lives}");
        assert_eq!(scene.server.exists(LOCK).await, stays, "{count}, {lives}");
    }
}
