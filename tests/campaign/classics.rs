//! The ways to lock that the literature warns of: the checker finds the violation of each in the situation in which it
//! fails, and none in the right one. `docs/classic-mistakes.md` describes each.

use std::time::Duration;

use futures_util::future::join_all;
use watchlock_support::checker::{Breach, Invariant, Report, Settings, check};
use watchlock_support::controls::classic::{StringLock, Way};
use watchlock_support::history::{Record, Recorder};
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::{eventually, now_ns};

const NAME: &str = "classic";
const SECOND: Duration = Duration::from_secs(1);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

struct Stage {
    server: RedisServer,
    proxy: Proxy,
    recorder: Recorder,
    way: Way,
}

impl Stage {
    async fn new(way: Way) -> Self {
        let server = RedisServer::start();
        server.ready().await;
        Self {
            proxy: Proxy::to(&server),
            server,
            recorder: Recorder::new(),
            way,
        }
    }

    async fn client(&self, number: u32, url: &str) -> StringLock {
        let client = StringLock::connect(url, number, self.way, &self.recorder).await;
        client.expect("the server is there")
    }

    async fn clients<const N: usize>(&self) -> [StringLock; N] {
        let url = self.server.url();
        let numbers = 2..2 + u32::try_from(N).expect("a few");
        let clients = join_all(numbers.map(|number| self.client(number, &url))).await;
        clients.try_into().expect("as many as asked for")
    }

    async fn look(&self) {
        let ttl_ms = self.server.pttl(NAME).await;
        let (t, name) = (now_ns(), NAME.to_owned());
        self.recorder.push(Record::Sample { t, name, ttl_ms });
    }

    fn report(&self) -> Report {
        let settings = Settings {
            command_timeout: ms(500),
            backoff_cap: ms(200),
            clean_wake: ms(100),
            scheduling: ms(150),
            recovery: ms(300),
            cleanup: ms(100),
            ..Settings::default()
        };
        check(&self.recorder.take(), &settings)
    }
}

/// A client dies as soon as it has the lock.
async fn crash(way: Way) -> Report {
    let stage = Stage::new(way).await;
    let dies = stage.client(1, &stage.proxy.url()).await;
    let before = stage.proxy.inject(Fault::ResetBefore);
    before.on(Match::command("PEXPIRE")).arm();
    let after = stage.proxy.inject(Fault::ResetAfter);
    after.on(Match::command("SET")).arm();
    let died = dies.lock(NAME, Duration::ZERO, ms(300)).await;
    assert!(died.is_err(), "its connection breaks");
    stage.recorder.push(Record::Killed {
        t: now_ns(),
        client: 1,
    });
    stage.look().await;
    let [next] = stage.clients().await;
    if let Some(hold) = next.lock(NAME, 2 * SECOND, ms(300)).await.expect("a link") {
        hold.unlock().await.expect("a link");
    }
    stage.report()
}

/// One clock is ahead by more than the lease.
async fn clock(way: Way) -> Report {
    let stage = Stage::new(way).await;
    let [holder, mut ahead] = stage.clients().await;
    ahead.clock_ahead = 10 * SECOND;
    let held = holder.lock(NAME, SECOND, 5 * SECOND).await.expect("a link");
    let second = ahead.lock(NAME, ms(200), 5 * SECOND).await.expect("a link");
    for hold in [second, held].into_iter().flatten() {
        tokio::time::sleep(ms(300)).await;
        hold.unlock().await.expect("a link");
    }
    stage.report()
}

/// Two clients find that a dead holder's lease is over; the one that comes too late asks for a short time.
async fn loser(way: Way) -> Report {
    let stage = Stage::new(way).await;
    let [dead, winner, third] = stage.clients().await;
    dead.lock(NAME, SECOND, ms(100)).await.expect("a link");
    tokio::time::sleep(ms(150)).await;
    let loser = stage.client(1, &stage.proxy.url()).await;
    let late = stage.proxy.inject(Fault::DelayRequest(ms(200)));
    let aim = late.on(Match::command("GETSET")).arm();
    let losing = async {
        loser
            .lock(NAME, Duration::ZERO, ms(400))
            .await
            .expect("a link")
    };
    let winning = async {
        if way == Way::TimestampByGetset {
            let held_back = async || aim.fired() > 0;
            eventually("the loser's GETSET is on its way", SECOND, held_back).await;
        }
        winner
            .lock(NAME, 2 * SECOND, 5 * SECOND)
            .await
            .expect("a link")
    };
    let (lost, won) = tokio::join!(losing, winning);
    drop(lost);
    let won = won.expect("the winner has it");
    let third = third.lock(NAME, SECOND, 5 * SECOND).await.expect("a link");
    for hold in [third, Some(won)].into_iter().flatten() {
        tokio::time::sleep(ms(300)).await;
        hold.unlock().await.expect("a link");
    }
    stage.report()
}

/// A holder comes back after its lease, when another one is in, and unlocks; a third one waits.
async fn late_unlock(way: Way) -> Report {
    let stage = Stage::new(way).await;
    let [first, second, third] = stage.clients().await;
    let late = first.lock(NAME, SECOND, ms(200)).await.expect("a link");
    let held = second
        .lock(NAME, 2 * SECOND, 5 * SECOND)
        .await
        .expect("a link");
    let waiting = async {
        if let Some(hold) = third
            .lock(NAME, 2 * SECOND, 5 * SECOND)
            .await
            .expect("a link")
        {
            hold.unlock().await.expect("a link");
        }
    };
    let unlocking = async {
        late.expect("it was free").unlock().await.expect("a link");
        tokio::time::sleep(ms(400)).await;
        held.expect("its lease is over")
            .unlock()
            .await
            .expect("a link");
    };
    tokio::join!(waiting, unlocking);
    stage.report()
}

fn convicted(report: &Report, invariants: &[Invariant]) {
    for invariant in invariants {
        assert!(report.breaks(*invariant), "{invariant} holds:\n{report}");
    }
}

#[tokio::test]
async fn setnx_and_then_expire_leaves_a_lock_for_ever() {
    let report = crash(Way::SetnxThenExpire).await;
    convicted(&report, &[Invariant::I4, Invariant::I5]);
}

#[tokio::test]
async fn a_time_stamp_lets_two_in_when_clocks_differ() {
    convicted(&clock(Way::TimestampByGetset).await, &[Invariant::I1]);
}

#[tokio::test]
async fn the_loser_of_a_getset_shortens_the_winners_time() {
    convicted(&loser(Way::TimestampByGetset).await, &[Invariant::I1]);
}

#[tokio::test]
async fn del_without_looking_at_the_owner_lets_the_next_one_in() {
    let report = late_unlock(Way::DeletesAnybodys).await;
    convicted(&report, &[Invariant::I1]);
    let reported_late = |found: &Breach| *found == Breach::NotNotified;
    assert!(
        report
            .violations
            .iter()
            .any(|found| reported_late(&found.breach))
    );
}

#[tokio::test]
async fn a_string_lock_done_right_passes_all_of_it() {
    let way = Way::Right;
    let (crash, clock) = tokio::join!(crash(way), clock(way));
    let (loser, late) = tokio::join!(loser(way), late_unlock(way));
    for report in [crash, clock, loser, late] {
        assert!(report.violations.is_empty(), "{report}");
    }
}
