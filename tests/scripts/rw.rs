//! The read/write lock's scripts: Redisson's hash, channel and timeout keys, by the same contract as the plain lock's.

use redis::{RedisResult, Value};

use super::{CLIENT, LATER, LOCK, MINE, Scene, at_time, both, faked, is_refused, is_wrong_type};
use crate::common::channel;

const READ: &str = include_str!("../../lua/rw/read_acquire.lua");
const WRITE: &str = include_str!("../../lua/rw/write_acquire.lua");
const ASSERT: &str = include_str!("../../lua/rw/assert.lua");
const RELEASE: &str = include_str!("../../lua/rw/release.lua");
const ASSERT_TIMEOUT: &str = include_str!("../../lua/rw/assert_timeout.lua");
const DOWNGRADE: &str = include_str!("../../lua/rw/downgrade.lua");
const NOTE: &str = include_str!("../../lua/rw/note.lua");
const FORCE: &str = include_str!("../../lua/rw/force_release.lua");
const LOOK: &str = include_str!("../../lua/rw/look.lua");

const WRITERS: &str = "watchlock_writers:{lock}";
/// What is published when others can enter; the second is for waiters of Redisson.
const FREE: [&str; 2] = ["1", "00"];
const THEIRS: &str = "9a1b0c0e-0000-4000-8000-000000000002:7";

/// Every command that any of them calls.
const COMMANDS: [&str; 22] = [
    "-pttl",
    "-hget",
    "-hmget",
    "-hset",
    "-hdel",
    "-hlen",
    "-hgetall",
    "-hrandfield",
    "-hexists",
    "-pexpire",
    "-set",
    "-del",
    "-time",
    "-zadd",
    "-zrem",
    "-zcount",
    "-zrevrange",
    "-zscore",
    "-publish",
    "-eval",
    "-@write",
    "-@read",
];

fn timeout(hold: &str) -> String {
    format!("{{lock}}:{hold}:rwlock_timeout:1")
}

