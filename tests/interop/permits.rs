//! Semaphores: Java and Rust take permits of one number, wake each other, and take back what the other left behind.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock::kind::{Counting, Expirable, SemaphoreKind};
use watchlock::{Client, Lease, Permit, SemaphoreHandle};
use watchlock_support::worker::Worker;

use super::peer::{Answer, Java, Options};
use super::{
    LATE, LONG, SHORT, Two, WOKEN_MS, eventually, ms_since, now_ns, two, two_short, two_to_kill,
    two_with,
};

/// Runs each scenario, which is generic over the kind, with both.
macro_rules! for_both {
    ($($scenario:ident,)+) => {
        mod semaphore {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    Box::pin(super::$scenario::<super::Counting>()).await;
                }
            )+
        }
        mod expirable {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    Box::pin(super::$scenario::<super::Expirable>()).await;
                }
            )+
        }
    };
}

for_both! {
    each_side_takes_what_the_other_set_up_and_they_agree,
    a_release_of_rust_wakes_java_and_one_of_java_wakes_rust,
    rust_takes_what_a_java_waiter_for_more_leaves,
    java_gets_permits_beside_a_client_whose_tasks_take_turns,
    added_permits_wake_the_waiters_of_the_other_side,
    permits_of_a_killed_rust_return,
    records_outlive_a_ttl_that_java_removed,
    out_of_memory_rust_renews_and_gives_back,
}

const NAME: &str = "imports";

trait Kind: SemaphoreKind + Sized {
    /// In the protocol of the workers.
    const WORD: &'static str;
    /// The key of the records.
    const RECORDS: &'static str;
    fn of(client: &Client, name: &str) -> SemaphoreHandle<Self>;
}

impl Kind for Counting {
    const WORD: &'static str = "semaphore";
    const RECORDS: &'static str = "watchlock_permits:{imports}";
    fn of(client: &Client, name: &str) -> SemaphoreHandle<Self> {
        client.get_semaphore(name)
    }
}

impl Kind for Expirable {
    const WORD: &'static str = "permit";
    const RECORDS: &'static str = "{imports}:timeout";
    fn of(client: &Client, name: &str) -> SemaphoreHandle<Self> {
        client.get_permit_expirable_semaphore(name)
    }
}

/// A semaphore as a worker names it.
fn named<K: Kind>(name: &str, fields: Value) -> Value {
    let mut named = json!({"kind": K::WORD, "name": name});
    if let (Value::Object(named), Value::Object(fields)) = (&mut named, fields) {
        named.extend(fields);
    }
    named
}

/// Semaphores of the Java side.
impl Java {
    async fn permits<K: Kind>(&self, op: &str, name: &str, fields: Value) -> Answer {
        self.call(op, named::<K>(name, fields)).await
    }

    async fn set<K: Kind>(&self, name: &str, permits: u32) -> bool {
        let fields = json!({"permits": permits});
        self.permits::<K>("set_permits", name, fields).await.result["set"] == true
    }

    /// Waits for so many permits; returns the handle of the grant.
    async fn acquire<K: Kind>(&self, name: &str, permits: u32) -> (String, u64) {
        let fields = json!({"permits": permits});
        let answer = self.permits::<K>("acquire", name, fields).await;
        (handle(&answer), answer.t_ret)
    }

    async fn acquire_for(&self, name: &str, permits: u32, lease: Duration) -> Answer {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap();
        let fields = json!({"permits": permits, "lease_ms": lease_ms});
        self.permits::<Expirable>("acquire", name, fields).await
    }

    async fn try_acquire<K: Kind>(&self, name: &str, permits: u32) -> Option<String> {
        self.try_for::<K>(name, permits, Duration::ZERO).await
    }

    async fn try_for<K: Kind>(&self, name: &str, permits: u32, wait: Duration) -> Option<String> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap();
        let fields = json!({"permits": permits, "wait_ms": wait_ms});
        let answer = self.permits::<K>("try_acquire", name, fields).await;
        (answer.result["acquired"] == true).then(|| handle(&answer))
    }

    async fn release<K: Kind>(&self, name: &str, handle: &str) -> Answer {
        self.permits::<K>("release", name, json!({"handle": handle}))
            .await
    }

    async fn available<K: Kind>(&self, name: &str) -> i64 {
        let answer = self.permits::<K>("permits", name, json!({})).await;
        answer.result["available"].as_i64().expect("an integer")
    }
}

fn handle(answer: &Answer) -> String {
    answer.result["handle"]
        .as_str()
        .expect("a grant")
        .to_owned()
}

/// As many as a waiter of Java may ask for: in Redisson 3 one for several expirable permits sleeps through their message.
fn of_a_waiter() -> u32 {
    let version = std::env::var("INTEROP_REDISSON").unwrap_or_default();
    if version.starts_with('3') { 1 } else { 2 }
}

