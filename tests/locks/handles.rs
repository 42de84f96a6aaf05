//! Handles: one type, with or without an owner in it, which can be kept and sent anywhere; what they and their guards
//! answer.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use watchlock::{Client, Error, Lease, Lock, LockGuard, ReentrantLock, Ttl};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, count, gone, is_free, ms, soon};

/// The fields of a service.
struct Jobs {
    lock: ReentrantLock,
}

impl Jobs {
    async fn run(&self) -> Result<u32, Error> {
        let outer = self.lock.lock().await?;
        let inner = self.lock.lock().await?;
        let levels = self.lock.hold_count();
        inner.unlock().await?;
        outer.unlock().await?;
        Ok(levels)
    }
}

#[tokio::test]
async fn a_handle_of_an_owner_is_kept_in_a_struct_and_sent_to_a_task() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let jobs = Jobs {
        lock: owner.get_lock("kept"),
    };
    assert_eq!(jobs.run().await.unwrap(), 2);
    let guard = owner.get_lock("kept").lock().await.unwrap();
    let elsewhere = tokio::spawn(async move { jobs.run().await });
    assert_eq!(soon(elsewhere).await.unwrap().unwrap(), 3);
    guard.unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn an_owner_is_carried_into_spawned_tasks_by_its_scope() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = client.get_lock("carried");
    let outer = owner.scope(lock.lock()).await.unwrap();
    let nested = {
        let lock = lock.clone();
        async move {
            let inner = lock.lock().await?;
            let levels = (lock.hold_count(), inner.hold_count());
            inner.unlock().await.map(|()| levels)
        }
    };
    let levels = soon(tokio::spawn(owner.scope(nested))).await.unwrap();
    assert_eq!(levels.unwrap(), (2, 2));
    assert_eq!(lock.hold_count(), 0, "outside the scope it has no owner");
    assert!(!is_free(&client, "carried").await);
    outer.unlock().await.unwrap();
}

#[tokio::test]
async fn a_handle_of_an_owner_acts_for_it_in_every_scope() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let (owner, other) = (client.new_owner(), client.new_owner());
    let lock = owner.get_lock("mine");
    let outer = lock.lock().await.unwrap();
    let entered = async {
        assert_eq!(lock.hold_count(), 1);
        assert_eq!(client.get_lock("mine").hold_count(), 0);
        lock.lock().await.unwrap().unlock().await
    };
    soon(other.scope(client.scope(entered))).await.unwrap();
    outer.unlock().await.unwrap();
}

#[tokio::test]
async fn a_scope_ends_without_ending_its_owner() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = client.get_lock("stays");
    let detached = owner.scope(async { lock.lock().await?.detach().map_err(Error::from) });
    detached.await.unwrap();
    assert_eq!(owner.get_lock("stays").hold_count(), 1);
    owner.scope(lock.unlock()).await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn a_handle_that_outlives_its_owner_acts_for_it_but_detaches_nothing() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    let lock = owner.get_lock("orphan");
    let outer = lock.lock().await.unwrap();
    drop(owner);
    let inner = soon(lock.lock()).await.unwrap();
    assert_eq!((lock.hold_count(), count(&server, "orphan").await), (2, 2));
    let refused = inner.detach().unwrap_err();
    assert!(matches!(refused.error(), Error::NotOwner { .. }));
    assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
    refused.into_guard().unlock().await.unwrap();
    outer.unlock().await.unwrap();
    let fresh = lock.lock().await.unwrap();
    assert!(fresh.detach().is_err());
    gone(&server, "orphan").await;
}

#[tokio::test]
async fn a_refused_guard_is_given_back_by_a_question_mark() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("asked");
    let give = async || -> Result<(), Error> { Ok(lock.lock().await?.detach()?) };
    assert!(matches!(give().await, Err(Error::NotOwner { .. })));
    gone(&server, "asked").await;
}

/// A lock around another one, with only the required methods.
struct Wrapped<L>(L);

#[async_trait::async_trait]
impl<L: Lock> Lock for Wrapped<L> {
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
}

