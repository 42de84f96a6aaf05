//! The checker must catch each of fourteen deliberately wrong clients, each under the fault that brings its mistake
//! out, and must pass a correct client under the same fault.

use std::time::Duration;

use watchlock_support::campaign::{Campaign, Kind};
use watchlock_support::checker::{Invariant, Report, Settings, check};
use watchlock_support::controls::{
    BACKOFF_CAP, COMMAND_TIMEOUT, Flaw, Plain, PlainHold, WATCHDOG_LEASE,
};
use watchlock_support::history::{LockKind, Record, Recorder, Scope};
use watchlock_support::proxy::{Aim, Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::{eventually, now_ns};

const NAME: &str = "controlled";
const LONG: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A server, a client behind a proxy that injects faults, and two clients without faults.
struct Stage {
    server: RedisServer,
    proxy: Proxy,
    recorder: Recorder,
    harmed: Plain,
    second: Plain,
    third: Plain,
}

impl Stage {
    async fn new(flaw: Option<Flaw>) -> Self {
        let server = RedisServer::start();
        server.ready().await;
        let proxy = Proxy::to(&server);
        let recorder = Recorder::new();
        Self {
            harmed: Plain::new(&proxy.url(), 1, flaw, &recorder),
            second: Plain::new(&server.url(), 2, flaw, &recorder),
            third: Plain::new(&server.url(), 3, flaw, &recorder),
            server,
            proxy,
            recorder,
        }
    }

    fn fault(&self, from: u64, kind: &str) {
        self.recorder.push(Record::Fault {
            from,
            until: now_ns(),
            kind: kind.to_owned(),
            scope: Scope::Client(1),
        });
    }

    async fn fired(aim: &Aim) {
        eventually("the fault is injected", 5 * SECOND, async || {
            aim.fired() > 0
        })
        .await;
    }

    /// Waits until nothing is left in Redis, or records what is left, and checks the history.
    async fn report(&self) -> Report {
        self.report_within(SECOND).await
    }

    /// The same, for what would end by itself soon.
    async fn report_within(&self, patience: Duration) -> Report {
        let patience = tokio::time::Instant::now() + patience;
        let mut left = self.left().await;
        while !left.is_empty() && tokio::time::Instant::now() < patience {
            tokio::time::sleep(ms(5)).await;
            left = self.left().await;
        }
        for what in left {
            let t = now_ns();
            self.recorder.push(Record::Leftover { t, what });
        }
        let settings = Settings {
            watchdog_lease: WATCHDOG_LEASE,
            command_timeout: COMMAND_TIMEOUT,
            backoff_cap: BACKOFF_CAP,
            clean_wake: ms(100),
            scheduling: ms(150),
            recovery: ms(300),
            ..Settings::default()
        };
        check(&self.recorder.take(), &settings)
    }

    async fn left(&self) -> Vec<String> {
        let mut left = self.server.keys().await;
        left.extend(self.server.channels().await);
        left
    }
}

async fn got(hold: impl Future<Output = Option<PlainHold>>) -> PlainHold {
    hold.await.expect("the lock is acquired within the wait")
}

/// A lock changes hands when its lease ends, and the former holder unlocks; a third client waits.
async fn late_unlock(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let mut first = got(stage.harmed.lock(NAME, SECOND, Some(ms(200)))).await;
    let mut second = got(stage.second.lock(NAME, 5 * SECOND, Some(LONG))).await;
    let waiting = async {
        let mut third = got(stage.third.lock(NAME, 5 * SECOND, Some(LONG))).await;
        third.unlock().await;
    };
    let unlocking = async {
        let channel = format!("redisson_lock__channel:{{{NAME}}}");
        let waits = async || stage.server.subscribers(&channel).await > 0;
        eventually("the third waits", 5 * SECOND, waits).await;
        first.unlock().await;
        tokio::time::sleep(ms(300)).await;
        second.unlock().await;
    };
    tokio::join!(waiting, unlocking);
    stage.report().await
}

/// The reply of a re-entry is lost, and the re-entry is repeated.
async fn lost_reply(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let mut hold = got(stage.harmed.lock(NAME, SECOND, None)).await;
    let from = now_ns();
    let reset = stage.proxy.inject(Fault::ResetAfter);
    let aim = reset.on(Match::arg(NAME)).arm();
    hold.reenter().await;
    assert_eq!(aim.fired(), 1);
    stage.fault(from, "reset_after");
    hold.unlock().await;
    hold.unlock().await;
    drop(hold);
    stage.report().await
}

/// A caller goes away after its acquire was sent.
async fn cancelled(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let from = now_ns();
    let delay = stage.proxy.inject(Fault::DelayReply(ms(100)));
    let aim = delay.on(Match::arg(NAME)).arm();
    tokio::select! {
        _ = stage.harmed.lock(NAME, SECOND, Some(LONG)) => panic!("the reply is held back"),
        () = Stage::fired(&aim) => {}
    }
    stage.fault(from, "delay_reply");
    stage.report().await
}

/// A holder is cut off for longer than its lease.
async fn cut_off(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let mut first = got(stage.harmed.lock(NAME, SECOND, None)).await;
    let from = now_ns();
    stage.proxy.black_hole(Direction::Both);
    let mut second = got(stage.second.lock(NAME, 5 * SECOND, Some(LONG))).await;
    tokio::time::sleep(ms(200)).await;
    second.unlock().await;
    stage.proxy.heal();
    stage.proxy.reset_all();
    first.unlock().await;
    stage.fault(from, "black_hole");
    stage.report().await
}

/// A guard is dropped.
async fn dropped(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    drop(got(stage.harmed.lock(NAME, SECOND, Some(LONG))).await);
    stage.report().await
}

/// The scenes of a campaign, played by workers, without its nemesis.
async fn scenes(flaw: Option<Flaw>) -> Report {
    let mut campaign = Campaign::new(u64::from(fastrand::u32(..)));
    campaign.time = 4 * SECOND;
    campaign.workers = vec![Kind::Plain(flaw); 3];
    (campaign.owners, campaign.faults) = (0, false);
    campaign.run().await.report
}

/// A fenced lock is taken again after its first lease.
async fn tokens(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    for client in [&stage.harmed, &stage.second] {
        let held = client.lock_as(LockKind::Fenced, NAME, SECOND, Some(ms(100)));
        got(held).await.unlock().await;
        tokio::time::sleep(ms(150)).await;
    }
    let token = format!("redisson_lock_token:{{{NAME}}}");
    stage.server.cmd(&["DEL", &token]).await;
    stage.report().await
}

/// A reader comes while somebody writes.
async fn beside_writer(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let writing = stage
        .second
        .lock_as(LockKind::Write, NAME, SECOND, Some(LONG));
    let mut writer = got(writing).await;
    let reading = stage
        .harmed
        .lock_as(LockKind::Read, NAME, ms(300), Some(LONG));
    if let Some(mut reader) = reading.await {
        tokio::time::sleep(ms(300)).await;
        reader.unlock().await;
    }
    writer.unlock().await;
    stage.report().await
}

/// One of two readers leaves, and a writer comes.
async fn among_readers(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let reading = |client: &Plain| {
        let client = client.clone();
        async move { got(client.lock_as(LockKind::Read, NAME, SECOND, Some(LONG))).await }
    };
    let (mut first, mut second) = (reading(&stage.harmed).await, reading(&stage.second).await);
    first.unlock().await;
    let writing = stage
        .third
        .lock_as(LockKind::Write, NAME, ms(300), Some(LONG));
    if let Some(mut writer) = writing.await {
        tokio::time::sleep(ms(300)).await;
        writer.unlock().await;
    }
    second.unlock().await;
    stage.report().await
}

/// Two wait for a fair lock, one of them for longer than what may pass as a coincidence.
async fn queue(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let fair = |client: &Plain| {
        let client = client.clone();
        async move { got(client.lock_as(LockKind::Fair, NAME, 5 * SECOND, Some(LONG))).await }
    };
    let mut first = fair(&stage.harmed).await;
    let queued = async |count: i64| {
        let queue = format!("redisson_lock_queue:{{{NAME}}}");
        eventually("they wait", 5 * SECOND, async || {
            stage.server.query::<i64>(&["LLEN", &queue]).await == count
        })
        .await;
    };
    let waits = |client: &Plain| {
        let waiting = fair(client);
        async move {
            let mut hold = waiting.await;
            tokio::time::sleep(ms(400)).await;
            hold.unlock().await;
        }
    };
    let later = async {
        queued(1).await;
        tokio::time::sleep(ms(600)).await;
        let third = async {
            queued(2).await;
            first.unlock().await;
        };
        tokio::join!(waits(&stage.third), third);
    };
    tokio::join!(waits(&stage.second), later);
    stage.report().await
}

/// The request of an acquire is late: it runs after the hold that its repeat got was passed on and given back.
async fn late_acquire(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let from = now_ns();
    let delay = stage.proxy.inject(Fault::DelayRequest(ms(1_200)));
    let aim = delay.on(Match::arg(NAME)).arm();
    let first = got(stage.harmed.lock(NAME, 5 * SECOND, None)).await;
    assert_eq!(aim.fired(), 1);
    stage.fault(from, "delay_request");
    let mut second = got(stage.harmed.next_owner(first, SECOND)).await;
    second.unlock().await;
    drop(second);
    // By now it has run, if it ever runs.
    let over = from + u64::try_from(ms(1_400).as_nanos()).unwrap_or(0);
    tokio::time::sleep(Duration::from_nanos(over.saturating_sub(now_ns()))).await;
    stage.report_within(ms(400)).await
}

/// Owners of one client take the lock in turn without a pause, while another client waits.
async fn row(flaw: Option<Flaw>) -> Report {
    let stage = Stage::new(flaw).await;
    let mut hold = got(stage.harmed.lock(NAME, SECOND, None)).await;
    let waiting = async {
        let mut theirs = got(stage.second.lock(NAME, 20 * SECOND, None)).await;
        theirs.unlock().await;
    };
    let row = async {
        let end = tokio::time::Instant::now() + ms(4_500);
        while tokio::time::Instant::now() < end {
            tokio::time::sleep(ms(5)).await;
            hold = got(stage.harmed.next_owner(hold, 10 * SECOND)).await;
        }
        hold.unlock().await;
    };
    tokio::join!(waiting, row);
    stage.report().await
}

async fn play(part: Flaw, flaw: Option<Flaw>) -> Report {
    match part {
        Flaw::UnlockWithoutOwnerCheck => Box::pin(late_unlock(flaw)).await,
        Flaw::IncrementRepeated => Box::pin(lost_reply(flaw)).await,
        Flaw::ValidityFromReply
        | Flaw::NoRetryAfterSubscribing
        | Flaw::RenewalWithoutOwnerCheck => Box::pin(scenes(flaw)).await,
        Flaw::CancelledAcquireLeft => Box::pin(cancelled(flaw)).await,
        Flaw::NoLostSignal => Box::pin(cut_off(flaw)).await,
        Flaw::DroppedGuardForgotten => Box::pin(dropped(flaw)).await,
        Flaw::TokenForgotten => Box::pin(tokens(flaw)).await,
        Flaw::ReaderBesideWriter => Box::pin(beside_writer(flaw)).await,
        Flaw::ReadReleaseForAll => Box::pin(among_readers(flaw)).await,
        Flaw::StackForQueue => Box::pin(queue(flaw)).await,
        Flaw::TaintedPassedOn => Box::pin(late_acquire(flaw)).await,
        Flaw::RowWithoutEnd => Box::pin(row(flaw)).await,
    }
}

/// The wrong client breaks the invariant that its mistake concerns. A stalled machine excuses everything that happens
/// meanwhile, so there are several chances.
async fn catches(flaw: Flaw, invariant: Invariant) {
    let mut report = play(flaw, Some(flaw)).await;
    for _ in 0..3 {
        if report.breaks(invariant) {
            return;
        }
        report = play(flaw, Some(flaw)).await;
    }
    assert!(report.breaks(invariant), "{flaw:?} got away:\n{report}");
}

#[tokio::test]
async fn validity_counted_from_the_reply_is_caught() {
    catches(Flaw::ValidityFromReply, Invariant::I1).await;
}

#[tokio::test]
async fn unlock_without_owner_check_is_caught() {
    catches(Flaw::UnlockWithoutOwnerCheck, Invariant::I1).await;
}

#[tokio::test]
async fn no_retry_after_subscribing_is_caught() {
    catches(Flaw::NoRetryAfterSubscribing, Invariant::I5).await;
}

#[tokio::test]
async fn an_incremented_count_that_is_repeated_is_caught() {
    catches(Flaw::IncrementRepeated, Invariant::I2).await;
}

#[tokio::test]
async fn renewal_without_owner_check_is_caught() {
    catches(Flaw::RenewalWithoutOwnerCheck, Invariant::I8).await;
}

#[tokio::test]
async fn a_cancelled_acquire_without_clean_up_is_caught() {
    catches(Flaw::CancelledAcquireLeft, Invariant::I7).await;
}

#[tokio::test]
async fn a_missing_lost_signal_is_caught() {
    catches(Flaw::NoLostSignal, Invariant::I8).await;
}

#[tokio::test]
async fn a_forgotten_release_of_a_dropped_guard_is_caught() {
    catches(Flaw::DroppedGuardForgotten, Invariant::I7).await;
}

#[tokio::test]
async fn a_fencing_token_that_goes_back_is_caught() {
    catches(Flaw::TokenForgotten, Invariant::Tokens).await;
}

#[tokio::test]
async fn a_reader_let_in_beside_a_writer_is_caught() {
    catches(Flaw::ReaderBesideWriter, Invariant::I1).await;
}

#[tokio::test]
async fn a_read_release_that_throws_out_another_reader_is_caught() {
    catches(Flaw::ReadReleaseForAll, Invariant::I1).await;
}

#[tokio::test]
async fn an_overtaking_in_a_fair_queue_is_caught() {
    catches(Flaw::StackForQueue, Invariant::Order).await;
}

#[tokio::test]
async fn a_hold_that_is_passed_on_though_its_acquire_may_still_run_is_caught() {
    catches(Flaw::TaintedPassedOn, Invariant::I7).await;
}

#[tokio::test]
async fn holds_that_are_passed_on_without_an_end_are_caught() {
    catches(Flaw::RowWithoutEnd, Invariant::Turns).await;
}

#[tokio::test]
async fn the_correct_client_passes_all_of_it() {
    // Three of them share one run of the scenes.
    let again = [
        Flaw::NoRetryAfterSubscribing,
        Flaw::RenewalWithoutOwnerCheck,
    ];
    let parts = Flaw::ALL.into_iter().filter(|part| !again.contains(part));
    // One after the other: starting a server blocks everything else on this thread.
    for part in parts {
        let report = play(part, None).await;
        assert!(report.violations.is_empty(), "{part:?}:\n{report}");
    }
}
