//! Lanes through the end of runtimes, of the client, and with the application's own code in them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::{Manager, Pool};
use redis::io::AsyncDNSResolver;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, RedisFuture};
use tokio::runtime::{Builder, Runtime};
use watchlock::{Client, ClientBuilder, Clock, ConfigError, Error, Handle, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, ms, poll_once, soon, try_once};
use crate::outside::block_on;
use crate::works;

const REENTER: &str = include_str!("../../lua/lock/reenter.lua");

/// A resolver of the application's that panics on demand.
#[derive(Default)]
struct Shaky {
    panics: AtomicU64,
    panicked: AtomicU64,
}

struct Resolver(Arc<Shaky>);

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let left = self.0.panics.load(Ordering::SeqCst);
            if left > 0 {
                self.0.panics.store(left - 1, Ordering::SeqCst);
                self.0.panicked.fetch_add(1, Ordering::SeqCst);
                panic!("the application's resolver does not work");
            }
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
            Ok(Box::new(std::iter::once(address)) as Box<_>)
        })
    }
}

#[tokio::test]
async fn a_panic_while_connecting_ends_no_lane() {
    let server = RedisServer::start();
    let shaky = Arc::<Shaky>::default();
    let config = AsyncConnectionConfig::new().set_dns_resolver(Resolver(Arc::clone(&shaky)));
    let info = server.url().into_connection_info().unwrap();
    let manager = Manager::new_with_config(info, config).unwrap();
    let pool = Pool::builder(manager).max_size(1).build().unwrap();
    let client = Client::builder(&server.url())
        .pool(pool)
        .watchdog_lease(ms(2_000));
    let client = client.connect().await.unwrap();
    works(&client).await;
    let guard = try_once(&client, "kept").await.unwrap().unwrap();
    for round in 0..2 {
        let before = shaky.panicked.load(Ordering::SeqCst);
        // One for each lane: the callers' and the keeper's.
        shaky.panics.store(2, Ordering::SeqCst);
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        let lock = client.get_lock("x");
        let got = soon(lock.lock()).await;
        got.unwrap_or_else(|error| panic!("round {round}: {error:?}"))
            .unlock()
            .await
            .unwrap();
        eventually("both lanes panicked", LONG, async || {
            shaky.panicked.load(Ordering::SeqCst) >= before + 2
        })
        .await;
        let renewed = server.calls_of("pexpire").await;
        eventually("the keeper renews", LONG, async || {
            server.calls_of("pexpire").await >= renewed + 2
        })
        .await;
    }
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_reentry_that_repeats_opens_no_lane_after_a_shutdown() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let guard = try_once(&client, "held").await.unwrap().unwrap();
    let refused = proxy.inject(Fault::Answer("NOREPLICAS not enough of them".to_owned()));
    let refused = refused.on(Match::script(REENTER)).always().arm();
    let entering = async {
        let error = soon(guard.reenter(Lease::Watchdog))
            .await
            .map(drop)
            .unwrap_err();
        assert!(error.is_lost(), "{error:?}");
    };
    let ending = async {
        eventually("it was refused", LONG, async || refused.fired() > 0).await;
        client.shutdown(Duration::ZERO).await;
    };
    tokio::join!(entering, ending);
    eventually("no connection is left", LONG, async || {
        server.connections().await == 0
    })
    .await;
    assert!(soon(guard.reenter(Lease::Watchdog)).await.is_err());
    assert_eq!(server.connections().await, 0);
}

fn is_no_runtime<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Config(ConfigError::NoRuntime)))
}

#[test]
fn a_runtime_without_timers_or_io_is_none() {
    let server = RedisServer::start();
    let home = Runtime::new().unwrap();
    let client = home.block_on(Client::connect(&server.url())).unwrap();
    let held = home.block_on(try_once(&client, "held")).unwrap().unwrap();
    let bare = Builder::new_current_thread().build().unwrap();
    let no_io = Builder::new_current_thread().enable_time().build().unwrap();
    let no_timers = Builder::new_current_thread().enable_io().build().unwrap();
    for unfit in [bare, no_io, no_timers] {
        let connecting = unfit.block_on(Client::connect(&server.url()));
        assert!(is_no_runtime(&connecting), "{connecting:?}");
        unfit.block_on(async {
            let lock = client.get_lock("x");
            assert!(is_no_runtime(&lock.lock().await));
            assert!(is_no_runtime(&lock.try_lock(LONG, Lease::Watchdog).await));
            assert!(is_no_runtime(&lock.is_locked().await));
            assert!(is_no_runtime(&lock.force_unlock().await));
            assert!(is_no_runtime(&held.reenter(Lease::Watchdog).await));
        });
        // The keeper finishes a release, wherever it comes from.
        let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
        unfit.block_on(guard.unlock()).unwrap();
        let waiting = client.get_lock("held");
        let mut waiting = Box::pin(waiting.try_lock(ms(100), Lease::Watchdog));
        assert!(home.block_on(poll_once(&mut waiting)).is_none());
        assert!(unfit.block_on(waiting).unwrap().is_none());
    }
    home.block_on(held.unlock()).unwrap();
    home.block_on(works(&client));
    home.block_on(clean(&server));
}