/// One call: the script, its keys and its arguments.
struct Call(&'static str, Vec<String>, Vec<String>);

impl Call {
    fn new(script: &'static str, keys: &[&str], args: &[&str]) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self(script, owned(keys), owned(args))
    }

    fn read(hold: &str, lease: &str) -> Self {
        Self::new(READ, &[LOCK, &timeout(hold), WRITERS], &[hold, lease])
    }

    fn write(hold: &str, lease: &str, note: &str) -> Self {
        Self::new(WRITE, &[LOCK, WRITERS], &[hold, lease, note])
    }

    fn assert(hold: &str, lease: &str, count: &str) -> Self {
        Self::new(
            ASSERT,
            &[LOCK, &timeout(hold), WRITERS],
            &[hold, lease, count],
        )
    }

    fn join(hold: &str, lease: &str) -> Self {
        let keys = [LOCK, &timeout(hold), WRITERS];
        Self::new(ASSERT, &keys, &[hold, lease, "0", "1"])
    }

    fn release(hold: &str) -> Self {
        Self::new(RELEASE, &[LOCK, &timeout(hold), &channel(LOCK)], &[hold])
    }

    fn downgrade(hold: &str, lease: &str) -> Self {
        Self::new(
            DOWNGRADE,
            &[LOCK, &timeout(hold)],
            &[hold, lease, &channel(LOCK)],
        )
    }

    fn note(client: &str, ms: &str) -> Self {
        Self::new(NOTE, &[LOCK, WRITERS], &[client, ms, &channel(LOCK)])
    }

    fn assert_lock(hold: &str, lease: &str) -> Self {
        Self::new(ASSERT, &[LOCK], &[hold, lease, "0"])
    }

    fn assert_timeout(hold: &str, lease: &str) -> Self {
        Self::new(ASSERT_TIMEOUT, &[&timeout(hold)], &[lease])
    }

    fn force(mode: &str) -> Self {
        Self::new(FORCE, &[LOCK], &[mode, CLIENT, &channel(LOCK), "{lock}:"])
    }

    fn look(mode: &str) -> Self {
        Self::new(LOOK, &[LOCK], &[mode])
    }

    fn words(&self) -> Vec<String> {
        let head = [
            "EVAL".to_owned(),
            self.0.to_owned(),
            self.1.len().to_string(),
        ];
        head.into_iter()
            .chain(self.1.clone())
            .chain(self.2.clone())
            .collect()
    }
}

impl Scene {
    async fn try_do(&self, call: Call) -> RedisResult<Value> {
        let words = call.words();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        self.server.try_cmd(&words).await
    }

    /// Makes a call at a time of the server's, in ms. Returns the code of the reply.
    async fn go_at(&self, now_ms: i64, call: Call) -> i64 {
        let mut words = call.words();
        words[1] = at_time(&words[1], now_ms);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        both(self.server.cmd(&words).await).0
    }

    /// Makes a call. Returns the code of the reply and its number.
    async fn go_both(&self, call: Call) -> (i64, i64) {
        both(self.try_do(call).await.unwrap())
    }

    /// Makes a call. Returns the code of the reply.
    async fn go(&self, call: Call) -> i64 {
        self.go_both(call).await.0
    }

    async fn field(&self, field: &str) -> Option<String> {
        self.server.hash(LOCK).await.get(field).cloned()
    }

    /// No key of any lock is without a lease.
    async fn assert_leased(&self, why: &str) {
        for key in self.server.keys().await {
            assert_ne!(self.server.pttl(&key).await, -1, "{why}: {key}");
        }
    }

    async fn assert_ttl(&self, key: &str, (least, most): (i64, i64)) {
        let ttl = self.server.pttl(key).await;
        assert!(ttl > least && ttl <= most, "{key}: {ttl} ms");
    }
}

fn write_field(hold: &str) -> String {
    format!("{hold}:write")
}

#[tokio::test]
async fn readers_share_the_lock_and_a_repeat_changes_nothing() {
    let scene = Scene::new().await;
    for _ in 0..2 {
        assert_eq!(scene.go(Call::read(MINE, "30000")).await, -2);
        assert_eq!(scene.go(Call::read(THEIRS, "60000")).await, -2);
    }
    assert_eq!(scene.server.hash(LOCK).await.len(), 3);
    assert_eq!(scene.field("mode").await.as_deref(), Some("read"));
    scene.assert_ttl(&timeout(MINE), (20_000, 30_000)).await;
    scene.assert_ttl(&timeout(THEIRS), (50_000, 60_000)).await;
    scene.assert_ttl(LOCK, (50_000, 60_000)).await;
    assert_eq!(
        scene.go(Call::read(MINE, "10")).await,
        -2,
        "no lease shrinks"
    );
    scene.assert_ttl(&timeout(MINE), (20_000, 30_000)).await;
    let busy = scene.go(Call::write(LATER, "30000", "0")).await;
    assert!((50_000..=60_000).contains(&busy), "{busy}");
}

#[tokio::test]
async fn a_writer_has_it_alone_and_a_repeat_changes_nothing() {
    let scene = Scene::new().await;
    for _ in 0..2 {
        assert_eq!(scene.go(Call::write(MINE, "30000", "3000")).await, -2);
    }
    assert_eq!(scene.field(&write_field(MINE)).await.as_deref(), Some("1"));
    for call in [Call::read(THEIRS, "1000"), Call::write(THEIRS, "1000", "0")] {
        let busy = scene.go(call).await;
        assert!((20_000..=30_000).contains(&busy), "{busy}");
    }
    assert_eq!(scene.server.keys().await, [LOCK]);
}

#[tokio::test]
async fn a_release_ends_its_hold_in_either_mode_and_once() {
    let mut scene = Scene::new().await;
    for call in [Call::read(MINE, "30000"), Call::write(MINE, "30000", "0")] {
        assert_eq!(scene.go(call).await, -2);
        assert_eq!(
            scene.go(Call::release(LATER)).await,
            -5,
            "not another hold's"
        );
        let released = scene.go_both(Call::release(MINE)).await;
        assert_eq!(released, (-7, 1), "one listens");
        assert!(scene.server.keys().await.is_empty());
        assert_eq!(scene.messages().await, FREE, "all may try");
        assert_eq!(scene.go(Call::release(MINE)).await, -5);
        assert!(scene.messages().await.is_empty());
    }
}

#[tokio::test]
async fn a_release_leaves_others_the_longest_lease_that_remains() {
    let mut scene = Scene::new().await;
    scene.go(Call::read(THEIRS, "20000")).await;
    // Of a Java thread with two levels, and of a dead one.
    scene
        .server
        .cmd(&["HSET", LOCK, "java:1", "2", "java:2", "1"])
        .await;
    let java = "{lock}:java:1:rwlock_timeout:2";
    scene.server.cmd(&["SET", java, "1", "PX", "40000"]).await;
    scene.go(Call::read(MINE, "90000")).await;
    assert_eq!(scene.go(Call::release(MINE)).await, -2);
    scene.assert_ttl(LOCK, (30_000, 40_000)).await;
    let left: Vec<_> = scene.server.hash(LOCK).await.into_keys().collect();
    assert_eq!(left, [THEIRS, "java:1", "mode"], "who died is gone");
    assert!(scene.messages().await.is_empty(), "nobody can enter");
    scene.server.cmd(&["DEL", java]).await;
    assert_eq!(scene.go_both(Call::release(THEIRS)).await, (-7, 1));
    assert!(scene.server.keys().await.is_empty());
    assert_eq!(scene.messages().await, FREE);
}

/// Lets `count` readers in, each with this lease.
async fn crowd(scene: &Scene, count: usize, lease: &str) {
    let fill = "redis.call('HSET', KEYS[1], 'mode', 'read') \
        for i = 1, ARGV[1] do \
            redis.call('HSET', KEYS[1], 'crowd:' .. i, '1') \
            redis.call('SET', '{lock}:crowd:' .. i .. ':rwlock_timeout:1', '1', 'PX', ARGV[2]) \
        end \
        redis.call('PEXPIRE', KEYS[1], ARGV[2])";
    let count = count.to_string();
    scene
        .server
        .cmd(&["EVAL", fill, "1", LOCK, &count, lease])
        .await;
}

#[tokio::test]
async fn a_read_release_costs_as_much_among_1000_readers_as_among_10() {
    for lease in ["20000", "60000", "60500"] {
        let mut costs = Vec::new();
        for count in [10, 1_000] {
            let scene = Scene::new().await;
            crowd(&scene, count, "60000").await;
            scene.go(Call::read(MINE, lease)).await;
            let longest = scene.server.pttl(LOCK).await;
            scene.server.reset_calls().await;
            assert_eq!(scene.go(Call::release(MINE)).await, -2);
            costs.push(scene.server.calls().await.into_values().sum::<u64>());
            assert_eq!(scene.server.hash(LOCK).await.len(), count + 1);
            assert!(scene.server.pttl(LOCK).await > longest - 10_000);
        }
        assert_eq!(costs[0], costs[1], "a lease of {lease} ms");
    }
}

#[tokio::test]
async fn a_read_release_shortens_the_lease_when_no_reader_of_a_crowd_lasts_as_long() {
    let scene = Scene::new().await;
    crowd(&scene, 200, "30000").await;
    scene.go(Call::read(THEIRS, "40000")).await;
    scene.go(Call::read(MINE, "90000")).await;
    assert_eq!(scene.go(Call::release(MINE)).await, -2);
    scene.assert_ttl(LOCK, (30_000, 40_000)).await;
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.go(Call::release(THEIRS)).await, -2);
    scene.assert_ttl(LOCK, (20_000, 30_000)).await;
}

