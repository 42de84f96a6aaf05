//! What holds after every step, and when nothing can happen any more.

use super::*;
use crate::engine::gate::succession::PASS_ON_FOR;

impl World {
    /// A hold ends with Ok only if a release ended it, or if a release had no answer (I2).
    pub(super) fn check_outcome(&self, hold: &Arc<Hold>) {
        let releases = |c: &&Command| c.what == What::Releases && c.hold.id == hold.id;
        let unanswered = self.commands.iter().filter(releases).any(|c| c.ended);
        if hold.outcome().is_ok() && !matches!(hold.phase(), Phase::Lost(_)) {
            let ended = self.ended.contains(&field(hold));
            assert!(
                ended || unanswered,
                "unlocked with Ok, and it was lost before"
            );
        }
    }

    /// Whether the release of `hold` must close the window: its time is over, and others wait here.
    pub(super) fn closes_window(&self, hold: &Arc<Hold>) -> bool {
        let last = hold.count() == 1 && hold.shared_hold().is_none() && hold.phase() == Phase::Held;
        let in_seat = self.gate.seat.held();
        let in_seat = in_seat.is_some_and(|held| Arc::ptr_eq(held, hold));
        let over = self.window_opened.until(self.now) >= PASS_ON_FOR;
        // Where Redis keeps the queue, the lock need not be left free for others.
        last && in_seat && over && self.gate.has_queue() && !hold.kind.has_queue()
    }

    /// `hold` was passed on.
    pub(super) fn check_passed(&mut self, hold: &Arc<Hold>) {
        assert!(
            self.window_opened.until(self.now) < PASS_ON_FOR,
            "a window without an end"
        );
        let mut held = self.gate.seats().filter_map(Seat::held);
        let next = held.find(|held| held.id == hold.id).unwrap();
        let counted = hold.kind.commands.leaves_the_seat();
        let late = counted && self.permits.others_waited;
        assert!(
            !late,
            "passed on though another client's request has waited"
        );
        let tried = counted && !self.gate.seat.is_free();
        assert!(
            !tried,
            "passed on while a try for the first one is under way"
        );
        assert!(next.valid_until() > self.now, "the next one has nothing");
        assert_eq!(hold.valid_until(), Moment::default(), "both have it");
        let kinds = [hold, next].map(|hold| hold.kind.commands.rules().passes_on);
        assert_eq!(kinds, [true; 2], "to or from what is not passed on");
        assert!(self.has_no_ghost(hold), "what may be acquired once more");
        if !counted {
            self.check_count(hold);
        }
        self.passed.insert(field(hold));
    }

    /// An attempt begins, so the time for which the lock is left to others is over.
    pub(super) fn check_left(&self) {
        assert!(self.now >= self.left_until, "nobody else had a chance");
        assert!(
            self.closes_window.is_none(),
            "the end of a window is sent alone"
        );
    }

    /// What holds after every step.
    pub(super) fn check(&self, choice: Choice) {
        let holding: Vec<_> = self
            .callers
            .iter()
            .filter_map(|caller| match &caller.at {
                At::Holding(entered) => Some((caller, entered)),
                _ => None,
            })
            .collect();
        for (_, entered) in &holding {
            let phase = entered.hold.phase();
            let good = matches!(phase, Phase::Held | Phase::Lost(_));
            assert!(good, "{choice:?}: a guard for a hold that is {phase:?}");
        }
        let certain: Vec<_> = holding
            .iter()
            .filter(|(_, entered)| entered.hold.valid_until() > self.now)
            .collect();
        for (caller, entered) in &certain {
            let commands = &entered.hold.kind.commands;
            let alone = !commands.is_shared() && !commands.leaves_the_seat();
            let beside = |other: &HeldLevel| {
                let own = caller.owner.is_some() && other.hold.owner == entered.hold.owner;
                let same = other.hold.number == entered.hold.number;
                let alone = alone || !other.hold.kind.commands.is_shared();
                !same && alone && !own && !commands.leaves_the_seat()
            };
            let two = certain.iter().any(|(_, other)| beside(other));
            assert!(!two, "{choice:?}: somebody beside an exclusive hold");
        }
        self.check_shares(choice);
        self.check_places(choice);
        self.check_permits(choice);
        for (i, caller) in self.callers.iter().enumerate() {
            if let At::Waiting(ticket, _) = &caller.at
                && ticket.is_waiting()
            {
                let known = self.gate.is_queued(ticket) || self.gate.try_for(ticket).is_some();
                assert!(known, "{choice:?}: caller {i} is forgotten");
            }
        }
        if let Some(held) = self
            .gate
            .seat
            .held()
            .filter(|hold| self.now < hold.valid_until())
        {
            let behind = |ticket: &Arc<Ticket>| {
                held.owner.is_some() && ticket.request.owner_number() == held.owner
            };
            let waits = self.gate.queue.iter().any(behind);
            assert!(!waits, "{choice:?}: an owner waits behind its own hold");
        }
        let lies = self.not_collecting().next().is_some();
        assert!(
            self.job || !lies,
            "{choice:?}: a grant that nobody takes back"
        );
        let deaf = matches!(self.asleep, Asleep::Linger);
        let is_late = lies && self.asleep == Asleep::Poll;
        assert!(
            !(is_late && matches!(&self.gate.seat, Seat::Held { .. })),
            "{choice:?}: a job that comes too late for a grant"
        );
        let waits = match &self.gate.seat {
            Seat::HandingOver { .. } => true,
            Seat::Trying(attempt) => attempt.overdue || !attempt.ticket.is_waiting(),
            Seat::Held { .. } if lies => true,
            _ => self.gate.has_queue(),
        };
        assert!(
            !(self.job && deaf && waits),
            "{choice:?}: a job that nobody notified"
        );
        assert!(
            self.job || !self.gate.has_queue(),
            "{choice:?}: a queue that nobody serves"
        );
        assert_eq!(self.job, self.gate.job().is_some(), "{choice:?}");
        self.check_note(choice);
        let claimed: HashSet<_> = self.reaps.iter().map(|(hold, _)| hold.number).collect();
        assert_eq!(
            claimed.len(),
            self.reaps.len(),
            "{choice:?}: one reaper a hold"
        );
    }

