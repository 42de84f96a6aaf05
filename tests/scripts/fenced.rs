//! The scripts that take a fencing token: which token, what remains when one is refused, and that a repeat takes no
//! other.

use redis::{RedisResult, Value};

use super::{LATER, LOCK, MINE, Scene, both, code, is_refused, is_wrong_type};
use crate::common::channel;

const ACQUIRE: &str = include_str!("../../lua/fenced/acquire.lua");
const REENTER: &str = include_str!("../../lua/fenced/reenter.lua");
const RAISE: &str = include_str!("../../lua/fenced/raise.lua");

/// The key of the newest token.
const TOKEN: &str = "redisson_lock_token:{lock}";
/// 2^53.
const LIMIT: u64 = 9_007_199_254_740_992;
const HALF_A_MINUTE: &str = "30000";

/// The token of a grant.
fn token(answer: RedisResult<Value>) -> u64 {
    match answer.map(both) {
        Ok((-10, token)) => u64::try_from(token).expect("a token"),
        other => panic!("no token: {other:?}"),
    }
}

impl Scene {
    async fn fenced(&self, script: &str, args: &[&str]) -> RedisResult<Value> {
        let call = [&["EVAL", script, "2", LOCK, TOKEN], args].concat();
        self.server.try_cmd(&call).await
    }

    async fn take(&self, hold: &str, lease: &str) -> RedisResult<Value> {
        self.fenced(ACQUIRE, &[hold, lease, "0"]).await
    }

    async fn enter(&self, hold: &str, count: &str, lease: &str) -> RedisResult<Value> {
        self.fenced(REENTER, &[hold, count, lease, "0"]).await
    }

    async fn stored(&self) -> Option<String> {
        self.server.query(&["GET", TOKEN]).await
    }

    async fn store(&self, token: &str) {
        self.server.cmd(&["SET", TOKEN, token]).await;
    }

    async fn now_us(&self) -> u64 {
        let (seconds, us): (u64, u64) = self.server.query(&["TIME"]).await;
        seconds * 1_000_000 + us
    }
}

#[tokio::test]
async fn the_server_knows_each_script_by_the_digest_that_it_is_called_by() {
    let scene = Scene::new().await;
    for script in [ACQUIRE, REENTER, RAISE] {
        let digest: String = scene.server.query(&["SCRIPT", "LOAD", script]).await;
        assert_eq!(redis::Script::new(script).get_hash(), digest);
    }
}

