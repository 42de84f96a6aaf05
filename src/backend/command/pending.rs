//! A command that many may await.
//!
//! 1. It waits until its lane has a place for it, and was certainly not sent until then. So what it waits here does not
//!    count as silence of the server: a command time-out counts from the submission.
//! 2. Each clone of a command drives it when it is polled. When the command can go on, all clones that wait are woken.
//! 3. The command gets a waker that wakes all clones that wait. While [many](Window::is_scarce) places are taken, it also
//!    has the lane's runtime poll the command: an answer gives its place back though nobody polls a clone any more.
//! 4. When the command ends, all clones are woken but the one whose poll saw the end. That one is running: a wake-up would
//!    put its task at the end of the queue and wake another worker thread, for each command.
//! 5. Whether a command is submitted or taken back is decided under the lock of the poll.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::lane::Lane;
use super::send::{CommandResult, Traffic, once};
use super::window::{Place, QueueKey, Queueable};
use crate::backend::failure::Failure;
use crate::clock::Moment;
use crate::report::CommandTimer;
use crate::script::{Call, Turn};

/// A command in flight. It runs once, and each clone may await it (rules 2 to 4).
///
/// It has no time-out of its own: end it by [`Pending::overdue`], or await it [within](Pending::within) a time.
pub(crate) struct Pending {
    number: u64,
    shared: Arc<InFlight>,
}

/// What the clones of a [`Pending`] share.
pub(super) struct InFlight {
    lane: Arc<Lane>,
    run: Mutex<Run>,
    /// When it was submitted to the connection, in nanoseconds of the client's clock; the maximum until then.
    submitted_at: AtomicU64,
    /// Of the clones that wait, by their numbers. Usually there is one, which needs no allocation.
    wakers: Mutex<SmallVec<[(u64, Waker); 1]>>,
    /// The number of clones. The command may hold a waker, which holds this struct, so the count of the `Arc` does not
    /// reach zero: the last clone drops the command.
    clones: AtomicU64,
    numbers: AtomicU64,
}

/// What sends a command and awaits its reply.
type Sending = BoxFuture<'static, CommandResult>;

/// Times a command for metrics, and says what its outcome is called there.
pub(crate) struct TimedCommand {
    pub(crate) timer: CommandTimer,
    pub(crate) outcome: fn(&CommandResult) -> &'static str,
}

impl TimedCommand {
    /// Runs the application's recorder, so only without a lock.
    fn ended(self, result: &CommandResult) {
        self.timer.ended(|| (self.outcome)(result));
    }
}

enum Run {
    Live {
        sending: Sending,
        stage: Stage,
        timed: Option<TimedCommand>,
    },
    Over(CommandResult),
}

#[derive(Clone, Copy)]
enum Stage {
    /// It needs a place of its lane, and was certainly not sent.
    Unsent {
        turn: Turn,
        patient: bool,
        /// Where it is queued; none before the first poll.
        key: Option<QueueKey>,
    },
    /// It may have been sent.
    Submitted {
        /// None for a ping, which needs no place.
        place: Option<Place>,
        /// What the connection had read and written by then.
        traffic: Option<Traffic>,
    },
}

impl Run {
    fn stage(&mut self) -> Option<&mut Stage> {
        match self {
            Self::Live { stage, .. } => Some(stage),
            Self::Over(_) => None,
        }
    }

    fn is_unsent(&mut self) -> bool {
        matches!(self.stage(), Some(Stage::Unsent { .. }))
    }
}

impl Pending {
    /// Sends a `PING`, to find out whether the connection of a lane still works.
    pub(crate) fn knock(lane: &Arc<Lane>) -> Self {
        let on = Arc::clone(lane);
        let sending = async move {
            let sent = once(&on, &mut Call::ping().encode(), false).await;
            sent.map_err(|wrong| wrong.failure)
        };
        Self::of(sending.boxed(), Arc::clone(lane))
    }

    /// A command that needs no place.
    pub(crate) fn of(sending: Sending, lane: Arc<Lane>) -> Self {
        let submitted_at = lane.now();
        let stage = Stage::Submitted {
            place: None,
            traffic: Traffic::of(&lane),
        };
        let timed = None;
        let run = Run::Live {
            sending,
            stage,
            timed,
        };
        Self::new(run, submitted_at, lane)
    }

