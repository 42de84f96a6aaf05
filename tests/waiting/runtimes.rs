//! One client on several runtimes.

use std::sync::mpsc;

use tokio::runtime::{Builder, Runtime};
use watchlock::Client;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, soon, subscribed, without_polls};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn use_it(client: &Client, name: &str) {
    let guard = soon(client.get_lock(name).lock()).await.unwrap();
    let level = guard.reenter().await.unwrap();
    assert!(client.get_lock(name).is_locked().await.unwrap());
    level.unlock().await.unwrap();
    guard.unlock().await.unwrap();
}

#[test]
fn a_client_works_on_a_second_runtime_while_the_first_is_idle_or_gone() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(connect(&server));
    second.block_on(use_it(&client, "idle"));
    first.block_on(use_it(&client, "idle"));
    drop(first);
    second.block_on(use_it(&client, "idle"));
    let third = runtime();
    drop(second);
    third.block_on(use_it(&client, "idle"));
}

#[test]
fn a_client_works_on_a_second_runtime_while_the_first_is_blocked() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(connect(&server));
    let (free, freed) = mpsc::channel::<()>();
    let blocked = client.clone();
    let thread = std::thread::spawn(move || {
        first.block_on(async {
            let guard = blocked.get_lock("mine").lock().await.unwrap();
            // As user code does that should not.
            let _ = freed.recv_timeout(LONG);
            guard.unlock().await.unwrap();
        });
    });
    second.block_on(use_it(&client, "blocked"));
    free.send(()).unwrap();
    second.block_on(use_it(&client, "mine"));
    thread.join().unwrap();
}

#[test]
fn a_waiter_is_served_by_a_release_on_another_runtime() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(async { without_polls(&server).connect().await.unwrap() });
    let guard = first.block_on(client.get_lock("both").lock()).unwrap();
    let waiting = client.clone();
    let thread = std::thread::spawn(move || {
        second.block_on(use_it(&waiting, "both"));
    });
    first.block_on(async {
        subscribed(&server, "both").await;
        guard.unlock().await.unwrap();
    });
    thread.join().unwrap();
    first.block_on(clean(&server));
}

#[test]
fn without_a_runtime_an_acquire_says_so() {
    let server = RedisServer::start();
    let runtime = runtime();
    let client = runtime.block_on(connect(&server));
    let outside = futures_util::FutureExt::now_or_never(client.get_lock("outside").lock());
    let error = outside.expect("at once").unwrap_err();
    assert!(matches!(error, watchlock::Error::Config(_)), "{error}");
    runtime.block_on(clean(&server));
}
