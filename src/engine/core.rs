//! What callers and keeper share: settings, gates, the schedule, and the way to the keeper.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use super::effects::Effects;
use super::gate::{Gate, Rules};
use super::gates::Gates;
use super::hold::Hold;
use super::schedule::Schedule;
use super::state::{Due, Phase, RenewalPlan, State};
use crate::backend::{Backend, CommandResult, Fleet, Pending};
use crate::clock::Moment;
use crate::config::Config;
use crate::error::{Error, LostReason};
use crate::names::Names;
use crate::process::Process;
use crate::script::Call;

/// The longest hold id: a UUID, a colon and a number.
const HOLD_ID: usize = 36 + 1 + 20;

/// What callers leave to the keeper.
pub(crate) enum Mail {
    /// Run the job of this name: somebody waits, or an attempt was abandoned.
    Serve(Arc<Names>),
    /// See the last release of this hold through.
    Release(Arc<Hold>),
    /// Write the hold count of this hold.
    Write(Arc<Hold>),
    /// Clear up after this hold, whose validity ended. Its holder knows.
    Bury(Arc<Hold>, LostReason),
    /// See through what is under way, and end.
    Close,
}

/// What callers and keeper share. Holds nothing that keeps the client alive.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) client_id: Uuid,
    /// The first half of every hold id.
    client: Box<str>,
    pub(crate) backend: Backend,
    /// The keeper's own lanes.
    pub(crate) keeper_fleet: Arc<Fleet>,
    pub(crate) gates: Gates,
    pub(crate) schedule: Schedule,
    pub(crate) plan: RenewalPlan,
    mailbox: mpsc::UnboundedSender<Mail>,
    /// Wakes the keeper for a look at the schedule.
    pub(crate) look: Notify,
    /// No new holds.
    closing: AtomicBool,
    /// Nothing any more.
    closed: AtomicBool,
    /// Whether a wake-up was denied before.
    unheard: AtomicBool,
    numbers: AtomicU64,
    pub(crate) process: Process,
}

impl Core {
    pub(crate) fn new(
        config: Config,
        backend: Backend,
        keeper_fleet: Arc<Fleet>,
        mailbox: mpsc::UnboundedSender<Mail>,
    ) -> Self {
        let client_id = Uuid::new_v4();
        Self {
            plan: RenewalPlan {
                lease: config.watchdog_lease,
            },
            config,
            client_id,
            client: client_id.to_string().into(),
            backend,
            keeper_fleet,
            gates: Gates::new(),
            schedule: Schedule::default(),
            mailbox,
            look: Notify::new(),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
            process: Process::current(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.config.clock.now()
    }

    pub(crate) fn client_text(&self) -> &str {
        &self.client
    }

    /// The hold id of `number`.
    pub(crate) fn hold_id(&self, number: u64) -> Arc<str> {
        let mut digits = itoa::Buffer::new();
        // A text of its own would be one allocation more for each hold. There is room for every client and number.
        let mut text = [0; HOLD_ID];
        let mut end = 0;
        for part in [&*self.client, ":", digits.format(number)] {
            text[end..end + part.len()].copy_from_slice(part.as_bytes());
            end += part.len();
        }
        std::str::from_utf8(&text[..end]).unwrap_or_default().into()
    }

    /// A number that no hold or ticket of this client had.
    pub(crate) fn number(&self) -> u64 {
        // Relaxed: only that no two are the same matters (I3).
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Fails when the client is closed, or belongs to another process.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        // Acquire: who sees the end sees that all holds are lost, which comes before it.
        if self.closed.load(Ordering::Acquire) || self.is_forked() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Fails when new holds are not to be started any more, or not in this process.
    pub(crate) fn check_accepting(&self) -> Result<(), Error> {
        if self.is_closing() || self.is_forked() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Whether new holds are not to be started any more.
    pub(crate) fn is_closing(&self) -> bool {
        // An acquire that passed its gate before `stop_accepting` came there was told; one that comes later has
        // the gate's lock after it, and so sees this.
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Whether this is the first wake-up that was denied.
    pub(crate) fn first_unheard(&self) -> bool {
        // Relaxed: it only has to be true once.
        !self.unheard.swap(true, Ordering::Relaxed)
    }

    /// Leaves something to the keeper.
    pub(crate) fn post(&self, mail: Mail) {
        // A keeper that is gone cleaned up after itself: what is left ends with its lease.
        let _ = self.mailbox.send(mail);
    }

    /// Has the keeper look at `hold` by `moment`.
    pub(crate) fn look_by(&self, hold: &Arc<Hold>, moment: Moment) {
        if self.schedule.no_later_than(hold, moment) {
            self.look.notify_one();
        }
    }

    /// Has the keeper look at `hold` when it needs that next, or before.
    pub(crate) fn look_in_time(&self, hold: &Arc<Hold>, now: Moment) {
        match hold.with(|state| state.due(self.plan, now, now, self.jitter())) {
            Due::Later(moment) => self.look_by(hold, moment),
            Due::Renew | Due::Lose => self.look_by(hold, now),
            Due::Finish | Due::Nothing => {}
        }
    }

    /// Spreads renewals: up to a tenth of a period.
    pub(crate) fn jitter(&self) -> Duration {
        (self.plan.period() / 10).mul_f64(fastrand::f64())
    }

    /// Lets `change` act on the gate of `names`, and carries out what that leads to.
    pub(crate) fn at<R>(
        &self,
        names: &Arc<Names>,
        change: impl FnOnce(&mut Gate<Pending>, &mut Effects) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let (result, start_job) = self.gates.with(names, |gate| {
            let result = change(gate, &mut effects);
            (result, gate.start_job())
        });
        if start_job {
            self.post(Mail::Serve(Arc::clone(names)));
        }
        let rest = effects.carry_out();
        for hold in rest.releases {
            self.post(Mail::Release(hold));
        }
        for hold in rest.turns {
            if hold.with(State::write_is_due) {
                self.post(Mail::Write(hold));
            }
        }
        if !rest.looks.is_empty() {
            let now = self.now();
            rest.looks
                .iter()
                .for_each(|hold| self.look_in_time(hold, now));
        }
        result
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            command_timeout: self.config.command_timeout,
            unavailable_after: self.config.unavailable_after,
            plan: self.plan,
            passes_on: self.config.passes_on,
        }
    }

    /// Every hold and attempt that has a seat. The schedule does not know of those that the keeper looks at
    /// just now.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        self.gates
            .for_each(|gate| holds.extend(gate.holds().cloned()));
        holds
    }

    /// Whether something is under way that would leave a key behind.
    pub(crate) fn is_in_flight(&self) -> bool {
        let mut in_flight = false;
        self.gates.for_each(|gate| in_flight |= gate.is_in_flight());
        in_flight
    }

    /// Whether anything is held or waited for.
    pub(crate) fn is_busy(&self) -> bool {
        let mut waits = false;
        if self.schedule.is_empty() {
            self.gates.for_each(|gate| waits |= gate.has_queue());
        }
        waits || !self.schedule.is_empty()
    }

    /// One call over the keeper's lanes, for at most `limit`.
    pub(crate) async fn ask(&self, call: Call<'_>, limit: Duration) -> CommandResult {
        let pending = Pending::start(&self.keeper_fleet, call);
        pending.within(limit).await
    }

    /// Every share of a hold.
    fn shares(&self) -> Vec<Arc<Hold>> {
        let mut shares = Vec::new();
        self.gates
            .for_each(|gate| shares.extend(gate.shares().cloned()));
        shares
    }

    /// Tells all who hold anything that it will be lost. The holds in Redis.
    pub(crate) fn announce(&self, reason: LostReason) -> Vec<Arc<Hold>> {
        let holds = self.holds();
        for hold in &holds {
            hold.announce(reason);
        }
        // Those that come now begin with what their hold was told.
        for share in self.shares() {
            share.announce(reason);
        }
        holds
    }

    /// Marks a hold in Redis lost, or that to which it was passed on, frees the name, and sends a last release behind it.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        let lost = self.at(hold.kind.names(), |gate, effects| {
            let hold = gate.present(hold.in_redis());
            let lost = effects.change(&hold, |state| state.lose(reason));
            lost.then_some(hold)
        });
        if let Some(hold) = lost {
            self.bury(&hold, reason);
        }
    }