    /// A command that is sent when its lane has a place for it. A `patient` one goes on waiting when an attempt to connect
    /// fails.
    pub(crate) fn queued(
        sending: Sending,
        lane: Arc<Lane>,
        (turn, patient): (Turn, bool),
        timed: Option<TimedCommand>,
    ) -> Self {
        let stage = Stage::Unsent {
            turn,
            patient,
            key: None,
        };
        let run = Run::Live {
            sending,
            stage,
            timed,
        };
        Self::new(run, Moment::NEVER, lane)
    }

    fn new(run: Run, submitted_at: Moment, lane: Arc<Lane>) -> Self {
        let shared = InFlight {
            lane,
            run: Mutex::new(run),
            submitted_at: AtomicU64::new(submitted_at.as_nanos()),
            wakers: Mutex::default(),
            clones: AtomicU64::new(1),
            numbers: AtomicU64::new(0),
        };
        Self {
            number: 0,
            shared: Arc::new(shared),
        }
    }

    /// Sends it now instead of when the task of its connection runs. May wake any task, so no lock may be held.
    pub(crate) fn send_at_once(mut self) {
        let _ = (&mut self).now_or_never();
        self.shared.lane.drive();
    }

    /// When it was submitted to its connection; [`Moment::NEVER`] if it was not yet, and so was certainly not sent.
    pub(crate) fn submitted_at(&self) -> Moment {
        // Relaxed: a time that stands for itself. Whether it can still be taken back is decided under the lock.
        Moment::from_nanos(self.shared.submitted_at.load(Ordering::Relaxed))
    }

    fn is_submitted(&self) -> bool {
        self.submitted_at() != Moment::NEVER
    }

    /// From when on the silence of its lane counts, for a command that waits since then.
    pub(crate) fn silent_from(&self, since: Moment) -> Moment {
        let lane = &self.shared.lane;
        lane.heard_at().max(since) + lane.waits_for_replicas()
    }

    /// From when on its silence counts, if it was started at `since`: its submission, or what its lane heard last.
    pub(crate) fn counts_from(&self, since: Moment) -> Moment {
        self.silent_after(since, Duration::ZERO)
    }

    /// Ends it if it was certainly not sent.
    pub(crate) fn take_back(&self) {
        if !self.is_submitted() {
            self.shared.fail_unsent(&self.shared.lane.not_sent());
        }
    }

    /// Whether its reply came. Nobody may have polled it since.
    pub(crate) fn is_answered(&self) -> bool {
        self.look_for_reply(Duration::ZERO, None);
        self.outcome().is_some()
    }

    /// Ends it: no reply came within a command time-out, or nobody wants it any more. If it was not sent yet, it never
    /// will be.
    pub(crate) fn overdue(&self) {
        self.look_for_reply(Duration::ZERO, Some(self.shared.lane.command_timeout()));
        self.shared.end();
    }

    /// A caller's time for it is over: takes it back if it was not sent, so that the keeper sends it with many others; ends
    /// it if it is overdue itself; and wakes all clones.
    pub(crate) fn times_out_caller(&self) {
        self.take_back();
        let limit = self.shared.lane.command_timeout();
        if self.silent_after(Moment::default(), limit) <= self.shared.lane.now() {
            self.overdue();
        } else {
            self.shared.wake_but(None);
        }
    }

    /// What it comes to for somebody who does not wait for its reply any more.
    pub(crate) fn unanswered(&self) -> Failure {
        let lane = &self.shared.lane;
        if self.is_submitted() {
            Failure::slow_reply(lane.command_timeout())
        } else {
            lane.not_sent()
        }
    }

