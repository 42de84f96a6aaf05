//! A lock whose queue Redis keeps: the places of the tickets that wait here, and of strangers.
//!
//! Its order is that of arrival: Redis grants the lock to the client of the first place, and the client gives it to its
//! first waiter.

use std::hash::Hash;

use super::fingerprint::Words;
use super::turn::Waits;
use super::*;
use crate::engine::gate::fair::PlaceCommand;
use crate::script::Call;

/// How many waiters of a client are woken when it is their turn, as in the keeper.
const LISTENS_TO: usize = 2;

/// The queue, and what the job does for it.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Places {
    pub(super) queue: Vec<Waits>,
    /// Whether Redis forgot some of it.
    pub(super) forgotten: bool,
    /// Whether the job gives places.
    pub(super) given: bool,
    /// The command by which the job asks for places, and those of earlier jobs.
    pub(super) asking: Option<usize>,
    pub(super) asked: Vec<usize>,
    /// Whether the places must be asked for again.
    lost: bool,
    /// The hold ids whose turn wakes the job.
    pub(super) channels: Vec<u64>,
    /// The job was woken, or began to listen.
    pub(super) woken: bool,
}

impl RedisQueue for Side {
    fn enqueue<'a>(&self, _: &'a Names, _: Option<&'a str>, _: &[&'a str]) -> Call<'a> {
        unreachable!("the world carries it")
    }

    fn vouch<'a>(&self, _: &'a Names, _: &'a str, _: &[&'a str]) -> Call<'a> {
        unreachable!("a step of its own")
    }

    fn length<'a>(&self, names: &'a Names) -> Call<'a> {
        Call::plain("LLEN").lock(names)
    }

    fn channel(&self, _: &Names, hold_id: &str) -> Box<str> {
        hold_id.into()
    }
}

impl Places {
    pub(super) fn has(&self, number: u64) -> bool {
        self.queue.contains(&Waits::Ours(number))
    }

    pub(super) fn has_ours(&self) -> bool {
        self.queue.iter().any(Waits::is_ours)
    }

    pub(super) fn are_answered(&self) -> bool {
        self.asking.is_none() && self.asked.is_empty()
    }

    /// As `QueuePlaces::finish`, and the end of all subscriptions.
    pub(super) fn end_job(&mut self) {
        self.asked.extend(self.asking.take());
        self.channels.clear();
        (self.given, self.lost, self.woken) = (false, false, false);
    }

    /// All that the future depends on.
    pub(super) fn add_to(&self, words: &mut Words) {
        words.all(&self.queue, |words, place| {
            std::mem::discriminant(place).hash(words);
            if let Waits::Ours(number) = place {
                words.hold_number(*number);
            }
        });
        words.all(self.channels.iter().copied(), Words::hold_number);
        let commands = self.asking.iter().chain(&self.asked);
        words.all(commands, |words, command| words.command(*command));
        (self.given, self.asking.is_some(), self.lost).hash(words);
        (self.woken, self.forgotten).hash(words);
    }
}

/// What the job does.
impl World {
    pub(super) fn is_queued(&self) -> bool {
        self.callers
            .iter()
            .any(|caller| caller.side == Side::Queued)
    }

    /// As `QueuePlaces::update`.
    pub(super) fn keep_places(&mut self) {
        self.see_places();
        if !self.places.given || self.places.asking.is_some() {
            return;
        }
        let (number, now, lost) = (&mut self.numbers, self.now, self.places.lost);
        let command = self.gate.place_command(lost, |ticket| {
            *number += 1;
            Hold::trying(origin(ticket, *number), now + RULES.command_timeout)
        });
        let PlaceCommand::Enqueue { ahead, holds, .. } = command else {
            return;
        };
        for hold in &holds {
            hold.with(|state| state.asks_for_place(true));
        }
        let nobodys = self.nobodys_hold();
        let command = self.send(&nobodys, What::Enqueues, KEEPER);
        self.commands[command].ahead = ahead.as_ref().map(|hold| field(hold));
        self.commands[command].others = holds;
        (self.places.asking, self.places.lost) = (Some(command), false);
    }

    /// Whether the client will find, when it vouches for its places, that some are lost.
    pub(super) fn finds_places_lost(&self) -> bool {
        if !self.places.forgotten {
            return false;
        }
        let waiting = self
            .gate
            .queue
            .iter()
            .filter_map(|ticket| ticket.unsettled());
        let has = self.places.queue.iter().filter(|place| place.is_ours());
        has.count() < waiting.count()
    }

    /// As a heartbeat of `QueuePlaces::update` that finds places lost: it is answered at once.
    pub(super) fn vouch(&mut self) {
        self.places.lost = true;
        self.asleep = Asleep::Awake;
    }

