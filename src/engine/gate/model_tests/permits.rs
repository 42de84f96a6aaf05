//! A counted lock: the permits that Redis has, those that a stranger has, and what must hold for them.
//!
//! Several callers may have permits at once, so each hold has a seat of its own, and a try may ask for the permits of several
//! tickets.

use std::hash::Hash;

use super::fingerprint::Words;
use super::*;

/// The permits.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Permits {
    /// How many there are.
    pub(super) all: u32,
    /// How many each hold has, by its number; 0 for a stranger.
    pub(super) taken: BTreeMap<u64, u32>,
    /// Whether the last grant said that a request of another client has waited.
    pub(super) others_waited: bool,
    /// The client knows that permits came back since the last try began, or there was none.
    pub(super) came_back: bool,
    /// The subscription is to be confirmed.
    pub(super) confirming: bool,
    /// A message is to be read by the job.
    pub(super) message: bool,
    /// The holds that too few replicas acknowledged, as the client knows.
    pub(super) refused: BTreeSet<u64>,
}

impl Permits {
    fn free(&self) -> u32 {
        self.all - self.taken.values().sum::<u32>()
    }

    /// All that the future depends on.
    pub(super) fn add_to(&self, words: &mut Words) {
        words.all(&self.taken, |words, (number, permits)| {
            words.hold_number(*number);
            permits.hash(words);
        });
        let knows = (self.others_waited, self.came_back);
        (knows, self.confirming, self.message).hash(words);
        let refused = self.refused.iter().copied();
        words.all(
            refused.filter(|number| self.taken.contains_key(number)),
            Words::hold_number,
        );
    }
}

/// What Redis does.
impl World {
    pub(super) fn is_counted(&self) -> bool {
        self.permits.all > 0
    }

    /// Grants the requests of a command in their order, until one does not fit. While a stranger's request waits, one permit
    /// is left for it, unless it is known to be younger, and here it never is.
    pub(super) fn acquire_permits(&mut self, command: usize) -> Reply {
        let first = Arc::clone(&self.commands[command].hold);
        let others = self.commands[command].others.clone();
        let wants = first.kind.commands.wants();
        let reserve = u32::from(self.stranger_note);
        let asked = 1 + others.len() as u64;
        let mut granted = 0;
        for hold in std::iter::once(first).chain(others) {
            let number = field(&hold);
            if !self.permits.taken.contains_key(&number) {
                if self.permits.free() < wants + reserve {
                    break;
                }
                self.permits.taken.insert(number, wants);
            }
            granted += 1;
        }
        let left = Some(Duration::from_secs(1));
        if granted == 0 {
            BUSY
        } else if granted == asked && self.permits.free() > 0 {
            Reply::Done(granted)
        } else if self.stranger_note {
            Reply::OthersWait(granted, left)
        } else {
            Reply::NextIsBusy(granted, left)
        }
    }

    pub(super) fn release_permits(&mut self, number: u64) -> Reply {
        if self.permits.taken.remove(&number).is_none() {
            return Reply::Gone;
        }
        self.ended.insert(number);
        self.announce_permits();
        Reply::Woke(1)
    }

    /// A message goes out that there are free permits.
    fn announce_permits(&mut self) {
        self.permits.message |= self.listening;
    }

    /// A stranger takes a permit, or gives it back.
    pub(super) fn stranger_with_permit(&mut self) {
        if self.permits.taken.remove(&0).is_some() {
            self.announce_permits();
            return;
        }
        self.strangers -= 1;
        self.permits.taken.insert(0, 1);
        self.stranger_note = false;
    }

    /// A stranger's request waits, or is withdrawn.
    pub(super) fn stranger_wants_permit(&mut self) {
        self.stranger_note = !self.stranger_note;
        if self.stranger_note {
            self.stranger_notes -= 1;
        } else {
            self.announce_permits();
        }
    }

    pub(super) fn choices_of_permits(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        if !self.is_counted() {
            return choices;
        }
        let has = self.permits.taken.contains_key(&0);
        if has || (self.strangers > 0 && self.permits.free() > 0) {
            choices.push(Choice::Stranger);
        }
        if self.stranger_note || self.stranger_notes > 0 {
            choices.push(Choice::StrangerNotes);
        }
        let hears = matches!(self.asleep, Asleep::Poll | Asleep::Collection);
        if self.job && hears && (self.permits.confirming || self.permits.message) {
            choices.push(Choice::Message);
        }
        choices
    }
}

/// What the job does.
impl World {
    /// As `NameJob::listen`.
    pub(super) fn listen_for_permits(&mut self) {
        if self.is_counted() && !self.listening {
            self.listening = true;
            self.permits.confirming = true;
        }
    }

