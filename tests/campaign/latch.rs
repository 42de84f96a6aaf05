//! A latch under faults: workers whose links break, and which are frozen and killed, count it down and wait for it. Each call
//! counts once at most, and nobody passes before the last; then everybody does. Wrong clients are noticed. `LATCH_SEED`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use watchlock_support::now_ns;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Call, Worker};

const WORKERS: usize = 3;
const COUNTS: usize = 9;
const WAITERS: usize = 3;
const CHANNEL: &str = "redisson_countdownlatch__channel__{start}";
const LONG_MS: u64 = 20_000;
const ROUNDS: usize = 12;

fn start(fields: Value) -> Value {
    let mut request = json!({"name": "start"});
    if let (Value::Object(request), Value::Object(fields)) = (&mut request, fields) {
        request.extend(fields);
    }
    request
}

fn waits(worker: &Worker) -> Call {
    worker.request("latch_await", start(json!({"wait_ms": LONG_MS})))
}

/// What a round found wrong.
#[derive(Debug, PartialEq)]
enum Wrong {
    /// Somebody passed when so many calls had begun.
    PassedAfter(usize),
    /// So many counts were left, of which the calls leave another number.
    Left {
        counts: usize,
        least: usize,
        most: usize,
    },
    DoesNotPass,
}

struct Process {
    worker: Worker,
    proxy: Proxy,
}

async fn process(server: &RedisServer) -> Process {
    let (worker, proxy) = (Worker::rust(), Proxy::to(server));
    worker.open(&proxy.url(), None).await.expect("a client");
    Process { worker, proxy }
}

/// Breaks links, and freezes a process, or kills it, until this is dropped.
async fn faults(processes: &[Process], server: &RedisServer, mut random: fastrand::Rng) {
    let pause = async |ms| tokio::time::sleep(Duration::from_millis(ms)).await;
    loop {
        pause(random.u64(5..60)).await;
        let one = &processes[random.usize(..WORKERS)];
        match random.u32(..6) {
            0 => drop(one.proxy.reset_all()),
            1 => drop(one.proxy.reset_subscribers()),
            2 => {
                one.proxy.black_hole(Direction::Replies);
                pause(random.u64(5..100)).await;
                one.proxy.reset_all();
                one.proxy.heal();
            }
            3 => {
                one.worker.freeze();
                pause(random.u64(5..300)).await;
                one.worker.resume();
            }
            4 => drop(server.try_cmd(&["SCRIPT", "FLUSH"]).await),
            _ => drop(server.try_cmd(&["PUBLISH", CHANNEL, "0"]).await),
        }
    }
}

/// One latch, from its count to its end. `meddle` is done to it meanwhile by a wrong client.
async fn round(
    server: &RedisServer,
    random: &mut fastrand::Rng,
    meddle: &[&str],
) -> Result<(), Wrong> {
    let steady = Worker::rust();
    steady.open(&server.url(), None).await.expect("a client");
    let set = steady
        .call("latch_set", start(json!({"count": COUNTS})))
        .await;
    assert_eq!(set.expect("an answer"), json!({"set": true}));
    let mut processes = Vec::new();
    for _ in 0..WORKERS {
        processes.push(process(server).await);
    }
    let waiters: Vec<_> = processes
        .iter()
        .flat_map(|process| (0..WAITERS).map(|_| waits(&process.worker)))
        .collect();
    let begun = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let calls = (0..COUNTS - 1).map(|number| {
        let (worker, begun) = (&processes[number % WORKERS].worker, Arc::clone(&begun));
        let delay = Duration::from_millis(random.u64(..300));
        async move {
            tokio::time::sleep(delay).await;
            begun.lock().push(now_ns());
            worker
                .request("latch_down", start(json!({})))
                .await
                .outcome
                .is_ok()
        }
    });
    let calls = futures_util::future::join_all(calls);
    let meddling = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if !meddle.is_empty() {
            server.cmd(meddle).await;
        }
        std::future::pending::<()>().await;
    };
    let counted = tokio::select! {
        counted = calls => counted,
        () = faults(&processes, server, random.fork()) => unreachable!("faults have no end"),
        () = meddling => unreachable!("it waits for ever"),
    };
    for Process { worker, proxy } in &processes {
        worker.resume();
        proxy.heal();
        proxy.accept();
    }
    processes[0].worker.kill();
    let certain = counted.iter().filter(|counted| **counted).count();
    let count = steady
        .call("latch_count", start(json!({})))
        .await
        .expect("an answer");
    let counts = usize::try_from(count["count"].as_u64().expect("a number")).expect("a few");
    let (least, most) = (1, COUNTS - certain);
    let calls_left = Wrong::Left {
        counts,
        least,
        most,
    };
    for _ in 0..counts {
        begun.lock().push(now_ns());
        steady
            .call("latch_down", start(json!({})))
            .await
            .expect("an answer");
    }
    let (mut passed, mut sound) = (0, Ok(()));
    for waiter in waiters {
        let answered = waiter.await;
        match answered.outcome {
            Ok(answer) if answer["reached"] == true => {
                passed += 1;
                let before = begun.lock().iter().filter(|t| **t < answered.t_ret).count();
                if before < COUNTS {
                    sound = Err(Wrong::PassedAfter(before));
                }
            }
            Err(error) if error.kind == "dead" => passed += 1,
            _ => {}
        }
    }
    sound?;
    if counts < least || counts > most {
        return Err(calls_left);
    }
    if passed < WORKERS * WAITERS {
        return Err(Wrong::DoesNotPass);
    }
    Ok(())
}

fn random() -> fastrand::Rng {
    let seed = std::env::var("LATCH_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u32(..).into(), |text| text.parse().unwrap());
    println!("LATCH_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_opens_for_all_when_the_last_has_counted() {
    let (server, mut random) = (RedisServer::start(), random());
    for _ in 0..ROUNDS {
        assert_eq!(round(&server, &mut random, &[]).await, Ok(()));
        assert!(!server.exists("start").await);
    }
}

/// A repeat that counts, or one that counts for somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_too_many_is_noticed() {
    let (server, mut random) = (RedisServer::start(), random());
    for _ in 0..10 {
        let round = round(&server, &mut random, &["DECRBY", "start", "3"]).await;
        if matches!(round, Err(Wrong::Left { .. } | Wrong::PassedAfter(_))) {
            return;
        }
    }
    panic!("it was not noticed");
}

/// A `0` with what makes waiters believe it: the latch is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_that_opens_too_early_is_noticed() {
    let (server, mut random) = (RedisServer::start(), random());
    let early = "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], '0')";
    let early = ["EVAL", early, "1", "start", CHANNEL];
    for _ in 0..10 {
        let round = round(&server, &mut random, &early).await;
        server.cmd(&["DEL", "start"]).await;
        if matches!(round, Err(Wrong::PassedAfter(_))) {
            return;
        }
    }
    panic!("it was not noticed");
}
