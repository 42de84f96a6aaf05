//! What callers do: they carry commands, the production code decides.

use super::*;

impl World {
    /// As `acquire::enter_own`.
    pub(super) fn look(&mut self, i: usize) {
        let (now, names) = (self.now, Arc::clone(&self.names));
        let side = self.callers[i].side;
        self.callers[i].rounds -= 1;
        self.callers[i].at = At::Looked;
        let Some(owner) = self.callers[i].owner.clone() else {
            return;
        };
        let sharing = side.rules().sharing;
        let shared = sharing == Sharing::Reads;
        match owner.find(&names, shared, now) {
            Ok(Some(hold)) => {
                let request = self.request(i);
                let level = request.level;
                if shared {
                    self.read_beside(i, &hold);
                    return;
                }
                let entered = match hold.shared_hold() {
                    None => hold.with(|state| state.enter(level, now)),
                    Some(_) => self.at(|gate, effects| gate.enter_read(&hold, level, effects)),
                };
                if let Ok(Some(count)) = entered {
                    self.callers[i].at = self.enter(i, request.entered(hold), count);
                }
            }
            Err(_) => self.callers[i].at = At::Gone,
            Ok(None) if sharing == Sharing::Exclusive => {}
            Ok(None) => match owner.find(&names, !shared, now) {
                Ok(None) => {}
                Err(_) => self.callers[i].at = At::Gone,
                // It would wait for itself.
                Ok(Some(_)) if !shared => self.callers[i].at = At::Gone,
                Ok(Some(own)) => self.read_beside(i, &own),
            },
        }
    }

    /// As `enter::enter_beside`.
    fn read_beside(&mut self, i: usize, own: &Arc<Hold>) {
        let (number, request, now) = (self.number(), self.request(i), self.now);
        let term = DAY.term(now);
        let share = self.at(|gate, effects| gate.read_beside(own, &request, number, term, effects));
        if let Some(share) = share {
            self.callers[i].at = At::Holding(request.entered(share));
        }
    }

    fn request(&self, i: usize) -> Request {
        let side = self.callers[i].side;
        let fixed = side == Side::ReadsFixed;
        Request {
            kind: self.kind(side),
            owner: self.callers[i].owner.clone(),
            lease: DAY,
            level: if fixed { Level::Fixed } else { Level::Watchdog },
            at_most: None,
            patience: self.callers[i].patience,
            since: self.now,
            turn: None,
            rounds: 0,
            sent: false,
        }
    }

    pub(super) fn arrive(&mut self, i: usize) {
        let number = self.number();
        let ticket = Ticket::new(number, self.request(i));
        self.callers[i].found_none = !self.permits.came_back;
        self.see_permits();
        let hold = self.new_hold(&ticket);
        let command = self.commands.len();
        let made = Arc::clone(&hold);
        let arrival = self.at(|gate, effects| {
            gate.arrive(&ticket, effects, |shared| {
                (shared.cloned().unwrap_or(made), command)
            })
        });
        if matches!(
            arrival,
            Arrival::Join(..) | Arrival::Decided(Verdict::Granted(_))
        ) {
            let passed = self.gate.first_writer().is_some();
            assert!(!passed, "a reader passes a writer who waits here");
        }
        self.callers[i].at = match arrival {
            Arrival::First(..) => {
                self.check_left();
                self.try_begins();
                let what = What::Acquires {
                    notes: false,
                    waits: false,
                };
                self.send(&hold, what, i);
                At::Waiting(ticket, Some(command))
            }
            Arrival::Join(shared, _) => {
                self.send(&shared, What::Joins, i);
                At::Waiting(ticket, Some(command))
            }
            Arrival::Decided(Verdict::Granted(share)) => {
                assert!(!self.shut, "unasked, though Redis said that somebody waits");
                At::Holding(ticket.request.entered(share))
            }
            Arrival::Queued => At::Waiting(ticket, None),
            Arrival::Decided(Verdict::Again) => {
                self.callers[i].rounds += 1;
                At::Start
            }
            Arrival::Decided(_) => {
                let ours = self.gate.seat.held().is_some();
                // Who came behind a grant of the last permit listens, too.
                let mut found_busy = self.found_busy.iter();
                let waits = found_busy.any(|ticket| ticket.is_waiting()) || self.is_counted();
                assert!(ours || waits, "busy by an answer to somebody long gone");
                let hear = self.gate.wakeups.hear_holder();
                self.check_busy(i);
                assert!(
                    ours || hear,
                    "busy by a holder whose release nobody would hear"
                );
                At::Gone
            }
        };
    }

    pub(super) fn poll(&mut self, i: usize) {
        match std::mem::replace(&mut self.callers[i].at, At::Gone) {
            At::Waiting(ticket, first) => {
                if !ticket.is_decided()
                    && let Some(command) =
                        first.filter(|c| self.reply_of(*c) != ReplyState::InFlight)
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
            At::Entering(entered, count, command) => {
                self.callers[i].at = self.entered(entered, count, command);
            }
            At::Leaving(hold, count, Some(command)) => {
                self.counted(&hold, command, count);
            }
            other => self.callers[i].at = other,
        }
        self.again(i);
    }

    /// A caller that is done starts again while it has rounds left.
    pub(super) fn again(&mut self, i: usize) {
        let caller = &mut self.callers[i];
        if matches!(caller.at, At::Gone) && caller.rounds > 0 {
            caller.at = At::Start;
        }
    }

    pub(super) fn collect(&mut self, i: usize, ticket: Arc<Ticket>) -> At {
        if ticket.is_called()
            && let Some((hold, uncollected)) =
                self.at(|gate, effects| gate.present(&ticket, effects))
        {
            self.give_back(&uncollected.request.entered(hold), None, usize::MAX);
        }
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
            std::task::Poll::Ready(Verdict::Busy(_)) => {
                self.check_busy(i);
                At::Gone
            }
            std::task::Poll::Ready(Verdict::Failed(_)) => At::Gone,
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
            At::Entering(entered, count, command) => {
                self.write_behind(&entered.hold, count, command);
                self.give_back(&entered, None, usize::MAX);
            }
            At::Leaving(hold, count, Some(command)) => self.write_behind(&hold, count, command),
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
    pub(super) fn give_back(&mut self, entered: &HeldLevel, lane: Option<usize>, caller: usize) {
        let (now, command) = (self.now, self.commands.len());
        let send = lane.map(|_| || command);
        let hold = &entered.hold;
        let closes_window = self.closes_window(hold);
        let given_back =
            self.at(|gate, effects| gate.give_back(hold, entered.level, send, effects));
        if let Some(owner) = &entered.owner
            && hold.count() == 0
        {
            owner.remove(hold);
        }
        if closes_window && matches!(given_back, GivenBack::Sent(_) | GivenBack::LeftToKeeper) {
            self.closes_window = Some(Arc::clone(hold));
        }
        let at = match given_back {
            GivenBack::Sent(command) => {
                let hold = hold.in_redis();
                self.send(hold, What::Releases, lane.unwrap());
                At::Unlocking(Arc::clone(hold), command, now)
            }
            GivenBack::PassedOn => {
                self.check_passed(hold);
                At::Gone
            }
            GivenBack::LeftToKeeper if lane.is_some() => At::Watching(Arc::clone(hold.in_redis())),
            GivenBack::Levels(count) => self.left(hold, count, lane.is_some()),
            GivenBack::Downgrade => {
                self.downgrade_begun(hold.in_redis());
                At::Gone
            }
            _ => At::Gone,
        };
        if let Some(caller) = self.callers.get_mut(caller) {
            caller.at = at;
        }
    }
}