#[tokio::test]
async fn a_pointer_to_a_lock_is_a_lock() {
    async fn through(lock: impl Lock) -> Result<(), Error> {
        assert_eq!(lock.name(), "pointed");
        let guard = lock.lock_with_lease(LONG).await?;
        assert!(lock.is_locked().await?);
        let left = lock.remain_time_to_live().await?;
        assert!(matches!(left, Ttl::Left(left) if left <= LONG), "{left:?}");
        assert!(matches!(lock.unlock().await, Err(Error::NotOwner { .. })));
        let busy = lock.try_lock(Duration::ZERO, Lease::Watchdog).await?;
        assert!(busy.is_none() && !lock.is_held() && lock.hold_count() == 0);
        guard.unlock().await?;
        let guard = lock.lock().await?;
        assert!(lock.force_unlock().await? && !lock.force_unlock().await?);
        drop(guard);
        Ok(())
    }
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("pointed");
    through(&lock).await.unwrap();
    through(Box::new(lock.clone())).await.unwrap();
    through(Arc::new(lock.clone())).await.unwrap();
    let any: Box<dyn Lock> = Box::new(lock.clone());
    through(&any).await.unwrap();
    through(any).await.unwrap();
    let any: Arc<dyn Lock> = Arc::new(lock.clone());
    through(any).await.unwrap();
    through(Wrapped(lock)).await.unwrap();

    let owner = client.new_owner();
    let owned: Box<dyn Lock> = Box::new(Wrapped(owner.get_lock("owned")));
    owned.lock().await.unwrap().detach().unwrap();
    assert!(owned.is_held() && owned.hold_count() == 1);
    owned.unlock().await.unwrap();
    assert!(!owned.is_locked().await.unwrap());
}

#[tokio::test]
async fn errors_name_the_lock_what_was_given_and_what_is_allowed() {
    let server = RedisServer::start();
    let builder = Client::builder(&server.url()).key_prefix("app:");
    let client = builder.connect().await.unwrap();
    let lock = client.get_lock("orders");
    let described = |error: Error| (error.lock().map(str::to_owned), error.to_string());
    let text = |text: &str| {
        (
            Some("orders".to_owned()),
            format!("lock \"orders\": {text}"),
        )
    };

    let error = lock.lock_with_lease(ms(9)).await.unwrap_err();
    let bounds = "a lease must be between 10 ms and 365 days, not 9ms";
    assert_eq!(described(error), text(bounds));
    assert_eq!(
        described(lock.unlock().await.unwrap_err()),
        text("it is not held by this owner")
    );
    server.cmd(&["SET", "app:orders", "x"]).await;
    let kind = "the key exists and is not a lock of this kind";
    assert_eq!(described(lock.lock().await.unwrap_err()), text(kind));
    assert_eq!(
        described(lock.force_unlock().await.unwrap_err()),
        text(kind)
    );
    server.cmd(&["DEL", "app:orders"]).await;

    let guard = lock.lock().await.unwrap();
    let watched = "the level is kept alive by the watchdog; \
                   only a fixed lease can be extended or left to expire";
    assert_eq!(
        described(guard.extend(LONG).await.unwrap_err()),
        text(watched)
    );
    let refused = guard.let_expire().unwrap_err();
    assert_eq!(refused.to_string(), text(watched).1);
    let guard = refused.into_guard();
    server.cmd(&["DEL", "app:orders"]).await;
    let gone = "the hold was lost: Redis does not have it any more";
    assert_eq!(described(guard.unlock().await.unwrap_err()), text(gone));

    let empty = client.get_lock("").lock().await.unwrap_err();
    assert_eq!(
        described(empty).1,
        "lock \"\": a lock's name must not be empty"
    );
    let long = client.get_lock(&"x".repeat(600)).lock().await.unwrap_err();
    let shown = format!(
        "lock \"{}\"…: 604 bytes with the key prefix, but at most 512 are allowed",
        "x".repeat(80)
    );
    assert_eq!(described(long), (Some("x".repeat(600)), shown));

    server.kill();
    let away = lock.is_locked().await.unwrap_err();
    assert!(away.source().is_some(), "{away:?}");
    assert_eq!(described(away), text("Redis is not available"));
}
