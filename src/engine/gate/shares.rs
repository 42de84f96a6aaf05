//! The shares of a gate's hold: how they begin, change and end, always under the gate's lock.
//!
//! Of those who share the hold each level is a share, which ends at its own lease. Who has it alone has one share, with
//! the levels of any hold. Who may have one is in [`joining`](super::joining).

use std::sync::Arc;

use super::joint::Joint;
use super::seat::Seat;
use super::ticket::{Request, Ticket, Verdict};
use crate::clock::Moment;
use crate::engine::gate::{Gate, Rules};
use crate::engine::hold::effects::Effects;
use crate::engine::hold::owner::OwnerState;
use crate::engine::hold::state::{HoldState, Left, Level, NoEntry, Phase};
use crate::engine::hold::{Hold, Origin};
use crate::error::LostReason;
use crate::lease::Term;

/// What became of a share whose last level was given back.
pub(super) enum Parted {
    /// Nothing is left to be said to Redis.
    Done,
    /// It was the last one of its joint hold.
    Last,
    /// Its joint hold is to be turned into a shared one.
    Turn,
    Lost(LostReason),
}

/// What a share of `joint` is made of, for whoever asks by `request`.
fn origin(
    joint: &Arc<Hold>,
    request: &Request,
    number: u64,
    task: Option<tokio::task::Id>,
) -> Origin {
    Origin {
        kind: request.kind.clone(),
        id: joint.id.clone(),
        number,
        lease: request.lease,
        owner: request.owner_number(),
        entered_by: number,
        task,
    }
}

impl<C: Clone + PartialEq> Gate<C> {
    /// Sends those in the queue that belong to the hold's owner in again: they can enter now.
    pub(super) fn admit(&mut self, owner: u64, effects: &mut Effects) {
        while let Some(ticket) = self.queue.take_of(owner) {
            self.conclude(&ticket, Verdict::Again, effects);
        }
    }

    /// Gives `ticket` a share of the hold in the seat, unless that is over.
    pub(super) fn share(
        &mut self,
        ticket: &Arc<Ticket>,
        term: Term,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let Seat::Shared { joint, .. } = &mut self.seat else {
            return None;
        };
        let request = &ticket.request;
        let origin = origin(&joint.hold, request, ticket.number, ticket.task);
        let share = Hold::read(&joint.hold, origin, request.level, term);
        if !joint.add(&share, now, effects) {
            return None;
        }
        effects.look(&share);
        effects.look(&joint.hold);
        self.shared_with(request.owner.as_ref(), &share, effects);
        Some(share)
    }

    /// `owner` has `share` now; others of its acquires that wait enter it.
    fn shared_with(
        &mut self,
        owner: Option<&Arc<OwnerState>>,
        share: &Arc<Hold>,
        effects: &mut Effects,
    ) {
        if let Some(owner) = owner {
            owner.insert(share);
            self.admit(owner.number, effects);
        }
    }

    /// `hold` was granted to `ticket`, by a command whose answer is `term`: it has the seat with a first share.
    pub(super) fn first_share(
        &mut self,
        hold: &Arc<Hold>,
        ticket: &Arc<Ticket>,
        term: Term,
        effects: &mut Effects,
    ) -> Arc<Hold> {
        let request = &ticket.request;
        let origin = origin(hold, request, ticket.number, ticket.task);
        let share = Hold::read(hold, origin, request.level, term);
        let mut joint = Joint::new(Arc::clone(hold), !request.kind.commands.is_shared());
        joint.begin(&share, effects);
        self.seat = Seat::Shared { joint, join: None };
        effects.look(&share);
        self.shared_with(request.owner.as_ref(), &share, effects);
        share
    }

    /// A level more of `share`, which has the hold alone, without a word to Redis yet.
    pub(crate) fn enter_share(
        &mut self,
        share: &Arc<Hold>,
        level: Level,
        now: Moment,
        effects: &mut Effects,
    ) -> Result<u32, NoEntry> {
        let hold = share.in_redis();
        effects.change(hold, |state| state.expire(now));
        let count = effects.change(share, |state| state.enter(level, now))?;
        if let Some(joint) = self.seat.joint(hold) {
            joint.sync(share, now, effects);
        }
        effects.look(hold);
        Ok(count)
    }

    /// One more share of the joint hold of `share`, for its holder, to share it with others. `None` when either is
    /// over.
    pub(crate) fn share_beside(
        &mut self,
        share: &Arc<Hold>,
        request: &Request,
        number: u64,
        term: Term,
        now: Moment,
        effects: &mut Effects,
    ) -> Option<Arc<Hold>> {
        let hold = share.in_redis();
        let joint = self.seat.joint(hold).filter(|joint| joint.has(share))?;
        let held = effects.change(share, |state| {
            state.expire(now);
            state.phase() == Phase::Held
        });
        let mut origin = origin(hold, request, number, share.task);
        if share.kind.commands.is_shared() {
            origin.entered_by = share.entered_by;
        }
        let beside = Hold::read(hold, origin, request.level, term);
        if !held || !joint.add(&beside, now, effects) {
            return None;
        }
        effects.look(&beside);
        effects.look(hold);
        self.shared_with(request.owner.as_ref(), &beside, effects);
        Some(beside)
    }