    /// What a loss leads to, whoever saw it first.
    pub(crate) fn bury(&self, hold: &Arc<Hold>, reason: LostReason) {
        let names = hold.kind.names();
        let first = if hold.joint().is_some() {
            self.bury_share(hold)
        } else {
            let (first, shares) = self.at(names, |gate, effects| {
                let shares = gate.shares_of(hold);
                for share in &shares {
                    effects.change(share, |state| state.lose(reason));
                }
                gate.vacate(hold);
                (effects.release(hold), shares)
            });
            for share in &shares {
                self.schedule.forget(share);
            }
            first
        };
        if !first {
            return;
        }
        self.schedule.forget(hold);
        let name = names.name();
        if reason == LostReason::Shutdown {
            tracing::info!(name, "hold given up: the client is being shut down");
        } else {
            tracing::warn!(name, %reason, "hold lost");
        }
    }

    /// The leases of a share are over, though those of the hold in Redis may not be. Whether somebody had it.
    fn bury_share(&self, share: &Arc<Hold>) -> bool {
        let now = self.now();
        let ended = self.at(share.kind.names(), |gate, effects| {
            gate.expire_share(share, now, effects)
        });
        let joint = share.in_redis();
        if matches!(joint.phase(), Phase::Lost(_)) {
            self.schedule.forget(joint);
        }
        ended && !share.is_left()
    }

    /// No new holds from now on; whoever waits for one hears it.
    pub(crate) fn stop_accepting(&self) {
        self.closing.store(true, Ordering::Release);
        for names in self.gates.names() {
            self.at(&names, Gate::close);
        }
    }

    /// The end: nothing is kept alive any more. Every hold that is left is lost.
    pub(crate) fn close(&self, reason: LostReason) {
        self.stop_accepting();
        for hold in self.holds() {
            self.lose(&hold, reason);
        }
        self.closed.store(true, Ordering::Release);
        self.post(Mail::Close);
    }

    /// The keeper ended, in order or not.
    pub(crate) fn keeper_ended(&self, reason: LostReason) {
        self.close(reason);
        for hold in self.holds() {
            hold.end(Err(Error::Closed));
        }
        let mut commands = Vec::new();
        self.gates
            .for_each(|gate| commands.extend(gate.commands().cloned()));
        for pending in commands {
            // Nobody counts the time for their callers any more.
            pending.overdue();
        }
        self.backend.close();
        self.keeper_fleet.close();
    }
}