/// Two that last nearly as long as each other leave one after the other.
#[tokio::test]
async fn the_last_of_the_longest_readers_takes_its_lease_with_it() {
    let scene = Scene::new().await;
    scene.go(Call::read(THEIRS, "20000")).await;
    scene.go(Call::read(LATER, "89500")).await;
    scene.go(Call::read(MINE, "90000")).await;
    assert_eq!(scene.go(Call::release(MINE)).await, -2);
    scene.assert_ttl(LOCK, (80_000, 90_000)).await;
    assert_eq!(scene.go(Call::release(LATER)).await, -2);
    scene.assert_ttl(LOCK, (10_000, 20_000)).await;
}

#[tokio::test]
async fn a_release_finds_dead_readers_behind_live_ones_sooner_or_later() {
    let scene = Scene::new().await;
    crowd(&scene, 40, "60000").await;
    scene.server.cmd(&["HSET", LOCK, "dead:1", "1"]).await;
    for _ in 0..10_000 {
        if scene.field("dead:1").await.is_none() {
            break;
        }
        scene.go(Call::read(MINE, "20000")).await;
        assert_eq!(scene.go(Call::release(MINE)).await, -2);
    }
    assert_eq!(scene.server.hash(LOCK).await.len(), 41);
}

/// Its key still exists, but a lease of 0 ms would delete the lock, and nobody would be woken.
#[tokio::test]
async fn a_reader_with_0_ms_left_is_gone() {
    let mut scene = Scene::new().await;
    scene.go(Call::read(THEIRS, "20000")).await;
    scene.go(Call::read(MINE, "90000")).await;
    let mut words = Call::release(MINE).words();
    let condition = format!("key == '{}'", timeout(THEIRS));
    words[1] = faked(&words[1], "PTTL", &condition, "0");
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    assert_eq!(both(scene.server.cmd(&words).await), (-7, 1));
    assert!(!scene.server.exists(LOCK).await);
    assert_eq!(scene.messages().await, FREE);
}