#[tokio::test]
async fn acquire_takes_a_token_by_the_clock_and_a_repeat_has_the_same() {
    let mut scene = Scene::new().await;
    let before = scene.now_us().await;
    let first = token(scene.take(MINE, HALF_A_MINUTE).await);
    assert!((before..=scene.now_us().await).contains(&first), "{first}");
    for _ in 0..2 {
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
        assert_eq!(scene.stored().await, Some(first.to_string()));
        assert_eq!(scene.server.pttl(TOKEN).await, -1);
        assert_eq!(token(scene.take(MINE, HALF_A_MINUTE).await), first);
    }
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn t1_a_repeated_acquire_lengthens_the_lease_and_never_shortens_it() {
    let scene = Scene::new().await;
    let first = token(scene.take(MINE, "60000").await);
    assert_eq!(token(scene.take(MINE, "1000").await), first);
    scene.assert_held(MINE, "1", (50_000, 60_000)).await;
    assert_eq!(token(scene.take(MINE, "90000").await), first);
    scene.assert_held(MINE, "1", (80_000, 90_000)).await;
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(token(scene.take(MINE, "30000").await), first);
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn a_repeat_takes_a_new_token_when_the_key_is_gone() {
    let scene = Scene::new().await;
    let first = token(scene.take(MINE, HALF_A_MINUTE).await);
    for lost in [
        &["DEL", TOKEN][..],
        &["SET", TOKEN, "0"],
        &["SET", TOKEN, "-5"],
    ] {
        scene.server.cmd(lost).await;
        let second = token(scene.take(MINE, HALF_A_MINUTE).await);
        assert!(second > first, "{lost:?}");
        assert_eq!(scene.stored().await, Some(second.to_string()));
    }
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn a_busy_try_burns_no_token() {
    let scene = Scene::new().await;
    let first = token(scene.take(MINE, HALF_A_MINUTE).await);
    for _ in 0..2 {
        let busy = scene.take(LATER, "90000").await.unwrap();
        assert!(matches!(busy, Value::Int(20_000..=30_000)), "{busy:?}");
        assert_eq!(scene.stored().await, Some(first.to_string()));
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    }
    scene.server.cmd(&["PERSIST", LOCK]).await;
    let busy = scene.take(LATER, HALF_A_MINUTE).await.unwrap();
    assert_eq!(busy, Value::Int(-1));
    scene.server.cmd(&["DEL", LOCK, TOKEN]).await;
    scene.acquire(MINE, HALF_A_MINUTE).await.unwrap();
    scene.take(LATER, HALF_A_MINUTE).await.unwrap();
    assert_eq!(scene.stored().await, None, "nor of a plain holder");
}

#[tokio::test]
async fn a_token_is_one_more_than_the_stored_one_when_the_clock_is_behind_it() {
    let scene = Scene::new().await;
    let ahead = scene.now_us().await + 3_600_000_000;
    for stored in [ahead, 1_u64 << 52, LIMIT - 1] {
        scene.store(&stored.to_string()).await;
        assert_eq!(token(scene.take(MINE, HALF_A_MINUTE).await), stored + 1);
        assert_eq!(scene.stored().await, Some((stored + 1).to_string()));
        scene.release(MINE, "0").await.unwrap();
    }
}

/// Redisson's tokens are small, and there any 64-bit number is legal.
#[tokio::test]
async fn a_token_that_is_behind_the_clock_is_left_behind() {
    let scene = Scene::new().await;
    for stored in ["0", "1", "41", "-1", "-9223372036854775808"] {
        scene.store(stored).await;
        let before = scene.now_us().await;
        assert!(token(scene.take(MINE, HALF_A_MINUTE).await) >= before);
        scene.release(MINE, "0").await.unwrap();
    }
}

#[tokio::test]
async fn a_counter_by_incr_goes_on_from_it() {
    let scene = Scene::new().await;
    let first = token(scene.take(MINE, HALF_A_MINUTE).await);
    let next: u64 = scene.server.query(&["INCR", TOKEN]).await;
    assert_eq!(next, first + 1);
    scene.store("9000000000000000").await;
    scene.release(MINE, "0").await.unwrap();
    scene.take(LATER, HALF_A_MINUTE).await.unwrap();
    let next: u64 = scene.server.query(&["INCR", TOKEN]).await;
    assert_eq!(next, 9_000_000_000_000_002);
}

/// Values that INCR would refuse.
const NO_NUMBERS: [&str; 10] = ["", " ", "x", "1.5", "1e3", "0x10", "007", "-0", "+1", "12 "];
/// Values that Lua cannot count exactly.
const TOO_LARGE: [&str; 4] = [
    "9007199254740992",
    "9007199254740993",
    "9223372036854775807",
    "99999999999999999999999999",
];

#[tokio::test]
async fn a_token_that_is_no_number_or_too_large_is_reported_and_nothing_is_written() {
    let scene = Scene::new().await;
    let no_numbers = NO_NUMBERS.map(|stored| (stored, -3));
    let too_large = TOO_LARGE.map(|stored| (stored, -4));
    for (stored, code) in no_numbers.into_iter().chain(too_large) {
        scene.store(stored).await;
        for _ in 0..2 {
            let refused = scene.take(MINE, HALF_A_MINUTE).await.unwrap();
            assert_eq!(refused, Value::Int(code), "{stored:?}");
            scene.assert_free().await;
        }
        scene.acquire(MINE, HALF_A_MINUTE).await.unwrap();
        let entered = scene.enter(MINE, "2", "60000").await.unwrap();
        assert_eq!(entered, Value::Int(code), "{stored:?}");
        // To a repeat 2^53 is the token that it took.
        if stored != LIMIT.to_string() {
            let repeated = scene.take(MINE, "60000").await.unwrap();
            assert_eq!(repeated, Value::Int(code), "{stored:?}");
        }
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
        assert_eq!(scene.stored().await.as_deref(), Some(stored));
        scene.server.cmd(&["DEL", LOCK]).await;
    }
}

#[tokio::test]
async fn the_last_token_is_taken_once_and_a_repeat_has_the_same() {
    let scene = Scene::new().await;
    scene.store(&(LIMIT - 1).to_string()).await;
    for lease in [HALF_A_MINUTE, "1000", "60000"] {
        assert_eq!(token(scene.take(MINE, lease).await), LIMIT);
        assert_eq!(scene.stored().await, Some(LIMIT.to_string()));
    }
    scene.assert_held(MINE, "1", (50_000, 60_000)).await;
    scene.release(MINE, "0").await.unwrap();
    for _ in 0..2 {
        let refused = scene.take(LATER, HALF_A_MINUTE).await.unwrap();
        assert_eq!(refused, Value::Int(-4), "there is no other");
        scene.assert_free().await;
    }
    // An entry, which draws another token each time.
    scene.store(&(LIMIT - 1).to_string()).await;
    scene.acquire(MINE, HALF_A_MINUTE).await.unwrap();
    assert_eq!(token(scene.enter(MINE, "2", HALF_A_MINUTE).await), LIMIT);
    let repeated = scene.enter(MINE, "2", HALF_A_MINUTE).await.unwrap();
    assert_eq!(repeated, Value::Int(-4));
    scene.assert_held(MINE, "2", (20_000, 30_000)).await;
}

#[tokio::test]
async fn a_token_key_of_another_type_is_reported_and_nothing_is_written() {
    let scene = Scene::new().await;
    scene.server.cmd(&["RPUSH", TOKEN, "x"]).await;
    assert!(is_wrong_type(&scene.take(MINE, HALF_A_MINUTE).await));
    scene.assert_free().await;
    scene.acquire(MINE, HALF_A_MINUTE).await.unwrap();
    assert!(is_wrong_type(&scene.enter(MINE, "2", "60000").await));
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn a_key_that_is_no_plain_lock_is_recognised_and_burns_no_token() {
    let foreign: [&[&str]; 6] = [
        &["SET", LOCK, "x"],
        &["RPUSH", LOCK, "x"],
        &["HSET", LOCK, "mode", "read"],
        &["HSET", LOCK, "mode", "1"],
        &["HSET", LOCK, MINE, "1", LATER, "1"],
        &["HSET", LOCK, "colour", "red"],
    ];
    let scene = Scene::new().await;
    for write in foreign {
        scene.server.cmd(write).await;
        let before = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        let answer = scene.take(MINE, HALF_A_MINUTE).await;
        assert!(
            is_wrong_type(&answer) || answer.unwrap() == Value::Int(-3),
            "{write:?}"
        );
        let after = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        assert_eq!((before, None), (after, scene.stored().await), "{write:?}");
        scene.server.cmd(&["DEL", LOCK]).await;
    }
}

#[tokio::test]
async fn the_token_key_has_the_ttl_that_was_asked_for_or_none() {
    let scene = Scene::new().await;
    let first = token(scene.fenced(ACQUIRE, &[MINE, "30000", "60000"]).await);
    let ttl = scene.server.pttl(TOKEN).await;
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");
    assert_eq!(
        token(scene.fenced(ACQUIRE, &[MINE, "30000", "60000"]).await),
        first
    );
    scene.release(MINE, "0").await.unwrap();
    // A call that does not ask for a TTL makes it permanent.
    scene.take(LATER, "30000").await.unwrap();
    assert_eq!(scene.server.pttl(TOKEN).await, -1);

    scene
        .fenced(REENTER, &[LATER, "2", "30000", "60000"])
        .await
        .unwrap();
    let ttl = scene.server.pttl(TOKEN).await;
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");
    scene.enter(LATER, "2", "30000").await.unwrap();
    assert_eq!(scene.server.pttl(TOKEN).await, -1);
}

#[tokio::test]
async fn a_token_ttl_that_is_none_leaves_nothing() {
    let scene = Scene::new().await;
    for ttl in ["-1", "x", "", "1.5"] {
        let refused = scene.fenced(ACQUIRE, &[MINE, "30000", ttl]).await;
        assert!(refused.is_err(), "{ttl:?}");
        scene.assert_free().await;
        assert_eq!(scene.stored().await, None);
    }
    assert!(scene.fenced(ACQUIRE, &[MINE, "30000"]).await.is_err());
    scene.assert_free().await;
}

#[tokio::test]
async fn i4_a_lease_that_is_none_leaves_nothing() {
    let scene = Scene::new().await;
    for lease in [
        "0",
        "-1",
        "0.5",
        "",
        "soon",
        "nan",
        "inf",
        "9223372036854775807",
    ] {
        assert!(scene.take(MINE, lease).await.is_err(), "{lease:?}");
        scene.assert_free().await;
        scene.acquire(MINE, "60000").await.unwrap();
        assert!(scene.enter(MINE, "2", lease).await.is_err(), "{lease:?}");
        scene.assert_held(MINE, "1", (50_000, 60_000)).await;
        scene.release(MINE, "0").await.unwrap();
        assert_eq!(scene.stored().await, None, "{lease:?}");
    }
}

/// Every command that the scripts call.
const COMMANDS: [&str; 11] = [
    "-pttl", "-hset", "-hlen", "-hgetall", "-pexpire", "-hdel", "-hexists", "-get", "-time",
    "-set", "-@write",
];

async fn eval(scene: &Scene, denied: &str, script: &str, args: &[&str]) -> RedisResult<Value> {
    let mut user = scene.user_without(&[denied]).await;
    let mut call = redis::cmd("EVAL");
    call.arg(script).arg(2).arg(LOCK).arg(TOKEN).arg(args);
    call.query_async(&mut user).await
}

#[tokio::test]
async fn i4_whichever_command_is_denied_acquire_leaves_no_key_and_burns_no_token() {
    let scene = Scene::new().await;
    for denied in COMMANDS {
        let answer = eval(&scene, denied, ACQUIRE, &[MINE, HALF_A_MINUTE, "0"]).await;
        let unneeded = ["-hlen", "-hgetall", "-hdel", "-hexists"].contains(&denied);
        assert_eq!(is_refused(&answer), !unneeded, "{denied}: {answer:?}");
        if unneeded {
            scene.assert_held(MINE, "1", (20_000, 30_000)).await;
            assert_eq!(scene.stored().await, Some(token(answer).to_string()));
        } else {
            scene.assert_free().await;
            assert_eq!(scene.stored().await, None, "{denied}");
        }
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

/// The worst case: the token cannot be stored, and the lock cannot be taken back.
#[tokio::test]
async fn i4_a_write_that_cannot_be_undone_has_a_lease() {
    let scene = Scene::new().await;
    let mut user = scene.user_without(&["-set", "-hdel"]).await;
    let mut call = redis::cmd("EVAL");
    call.arg(ACQUIRE).arg(2).arg(LOCK).arg(TOKEN);
    call.arg(&[MINE, HALF_A_MINUTE, "0"]);
    let answer: RedisResult<Value> = call.query_async(&mut user).await;
    assert!(is_refused(&answer), "{answer:?}");
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn i4_whichever_command_is_denied_an_entry_leaves_the_hold_its_lease() {
    let scene = Scene::new().await;
    for denied in COMMANDS {
        scene.acquire(MINE, HALF_A_MINUTE).await.unwrap();
        let answer = eval(&scene, denied, REENTER, &[MINE, "2", "60000", "0"]).await;
        let needed = [
            "-pttl", "-pexpire", "-hexists", "-get", "-time", "-set", "-@write",
        ];
        assert_eq!(is_refused(&answer), needed.contains(&denied), "{denied}");
        let (hash, ttl) = scene.state().await;
        let count = if needed.contains(&denied) || denied == "-hset" {
            "1"
        } else {
            "2"
        };
        assert_eq!(hash, [(MINE.to_owned(), count.to_owned())], "{denied}");
        assert!((20_000..=60_000).contains(&ttl), "{denied}: {ttl}");
        assert_eq!(scene.stored().await.is_none(), needed.contains(&denied));
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn i4_out_of_memory_a_lock_cannot_be_taken_and_nothing_is_left() {
    let scene = Scene::new().await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.take(MINE, HALF_A_MINUTE).await.unwrap_err();
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    scene.assert_free().await;
    assert_eq!(scene.stored().await, None);
}

#[tokio::test]
async fn i2_out_of_memory_a_hold_can_be_entered_and_has_a_token() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "60000").await.unwrap();
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let first = token(scene.enter(MINE, "2", "1000").await);
    assert_eq!(scene.stored().await, Some(first.to_string()));
    scene.assert_held(MINE, "2", (50_000, 60_000)).await;
}

#[tokio::test]
async fn out_of_memory_a_repeat_has_its_token_and_a_lost_one_is_missed() {
    let scene = Scene::new().await;
    let first = token(scene.take(MINE, HALF_A_MINUTE).await);
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(token(scene.take(MINE, HALF_A_MINUTE).await), first);
    scene.server.cmd(&["DEL", TOKEN]).await;
    // Without a token it is no fenced hold. The field stays, because others see it as held.
    let refused = scene.take(MINE, "1000").await.unwrap_err();
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn an_entry_takes_the_next_token_and_a_repeat_another_one() {
    let mut scene = Scene::new().await;
    let first = token(scene.take(LATER, HALF_A_MINUTE).await);
    scene.release(LATER, "0").await.unwrap();
    scene.messages().await;
    scene.acquire(MINE, HALF_A_MINUTE).await.unwrap();
    let mut newest = first;
    for _ in 0..2 {
        let entered = token(scene.enter(MINE, "2", "60000").await);
        assert!(entered > newest);
        assert_eq!(scene.stored().await, Some(entered.to_string()));
        scene.assert_held(MINE, "2", (50_000, 60_000)).await;
        newest = entered;
    }
    // The lease never gets shorter.
    token(scene.enter(MINE, "3", "1000").await);
    scene.assert_held(MINE, "3", (50_000, 60_000)).await;
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn an_entry_to_a_hold_that_is_not_there_takes_nothing() {
    let scene = Scene::new().await;
    let missing = Value::Int(-5);
    assert_eq!(scene.enter(MINE, "2", "60000").await.unwrap(), missing);
    scene.assert_free().await;
    scene.acquire(LATER, HALF_A_MINUTE).await.unwrap();
    assert_eq!(scene.enter(MINE, "2", "60000").await.unwrap(), missing);
    scene.assert_held(LATER, "1", (20_000, 30_000)).await;
    assert_eq!(scene.stored().await, None);
}

/// The rest of a hold's life is as with the plain lock.
#[tokio::test]
async fn a_hold_is_verified_and_given_back_by_the_plain_locks_scripts() {
    let mut scene = Scene::new().await;
    let first = token(scene.take(MINE, "10000").await);
    assert_eq!(scene.verify(MINE, "60000").await.unwrap(), -2);
    scene.assert_held(MINE, "1", (50_000, 60_000)).await;
    assert_eq!(scene.reenter(MINE, "2", "1000").await.unwrap(), -2);
    assert_eq!(scene.release(MINE, "1").await.unwrap(), (-2, 0));
    assert_eq!(scene.release(MINE, "0").await.unwrap(), (-7, 1));
    assert_eq!(scene.messages().await, ["0"]);
    token(scene.take(LATER, "10000").await);
    assert_eq!(scene.force().await.unwrap(), (-2, 8));
    assert!(scene.stored().await.unwrap().parse::<u64>().unwrap() > first);
    assert!(scene.server.subscribers(&channel(LOCK)).await > 0);
}

impl Scene {
    async fn raise(&self, hold: &str, to: u64) -> RedisResult<Value> {
        self.fenced(RAISE, &[hold, &to.to_string(), "0"]).await
    }
}

#[tokio::test]
async fn a_token_is_raised_by_the_holder_and_never_lowered() {
    let mut scene = Scene::new().await;
    let first = token(scene.take(MINE, HALF_A_MINUTE).await);
    for (to, stored) in [
        (first + 5, first + 5),
        (first + 5, first + 5),
        (first, first + 5),
    ] {
        // Run twice: the second one changes nothing.
        for _ in 0..2 {
            assert_eq!(scene.raise(MINE, to).await.unwrap(), Value::Int(-2));
            assert_eq!(scene.stored().await, Some(stored.to_string()));
        }
    }
    // Written as a number, however large.
    assert_eq!(scene.raise(MINE, LIMIT).await.unwrap(), Value::Int(-2));
    assert_eq!(scene.stored().await, Some(LIMIT.to_string()));
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn raise_without_the_hold_changes_no_token() {
    let scene = Scene::new().await;
    assert_eq!(scene.raise(MINE, 7).await.unwrap(), Value::Int(-5));
    assert_eq!(scene.stored().await, None);
    token(scene.take(LATER, HALF_A_MINUTE).await);
    let before = scene.stored().await;
    assert_eq!(scene.raise(MINE, LIMIT).await.unwrap(), Value::Int(-5));
    assert_eq!(scene.stored().await, before);
}

#[tokio::test]
async fn a_token_key_that_holds_no_number_is_left_alone_and_odd_tokens_are_refused() {
    let scene = Scene::new().await;
    token(scene.take(MINE, HALF_A_MINUTE).await);
    scene.store("none").await;
    assert_eq!(scene.raise(MINE, 7).await.unwrap(), Value::Int(-3));
    assert_eq!(scene.stored().await.as_deref(), Some("none"));
    for odd in ["", "x", "0", "-1", "9007199254740994"] {
        assert!(
            scene.fenced(RAISE, &[MINE, odd, "0"]).await.is_err(),
            "{odd}"
        );
    }
    scene.server.cmd(&["DEL", TOKEN]).await;
    let raised = scene.fenced(RAISE, &[MINE, "7", "60000"]).await;
    assert_eq!(raised.unwrap(), Value::Int(-2));
    let ttl: i64 = scene.server.query(&["PTTL", TOKEN]).await;
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn a_refused_raise_changes_no_token() {
    let scene = Scene::new().await;
    token(scene.take(MINE, HALF_A_MINUTE).await);
    let before = scene.stored().await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.raise(MINE, LIMIT).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(scene.stored().await, before);
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(scene.raise(MINE, LIMIT).await.unwrap(), Value::Int(-2));
}
