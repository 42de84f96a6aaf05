//! The fair lock's scripts: places in the queue, whose turn it is, repeats, refusals, short of memory.

use redis::RedisResult;
use watchlock_support::server::{RedisServer, connection};

use super::{CLIENT, LATER, MINE, both, code, is_wrong_type};
use crate::common::script;

const LOCK: &str = "lock";
const QUEUE: &str = "redisson_lock_queue:{lock}";
const SCORES: &str = "redisson_lock_timeout:{lock}";
const WAITERS: &str = "watchlock_waiters:{lock}";
/// Another client, and Redisson's waiter.
const STRANGER: &str = "6a1b0c0e-0000-4000-8000-000000000002:1";
const JAVA: &str = "6a1b0c0e-0000-4000-8000-00000000000a:77";
const LEASE: &str = "30000";

struct Scene {
    server: RedisServer,
}

impl Scene {
    fn new() -> Self {
        Self {
            server: RedisServer::start(),
        }
    }

    fn call(file: &str, args: &[&str]) -> Vec<String> {
        let text = script(&format!("fair/{file}.lua"));
        let head = [
            "EVAL", &text, "4", LOCK, QUEUE, SCORES, WAITERS, "300000", "channel",
        ];
        let call = head.iter().chain(args);
        call.map(|part| (*part).to_owned()).collect()
    }

    /// The code of the reply, and its number.
    async fn run(&self, file: &str, args: &[&str]) -> RedisResult<(i64, i64)> {
        let call = Self::call(file, args);
        let call: Vec<_> = call.iter().map(String::as_str).collect();
        self.server.try_cmd(&call).await.map(both)
    }

    async fn acquire(&self, id: &str, waits: &str) -> i64 {
        let (code, number) = self.run("acquire", &[id, LEASE, waits]).await.unwrap();
        assert_eq!(number, 0);
        code
    }

    async fn enqueue(&self, ids: &[&str]) -> (i64, i64) {
        self.enqueue_behind("", ids).await
    }

    async fn enqueue_behind(&self, ahead: &str, ids: &[&str]) -> (i64, i64) {
        self.run("enqueue", &[&[ahead], ids].concat())
            .await
            .unwrap()
    }

    async fn release(&self, id: &str) -> (i64, i64) {
        self.run("release", &[id, "0"]).await.unwrap()
    }

    async fn vouch(&self) -> (i64, i64) {
        let args = [CLIENT, MINE, LATER];
        self.run("vouch", &args).await.unwrap()
    }

    async fn queue(&self) -> Vec<String> {
        self.server.query(&["LRANGE", QUEUE, "0", "-1"]).await
    }

    async fn holder(&self) -> Option<String> {
        self.server.hash(LOCK).await.into_keys().next()
    }

    /// The whole state, except for times.
    async fn state(&self) -> (Vec<String>, Vec<String>, Vec<String>, Option<String>) {
        let members =
            async |key| -> Vec<String> { self.server.query(&["ZRANGE", key, "0", "-1"]).await };
        let (scores, waiters) = (members(SCORES).await, members(WAITERS).await);
        (self.queue().await, scores, waiters, self.holder().await)
    }

    async fn java_waits(&self, id: &str, score: &str) {
        self.server.cmd(&["RPUSH", QUEUE, id]).await;
        self.server.cmd(&["ZADD", SCORES, score, id]).await;
    }

    /// Lets the vouch of the client end.
    async fn falls_silent(&self, client: &str) {
        self.server.cmd(&["ZADD", WAITERS, "XX", "1", client]).await;
    }

    async fn assert_leased(&self, when: &str) {
        for key in self.server.keys().await {
            assert_ne!(self.server.pttl(&key).await, -1, "{when}: {key}");
        }
    }
}

const FAR: &str = "99999999999999";

