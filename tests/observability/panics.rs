//! A subscriber that panics, which is the application's own fault, costs the acquire. It must not cost the lock: the
//! watchdog would keep it for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use watchlock::{Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{Text, unheard};
use crate::common::{LONG, clean, connect_short, poll_once, soon, subscribed};

/// Where a subscriber panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Event,
    Record,
    Exit,
    Close,
}

const ALL: [At; 4] = [At::Event, At::Record, At::Exit, At::Close];

/// Panics once, at a place in the span of this name.
#[derive(Clone, Default)]
struct Panics(Arc<Mutex<Option<(At, &'static str)>>>);

impl Panics {
    fn arm(&self, at: At, span: &'static str) {
        *self.0.lock() = Some((at, span));
    }

    fn is_armed(&self) -> bool {
        self.0.lock().is_some()
    }

    fn panic_if(&self, is_meant: impl FnOnce(At, &str) -> bool) {
        let mut armed = self.0.lock();
        if armed.is_some_and(|(at, span)| is_meant(at, span)) {
            *armed = None;
            drop(armed);
            panic!("by intention");
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Panics {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let is_meant = text.0.contains("acquired after waiting");
        self.panic_if(|at, _| at == At::Event && is_meant);
    }

    fn on_record(
        &self,
        span: &tracing::span::Id,
        _: &tracing::span::Record<'_>,
        context: Context<'_, S>,
    ) {
        let span = context.span(span).expect("a span");
        self.panic_if(|at, name| at == At::Record && name == span.name());
        // The acquire is decided.
        span.extensions_mut().replace(Decided);
    }

    fn on_exit(&self, span: &tracing::span::Id, context: Context<'_, S>) {
        let span = context.span(span).expect("a span");
        let is_over = span.name() == "run" || span.extensions().get::<Decided>().is_some();
        self.panic_if(|at, name| at == At::Exit && name == span.name() && is_over);
    }

    fn on_close(&self, span: tracing::span::Id, context: Context<'_, S>) {
        let span = context.span(&span).expect("a span");
        self.panic_if(|at, name| at == At::Close && name == span.name());
    }
}

struct Decided;

fn panicking() -> (Panics, tracing::subscriber::DefaultGuard) {
    let panics = Panics::default();
    let subscriber = tracing_subscriber::registry().with(panics.clone());
    (panics, tracing::subscriber::set_default(subscriber))
}

/// Runs a task that the subscriber ends.
async fn ended<T: 'static>(panics: &Panics, task: impl Future<Output = T> + 'static) {
    let here = tokio::task::LocalSet::new();
    let task = here.run_until(async { soon(tokio::task::spawn_local(task)).await });
    assert!(task.await.is_err_and(|ended| ended.is_panic()));
    assert!(!panics.is_armed());
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_lock_that_was_free() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let (panics, _subscriber) = panicking();
    for at in [At::Record, At::Exit, At::Close] {
        panics.arm(at, "acquire");
        let lock = client.get_lock("free");
        ended(&panics, async move { lock.lock().await }).await;
        clean(&server).await;
        panics.arm(at, "acquire");
        let lock = client.get_read_write_lock("free").read_lock();
        ended(&panics, async move { lock.try_lock(LONG, LONG).await }).await;
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_lock_that_was_waited_for() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let (panics, _subscriber) = panicking();
    for at in ALL {
        for wait in [None, Some(LONG)] {
            let lock = client.get_lock("waited for");
            let guard = lock.lock().await.unwrap();
            let (waiter, armed) = (client.clone(), panics.clone());
            ended(&panics, async move {
                let waiting = async {
                    match wait {
                        None => drop(lock.lock().await),
                        Some(wait) => drop(lock.try_lock(wait, Lease::Watchdog).await),
                    }
                };
                let giving_back = async {
                    let waits = async || waiter.stats().waiters == 1;
                    eventually("it waits", LONG, waits).await;
                    armed.arm(at, "acquire");
                    guard.unlock().await.unwrap();
                };
                tokio::join!(waiting, giving_back)
            })
            .await;
            clean(&server).await;
        }
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_level() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let (panics, _subscriber) = panicking();
    for at in [At::Record, At::Exit, At::Close] {
        let owner = client.new_owner();
        for _ in 0..2 {
            let lock = owner.get_lock("entered");
            let guard = lock.lock().await.unwrap();
            panics.arm(at, "acquire");
            ended(&panics, async move { lock.lock().await }).await;
            eventually("the level is given back", LONG, async || {
                guard.hold_count() == 1
            })
            .await;
            guard.unlock().await.unwrap();
            clean(&server).await;
        }
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_permit() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let semaphore = client.get_semaphore("permits").with_permits(1);
    soon(semaphore.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let (panics, _subscriber) = panicking();
    for at in [At::Record, At::Exit, At::Close] {
        panics.arm(at, "acquire");
        let taken = semaphore.clone();
        ended(&panics, async move { taken.acquire().await }).await;
        eventually("it is free", LONG, async || {
            semaphore.available_permits().await.unwrap() == 1
        })
        .await;
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_lock_that_a_body_returns() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let (panics, _subscriber) = panicking();
    for at in [At::Exit, At::Close] {
        let (lock, inner) = (client.get_lock("outer"), client.get_lock("inner"));
        let armed = panics.clone();
        ended(&panics, async move {
            lock.run(async |_| {
                let guard: LockGuard = inner.lock().await.unwrap();
                armed.arm(at, "run");
                guard
            })
            .await
        })
        .await;
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_lock_of_several() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let (panics, _subscriber) = panicking();
    for at in [At::Record, At::Exit, At::Close] {
        panics.arm(at, "acquire");
        let locks = ["one", "two", "three"].map(|name| client.get_lock(name));
        let all = watchlock::MultiLock::new(locks).unwrap();
        ended(&panics, async move { all.lock().await }).await;
        clean(&server).await;
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_leaves_no_waiter_that_is_gone() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let (client, other) = (connect_short(&server).await, connect_short(&server).await);
    let held = other.get_lock("busy").lock().await.unwrap();
    let (panics, _subscriber) = panicking();
    let lock = client.get_lock("busy");
    let mut waiting = Box::pin(lock.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    subscribed(&server, "busy").await;
    panics.arm(At::Record, "acquire");
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(waiting)));
    assert!(dropped.is_err() && !panics.is_armed());
    eventually("nobody waits", LONG, async || client.stats().waiters == 0).await;
    held.unlock().await.unwrap();
    clean(&server).await;
}
