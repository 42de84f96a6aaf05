//! What can be one set, and what cannot.

use watchlock::{Error, Lock, LockGuard, LockInfo, MultiLock, ReentrantLock, SetError, Ttl};
use watchlock_support::server::RedisServer;

use std::sync::Arc;
use std::time::Duration;

use watchlock::Lease;

use crate::common::{connect, try_once};
use crate::{end, mixed, multi};

fn problem<T>(refused: Result<T, Error>) -> SetError {
    match refused {
        Err(Error::InvalidSet(problem)) => problem,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken for a set"),
    }
}

#[tokio::test]
async fn a_set_has_2_to_64_locks() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let names: Vec<_> = (0..65).map(|number| format!("n{number}")).collect();
    let of = |count: usize| MultiLock::new(names[..count].iter().map(|name| client.get_lock(name)));
    for count in [0, 1, 65] {
        let problem = problem(of(count));
        assert!(
            matches!(problem, SetError::Number { given, .. } if given == count),
            "{problem}"
        );
    }
    let all = of(64).expect("64 are few enough");
    let guard = all.lock().await.unwrap();
    assert_eq!(server.keys().await.len(), 64);
    end(guard).await;
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_builder_takes_locks_of_any_kind() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (boxed, shared): (Box<dyn Lock>, Arc<dyn Lock>) = (
        Box::new(client.get_simple_lock("c")),
        client.get_spin_lock("d").into(),
    );
    let all = MultiLock::builder()
        .with(client.get_lock("a"))
        .with(client.get_fenced_lock("b"))
        .with(boxed)
        .with(shared)
        .build()
        .unwrap();
    assert_eq!(all.name(), "a, b, c, d");
    let guard = all.lock().await.unwrap();
    for name in ["a", "b", "c", "d"] {
        assert!(server.exists(name).await, "{name}");
    }
    end(guard).await;
    let one = MultiLock::builder().with(client.get_lock("a")).build();
    let problem = problem(one);
    assert!(matches!(problem, SetError::Number { given: 1, .. }));
}

#[tokio::test]
async fn one_lock_is_in_a_set_once() {
    let server = RedisServer::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let twice = [
        client.get_lock("a"),
        client.get_lock("b"),
        client.get_lock("a"),
    ];
    let error = problem(MultiLock::new(twice));
    assert!(
        matches!(&error, SetError::Twice { lock, .. } if &**lock == "a"),
        "{error}"
    );
    // A fenced lock is the plain lock of its name.
    let both: [Arc<dyn Lock>; 2] = [
        client.get_lock("a").into(),
        client.get_fenced_lock("a").into(),
    ];
    assert!(matches!(
        problem(MultiLock::new(both)),
        SetError::Twice { .. }
    ));
    // Two kinds that share a key would wait for each other for ever.
    let both: [Arc<dyn Lock>; 2] = [
        client.get_lock("a").into(),
        client.get_fair_lock("a").into(),
    ];
    assert!(matches!(
        problem(MultiLock::new(both)),
        SetError::Twice { .. }
    ));
    // A set within a set counts as its locks.
    let inner = multi(&client, &["a", "b"]);
    let both: [Arc<dyn Lock>; 2] = [inner.clone().into(), client.get_lock("b").into()];
    assert!(matches!(
        problem(MultiLock::new(both)),
        SetError::Twice { .. }
    ));
    // Two clients are two servers, as far as anybody can see.
    mixed([client.get_lock("a").into(), other.get_lock("a").into()]);
    mixed([inner.into(), client.get_lock("c").into()]);
}

/// A lock that passes everything on to another one, as a counting or logging lock does.
struct Wrapped(ReentrantLock, bool);

#[async_trait::async_trait]
impl Lock for Wrapped {
    fn name(&self) -> &str {
        self.0.name()
    }
    async fn try_lock(&self, wait: Duration, lease: Lease) -> Result<Option<LockGuard>, Error> {
        self.0.try_lock(wait, lease).await
    }
    async fn unlock(&self) -> Result<(), Error> {
        self.0.unlock().await
    }
    fn hold_count(&self) -> u32 {
        self.0.hold_count()
    }
    async fn remain_time_to_live(&self) -> Result<Ttl, Error> {
        self.0.remain_time_to_live().await
    }
    async fn force_unlock(&self) -> Result<bool, Error> {
        self.0.force_unlock().await
    }
    fn info(&self) -> LockInfo {
        if self.1 {
            self.0.info()
        } else {
            LockInfo::default()
        }
    }
}

#[tokio::test]
async fn a_wrapped_lock_is_the_lock_it_wraps_if_it_says_so() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let wrapped = |name: &str, reports| -> Arc<dyn Lock> {
        Arc::new(Wrapped(client.get_lock(name), reports))
    };
    let twice = MultiLock::new([wrapped("a", true), client.get_lock("a").into()]);
    assert!(matches!(problem(twice), SetError::Twice { .. }));
    // A lock that reports nothing about itself can be taken with others, too.
    let both = mixed([wrapped("a", false), wrapped("b", false)]);
    end(both.lock().await.unwrap()).await;
    let guard = both
        .try_lock(Duration::ZERO, Duration::from_secs(5))
        .await
        .unwrap();
    assert!(try_once(&client, "b").await.unwrap().is_none());
    end(guard.expect("free")).await;
}

#[tokio::test]
async fn a_bad_name_or_lease_of_one_is_the_error_of_all() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let long = "x".repeat(513);
    for (bad, good) in [(&*long, "z"), ("", "a"), (&*long, "a")] {
        let both = multi(&client, &[good, bad]);
        let error = both.lock().await.expect_err("a bad name");
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
        assert_eq!(error.lock(), Some(bad));
    }
    let both = multi(&client, &["a", "b"]);
    for lease in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
        let error = both.lock_with_lease(lease).await.expect_err("a bad lease");
        assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
        let error = both
            .try_lock(Duration::ZERO, lease)
            .await
            .expect_err("a bad lease");
        assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    }
    let guard = both.lock().await.unwrap();
    let error = guard
        .extend(Duration::from_secs(1))
        .await
        .expect_err("watched");
    assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    let error = guard
        .reenter(Duration::ZERO)
        .await
        .expect_err("a bad lease");
    assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    assert_eq!(guard.hold_count(), 1, "nothing was entered");
    end(guard).await;
    assert!(server.keys().await.is_empty(), "nothing is left of any");
}

#[tokio::test]
async fn a_second_lock_with_a_queue_is_an_error() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let two: [Arc<dyn Lock>; 3] = [
        client.get_fair_lock("one").into(),
        client.get_lock("plain").into(),
        client.get_fair_lock("two").into(),
    ];
    let error = problem(MultiLock::new(two));
    assert!(
        matches!(&error, SetError::Queues { first, second, .. } if &**first == "one" && &**second == "two"),
        "{error}"
    );
    // Within another set, too.
    let inner = mixed([
        client.get_fair_lock("one").into(),
        client.get_lock("plain").into(),
    ]);
    assert!(inner.info().has_queue());
    let two: [Arc<dyn Lock>; 2] = [inner.into(), client.get_fair_lock("two").into()];
    assert!(matches!(
        problem(MultiLock::new(two)),
        SetError::Queues { .. }
    ));
}