async fn once<K: Kind>(of: &SemaphoreHandle<K>, permits: u32) -> Option<Permit> {
    let got = of.try_acquire_many(permits, Duration::ZERO, Lease::Watchdog);
    got.await.expect("a clean answer")
}

impl Two {
    async fn listens_for_permits(&self) {
        eventually("somebody listens", LONG, async || {
            self.server.subscribers("redisson_sc:{imports}").await > 0
        })
        .await;
    }

    /// Both sides count so many free permits.
    async fn both_count<K: Kind>(&self, free: i64) {
        assert_eq!(self.java.available::<K>(NAME).await, free);
        let of = K::of(&self.rust, NAME);
        assert_eq!(of.available_permits().await.unwrap(), free);
    }
}

async fn each_side_takes_what_the_other_set_up_and_they_agree<K: Kind>() {
    let Some(two) = two().await else { return };
    for (name, by_java) in [("imports", true), ("a:{b}:c", false), ("импорт {x", true)] {
        let of = K::of(&two.rust, name);
        if by_java {
            assert!(two.java.set::<K>(name, 6).await);
            assert!(!of.try_set_permits(9).await.unwrap());
        } else {
            assert!(of.try_set_permits(6).await.unwrap());
            assert!(!two.java.set::<K>(name, 9).await);
        }
        let ours = of.acquire_many(2).await.unwrap();
        let (theirs, _) = two.java.acquire::<K>(name, 3).await;
        let agree = async |free: i64| {
            assert_eq!(two.java.available::<K>(name).await, free, "{name}");
            assert_eq!(of.available_permits().await.unwrap(), free, "{name}");
        };
        agree(1).await;
        assert!(once(&of, 2).await.is_none());
        assert!(two.java.try_acquire::<K>(name, 2).await.is_none());
        let sixth = two
            .java
            .try_acquire::<K>(name, 1)
            .await
            .expect("it is free");
        agree(0).await;
        assert!(once(&of, 1).await.is_none());
        two.java.release::<K>(name, &theirs).await;
        agree(3).await;
        ours.verify().await.unwrap();
        ours.release().await.unwrap();
        two.java.release::<K>(name, &sixth).await;
        agree(6).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_count_taken_and_all_permits_and_give_back_by_id() {
    let Some(two) = two().await else { return };
    let of = two.rust.get_permit_expirable_semaphore(NAME);
    of.set_permits(5).await.unwrap();
    let ours = of.acquire_many(2).await.unwrap();
    let theirs = two.java.acquire_for(NAME, 2, LONG).await;
    let counts = two.java.permits::<Expirable>("permits", NAME, json!({}));
    let counts = counts.await.result;
    assert_eq!(counts, json!({"available": 1, "acquired": 4, "total": 5}));
    assert_eq!(of.acquired_permits().await.unwrap(), 4);
    assert_eq!(of.total_permits().await.unwrap(), 5);

    let id = theirs.result["ids"][0].as_str().unwrap().parse().unwrap();
    assert!(of.release_permit(id).await.unwrap());
    assert!(!of.release_permit(id).await.unwrap());
    let id = ours.ids()[1].to_string();
    for given_back in [1, 0] {
        let released = two
            .java
            .permits::<Expirable>("release", NAME, json!({"ids": [id]}));
        assert_eq!(released.await.result["released"], given_back);
    }
    two.both_count::<Expirable>(3).await;
    assert!(ours.release().await.is_err_and(|error| error.is_lost()));
    two.both_count::<Expirable>(4).await;
}

async fn a_release_of_rust_wakes_java_and_one_of_java_wakes_rust<K: Kind>() {
    let Some(two) = two().await else { return };
    let of = K::of(&two.rust, NAME).with_permits(3);
    let held = of.acquire_many(3).await.unwrap();
    let release = async {
        two.listens_for_permits().await;
        let released = now_ns();
        held.release().await.unwrap();
        released
    };
    let waits = two.java.acquire::<K>(NAME, of_a_waiter());
    let ((theirs, entered), released) = tokio::join!(waits, release);
    let took_ms = entered.saturating_sub(released) / 1_000_000;
    assert!(took_ms < WOKEN_MS, "Java is in after {took_ms} ms");

    let waiter = tokio::spawn({
        let of = of.clone();
        async move { (of.acquire_many(3).await.unwrap(), now_ns()) }
    });
    two.listens_for_permits().await;
    let released = two.java.release::<K>(NAME, &theirs).await;
    let (permit, entered) = waiter.await.unwrap();
    let took_ms = entered.saturating_sub(released.t_inv) / 1_000_000;
    assert!(took_ms < WOKEN_MS, "Rust is in after {took_ms} ms");
    permit.release().await.unwrap();
    two.both_count::<K>(3).await;
}

/// The message `1` says that one permit is free: enough for Rust's waiter, not for Java's.
async fn rust_takes_what_a_java_waiter_for_more_leaves<K: Kind>() {
    let Some(two) = two().await else { return };
    let of = K::of(&two.rust, NAME).with_permits(3);
    let (first, rest) = (
        of.acquire().await.unwrap(),
        of.acquire_many(2).await.unwrap(),
    );
    let by_rust = async {
        two.listens_for_permits().await;
        let waiter = tokio::spawn({
            let of = of.clone();
            async move { (of.acquire().await.unwrap(), now_ns()) }
        });
        eventually("both listen", LONG, async || {
            two.server.subscribers("redisson_sc:{imports}").await == 2
        })
        .await;
        let released = now_ns();
        first.release().await.unwrap();
        let (permit, entered) = waiter.await.unwrap();
        assert!(entered.saturating_sub(released) / 1_000_000 < WOKEN_MS);
        rest.release().await.unwrap();
        permit.release().await.unwrap();
        if of_a_waiter() > 1 {
            return std::future::pending().await;
        }
        // Redisson 3 may sleep beside three free permits: it needs a message for each.
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if let Some(permit) = once(&of, 1).await {
                permit.release().await.unwrap();
            }
        }
    };
    let (theirs, _) = tokio::select! {
        theirs = two.java.acquire::<K>(NAME, 3) => theirs,
        () = by_rust => unreachable!("it goes on"),
    };
    two.java.release::<K>(NAME, &theirs).await;
    two.both_count::<K>(3).await;
}

/// A waiter of Redisson leaves no note, and comes in when the client has passed its permits on for long enough.
async fn java_gets_permits_beside_a_client_whose_tasks_take_turns<K: Kind>() {
    let Some(two) = two().await else { return };
    let of = K::of(&two.rust, NAME).with_permits(2);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let of = of.clone();
        tasks.spawn(async move {
            loop {
                of.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    two.listens_for_permits().await;
    for _ in 0..5 {
        let got = two.java.try_for::<K>(NAME, 1, LONG).await;
        let theirs = got.expect("it is let in");
        two.java.release::<K>(NAME, &theirs).await;
    }
    tasks.shutdown().await;
    // Permits that a cancelled task had are given back behind its end.
    eventually("all are free", LONG, async || {
        of.available_permits().await.unwrap() == 2
    })
    .await;
    two.both_count::<K>(2).await;
}

async fn added_permits_wake_the_waiters_of_the_other_side<K: Kind>() {
    let Some(two) = two().await else { return };
    let of = K::of(&two.rust, NAME);
    two.java.set::<K>(NAME, 0).await;
    let add = async {
        two.listens_for_permits().await;
        of.add_permits(of_a_waiter().cast_signed()).await.unwrap();
        now_ns()
    };
    let waits = two.java.acquire::<K>(NAME, of_a_waiter());
    let ((_, entered), added) = tokio::join!(waits, add);
    assert!(entered.saturating_sub(added) / 1_000_000 < WOKEN_MS);

    let waiter = tokio::spawn(async move { of.acquire_many(2).await.unwrap() });
    two.listens_for_permits().await;
    let added = now_ns();
    two.java
        .permits::<K>("add_permits", NAME, json!({"permits": 2}))
        .await;
    let permit = waiter.await.unwrap();
    assert!(ms_since(added) < WOKEN_MS);
    two.both_count::<K>(0).await;
    permit.release().await.unwrap();
    two.both_count::<K>(2).await;
}

/// Permits that have a lease in Java, too, return to a Java waiter; the others to whoever of this crate tries or renews,
/// and Java is woken then.
async fn permits_of_a_killed_rust_return<K: Kind>() {
    let Some(two) = two_short().await else { return };
    let rust = Worker::rust();
    rust.open(&two.server.url(), Some(SHORT)).await.unwrap();
    let fields = json!({"permits": 2, "with_permits": 3});
    let got = rust.call("acquire", named::<K>(NAME, fields)).await;
    assert_eq!(got.unwrap()["acquired"], true);
    assert!(two.java.try_for::<K>(NAME, 2, SHORT * 2).await.is_none());

    rust.kill();

    let killed = now_ns();
    let renews = if K::WORD == "semaphore" {
        Some(K::of(&two.rust, NAME).acquire().await.unwrap())
    } else {
        None
    };
    let (theirs, _) = two.java.acquire::<K>(NAME, 2).await;
    let took = Duration::from_millis(ms_since(killed));
    assert!(took < SHORT * 2 + LATE, "in after {took:?}");
    two.java.release::<K>(NAME, &theirs).await;
    drop(renews);
    eventually("all are free", LONG, async || {
        two.java.available::<K>(NAME).await == 3
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_takes_the_permits_of_a_killed_java_when_their_lease_ends() {
    let options = Options {
        alone: true,
        ..Options::default()
    };
    let Some(two) = two_with(options, Duration::from_secs(30)).await else {
        return;
    };
    let of = two
        .rust
        .get_permit_expirable_semaphore(NAME)
        .with_permits(2);
    of.acquire().await.unwrap().release().await.unwrap();
    let asked = now_ns();
    two.java.acquire_for(NAME, 2, SHORT).await;
    two.java.kill();
    assert!(once(&of, 1).await.is_none());

    let permit = of.acquire_many(2).await.unwrap();

    let took = Duration::from_millis(ms_since(asked));
    assert!(SHORT <= took && took < SHORT + LATE, "in after {took:?}");
    permit.release().await.unwrap();
    assert_eq!(of.available_permits().await.unwrap(), 2);
}

/// Redisson does not know whose they are (redisson/redisson#3046), and nobody else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_killed_java_without_a_lease_stay_taken() {
    let Some(two) = two_to_kill().await else {
        return;
    };
    let of = two.rust.get_semaphore(NAME).with_permits(2);
    let ours = of.acquire().await.unwrap();
    two.java.acquire::<Counting>(NAME, 1).await;
    two.java.kill();
    let waited = of.try_acquire(SHORT * 2, Lease::Watchdog).await.unwrap();
    assert!(waited.is_none());
    of.add_permits(1).await.unwrap();
    let two_of_two = (ours, once(&of, 1).await.expect("it is added"));
    assert_eq!(of.available_permits().await.unwrap(), 0);
    drop(two_of_two);
}

/// Java's `addPermits` removes the TTL of the number, and not that of the records.
async fn records_outlive_a_ttl_that_java_removed<K: Kind>() {
    let Some(two) = two_short().await else { return };
    let of = K::of(&two.rust, NAME);
    let fields = json!({"permits": 2, "ttl_ms": 1_500});
    two.java.permits::<K>("set_permits", NAME, fields).await;
    let permit = of.acquire_many(2).await.unwrap();
    let ttl = two.server.pttl(K::RECORDS).await;
    assert!((0..=3_000).contains(&ttl), "{ttl}");

    let fields = json!({"permits": 1});
    two.java.permits::<K>("add_permits", NAME, fields).await;

    assert_eq!(two.server.pttl(NAME).await, -1, "Java removed it");
    eventually("a renewal removes that of the records", LONG, async || {
        two.server.pttl(K::RECORDS).await == -1
    })
    .await;
    assert!(two.java.try_for::<K>(NAME, 2, SHORT * 2).await.is_none());
    permit.verify().await.unwrap();
    permit.release().await.unwrap();
    two.both_count::<K>(3).await;
}

/// Redisson's semaphore loses permits here: its release is refused.
async fn out_of_memory_rust_renews_and_gives_back<K: Kind>() {
    let Some(two) = two_short().await else { return };
    let of = K::of(&two.rust, NAME).with_permits(4);
    let permit = of.acquire_many(2).await.unwrap();
    let (theirs, _) = two.java.acquire::<K>(NAME, 1).await;
    two.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let end = std::time::Instant::now() + SHORT * 2;
    eventually("it lives on", LONG, async || {
        permit.check().unwrap();
        std::time::Instant::now() > end
    })
    .await;
    let refused = two.java.try_call(
        "try_acquire",
        named::<K>(NAME, json!({"permits": 1, "wait_ms": 0})),
    );
    assert_eq!(refused.await.unwrap_err().kind, "refused");
    let fields = named::<K>(NAME, json!({"handle": theirs}));
    let released = two.java.try_call("release", fields).await;
    let is_back = i64::from(released.is_ok());
    assert_eq!(is_back, i64::from(K::WORD == "permit"), "{released:?}");
    permit.release().await.unwrap();
    assert_eq!(of.available_permits().await.unwrap(), 3 + is_back);
    two.server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(two.java.try_acquire::<K>(NAME, 3).await.is_some());
}

/// Java's `drainPermits` takes what is free, and leaves alone what is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_java_drains_leaves_the_permits_of_rust() {
    let Some(two) = two_short().await else { return };
    let of = two.rust.get_semaphore(NAME).with_permits(5);
    let permit = of.acquire_many(2).await.unwrap();
    let drained = two
        .java
        .permits::<Counting>("drain_permits", NAME, json!({}));
    assert_eq!(drained.await.result["drained"], 3);
    assert!(once(&of, 1).await.is_none());
    permit.verify().await.unwrap();
    permit.release().await.unwrap();
    two.both_count::<Counting>(2).await;
}