    /// As `NameJob::hear`: the confirmation, or a message.
    pub(super) fn hear_of_permits(&mut self) {
        self.permits.came_back = true;
        let now = self.now;
        let tries = if std::mem::take(&mut self.permits.confirming) {
            self.gate.set_listening(true);
            true
        } else {
            self.permits.message = false;
            (self.left_until, self.rest_until) = Default::default();
            self.at(|gate, _| gate.received(1, now)) > 0
        };
        if tries && self.asleep == Asleep::Poll {
            self.gate.try_at_once = true;
        }
        self.job_step();
    }

    /// As the end of `NameJob::linger`.
    pub(super) fn listens_no_more(&mut self) {
        (self.permits.confirming, self.permits.message) = (false, false);
    }

    /// As `NameJob::try_for`, for permits.
    pub(super) fn try_for_permits(&mut self, head: &Arc<Ticket>) {
        self.try_begins();
        let now = self.now;
        let beside = if self.acknowledges {
            Vec::new()
        } else {
            self.gate.beside(head)
        };
        let beside = beside.into_iter().map(|ticket| {
            let hold = ticket.unsettled().unwrap_or_else(|| self.new_hold(&ticket));
            (ticket, hold)
        });
        let beside: Vec<_> = beside.collect();
        let (hold, command) = self.start_try(head);
        let others = beside.iter().map(|(_, hold)| Arc::clone(hold));
        self.commands[command].others = others.collect();
        let sits = self.at(|gate, _| {
            let sits = gate.try_head(head, now, |_| (hold, command));
            if !beside.is_empty() {
                gate.tries_beside(beside);
            }
            sits
        });
        assert!(sits, "the head of a free seat sits");
    }

    /// What the last grant said of other clients.
    pub(super) fn permits_answered(&mut self, command: usize) {
        if let ReplyState::Done(reply) = self.reply_of(command)
            && self.is_counted()
            && reply.is_grant()
        {
            self.permits.others_waited = matches!(reply, Reply::OthersWait(..));
        }
        if self.reply_of(command) == ReplyState::Unacknowledged {
            let refused = field(&self.commands[command].hold);
            self.permits.refused.insert(refused);
        }
    }
}

/// What must hold.
impl World {
    /// Records whom Redis, or those who wait ahead, keep from being served at this moment.
    pub(super) fn see_permits(&mut self) {
        if !self.is_counted() {
            return;
        }
        let left = self.permits.free();
        let left = left.saturating_sub(self.stranger_note.into());
        let lacks = |caller: &Caller| {
            caller
                .side
                .rules()
                .permits
                .is_some_and(|wants| wants > left)
        };
        let number = |caller: &Caller| match &caller.at {
            At::Waiting(ticket, _) if ticket.is_waiting() => ticket.number,
            _ => u64::MAX,
        };
        // Who came first is served first, whatever others ask for.
        let lacking = self.callers.iter().filter(|caller| lacks(caller));
        let first = lacking.map(number).min().unwrap_or(u64::MAX);
        for caller in &mut self.callers {
            caller.found_none |= lacks(caller) || first < number(caller);
        }
    }

    /// The caller gets "busy", so it was, at some time since it arrived, or since the try that was under way began.
    pub(super) fn check_busy(&self, i: usize) {
        let known = self.callers[i].found_none || !self.is_counted();
        assert!(known, "busy, though there were permits all the time");
    }

    /// A try begins. It must not find busy what this client got and gives back because too few replicas acknowledged it.
    pub(super) fn try_begins(&mut self) {
        self.permits.came_back = false;
        let mut refused = self.permits.refused.iter();
        let found = refused.any(|number| self.permits.taken.contains_key(number));
        assert!(!found || self.has_faults, "busy by what was refused here");
    }

    /// No more permits are used than there are.
    pub(super) fn check_permits(&self, choice: Choice) {
        if !self.is_counted() {
            return;
        }
        let used = self.callers.iter().filter_map(|caller| match &caller.at {
            At::Holding(entered) if entered.hold.valid_until() > self.now => {
                Some(entered.hold.kind.commands.wants())
            }
            _ => None,
        });
        let strangers = self.permits.taken.get(&0).copied().unwrap_or_default();
        let used = used.sum::<u32>() + strangers;
        assert!(
            used <= self.permits.all,
            "{choice:?}: more permits than there are"
        );
        for seat in self.gate.seats() {
            let held = seat.held().filter(|hold| hold.valid_until() > self.now);
            let has = held.is_none_or(|hold| self.permits.taken.contains_key(&field(hold)));
            assert!(has, "{choice:?}: a hold that Redis does not have");
        }
    }

    /// If nothing can happen any more but that a waiter goes away, the first does not wait for permits that are free.
    pub(super) fn check_permits_left(&self) {
        let first = self.gate.queue.iter().find(|ticket| ticket.is_waiting());
        let reserve = u32::from(self.stranger_note);
        let served = first.is_none_or(|first| {
            first.request.kind.commands.wants() + reserve > self.permits.free()
        });
        assert!(
            served || self.faulted || self.closed,
            "left behind by free permits"
        );
    }
}