    /// As `QueuePlaces::check`.
    pub(super) fn see_places(&mut self) {
        let reply = |command: &usize| self.reply_of(*command) != ReplyState::InFlight;
        if let Some(command) = self.places.asking.filter(reply) {
            self.places.asking = None;
            self.places_answered(command);
        }
    }

    /// The keeper hears of places that it asked for, now or at the end of a job.
    pub(super) fn placed(&mut self, command: usize) {
        if self.places.asking == Some(command) {
            self.asleep = Asleep::Awake;
            return;
        }
        self.places.asked.retain(|asked| *asked != command);
        self.places_answered(command);
    }

    /// As `QueuePlaces::answered`.
    fn places_answered(&mut self, command: usize) {
        let reply = self.reply_of(command);
        for hold in &self.commands[command].others {
            hold.with(|state| {
                state.asks_for_place(false);
                if reply == ReplyState::Silence {
                    state.taint();
                }
            });
        }
        match reply {
            ReplyState::Done(reply) if reply.is_grant() => {
                let ours = matches!(reply, Reply::NextIsOurs(_));
                self.at(|gate, _| gate.wakeups.set_next_is_ours(ours));
            }
            _ => self.places.lost = self.places.given,
        }
    }

    /// As `NameJob::listen`. A subscription is confirmed at once.
    pub(super) fn listen(&mut self) {
        self.listen_for_permits();
        if !self.places.given {
            return;
        }
        let channels = self.gate.channels(LISTENS_TO);
        let channels: Vec<_> = channels.iter().map(|id| id.parse().unwrap()).collect();
        let first = channels.first();
        if first.is_some_and(|first| !self.places.channels.contains(first)) {
            self.gate.wakeups.channel_added();
            self.places.woken = true;
        }
        self.places.channels = channels;
    }
}

/// What must hold.
impl World {
    /// `hold` was granted by a try for `ticket`, which must have come before all other waiters of this client.
    pub(super) fn check_turn(&self, hold: &Hold, ticket: u64) {
        if hold.kind.has_queue() || self.is_counted() {
            let mut others = self.gate.queue.iter().filter(|t| t.is_waiting());
            let overtaken = others.find(|other| other.number < ticket);
            assert!(overtaken.is_none(), "somebody who came first still waits");
        }
    }

    /// The place of `number` is given up, so no waiter may rely on it.
    pub(super) fn check_kept(&self, number: u64) {
        let mut waiting = self.callers.iter().filter_map(|caller| match &caller.at {
            At::Waiting(ticket, _) if ticket.is_waiting() => ticket.unsettled(),
            _ => None,
        });
        let kept = waiting.any(|hold| field(&hold) == number && self.places.has(number));
        assert!(!kept, "a place is given up that somebody waits by");
    }

    /// Each waiter has a place, once the job could ask for it.
    pub(super) fn check_places(&self, choice: Choice) {
        let asleep = matches!(self.asleep, Asleep::Poll | Asleep::Collection);
        // Vouching counts a place that is being given back as well, and finds nothing lost until it is gone.
        let leaves = self
            .reaps
            .iter()
            .any(|(_, reaping)| !matches!(reaping, Reaping::Over));
        let finds = self.finds_places_lost() || (self.places.forgotten && leaves);
        let known = self.places.are_answered() && !finds;
        if !self.places.given || self.faulted || !asleep || !known {
            return;
        }
        for ticket in self.gate.queue.iter().filter(|t| t.may_have_place()) {
            let place = ticket.unsettled().map(|hold| field(&hold));
            let has = place.is_some_and(|number| self.places.has(number));
            assert!(has, "{choice:?}: somebody waits without a place");
        }
    }

    /// If nothing can happen any more but that a waiter goes away, no waiter waits for a lock that it could have.
    pub(super) fn check_left_behind(&self, choices: &[Choice]) {
        let waits_at = |i: usize| matches!(self.callers[i].at, At::Waiting(..));
        let goes = |choice: &Choice| matches!(choice, Choice::Drop(i) if waits_at(*i));
        if !choices.iter().all(goes) {
            return;
        }
        let waits =
            |caller: &Caller| matches!(&caller.at, At::Waiting(ticket, _) if ticket.is_waiting());
        let free = self.held_by.is_none() && self.places.first() != Some(Waits::Stranger);
        if self.is_counted() {
            self.check_permits_left();
        }
        if !self.is_queued() || self.faulted || self.closed || !free {
            return;
        }
        assert!(
            !self.callers.iter().any(waits),
            "left behind by a free lock"
        );
    }
}