    /// Looks for the reply itself: nobody may have polled the command since it came. Gives the connection up if nothing at
    /// all was read on it for `silence`. The caller waited for at least `waited` after the submission.
    fn look_for_reply(&self, waited: Duration, silence: Option<Duration>) {
        let shared = &self.shared;
        let lane = &shared.lane;
        // What is only written by this look cannot be answered yet.
        let written = Traffic::of(lane);
        lane.drive();
        shared.poll_for_all();
        let waited = waited.max(self.submitted_at().until(lane.now()));
        let traffic = match shared.run.lock().stage() {
            Some(Stage::Submitted { traffic, .. }) => *traffic,
            _ => None,
        };
        // Before the end: the next command of the caller must not go over a silent connection.
        if let (Some(silence), Some(before)) = (silence, traffic)
            && written.is_some_and(|written| written.has_asked_since(before))
        {
            before.give_up_if_silent(lane, silence, waited);
        }
        lane.admit();
    }

    /// Waits for the reply, for at most `limit` from when it is submitted; and if it is not submitted within `limit`,
    /// no longer than that.
    pub(crate) async fn within(self, limit: Duration) -> CommandResult {
        self.until(limit, Moment::NEVER).await
    }

    /// As [`within`](Self::within), for a command that was started at `since`. While it is not submitted, it waits for as
    /// long as its lane [is not silent](Self::silent_after): thousands of others may be ahead of it.
    pub(crate) async fn within_of(self, since: Moment, limit: Duration) -> CommandResult {
        self.heard_until(since, limit, Moment::NEVER).await
    }

    /// As [`within_of`](Self::within_of), and until `end` at the most.
    pub(crate) async fn heard_until(
        self,
        since: Moment,
        limit: Duration,
        end: Moment,
    ) -> CommandResult {
        self.wait(|command| command.silent_after(since, limit).min(end))
            .await
    }

    /// As [`within`](Self::within), and until `end` at the most.
    pub(crate) async fn until(self, limit: Duration, end: Moment) -> CommandResult {
        let since = self.shared.lane.now();
        self.wait(|command| command.overdue_from(since, limit).min(end))
            .await
    }

    async fn wait(mut self, overdue_from: impl Fn(&Self) -> Moment) -> CommandResult {
        let lane = Arc::clone(&self.shared.lane);
        loop {
            let due = overdue_from(&self);
            let left = lane.now().until(due);
            if let Some(outcome) = lane.timers().within(left, &mut self).await {
                return outcome;
            }
            // It may have been submitted meanwhile.
            if overdue_from(&self) == due {
                self.overdue();
                let slow = || Err(Failure::slow_reply(lane.command_timeout()));
                return self.outcome().unwrap_or_else(slow);
            }
        }
    }

    /// From when it is overdue: `limit` after its submission; if it was not submitted, when its lane has been silent for
    /// `limit` since `since`.
    pub(crate) fn silent_after(&self, since: Moment, limit: Duration) -> Moment {
        self.overdue_from(self.silent_from(since), limit)
    }

    /// From when it is overdue: `limit` after its submission, or after `since` if it was not submitted.
    fn overdue_from(&self, since: Moment, limit: Duration) -> Moment {
        match self.submitted_at() {
            Moment::NEVER => since + limit,
            submitted_at => submitted_at + limit,
        }
    }

    /// Waits for the reply for `limit` from when it is submitted. After that it returns the command, which still runs, so
    /// that the caller can try once more and listen to [both](Self::however_late). The next try uses another connection
    /// if nothing was received for longer than [a reply may take](Lane::longest_silence). Until it is submitted it waits
    /// without a limit: it fails when an attempt to connect does.
    pub(crate) async fn within_one_try(mut self, limit: Duration) -> Result<CommandResult, Self> {
        let lane = Arc::clone(&self.shared.lane);
        loop {
            let was_submitted = self.is_submitted();
            let now = lane.now();
            let left = now.until(self.overdue_from(now, limit));
            if let Some(outcome) = lane.timers().within(left, &mut self).await {
                return Ok(outcome);
            }
            if was_submitted {
                break;
            }
        }
        self.look_for_reply(limit, Some(lane.longest_silence()));
        self.outcome().ok_or(self)
    }

    /// Waits on for the reply to a command that was submitted, for `limit` from then on.
    pub(crate) async fn however_late(self, limit: Duration) -> CommandResult {
        // The limit of one try may have been shorter than a silence that counts.
        let silence = self.shared.lane.longest_silence();
        match self.within_one_try(silence).await {
            Ok(outcome) => outcome,
            Err(late) => late.within(limit).await,
        }
    }