/// A late release of a hold that no longer exists touches nobody's.
#[tokio::test]
async fn i3_late_commands_of_an_old_hold_touch_no_other() {
    for other in [
        Call::read(THEIRS, "30000"),
        Call::write(THEIRS, "30000", "0"),
    ] {
        let scene = Scene::new().await;
        scene.go(other).await;
        let before = scene.server.hash(LOCK).await;
        assert_eq!(scene.go(Call::release(MINE)).await, -5);
        assert_eq!(scene.go(Call::assert(MINE, "90000", "3")).await, -5);
        assert_eq!(scene.go(Call::downgrade(MINE, "90000")).await, -5);
        assert_eq!(scene.go(Call::assert_lock(MINE, "90000")).await, -5);
        assert_eq!(scene.server.hash(LOCK).await, before);
        scene.assert_ttl(LOCK, (20_000, 30_000)).await;
    }
}

#[tokio::test]
async fn an_assertion_writes_a_missing_timeout_key_anew() {
    let scene = Scene::new().await;
    for _ in 0..2 {
        scene.go(Call::read(MINE, "30000")).await;
        scene.server.cmd(&["DEL", &timeout(MINE)]).await;
        let asserted = scene.go_both(Call::assert(MINE, "40000", "0")).await;
        assert_eq!(asserted, (-2, 0));
        scene.assert_ttl(&timeout(MINE), (30_000, 40_000)).await;
        scene.assert_ttl(LOCK, (30_000, 40_000)).await;
        scene.go(Call::release(MINE)).await;
    }
}

#[tokio::test]
async fn a_downgrade_leaves_a_read_hold_with_the_longer_lease() {
    let mut scene = Scene::new().await;
    for (lease, least) in [("1000", 50_000), ("90000", 80_000)] {
        scene.go(Call::write(MINE, "60000", "0")).await;
        for _ in 0..2 {
            assert_eq!(scene.go(Call::downgrade(MINE, lease)).await, -2);
            assert_eq!(scene.field("mode").await.as_deref(), Some("read"));
            assert_eq!(scene.field(MINE).await.as_deref(), Some("1"));
            assert_eq!(scene.field(&write_field(MINE)).await, None);
            for key in [LOCK, &timeout(MINE)] {
                assert!(scene.server.pttl(key).await > least, "{key}");
            }
        }
        assert_eq!(scene.messages().await, FREE, "once");
        scene.go(Call::release(MINE)).await;
        assert_eq!(scene.messages().await, FREE);
        assert!(scene.server.keys().await.is_empty());
    }
}