#[tokio::test]
async fn a_free_lock_without_a_queue_is_taken_with_or_without_a_place() {
    for waits in ["0", "1"] {
        let scene = Scene::new();
        for _ in 0..2 {
            assert_eq!(scene.acquire(MINE, waits).await, -2);
            assert_eq!(scene.holder().await.as_deref(), Some(MINE));
            assert_eq!(scene.server.keys().await, [LOCK]);
            let ttl = scene.server.pttl(LOCK).await;
            assert!(ttl > 20_000 && ttl <= 30_000, "{ttl}");
        }
        for expected in [(-2, 0), (-5, 0)] {
            assert_eq!(scene.release(MINE).await, expected);
            assert!(scene.server.keys().await.is_empty());
        }
    }
}

#[tokio::test]
async fn a_waiter_has_one_place_however_often_it_tries_and_a_single_try_has_none() {
    let scene = Scene::new();
    scene.acquire(STRANGER, "0").await;
    let ms = scene.acquire(MINE, "0").await;
    assert!(ms > 20_000 && ms <= 30_000, "{ms}");
    assert!(scene.queue().await.is_empty());
    for _ in 0..2 {
        let ms = scene.acquire(MINE, "1").await;
        assert!(ms > 20_000 && ms <= 30_000, "{ms}");
        assert_eq!(scene.queue().await, [MINE]);
        scene.assert_leased("queued").await;
    }
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.acquire(MINE, "1").await, -1);
}

/// The client then asks for all of its places again, in order.
#[tokio::test]
async fn enqueue_gives_no_place_ahead_of_one_that_was_lost() {
    let scene = Scene::new();
    assert_eq!(scene.acquire(MINE, "0").await, -2);
    for _ in 0..2 {
        assert_eq!(scene.enqueue_behind(MINE, &[LATER]).await, (-9, 1), "holds");
    }
    scene.release(MINE).await;
    assert_eq!(scene.enqueue_behind(LATER, &[MINE]).await, (-9, 1), "waits");
    scene.server.cmd(&["FLUSHALL"]).await;
    assert_eq!(scene.enqueue_behind(LATER, &[MINE]).await, (-5, 0), "lost");
    assert!(scene.server.keys().await.is_empty());
}

#[tokio::test]
async fn enqueue_gives_places_in_order_and_takes_no_lock() {
    let scene = Scene::new();
    for _ in 0..2 {
        assert_eq!(scene.enqueue(&[MINE, LATER]).await, (-9, 2));
        assert_eq!(scene.queue().await, [MINE, LATER]);
        assert_eq!(scene.holder().await, None);
    }
    assert_eq!(scene.enqueue(&[STRANGER]).await, (-2, 1));
    scene.assert_leased("queued").await;
    let scores: Vec<(String, f64)> = {
        let call = ["ZRANGE", SCORES, "0", "-1", "WITHSCORES"];
        scene.server.query(&call).await
    };
    let order: Vec<_> = scores.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(order, [MINE, LATER, STRANGER]);
    assert!((scores[2].1 - scores[0].1 - 2.0).abs() < 0.5);
    scene.java_waits(JAVA, FAR).await;
    scene.enqueue(&["behind:1"]).await;
    let behind: f64 = scene.server.query(&["ZSCORE", SCORES, "behind:1"]).await;
    assert!((behind - FAR.parse::<f64>().unwrap() - 300_000.0).abs() < 1.0);
}

#[tokio::test]
async fn the_holder_gets_no_place() {
    let scene = Scene::new();
    scene.acquire(MINE, "1").await;
    // A late request for a place must not vouch for a client without waiters.
    assert_eq!(scene.enqueue(&[MINE]).await, (-2, 1));
    assert_eq!(scene.server.keys().await, [LOCK]);
    scene.enqueue(&[MINE, LATER]).await;
    assert_eq!(scene.queue().await, [LATER]);
    scene.assert_leased("queued").await;
}

