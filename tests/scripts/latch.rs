//! The latch's scripts: the count is Redisson's, and beside it are the ids of what counted.

use redis::{RedisResult, Value};

use super::{LOCK, Scene, at_time, both, code, is_refused};
use crate::common::script;

const COUNTED: &str = "watchlock_counted:{lock}";
const CHANNEL: &str = "redisson_countdownlatch__channel__{lock}";
const HOUR_MS: i64 = 3_600_000;

/// Every command that any of them calls.
const COMMANDS: [&str; 16] = [
    "-get",
    "-set",
    "-decr",
    "-del",
    "-time",
    "-pttl",
    "-pexpire",
    "-publish",
    "-zscore",
    "-zadd",
    "-zrem",
    "-zremrangebyscore",
    "-@write",
    "-@read",
    // What undoes, and what would be undone.
    "-zrem -pexpire",
    "-zrem -decr -del",
];

/// A call: the script, its keys and its arguments.
#[derive(Clone)]
struct Call(String, Vec<&'static str>, Vec<String>);

impl Call {
    fn of(file: &str, keys: &[&'static str], args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self(script(&format!("latch/{file}.lua")), keys.to_vec(), args)
    }

    fn words(&self) -> Vec<String> {
        let head = ["EVAL".to_owned(), self.0.clone(), self.1.len().to_string()];
        let keys = self.1.iter().map(|key| (*key).to_owned());
        head.into_iter().chain(keys).chain(self.2.clone()).collect()
    }

    fn at(self, now_ms: i64) -> Self {
        Self(at_time(&self.0, now_ms), self.1, self.2)
    }
}

fn set(counts: &str) -> Call {
    Call::of("change", &[LOCK], &["set", counts, CHANNEL])
}

fn delete() -> Call {
    Call::of("change", &[LOCK], &["delete", "0", CHANNEL])
}

fn count_down(id: &str) -> Call {
    Call::of("count_down", &[LOCK, COUNTED], &[id, CHANNEL])
}

fn look(what: &str) -> Call {
    Call::of("look", &[LOCK], &[what])
}

impl Scene {
    async fn latch() -> Self {
        let mut scene = Self::new().await;
        scene.listener.subscribe(CHANNEL).await.unwrap();
        scene
    }

    async fn tried(&self, call: Call) -> RedisResult<(i64, i64)> {
        let words = call.words();
        let words: Vec<_> = words.iter().map(|word| &**word).collect();
        self.server.try_cmd(&words).await.map(both)
    }

    async fn reply(&self, call: Call) -> (i64, i64) {
        self.tried(call).await.expect("a clean answer")
    }

    async fn refused(&self, denied: &str, call: &Call) -> RedisResult<Value> {
        let denied: Vec<_> = denied.split(' ').collect();
        let mut user = self.user_without(&denied).await;
        let mut words = redis::cmd("EVAL");
        words.arg(&call.words()[1..]);
        words.query_async(&mut user).await
    }

    /// The count in Redis, and the ids of what counted.
    async fn of_latch(&self) -> (Option<i64>, Vec<String>) {
        let count = self.server.query(&["GET", LOCK]).await;
        (
            count,
            self.server.query(&["ZRANGE", COUNTED, "0", "-1"]).await,
        )
    }
}

#[tokio::test]
async fn a_count_is_set_once_and_says_so_to_those_who_wait() {
    let mut scene = Scene::latch().await;
    assert_eq!(scene.reply(set("3")).await, (-2, 1));
    assert_eq!(scene.reply(set("3")).await, (-2, 0));
    assert_eq!(scene.reply(set("9")).await, (-2, 0));
    assert_eq!(scene.of_latch().await, (Some(3), Vec::new()));
    assert_eq!(scene.server.pttl(LOCK).await, -1, "as Redisson's");
    assert_eq!(scene.messages().await, ["1"]);
    for wrong in ["0", "-1", "", "1.5", "03", "nan"] {
        assert!(scene.tried(set(wrong)).await.is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn each_id_counts_once_however_often_it_runs() {
    let mut scene = Scene::latch().await;
    scene.reply(set("3")).await;
    for (id, left) in [("a", 2), ("b", 1)] {
        for _ in 0..3 {
            assert_eq!(scene.reply(count_down(id)).await, (-2, left), "{id}");
        }
        assert_eq!(scene.server.query::<i64>(&["GET", LOCK]).await, left);
    }
    assert_eq!(scene.reply(count_down("a")).await, (-2, 1), "what is left");
    let ttl = scene.server.pttl(COUNTED).await;
    assert!((HOUR_MS - 60_000..=HOUR_MS).contains(&ttl), "{ttl}");
    assert_eq!(scene.messages().await, ["1"], "nobody is woken for nothing");
    for _ in 0..2 {
        assert_eq!(scene.reply(count_down("c")).await, (-2, 0));
        assert!(!scene.server.exists(LOCK).await);
    }
    assert_eq!(scene.messages().await, ["0"]);
    // A repeat that comes after the latch was set anew.
    scene.reply(set("5")).await;
    assert_eq!(scene.reply(count_down("c")).await, (-2, 5));
    assert_eq!(scene.reply(count_down("d")).await, (-2, 4));
}

#[tokio::test]
async fn an_open_latch_is_not_counted_down() {
    let mut scene = Scene::latch().await;
    for _ in 0..2 {
        assert_eq!(scene.reply(count_down("a")).await, (-2, 0));
        assert!(scene.server.keys().await.is_empty());
    }
    assert!(scene.messages().await.is_empty());
    // Redisson sets a count of 0 and less, and leaves the key.
    for count in ["0", "-3"] {
        scene.server.cmd(&["SET", LOCK, count]).await;
        assert_eq!(scene.reply(set("2")).await, (-2, 0), "as with Redisson");
        assert_eq!(scene.reply(look("count")).await, (-2, 0));
        assert_eq!(scene.reply(look("wait")).await, (-2, 0));
        assert_eq!(scene.reply(count_down("a")).await, (-2, 0));
        assert!(scene.server.keys().await.is_empty());
        assert_eq!(scene.messages().await, ["0"]);
    }
}

#[tokio::test]
async fn ids_are_known_for_an_hour() {
    let scene = Scene::latch().await;
    scene.reply(set("9")).await;
    let start = 10 * HOUR_MS;
    for (id, now, left) in [
        ("a", start, 8),
        ("b", start + HOUR_MS, 7),
        ("b", start + HOUR_MS, 7),
        ("a", start + HOUR_MS, 6),
    ] {
        assert_eq!(scene.reply(count_down(id).at(now)).await, (-2, left));
    }
    scene
        .reply(count_down("c").at(start + 2 * HOUR_MS - 1))
        .await;
    assert_eq!(scene.of_latch().await.1, ["a", "b", "c"]);
    scene.reply(count_down("d").at(start + 2 * HOUR_MS)).await;
    assert_eq!(scene.of_latch().await.1, ["c", "d"]);
}

#[tokio::test]
async fn a_question_says_how_many_are_missing_or_for_how_long_to_wait() {
    let scene = Scene::latch().await;
    assert_eq!(scene.reply(look("count")).await, (-2, 0));
    assert_eq!(scene.reply(look("wait")).await, (-2, 0));
    scene.reply(set("2")).await;
    assert_eq!(scene.reply(look("count")).await, (-2, 2));
    assert_eq!(scene.reply(look("wait")).await, (-1, 0));
    scene.server.cmd(&["PEXPIRE", LOCK, "60000"]).await;
    let (left, _) = scene.reply(look("wait")).await;
    assert!((30_000..=60_000).contains(&left), "{left}");
    scene.reply(count_down("a")).await;
    let ttl = scene.server.pttl(LOCK).await;
    assert!((30_000..=60_000).contains(&ttl), "a count keeps it: {ttl}");
}

/// Redisson says `1`, and its waiters sleep for ever.
#[tokio::test]
async fn deleting_a_latch_opens_it() {
    let mut scene = Scene::latch().await;
    assert_eq!(scene.reply(delete()).await, (-2, 0));
    assert!(scene.messages().await.is_empty());
    scene.reply(set("2")).await;
    scene.reply(count_down("a")).await;
    assert_eq!(scene.reply(delete()).await, (-2, 1));
    assert_eq!(scene.reply(delete()).await, (-2, 0));
    assert_eq!(scene.messages().await, ["1", "0"]);
    assert_eq!(scene.server.keys().await, [COUNTED], "for its repeats");
}

/// Whichever command is denied: an id is noted if and only if it counted, and no key of ours is without an end.
#[tokio::test]
async fn whichever_command_is_denied_an_id_counts_with_the_count() {
    let scene = Scene::latch().await;
    for denied in COMMANDS {
        for before in [1, 2, 0] {
            scene.server.cmd(&["FLUSHALL"]).await;
            scene.server.cmd(&["SET", LOCK, &before.to_string()]).await;
            let answer = scene.refused(denied, &count_down("a")).await;
            let (count, ids) = scene.of_latch().await;
            let counted = before - count.unwrap_or(0);
            let expected = i64::try_from(ids.len()).unwrap();
            assert_eq!(counted, expected, "{denied} {before}: {answer:?}");
            assert!(answer.is_ok() || is_refused(&answer), "{denied}");
            if answer.is_err() {
                assert_eq!((count, expected), (Some(before), 0), "{denied}");
            }
            assert_ne!(scene.server.pttl(COUNTED).await, -1, "{denied}");
        }
        for call in [set("3"), delete(), look("count"), look("wait")] {
            for is_set in [false, true] {
                scene.server.cmd(&["FLUSHALL"]).await;
                if is_set {
                    scene.reply(set("5")).await;
                }
                let before = scene.of_latch().await;
                let answer = scene.refused(denied, &call).await;
                if answer.is_err() {
                    assert!(is_refused(&answer), "{denied}: {answer:?}");
                    assert_eq!(scene.of_latch().await, before, "{denied}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_denied_message_is_reported_and_the_latch_is_changed_all_the_same() {
    let scene = Scene::latch().await;
    let code = |code, number| Value::Array(vec![Value::Int(code), Value::Int(number)]);
    for denied in ["-publish", "resetchannels"] {
        for (call, number) in [(set("1"), 1), (count_down(denied), 0)] {
            let answer = scene.refused(denied, &call).await;
            assert_eq!(answer.unwrap(), code(-8, number), "{denied}");
        }
        assert!(!scene.server.exists(LOCK).await);
        scene.reply(set("1")).await;
        let answer = scene.refused(denied, &delete()).await;
        assert_eq!(answer.unwrap(), code(-8, 1), "{denied}");
    }
}

/// Redisson's countDown is refused.
#[tokio::test]
async fn out_of_memory_a_latch_is_counted_down_and_none_is_set() {
    let mut scene = Scene::latch().await;
    scene.reply(set("3")).await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for (id, left) in [("a", 2), ("a", 2), ("b", 1)] {
        assert_eq!(scene.reply(count_down(id)).await, (-2, left));
    }
    assert_eq!(scene.reply(look("wait")).await, (-1, 0));
    assert_eq!(scene.reply(count_down("c")).await, (-2, 0));
    for _ in 0..2 {
        let refused = scene.tried(set("3")).await.unwrap_err();
        assert_eq!(code(&refused), Some("OOM"), "{refused}");
        assert!(!scene.server.exists(LOCK).await);
    }
    assert_eq!(scene.messages().await, ["1", "0"]);
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
}

#[tokio::test]
async fn keys_that_are_no_latch_are_recognised_and_left_alone() {
    let foreign: [&[&str]; 4] = [
        &["SET", LOCK, "none"],
        &["SET", LOCK, "9007199254740992"],
        &["HSET", LOCK, "a", "1"],
        &["SET", COUNTED, "1"],
    ];
    for write in foreign {
        let scene = Scene::latch().await;
        scene.server.cmd(write).await;
        let mut calls = vec![count_down("a")];
        if write[1] == LOCK {
            calls.extend([set("1"), delete(), look("count"), look("wait")]);
        }
        for call in calls {
            assert_eq!(scene.reply(call).await, (-3, 0), "{write:?}");
        }
        assert_eq!(scene.server.keys().await, [write[1]]);
    }
}

#[tokio::test]
async fn a_server_that_cannot_write_says_so() {
    let scene = Scene::latch().await;
    scene.reply(set("2")).await;
    scene.server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for call in [count_down("a"), delete()] {
        let refused = scene.tried(call).await.unwrap_err();
        assert_eq!(code(&refused), Some("READONLY"), "{refused}");
    }
    assert_eq!(scene.of_latch().await, (Some(2), Vec::new()));
}