    /// The outcome, if it has ended.
    fn outcome(&self) -> Option<CommandResult> {
        match &*self.shared.run.lock() {
            Run::Over(outcome) => Some(outcome.clone()),
            Run::Live { .. } => None,
        }
    }

    fn poll_command(&self, context: &mut Context<'_>) -> Poll<CommandResult> {
        let shared = &self.shared;
        // Dropped after the locks: a waker may drop its task, and the task a clone of this future.
        let _replaced;
        let mut _ended = None;
        let mut run = shared.run.lock();
        if let Run::Over(outcome) = &*run {
            return Poll::Ready(outcome.clone());
        }
        // Before the poll: from now on each event wakes this clone too.
        {
            let mut wakers = shared.wakers.lock();
            let known = wakers.iter_mut().find(|(known, _)| *known == self.number);
            _replaced = match known {
                Some((_, known)) if known.will_wake(context.waker()) => None,
                Some((_, known)) => Some(std::mem::replace(known, context.waker().clone())),
                None => {
                    wakers.push((self.number, context.waker().clone()));
                    None
                }
            };
        }
        if let Some(Stage::Unsent { turn, .. }) = run.stage() {
            match shared.lane.window().enter(*turn) {
                Some(place) => shared.start(&mut run, place),
                None => _ended = shared.wait(&mut run),
            }
        }
        shared.poll_sending(run, Some(self.number))
    }
}

impl Future for Pending {
    type Output = CommandResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CommandResult> {
        let polled = self.poll_command(context);
        // No lock is held here.
        let lane = &self.shared.lane;
        lane.admit();
        if polled.is_pending() {
            lane.drive_if_full();
        }
        polled
    }
}

impl PartialEq for Pending {
    /// Whether both are the same command.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Clone for Pending {
    fn clone(&self) -> Self {
        // Relaxed, as in `Arc::clone`: the caller has a clone, so the count is not zero, and it guards no data.
        self.shared.clones.fetch_add(1, Ordering::Relaxed);
        Self {
            number: self.shared.numbers.fetch_add(1, Ordering::Relaxed) + 1,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut wakers = self.shared.wakers.lock();
        let index = wakers.iter().position(|(known, _)| *known == self.number);
        let forgotten = index.map(|index| wakers.swap_remove(index));
        drop(wakers);
        // After the lock, as in `poll_command`.
        drop(forgotten);
        // Acquire and release: the last clone must see what the others did before it drops the command.
        if self.shared.clones.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.end();
        }
    }
}

impl InFlight {
    /// The lane has a place for it.
    fn start(&self, run: &mut Run, place: Place) {
        if let Some(stage) = run.stage() {
            *stage = Stage::Submitted {
                place: Some(place),
                traffic: Traffic::of(&self.lane),
            };
        }
        // Relaxed, as in `submitted_at`.
        self.submitted_at
            .store(self.lane.now().as_nanos(), Ordering::Relaxed);
    }

    /// Queues it for a place of the lane, unless it is queued already. Returns what ended by that, to be dropped without a
    /// lock.
    fn wait(self: &Arc<Self>, run: &mut Run) -> Option<Run> {
        let Some(Stage::Unsent { turn, patient, key }) = run.stage() else {
            return None;
        };
        if key.is_none() {
            let window = self.lane.window();
            *key = Some(window.wait(*turn, *patient, self.queued()));
            // Checked after it was queued: a lane that ends fails the commands that are queued by then.
            match self.lane.end_of_it() {
                Some(end) => {
                    self.forget(run);
                    return Some(std::mem::replace(run, Run::Over(Err(end))));
                }
                None => self.lane.want(),
            }
        }
        None
    }

    /// Takes it out of the queue of its lane.
    fn forget(&self, run: &mut Run) {
        if let Some(Stage::Unsent { key: Some(key), .. }) = run.stage() {
            self.lane.window().forget(*key);
        }
    }

    fn queued(self: &Arc<Self>) -> Weak<dyn Queueable> {
        let queued: Weak<Self> = Arc::downgrade(self);
        queued
    }

