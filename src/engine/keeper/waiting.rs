//! Waiting: the keeper's job for one name that somebody queues for, or that an abandoned attempt left.
//!
//! For the head of the queue: subscribe, wait for the confirmation, try; then sleep until the first of
//! a wake-up, the end of the holder's lease, or the poll; try again (no lost wake-ups). A wake-up is a
//! permit that is consumed before the try. Without a subscription the jittered poll alone carries on.
//!
//! While the lock is held here and others queue, the hold is verified at each wake-up that is not the
//! echo of our own release, and at each poll: somebody may have freed it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::hub::{self, Route};
use super::policy::WaitPolicy;
use super::turns::{Turns, WAY};
use super::{Keeper, renewals};
use crate::backend::{Failure, Pending};
use crate::backoff::Delays;
use crate::clock::Moment;
use crate::engine::attempt::new_hold;
use crate::engine::gate::{Gate, Job, Known, Seat, Step};
use crate::engine::hold::Hold;
use crate::engine::release;
use crate::engine::settle::{discard, settle};
use crate::engine::ticket::{Ticket, Wakes};
use crate::names::Names;

/// How long a subscription outlives its last waiter.
const LINGER: Duration = Duration::from_secs(1);

pub(crate) async fn serve(keeper: Arc<Keeper>, names: Arc<Names>) {
    let Some(job) = keeper.core.gates.with(&names, |gate| gate.job()) else {
        return;
    };
    let mut line = Line {
        policy: WaitPolicy::new(keeper.core.config.backoff, fastrand::u64(..)),
        keeper,
        names,
        job,
        listening: Listening::Off,
        refusals: hub::refusals(),
        next: None,
        early: false,
        turns: Turns::new(),
        way: None,
        cut: false,
    };
    while !line.advance().await {}
}

/// Why a job looks up.
enum Event {
    /// Something changed at the gate.
    Changed,
    /// Somebody else released.
    News,
    /// There is another reason to try, or to verify.
    Reason,
    /// Only a look at what is next.
    Nothing,
}

enum Listening {
    Off,
    Starting(Arc<Route>, BoxFuture<'static, Result<(), Failure>>),
    Live(Arc<Route>),
    /// Not now, or not allowed: polls must do until it is tried again, at a poll from then on.
    Barred {
        until: Moment,
    },
}

/// A try that is in flight before the seat is free for it.
struct Next {
    head: Arc<Ticket>,
    hold: Arc<Hold>,
    pending: Pending,
    since: Moment,
}

/// One name's job.
struct Line {
    keeper: Arc<Keeper>,
    names: Arc<Names>,
    job: Arc<Job>,
    listening: Listening,
    /// When a subscription that was refused is tried again.
    refusals: Delays,
    /// The next try, or look at our own hold, if nothing comes before.
    policy: WaitPolicy,
    /// The try that was sent along with the release in the seat.
    next: Option<Next>,
    /// The try in the seat was sent before the seat was free.
    early: bool,
    turns: Turns,
    /// Until then the lock is left to others.
    way: Option<Moment>,
    /// The subscription's connection broke, and nothing was planned since.
    cut: bool,
}

impl Line {
    fn now(&self) -> Moment {
        self.keeper.core.now()
    }

    fn gate<R>(&self, change: impl FnOnce(&mut Gate) -> R) -> R {
        self.keeper.core.gates.with(&self.names, change)
    }

    /// One step; true when the job is over.
    async fn advance(&mut self) -> bool {
        let now = self.now();
        let mut wakes = Wakes::default();
        self.follow();
        let step = self.gate(|gate| gate.step(now, &mut wakes));
        drop(wakes);
        match step {
            Step::Finish(seat) => self.finish(seat).await,
            Step::HandOver { hold, head } => self.hand_over(&hold, head),
            Step::AwaitRelease => self.job.changed.notified().await,
            Step::Watch { hold, uncollected } => self.watch(hold, uncollected).await,
            Step::Serve {
                head,
                prompt,
                released,
            } => {
                if self.is_time(prompt, released).await {
                    self.try_for(&head);
                }
            }
            Step::Idle => return self.idle().await,
        }
        false
    }

    /// Awaits the command in the seat, whoever sent it, so that nobody depends on its caller.
    async fn finish(&mut self, seat: Seat) {
        let Some(pending) = seat.pending else { return };
        let core = &self.keeper.core;
        let end = seat.since + core.config.command_timeout;
        let outcome = tokio::select! {
            outcome = pending.within(core.now().until(end)) => outcome,
            () = self.job.changed.notified() => return,
        };
        self.policy.again();
        match seat.ticket {
            Some(ticket) => {
                settle(core, &seat.hold, &ticket, outcome);
                if std::mem::take(&mut self.early) {
                    // It may have been answered by the hold before.
                    self.gate(Gate::head_is_new);
                }
            }
            None => {
                if release::settle(core, &seat.hold, outcome).is_err() {
                    let now = core.now();
                    self.gate(|gate| gate.release(&seat.hold, None, now));
                    release::reap(core, &seat.hold);
                }
            }
        }
    }