    /// Gives a level of `share` back. The number that is left, or what became of it.
    pub(super) fn leave_share(
        &mut self,
        share: &Arc<Hold>,
        level: Level,
        now: Moment,
        finish_by: Moment,
        effects: &mut Effects,
    ) -> Result<u32, Parted> {
        let hold = share.in_redis();
        let (valid_until, ends) = effects.change(hold, |state| {
            state.expire(now);
            (state.valid_until(), state.lease_ends())
        });
        let left = effects.change(share, |state| {
            state.carried_to(valid_until, ends);
            state.leave(level, now, finish_by)
        });
        if let Left::Lost(reason) = left {
            return Err(Parted::Lost(reason));
        }
        let Some(joint) = self.seat.joint(hold) else {
            let reason = hold.lost_reason(now).unwrap_or(LostReason::Missing);
            return Err(Parted::Lost(reason));
        };
        match left {
            Left::Lost(reason) => Err(Parted::Lost(reason)),
            Left::Levels(count) => {
                joint.sync(share, now, effects);
                effects.look(share);
                Ok(count)
            }
            Left::Last => Err(self.part(share, now, finish_by, effects)),
        }
    }

    /// `share` is over.
    fn part(
        &mut self,
        share: &Arc<Hold>,
        now: Moment,
        finish_by: Moment,
        effects: &mut Effects,
    ) -> Parted {
        let hold = share.in_redis();
        let alone = share.kind.commands.wants_it_alone();
        let left = self
            .seat
            .joint(hold)
            .and_then(|joint| joint.remove(share, now, finish_by, effects));
        match left {
            Some(Left::Last) => {
                self.take_join_back(hold);
                Parted::Last
            }
            Some(Left::Lost(reason)) => Parted::Lost(reason),
            Some(Left::Levels(_)) if alone => Parted::Turn,
            Some(Left::Levels(_)) | None => Parted::Done,
        }
    }

    /// The leases of `share` are over while its joint hold goes on. With the last share ends the joint hold, whose
    /// release waits for as long as that share was promised the lock. False when it ended before.
    pub(crate) fn expire_share(
        &mut self,
        share: &Arc<Hold>,
        now: Moment,
        effects: &mut Effects,
    ) -> bool {
        let hold = share.in_redis();
        let Some(joint) = self.seat.joint(hold).filter(|joint| joint.has(share)) else {
            return false;
        };
        if joint.is_single() {
            let end = effects.change(share, |state| state.lease_ends());
            effects.change(hold, |state| {
                state.owe(end);
                state.lose(LostReason::Expired)
            });
            self.vacate(hold);
            effects.release(hold);
        } else if let Parted::Turn = self.part(share, now, now, effects) {
            effects.downgrade(hold);
        }
        true
    }

    /// Leaves a share with one fixed level to its lease: nobody has it any more, and it keeps others out. One that
    /// nobody shares is left with the joint hold, to Redis. False when there are other levels.
    pub(crate) fn leave_behind(
        &mut self,
        share: &Arc<Hold>,
        number: u64,
        now: Moment,
        effects: &mut Effects,
    ) -> bool {
        let hold = share.in_redis();
        let Some(joint) = self.seat.joint(hold).filter(|joint| joint.has(share)) else {
            return false;
        };
        if share.kind.commands.wants_it_alone() {
            let single = joint.is_single();
            return single
                && effects.change(share, |state| state.let_expire(Level::Fixed))
                && effects.change(hold, |state| state.let_expire(Level::Fixed));
        }
        let (valid_until, ends_at) =
            effects.change(share, |state| (state.valid_until(), state.lease_ends()));
        let term = Term {
            sent_at: now,
            valid_until,
            ends_at,
        };
        let origin = Origin {
            kind: share.kind.clone(),
            id: share.id.clone(),
            number,
            lease: share.lease,
            owner: None,
            entered_by: number,
            task: None,
        };
        if !effects.change(share, |state| state.let_expire(Level::Fixed)) {
            return false;
        }
        let left = Hold::abandoned_read(hold, origin, term);
        if joint.add(&left, now, effects) {
            joint.remove(share, now, now, effects);
            effects.look(&left);
        }
        true
    }

    /// The client ends: what nobody here has is left to Redis, and to its lease.
    pub(crate) fn let_go(&mut self, effects: &mut Effects) {
        let Seat::Shared { joint, .. } = &self.seat else {
            return;
        };
        if joint.shares().all(|share| share.is_abandoned()) {
            let hold = Arc::clone(&joint.hold);
            effects.change(&hold, |state| state.end(Ok(())));
            self.vacate(&hold);
        }
    }

    /// Redis turned `hold` into a shared one, by a command that was sent at `sent_at`.
    pub(crate) fn turned(
        &mut self,
        hold: &Arc<Hold>,
        sent_at: Moment,
        rules: Rules,
        effects: &mut Effects,
    ) {
        let Some(joint) = self.seat.joint(hold) else {
            return;
        };
        if joint.exclusive {
            let assure = |state: &mut HoldState| state.assure(rules.plan.lease, sent_at);
            joint.turned(assure, effects);
            effects.look(hold);
            self.prompt = true;
            self.tell_job();
        }
    }

    /// How many levels the holder of `hold` has.
    pub(crate) fn levels_of(&self, hold: &Hold, now: Moment) -> u32 {
        let valid = self.shares().filter(|share| now < share.valid_until());
        let levels = valid.filter(|share| share.is_level_with(hold));
        // One that is over is not among them.
        u32::try_from(levels.count()).map_or(u32::MAX, |levels| levels.max(hold.count()))
    }

    /// The shares of `hold`, which is lost with all of them.
    pub(crate) fn shares_of(&mut self, hold: &Arc<Hold>) -> Vec<Arc<Hold>> {
        let joint = self.seat.joint(hold);
        joint.map_or_else(Vec::new, |joint| joint.shares().cloned().collect())
    }

    /// All shares of the hold in the seat.
    pub(crate) fn shares(&self) -> impl Iterator<Item = &Arc<Hold>> {
        let joint = match &self.seat {
            Seat::Shared { joint, .. } => Some(joint),
            _ => None,
        };
        joint.into_iter().flat_map(Joint::shares)
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