#[tokio::test]
async fn the_head_gets_the_lock_and_learns_whether_the_next_is_of_its_client() {
    let scene = Scene::new();
    scene.enqueue(&[MINE, LATER]).await;
    scene.enqueue(&[STRANGER]).await;
    let ms = scene.acquire(STRANGER, "1").await;
    assert!(
        ms > 10_000 && ms <= 15_000,
        "as long as its client vouches: {ms}"
    );
    for _ in 0..2 {
        assert_eq!(scene.acquire(MINE, "1").await, -9);
        assert_eq!(scene.queue().await, [LATER, STRANGER]);
    }
    scene.release(MINE).await;
    assert_eq!(scene.acquire(LATER, "1").await, -2);
    scene.release(LATER).await;
    assert_eq!(scene.acquire(STRANGER, "1").await, -2);
    assert_eq!(scene.server.keys().await, [LOCK]);
}

#[tokio::test]
async fn a_try_without_a_place_goes_past_its_own_client_only() {
    let scene = Scene::new();
    scene.enqueue(&[LATER]).await;
    assert_eq!(scene.acquire(MINE, "0").await, -9);
    assert_eq!(scene.queue().await, [LATER]);
    scene.release(MINE).await;
    scene.enqueue(&[STRANGER]).await;
    assert!(scene.acquire(MINE, "0").await > 0);
    assert_eq!(scene.queue().await, [LATER, STRANGER]);
}

/// A client uses its places in the order of its waiters, and its first waiter may have lost its place.
#[tokio::test]
async fn a_client_uses_its_first_place_for_its_first_waiter() {
    let scene = Scene::new();
    scene.enqueue(&[LATER]).await;
    scene.enqueue(&[STRANGER]).await;
    assert_eq!(scene.acquire(MINE, "1").await, -2);
    assert_eq!(scene.queue().await, [STRANGER, LATER]);
    scene.assert_leased("after a change of places").await;
}

#[tokio::test]
async fn a_waiter_that_leaves_is_in_no_key_and_lowers_the_scores_behind() {
    let scene = Scene::new();
    scene.acquire(STRANGER, "0").await;
    scene.enqueue(&[MINE, LATER]).await;
    let score = async || -> f64 { scene.server.query(&["ZSCORE", SCORES, LATER]).await };
    let java = async || -> f64 { scene.server.query(&["ZSCORE", SCORES, JAVA]).await };
    let before = score().await;
    scene
        .java_waits(JAVA, &(before + 300_000.0).to_string())
        .await;
    assert_eq!(scene.release(MINE).await, (-5, 0));
    // It has the time of a head from now on, and the one behind it has as long after it as before.
    let after = score().await;
    assert!((before - after).abs() < 10_000.0);
    assert!((java().await - after - 300_000.0).abs() < 1.0);
    scene.server.cmd(&["LREM", QUEUE, "1", JAVA]).await;
    scene.server.cmd(&["ZREM", SCORES, JAVA]).await;
    assert_eq!(scene.release(MINE).await, (-5, 0));
    assert!((score().await - after).abs() < 1.0);
    assert_eq!(scene.queue().await, [LATER]);
    assert_eq!(scene.release(LATER).await, (-5, 0));
    assert_eq!(scene.server.keys().await, [LOCK]);
}

#[tokio::test]
async fn nobody_that_leaves_or_gives_back_touches_another() {
    let scene = Scene::new();
    scene.acquire(MINE, "0").await;
    scene.enqueue(&[STRANGER]).await;
    let before = scene.state().await;
    for _ in 0..2 {
        assert_eq!(scene.release(LATER).await, (-5, 0));
        assert_eq!(scene.state().await, before);
    }
    let counted = scene.run("release", &[MINE, "2"]).await.unwrap();
    assert_eq!(counted, (-2, 0));
    assert_eq!(scene.server.hash(LOCK).await[MINE], "2");
    let counted = scene.run("release", &[LATER, "2"]).await.unwrap();
    assert_eq!(counted, (-5, 0));
}

#[tokio::test]
async fn a_release_wakes_the_head_alone() {
    let scene = Scene::new();
    let client = redis::Client::open(scene.server.url()).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener
        .subscribe(format!("channel:{LATER}"))
        .await
        .unwrap();
    scene.acquire(MINE, "0").await;
    scene.enqueue(&[LATER]).await;
    scene.enqueue(&[STRANGER]).await;
    // One client received the wake-up: the next waiter is of the same client.
    assert_eq!(scene.release(MINE).await, (-7, 1));
    scene.acquire(LATER, "1").await;
    // The next waiter is of another client.
    assert_eq!(scene.release(LATER).await, (-2, 0));
}

