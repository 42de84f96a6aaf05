//! The fenced lock of both sides: one lock, and one growing series of tokens, whoever takes the next.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock::{Client, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::{LONG, NO_POLL, channel};

const NAME: &str = "x";
const TOKEN: &str = "redisson_lock_token:{x}";
const KEPT: Duration = Duration::from_secs(30);

struct Both {
    server: RedisServer,
    java: Worker,
    rust: Client,
}

impl Both {
    async fn start() -> Option<Self> {
        let server = RedisServer::start();
        let java = Worker::java()?;
        java.open(&server.url(), None).await.expect("a client");
        let builder = Client::builder(&server.url()).command_timeout(LONG);
        let never = watchlock::Backoff::new().base(NO_POLL).cap(NO_POLL);
        let rust = builder.backoff(never).connect().await.expect("a client");
        Some(Self { server, java, rust })
    }

    fn fields(kind: &str) -> Value {
        json!({"owner": "a", "kind": kind, "name": NAME, "wait_ms": 0, "lease_ms": 30_000})
    }

    /// The token of a level that Java takes; the lock must be free for it.
    async fn java_takes(&self) -> u64 {
        let got = self.java.call("try_lock", Self::fields("fenced")).await;
        let got = got.expect("Java answers");
        assert_eq!(got["acquired"], true, "{got}");
        got["token"].as_u64().expect("a token")
    }

    async fn java_is_kept_out(&self, kind: &str) {
        let got = self.java.call("try_lock", Self::fields(kind)).await;
        assert_eq!(got.expect("Java answers")["acquired"], false, "{kind}");
    }

    async fn java_unlocks(&self) {
        let done = self.java.call("unlock", Self::fields("fenced")).await;
        done.expect("Java unlocks");
    }

    /// The token of a section of Java's.
    async fn java(&self) -> u64 {
        let token = self.java_takes().await;
        self.java_unlocks().await;
        token
    }

    /// The token of a section of ours.
    async fn rust(&self) -> u64 {
        let guard = self.rust.get_fenced_lock(NAME).lock().await.unwrap();
        let token = guard.token().as_u64();
        guard.unlock().await.unwrap();
        token
    }

    async fn rust_is_kept_out(&self) {
        let (plain, fenced) = (self.rust.get_lock(NAME), self.rust.get_fenced_lock(NAME));
        let once = Duration::ZERO;
        assert!(plain.try_lock(once, KEPT).await.unwrap().is_none());
        assert!(fenced.try_lock(once, KEPT).await.unwrap().is_none());
    }

    async fn listen(&self, waiters: u64) {
        eventually("waiters listen", LONG, async || {
            self.server.subscribers(&channel(NAME)).await == waiters
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_goes_on_from_our_tokens_and_we_from_javas() {
    let Some(both) = Both::start().await else {
        return;
    };
    // As in a service that had only Java until now.
    let mut tokens = vec![both.java().await, both.java().await];
    assert_eq!(tokens, [1, 2]);
    for _ in 0..5 {
        let ours = both.rust().await;
        let javas = both.java().await;
        assert_eq!(javas, ours + 1, "Java adds one to what is there");
        tokens.extend([ours, javas, both.java().await]);
        tokens.extend([both.rust().await, both.rust().await]);
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(both.server.pttl(TOKEN).await, -1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fenced_and_plain_locks_of_both_sides_exclude_each_other() {
    let Some(both) = Both::start().await else {
        return;
    };
    let javas = both.java_takes().await;
    both.rust_is_kept_out().await;
    let stored: u64 = both.server.query(&["GET", TOKEN]).await;
    assert_eq!(stored, javas, "an acquire that is kept out burns no token");
    both.java_unlocks().await;

    let guard = both.rust.get_fenced_lock(NAME).lock().await.unwrap();
    both.java_is_kept_out("fenced").await;
    both.java_is_kept_out("lock").await;
    let stored: u64 = both.server.query(&["GET", TOKEN]).await;
    assert_eq!(stored, guard.token().as_u64(), "nor does Java");
    guard.unlock().await.unwrap();
    let plain = both.rust.get_lock(NAME).lock().await.unwrap();
    both.java_is_kept_out("fenced").await;
    plain.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_either_side_wakes_a_waiter_of_the_other() {
    let Some(both) = Both::start().await else {
        return;
    };
    let javas = both.java_takes().await;
    let lock = both.rust.get_fenced_lock(NAME);
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
    both.listen(1).await;
    both.java_unlocks().await;
    let guard = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert!(guard.token().as_u64() > javas);

    // Our subscription outlives its last waiter by a second.
    guard.unlock().await.unwrap();
    both.listen(0).await;
    let guard = both.rust.get_fenced_lock(NAME).lock().await.unwrap();
    let ours = guard.token().as_u64();
    let fields = json!({"owner": "b", "kind": "fenced", "name": NAME});
    let waiting = both.java.request("lock", fields);
    both.listen(1).await;
    guard.unlock().await.unwrap();
    let got = tokio::time::timeout(LONG, waiting).await.expect("woken");
    let javas = got.outcome.expect("Java is in")["token"].as_u64();
    assert_eq!(javas, Some(ours + 1));
}

/// A re-entry of Java's takes a new token, so the outer level's is outdated. Ours keep the hold's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_both_sides_leave_one_growing_series() {
    let Some(both) = Both::start().await else {
        return;
    };
    let (outer, inner) = (both.java_takes().await, both.java_takes().await);
    assert_eq!(inner, outer + 1);
    both.java_unlocks().await;
    both.rust_is_kept_out().await;
    both.java_unlocks().await;

    let owner = both.rust.new_owner();
    let plain = owner.get_lock(NAME).lock().await.unwrap();
    let fenced = owner.get_fenced_lock(NAME).lock().await.unwrap();
    let again = fenced.reenter(Lease::Watchdog).await.unwrap();
    let ours = fenced.token().as_u64();
    assert!(ours > inner);
    assert_eq!(
        (again.token(), plain.fencing_token()),
        (fenced.token(), Some(fenced.token()))
    );
    both.java_is_kept_out("fenced").await;
    for guard in [again, fenced] {
        guard.unlock().await.unwrap();
    }
    both.java_is_kept_out("fenced").await;
    plain.unlock().await.unwrap();
    assert_eq!(both.java().await, ours + 1);
}

/// As documented: the side that takes the first token after a loss decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_loss_java_starts_at_one_and_we_do_not() {
    let Some(both) = Both::start().await else {
        return;
    };
    let before = both.rust().await;
    both.server.cmd(&["FLUSHALL"]).await;
    assert_eq!(both.java().await, 1);
    let after = both.rust().await;
    assert!(after > before);
    assert_eq!(both.java().await, after + 1);

    both.server.cmd(&["FLUSHALL"]).await;
    let first = both.rust().await;
    assert!(first > after + 1);
    assert_eq!(both.java().await, first + 1);
}
