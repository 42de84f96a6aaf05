//! Elections: whatever happens to a leader, never two terms are valid, and the next one follows.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::future::join;
use parking_lot::Mutex;
use tokio::sync::mpsc::unbounded_channel;
use watchlock::{Backoff, Client, ClientBuilder, Error, FencedGuard};
use watchlock_support::process::{freeze, kill, resume};
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::{eventually, now_ns};
use watchlock_test::Redis;

use crate::common::{LONG, SHORT, is_free, ms, soon};

/// Where a candidate that is a process of its own finds Redis.
const URL: &str = "WATCHLOCK_ELECTION_URL";

fn eager(builder: ClientBuilder) -> ClientBuilder {
    builder.backoff(Backoff::new().base(ms(10)).cap(ms(100)))
}

/// At some time between `from` and `until` a candidate saw that it led, with this token.
#[derive(Debug, Clone, Copy)]
struct Seen {
    token: u64,
    from: u64,
    until: u64,
}

#[tokio::test]
#[ignore = "the others run it, as a process of its own"]
async fn candidate() {
    let url = std::env::var(URL).expect("an address");
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]); // its owner is gone
        std::process::exit(0);
    });
    let builder = eager(Client::builder(&url)).watchdog_lease(SHORT);
    let election = builder.connect().await.unwrap().get_election("leader");
    let body = async |term: &FencedGuard| {
        loop {
            let (from, leads, until) = (now_ns(), election.is_leader(), now_ns());
            if leads {
                println!("\nseen {} {from} {until}", term.token());
            }
            tokio::time::sleep(ms(2)).await;
        }
    };
    election.lead(body).await.unwrap();
}

/// A candidate in a process of its own, behind a proxy.
struct Candidate {
    process: Child,
    proxy: Proxy,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Candidate {
    fn start(server: &RedisServer) -> Self {
        let proxy = Proxy::to(server);
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "election::candidate", "--ignored", "--nocapture"])
            .env(URL, proxy.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let seen = Arc::new(Mutex::default());
        let (output, list) = (process.stdout.take().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || read(output, &list));
        Self {
            process,
            proxy,
            seen,
        }
    }

    fn newest(&self) -> u64 {
        self.seen.lock().last().map_or(0, |seen| seen.token)
    }
}

