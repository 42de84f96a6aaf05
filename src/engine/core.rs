//! What callers and the keeper share: settings, gates, the schedule, the keeper's mailbox, and the settling of replies.
//!
//! Nothing here waits. A change at a gate runs under the gate's lock and collects its effects; [`Core::at`] carries
//! them out after it has released the lock. The first to see the reply to an attempt or a last release settles it: its
//! caller, the keeper's job, or the keeper's reaper.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Notify, SetOnce, mpsc, oneshot};
use uuid::Uuid;

use super::gate::answers::{Answered, Grant, ReleaseAnswer, SentAs, Settled};
use super::gate::{Gate, Gates};
use super::hold::schedule::Schedule;
use super::hold::state::{Due, HoldState, Phase};
use super::hold::{Effects, Hold, Rules};
use super::latches::Latches;
use crate::backend::{Backend, CommandResult, Failure, Pending};
use crate::clock::Moment;
use crate::config::Config;
use crate::error::{Error, LostReason};
use crate::host::uuid;
use crate::lease::LeaseMs;
use crate::log::log;
use crate::names::Names;
use crate::report::{LostHold, Report, Stats};
use crate::script::{Call, Reply};

/// The longest hold id: a UUID, a colon and a number.
const HOLD_ID: usize = 36 + 1 + 20;

/// If the keeper has not looked at the clock for so long, the process was stopped, or the machine slept. While commands
/// are in flight it looks four times a second.
const PAUSE: Duration = Duration::from_secs(1);

/// What callers leave to the keeper.
pub(crate) enum Mail {
    /// Run the job of this name: a caller waits, or abandoned its attempt.
    Serve(Arc<Names>),
    /// Run the job of this latch: a caller waits.
    Watch(Arc<Names>),
    /// Complete the last release of this hold.
    Release(Arc<Hold>),
    /// Write the count of this hold, or its downgrade, at that time.
    Write(Arc<Hold>, Moment),
    /// The same, once this write of a count is over, which its caller dropped.
    WriteBehind(Arc<Hold>, Option<u32>, Pending),
    /// Complete the attempt or the release of this hold, which may be overdue.
    Finish(Arc<Hold>),
    /// Clean up after this hold, which is lost already.
    Lost(Arc<Hold>, LostReason),
    /// Write the client's label, as the server can be used.
    ShowLabel,
    /// Complete what is under way, and end.
    Close,
}

/// What callers and the keeper share. Holds no reference that keeps the client alive.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) report: Report,
    pub(crate) client_id: Uuid,
    /// The first half of every hold id.
    pub(crate) client: Box<str>,
    pub(crate) backend: Backend,
    pub(crate) gates: Gates,
    pub(crate) latches: Latches,
    pub(crate) schedule: Schedule,
    pub(crate) watchdog_lease: LeaseMs,
    mailbox: mpsc::UnboundedSender<Mail>,
    /// Wakes the keeper for a look at the schedule.
    pub(crate) look: Notify,
    /// No new holds start.
    closing: SetOnce<()>,
    /// Nothing is kept alive any more: all holds have ended or are lost.
    closed: AtomicBool,
    /// Whether Redis denied a wake-up before.
    pub(super) wake_up_denied: AtomicBool,
    /// A command that scripts need and that the server does not know.
    lacks: OnceLock<&'static str>,
    /// Why `connect` would refuse the server, by the last greeting of a lazy client.
    unfit: RwLock<Option<Error>>,
    numbers: AtomicU64,
    /// When the keeper looked at the clock, in nanoseconds.
    looked_at: AtomicU64,
    /// The end of the last pause of the process, in nanoseconds.
    runs_since: AtomicU64,
}

/// What each call of one write came to, once that has been answered; none for a call that must be sent alone.
pub(crate) type RepliesTogether = oneshot::Receiver<Vec<Option<CommandResult>>>;

