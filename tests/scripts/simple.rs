//! The simple lock's scripts: the string of other libraries, by the same contract as the plain lock's.

use redis::{RedisResult, Value};

use super::{CLIENT, LATER, LOCK, MINE, Scene, code, is_refused};
use crate::common::channel;

const ACQUIRE: &str = include_str!("../../lua/simple/acquire.lua");
const VERIFY: &str = include_str!("../../lua/simple/verify.lua");
const RELEASE: &str = include_str!("../../lua/simple/release.lua");
const FORCE: &str = include_str!("../../lua/simple/force_release.lua");

/// Every command that any of them calls.
const COMMANDS: [&str; 7] = [
    "-pttl", "-get", "-set", "-pexpire", "-publish", "-del", "-@write",
];

impl Scene {
    /// The command of redsync, redlock-py and the like; returns whether they got the lock.
    async fn set(&self, token: &str, lease: &str) -> bool {
        let call = ["SET", LOCK, token, "NX", "PX", lease];
        self.server.cmd(&call).await == Value::Okay
    }

    async fn release_simple(&self, hold: &str, count: &str) -> RedisResult<(i64, i64)> {
        self.run_both(RELEASE, &[hold, count, &channel(LOCK)]).await
    }

    async fn force_simple(&self) -> RedisResult<(i64, i64)> {
        self.run_both(FORCE, &[CLIENT, &channel(LOCK)]).await
    }

    async fn assert_string(&self, hold: &str, lease: (i64, i64)) {
        let value: Option<String> = self.server.query(&["GET", LOCK]).await;
        assert_eq!(value.as_deref(), Some(hold));
        let ttl = self.server.pttl(LOCK).await;
        assert!(ttl > lease.0 && ttl <= lease.1, "{ttl} ms, not {lease:?}");
    }
}

#[tokio::test]
async fn acquire_takes_a_free_lock_as_set_does_and_a_repeat_takes_it_again() {
    let mut scene = Scene::new().await;
    for _ in 0..2 {
        assert_eq!(scene.run(ACQUIRE, &[MINE, "30000"]).await.unwrap(), -2);
        scene.assert_string(MINE, (20_000, 30_000)).await;
    }
    assert!(!scene.set("theirs", "30000").await);
    scene.server.cmd(&["FLUSHALL"]).await;
    assert!(scene.set(MINE, "30000").await);
    assert_eq!(scene.run(ACQUIRE, &[MINE, "1000"]).await.unwrap(), -2);
    scene.assert_string(MINE, (20_000, 30_000)).await;
    assert_eq!(scene.run(ACQUIRE, &[MINE, "60000"]).await.unwrap(), -2);
    scene.assert_string(MINE, (50_000, 60_000)).await;
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.run(ACQUIRE, &[MINE, "30000"]).await.unwrap(), -2);
    scene.assert_string(MINE, (20_000, 30_000)).await;
    assert!(scene.messages().await.is_empty());
    assert_eq!(scene.server.keys().await, [LOCK]);
}

#[tokio::test]
async fn acquire_of_a_held_lock_says_for_how_long_and_touches_nothing() {
    let scene = Scene::new().await;
    assert!(scene.set("a token of another library", "30000").await);
    for _ in 0..2 {
        let busy = scene.run(ACQUIRE, &[MINE, "90000"]).await.unwrap();
        assert!((20_000..=30_000).contains(&busy), "{busy}");
        scene
            .assert_string("a token of another library", (20_000, 30_000))
            .await;
    }
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.run(ACQUIRE, &[MINE, "30000"]).await.unwrap(), -1);
}

#[tokio::test]
async fn a_key_that_is_no_string_is_recognised_and_left_alone() {
    let foreign: [&[&str]; 4] = [
        &["HSET", LOCK, MINE, "1"],
        &["RPUSH", LOCK, MINE],
        &["SADD", LOCK, MINE],
        &["ZADD", LOCK, "1", MINE],
    ];
    for write in foreign {
        let scene = Scene::new().await;
        scene.server.cmd(write).await;
        let before = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        for _ in 0..2 {
            assert_eq!(scene.run(ACQUIRE, &[MINE, "30000"]).await.unwrap(), -3);
            assert_eq!(scene.run(VERIFY, &[MINE, "30000"]).await.unwrap(), -5);
            assert_eq!(scene.force_simple().await.unwrap(), (-3, 0));
            for count in ["0", "1"] {
                let released = scene.release_simple(MINE, count).await;
                assert_eq!(released.unwrap(), (-5, 0));
            }
        }
        let after = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        assert_eq!(before, after, "{write:?}");
        assert_eq!(scene.server.pttl(LOCK).await, -1);
    }
}