#[tokio::test]
async fn a_lock_that_is_to_be_had_is_taken_without_a_place() {
    let scene = Scene::new();
    scene.server.reset_calls().await;
    assert_eq!(scene.acquire(MINE, "1").await, -2);
    assert_eq!(scene.server.calls_of("rpush").await, 0);
    assert_eq!(scene.server.calls_of("zadd").await, 0);
    assert_eq!(scene.server.keys().await, [LOCK]);
}

/// Nobody was dropped, because Redisson drops only heads.
#[tokio::test]
async fn a_queue_whose_head_came_first_is_not_read_to_find_whose_turn_it_is() {
    let scene = Scene::new();
    scene.acquire(MINE, "0").await;
    scene.enqueue(&[LATER]).await;
    scene.enqueue(&[STRANGER]).await;
    scene.java_waits(JAVA, "1").await;
    scene.server.reset_calls().await;
    // Nobody hears it, so it looks for the first waiter of Redisson.
    assert_eq!(scene.release(MINE).await, (-2, 0));
    assert_eq!(scene.server.calls_of("lrange").await, 1);
    scene.server.reset_calls().await;
    // The scores of those behind it stay: the next one is ours, and has time enough.
    assert_eq!(scene.acquire(LATER, "1").await, -2);
    assert_eq!(scene.server.calls_of("lrange").await, 0);
    assert_eq!(scene.queue().await, [STRANGER, JAVA]);
}

#[tokio::test]
async fn the_dead_are_skipped_on_a_free_lock_only() {
    let scene = Scene::new();
    scene.acquire(MINE, "0").await;
    scene.enqueue(&[STRANGER]).await;
    scene.java_waits(JAVA, "1").await;
    scene
        .falls_silent("6a1b0c0e-0000-4000-8000-000000000002")
        .await;
    scene.enqueue(&[LATER]).await;
    assert_eq!(scene.queue().await, [STRANGER, JAVA, LATER]);
    scene.release(MINE).await;
    assert_eq!(scene.queue().await, [LATER]);
    assert_eq!(scene.acquire(LATER, "1").await, -2);
}

/// A waiter that tries is alive, however long its client was silent.
#[tokio::test]
async fn the_head_of_a_client_that_was_silent_keeps_its_place_when_it_tries_before_others() {
    let scene = Scene::new();
    scene.enqueue(&[MINE, LATER]).await;
    scene.enqueue(&[STRANGER]).await;
    scene.falls_silent(CLIENT).await;
    assert_eq!(scene.acquire(MINE, "1").await, -9);
    assert_eq!(scene.queue().await, [LATER, STRANGER]);
    let until: f64 = scene.server.query(&["ZSCORE", WAITERS, CLIENT]).await;
    assert!(until > 1e12, "its client is vouched for: {until}");
}

/// Without memory, it could not leave the queue when it got the lock.
#[tokio::test]
async fn a_place_that_the_holder_still_has_goes_with_its_release() {
    let scene = Scene::new();
    scene.acquire(MINE, "1").await;
    scene
        .server
        .cmd(&["ZADD", WAITERS, "999999999999999", MINE])
        .await;
    scene.server.cmd(&["ZADD", WAITERS, FAR, CLIENT]).await;
    assert_eq!(scene.release(MINE).await, (-2, 0));
    assert!(scene.server.keys().await.is_empty());
}

