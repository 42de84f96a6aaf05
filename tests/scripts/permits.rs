//! The semaphores' scripts: the number of free permits is Redisson's, and each taken permit has a record.

use redis::{RedisResult, Value};

use super::{CLIENT, LOCK, Scene, at_time, both, code, is_refused};
use crate::common::script;

const RECORDS: &str = "{lock}:timeout";
const NEEDS: &str = "watchlock_needs:{lock}";
const CHANNEL: &str = "redisson_sc:{lock}";
/// Another client.
const OTHER: &str = "6a1b0c0e-0000-4000-8000-000000000002";
/// When a record ends that Redisson wrote without a lease.
const NEVER: &str = "922337203685477";

/// Every command that any of them calls.
const COMMANDS: [&str; 20] = [
    "-get",
    "-set",
    "-incrby",
    "-del",
    "-time",
    "-pttl",
    "-pexpire",
    "-persist",
    "-publish",
    "-zcard",
    "-zscore",
    "-zadd",
    "-zrem",
    "-zrange",
    "-zrangebyscore",
    "-zcount",
    "-hgetall",
    "-hset",
    "-hdel",
    "-@write",
];

fn text(file: &str) -> String {
    script(&format!("permits/{file}.lua"))
}

/// A call: the script, its keys and its arguments.
#[derive(Clone)]
struct Call(String, Vec<&'static str>, Vec<String>);

impl Call {
    fn words(&self) -> Vec<String> {
        let head = ["EVAL".to_owned(), self.0.clone(), self.1.len().to_string()];
        let keys = self.1.iter().map(|key| (*key).to_owned());
        head.into_iter().chain(keys).chain(self.2.clone()).collect()
    }

    fn at(self, now_ms: i64) -> Self {
        Self(at_time(&self.0, now_ms), self.1, self.2)
    }
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn with_ids(first: &[&str], ids: &[&str]) -> Vec<String> {
    strings(&[first, &[&ids.len().to_string()], ids].concat())
}

fn acquire_of(client: &str, lease: &str, initial: &str, ids: &[&str]) -> Call {
    acquire_all_of(client, lease, initial, &[ids])
}

/// A try for several requests that ask for as many permits.
fn acquire_all_of(client: &str, lease: &str, initial: &str, requests: &[&[&str]]) -> Call {
    let count = requests[0].len().to_string();
    let number = requests.len().to_string();
    let sizes = [&count, &number].map(String::as_str);
    let first = [&[lease, initial, client, CHANNEL], &sizes[..]].concat();
    let args = strings(&[&first, &requests.concat()[..]].concat());
    Call(text("acquire"), vec![LOCK, RECORDS, NEEDS], args)
}

fn acquire(lease: &str, ids: &[&str]) -> Call {
    acquire_of(CLIENT, lease, "0", ids)
}

fn release(ids: &[&str]) -> Call {
    Call(
        text("release"),
        vec![LOCK, RECORDS],
        with_ids(&[CHANNEL, "given"], ids),
    )
}

/// The release of permits that are forgotten.
fn release_forgotten(what: &str, ids: &[&str]) -> Call {
    let args = with_ids(&[CHANNEL, what], ids);
    Call(text("release"), vec![LOCK, RECORDS], args)
}

fn forget(ids: &[&str]) -> Call {
    Call(text("forget"), vec![LOCK, RECORDS], with_ids(&[], ids))
}

fn renew(lease: &str, ids: &[&str]) -> Call {
    let args = with_ids(&[lease, CHANNEL], ids);
    Call(text("renew"), vec![RECORDS, LOCK], args)
}

fn look(what: &str) -> Call {
    Call(text("look"), vec![LOCK, RECORDS], strings(&[what]))
}

fn change(how: &str, permits: &str) -> Call {
    let args = strings(&[how, permits, CHANNEL]);
    Call(text("change"), vec![LOCK, RECORDS], args)
}

fn note(client: &str, permits: &str, waited: &str, note: &str) -> Call {
    let args = strings(&[client, permits, waited, note, CHANNEL]);
    Call(text("note"), vec![LOCK, NEEDS], args)
}

impl Scene {
    async fn permits(&self, call: Call) -> RedisResult<(i64, i64)> {
        let words = call.words();
        let words: Vec<_> = words.iter().map(|word| &**word).collect();
        self.server.try_cmd(&words).await.map(both)
    }

    async fn ask(&self, call: Call) -> (i64, i64) {
        self.permits(call).await.expect("a clean answer")
    }

    async fn denied(&self, denied: &str, call: &Call) -> RedisResult<Value> {
        let mut user = self.user_without(&[denied]).await;
        let mut words = redis::cmd("EVAL");
        words.arg(&call.words()[1..]);
        words.query_async(&mut user).await
    }

    /// The free permits, and the ids of the taken ones.
    async fn counted(&self) -> (Option<i64>, Vec<String>) {
        let free = self.server.query(&["GET", LOCK]).await;
        let taken = self.server.query(&["ZRANGE", RECORDS, "0", "-1"]).await;
        (free, taken)
    }

    async fn ends(&self, id: &str) -> i64 {
        self.server.query::<i64>(&["ZSCORE", RECORDS, id]).await
    }

    /// What was published to semaphores.
    async fn heard(&mut self) -> Vec<String> {
        self.messages().await
    }

    async fn of_permits(free: &str) -> Self {
        let mut scene = Self::new().await;
        scene.listener.subscribe(CHANNEL).await.unwrap();
        scene.server.cmd(&["SET", LOCK, free]).await;
        scene
    }

    async fn record(&self, ends: &str, id: &str) {
        self.server.cmd(&["ZADD", RECORDS, ends, id]).await;
    }
}

fn size(taken: &[String]) -> i64 {
    i64::try_from(taken.len()).unwrap()
}

fn ids(ids: &[&str]) -> Vec<String> {
    strings(ids)
}

#[tokio::test]
async fn acquire_takes_permits_once_however_often_it_runs() {
    let mut scene = Scene::of_permits("5").await;
    for _ in 0..3 {
        assert_eq!(scene.ask(acquire("30000", &["a", "b"])).await, (-2, 1));
        assert_eq!(scene.counted().await, (Some(3), ids(&["a", "b"])));
    }
    let busy = scene.ask(acquire("30000", &["c", "d", "e", "f"])).await;
    // Each repeat within a ms adds one.
    assert!((20_000..=30_010).contains(&busy.0), "{busy:?}");
    assert_eq!(scene.counted().await, (Some(3), ids(&["a", "b"])));
    assert_eq!(
        scene.ask(acquire("30000", &["c", "d", "e"])).await,
        (-13, 1)
    );
    assert!(scene.heard().await.is_empty());
    assert_eq!(scene.server.keys().await.len(), 2);
}

#[tokio::test]
async fn requests_are_granted_in_their_order_until_one_does_not_fit() {
    let scene = Scene::of_permits("5").await;
    let three: [&[&str]; 3] = [&["a", "b"], &["c", "d"], &["e", "f"]];
    let call = || acquire_all_of(CLIENT, "30000", "0", &three);
    for _ in 0..2 {
        assert_eq!(scene.ask(call()).await, (-13, 2));
        assert_eq!(scene.counted().await, (Some(1), ids(&["a", "b", "c", "d"])));
    }
    // None behind one that does not fit, even if it did before.
    scene.ask(release(&["a", "b"])).await;
    scene
        .ask(acquire_of(OTHER, "30000", "0", &["x", "y"]))
        .await;
    assert!(scene.ask(call()).await.0 > 0);
    assert_eq!(scene.counted().await, (Some(1), ids(&["c", "d", "x", "y"])));
}

#[tokio::test]
async fn an_own_note_speaks_for_the_first_request_only() {
    let scene = Scene::of_permits("5").await;
    let noted = |client, permits, waited| note(client, permits, waited, "3000").at(1_000_000);
    scene.ask(noted(OTHER, "4", "1000")).await;
    scene.ask(noted(CLIENT, "1", "2000")).await;
    let three: [&[&str]; 3] = [&["a"], &["b"], &["c"]];
    let call = acquire_all_of(CLIENT, "30000", "0", &three).at(1_000_000);
    // Another client's request has waited.
    assert_eq!(scene.ask(call).await, (-14, 1));
    assert_eq!(scene.counted().await, (Some(4), ids(&["a"])));
}

#[tokio::test]
async fn a_grant_of_a_part_says_when_the_next_lease_ends() {
    let scene = Scene::of_permits("1").await;
    scene.record("1000500", "another").await;
    let two: [&[&str]; 2] = [&["a"], &["b"]];
    let call = acquire_all_of(CLIENT, "100", "0", &two).at(1_000_000);
    let words = call.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer: Vec<i64> = scene.server.query(&words).await;
    assert_eq!(answer, [-13, 1, 500]);
}

/// Otherwise they would be kept from the first, which would wait beside them.
#[tokio::test]
async fn records_behind_the_first_request_are_taken_back_when_their_lease_is_over() {
    let scene = Scene::of_permits("0").await;
    for id in ["b", "c"] {
        scene.record("1000", id).await;
    }
    scene.record(NEVER, "another").await;
    let three: [&[&str]; 3] = [&["a"], &["b"], &["c"]];
    let call = acquire_all_of(CLIENT, "30000", "0", &three);
    assert_eq!(scene.ask(call).await, (-13, 2));
    let (free, mut taken) = scene.counted().await;
    taken.sort();
    assert_eq!((free, taken), (Some(0), ids(&["a", "another", "b"])));
}

/// A repeat counts from its own send.
#[tokio::test]
async fn a_repeated_acquire_sets_the_end_anew_and_never_sooner() {
    let scene = Scene::of_permits("1").await;
    let end = |now: i64, lease: &'static str| (acquire(lease, &["a"]).at(now), now);
    for ((call, _), ends) in [
        (end(1_000_000, "30000"), 1_030_000),
        (end(1_005_000, "30000"), 1_035_000),
        (end(1_006_000, "100"), 1_035_001),
        (end(2_000_000, "100"), 2_000_100),
    ] {
        assert_eq!(scene.ask(call).await, (-13, 1));
        assert_eq!(scene.ends("a").await, ends);
    }
    assert_eq!(scene.counted().await, (Some(0), ids(&["a"])));
}

/// What was given back meanwhile is taken again, and what was not is not.
#[tokio::test]
async fn a_repeated_acquire_takes_only_what_is_missing() {
    let scene = Scene::of_permits("3").await;
    scene.ask(acquire("30000", &["a", "b"])).await;
    scene.ask(release(&["a"])).await;
    assert_eq!(scene.ask(acquire("30000", &["a", "b"])).await, (-2, 1));
    assert_eq!(scene.counted().await, (Some(1), ids(&["a", "b"])));
}

#[tokio::test]
async fn permits_whose_lease_is_over_come_back_once() {
    for by_renewal in [false, true] {
        let mut scene = Scene::of_permits("0").await;
        scene.record("1000", "dead").await;
        scene.record("2000", "dead too").await;
        scene.record(NEVER, "mine").await;
        let call = if by_renewal {
            renew("1", &["mine"])
        } else {
            acquire("30000", &["x", "y", "z"])
        };
        for _ in 0..2 {
            let answer = scene.ask(call.clone().at(2_000)).await;
            assert_eq!(answer.0, if by_renewal { -2 } else { -1 });
            assert_eq!(scene.counted().await, (Some(2), ids(&["mine"])));
        }
        assert_eq!(scene.heard().await, ["2"]);
        let got = scene.ask(acquire("30000", &["x", "y"]).at(2_000)).await;
        assert_eq!(got, (-13, 1));
    }
}

#[tokio::test]
async fn a_busy_answer_says_when_the_next_lease_ends() {
    let scene = Scene::of_permits("0").await;
    assert_eq!(scene.ask(acquire("30000", &["x"])).await.0, -1);
    scene.record(NEVER, "java").await;
    assert_eq!(scene.ask(acquire("30000", &["x"])).await.0, -1);
    scene.record("5000", "a").await;
    scene.record("9000", "b").await;
    assert_eq!(scene.ask(acquire("30000", &["x"]).at(4_300)).await.0, 700);
}

/// Else it would try again at once, for ever.
#[tokio::test]
async fn an_own_record_that_ended_is_nothing_to_wait_for() {
    let scene = Scene::of_permits("0").await;
    scene.record("1000", "a").await;
    let call = || acquire("30000", &["a", "b"]).at(2_000);
    for _ in 0..2 {
        assert_eq!(scene.ask(call()).await, (-1, 0));
    }
    scene.record("5000", "other").await;
    assert_eq!(scene.ask(call()).await, (3_000, 0));
    assert_eq!(scene.counted().await, (Some(0), ids(&["a", "other"])));
}

#[tokio::test]
async fn release_gives_back_what_is_recorded_once() {
    let mut scene = Scene::of_permits("3").await;
    scene.ask(acquire("30000", &["a", "b", "c"])).await;
    assert_eq!(scene.ask(release(&["a"])).await, (-7, 1));
    for _ in 0..2 {
        assert_eq!(scene.ask(release(&["a"])).await, (-5, 0));
    }
    assert_eq!(scene.counted().await, (Some(1), ids(&["b", "c"])));
    // The others are given back all the same.
    assert_eq!(scene.ask(release(&["a", "b"])).await, (-5, 0));
    assert_eq!(scene.counted().await, (Some(2), ids(&["c"])));
    assert_eq!(scene.heard().await, ["1", "2"]);
    scene.server.cmd(&["SET", LOCK, "-4"]).await;
    assert_eq!(scene.ask(release(&["c"])).await, (-2, 0));
    assert!(scene.heard().await.is_empty(), "none is free");
}

/// Forgotten permits are taken by nobody, and nobody takes them back.
#[tokio::test]
async fn forgotten_permits_never_end_and_their_release_gives_nothing_back() {
    for what in ["removed", "kept"] {
        let mut scene = Scene::of_permits("3").await;
        scene.ask(acquire("30000", &["a", "b"]).at(1_000)).await;
        assert_eq!(scene.ask(forget(&["a", "x"])).await, (-5, 0));
        assert_eq!(scene.ends("a").await, 31_000, "nothing changed");
        for _ in 0..2 {
            assert_eq!(scene.ask(forget(&["a", "b"])).await, (-2, 0));
            assert_eq!(scene.ends("a").await.to_string(), NEVER);
        }
        let left = if what == "kept" {
            ids(&["a", "b"])
        } else {
            Vec::new()
        };
        for repeat in [false, true] {
            let answer = scene.ask(release_forgotten(what, &["a", "b"])).await;
            let again = repeat && left.is_empty();
            assert_eq!(answer, (if again { -5 } else { -2 }, 0), "{what}");
            assert_eq!(scene.counted().await, (Some(1), left.clone()));
        }
        assert!(scene.heard().await.is_empty());
        // A late acquire of the same hold took them once more, and that is given back.
        scene.server.cmd(&["DEL", RECORDS]).await;
        scene.ask(acquire("30000", &["a"])).await;
        let late = scene.ask(release_forgotten(what, &["a"])).await;
        assert_eq!(late, (-7, 1));
        assert_eq!(scene.counted().await, (Some(1), Vec::new()));
        assert_eq!(scene.heard().await, ["1"]);
    }
}

/// What failed to be forgotten is given back, though it never ends.
#[tokio::test]
async fn permits_that_never_end_are_given_back_as_others() {
    let scene = Scene::of_permits("3").await;
    scene.ask(acquire("30000", &["a", "b"])).await;
    scene.ask(forget(&["a", "b"])).await;
    assert_eq!(scene.ask(release(&["a", "b"])).await, (-7, 1));
    assert_eq!(scene.counted().await, (Some(3), Vec::new()));
    scene.server.cmd(&["DEL", LOCK]).await;
    scene.record("1", "a").await;
    assert_eq!(scene.ask(forget(&["a"])).await, (-5, 0));
    assert!(scene.server.keys().await.is_empty());
}

/// As Java's `addPermits` does, which sets the number anew.
#[tokio::test]
async fn no_permit_is_lost_when_the_number_outlives_its_ttl() {
    let scene = Scene::of_permits("2").await;
    for renewed in [false, true] {
        scene.server.cmd(&["SET", LOCK, "2", "PX", "200"]).await;
        scene.ask(acquire("30000", &["a"])).await;
        if renewed {
            assert_eq!(scene.ask(renew("40000", &["a"])).await, (-2, 0));
        }
        let ttl = scene.server.pttl(RECORDS).await;
        assert!(ttl > 29_000, "{ttl}");
        scene.server.cmd(&["PERSIST", LOCK]).await;
        assert_eq!(scene.ask(release(&["a"])).await, (-7, 1));
        assert_eq!(scene.counted().await, (Some(2), ids(&[])));
    }
}

#[tokio::test]
async fn one_try_takes_back_as_many_ended_permits_as_it_asks_for() {
    let scene = Scene::of_permits("0").await;
    let ended: Vec<_> = (0..200).map(|number| format!("ended{number}")).collect();
    for id in &ended {
        scene.record("1", id).await;
    }
    let wanted: Vec<_> = (0..200).map(|number| format!("new{number}")).collect();
    let wanted: Vec<_> = wanted.iter().map(String::as_str).collect();
    assert_eq!(scene.ask(acquire("30000", &wanted)).await, (-13, 1));
}

#[tokio::test]
async fn renew_lengthens_the_leases_of_permits_that_are_recorded() {
    let mut scene = Scene::of_permits("3").await;
    scene.ask(acquire("30000", &["a", "b"]).at(1_000_000)).await;
    for (lease, ends) in [("40000", 1_040_000), ("1", 1_040_001), ("1", 1_040_002)] {
        let call = renew(lease, &["a", "b"]).at(1_000_000);
        assert_eq!(scene.ask(call).await, (-2, 0));
        assert_eq!(scene.ends("a").await, ends);
        assert_eq!(scene.ends("b").await, ends);
    }
    assert_eq!(scene.ask(renew("1", &["a", "c"])).await, (-5, 0));
    assert_eq!(scene.counted().await, (Some(1), ids(&["a", "b"])));
    for wrong in ["0", "-1", "nan", "1e3", "", "0x10", "9007199254740994"] {
        assert!(
            scene.permits(renew(wrong, &["a"])).await.is_err(),
            "{wrong}"
        );
        let refused = scene.permits(acquire(wrong, &["d"])).await;
        assert!(refused.is_err(), "{wrong}: {refused:?}");
    }
    let mut alone = renew("90000", &["a"]).at(1_000_000);
    alone.1.truncate(1);
    assert_eq!(scene.ask(alone).await, (-2, 0), "without the other key");
    assert_eq!(scene.ends("a").await, 1_090_000);
    assert!(scene.heard().await.is_empty());
}

#[tokio::test]
async fn without_a_number_records_mean_nothing() {
    for call in [
        acquire("30000", &["x"]),
        release(&["a"]),
        renew("30000", &["a"]),
        change("delete", "0"),
    ] {
        let scene = Scene::new().await;
        scene.record(NEVER, "a").await;
        let answer = scene.ask(call).await;
        assert!([(-1, 0), (-5, 0), (-2, 0)].contains(&answer), "{answer:?}");
        assert!(scene.server.keys().await.is_empty());
    }
    for call in [
        acquire_of(CLIENT, "30000", "2", &["x"]),
        change("first", "2"),
        change("total", "2"),
        change("more", "2"),
    ] {
        let mut scene = Scene::of_permits("0").await;
        scene.server.cmd(&["DEL", LOCK]).await;
        scene.record("1", "a").await;
        let (code, _) = scene.ask(call).await;
        assert_eq!(code, -2);
        let (free, taken) = scene.counted().await;
        assert_eq!(free.unwrap() + size(&taken), 2, "{taken:?}");
        assert!(!taken.contains(&"a".to_owned()));
        assert_eq!(scene.heard().await.len(), 1);
    }
}

#[tokio::test]
async fn the_number_is_changed_and_looked_at() {
    let mut scene = Scene::of_permits("3").await;
    scene.ask(acquire("30000", &["a", "b"])).await;
    scene.record("1", "dead").await;
    for (what, count) in [("free", 2), ("taken", 2), ("total", 4)] {
        assert_eq!(scene.ask(look(what)).await, (-2, count), "{what}");
    }
    for (permits, code) in [("2", -2), ("3", -1)] {
        assert_eq!(scene.ask(look(permits)).await, (code, 0));
        let mut of_five = look(permits);
        of_five.2.push("5".to_owned());
        assert_eq!(scene.ask(of_five).await, (code, 0), "the number is there");
    }
    assert_eq!(scene.counted().await.1.len(), 3, "it changes nothing");
    scene.server.cmd(&["ZREM", RECORDS, "dead"]).await;
    for (how, permits, answer, free) in [
        ("first", "9", (-2, 0), 1),
        ("total", "9", (-2, 1), 7),
        ("total", "9", (-2, 1), 7),
        ("more", "-10", (-2, 1), -3),
        ("more", "2147483647", (-2, 1), 2_147_483_644),
        ("more", "4", (-12, 1 << 31), 2_147_483_644),
        ("total", "1", (-2, 1), -1),
    ] {
        assert_eq!(scene.ask(change(how, permits)).await, answer, "{how}");
        assert_eq!(scene.counted().await.0, Some(free));
    }
    assert_eq!(scene.ask(look("free")).await, (-11, 1));
    assert_eq!(scene.heard().await, ["7", "2147483644"]);
    assert_eq!(scene.ask(change("delete", "0")).await, (-2, 1));
    assert_eq!(scene.ask(change("delete", "0")).await, (-2, 0));
    assert_eq!(scene.ask(look("total")).await, (-2, 0));
    assert_eq!(scene.ask(look("3")).await, (-1, 0));
    for (initial, code) in [("2", -1), ("3", -2)] {
        let mut call = look("3");
        call.2.push(initial.to_owned());
        assert_eq!(scene.ask(call).await, (code, 0), "{initial}");
    }
}

#[tokio::test]
async fn an_older_request_is_left_what_it_needs() {
    let mut scene = Scene::of_permits("5").await;
    scene
        .ask(note(OTHER, "4", "1000", "3000").at(1_000_000))
        .await;
    let call = |ids: &[&str], now| acquire("30000", ids).at(now);
    assert_eq!(scene.ask(call(&["a", "b"], 1_000_000)).await.0, -1);
    assert_eq!(scene.ask(call(&["a"], 1_000_000)).await, (-2, 1));
    assert_eq!(scene.ask(call(&["b"], 1_000_000)).await.0, 30_000);
    // An own note that is older goes first, and one that is younger does not.
    scene
        .ask(note(CLIENT, "1", "999", "3000").at(1_000_000))
        .await;
    assert!(scene.ask(call(&["b"], 1_000_000)).await.0 > 0);
    scene
        .ask(note(CLIENT, "1", "1001", "3000").at(1_000_000))
        .await;
    assert_eq!(scene.ask(call(&["b"], 1_000_000)).await, (-2, 1));
    assert_eq!(scene.heard().await, ["3"], "who deferred to it may go on");
    let left: Vec<String> = scene.server.query(&["HKEYS", NEEDS]).await;
    assert_eq!(left, [OTHER], "the grant removes the own note");
    // A note that is not left again is over.
    assert!(scene.ask(call(&["c"], 1_003_000)).await.0 > 0);
    assert_eq!(scene.ask(call(&["c"], 1_003_001)).await, (-2, 1));
}

/// It may ask for more than there are.
#[tokio::test]
async fn an_older_request_is_heeded_for_thirty_of_forty_seconds() {
    let scene = Scene::of_permits("5").await;
    let since = 1_000_000;
    let mut taken = Vec::new();
    for second in 0..80 {
        let now = since + second * 1_000;
        let waited = (now - since).to_string();
        scene.ask(note(OTHER, "6", &waited, "3000").at(now)).await;
        let got = scene.ask(acquire("1", &["a"]).at(now)).await;
        if got.0 == -2 {
            taken.push(second);
            scene.ask(release(&["a"])).await;
        }
    }
    let expected: Vec<_> = (30..40).chain(70..80).collect();
    assert_eq!(taken, expected);
}

#[tokio::test]
async fn a_note_has_a_ttl_and_its_removal_wakes_others() {
    let mut scene = Scene::of_permits("2").await;
    for _ in 0..2 {
        assert_eq!(scene.ask(note(CLIENT, "5", "100", "3000")).await, (-2, 0));
        let ttl = scene.server.pttl(NEEDS).await;
        assert!((1_000..=3_000).contains(&ttl), "{ttl}");
    }
    assert!(scene.heard().await.is_empty());
    assert_eq!(scene.ask(note(CLIENT, "5", "0", "0")).await, (-2, 0));
    assert_eq!(scene.ask(note(CLIENT, "5", "0", "0")).await, (-5, 0));
    assert_eq!(scene.heard().await, ["2"]);
    assert!(!scene.server.exists(NEEDS).await);
    for wrong in ["nan", "-1", "", "1.5"] {
        let refused = scene.permits(note(CLIENT, "5", "0", wrong)).await;
        assert!(refused.is_err(), "{wrong}");
    }
}

/// Each note lengthens the life of the key, so notes of the dead would stay as long as anybody waits. To look for them costs
/// as much as there are notes, so a request looks with its first one.
#[tokio::test]
async fn notes_that_are_over_are_removed_by_the_next_first_one() {
    let scene = Scene::of_permits("0").await;
    scene.ask(note(OTHER, "4", "0", "3000").at(1_000_000)).await;
    let names = async || -> Vec<String> { scene.server.query(&["HKEYS", NEEDS]).await };
    let both = &[OTHER, CLIENT][..];
    for (now, first, left) in [
        (1_003_000, true, both),
        (1_003_001, false, both),
        (1_003_001, true, &[CLIENT]),
    ] {
        if first {
            scene.server.cmd(&["HDEL", NEEDS, CLIENT]).await;
        }
        scene.ask(note(CLIENT, "1", "0", "3000").at(now)).await;
        let mut there = names().await;
        there.sort_by_key(|name| name != OTHER);
        assert_eq!(there, left, "{now}");
    }
    scene.server.cmd(&["HDEL", NEEDS, CLIENT]).await;
    scene
        .server
        .cmd(&["HSET", NEEDS, "no note", "at all"])
        .await;
    scene.ask(note(CLIENT, "1", "0", "3000")).await;
    assert_eq!(names().await, [CLIENT]);
}

/// With the last record its key goes, and the TTL with it.
#[tokio::test]
async fn a_denied_change_of_the_number_leaves_the_records_their_ttl() {
    for call in [release(&["a"]), acquire("30000", &["b", "c"])] {
        let scene = Scene::of_permits("0").await;
        scene.record("1000", "a").await;
        for key in [LOCK, RECORDS] {
            scene.server.cmd(&["PEXPIRE", key, "60000"]).await;
        }
        let denied = scene.denied("-incrby", &call).await;
        assert!(is_refused(&denied), "{denied:?}");
        assert_eq!(scene.counted().await, (Some(0), ids(&["a"])));
        let ttl = scene.server.pttl(RECORDS).await;
        assert!((30_000..=60_000).contains(&ttl), "{ttl}");
    }
}

/// Whichever command is denied: what is taken and what is free are together what there was.
#[tokio::test]
async fn whichever_command_is_denied_no_permit_is_lost_and_none_is_there_twice() {
    let scene = Scene::new().await;
    let prepare = async || {
        scene.server.cmd(&["FLUSHALL"]).await;
        scene.server.cmd(&["SET", LOCK, "3", "PX", "60000"]).await;
        scene.record("1", "dead").await;
        scene.record(NEVER, "mine").await;
        scene.server.cmd(&["PEXPIRE", RECORDS, "60000"]).await;
        scene.ask(note(CLIENT, "1", "100", "60000")).await;
    };
    let calls = [
        acquire("30000", &["x", "y"]),
        acquire("30000", &["mine", "y"]),
        acquire("30000", &["p", "q", "r", "s", "t"]),
        release(&["mine"]),
        release(&["other"]),
        release_forgotten("kept", &["mine"]),
        forget(&["mine", "dead"]),
        renew("30000", &["mine"]),
        note(CLIENT, "1", "100", "3000"),
        note(CLIENT, "1", "100", "0"),
        look("free"),
    ];
    for denied in COMMANDS {
        for (index, call) in calls.iter().enumerate() {
            prepare().await;
            let answer = scene.denied(denied, call).await;
            let (free, taken) = scene.counted().await;
            let there = free.unwrap() + size(&taken);
            assert_eq!(there, 5, "{denied} {index}: {answer:?}, {free:?} {taken:?}");
            let x = taken.contains(&"x".to_owned());
            if index == 0 {
                let granted = matches!(&answer, Ok(Value::Array(_)));
                assert_eq!(granted, x, "{denied}: {answer:?}");
            }
            for key in [LOCK, RECORDS, NEEDS] {
                let ttl = scene.server.pttl(key).await;
                assert!(ttl != -1, "{denied} {index}: {key}");
            }
            assert!(
                answer.is_ok() || is_refused(&answer),
                "{denied}: {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn whichever_command_is_denied_a_number_is_set_or_it_is_not() {
    let scene = Scene::new().await;
    for denied in COMMANDS {
        for call in [
            acquire_of(CLIENT, "30000", "3", &["x"]),
            change("first", "3"),
            change("total", "3"),
        ] {
            scene.server.cmd(&["FLUSHALL"]).await;
            let _ = scene.denied(denied, &call).await;
            let (free, taken) = scene.counted().await;
            let there = free.unwrap_or(0) + size(&taken);
            assert!([0, 3].contains(&there), "{denied}: {free:?} {taken:?}");
        }
    }
}

#[tokio::test]
async fn a_denied_wake_up_is_reported_and_the_permit_is_free_all_the_same() {
    let scene = Scene::of_permits("1").await;
    for denied in ["-publish", "resetchannels"] {
        scene.ask(acquire("30000", &["a"])).await;
        let answer = scene.denied(denied, &release(&["a"])).await;
        assert_eq!(answer.unwrap(), Value::Int(-8), "{denied}");
        assert_eq!(scene.counted().await, (Some(1), Vec::new()));
    }
}

/// Redisson's releases are refused out of memory, and their permits are lost.
#[tokio::test]
async fn out_of_memory_releases_and_renewals_work_and_an_acquire_changes_nothing() {
    let scene = Scene::of_permits("3").await;
    scene.ask(acquire("30000", &["a", "b"])).await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let before = scene.counted().await;
    for _ in 0..2 {
        let refused = scene.permits(acquire("30000", &["c"])).await.unwrap_err();
        assert_eq!(code(&refused), Some("OOM"), "{refused}");
        assert_eq!(scene.counted().await, before);
        let refused = scene.permits(note(CLIENT, "1", "0", "3000")).await;
        assert_eq!(code(&refused.unwrap_err()), Some("OOM"));
        assert_eq!(scene.ask(renew("90000", &["a", "b"])).await, (-2, 0));
        assert_eq!(scene.ask(forget(&["b"])).await, (-2, 0));
        let kept = scene.ask(release_forgotten("kept", &["b"])).await;
        assert_eq!(kept, (-2, 0));
    }
    assert_eq!(scene.ask(look("free")).await, (-2, 1));
    assert_eq!(scene.ask(release(&["a"])).await.0, -7);
    assert_eq!(scene.counted().await, (Some(2), ids(&["b"])));
    // What takes permits back first needs no memory, nor does what follows.
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    scene.record("1", "dead").await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(scene.ask(renew("90000", &["b"])).await, (-2, 0));
    assert_eq!(scene.counted().await, (Some(3), ids(&["b"])));
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
}

#[tokio::test]
async fn keys_that_are_no_semaphore_are_recognised_and_left_alone() {
    let foreign: [&[&str]; 4] = [
        &["SET", LOCK, "none"],
        &["SET", LOCK, "9007199254740992"],
        &["HSET", LOCK, "a", "1"],
        &["SET", RECORDS, "1"],
    ];
    for write in foreign {
        let scene = Scene::new().await;
        scene.server.cmd(write).await;
        for call in [
            acquire("30000", &["a"]),
            acquire_of(CLIENT, "30000", "3", &["a"]),
            change("first", "1"),
            change("more", "1"),
            change("total", "1"),
            change("delete", "0"),
            look("free"),
        ] {
            assert_eq!(scene.ask(call).await, (-3, 0), "{write:?}");
        }
        let released = scene.permits(release(&["a"])).await;
        assert!(released.is_err() || released.unwrap().0 == -5);
        assert_eq!(scene.server.keys().await, [write[1]]);
    }
}

#[tokio::test]
async fn a_server_that_cannot_write_says_so_and_not_lost() {
    let scene = Scene::of_permits("1").await;
    scene.ask(acquire("30000", &["a"])).await;
    scene.server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for _ in 0..2 {
        let refused = scene.permits(renew("1000", &["a"])).await.unwrap_err();
        assert_eq!(code(&refused), Some("READONLY"), "{refused}");
    }
    // Its data may be older than the permit.
    let refused = scene.permits(release(&["b"])).await.unwrap_err();
    assert_eq!(code(&refused), Some("READONLY"), "{refused}");
}