/// An application counts what its panic hook hears, or reports it; so a call must not panic inside again and again.
#[test]
fn a_runtime_without_timers_or_io_is_found_out_once() {
    crate::alone::run("lanes::each_unfit_runtime_is_found_out_once", &[]);
}

#[test]
#[ignore = "the panic hook is the whole process's: it runs alone"]
fn each_unfit_runtime_is_found_out_once() {
    static HEARD: AtomicU32 = AtomicU32::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        HEARD.fetch_add(1, Ordering::SeqCst);
        before(panic);
    }));
    let server = RedisServer::start();
    let home = Runtime::new().unwrap();
    let connecting = || home.block_on(Client::connect(&server.url())).unwrap();
    let clients = [connecting(), connecting()];
    let unfit = [
        Builder::new_current_thread().build().unwrap(),
        Builder::new_current_thread().enable_time().build().unwrap(),
        Builder::new_multi_thread().enable_io().build().unwrap(),
    ];
    for (number, unfit) in (1..).zip(&unfit) {
        for _ in 0..20 {
            for client in &clients {
                unfit.block_on(async {
                    let lock = client.get_lock("x");
                    assert!(is_no_runtime(&lock.lock().await));
                    assert!(is_no_runtime(&lock.is_locked().await));
                });
            }
            let connecting = unfit.block_on(Client::connect(&server.url()));
            assert!(is_no_runtime(&connecting), "{connecting:?}");
        }
        assert_eq!(HEARD.load(Ordering::SeqCst), number);
    }
    drop((clients, home));
    assert_eq!(HEARD.load(Ordering::SeqCst), 3, "nothing else panics");
}

#[test]
fn a_lane_that_ended_with_its_runtime_is_no_closed_client() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let home = Runtime::new().unwrap();
    let client = home.block_on(Client::connect(&proxy.url())).unwrap();
    let lock = client.get_lock("x");
    let guard = home.block_on(try_once(&client, "held")).unwrap().unwrap();
    // A future is polled on a runtime that ends while it connects.
    proxy.hold(Direction::Both);
    let away = Builder::new_current_thread().enable_all().build().unwrap();
    let mut looking = Box::pin(lock.is_locked());
    let mut entering = Box::pin(guard.reenter(Lease::Watchdog));
    let mut acquiring = Box::pin(lock.lock());
    away.block_on(async {
        assert!(poll_once(&mut looking).await.is_none());
        assert!(poll_once(&mut entering).await.is_none());
        assert!(poll_once(&mut acquiring).await.is_none());
    });
    drop(away);
    proxy.heal();
    assert!(!home.block_on(soon(looking)).unwrap());
    let inner = home.block_on(soon(entering)).unwrap();
    let acquired = home.block_on(soon(acquiring)).unwrap();
    home.block_on(async {
        acquired.unlock().await.unwrap();
        inner.unlock().await.unwrap();
        guard.unlock().await.unwrap();
        clean(&server).await;
    });
}

/// A server that no longer answers, and futures that leave their runtime in the middle of their wait.
#[test]
fn a_future_that_leaves_its_runtime_in_mid_wait_completes() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let home = Runtime::new().unwrap();
    let client = Client::builder(&proxy.url())
        .command_timeout(ms(500))
        .unavailable_after(ms(1_000));
    let client = home.block_on(client.connect()).unwrap();
    let guard = home.block_on(try_once(&client, "held")).unwrap().unwrap();
    let lock = client.get_lock("x");
    let mut looking = Box::pin(lock.is_locked());
    let mut living = Box::pin(lock.remain_time_to_live());
    let mut forcing = Box::pin(lock.force_unlock());
    let mut entering = Box::pin(guard.reenter(Lease::Watchdog));
    proxy.hold(Direction::Replies);
    home.block_on(async {
        assert!(poll_once(&mut looking).await.is_none());
        assert!(poll_once(&mut living).await.is_none());
        assert!(poll_once(&mut forcing).await.is_none());
        assert!(poll_once(&mut entering).await.is_none());
    });
    // The first tries fail because they have no connection; what follows is polled without a runtime.
    proxy.reset_all();
    let outcomes = [
        block_on(looking).map(drop),
        block_on(living).map(drop),
        block_on(forcing).map(drop),
        block_on(entering).map(drop),
    ];
    for (index, outcome) in outcomes.iter().enumerate() {
        let typed = matches!(
            outcome,
            Ok(()) | Err(Error::Unavailable { .. } | Error::Config(ConfigError::NoRuntime))
        );
        assert!(typed, "{index}: {outcome:?}");
    }
    proxy.heal();
    // A forced release sends its command after its question; that is polled outside, too.
    let mut forcing = Box::pin(lock.force_unlock());
    assert!(home.block_on(poll_once(&mut forcing)).is_none());
    let forced = block_on(forcing);
    assert!(
        matches!(
            forced,
            Ok(false) | Err(Error::Config(ConfigError::NoRuntime))
        ),
        "{forced:?}"
    );
    drop(guard);
    home.block_on(clean(&server));
}