#[tokio::test]
async fn a_note_keeps_new_readers_out_while_others_read() {
    let mut scene = Scene::new().await;
    assert_eq!(
        scene.go(Call::note(CLIENT, "3000")).await,
        -5,
        "nobody reads"
    );
    scene.go(Call::read(THEIRS, "30000")).await;
    assert!(scene.go(Call::write(MINE, "30000", "2000")).await > 20_000);
    // A third of that is for the pause.
    scene.assert_ttl(WRITERS, (0, 2_667)).await;
    let busy = scene.go(Call::read(LATER, "30000")).await;
    assert!((1..=2_000).contains(&busy), "{busy}");
    assert_eq!(
        scene.go(Call::read(THEIRS, "30000")).await,
        -6,
        "its own is there"
    );
    let asked = scene.go(Call::join(THEIRS, "30000")).await;
    assert!((1..=2_000).contains(&asked), "{asked}");
    assert_eq!(scene.go(Call::assert(THEIRS, "30000", "0")).await, -2);
    for _ in 0..2 {
        assert_eq!(scene.go(Call::note(CLIENT, "3000")).await, -2);
    }
    assert_eq!(scene.go(Call::note("other", "3000")).await, -2);
    assert_eq!(scene.go(Call::note(CLIENT, "0")).await, -2);
    assert!(scene.messages().await.is_empty(), "another one waits");
    assert_eq!(scene.go(Call::note("other", "0")).await, -2);
    assert_eq!(scene.messages().await, ["1"]);
    assert_eq!(scene.go(Call::note("other", "0")).await, -5);
    assert!(scene.messages().await.is_empty());
    assert!(!scene.server.exists(WRITERS).await);
}

/// Each writer leaves its note every second, and tries now and then; the second one comes 5 s later.
#[tokio::test]
async fn all_writers_are_heeded_for_one_cycle_and_then_none_for_a_third_of_it() {
    let scene = Scene::new().await;
    scene.go(Call::read(THEIRS, "30000")).await;
    let begun = 1_700_000_000_000;
    for second in 0..36 {
        let now = begun + second * 1_000;
        scene.go_at(now, Call::note(CLIENT, "9000")).await;
        if second >= 5 {
            scene
                .go_at(now, Call::write("other:1", "30000", "9000"))
                .await;
        }
        for late in [0, 999] {
            let answer = scene.go_at(now + late, Call::read(LATER, "20000")).await;
            let is_pause = second % 12 >= 9;
            assert_eq!(answer == -2, is_pause, "{second} s: {answer}");
            assert!((-2..=3_000).contains(&answer));
            scene.go(Call::release(LATER)).await;
        }
        scene.assert_leased("noted").await;
    }
}

#[tokio::test]
async fn a_grant_ends_the_cycle_when_no_other_writer_waits() {
    let scene = Scene::new().await;
    for others in [false, true] {
        scene.go(Call::read(THEIRS, "30000")).await;
        scene.go(Call::write(MINE, "30000", "9000")).await;
        if others {
            scene.go(Call::write("other:1", "30000", "9000")).await;
        }
        scene.go(Call::release(THEIRS)).await;
        assert_eq!(scene.go(Call::write(MINE, "30000", "9000")).await, -2);
        assert_eq!(scene.server.exists(WRITERS).await, others);
        scene.go(Call::release(MINE)).await;
    }
}

/// The notes of that time must not last for an hour, nor may their cycle.
#[tokio::test]
async fn after_the_servers_time_went_back_no_note_lasts_longer_than_before() {
    let scene = Scene::new().await;
    scene.go(Call::read(THEIRS, "30000")).await;
    let begun = 1_700_000_000_000;
    let hour = 3_600_000;
    scene.go_at(begun + hour, Call::note(CLIENT, "9000")).await;
    assert_eq!(scene.go_at(begun, Call::read(LATER, "20000")).await, -2);
    let asked = scene.go_at(begun, Call::join(THEIRS, "30000")).await;
    assert_eq!(asked, -2);
    scene.go(Call::release(LATER)).await;
    for (now, noted) in [(0, -2), (8_999, -2), (9_000, -5), (12_000, -2)] {
        let now = begun + now;
        assert_eq!(scene.go_at(now, Call::note(CLIENT, "9000")).await, noted);
        let answer = scene.go_at(now, Call::read(LATER, "20000")).await;
        assert_eq!(answer == -2, noted == -5, "{now}: {answer}");
        assert!(answer <= 3_000, "{answer}");
        scene.go(Call::release(LATER)).await;
    }
}