    /// Sends a last release, and right behind it, on the same connection, the try for the next one here.
    fn hand_over(&mut self, hold: &Arc<Hold>, head: Option<Arc<Ticket>>) {
        let core = Arc::clone(&self.keeper.core);
        let since = core.now();
        let call = hold.kind.release(&hold.id, 0);
        let release = Pending::start(&core.keeper_lane, call);
        self.gate(|gate| {
            gate.wakeups.expect_echo(hold);
            gate.release(hold, Some(release.clone()), since);
        });
        // The first poll sends it.
        let _ = release.now_or_never();
        if let Some(head) = head {
            let (hold, pending) = self.start_try(&head, since);
            let _ = pending.clone().now_or_never();
            self.next = Some(Next {
                head,
                hold,
                pending,
                since,
            });
        }
    }

    /// The try that was sent along with a release gets the seat as soon as that is free; also when its
    /// caller is gone, since it may have got the lock.
    fn follow(&mut self) {
        let Some(next) = self.next.take() else { return };
        if self.gate(|gate| gate.follow(&next.hold, &next.head, &next.pending, next.since)) {
            self.early = true;
        } else {
            self.next = Some(next);
        }
    }

    /// Makes the try for `head`.
    fn start_try(&self, head: &Arc<Ticket>, now: Moment) -> (Arc<Hold>, Pending) {
        let core = &self.keeper.core;
        let hold = head
            .unsettled()
            .unwrap_or_else(|| new_hold(core, head, now));
        let call = head.request.kind.acquire(&hold.id, head.request.lease);
        let pending = Pending::start(&core.keeper_lane, call);
        (hold, pending)
    }

    /// Waits for a reason to try for the head of the queue, unless something else comes first.
    async fn is_time(&mut self, prompt: bool, released: Option<u32>) -> bool {
        if let Some(others) = released {
            self.turns.released(others);
        }
        if prompt {
            return !(released.is_some() && self.gives_way());
        }
        match self.event(self.way.unwrap_or(Moment::NEVER)).await {
            Event::News => !self.gives_way(),
            Event::Reason => {
                self.way = None;
                true
            }
            Event::Changed => false,
            Event::Nothing => {
                let now = self.now();
                let over = self.way.take_if(|until| now >= *until).is_some();
                if over {
                    self.turns.in_vain();
                }
                over
            }
        }
    }

    /// Whether others have their turn first.
    fn gives_way(&mut self) -> bool {
        self.way = self.turns.gives_way().then(|| self.now() + WAY);
        self.way.is_some()
    }

    /// Tries for the head of the queue.
    fn try_for(&mut self, head: &Arc<Ticket>) {
        let now = self.now();
        let (hold, pending) = self.start_try(head, now);
        self.policy.again();
        let sits = self.gate(|gate| {
            let free = gate.call_up(head);
            if free {
                gate.sit(Arc::clone(&hold), head, pending, now);
            }
            free
        });
        if !sits && !hold.is_tainted() {
            self.keeper.core.schedule.forget(&hold);
        }
    }

    /// Watches over our own hold while others wait, and over a grant that nobody collects.
    async fn watch(&mut self, hold: Arc<Hold>, uncollected: Option<(Arc<Ticket>, Moment)>) {
        let core = Arc::clone(&self.keeper.core);
        let timeout = core.config.command_timeout;
        let end = uncollected
            .as_ref()
            .map_or(Moment::NEVER, |(_, since)| *since + timeout);
        let event = self.event(end).await;
        if let Some((ticket, _)) = uncollected
            && self.now() >= end
            && let Some(hold) = ticket.revoke()
        {
            release::drop_level(&core, &hold, ticket.request.level);
            return;
        }
        let reason = matches!(event, Event::Reason | Event::News);
        if reason && self.gate(|gate| gate.has_queue()) {
            self.warn_of_self();
            self.policy.again();
            renewals::verify(&self.keeper, &hold);
        }
    }

    fn warn_of_self(&self) {
        let now = self.now();
        if self.gate(|gate| gate.waits_for_itself(now)) {
            tracing::warn!(
                name = self.names.name(),
                "a task waits for a lock that it holds itself under another owner: \
                 to enter again use guard.reenter(), one Owner, or Client::scope"
            );
        }
    }

