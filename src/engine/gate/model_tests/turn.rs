//! The queue that the Redis of the model keeps, and the strangers in it: whose turn it is.

use super::*;

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    Ours(u64),
    Stranger,
    /// Its process died, and Redis still keeps the place.
    Dead,
}

impl Waits {
    pub(super) fn is_ours(&self) -> bool {
        self.number().is_some()
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Ours(number) => Some(*number),
            Self::Stranger | Self::Dead => None,
        }
    }
}

/// The queue.
impl Places {
    /// The first place that is not dead.
    pub(super) fn first(&self) -> Option<Waits> {
        let mut living = self.queue.iter().filter(|place| **place != Waits::Dead);
        living.next().copied()
    }

    /// The place whose turn it is on a free lock. Dead places ahead of it are dropped.
    pub(super) fn head(&mut self) -> Option<Waits> {
        let first = self.first();
        let dead = self
            .queue
            .iter()
            .take_while(|place| **place == Waits::Dead)
            .count();
        self.queue.drain(..dead);
        first
    }

    /// Whether the next place is of this client.
    pub(super) fn next_is_ours(&self) -> bool {
        self.queue.first().is_some_and(Waits::is_ours)
    }

    /// Puts these numbers into the places that they have together, in this order.
    fn rearrange(&mut self, order: &[u64]) {
        let movers = order.iter().copied().filter(|number| self.has(*number));
        let mut movers = movers.collect::<Vec<_>>().into_iter();
        for place in &mut self.queue {
            if place.number().is_some_and(|number| order.contains(&number))
                && let Some(mover) = movers.next()
            {
                *place = Waits::Ours(mover);
            }
        }
    }

    fn done(&self) -> Reply {
        if self.next_is_ours() {
            Reply::NextIsOurs(0)
        } else {
            Reply::Done(0)
        }
    }
}

/// What Redis does.
impl World {
    pub(super) fn acquire_in_turn(&mut self, number: u64, waits: bool) -> Reply {
        if self.held_by != Some(number) {
            if waits {
                self.enqueue(number);
            }
            if self.held_by.is_some() {
                return BUSY;
            }
            let overtakes = match self.places.head() {
                Some(first) if waits => !first.is_ours(),
                Some(_) => !self.places.queue.iter().all(Waits::is_ours),
                None => false,
            };
            if overtakes {
                self.wake();
                return BUSY;
            }
            if waits {
                // The places of a client are used in the order of its waiters.
                let ours = self.places.queue.iter().filter_map(Waits::number);
                let others = ours.filter(|other| *other != number);
                let order: Vec<_> = std::iter::once(number).chain(others).collect();
                self.places.rearrange(&order);
                self.places.queue.remove(0);
            }
            self.held_by = Some(number);
        }
        self.places.done()
    }

    fn enqueue(&mut self, number: u64) {
        if self.held_by != Some(number) && !self.places.has(number) {
            self.places.queue.push(Waits::Ours(number));
        }
    }

    pub(super) fn enqueue_all(&mut self, command: usize) -> Reply {
        let ahead = self.commands[command].ahead;
        let lost = |ahead: u64| !self.places.has(ahead) && self.held_by != Some(ahead);
        if ahead.is_some_and(lost) {
            return Reply::Gone;
        }
        let holds = self.commands[command].others.clone();
        let order: Vec<_> = holds.iter().map(|hold| field(hold)).collect();
        for number in &order {
            self.enqueue(*number);
        }
        self.places.rearrange(&order);
        self.places.done()
    }

    pub(super) fn release_in_turn(&mut self, number: u64) -> Reply {
        let ended = self.held_by.take_if(|by| *by == number).is_some();
        self.check_kept(number);
        let own = Waits::Ours(number);
        self.places.queue.retain(|place| *place != own);
        let heard = self.held_by.is_none() && self.wake();
        if !ended {
            return Reply::Gone;
        }
        self.ended.insert(number);
        if heard {
            Reply::Woke(1)
        } else {
            Reply::Done(0)
        }
    }

    /// Wakes the head, whose turn it is. Whether the job receives that.
    fn wake(&mut self) -> bool {
        let Some(Waits::Ours(first)) = self.places.head() else {
            return false;
        };
        let hears = self.places.channels.contains(&first);
        let now = self.now;
        if hears && self.at(|gate, _| gate.received(1, now)) > 0 {
            // That ends a gap.
            (self.left_until, self.rest_until) = Default::default();
            self.places.woken = true;
        }
        hears
    }
}

/// What strangers do.
impl World {
    /// What may happen to the queue.
    pub(super) fn choices_of_queue(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        let commands = self.places.asking.iter().chain(&self.places.asked);
        for command in commands {
            let asleep = self.places.asking != Some(*command) || self.asleep != Asleep::Awake;
            if asleep && self.reply_of(*command) != ReplyState::InFlight {
                choices.push(Choice::Placed(*command));
            }
        }
        let vouches = self.places.given && self.places.asking.is_none();
        if vouches && self.finds_places_lost() {
            choices.push(Choice::Vouch);
        }
        if !self.is_queued() {
            return choices;
        }
        if self.forgets > 0 && !self.places.queue.is_empty() {
            choices.push(Choice::Forget);
            if self.places.next_is_ours() && self.places.queue.contains(&Waits::Stranger) {
                choices.push(Choice::ForgetFirst);
            }
        }
        let first = self.places.first();
        if self.held_by.is_none()
            && (first == Some(Waits::Stranger) || (first.is_none() && self.strangers > 0))
        {
            choices.push(Choice::Stranger);
        }
        if self.strangers > 0 {
            choices.push(Choice::StrangerWaits);
        }
        if self.deaths > 0 && self.places.queue.contains(&Waits::Stranger) {
            choices.push(Choice::StrangerDies);
        }
        choices
    }

    /// A stranger takes the free lock, when it is its turn, or gives it back.
    pub(super) fn stranger_in_turn(&mut self) {
        if self.held_by == Some(0) {
            self.held_by = None;
            self.wake();
            return;
        }
        match self.places.head() {
            None => self.strangers -= 1,
            Some(_) => drop(self.places.queue.remove(0)),
        }
        self.held_by = Some(0);
    }

    /// Redis loses the whole queue, and the strangers in it queue again. With `ForgetFirst` it loses only our places ahead
    /// of the first stranger.
    pub(super) fn forget(&mut self, choice: Choice) {
        self.forgets -= 1;
        self.places.forgotten = true;
        let ours = self.places.queue.iter().take_while(|place| place.is_ours());
        let lost = match choice {
            Choice::ForgetFirst => ours.count(),
            _ => self.places.queue.len(),
        };
        for place in self.places.queue.drain(..lost) {
            self.strangers += u32::from(place == Waits::Stranger);
        }
        // The waiters poll.
        self.polls += 1;
    }

    pub(super) fn stranger_queues(&mut self, choice: Choice) {
        if choice == Choice::StrangerWaits {
            self.strangers -= 1;
            self.places.queue.push(Waits::Stranger);
            return;
        }
        let mut places = self.places.queue.iter_mut();
        if let Some(first) = places.find(|place| **place == Waits::Stranger) {
            self.deaths -= 1;
            *first = Waits::Dead;
            // The next client that vouches for its places, or polls, skips the dead one.
            self.polls += 1;
        }
    }
}