#[tokio::test]
async fn force_ends_one_mode_only_and_returns_whose_it_was() {
    let mut scene = Scene::new().await;
    for (mode, other, call) in [
        ("read", "write", Call::read(MINE, "30000")),
        ("write", "read", Call::write(MINE, "30000", "0")),
    ] {
        assert_eq!(scene.go(Call::force(mode)).await, -5);
        scene.go(call).await;
        let held = scene.go(Call::look(mode)).await;
        assert!((20_000..=30_000).contains(&held), "{held}");
        assert_eq!(scene.go(Call::look(other)).await, -2);
        assert_eq!(scene.go(Call::force(other)).await, -5);
        assert_eq!(scene.go_both(Call::force(mode)).await, (-2, 7));
        assert_eq!(scene.messages().await, FREE);
        assert!(scene.server.keys().await.is_empty(), "{mode}");
    }
    scene
        .server
        .cmd(&["HSET", LOCK, "mode", "write", "j:1:write", "1", "j:1", "1"])
        .await;
    let held = scene.go(Call::look("read")).await;
    assert_eq!(held, -1, "a writer that reads, and no TTL");
}

#[tokio::test]
async fn a_key_that_is_no_read_write_lock_is_reported_and_left_alone() {
    let foreign: [&[&str]; 4] = [
        &["SET", LOCK, "x"],
        &["RPUSH", LOCK, MINE],
        &["HSET", LOCK, MINE, "1"],
        &["HSET", LOCK, "mode", "1"],
    ];
    for write in foreign {
        let scene = Scene::new().await;
        scene.server.cmd(write).await;
        let before = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        for call in [
            Call::read(LATER, "30000"),
            Call::write(LATER, "30000", "3000"),
        ] {
            let got = scene.try_do(call).await;
            assert!(is_wrong_type(&got) || got == Ok(Value::Int(-3)), "{got:?}");
        }
        assert_eq!(scene.go(Call::assert(LATER, "30000", "0")).await, -5);
        assert_eq!(scene.go(Call::look("read")).await, -2);
        let after = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        assert_eq!(before, after, "{write:?}");
        assert_eq!(scene.server.keys().await, [LOCK], "{write:?}");
    }
}

#[tokio::test]
async fn i4_a_lease_that_is_none_is_refused_and_leaves_nothing() {
    let scene = Scene::new().await;
    for lease in [
        "0",
        "-1",
        "1.5",
        "1e3",
        "0x10",
        "nan",
        "inf",
        "",
        " ",
        "9007199254740993000",
    ] {
        for call in [Call::read(MINE, lease), Call::write(MINE, lease, "0")] {
            assert!(scene.try_do(call).await.is_err(), "{lease:?}");
        }
        assert!(scene.server.keys().await.is_empty(), "{lease:?}");
    }
    scene.go(Call::write(MINE, "60000", "0")).await;
    for lease in ["0", "-1", "1.5", "nan", "", "9007199254740993000"] {
        assert!(
            scene.try_do(Call::downgrade(MINE, lease)).await.is_err(),
            "{lease:?}"
        );
        scene.assert_ttl(LOCK, (50_000, 60_000)).await;
    }
}

#[tokio::test]
async fn i4_whichever_command_is_denied_no_key_is_without_a_lease_and_no_hold_is_torn() {
    let begin: [fn() -> Option<Call>; 3] = [
        || None,
        || Some(Call::read(THEIRS, "30000")),
        || Some(Call::write(MINE, "30000", "0")),
    ];
    let then: [fn() -> Call; 8] = [
        || Call::read(MINE, "60000"),
        || Call::write(MINE, "60000", "3000"),
        || Call::assert(MINE, "60000", "2"),
        || Call::assert(THEIRS, "60000", "0"),
        || Call::downgrade(MINE, "60000"),
        || Call::note(CLIENT, "3000"),
        || Call::assert_lock(MINE, "60000"),
        || Call::release(THEIRS),
    ];
    let scene = Scene::new().await;
    for denied in COMMANDS {
        let mut user = scene.user_without(&[denied]).await;
        for before in begin {
            for (number, call) in then.iter().enumerate() {
                if let Some(call) = before() {
                    scene.go(call).await;
                }
                let mut command = redis::Cmd::new();
                for word in call().words() {
                    command.arg(word);
                }
                let answer: RedisResult<Value> = command.query_async(&mut user).await;
                let why = format!("{denied}, call {number}: {answer:?}");
                scene.assert_leased(&why).await;
                let hash = scene.server.hash(LOCK).await;
                // A reader has both of its keys, or none.
                let gone = number == 7;
                for field in hash
                    .keys()
                    .filter(|field| *field == MINE || (*field == THEIRS && !gone))
                {
                    let whole = scene.server.exists(&timeout(field)).await;
                    assert!(whole, "{why}: {hash:?}");
                }
                assert!(
                    hash.is_empty() || hash.contains_key("mode"),
                    "{why}: {hash:?}"
                );
                assert_ne!(hash.len(), 1, "{why}: {hash:?}");
                scene
                    .server
                    .cmd(&["DEL", LOCK, WRITERS, &timeout(MINE), &timeout(THEIRS)])
                    .await;
            }
        }
    }
}