    /// The first of: news on the channel, a change at the gate, the poll, `end`.
    async fn event(&mut self, end: Moment) -> Event {
        let wanted = self.gate(|gate| gate.has_queue());
        if wanted && matches!(self.listening, Listening::Off) {
            self.start_listening();
        }
        let poll_at = self.next_try();
        let now = self.now();
        let timer = tokio::time::sleep(now.until(poll_at.min(end)));
        tokio::select! {
            biased;
            () = self.job.changed.notified() => Event::Changed,
            heard = news(&mut self.listening) => self.hear(heard),
            () = timer => {
                if self.now() < poll_at {
                    return Event::Nothing;
                }
                self.policy.again();
                Event::Reason
            }
        }
    }

    fn start_listening(&mut self) {
        let keeper = Arc::clone(&self.keeper);
        let names = Arc::clone(&self.names);
        let route = Arc::<Route>::default();
        let starting = Arc::clone(&route);
        let subscribing = async move { keeper.hub.subscribe(names.channel(), &starting).await };
        self.listening = Listening::Starting(route, subscribing.boxed());
    }

    fn hear(&mut self, heard: Heard) -> Event {
        match heard {
            Heard::Confirmed(route) => {
                self.listening = Listening::Live(route);
                self.admitted();
                self.policy.again();
                self.gate(|gate| gate.wakeups.listening(true));
                Event::Reason
            }
            Heard::Messages(messages) => {
                let news = self.gate(|gate| gate.wakeups.news(messages));
                if news == 0 {
                    return Event::Nothing;
                }
                self.turns.heard(news);
                Event::News
            }
            Heard::Broken => {
                self.listening = Listening::Off;
                self.gate(|gate| gate.wakeups.listening(false));
                // Subscribing anew may fail as well: then the next try must not be as far as was planned.
                self.policy.again();
                self.cut = true;
                Event::Nothing
            }
            Heard::Failed(failure) => {
                self.barred(&failure);
                Event::Nothing
            }
        }
    }

    /// Subscribing failed: the polls carry on. It is tried again at the next one, or later if it was refused.
    fn barred(&mut self, failure: &Failure) {
        let name = self.names.name();
        let mut until = self.now();
        if hub::is_refusal(failure) {
            until = until + self.refusals.step();
            if self.keeper.hub.refused(self.names.channel()) {
                tracing::warn!(name, cause = %failure, "subscribing was refused: waiters poll until it works");
            }
        }
        tracing::debug!(name, cause = %failure, "not subscribed, polling");
        self.listening = Listening::Barred { until };
    }

    /// Subscribing worked.
    fn admitted(&mut self) {
        self.refusals.reset();
        if self.keeper.hub.granted(self.names.channel()) {
            tracing::info!(name = self.names.name(), "subscribing works again");
        }
    }

    fn next_try(&mut self) -> Moment {
        let now = self.now();
        if self.policy.is_open()
            && matches!(self.listening, Listening::Barred { until } if now >= until)
        {
            // The connection may be back, or the right given back.
            self.listening = Listening::Off;
        }
        let known = if std::mem::take(&mut self.cut) {
            Known::Failed(Failure::no_connection())
        } else {
            self.gate(|gate| gate.known.clone())
        };
        let listening = matches!(self.listening, Listening::Live(_));
        self.policy.next_try(now, &known, listening)
    }

    /// Nobody waits: listens a while longer, then ends. True when the job is over.
    async fn idle(&mut self) -> bool {
        if matches!(self.listening, Listening::Live(_)) {
            tokio::select! {
                () = self.job.changed.notified() => return false,
                () = tokio::time::sleep(LINGER) => {}
            }
        }
        self.keeper.hub.forget(self.names.channel());
        let was = std::mem::replace(&mut self.listening, Listening::Off);
        self.gate(|gate| gate.wakeups.listening(false));
        let route = match was {
            Listening::Starting(route, subscribing) => {
                drop(subscribing);
                Some(route)
            }
            Listening::Live(route) => Some(route),
            Listening::Off | Listening::Barred { .. } => None,
        };
        if let Some(route) = route {
            let hub = &self.keeper.hub;
            hub.unsubscribe(self.names.channel(), &route).await;
        }
        self.gate(Gate::end_job)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(next) = self.next.take() {
            // It found no seat, and may still get the lock.
            next.hold.taint();
            discard(&self.keeper.core, &next.hold);
        }
    }
}

/// What came of listening.
enum Heard {
    Confirmed(Arc<Route>),
    Failed(Failure),
    Messages(u32),
    Broken,
}

async fn news(listening: &mut Listening) -> Heard {
    match listening {
        Listening::Starting(route, subscribing) => match subscribing.await {
            Ok(()) => Heard::Confirmed(Arc::clone(route)),
            Err(failure) => Heard::Failed(failure),
        },
        Listening::Live(route) => loop {
            route.told.notified().await;
            if route.is_broken() {
                return Heard::Broken;
            }
            let messages = route.take_messages();
            if messages > 0 {
                return Heard::Messages(messages);
            }
        },
        Listening::Off | Listening::Barred { .. } => std::future::pending().await,
    }
}