impl Core {
    pub(crate) fn new(
        config: Config,
        report: Report,
        backend: Backend,
        mailbox: mpsc::UnboundedSender<Mail>,
    ) -> Self {
        let client_id = uuid();
        Self {
            watchdog_lease: LeaseMs::of(config.watchdog_lease),
            config,
            report,
            client_id,
            client: client_id.to_string().into(),
            backend,
            gates: Gates::new(),
            latches: Latches::default(),
            schedule: Schedule::default(),
            mailbox,
            look: Notify::new(),
            closing: SetOnce::new(),
            closed: AtomicBool::new(false),
            lacks: OnceLock::new(),
            unfit: RwLock::default(),
            wake_up_denied: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            runs_since: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.config.clock.now()
    }

    /// The keeper looks at the clock.
    pub(crate) fn look_at_clock(&self) {
        let now = self.now();
        self.notice_pause(now);
        // Release: a thread that reads this time in `notice_pause` also sees the pause noticed before.
        self.looked_at.store(now.as_nanos(), Ordering::Release);
    }

    /// Notices a pause of the process that ended just now. Any thread may be the first that runs again, so each does this
    /// before a failure counts.
    pub(crate) fn notice_pause(&self, now: Moment) {
        // Acquire: pairs with the store in `look_at_clock`.
        let looked_at = Moment::from_nanos(self.looked_at.load(Ordering::Acquire));
        if looked_at.until(now) >= PAUSE {
            // Relaxed, here and below: the time stands for itself.
            self.runs_since.fetch_max(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Since when the process has been running without a pause. What passed before is not the server's silence.
    pub(crate) fn runs_since(&self) -> Moment {
        Moment::from_nanos(self.runs_since.load(Ordering::Relaxed))
    }

    pub(crate) fn hold_id(&self, number: u64) -> Arc<str> {
        let mut digits = itoa::Buffer::new();
        // On the stack, to save an allocation a hold. It has room for every client id and number.
        let mut text = [0; HOLD_ID];
        let mut end = 0;
        for part in [&*self.client, ":", digits.format(number)] {
            text[end..end + part.len()].copy_from_slice(part.as_bytes());
            end += part.len();
        }
        std::str::from_utf8(&text[..end]).unwrap_or_default().into()
    }

    /// A number that no hold or ticket of this client has had.
    pub(crate) fn number(&self) -> u64 {
        // Relaxed: the numbers only have to differ (I3: only our own field is touched).
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Fails when the client is closed.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        // Acquire: a thread that sees the flag also sees that all holds are lost, because `close` marks them before it sets
        // the flag.
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Fails when new holds are not to be started any more.
    pub(crate) fn check_accepting(&self) -> Result<(), Error> {
        if self.is_closing() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// The server does not know a command that scripts need: `EVAL`, or `TIME` inside of one.
    pub(crate) fn lacks(&self, command: &'static str) {
        // A lazy client may greet again. What it found first stays.
        let _ = self.lacks.set(command);
    }

    /// Stores why `connect` would refuse the server, as the last greeting found; `None` if it would not.
    pub(crate) fn set_unfit(&self, why: Option<Error>) {
        *self.unfit.write() = why;
    }

    /// Fails if `connect` would refuse the server, or if it does not allow what scripts need, some of which need its time.
    pub(crate) fn check_supported(&self, needs_time: bool) -> Result<(), Error> {
        if let Some(why) = &*self.unfit.read() {
            return Err(why.clone());
        }
        match self.lacks.get() {
            Some(&command) if command != "TIME" || needs_time => Err(Error::Unsupported {
                lock: None,
                command,
            }),
            _ => Ok(()),
        }
    }

    /// Whether the client has stopped starting new holds.
    pub(crate) fn is_closing(&self) -> bool {
        // It acquires, and is ordered by each gate's lock: `stop_accepting` sets the flag, then visits every gate. An acquire
        // that passed its gate before that visit is failed by it. One that passes later takes the gate's lock after the
        // visit, and so sees the flag here.
        self.closing.initialized()
    }

    /// Resolves once the client has stopped starting new holds.
    pub(crate) async fn stopped_accepting(&self) {
        self.closing.wait().await;
    }

    /// Leaves `mail` to the keeper.
    pub(crate) fn post(&self, mail: Mail) {
        // If the keeper has ended, it marked all holds lost; what is left in Redis ends with its lease.
        let _ = self.mailbox.send(mail);
    }

    /// Makes the keeper look at `hold` at `moment` or before.
    pub(crate) fn look_by(&self, hold: &Arc<Hold>, moment: Moment) {
        if self.schedule.no_later_than(hold, moment) {
            self.look.notify_one();
        }
    }

    /// Makes the keeper look at `hold` when the hold next needs it, or before.
    pub(crate) fn look_in_time(&self, hold: &Arc<Hold>, now: Moment) {
        match hold.with(|state| state.due(self.watchdog_lease, now, now, self.jitter())) {
            Due::Later(moment) => self.look_by(hold, moment),
            Due::Renew | Due::Lose => self.look_by(hold, now),
            Due::Finish | Due::Nothing => {}
        }
    }

    /// A random part of a tenth of the renewal period, which spreads renewals.
    pub(crate) fn jitter(&self) -> Duration {
        (self.watchdog_lease.period() / 10).mul_f64(fastrand::f64())
    }

    /// Lets `change` act on the gate of `names` at `now`, and carries out its effects once the gate's lock is free again.
    pub(crate) fn at<R>(
        &self,
        names: &Arc<Names>,
        now: Moment,
        change: impl FnOnce(&mut Gate<Pending>, &mut Effects) -> R,
    ) -> R {
        let mut effects = Effects::at(now, self.rules());
        let (result, start_job) = self.gates.with(names, |gate| {
            let result = change(gate, &mut effects);
            if self.is_closing() {
                // The end of a client waits for holds that somebody has.
                gate.leave_abandoned_reads(&mut effects);
            }
            (result, gate.start_job())
        });
        if start_job {
            self.post(Mail::Serve(Arc::clone(names)));
        }
        for hold in &effects.releases {
            self.post(Mail::Release(Arc::clone(hold)));
        }
        for (hold, moment) in &effects.downgrades {
            if hold.with(HoldState::write_is_due) {
                self.post(Mail::Write(Arc::clone(hold), *moment));
            }
        }
        for hold in &effects.looks {
            self.look_in_time(hold, now);
        }
        // Last: a waker of the application may panic.
        effects.carry_out().record();
        result
    }

    fn rules(&self) -> Rules {
        Rules {
            command_timeout: self.config.command_timeout,
            unavailable_after: self.config.unavailable_after,
            runs_since: self.runs_since(),
            watchdog_lease: self.watchdog_lease,
            passes_on: self.config.passes_on,
        }
    }

    /// For how long the watchdog renews `hold` now, if it does, and how long the client vouches for it from now on.
    pub(crate) fn vouched(&self, hold: &Hold) -> (Option<LeaseMs>, LeaseMs) {
        let now = self.now();
        let (renewed, ends) = hold.with(|state| {
            let renewed = state.renewal_lease(self.watchdog_lease, now);
            renewed.inspect(|lease| state.asks_for(*lease));
            (renewed, state.lease_ends())
        });
        let left = LeaseMs::of(now.until(ends));
        (renewed, renewed.map_or(left, |lease| left.max(lease)))
    }

    /// Every hold and attempt that has a seat. Gates have all of them; the schedule lacks those that the keeper is
    /// looking at.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        self.gates
            .for_each(|gate| holds.extend(gate.holds().cloned()));
        holds
    }

    /// Whether a command is under way that could leave a key behind.
    pub(crate) fn is_in_flight(&self) -> bool {
        let mut in_flight = false;
        self.gates.for_each(|gate| in_flight |= gate.is_in_flight());
        in_flight
    }

    /// Whether anybody holds or waits for anything.
    pub(crate) fn is_busy(&self) -> bool {
        let mut waits = !self.latches.is_empty();
        if self.schedule.is_empty() {
            self.gates.for_each(|gate| waits |= gate.has_queue());
        }
        waits || !self.schedule.is_empty()
    }

    /// Sends one call over the keeper's lanes, and waits for a command time-out at most.
    pub(crate) async fn ask(&self, call: Call<'_>) -> CommandResult {
        let pending = Pending::start(&self.backend.keepers, call);
        pending.within(self.config.command_timeout).await
    }

    /// Starts calls about holds at one node, in one write over the keeper's lanes. None when there is only one. Not for
    /// calls that replicas must acknowledge.
    pub(crate) fn start_together<'a>(
        &self,
        calls: impl Iterator<Item = (&'a Hold, Call<'a>)>,
    ) -> Option<(Pending, RepliesTogether)> {
        let (mut target, mut encoded) = (None, Vec::new());
        for (hold, call) in calls {
            target.get_or_insert(hold.kind.names.target());
            encoded.push(call.encode());
        }
        let (tell, replies) = oneshot::channel();
        let target = target.filter(|_| encoded.len() > 1)?;
        let sent = Pending::start_all(&self.backend.keepers, target, encoded, tell);
        Some((sent, replies))
    }

    /// Marks a hold in Redis lost (or the hold that it was passed on to), frees the name, and sends a last release.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        let lost = self.at(&hold.kind.names, self.now(), |gate, effects| {
            let hold = gate.current_hold(hold.in_redis());
            let lost = effects.change(&hold, |state| state.lose(reason));
            lost.then_some(hold)
        });
        if let Some(hold) = lost {
            self.clean_up_lost(&hold, reason);
        }
    }

    /// Cleans up after a loss. The first call for a hold does the work; later ones change nothing.
    pub(crate) fn clean_up_lost(&self, hold: &Arc<Hold>, reason: LostReason) {
        let names = &hold.kind.names;
        let (first, mut held) = if hold.shared_hold().is_some() {
            (self.clean_up_lost_read(hold), vec![Arc::clone(hold)])
        } else {
            let (first, mut reads) = self.at(names, self.now(), |gate, effects| {
                let reads = gate.reads_of(hold);
                let mut is_left = false;
                for read in &reads {
                    effects.change(read, |state| state.lose(reason));
                    let ends = effects.change(read, |state| state.lease_ends());
                    is_left |= read.is_abandoned && effects.now < ends;
                }
                gate.vacate(hold);
                let own_end = matches!(reason, LostReason::Expired | LostReason::Shutdown);
                let first = if is_left && own_end {
                    // What was left to its lease ends with it: no release is sent.
                    effects.change(hold, |state| state.end(Ok(())));
                    effects.change(hold, HoldState::claim_release)
                } else {
                    effects.release(hold)
                };
                (first, reads)
            });
            for read in &reads {
                self.schedule.forget(read);
            }
            if !hold.kind.commands.has_reads() {
                reads.push(Arc::clone(hold));
            }
            (first, reads)
        };
        if !first {
            return;
        }
        self.schedule.forget(hold);
        let was_left = held.iter().any(|hold| hold.is_abandoned);
        held.retain(|hold| !hold.is_abandoned);
        if held.is_empty() && was_left {
            // Nobody had it any more.
            return;
        }
        if reason != LostReason::Shutdown {
            for hold in &held {
                self.report_loss(hold, reason);
            }
        }
        let names = Arc::clone(names);
        log(move || {
            let name = names.name();
            if reason == LostReason::Shutdown {
                tracing::info!(name, "hold given up: the client is being shut down");
            } else {
                tracing::warn!(name, %reason, "hold lost");
            }
        });
    }

    fn report_loss(&self, hold: &Hold, reason: LostReason) {
        let now = self.now();
        hold.kind.metrics.lost(reason);
        self.report.lost(|| LostHold {
            name: hold.kind.names.name().to_owned(),
            kind: hold.kind.commands.rules().name,
            reason,
            held_for: hold.with(|state| state.held_since()).until(now),
        });
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.report.stats(self.now());
        self.gates.for_each(|gate| {
            stats.holds += gate.count_holds();
            stats.waiters += gate.count_waiters();
        });
        stats.connected = self.backend.is_connected();
        stats
    }

    /// Cleans up after a read whose leases are over; its shared hold may live on. Returns whether somebody held the
    /// read.
    fn clean_up_lost_read(&self, read: &Arc<Hold>) -> bool {
        let ended = self.at(&read.kind.names, self.now(), |gate, effects| {
            gate.expire_read(read, effects)
        });
        let shared = read.in_redis();
        if let Phase::Lost(reason) = shared.phase() {
            self.schedule.forget(shared);
            // Whoever saw its end first may not have cleaned up after it.
            self.post(Mail::Lost(Arc::clone(shared), reason));
        }
        ended && !read.is_abandoned
    }

    /// Starts no new holds from now on, and fails all waits for one.
    pub(crate) fn stop_accepting(&self) {
        // It releases, and before the gates are visited: see `is_closing`. Later calls find it set.
        let _ = self.closing.set(());
        for names in self.gates.names() {
            self.at(&names, self.now(), Gate::close);
        }
        self.latches.close();
    }

    /// Ends the client: every hold that is left is lost, and nothing is kept alive any more.
    pub(crate) fn close(&self, reason: LostReason) {
        self.stop_accepting();
        for hold in self.holds() {
            self.lose(&hold, reason);
        }
        // Release, and after the holds are lost: see `check_open`.
        self.closed.store(true, Ordering::Release);
        self.post(Mail::Close);
    }

    /// The keeper has ended, in order or by a panic.
    pub(crate) fn keeper_ended(&self, reason: LostReason) {
        self.close(reason);
        for hold in self.holds() {
            hold.end(Err(Error::Closed));
        }
        let mut commands = Vec::new();
        self.gates
            .for_each(|gate| commands.extend(gate.commands().cloned()));
        for pending in commands {
            // The keeper times their callers out no more.
            pending.overdue();
        }
        self.backend.close();
    }
}

/// Settles the attempt at `hold` that `command` was sent for: decodes the reply, and lets the gate decide what it means
/// for the name. A second settlement changes nothing.
pub(crate) fn settle_attempt(
    core: &Core,
    hold: &Arc<Hold>,
    command: &Pending,
    outcome: CommandResult,
) {
    let now = core.now();
    core.notice_pause(now);
    let answered = answered(outcome);
    let names = &hold.kind.names;
    let counts_from = command.counts_from(Moment::default());
    let settled = core.at(names, now, |gate, effects| {
        gate.counts_from(command, counts_from);
        let settled = gate.answered(command, answered, effects);
        if let Some((hold, Settled::Unsettled)) = &settled {
            // Under the gate's lock: the next try of it plans a look of its own.
            core.schedule.forget(hold);
        }
        settled
    });
    let Some((hold, settled)) = settled else {
        return;
    };
    match settled {
        Settled::Held | Settled::Joined => core.look_in_time(&hold, now),
        Settled::Unwanted => {
            core.schedule.forget(&hold);
            let names = Arc::clone(names);
            log(move || tracing::debug!(name = names.name(), "abandoned attempt cleaned up"));
        }
        Settled::Over => {
            core.schedule.forget(&hold);
            hold.end(Ok(()));
        }
        Settled::Missing => core.lose(&hold, LostReason::Missing),
        Settled::Unsettled | Settled::NotJoined => {}
    }
}

fn answered(outcome: CommandResult) -> Answered {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(failure) if failure.is_transient() || failure.of_grant => {
            return Answered::Failed(failure);
        }
        Err(failure) => return Answered::Rejected(failure.into()),
    };
    match answer.reply {
        reply if reply.is_grant() => Answered::Got(Grant {
            sent_at: answer.sent_at,
            server_age: answer.server_age,
            reply,
        }),
        Reply::Gone => Answered::Missing,
        Reply::Busy(ttl) => Answered::Busy(ttl),
        refusal => Answered::Rejected(error_of(refusal)),
    }
}

