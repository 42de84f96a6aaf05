//! What callers and the keeper do: they carry commands, the production code decides.

use super::*;

impl World {
    pub(super) fn step(&mut self, choice: Choice) {
        match choice {
            Choice::Look(i) => self.look(i),
            Choice::Arrive(i) => self.arrive(i),
            Choice::Poll(i) => self.poll(i),
            Choice::Drop(i) => self.drop_future(i),
            Choice::Unlock(i) => {
                let At::Holding(entered) = std::mem::replace(&mut self.callers[i].at, At::Gone)
                else {
                    return;
                };
                self.give_back(&entered, Some(i), i);
            }
            Choice::Detach(i) => self.detach(i),
            Choice::EndOwner(i) => self.end_owner(i),
            Choice::Close => self.closed = true,
            Choice::Job => self.job_step(),
            Choice::JobPoll if self.asleep == Asleep::Linger => {
                self.listening = false;
                self.at(|gate, _| gate.wakeups.listening(false));
                self.job_step();
            }
            Choice::JobPoll => {
                self.polls -= 1;
                self.gate.prompt = true;
                self.job_step();
            }
            Choice::Tick => {
                // Who sleeps is waited for once.
                self.ticks = self.ticks.saturating_sub(1);
                self.now = self.now + RULES.command_timeout;
                let now = self.now;
                self.asleep = Asleep::Awake;
                if let Some((hold, ticket)) = self.at(|gate, _| gate.take_back(now, RULES)) {
                    self.give_back(&ticket.request.entered(hold), None, usize::MAX);
                }
            }
            Choice::Reap(i) => self.reap(i),
            Choice::Overdue(i) => {
                if !self.is_free_to_end(&self.commands[i]) {
                    self.faults -= 1;
                }
                self.commands[i].ended = true;
                // The connection is replaced: what is on its way comes whenever it comes.
                self.commands[i].lane = 1_000 + i;
                let hold = Arc::clone(&self.commands[i].hold);
                self.at(|gate, effects| gate.overdue(&hold, effects));
            }
            Choice::Execute(lane) => self.execute(lane),
            Choice::Refuse(lane) => {
                self.faults -= 1;
                let next = self.next_of(lane);
                self.commands[next].refused = true;
            }
            Choice::LoseReply(i) => {
                self.faults -= 1;
                self.commands[i].reply_lost = true;
            }
            Choice::Vanish => {
                self.faults -= 1;
                self.held_by = None;
            }
            Choice::Lose => {
                self.faults -= 1;
                let hold = Arc::clone(self.gate.seat.held().unwrap());
                if hold.with(|state| state.lose(LostReason::Missing)) {
                    self.at(|gate, effects| {
                        gate.vacate(&hold);
                        effects.release(&hold);
                    });
                }
            }
            Choice::Stranger => {
                if self.held_by.is_none() {
                    self.strangers -= 1;
                    self.held_by = Some(0);
                } else {
                    self.held_by = None;
                    self.polls += 1;
                }
            }
        }
        self.check(choice);
    }

    pub(super) fn look(&mut self, i: usize) {
        let now = self.now;
        let owner = self.callers[i].owner.clone();
        let names = Arc::clone(&self.kind.names);
        self.callers[i].rounds -= 1;
        self.callers[i].at = match owner.as_ref().map(|owner| owner.find(&names, false, now)) {
            Some(Found::Live(hold)) => match hold.with(|state| state.enter(Level::Watchdog, now)) {
                Ok(_) => At::Holding(Entered {
                    hold,
                    level: Level::Watchdog,
                    owner,
                    open: true,
                }),
                Err(_) => At::Looked,
            },
            Some(Found::Lost(_)) => At::Gone,
            Some(Found::Nothing) | None => At::Looked,
        };
    }

    pub(super) fn arrive(&mut self, i: usize) {
        let number = self.number();
        let request = Request {
            kind: self.kind.clone(),
            owner: self.callers[i].owner.clone(),
            lease: DAY,
            level: Level::Watchdog,
            patience: self.callers[i].patience,
            since: self.now,
        };
        let ticket = Ticket::new(number, request);
        let hold = self.new_hold(&ticket);
        let command = self.commands.len();
        let (now, made) = (self.now, Arc::clone(&hold));
        let arrival =
            self.at(|gate, effects| gate.arrive(&ticket, now, RULES, effects, |_| (made, command)));
        self.callers[i].at = match arrival {
            Arrival::First(_) => {
                self.send(&hold, true, i);
                At::Waiting(ticket, Some(command))
            }
            Arrival::Queued => At::Waiting(ticket, None),
            Arrival::Busy => {
                let ours = self.gate.seat.held().is_some();
                let told = self.busy_told.iter().any(|ticket| ticket.is_waiting());
                assert!(ours || told, "busy by an answer to somebody long gone");
                At::Gone
            }
            Arrival::Join(..) | Arrival::In(_) => unreachable!("it is not shared"),
            Arrival::Again => {
                self.callers[i].rounds += 1;
                At::Start
            }
        };
    }

    pub(super) fn poll(&mut self, i: usize) {
        match std::mem::replace(&mut self.callers[i].at, At::Gone) {
            At::Waiting(ticket, first) => {
                if !ticket.is_decided()
                    && let Some(command) = first.filter(|c| self.told(*c) != Told::InFlight)
                {
                    self.settle(command);
                }
                self.callers[i].at = self.collect(i, ticket);
            }
            At::Unlocking(hold, command, since) => {
                let over = self.settle_release(&hold, Some(command), command, since);
                self.callers[i].at = if over { At::Gone } else { At::Watching(hold) };
            }
            At::Watching(hold) => self.check_outcome(&hold),
            other => self.callers[i].at = other,
        }
        self.again(i);
    }

