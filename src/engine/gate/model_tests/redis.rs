//! The Redis of the model.

use super::*;

impl World {
    pub(super) fn next_of(&self, lane: usize) -> usize {
        let next = |c: &Command| c.lane == lane && c.executed.is_none() && !c.refused;
        self.commands.iter().position(next).unwrap()
    }

    pub(super) fn execute(&mut self, lane: usize) {
        let next = self.next_of(lane);
        let number = field(&self.commands[next].hold);
        let shared = self.commands[next].hold.kind.commands.is_shared();
        let waits = self.mark || self.stranger_mark;
        let read = !self.read_by.is_empty();
        let free = self.held_by.is_none() && (!read || (shared && !waits));
        let queued = self.commands[next].hold.kind.has_queue();
        let reply = match self.commands[next].what {
            What::Acquires { waits, .. } if queued => self.acquire_in_turn(number, waits),
            What::Enqueues => self.enqueue_all(next),
            What::Releases if queued => self.release_in_turn(number),
            What::Acquires { .. } if free || self.has(number) => {
                if !self.has(number) {
                    self.count = 1;
                }
                self.hold_in_redis(number, shared);
                self.mark &= shared;
                if shared && waits { -6 } else { -2 }
            }
            What::Acquires { marks, .. } => {
                self.mark |= marks;
                1000
            }
            What::Counts(count) if self.has(number) => {
                self.count = count;
                1
            }
            What::Asks => i64::from(self.has(number)),
            What::Joins if self.read_by.contains(&number) && waits => 1000,
            What::Joins if self.read_by.contains(&number) => -2,
            What::Marks => {
                self.mark |= read;
                1
            }
            What::Unmarks => {
                // Waiters get a message.
                self.polls += u32::from(self.mark && read && !self.stranger_mark);
                self.mark = false;
                1
            }
            What::Downgrades if self.has(number) => {
                self.held_by.take_if(|by| *by == number);
                self.read_by.insert(number);
                1
            }
            What::Joins | What::Downgrades => -5,
            What::Releases if self.has(number) => {
                self.held_by.take_if(|by| *by == number);
                self.read_by.remove(&number);
                self.ended.insert(number);
                // Our waiters get a message.
                2
            }
            What::Counts(_) | What::Releases => 0,
        };
        self.commands[next].executed = Some(reply);
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.held_by == Some(number) || self.read_by.contains(&number)
    }

    pub(super) fn hold_in_redis(&mut self, number: u64, shared: bool) {
        if shared {
            self.read_by.insert(number);
        } else {
            self.held_by = Some(number);
        }
    }
}