/// The caller that queues the last command of a batch sends it: the connection's own task cannot run here.
#[tokio::test]
async fn a_batch_of_commands_waits_for_no_other_task() {
    const TASKS: usize = 8;
    let server = RedisServer::start();
    // The keeper should not take over what has no answer yet.
    let builder = Client::builder(&server.url()).command_timeout(LONG);
    let client = builder.connect().await.unwrap();
    let warm = client.get_lock("warm").lock().await.unwrap();
    warm.unlock().await.unwrap();
    let names: Vec<_> = (0..TASKS).map(|number| format!("task:{number}")).collect();
    let url = server.url();
    let mut holders = tokio::task::JoinSet::new();
    for name in &names {
        let lock = client.get_lock(name);
        holders.spawn(async move { lock.lock().await.unwrap() });
    }
    // After these tasks, and before the connection's: nothing else runs on this thread meanwhile.
    let blocking = tokio::spawn(async move {
        let end = std::time::Instant::now() + LONG / 2;
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut question = redis::cmd("EXISTS");
        question.arg(&names);
        loop {
            let there: usize = question.query(&mut connection).unwrap();
            if there == TASKS || std::time::Instant::now() > end {
                return there;
            }
        }
    });
    assert_eq!(blocking.await.unwrap(), TASKS);
    drop(holders.join_all().await);
}

/// How many `PING`s a crowd sends after a quiet spell. It holds nothing, so the keeper sends none.
async fn pings_of_a_crowd(server: &RedisServer, builder: ClientBuilder) -> u64 {
    let (clock, ahead) = Clock::driven();
    let client = builder.clock(clock).connect().await.unwrap();
    let locks: Vec<_> = (0..100)
        .map(|number| client.get_lock(format!("knock:{number}")))
        .collect();
    assert!(!locks[0].is_locked().await.unwrap());
    // The quiet spell.
    ahead.advance(ms(1_200));
    server.reset_calls().await;
    let asked = futures_util::future::join_all(locks.iter().map(Handle::is_locked));
    assert!(asked.await.into_iter().all(|locked| !locked.unwrap()));
    server.calls_of("ping").await
}

#[tokio::test]
async fn after_a_quiet_spell_a_connection_is_known_to_be_whole() {
    let server = RedisServer::start();
    let pings = pings_of_a_crowd(&server, Client::builder(&server.url())).await;
    assert_eq!(pings, 0);
}

/// Whether redis-rs' own connection was cut is found out by a `PING` without a reply. One serves all commands that come
/// at the same time.
#[tokio::test]
async fn after_a_quiet_spell_one_knock_serves_all_commands() {
    let server = RedisServer::start();
    let given = redis::Client::open(server.url()).unwrap();
    let pings = pings_of_a_crowd(&server, Client::builder_from(&given)).await;
    assert!((1..10).contains(&pings), "{pings}");
}

/// When answers come late, the client has fewer commands under way. Futures that nobody polls keep none of these places.
#[tokio::test]
async fn answers_that_nobody_looks_at_keep_no_command_from_a_server_that_was_slow() {
    const WAITING: usize = 380;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::connect(&proxy.url()).await.unwrap();
    let lock = client.get_lock("x");
    // The most that there can be under way.
    for _ in 0..800 {
        assert!(!lock.is_locked().await.unwrap());
    }
    let mut left: Vec<_> = (0..WAITING).map(|_| Box::pin(lock.is_locked())).collect();
    for future in &mut left {
        assert!(poll_once(future).await.is_none());
        // One task may not send them all in one go.
        tokio::task::yield_now().await;
    }
    // Its answer comes behind theirs.
    assert!(!lock.is_locked().await.unwrap());
    let asked = |count: usize| (0..count).map(|_| lock.is_locked());
    proxy.latency(ms(400));
    for answer in futures_util::future::join_all(asked(400)).await {
        assert!(!answer.unwrap());
    }
    proxy.latency(Duration::ZERO);
    let guard = soon(try_once(&client, "x")).await.unwrap();
    guard.expect("it is free").unlock().await.unwrap();
    drop(left);
}