    /// A note has a job, which removes it before it sleeps if no writer waits: nobody else does.
    fn check_note(&self, choice: Choice) {
        let noted = self
            .gate
            .writer_waits
            .as_ref()
            .filter(|note| !note.withdrawn);
        let mut tries = self.gate.seat.tries().into_iter();
        let writes = self.gate.first_writer().is_some()
            || tries.any(|attempt| attempt.ticket.request.kind.commands.leaves_notes());
        let stays = self.job && (writes || matches!(self.asleep, Asleep::Awake));
        assert!(stays || noted.is_none(), "{choice:?}: a note that stays");
    }

    /// Whether no answer makes a reader wait. A join that failed is made again at the next poll.
    fn knows_nothing(&self) -> bool {
        matches!(self.gate.last_answer(self.now), LastAnswer::Nothing)
    }

    /// What holds for a shared hold.
    fn check_shares(&self, choice: Choice) {
        let Seat::Shared { shared, join } = &self.gate.seat else {
            return;
        };
        let shares: Vec<_> = shared.reads().collect();
        let is_watched = |hold: &Arc<Hold>| hold.with(|state| state.is_watched());
        assert!(!shares.is_empty(), "{choice:?}: nobody reads");
        if shared.hold().phase() == Phase::Held {
            let count = shared.hold().count() as usize;
            assert_eq!(count, shares.len(), "{choice:?}: a level for each read");
            let watched = shares.iter().any(|share| is_watched(share));
            assert_eq!(is_watched(shared.hold()), watched, "{choice:?}: watched");
        }
        let alone = |hold: &&Arc<Hold>| hold.kind.commands.is_writer();
        let writers = shares.iter().copied().filter(alone).count();
        assert!(writers <= 1, "{choice:?}: two writers");
        assert!(
            writers == 0 || shared.is_exclusive(),
            "{choice:?}: a writer who shares"
        );
        for owner in self
            .callers
            .iter()
            .filter_map(|caller| caller.owner.as_ref())
        {
            let has = owner.has(&self.names, self.now);
            let own = |ticket: &Arc<Ticket>| ticket.request.owner_number() == Some(owner.number);
            let waits = self.gate.queue.iter().any(own);
            assert!(!(has && waits), "{choice:?}: an owner waits behind itself");
        }
        let head = self.gate.queue.head();
        let joinable = head.is_some_and(|head| self.gate.may_read(head, self.now));
        let asleep = matches!(self.asleep, Asleep::Poll | Asleep::Linger);
        assert!(
            !(joinable && join.is_none() && asleep && self.knows_nothing()),
            "{choice:?}: a reader waits that could ask"
        );
        let over = |caller: &&Caller| matches!(&caller.at, At::Holding(entered) if entered.hold.count() == 0);
        assert!(
            !self.callers.iter().any(|caller| over(&caller)),
            "{choice:?}: a guard without a level"
        );
    }

    /// What holds when nothing can happen any more.
    pub(super) fn check_end(&self) {
        let held = self.callers.iter().any(|caller| match &caller.at {
            At::Holding(entered) => entered.hold.phase() == Phase::Held,
            At::Detached => true,
            _ => false,
        });
        assert!(!held, "nobody ends with a guard");
        let trying = matches!(&self.gate.seat, Seat::Trying(_) | Seat::HandingOver { .. });
        assert!(!trying, "an attempt that nobody sees through");
        for (i, caller) in self.callers.iter().enumerate() {
            match &caller.at {
                At::Waiting(..) if caller.manner == Manner::Sleeps => {}
                At::Waiting(ticket, _) => {
                    // A waiter without a limit behind a stranger polls by the clock, and that is not among the choices.
                    let queued = self.gate.queue.contains(ticket.number);
                    assert!(queued && self.job, "caller {i} waits for nothing");
                }
                At::Unlocking(..) | At::Watching(_) => panic!("caller {i} waits for its release"),
                At::Entering(..) | At::Leaving(..) => panic!("caller {i} waits for its count"),
                _ => {}
            }
        }
        let done = |c: &Caller| match &c.at {
            At::Gone | At::Start => true,
            // Nobody polls a caller that sleeps, so it does not collect its result.
            At::Waiting(ticket, _) => c.manner == Manner::Sleeps && ticket.is_decided(),
            _ => false,
        };
        if self.callers.iter().all(done) {
            assert!(self.held_by.is_none_or(|by| by == 0), "a key is left");
            assert!(self.read_by.is_empty(), "a read hold is left");
            let mut taken = self.permits.taken.keys();
            assert!(taken.all(|by| *by == 0), "permits are left");
            assert!(!self.places.has_ours(), "a place is left");
            // After a fault a note may stay: it ends by its TTL.
            assert!(!self.note || self.faulted, "a note is left");
            if !self.closed {
                assert!(!self.job, "a job is left");
                assert!(self.gate.is_unused(), "a gate is left");
            }
        }
    }
}
