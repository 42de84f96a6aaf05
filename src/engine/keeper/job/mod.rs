//! Waiting: the keeper's job for one name that somebody queues for, or that an abandoned attempt left.
//!
//! For the head of the queue: subscribe, wait for the confirmation, try; then sleep until the first of
//! a wake-up, the end of the holder's lease, or the poll; try again. By I5 no wake-up is lost: a wake-up is a
//! permit that is consumed before the try. Without a subscription the jittered poll alone carries on. A kind may
//! have a backoff of its own: its waiters need no subscription, and while one of them is the head, tries come at
//! its pace.
//!
//! While the lock is held here and others queue, the hold is verified at each wake-up that is not the
//! echo of our own release, and at each poll: somebody may have freed it.
//!
//! What is to be done next is decided by the gate ([`steps`](crate::engine::gate::next)); each step awaits something
//! or changes the gate.

mod fair;

mod listening;
mod marks;
pub(super) mod policy;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use self::fair::Places;
use self::listening::{Heard, IsFirst, LINGER, Listening};
use self::policy::WaitPolicy;
use self::turns::{Turns, WAY};
use crate::backend::{Failure, Pending};
use crate::clock::Moment;
use crate::engine::caller::acquire::{new_hold, start_join};
use crate::engine::caller::release;
use crate::engine::caller::settle::{settle_attempt, settle_release};
use crate::engine::core::Core;
use crate::engine::gate::answers::SentAs;
use crate::engine::gate::known::Known;
use crate::engine::gate::next::Step;
use crate::engine::gate::seat::Attempt;
use crate::engine::gate::ticket::{Patience, Ticket};
use crate::engine::gate::{Gate, Job};
use crate::engine::hold::Hold;
use crate::engine::hold::effects::Effects;
use crate::engine::hold::kind::Try;
use crate::engine::keeper::shared::Keeper;
use crate::names::Names;

/// So many waiters with a place in a queue of Redis' are listened for: the next, and the one behind it.
const LISTENS_TO: usize = 2;

