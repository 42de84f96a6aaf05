//! What holds after every step, and when nothing can happen any more.

use super::*;

impl World {
    /// By I2: Ok means that a release ended it, or that nobody can know.
    pub(super) fn check_outcome(&self, hold: &Arc<Hold>) {
        let releases = |c: &&Command| !c.acquires && c.hold.number == hold.number;
        let unanswered = self.commands.iter().filter(releases).any(|c| c.ended);
        if hold.outcome().is_ok() && !matches!(hold.phase(), Phase::Lost(_)) {
            let ended = self.ended.contains(&hold.number);
            assert!(
                ended || unanswered,
                "unlocked with Ok, and it was lost before"
            );
        }
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
        let mut certain: Vec<_> = holding
            .iter()
            .filter(|(_, entered)| entered.hold.phase() == Phase::Held)
            .map(|(_, entered)| entered.hold.number)
            .collect();
        certain.dedup();
        assert!(certain.len() <= 1, "{choice:?}: two holders, {certain:?}");
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
        if let Seat::Held {
            uncollected: Some((ticket, _)),
            ..
        } = &self.gate.seat
        {
            let seen_to = self.job || !ticket.is_decided();
            assert!(seen_to, "{choice:?}: a grant that nobody takes back");
        }
        let deaf = matches!(self.asleep, Asleep::Linger);
        let waits = match &self.gate.seat {
            Seat::HandingOver { .. } => true,
            Seat::Trying(attempt) => attempt.overdue || !attempt.ticket.is_waiting(),
            Seat::Held {
                uncollected: Some((ticket, _)),
                ..
            } => ticket.is_decided(),
            _ => self.gate.has_queue(),
        };
        assert!(
            !(self.job && deaf && waits),
            "{choice:?}: a job that nobody told"
        );
        assert!(
            self.job || !self.gate.has_queue(),
            "{choice:?}: a queue that nobody serves"
        );
        assert_eq!(self.job, self.gate.job().is_some(), "{choice:?}");
        let claimed: HashSet<_> = self.reaps.iter().map(|(hold, _)| hold.number).collect();
        assert_eq!(
            claimed.len(),
            self.reaps.len(),
            "{choice:?}: one reaper a hold"
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
                    // Who waits for ever behind a stranger is polled by the clock, which is not among the choices.
                    let queued = self.gate.queue.contains(ticket.number);
                    assert!(queued && self.job, "caller {i} waits for nothing");
                }
                At::Unlocking(..) | At::Watching(_) => panic!("caller {i} waits for its release"),
                _ => {}
            }
        }
        let done = |c: &Caller| match &c.at {
            At::Gone | At::Start => true,
            // What nobody polls for waits, or was decided.
            At::Waiting(ticket, _) => c.manner == Manner::Sleeps && ticket.is_decided(),
            _ => false,
        };
        if self.callers.iter().all(done) {
            assert!(self.held_by.is_none_or(|by| by == 0), "a key is left");
            if !self.closed {
                assert!(!self.job, "a job is left");
                assert!(self.gate.is_unused(), "a gate is left");
            }
        }
    }
}