    /// Polls it if it was submitted. Its next event wakes all clones.
    fn poll_for_all(self: &Arc<Self>) {
        let _ = self.poll_sending(self.run.lock(), None);
    }

    /// Polls what sends it, if it was submitted. Its end wakes all clones that wait, except `awake`.
    fn poll_sending(
        self: &Arc<Self>,
        mut run: MutexGuard<'_, Run>,
        awake: Option<u64>,
    ) -> Poll<CommandResult> {
        let (sending, place) = match &mut *run {
            Run::Live {
                sending,
                stage: Stage::Submitted { place, .. },
                ..
            } => (sending, *place),
            Run::Live { .. } => return Poll::Pending,
            Run::Over(outcome) => return Poll::Ready(outcome.clone()),
        };
        let all = Waker::from(Arc::clone(self));
        let polling = AssertUnwindSafe(|| sending.poll_unpin(&mut Context::from_waker(&all)));
        // A command may panic when polled after its runtime ended. It is unanswered then.
        let polled = catch_unwind(polling);
        let polled = polled.unwrap_or_else(|_| Poll::Ready(Err(Failure::no_reply())));
        if let Poll::Ready(outcome) = &polled {
            let before = std::mem::replace(&mut *run, Run::Over(outcome.clone()));
            drop(run);
            if let Some(place) = place {
                self.lane.window().leave(place, self.took(outcome));
            }
            self.wake_but(awake);
            if let Run::Live {
                timed: Some(timed), ..
            } = before
            {
                timed.ended(outcome);
            }
        }
        polled
    }

    /// How long the answer took that came just now; none if there was no answer.
    fn took(&self, outcome: &CommandResult) -> Option<Duration> {
        if matches!(outcome, Err(failure) if failure.is_of_connection()) {
            return None;
        }
        // Relaxed, as in `submitted_at`.
        let submitted_at = Moment::from_nanos(self.submitted_at.load(Ordering::Relaxed));
        Some(submitted_at.until(self.lane.heard_at()))
    }

    /// If it still runs, ends it and wakes all clones. One that was not sent never will be. One that was sent is unanswered,
    /// and keeps its place until the answer comes. Lets others in, so no lock may be held.
    fn end(self: &Arc<Self>) {
        let mut run = self.run.lock();
        let outcome = match run.stage() {
            None => return,
            Some(Stage::Unsent { .. }) => Err(self.lane.not_sent()),
            Some(Stage::Submitted { .. }) => Err(Failure::slow_reply(self.lane.command_timeout())),
        };
        self.forget(&mut run);
        let before = std::mem::replace(&mut *run, Run::Over(outcome));
        drop(run);
        if let Run::Live {
            sending,
            stage: Stage::Submitted {
                place: Some(place), ..
            },
            timed,
        } = before
        {
            let command = Arc::clone(self);
            let took = sending.map(move |outcome| {
                let took = command.took(&outcome);
                if let Some(timed) = timed {
                    timed.ended(&outcome);
                }
                took
            });
            self.lane.answer_later(took, place);
        }
        self.wake_but(None);
        self.lane.admit();
    }

    /// Wakes all clones that wait, except this one.
    fn wake_but(&self, awake: Option<u64>) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        for (number, waker) in wakers {
            if awake != Some(number) {
                // It may be an application's, and panic in the keeper.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }
}

impl Queueable for InFlight {
    fn begin(self: Arc<Self>, place: Place) -> bool {
        {
            let mut run = self.run.lock();
            if !run.is_unsent() {
                return false;
            }
            self.start(&mut run, place);
        }
        self.poll_for_all();
        true
    }

    fn go_on(self: Arc<Self>) {
        self.poll_for_all();
    }

    fn fail_unsent(&self, failure: &Failure) {
        let mut run = self.run.lock();
        if run.is_unsent() {
            self.forget(&mut run);
            let before = std::mem::replace(&mut *run, Run::Over(Err(failure.clone())));
            drop(run);
            drop(before);
            self.wake_but(None);
        }
    }
}

impl Wake for InFlight {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_but(None);
        if self.lane.window().is_scarce() {
            self.lane.poll_soon(self.queued());
        }
    }
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
