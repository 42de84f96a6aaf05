//! The tickets that wait at a gate: first come, first served.
//!
//! Thousands may wait, so nothing that happens at each grant walks the whole queue. Waiters are found by the end of
//! their wait, and by their owner.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::clock::Moment;

/// What the queue knows of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueEntry {
    /// Numbers grow by arrival.
    pub(super) number: u64,
    /// When the wait ends, unless it is for ever.
    pub(super) end: Option<Moment>,
    /// The owner's number, if there is one.
    pub(super) owner: Option<u64>,
    /// Whether messages are to wake it.
    pub(super) listens: bool,
    /// Whether it wants exclusively what others share.
    pub(super) writes: bool,
}

pub(super) trait Queued {
    fn entry(&self) -> QueueEntry;
}

pub(super) struct Queue<T> {
    waiters: BTreeMap<u64, T>,
    ends: BTreeSet<(Moment, u64)>,
    owners: BTreeSet<(u64, u64)>,
    listeners: usize,
    writers: BTreeSet<u64>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            ends: BTreeSet::new(),
            owners: BTreeSet::new(),
            listeners: 0,
            writers: BTreeSet::new(),
        }
    }
}

impl<T: Queued> Queue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether messages are to wake anybody.
    pub(super) fn has_listeners(&self) -> bool {
        self.listeners > 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn head(&self) -> Option<&T> {
        self.waiters.first_key_value().map(|(_, first)| first)
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.waiters.contains_key(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiters.values()
    }

    /// Inserts in the order of arrival, so a head that tried in vain goes back to the front.
    pub(super) fn insert(&mut self, waiter: T) {
        let entry = waiter.entry();
        let number = entry.number;
        self.ends.extend(entry.end.map(|end| (end, number)));
        self.owners.extend(entry.owner.map(|owner| (owner, number)));
        self.writers.extend(entry.writes.then_some(number));
        if self.waiters.insert(number, waiter).is_none() {
            self.listeners += usize::from(entry.listens);
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let waiter = self.waiters.remove(&number)?;
        let entry = waiter.entry();
        self.listeners -= usize::from(entry.listens);
        if let Some(end) = entry.end {
            self.ends.remove(&(end, number));
        }
        if let Some(owner) = entry.owner {
            self.owners.remove(&(owner, number));
        }
        self.writers.remove(&number);
        Some(waiter)
    }

    pub(super) fn first_writer(&self) -> Option<&T> {
        self.waiters.get(self.writers.first()?)
    }

    /// The first reader behind `number`, if no writer is ahead of it.
    pub(super) fn next_reader(&self, number: u64) -> Option<&T> {
        let end = self.writers.first().copied().unwrap_or(u64::MAX);
        let behind = (
            Bound::Excluded(number),
            Bound::Excluded(end.max(number + 1)),
        );
        self.waiters.range(behind).next().map(|(_, waiter)| waiter)
    }

    /// Takes out a waiter whose wait is over at `now`, if there is one.
    pub(super) fn take_late(&mut self, now: Moment) -> Option<T> {
        let (end, number) = *self.ends.first()?;
        if end > now {
            return None;
        }
        self.remove(number)
    }

    /// Takes out a waiter of `owner`, if there is one.
    pub(super) fn take_of(&mut self, owner: u64) -> Option<T> {
        let (_, number) = *self.owners.range((owner, 0)..=(owner, u64::MAX)).next()?;
        self.remove(number)
    }

    /// Takes out all that `chosen` is true for. Walks the whole queue.
    pub(super) fn take_if(&mut self, mut chosen: impl FnMut(&T) -> bool) -> Vec<T> {
        let waiters = self.waiters.iter();
        let numbers: Vec<u64> = waiters
            .filter(|(_, waiter)| chosen(waiter))
            .map(|(number, _)| *number)
            .collect();
        let taken = numbers.into_iter().filter_map(|number| self.remove(number));
        taken.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    impl Queued for QueueEntry {
        fn entry(&self) -> QueueEntry {
            *self
        }
    }

    /// One who counts how often anybody looks at it.
    struct Watched<'a>(QueueEntry, &'a Cell<usize>);

    impl Queued for Watched<'_> {
        fn entry(&self) -> QueueEntry {
            self.1.set(self.1.get() + 1);
            self.0
        }
    }

    #[test]
    fn a_grant_looks_at_nobody_whom_it_does_not_concern() {
        let (looks, mut queue) = (Cell::new(0), Queue::default());
        for number in 0..10_000 {
            let entry = QueueEntry {
                number,
                end: Some(Moment::from_nanos(1_000 + number)),
                owner: Some(number),
                listens: true,
                writes: false,
            };
            queue.insert(Watched(entry, &looks));
        }
        looks.set(0);
        for number in 0..100 {
            assert!(queue.head().is_some());
            let granted = queue.remove(number).unwrap();
            assert!(queue.take_of(granted.0.number).is_none(), "one each");
            assert!(
                queue.take_late(Moment::from_nanos(999)).is_none(),
                "in time"
            );
        }
        assert_eq!(looks.get(), 100, "at each that was granted");
    }

    fn entries() -> impl Strategy<Value = Vec<QueueEntry>> {
        let entry = (
            0u64..50,
            proptest::option::of(0u64..20),
            proptest::option::of(0u64..4),
            any::<bool>(),
            any::<bool>(),
        );
        let entry = entry.prop_map(|(number, end, owner, listens, writes)| QueueEntry {
            number,
            end: end.map(Moment::from_nanos),
            owner,
            listens,
            writes,
        });
        proptest::collection::vec(entry, 0..40)
    }

    proptest! {
        /// Whatever is taken by one index is gone from the others, and nothing else is.
        #[test]
        fn all_indexes_agree(entries in entries(), now in 0u64..20, owner in 0u64..4) {
            let now = Moment::from_nanos(now);
            let mut queue = Queue::default();
            let mut all = BTreeMap::new();
            for entry in entries {
                // A number is used once.
                if all.insert(entry.number, entry).is_none() {
                    queue.insert(entry);
                } else {
                    all.insert(entry.number, *queue.iter().find(|p| p.number == entry.number).unwrap());
                }
            }
            while let Some(over) = queue.take_late(now) {
                prop_assert!(over.end.unwrap() <= now);
                all.remove(&over.number);
            }
            while let Some(own) = queue.take_of(owner) {
                prop_assert_eq!(own.owner, Some(owner));
                all.remove(&own.number);
            }
            prop_assert!(all.values().all(|p| p.end.is_none_or(|end| end > now) && p.owner != Some(owner)));
            prop_assert!(queue.iter().eq(all.values()));
            prop_assert_eq!(queue.len(), all.len());
            prop_assert_eq!(queue.has_listeners(), all.values().any(|entry| entry.listens));
            let writer = all.values().find(|entry| entry.writes);
            prop_assert_eq!(queue.first_writer(), writer);
            for after in 0..50 {
                let ahead = |entry: &&QueueEntry| writer.is_none_or(|writer| entry.number < writer.number);
                let next = all.values().filter(ahead).find(|entry| entry.number > after);
                prop_assert_eq!(queue.next_reader(after), next);
            }
            let odd = queue.take_if(|entry| entry.number % 2 == 1);
            prop_assert!(odd.iter().all(|entry| entry.number % 2 == 1));
            prop_assert!(queue.iter().all(|entry| entry.number % 2 == 0));
            while let Some(head) = queue.head().copied() {
                prop_assert!(queue.contains(head.number));
                queue.remove(head.number);
            }
            prop_assert!(queue.ends.is_empty() && queue.owners.is_empty() && !queue.has_listeners());
            prop_assert!(queue.writers.is_empty());
        }
    }
}