#[tokio::test]
async fn a_dropped_waiter_whose_client_lives_is_put_back_before_later_ones() {
    for notices in ["release", "vouch", "acquire"] {
        let scene = Scene::new();
        scene.enqueue(&[MINE]).await;
        scene.enqueue(&[LATER]).await;
        scene.java_waits(JAVA, FAR).await;
        scene.enqueue(&[STRANGER]).await;
        for _ in 0..2 {
            let head: String = scene.server.query(&["LPOP", QUEUE]).await;
            scene.server.cmd(&["ZREM", SCORES, &head]).await;
        }
        assert_eq!(scene.queue().await, [JAVA, STRANGER]);
        match notices {
            "release" => drop(scene.release("nobody:1").await),
            "vouch" => assert_eq!(scene.vouch().await, (-9, 2)),
            _ => assert!(scene.acquire(STRANGER, "1").await > 0),
        }
        assert_eq!(
            scene.queue().await,
            [MINE, LATER, JAVA, STRANGER],
            "{notices}"
        );
        scene.assert_leased(notices).await;
        let score = async |id| -> f64 { scene.server.query(&["ZSCORE", SCORES, id]).await };
        let apart = score(LATER).await - score(MINE).await;
        assert!((apart - 1.0).abs() < 0.5, "{notices}: {apart}");
    }
}

#[tokio::test]
async fn a_long_waiter_is_given_time_and_so_are_those_behind() {
    let scene = Scene::new();
    scene.acquire(STRANGER, "0").await;
    scene.enqueue(&[MINE]).await;
    scene.java_waits(JAVA, FAR).await;
    let score = async |id| -> f64 { scene.server.query(&["ZSCORE", SCORES, id]).await };
    let mine = score(MINE).await;
    scene.vouch().await;
    assert!((score(MINE).await - mine).abs() < 1.0, "it has time");
    // As after 15 s.
    scene.server.cmd(&["ZINCRBY", SCORES, "-15000", MINE]).await;
    let before = (score(MINE).await, score(JAVA).await);
    scene.vouch().await;
    let more = score(MINE).await - before.0;
    assert!(more > 10_000.0 && more < 25_000.0, "{more}");
    assert!((score(JAVA).await - before.1 - more).abs() < 1.0);
    let again = score(MINE).await;
    scene.vouch().await;
    assert!(
        (score(MINE).await - again).abs() < 1.0,
        "a repeat changes nothing"
    );
}

#[tokio::test]
async fn a_heartbeat_costs_as_much_among_500_waiters_as_among_5() {
    let mut costs = Vec::new();
    for (count, code) in [(5, -2), (500, -15)] {
        let scene = Scene::new();
        scene.acquire(STRANGER, "0").await;
        for number in 0..count {
            scene.enqueue(&[&format!("client-{number}:1")]).await;
        }
        scene.enqueue(&[MINE]).await;
        // One heartbeat in five seconds looks at all.
        assert_eq!(scene.vouch().await, (code, 1));
        scene.server.reset_calls().await;
        assert_eq!(scene.vouch().await, (code, 1));
        costs.push(scene.server.calls().await.into_values().sum::<u64>());
    }
    assert_eq!(costs[0], costs[1]);
}

/// All waiters of ours are put back in one pass.
#[tokio::test]
async fn a_queue_that_is_lost_is_put_back_at_a_cost_in_proportion_to_its_waiters() {
    let mut costs = Vec::new();
    for count in [50, 500] {
        let scene = Scene::new();
        let mut ids: Vec<String> = (0..count).map(|n| format!("client-{n}:1")).collect();
        for id in &ids {
            scene.enqueue(&[id]).await;
        }
        scene.enqueue(&[MINE]).await;
        ids.push(MINE.to_owned());
        scene.server.cmd(&["DEL", QUEUE]).await;
        scene.server.reset_calls().await;
        assert_eq!(scene.vouch().await, (-15, 1));
        costs.push(scene.server.calls().await.into_values().sum::<u64>());
        assert_eq!(scene.queue().await, ids);
    }
    assert!(costs[1] < costs[0] * 12, "{costs:?}");
}

#[tokio::test]
async fn a_heartbeat_takes_the_places_of_dead_clients_while_the_lock_is_held() {
    let scene = Scene::new();
    scene.acquire("holder:1", "0").await;
    scene.enqueue(&[STRANGER]).await;
    scene.enqueue(&[MINE]).await;
    scene
        .falls_silent("6a1b0c0e-0000-4000-8000-000000000002")
        .await;
    let score = async || -> f64 { scene.server.query(&["ZSCORE", SCORES, MINE]).await };
    let before = score().await;
    assert_eq!(scene.vouch().await, (-9, 1));
    assert_eq!(scene.queue().await, [MINE]);
    let sooner = before - score().await;
    assert!(sooner.abs() < 5_000.0, "{sooner}");
}

