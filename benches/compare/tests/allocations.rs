//! Guard rail: what the caller's thread allocates for an uncontended pair, including redis-rs. The limits are today's
//! numbers; if you raise one, say why. Three of a pair, and two of a level, are there for memory: a command allocates its
//! large future when it is sent, and a gate is boxed. So what waits behind a silent server takes a third less.

use allocation_counter::{AllocationInfo, measure};
use tokio::runtime::{Builder, Runtime};
use watchlock::{Client, Lease, LockGuard, ReentrantLock};
use watchlock_support::server::RedisServer;

const TIMES: u64 = 500;
/// Buffers of the runtime and the connection grow now and then.
const SLACK: u64 = TIMES / 10;

/// Counts what `TIMES` runs of `operation` allocate on a runtime of this thread, once it is warm.
fn counted(runtime: &Runtime, mut operation: impl AsyncFnMut()) -> AllocationInfo {
    let mut run = || {
        runtime.block_on(async {
            for _ in 0..TIMES {
                operation().await;
            }
        });
    };
    run();
    measure(run)
}

fn start() -> (RedisServer, Runtime, ReentrantLock) {
    let server = RedisServer::start();
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let client = runtime.block_on(Client::connect(&server.url()));
    let lock = client.expect("a client").get_lock("allocations");
    (server, runtime, lock)
}

#[track_caller]
fn assert_at_most(what: &str, limit: u64, info: &AllocationInfo) {
    println!(
        "{what}: {} allocations, {} bytes",
        info.count_total / TIMES,
        info.bytes_total / TIMES
    );
    let count = info.count_total;
    assert!(
        count <= limit * TIMES + SLACK,
        "{what}: {count} allocations in {TIMES} runs, {limit} each are allowed"
    );
    let left = info.bytes_current;
    assert!(left < 16 * 1024, "{what}: {left} bytes are left behind");
}

#[test]
fn a_pair_allocates_little_and_leaves_nothing() {
    let (_server, runtime, lock) = start();
    let info = counted(&runtime, async || {
        lock.lock().await.unwrap().unlock().await.unwrap();
    });
    assert_at_most("lock and unlock", 21, &info);
}

#[test]
fn a_level_allocates_little_and_leaves_nothing() {
    let (_server, runtime, lock) = start();
    let guard: LockGuard = runtime.block_on(lock.lock()).unwrap();
    let info = counted(&runtime, async || {
        guard
            .reenter(Lease::Watchdog)
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    });
    assert_at_most("re-entry and its end", 17, &info);
    runtime.block_on(guard.unlock()).unwrap();
}