pub(crate) async fn serve(keeper: Arc<Keeper>, names: Arc<Names>) {
    let (job, has_redis_queue) = keeper
        .core
        .gates
        .with(&names, |gate| (gate.job(), gate.has_redis_queue()));
    let Some(job) = job else {
        return;
    };
    let mut line = Line {
        policy: WaitPolicy::new(keeper.core.config.backoff, fastrand::u64(..)),
        listening: Listening::new(&keeper, &names),
        places: has_redis_queue.then(Places::new),
        keeper,
        names,
        job,
        turns: Turns::new(),
        way: None,
        rested: false,
        cut: false,
        mark_at: Moment::default(),
    };
    while line.advance().await {}
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

/// One name's job.
pub(super) struct Line {
    pub(super) keeper: Arc<Keeper>,
    pub(super) names: Arc<Names>,
    job: Arc<Job>,
    listening: Listening,
    /// Of this client's waiters, where Redis keeps a queue.
    places: Option<Places>,
    /// The next try, or look at our own hold, if nothing comes before.
    policy: WaitPolicy,
    turns: Turns,
    /// Until then the lock is left to others.
    way: Option<Moment>,
    /// The lock was left to others since our last release.
    rested: bool,
    /// The subscription's connection broke, and nothing was planned since.
    cut: bool,
    /// When Redis is to be told again that somebody here waits to have the lock alone.
    pub(super) mark_at: Moment,
}

impl Line {
    pub(super) fn now(&self) -> Moment {
        self.keeper.core.now()
    }

    pub(super) fn at<R>(&self, change: impl FnOnce(&mut Gate<Pending>, &mut Effects) -> R) -> R {
        self.keeper.core.at(&self.names, change)
    }

    /// One step; false when the job has ended.
    async fn advance(&mut self) -> bool {
        if let Some(places) = &mut self.places {
            places.keep(&self.keeper.core, &self.names);
        }
        let (now, rules) = (self.now(), self.keeper.core.rules());
        // Who waits next in a queue of Redis' listens to another channel.
        let listening = self.listening.is_live() && self.places.is_none();
        let step = self.at(|gate, effects| gate.step(now, rules, listening, effects));
        match step {
            Step::FinishAttempt(hold, command, since) => {
                if let Some(outcome) = self.outcome(&command, since).await {
                    // Its place was asked for before it: most often that is answered, too.
                    if let Some(places) = &mut self.places {
                        places.see(&self.keeper.core);
                    }
                    settle_attempt(&self.keeper.core, &hold, &command, outcome);
                }
            }
            Step::FinishRelease(hold, command, since) => {
                if let Some(outcome) = self.outcome(&command, since).await {
                    let core = &self.keeper.core;
                    // What is to be repeated is left to the reaper by the gate.
                    let _ = settle_release(core, &hold, &SentAs::Seat(&command), outcome);
                }
            }
            Step::HandOver { hold } => self.hand_over(&hold),
            Step::AwaitRelease => tokio::select! {
                () = self.job.changed.notified() => {}
                () = is_due(self.places.as_ref(), &self.keeper.core) => {}
            },
            Step::Watch { collect_by } => {
                self.policy.watch();
                self.watch(collect_by).await;
            }
            Step::Serve {
                head,
                prompt,
                released,
                collect_by,
            } => {
                self.policy
                    .serve(head.number, head.request.kind.commands.backoff());
                if self.is_time(prompt, released, collect_by).await {
                    self.try_for(&head);
                }
            }
            Step::Leave(until) => {
                self.rested = true;
                self.event(until).await;
            }
            Step::Linger => self.linger().await,
            Step::Over { mark } => {
                self.unmark(mark);
                self.end().await;
                return false;
            }
        }
        true
    }

    /// Awaits the command in the seat, whoever sent it, so that nobody depends on its caller (I9). `None` when
    /// something changed meanwhile.
    async fn outcome(
        &mut self,
        command: &Pending,
        since: Moment,
    ) -> Option<crate::backend::CommandResult> {
        let core = &self.keeper.core;
        let left = core.now().until(since + core.config.command_timeout);
        let outcome = tokio::select! {
            outcome = command.clone().within(left) => outcome,
            () = self.job.changed.notified() => return None,
            () = is_due(self.places.as_ref(), core) => return None,
        };
        self.policy.again();
        Some(outcome)
    }

    /// Sends a last release, and right behind it, on the same connection, the try for the next one here.
    fn hand_over(&mut self, hold: &Arc<Hold>) {
        let core = Arc::clone(&self.keeper.core);
        let since = core.now();
        let release = hold.kind.release(&hold.id, 0).in_order();
        let release = Pending::start(&core.keeper_fleet, release);
        let first = release.clone();
        let next = self.at(|gate, _| {
            // Under the gate's lock: who leaves from now on finds that it is tried for.
            let next = gate.head().map(|ticket| {
                let mark = marks::of(gate, &ticket, &core, since);
                let (hold, command) = start_try(&core, &ticket, mark, since);
                Attempt {
                    hold,
                    ticket,
                    command,
                    since,
                    early: true,
                    overdue: false,
                }
            });
            let command = next.as_ref().map(|next| next.command.clone());
            gate.handed_over(hold, release, next, since);
            command
        });
        for command in [Some(first), next].into_iter().flatten() {
            // The first poll sends it.
            let _ = command.now_or_never();
        }
    }

    /// Waits for a reason to try for the head of the queue, unless something else comes first.
    async fn is_time(
        &mut self,
        prompt: bool,
        released: Option<u32>,
        collect_by: Option<Moment>,
    ) -> bool {
        if let Some(others) = released {
            self.turns.released(others);
        }
        let rested = std::mem::take(&mut self.rested);
        if prompt {
            return rested || !(released.is_some() && self.leaves_it_to_others());
        }
        let way = self.way.unwrap_or(Moment::NEVER);
        match self
            .event(way.min(collect_by.unwrap_or(Moment::NEVER)))
            .await
        {
            Event::News => !self.leaves_it_to_others(),
            Event::Reason => {
                self.way = None;
                true
            }
            Event::Changed => false,
            Event::Nothing => {
                let now = self.now();
                self.take_back();
                let over = self.way.take_if(|until| now >= *until).is_some();
                if over {
                    self.turns.in_vain();
                }
                over
            }
        }
    }

    /// Whether others have their turn first.
    fn leaves_it_to_others(&mut self) -> bool {
        self.way = self.turns.leaves_it_to_others().then(|| self.now() + WAY);
        self.way.is_some()
    }

    /// Tries for the head of the queue.
    fn try_for(&mut self, head: &Arc<Ticket>) {
        self.policy.again();
        let core = Arc::clone(&self.keeper.core);
        let now = core.now();
        let mut tried = None;
        self.at(|gate, _| {
            let mark = marks::of(gate, head, &core, now);
            gate.call_up(head, now, |joint| {
                let (hold, command) = match joint {
                    Some(joint) => start_join(&core.keeper_fleet, joint, head),
                    None => start_try(&core, head, mark, now),
                };
                tried = Some(command.clone());
                (hold, command)
            })
        });
        // The lock is free until it arrives.
        if let Some(command) = tried {
            command.send_at_once();
        }
    }

    /// Watches over our own hold while others wait, and over a grant that nobody collects.
    async fn watch(&mut self, collect_by: Option<Moment>) {
        let event = self.event(collect_by.unwrap_or(Moment::NEVER)).await;
        if self.take_back() {
            return;
        }
        let reason = matches!(event, Event::Reason | Event::News);
        // It may have been passed on meanwhile.
        let held = self.at(|gate, _| gate.watched().cloned());
        if let Some(hold) = held.filter(|_| reason) {
            self.warn_of_self();
            self.policy.again();
            self.keeper.watchdog.verify(&hold);
        }
    }

    /// Takes a grant back that nobody collected in time, if there is one.
    fn take_back(&self) -> bool {
        let core = &self.keeper.core;
        let (now, rules) = (core.now(), core.rules());
        let taken = self.at(|gate, _| gate.take_back(now, rules));
        if let Some((hold, ticket)) = &taken {
            release::drop_level(core, &ticket.request.entered(Arc::clone(hold)));
        }
        taken.is_some()
    }

    fn warn_of_self(&self) {
        let now = self.now();
        if self.at(|gate, _| gate.waits_for_itself(now)) {
            tracing::warn!(
                name = self.names.name(),
                "a task waits for a lock that it holds itself under another owner: \
                 to enter again use guard.reenter(lease), one Owner, or Client::scope"
            );
        }
    }

    /// The first of: news on the channel, a change at the gate, the poll, `end`.
    async fn event(&mut self, end: Moment) -> Event {
        if self.policy.is_open() {
            self.listening.retry(self.now());
        }
        self.listen();
        let end = end.min(self.mark());
        let poll_at = self.next_try();
        let look_at = poll_at.min(end);
        self.at(|gate, _| gate.job_looks_at(look_at));
        let timer = tokio::time::sleep(self.now().until(look_at));
        tokio::select! {
            biased;
            () = self.job.changed.notified() => Event::Changed,
            (heard, first) = self.listening.heard() => self.hear(&heard, first),
            () = is_due(self.places.as_ref(), &self.keeper.core) => Event::Nothing,
            () = timer => {
                if self.now() < poll_at {
                    return Event::Nothing;
                }
                self.policy.again();
                Event::Reason
            }
        }
    }

    /// Listens to what may wake those who wait here.
    fn listen(&mut self) {
        let names = &self.names;
        if self.places.is_none() {
            if self.at(|gate, _| gate.has_listeners()) {
                self.listening.start(&[names.channel()]);
            }
            return;
        }
        let channels = self.at(|gate, _| gate.channels(LISTENS_TO));
        self.listening.start(&channels);
    }

    fn hear(&mut self, heard: &Heard, IsFirst(first): IsFirst) -> Event {
        match *heard {
            Heard::Confirmed if !first => Event::Nothing,
            Heard::Confirmed => {
                self.policy.again();
                let more = self.places.is_some();
                self.at(|gate, _| {
                    if more {
                        gate.hears_more();
                    } else {
                        gate.listening(true);
                    }
                });
                Event::Reason
            }
            Heard::Messages(messages) => {
                let news = self.at(|gate, _| gate.hear(messages));
                if news == 0 {
                    return Event::Nothing;
                }
                self.turns.heard(news);
                Event::News
            }
            Heard::Broken => {
                self.at(|gate, _| gate.listening(false));
                // Subscribing anew may fail as well: then the next try must not be as far as was planned.
                self.policy.again();
                self.cut = true;
                if let Some(places) = &mut self.places {
                    places.doubt();
                }
                Event::Nothing
            }
            Heard::Failed => Event::Nothing,
        }
    }

    fn next_try(&mut self) -> Moment {
        let now = self.now();
        let (known, listeners) = self.at(|gate, _| (gate.known(now).clone(), gate.has_listeners()));
        let known = if std::mem::take(&mut self.cut) {
            Known::Failed(Failure::no_connection())
        } else {
            known
        };
        let listening = self.listening.is_live();
        self.policy.next_try(now, &known, listening, listeners)
    }

    /// The job is over; another one may have begun for the name.
    async fn end(&mut self) {
        match &mut self.places {
            Some(places) => {
                self.listening.leave();
                places.finish(&self.keeper.core).await;
            }
            None => self.listening.stop().await,
        }
    }

    /// Nobody waits: listens a while longer, and then no more.
    async fn linger(&mut self) {
        self.mark();
        tokio::select! {
            () = self.job.changed.notified() => {}
            () = tokio::time::sleep(LINGER) => {
                self.at(|gate, _| gate.listening(false));
                self.listening.stop().await;
            }
        }
    }
}

/// Waits until something is to be done for the places of this client's waiters.
async fn is_due(places: Option<&Places>, core: &Core) {
    match places {
        Some(places) => places.is_due(core).await,
        None => std::future::pending().await,
    }
}

/// Makes a try for `ticket`, under the hold id of the one before when its outcome is unknown.
fn start_try(
    core: &Core,
    ticket: &Arc<Ticket>,
    mark: Duration,
    now: Moment,
) -> (Arc<Hold>, Pending) {
    let unsettled = ticket.unsettled();
    let sort = Try {
        waits: ticket.request.patience != Patience::Once,
        mark,
    };
    let hold = match unsettled {
        Some(hold) => {
            let finish_by = now + core.config.command_timeout;
            hold.with(|state| state.try_again(finish_by));
            core.look_by(&hold, finish_by);
            hold
        }
        None => new_hold(core, ticket, now),
    };
    if ticket.may_have_place() {
        ticket.set_unsettled(Some(&hold));
    }
    let call = hold.kind.acquire(&hold.id, hold.lease, sort);
    let command = Pending::start(&core.keeper_fleet, call);
    (hold, command)
}