/// A client that died before the server's time went back must not be waited for until the old time comes again.
#[tokio::test]
async fn after_the_servers_time_went_back_no_client_vouches_for_longer_than_before() {
    let scene = Scene::new();
    scene.enqueue(&[STRANGER]).await;
    let client = "6a1b0c0e-0000-4000-8000-000000000002";
    scene.server.cmd(&["ZADD", WAITERS, FAR, client]).await;
    let ms = scene.acquire(MINE, "1").await;
    assert!(ms > 0 && ms <= 15_000, "{ms}");
    assert_eq!(scene.queue().await, [STRANGER, MINE]);
    let until: f64 = scene.server.query(&["ZSCORE", WAITERS, client]).await;
    assert!(until < 1e13, "{until}");
}

#[tokio::test]
async fn nobody_vouches_for_a_client_whose_places_are_gone() {
    let scene = Scene::new();
    for _ in 0..2 {
        assert_eq!(scene.vouch().await, (-5, 0));
        assert!(scene.server.keys().await.is_empty());
    }
    scene.enqueue(&[MINE, LATER]).await;
    assert_eq!(scene.vouch().await, (-9, 2));
    scene.release(MINE).await;
    assert_eq!(scene.vouch().await, (-9, 1));
    scene.release(LATER).await;
    assert_eq!(scene.vouch().await, (-5, 0));
    assert!(scene.server.keys().await.is_empty());
}

#[tokio::test]
async fn a_client_hears_that_many_wait_unless_the_first_is_its_own() {
    let scene = Scene::new();
    let place = |client: usize| format!("client-{client}:1");
    scene.enqueue(&[&place(0)]).await;
    scene.enqueue(&[MINE, LATER]).await;
    for client in 1..31 {
        scene.enqueue(&[&place(client)]).await;
    }
    assert_eq!(scene.vouch().await, (-2, 2), "32 clients");
    scene.enqueue(&[&place(31)]).await;
    assert_eq!(scene.vouch().await, (-15, 2), "33 clients");
    let channels = async |which| {
        scene
            .server
            .cmd(&["ACL", "SETUSER", "default", which])
            .await
    };
    channels("resetchannels").await;
    assert_eq!(scene.vouch().await, (-2, 2), "nobody can be woken");
    channels("allchannels").await;
    scene.falls_silent("client-7").await;
    assert_eq!(scene.vouch().await, (-2, 2), "one of them is dead");
    assert_eq!(scene.enqueue(&[&place(32)]).await, (-15, 1));
    assert_eq!(scene.vouch().await, (-15, 2));
    for client in 1..4 {
        scene.release(&place(client)).await;
    }
    assert_eq!(scene.vouch().await, (-2, 2), "some of them have left");
    scene.enqueue(&[&place(0), "client-0:2"]).await;
    scene.enqueue(&[&place(1)]).await;
    assert_eq!(scene.vouch().await, (-15, 2));
    scene.release(&place(0)).await;
    scene.release("client-0:2").await;
    assert_eq!(scene.vouch().await, (-9, 2), "the first is its own");
}

#[tokio::test]
async fn a_forced_release_ends_the_hold_and_leaves_the_queue() {
    let scene = Scene::new();
    let force = async || scene.run("force_release", &[CLIENT]).await.unwrap();
    assert_eq!(force().await, (-5, 0));
    scene.acquire(MINE, "0").await;
    scene.enqueue(&[LATER]).await;
    assert_eq!(force().await, (-2, 7), "the number of the hold");
    assert_eq!(force().await, (-5, 0));
    assert_eq!(scene.queue().await, [LATER]);
    scene.acquire(LATER, "1").await;
    scene.release(LATER).await;
    scene.acquire(STRANGER, "0").await;
    assert_eq!(force().await, (-2, 0), "a stranger's");
}

