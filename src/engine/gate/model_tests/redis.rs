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
        let waits = self.note || self.stranger_note;
        let read = !self.read_by.is_empty();
        let free = self.held_by.is_none() && (!read || (shared && !waits));
        let queued = self.commands[next].hold.kind.has_queue();
        let reply = match self.commands[next].what {
            What::Acquires { .. } if self.is_counted() => self.acquire_permits(next),
            What::Releases if self.is_counted() => self.release_permits(number),
            What::Acquires { waits, .. } if queued => self.acquire_in_turn(number, waits),
            What::Enqueues => self.enqueue_all(next),
            What::Releases if queued => self.release_in_turn(number),
            What::Acquires { .. } if free || self.has(number) => {
                if !self.has(number) {
                    self.count = 1;
                }
                self.hold_in_redis(number, shared);
                self.note &= shared;
                if shared && waits {
                    Reply::WriterWaits
                } else {
                    Reply::Done(0)
                }
            }
            What::Acquires { notes, .. } => {
                self.note |= notes;
                BUSY
            }
            What::Counts(count) if self.has(number) => {
                self.count = count;
                Reply::Done(0)
            }
            What::Asks if self.has(number) => Reply::Done(0),
            What::Joins if self.read_by.contains(&number) && waits => BUSY,
            What::Joins if self.read_by.contains(&number) => Reply::Done(0),
            What::Notes => {
                self.note |= read;
                Reply::Done(0)
            }
            What::RemovesNote => {
                // Waiters get a message.
                self.polls += u32::from(self.note && read && !self.stranger_note);
                self.note = false;
                Reply::Done(0)
            }
            What::Downgrades if self.has(number) => {
                self.held_by.take_if(|by| *by == number);
                self.read_by.insert(number);
                Reply::Done(0)
            }
            What::Releases if self.has(number) => {
                self.held_by.take_if(|by| *by == number);
                self.read_by.remove(&number);
                self.ended.insert(number);
                // Our waiters get a message.
                Reply::Woke(1)
            }
            What::Asks | What::Joins | What::Downgrades | What::Counts(_) | What::Releases => {
                Reply::Gone
            }
        };
        self.commands[next].executed = Some(reply);
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.held_by == Some(number)
            || self.read_by.contains(&number)
            || self.permits.taken.contains_key(&number)
    }

    pub(super) fn hold_in_redis(&mut self, number: u64, shared: bool) {
        if shared {
            self.read_by.insert(number);
        } else {
            self.held_by = Some(number);
        }
    }
}