/// The error of a reply that is none of those a call expects.
pub(crate) fn error_of(reply: Reply) -> Error {
    match reply {
        Reply::WrongType => Error::wrong_type(),
        Reply::TokenTooLarge => Error::FencingTokenTooLarge { lock: None },
        _ => Failure::strange_reply().into(),
    }
}

/// Settles a last release of `hold`. Returns the failure if the release has to be repeated.
pub(crate) fn settle_release(
    core: &Core,
    hold: &Arc<Hold>,
    sent: &SentAs<'_, Pending>,
    outcome: CommandResult,
) -> Result<(), Failure> {
    let (now, names) = (core.now(), &hold.kind.names);
    core.notice_pause(now);
    let answer = release_answer(core, hold, outcome);
    let says_missing = matches!(answer, ReleaseAnswer::Missing);
    let failure = match &answer {
        ReleaseAnswer::Failed(failure) => Some(failure.clone()),
        _ => None,
    };
    let (over, is_missing) = core.at(names, now, |gate, effects| {
        // Under the gate's lock: of several who have the answer, the first ends the hold.
        let is_missing = says_missing && !hold.has_ended();
        let over = gate.release_answered(hold, sent, answer, effects);
        (over, is_missing)
    });
    if over {
        core.schedule.forget(hold);
    }
    // A hold that was lost before this was reported then. One that was never granted, or whose lease is over by itself, is
    // no loss.
    let was_due = hold.with(|state| state.is_due_in_redis(now));
    if is_missing && was_due && hold.phase() == Phase::Ended && hold.outcome().is_err() {
        core.report_loss(hold, LostReason::Missing);
    }
    failure.map_or(Ok(()), Err)
}

fn release_answer(core: &Core, hold: &Hold, outcome: CommandResult) -> ReleaseAnswer {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(failure) if failure.is_transient() => return ReleaseAnswer::Failed(failure),
        Err(failure) => return ReleaseAnswer::Rejected(failure.into()),
    };
    let heard_by = match answer.reply {
        Reply::Woke(clients) => Some(clients),
        Reply::Done(_) => None,
        Reply::Unheard(_) => {
            core.warn_wake_up_denied(&hold.kind.names);
            None
        }
        Reply::Gone => return ReleaseAnswer::Missing,
        _ => return ReleaseAnswer::Rejected(Failure::strange_reply().into()),
    };
    ReleaseAnswer::Ended { heard_by }
}

/// Gives up the last release of `hold`, and leaves its key to the lease.
pub(crate) fn give_up_release(core: &Core, hold: &Arc<Hold>, failure: Failure) {
    core.schedule.forget(hold);
    core.at(&hold.kind.names, core.now(), |gate, effects| {
        gate.end_release(hold, Err(failure.into()), None, effects);
    });
}