#[tokio::test]
async fn i2_out_of_memory_no_new_hold_is_taken_and_existing_ones_are_kept_and_released() {
    let mut scene = Scene::new().await;
    scene.go(Call::read(MINE, "10000")).await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.try_do(Call::read(THEIRS, "30000")).await;
    assert!(is_refused(&refused), "{refused:?}");
    assert!(!scene.server.exists(&timeout(THEIRS)).await);
    assert_eq!(scene.server.hash(LOCK).await.len(), 2);
    assert_eq!(
        scene.go_both(Call::assert_lock(MINE, "60000")).await,
        (-2, 1)
    );
    assert_eq!(scene.go(Call::assert_timeout(MINE, "60000")).await, -2);
    assert_eq!(scene.go(Call::assert(MINE, "70000", "0")).await, -2);
    scene.assert_ttl(&timeout(MINE), (60_000, 70_000)).await;
    assert_eq!(scene.go_both(Call::release(MINE)).await, (-7, 1));
    assert_eq!(scene.messages().await, FREE);
    for call in [
        Call::read(MINE, "30000"),
        Call::write(MINE, "30000", "3000"),
    ] {
        assert!(is_refused(&scene.try_do(call).await));
        assert!(scene.server.keys().await.is_empty());
    }
}

/// Each touches one key, so that a node without the other keys can run it.
#[tokio::test]
async fn a_hold_is_asserted_key_by_key() {
    let scene = Scene::new().await;
    assert_eq!(scene.go(Call::assert_lock(MINE, "60000")).await, -5);
    scene.go(Call::read(MINE, "5000")).await;
    scene.server.cmd(&["DEL", &timeout(MINE)]).await;
    for _ in 0..2 {
        assert_eq!(
            scene.go_both(Call::assert_lock(MINE, "60000")).await,
            (-2, 1)
        );
        assert!(!scene.server.exists(&timeout(MINE)).await);
        assert!(scene.server.pttl(LOCK).await > 50_000);
    }
    assert_eq!(
        scene.go_both(Call::assert_lock(MINE, "1000")).await,
        (-2, 1)
    );
    assert!(scene.server.pttl(LOCK).await > 50_000, "it never shrinks");
    for lease in ["60000", "60000", "1000"] {
        assert_eq!(scene.go(Call::assert_timeout(MINE, lease)).await, -2);
        let left = scene.server.pttl(&timeout(MINE)).await;
        assert!(left > 50_000 && left <= 60_000, "{left}");
    }
    for lease in ["", "x", "-1", "1e3", "9007199254740994"] {
        let kept = scene.try_do(Call::assert_lock(MINE, lease)).await;
        assert!(kept.is_err(), "{lease}");
        let kept = scene.try_do(Call::assert_timeout(MINE, lease)).await;
        assert!(kept.is_err(), "{lease}");
    }
    scene.server.cmd(&["DEL", LOCK]).await;
    scene.go(Call::write(MINE, "60000", "0")).await;
    assert_eq!(
        scene.go_both(Call::assert_lock(MINE, "60000")).await,
        (-2, 0)
    );
    assert_eq!(scene.go(Call::assert_lock(THEIRS, "60000")).await, -5);
    scene.server.cmd(&["DEL", LOCK]).await;
    scene.server.cmd(&["SET", LOCK, "x"]).await;
    assert_eq!(scene.go(Call::assert_lock(MINE, "60000")).await, -5);
}