fn read(output: ChildStdout, list: &Mutex<Vec<Seen>>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        if words.next() == Some("seen") {
            let mut number = || words.next().and_then(|word| word.parse().ok());
            // A process that is killed may leave half a line.
            if let (Some(token), Some(from), Some(until)) = (number(), number(), number()) {
                list.lock().push(Seen { token, from, until });
            }
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Three candidates; twice in a row the leader has `trouble`, which `ends` once another one leads.
async fn the_next_one_follows(trouble: fn(&Candidate), ends: fn(&Candidate)) {
    let server = RedisServer::start();
    let candidates = [0, 1, 2].map(|_| Candidate::start(&server));
    for _ in 0..2 {
        let newest = || candidates.iter().max_by_key(|one| one.newest()).unwrap();
        eventually("one leads", LONG, async || newest().newest() > 0).await;
        let (leader, token) = (newest(), newest().newest());
        trouble(leader);
        eventually("another one leads", LONG, async || {
            newest().newest() > token && newest().process.id() != leader.process.id()
        })
        .await;
        ends(leader);
    }
    tokio::time::sleep(SHORT / 2).await; // in which the one before would still take itself for the leader
    let mut all: Vec<_> = candidates
        .iter()
        .flat_map(|one| one.seen.lock().clone())
        .collect();
    all.sort_by_key(|seen| seen.until);
    for (index, seen) in all.iter().enumerate() {
        let later = all[index..].iter().find(|later| later.token < seen.token);
        if let Some(older) = later.filter(|older| older.from > seen.until) {
            panic!("{older:?} after {seen:?}");
        }
    }
}

#[tokio::test]
async fn a_leader_that_is_killed_is_followed() {
    the_next_one_follows(|leader| kill(leader.process.id()), |_| ()).await;
}

#[tokio::test]
async fn a_leader_that_stands_still_is_followed_and_leads_no_more() {
    let stands_still = |leader: &Candidate| freeze(leader.process.id());
    the_next_one_follows(stands_still, |leader| resume(leader.process.id())).await;
}

#[tokio::test]
async fn a_leader_that_is_cut_off_is_followed_and_leads_no_more() {
    let cut = |leader: &Candidate| leader.proxy.black_hole(Direction::Both);
    the_next_one_follows(cut, |leader| leader.proxy.heal()).await;
}

/// Notes at its drop whether the candidate leads.
struct Dropped<'a>(&'a watchlock::Election, &'a AtomicU32);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        assert!(!self.0.is_leader());
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_lost_term_drops_its_body_before_the_next_campaign() {
    let redis = Redis::start();
    redis.stop_clock();
    let client = eager(redis.client_builder()).connect().await.unwrap();
    let election = client.get_election("leader");
    let (dropped, mut tokens) = (AtomicU32::new(0), Vec::new());
    let lose = || {
        redis.lose_data();
        redis.advance(Duration::from_secs(11));
    };
    let led = election.lead(async |term: &FencedGuard| {
        assert!(election.is_leader() && term.is_valid());
        tokens.push(term.token());
        if tokens.len() == 3 {
            return "the third";
        }
        let _dropped = Dropped(&election, &dropped);
        lose();
        std::future::pending().await
    });
    let pauses = async {
        loop {
            tokio::time::sleep(ms(5)).await;
            redis.advance(ms(1));
        }
    };
    let led = tokio::select! {
        led = soon(led) => led,
        () = pauses => unreachable!(),
    };
    assert_eq!(led.unwrap(), "the third");
    assert!(!election.is_leader());
    assert_eq!(dropped.into_inner(), 2);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    eventually("it resigned", LONG, async || {
        is_free(&client, "leader").await
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_is_dropped_or_panics_resigns() {
    let redis = Redis::start();
    let client = redis.client().await.unwrap();
    let election = client.get_election("leader");
    for panics in [false, true] {
        let candidate = election.clone();
        let leading = tokio::spawn(async move {
            let body = async move |_: &_| {
                assert!(!panics, "on purpose");
                std::future::pending::<()>().await;
            };
            candidate.lead(body).await
        });
        if !panics {
            eventually("it leads", LONG, async || election.is_leader()).await;
            assert!(!is_free(&client, "leader").await);
            leading.abort();
        }
        assert_eq!(leading.await.unwrap_err().is_panic(), panics);
        assert!(!election.is_leader());
        eventually("it resigned", LONG, async || {
            is_free(&client, "leader").await
        })
        .await;
    }
}

#[tokio::test]
async fn everybody_sees_who_leads() {
    let redis = Redis::start();
    let (one, two) = (redis.client().await.unwrap(), redis.client().await.unwrap());
    let (election, other) = (one.get_election("leader"), two.get_election("leader"));
    assert_eq!(other.leader().await.unwrap(), None);
    let seen = election.lead(async |_| other.leader().await.unwrap());
    assert_eq!(seen.await.unwrap().unwrap().client, Some(one.id()));
    assert_eq!(other.leader().await.unwrap(), None);
}

#[tokio::test]
async fn candidates_of_one_scope_exclude_each_other() {
    let redis = Redis::start();
    let client = redis.client().await.unwrap();
    let (election, leaders) = (client.get_election("leader"), AtomicU32::new(0));
    let lead = || {
        let candidate = election.clone();
        let leaders = &leaders;
        async move {
            let body = async |_: &_| {
                assert_eq!(leaders.fetch_add(1, Ordering::Relaxed), 0);
                tokio::time::sleep(ms(20)).await;
                leaders.fetch_sub(1, Ordering::Relaxed);
            };
            candidate.lead(body).await.unwrap();
        }
    };
    soon(client.scope(join(lead(), lead()))).await;
}

#[tokio::test]
async fn it_waits_for_a_redis_that_is_away_and_for_nothing_that_waiting_does_not_cure() {
    let redis = Redis::start();
    let builder = eager(redis.client_builder()).unavailable_after(ms(50));
    let client = builder.command_timeout(ms(50)).connect().await.unwrap();
    let election = client.get_election("leader");
    redis.stop();
    let leading = tokio::spawn(async move { election.lead(async |_| 7).await });
    tokio::time::sleep(ms(200)).await; // longer than a lock() would wait
    assert!(!leading.is_finished());
    redis.restart();
    assert_eq!(soon(leading).await.unwrap().unwrap(), 7);

    // With time-outs for a busy machine.
    let client = eager(redis.client_builder()).connect().await.unwrap();
    let lead = async |name: &str| client.get_election(name).lead(async |_| ()).await;
    assert!(matches!(lead("").await, Err(Error::InvalidName { .. })));
    let other = client.get_simple_lock("other").lock().await.unwrap();
    assert!(matches!(lead("other").await, Err(Error::WrongType { .. })));
    drop(other);
    let (leading, election) = (client.get_election("closed"), client.get_election("closed"));
    let leading = tokio::spawn(async move {
        let body = async |_: &_| std::future::pending::<()>().await;
        leading.lead(body).await
    });
    eventually("somebody leads", LONG, async || {
        !is_free(&client, "closed").await
    })
    .await;
    assert!(!election.is_leader(), "another candidate");
    client.shutdown(ms(10)).await;
    assert!(matches!(soon(leading).await.unwrap(), Err(Error::Closed)));
}

/// Does its work where it is woken, as the waker of an executor does that polls its tasks there.
struct Does<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn does(work: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(work)))
}

/// A loss wakes whoever waits for it. The first to see it may be somebody who asks whether the candidate leads.
#[tokio::test]
async fn what_a_loss_wakes_may_ask_whether_the_candidate_leads() {
    let redis = Redis::start();
    redis.stop_clock();
    let client = redis.client().await.unwrap();
    let election = client.get_election("leader");
    let (candidate, (begun, mut begins)) = (election.clone(), unbounded_channel());
    let leading = tokio::spawn(async move {
        let body = async move |term: &FencedGuard| {
            begun.send(term.hold()).unwrap();
            std::future::pending::<()>().await;
        };
        candidate.lead(body).await
    });
    let term = soon(begins.recv()).await.unwrap();
    let lock = client.get_lock("another");
    let (another, short) = (lock.lock_with_lease(ms(1000)).await.unwrap(), ms(1000));

    // The background thread learns of the loss of the other lock, and stands still.
    let (stands, is_standing) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let stops = does(move || {
        stands.send(()).unwrap();
        let _ = may_go_on.lock().recv();
    });
    let mut other_lost = Box::pin(another.lost());
    assert!(
        other_lost
            .as_mut()
            .poll(&mut Context::from_waker(&stops))
            .is_pending()
    );
    redis.advance(short);
    is_standing.recv_timeout(LONG).unwrap();

    let (asked, leads) = (Arc::new(AtomicBool::new(false)), election.clone());
    let asks = does({
        let asked = Arc::clone(&asked);
        move || {
            assert!(!leads.is_leader());
            asked.store(true, Ordering::Relaxed);
        }
    });
    let mut term_lost = Box::pin(term.lost());
    assert!(
        term_lost
            .as_mut()
            .poll(&mut Context::from_waker(&asks))
            .is_pending()
    );
    redis.advance(LONG * 10);
    let (answer, answers) = mpsc::channel();
    std::thread::spawn(move || answer.send(election.is_leader()));
    let leads = answers.recv_timeout(LONG);
    goes_on.send(()).unwrap();
    assert_eq!(leads, Ok(false), "it answers");
    assert!(
        asked.load(Ordering::Relaxed),
        "the loss was first seen there"
    );
    leading.abort();
}