#[tokio::test]
async fn a_key_that_is_no_lock_is_recognised_and_nothing_is_written() {
    let foreign: [&[&str]; 4] = [
        &["SET", LOCK, "x"],
        &["HSET", LOCK, "mode", "write"],
        &["HSET", LOCK, MINE, "1", LATER, "1"],
        &["HSET", LOCK, "colour", "red"],
    ];
    for write in foreign {
        let scene = Scene::new();
        scene.server.cmd(write).await;
        let calls: [(&str, &[&str]); 4] = [
            ("acquire", &[STRANGER, LEASE, "1"]),
            ("acquire", &[STRANGER, LEASE, "0"]),
            ("enqueue", &["", STRANGER]),
            ("force_release", &[CLIENT]),
        ];
        for (file, args) in calls {
            let answer = scene.run(file, args).await;
            let reported = is_wrong_type(&answer) || answer.as_ref().is_ok_and(|it| it.0 == -3);
            assert!(reported, "{file}: {write:?}: {answer:?}");
        }
        assert_eq!(scene.server.keys().await, [LOCK], "{write:?}");
        assert_eq!(scene.server.pttl(LOCK).await, -1);
    }
}

/// Every command that any of the scripts calls, denied one at a time while places are given, kept and given back.
#[tokio::test]
async fn i4_whichever_command_is_denied_no_key_is_left_without_a_ttl() {
    let scene = Scene::new();
    scene.enqueue(&[STRANGER]).await;
    scene.vouch().await;
    scene.release(STRANGER).await;
    let calls = scene.server.calls().await.into_keys();
    let known = [
        "eval", "evalsha", "info", "config", "keys", "pttl", "client", "hello", "acl",
    ];
    let commands: Vec<_> = calls
        .filter(|name| !known.contains(&name.as_str()))
        .collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        scene.server.cmd(&["FLUSHALL"]).await;
        let denied = format!("-{command}");
        let rights = [
            "ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", &denied,
        ];
        scene.server.cmd(&rights).await;
        let url = scene.server.url().replace("//", "//limited:pw@");
        let mut user = connection(&url).await;
        scene.acquire(STRANGER, "0").await;
        let steps: [(&str, &[&str]); 6] = [
            ("acquire", &[MINE, LEASE, "1"]),
            ("enqueue", &["", LATER]),
            ("vouch", &[CLIENT]),
            ("release", &[STRANGER, "0"]),
            ("acquire", &[MINE, LEASE, "1"]),
            ("release", &[LATER, "0"]),
        ];
        for (file, args) in steps {
            let mut call = redis::cmd("EVAL");
            for part in Scene::call(file, args).iter().skip(1) {
                call.arg(part);
            }
            let _: RedisResult<redis::Value> = call.query_async(&mut user).await;
            scene
                .assert_leased(&format!("without {command}, {file}"))
                .await;
        }
    }
}

#[tokio::test]
async fn without_memory_places_are_kept_and_given_back_and_new_ones_are_refused() {
    let scene = Scene::new();
    scene.acquire(STRANGER, "0").await;
    scene.enqueue(&[MINE]).await;
    scene.falls_silent(CLIENT).await;
    let before = scene.state().await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.run("enqueue", &["", LATER]).await;
    assert_eq!(code(&refused.unwrap_err()), Some("OOM"));
    let refused = scene.run("acquire", &[LATER, LEASE, "1"]).await;
    assert_eq!(code(&refused.unwrap_err()), Some("OOM"));
    assert_eq!(scene.state().await, before);
    assert_eq!(scene.vouch().await, (-9, 1));
    let until: f64 = scene.server.query(&["ZSCORE", WAITERS, CLIENT]).await;
    assert!(until > 1e12, "{until}");
    assert!(scene.acquire(MINE, "1").await > 0);
    assert_eq!(scene.queue().await, [MINE], "it keeps its place");
    assert_eq!(scene.release(STRANGER).await, (-2, 0));
    assert_eq!(scene.release(MINE).await, (-5, 0));
    assert!(scene.server.keys().await.is_empty());
}
