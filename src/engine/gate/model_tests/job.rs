//! What the keeper's job does: it carries commands, the production code decides.

use super::*;

impl World {
    pub(super) fn job_step(&mut self) {
        self.keep_places();
        let now = self.now;
        let listening = self.listening;
        self.asleep = Asleep::Awake;
        let (step, note) = self.at(|gate, effects| {
            let step = gate.step(listening, effects);
            (step, gate.withdraw_writer_waits())
        });
        self.remove_note(note.as_ref());
        match step {
            Step::FinishAttempt(_, command, _) | Step::FinishRelease(_, command, _)
                if self.reply_of(command) == ReplyState::InFlight =>
            {
                self.asleep = Asleep::Command(command);
            }
            Step::FinishAttempt(_, command, _) => {
                self.see_places();
                self.settle(command);
            }
            Step::FinishRelease(hold, command, since) => {
                self.settle_release(&hold, Some(command), command, since);
            }
            Step::HandOver { hold } => {
                let release = self.send(&hold, What::Releases, KEEPER);
                let next = self.gate.head().map(|ticket| {
                    let (hold, command) = self.start_try(&ticket);
                    (ticket, hold, command)
                });
                self.at(|gate, _| gate.handed_over(&hold, release, next, now));
            }
            Step::Serve { head, at_once, .. } => {
                if at_once && self.is_counted() {
                    self.check_left();
                    self.try_for_permits(&head);
                } else if at_once {
                    let shared = match &self.gate.seat {
                        Seat::Shared { shared, .. } => Some(Arc::clone(shared.hold())),
                        _ => None,
                    };
                    let (hold, command) = if let Some(shared) = shared {
                        let command = self.send(&shared, What::Joins, KEEPER);
                        (shared, command)
                    } else {
                        self.check_left();
                        self.start_try(&head)
                    };
                    let sits = self.at(|gate, _| gate.try_head(&head, now, |_| (hold, command)));
                    assert!(sits, "the head of a free seat sits");
                } else {
                    self.note_again();
                    self.asleep = Asleep::Poll;
                    self.listen();
                }
            }
            Step::Watch { collect_by, .. } => {
                self.note_again();
                self.listen();
                // A message now makes the job verify the hold at most.
                self.places.woken = false;
                // The job waits until `collect_by`, so there must be a grant to take back then.
                let lies = self.not_collecting().next().is_some();
                assert_eq!(collect_by.is_some(), lies, "a job that spins");
                self.asleep = if lies {
                    Asleep::Collection
                } else {
                    Asleep::Poll
                };
                // Its poll is far away.
                let far = self.now + RULES.command_timeout * 2;
                self.at(|gate, _| gate.job_sleeps_until(far));
            }
            Step::LeaveFree(until) => self.asleep = Asleep::Left(until),
            Step::Over => {
                self.job = false;
                self.places.end_job();
            }
            Step::AwaitRelease => self.asleep = Asleep::Change,
            Step::Linger => {
                self.note_again();
                self.asleep = Asleep::Linger;
            }
        }
    }

    /// As `NameJob::leave_note`.
    fn note_again(&mut self) {
        if !self.leaves_notes {
            return;
        }
        let now = self.now;
        let Some(first) = self.gate.first_writer().cloned() else {
            return;
        };
        if now >= self.note_at {
            self.note_at = now + RULES.command_timeout;
            self.heeded(&first);
            let hold = self.nobodys_hold();
            self.send(&hold, What::Notes, KEEPER);
        }
    }

    /// As `NameJob::remove_note`.
    fn remove_note(&mut self, note: Option<&(Kind, Moment)>) {
        if let Some((_, since)) = note {
            let hold = self.nobodys_hold();
            let command = self.send(&hold, What::RemovesNote, KEEPER);
            self.removed_notes.push((command, *since));
        }
    }

    pub(super) fn heeded(&mut self, ticket: &Ticket) {
        let (now, kind) = (self.now, ticket.request.kind.clone());
        self.at(|gate, _| gate.note_writer_waits(&kind, now));
    }

    /// The hold of commands that concern none: notes, and requests for several places.
    pub(super) fn nobodys_hold(&self) -> Arc<Hold> {
        let origin = Origin {
            kind: self.kind(Side::Writes),
            id: "0".into(),
            number: 0,
            lease: DAY,
            owner: None,
            entered_by: 0,
            task: TaskId::default(),
        };
        Hold::trying(origin, self.now)
    }
}