    /// A caller that is done begins anew while it has rounds left.
    pub(super) fn again(&mut self, i: usize) {
        let caller = &mut self.callers[i];
        if matches!(caller.at, At::Gone) && caller.rounds > 0 {
            caller.at = At::Start;
        }
    }

    pub(super) fn collect(&mut self, i: usize, ticket: Arc<Ticket>) -> At {
        if !ticket.is_decided() {
            return At::Waiting(ticket, None);
        }
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match ticket.poll(&mut context) {
            std::task::Poll::Ready(Verdict::Granted(hold)) => {
                let entered = ticket.request.entered(hold);
                if self.now < entered.hold.valid_until() {
                    return At::Holding(entered);
                }
                self.give_back(&entered, None, usize::MAX);
                At::Gone
            }
            std::task::Poll::Ready(Verdict::Again) => {
                self.callers[i].rounds += 1;
                At::Start
            }
            std::task::Poll::Ready(Verdict::Busy | Verdict::Failed(_)) => At::Gone,
            std::task::Poll::Pending => At::Waiting(ticket, None),
        }
    }

    pub(super) fn drop_future(&mut self, i: usize) {
        match std::mem::replace(&mut self.callers[i].at, At::Gone) {
            At::Waiting(ticket, _) => {
                let uncollected = self.at(|gate, effects| gate.withdraw(&ticket, effects));
                if let Some(hold) = uncollected {
                    self.give_back(&ticket.request.entered(hold), None, usize::MAX);
                }
            }
            At::Holding(entered) => self.give_back(&entered, None, usize::MAX),
            At::Unlocking(hold, ..) if hold.phase() == Phase::Ending => {
                self.at(|_, effects| effects.release(&hold));
            }
            _ => {}
        }
        self.again(i);
    }

    pub(super) fn detach(&mut self, i: usize) {
        let At::Holding(entered) = std::mem::replace(&mut self.callers[i].at, At::Gone) else {
            return;
        };
        let owner = entered.owner.clone().unwrap();
        self.callers[i].at = if owner.detach(&entered.hold, entered.level) {
            At::Detached
        } else {
            self.callers[i].manner = Manner::Unlocks;
            At::Holding(entered)
        };
    }

    pub(super) fn end_owner(&mut self, i: usize) {
        let owner = self.callers[i].owner.clone().unwrap();
        for caller in &mut self.callers {
            caller.owner_ended |= caller
                .owner
                .as_ref()
                .is_some_and(|o| Arc::ptr_eq(o, &owner));
        }
        for entered in owner.end() {
            self.give_back(&entered, None, usize::MAX);
        }
        for caller in &mut self.callers {
            if caller.owner_ended && matches!(caller.at, At::Detached) {
                caller.at = At::Gone;
            }
        }
    }

    /// As `release::give_back`, with a connection, or as `release::drop_level`.
    pub(super) fn give_back(&mut self, entered: &Entered, lane: Option<usize>, caller: usize) {
        let (now, command) = (self.now, self.commands.len());
        let send = lane.map(|_| || command);
        let hold = &entered.hold;
        let given_back =
            self.at(|gate, effects| gate.give_back(hold, entered.level, now, RULES, send, effects));
        if let Some(owner) = &entered.owner
            && hold.count() == 0
        {
            owner.remove(hold);
        }
        let at = match given_back {
            GivenBack::Sent(command) => {
                self.send(hold, false, lane.unwrap());
                At::Unlocking(Arc::clone(hold), command, now)
            }
            GivenBack::Left if lane.is_some() => At::Watching(Arc::clone(hold)),
            _ => At::Gone,
        };
        if let Some(caller) = self.callers.get_mut(caller) {
            caller.at = at;
        }
    }

    pub(super) fn job_step(&mut self) {
        let now = self.now;
        let listening = self.listening;
        self.asleep = Asleep::Awake;
        let step = self.at(|gate, effects| gate.step(now, RULES, listening, effects));
        match step {
            Step::FinishAttempt(_, command, _) | Step::FinishRelease(_, command, _)
                if self.told(command) == Told::InFlight =>
            {
                self.asleep = Asleep::Command(command);
            }
            Step::FinishAttempt(_, command, _) => self.settle(command),
            Step::FinishRelease(hold, command, since) => {
                self.settle_release(&hold, Some(command), command, since);
            }
            Step::HandOver { hold } => {
                let release = self.send(&hold, false, KEEPER);
                let next = self.gate.head().map(|ticket| {
                    let (hold, command) = self.start_try(&ticket);
                    Attempt {
                        hold,
                        ticket,
                        command,
                        since: now,
                        early: true,
                        overdue: false,
                    }
                });
                self.at(|gate, _| gate.handed_over(&hold, release, next, now));
            }
            Step::Serve { head, prompt, .. } => {
                if prompt {
                    let (hold, command) = self.start_try(&head);
                    let sits = self.at(|gate, _| gate.call_up(&head, now, |_| (hold, command)));
                    assert!(sits, "the head of a free seat sits");
                } else {
                    self.asleep = Asleep::Poll;
                }
            }
            Step::Watch { collect_by, .. } => {
                // The job waits until then, and takes the grant back: it must be there to be taken.
                let lies = match &self.gate.seat {
                    Seat::Held { uncollected, .. } => uncollected
                        .as_ref()
                        .is_some_and(|(ticket, _)| ticket.is_decided()),
                    _ => false,
                };
                assert_eq!(collect_by.is_some(), lies, "a job that spins");
                self.asleep = Asleep::Poll;
            }
            Step::Over => self.job = false,
            Step::AwaitRelease => self.asleep = Asleep::Change,
            Step::Linger => self.asleep = Asleep::Linger,
        }
    }
}