#[tokio::test]
async fn t1_verify_lengthens_the_lease_and_never_shortens_it() {
    let mut scene = Scene::new().await;
    scene.set(MINE, "30000").await;
    for _ in 0..2 {
        assert_eq!(scene.run(VERIFY, &[MINE, "1000"]).await.unwrap(), -2);
        scene.assert_string(MINE, (20_000, 30_000)).await;
    }
    assert_eq!(scene.run(VERIFY, &[MINE, "60000"]).await.unwrap(), -2);
    scene.assert_string(MINE, (50_000, 60_000)).await;
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.run(VERIFY, &[MINE, "30000"]).await.unwrap(), -2);
    scene.assert_string(MINE, (20_000, 30_000)).await;
    assert!(scene.messages().await.is_empty());
}

/// For a key without a TTL, Lua's `max` would return -1, and Redis would delete the lock.
#[tokio::test]
async fn i4_verify_by_what_is_no_number_deletes_nothing() {
    let scene = Scene::new().await;
    for lease in ["nan", "-nan", "-1", "1e3", "0x10", "", " 5"] {
        scene.server.cmd(&["SET", LOCK, MINE]).await;
        let asked = scene.run(VERIFY, &[MINE, lease]).await;
        assert!(asked.is_err(), "{lease}: {asked:?}");
        assert!(scene.server.exists(LOCK).await, "{lease}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_write_says_so_and_not_lost() {
    let scene = Scene::new().await;
    scene.set(MINE, "30000").await;
    scene.server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for _ in 0..2 {
        let refused = scene.run(VERIFY, &[MINE, "1000"]).await.unwrap_err();
        assert_eq!(code(&refused), Some("READONLY"), "{refused}");
    }
    scene.assert_string(MINE, (0, 30_000)).await;
}

#[tokio::test]
async fn the_last_release_frees_the_lock_and_wakes_one_waiter_once() {
    let mut scene = Scene::new().await;
    scene.set(MINE, "30000").await;
    for _ in 0..2 {
        assert_eq!(scene.release_simple(MINE, "1").await.unwrap(), (-2, 0));
        scene.assert_string(MINE, (20_000, 30_000)).await;
    }
    assert!(scene.messages().await.is_empty());
    assert_eq!(scene.release_simple(MINE, "0").await.unwrap(), (-7, 1));
    assert!(scene.server.keys().await.is_empty());
    assert_eq!(scene.messages().await, ["0"]);
    assert_eq!(scene.release_simple(MINE, "0").await.unwrap(), (-5, 0));
    assert_eq!(scene.release_simple(MINE, "1").await.unwrap(), (-5, 0));
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn force_release_ends_whoever_holds_and_says_whether_it_was_the_caller() {
    let mut scene = Scene::new().await;
    assert_eq!(scene.force_simple().await.unwrap(), (-5, 0));
    for (holder, number) in [(MINE, 7), ("kR3b+token/==", 0), ("", 0)] {
        scene.set(holder, "30000").await;
        assert_eq!(
            scene.force_simple().await.unwrap(),
            (-2, number),
            "{holder}"
        );
        assert!(scene.server.keys().await.is_empty());
        assert_eq!(scene.messages().await, ["0"]);
        assert_eq!(scene.force_simple().await.unwrap(), (-5, 0));
        assert!(scene.messages().await.is_empty());
    }
}

#[tokio::test]
async fn i3_late_commands_of_an_old_hold_do_not_touch_a_new_one() {
    let mut scene = Scene::new().await;
    scene.set(LATER, "30000").await;
    assert!(scene.run(ACQUIRE, &[MINE, "90000"]).await.unwrap() > 0);
    assert_eq!(scene.run(VERIFY, &[MINE, "90000"]).await.unwrap(), -5);
    assert_eq!(scene.release_simple(MINE, "1").await.unwrap(), (-5, 0));
    assert_eq!(scene.release_simple(MINE, "0").await.unwrap(), (-5, 0));
    scene.assert_string(LATER, (20_000, 30_000)).await;
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn i4_no_argument_and_no_lack_of_memory_leaves_a_key_without_a_lease() {
    let scene = Scene::new().await;
    let none = [
        "0",
        "-1",
        "0.5",
        "1.5",
        "1e3",
        "0x10",
        "nan",
        "inf",
        "",
        "soon",
        "9007199254740993000",
    ];
    for lease in none {
        let taken = scene.run(ACQUIRE, &[MINE, lease]).await;
        assert!(taken.is_err(), "{lease:?}: {taken:?}");
        assert!(scene.server.keys().await.is_empty(), "{lease:?}");
    }
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.run(ACQUIRE, &[MINE, "30000"]).await.unwrap_err();
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    assert!(scene.server.keys().await.is_empty());
}

#[tokio::test]
async fn i2_out_of_memory_a_hold_can_be_entered_renewed_and_given_back() {
    let mut scene = Scene::new().await;
    scene.set(MINE, "10000").await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(scene.run(ACQUIRE, &[MINE, "20000"]).await.unwrap(), -2);
    assert_eq!(scene.run(VERIFY, &[MINE, "60000"]).await.unwrap(), -2);
    scene.assert_string(MINE, (50_000, 60_000)).await;
    assert_eq!(scene.release_simple(MINE, "1").await.unwrap(), (-2, 0));
    assert_eq!(scene.release_simple(MINE, "0").await.unwrap(), (-7, 1));
    assert_eq!(scene.messages().await, ["0"]);
}

/// Runs a script as a user to whom one command is denied.
async fn eval(scene: &Scene, denied: &str, script: &str, args: &[&str]) -> RedisResult<Value> {
    let mut user = scene.user_without(&[denied]).await;
    let mut call = redis::cmd("EVAL");
    call.arg(script).arg(1).arg(LOCK).arg(args);
    call.query_async(&mut user).await
}

#[tokio::test]
async fn i4_whichever_command_is_denied_no_key_is_without_a_lease() {
    let scene = Scene::new().await;
    let channel = channel(LOCK);
    for denied in COMMANDS {
        let answer = eval(&scene, denied, ACQUIRE, &[MINE, "30000"]).await;
        let needed = ["-pttl", "-set", "-@write"].contains(&denied);
        assert_eq!(is_refused(&answer), needed, "{denied}: {answer:?}");
        assert_eq!(scene.server.exists(LOCK).await, !needed, "{denied}");

        scene.server.cmd(&["FLUSHALL"]).await;
        scene.set(MINE, "30000").await;
        let scripts: [(&str, &[&str]); 4] = [
            (ACQUIRE, &[MINE, "60000"]),
            (VERIFY, &[MINE, "60000"]),
            (RELEASE, &[MINE, "1", &channel]),
            (RELEASE, &[LATER, "0", &channel]),
        ];
        for (script, args) in scripts {
            let answer = eval(&scene, denied, script, args).await;
            let ttl = scene.server.pttl(LOCK).await;
            assert!(
                (20_000..=60_000).contains(&ttl),
                "{denied}: {ttl}, {answer:?}"
            );
        }
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn a_denied_command_is_reported_and_a_denied_wake_up_as_well() {
    let scene = Scene::new().await;
    let channel = channel(LOCK);
    for (denied, needed) in [
        ("-get", true),
        ("-pttl", true),
        ("-pexpire", true),
        ("-set", false),
    ] {
        scene.set(MINE, "30000").await;
        let answer = eval(&scene, denied, VERIFY, &[MINE, "60000"]).await;
        assert_eq!(is_refused(&answer), needed, "{denied}: {answer:?}");
        assert_eq!(answer.is_ok(), !needed, "{denied}");
    }
    for denied in ["-get", "-del"] {
        let answer = eval(&scene, denied, RELEASE, &[MINE, "0", &channel]).await;
        assert!(is_refused(&answer), "{denied}: {answer:?}");
        let answer = eval(&scene, denied, FORCE, &[CLIENT, &channel]).await;
        assert!(is_refused(&answer), "{denied}: {answer:?}");
        assert!(scene.server.exists(LOCK).await);
    }
    let answer = eval(&scene, "-publish", RELEASE, &[MINE, "0", &channel]).await;
    assert_eq!(answer.unwrap(), Value::Int(-8));
    scene.set(MINE, "30000").await;
    let answer = eval(&scene, "-publish", FORCE, &[CLIENT, &channel]).await;
    let ended = Value::Array(vec![Value::Int(-8), Value::Int(7)]);
    assert_eq!(answer.unwrap(), ended);
    assert!(scene.server.keys().await.is_empty());
}
