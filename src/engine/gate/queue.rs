//! Who waits behind a gate: first come first served.
//!
//! Thousands may wait, so nothing that happens at each grant walks the whole queue: those whose wait ends are
//! found by when it ends, those of an owner by the owner.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::clock::Moment;

/// What the queue knows of one who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Numbers grow by arrival.
    pub(crate) number: u64,
    /// When the wait ends, unless it is for ever.
    pub(crate) end: Option<Moment>,
    /// The owner's number, if there is one.
    pub(crate) owner: Option<u64>,
    /// Whether it is to be woken by messages.
    pub(crate) listens: bool,
    /// Whether it wants to have alone what others share.
    pub(crate) alone: bool,
}

/// One who can wait in a queue.
pub(crate) trait Waits {
    fn place(&self) -> Place;
}

pub(crate) struct Queue<T> {
    waiters: BTreeMap<u64, T>,
    ends: BTreeSet<(Moment, u64)>,
    owners: BTreeSet<(u64, u64)>,
    /// How many are to be woken by messages.
    listeners: usize,
    alone: BTreeSet<u64>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            ends: BTreeSet::new(),
            owners: BTreeSet::new(),
            listeners: 0,
            alone: BTreeSet::new(),
        }
    }
}

impl<T: Waits> Queue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether anybody is to be woken by messages.
    pub(crate) fn has_listeners(&self) -> bool {
        self.listeners > 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn head(&self) -> Option<&T> {
        self.waiters.first_key_value().map(|(_, first)| first)
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.waiters.contains_key(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiters.values()
    }

    /// By arrival: a head that tried in vain goes back to the front.
    pub(crate) fn insert(&mut self, waiter: T) {
        let place = waiter.place();
        self.ends.extend(place.end.map(|end| (end, place.number)));
        self.owners
            .extend(place.owner.map(|owner| (owner, place.number)));
        if self.waiters.insert(place.number, waiter).is_none() {
            self.listeners += usize::from(place.listens);
        }
        self.alone.extend(place.alone.then_some(place.number));
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let waiter = self.waiters.remove(&number)?;
        let place = waiter.place();
        self.listeners -= usize::from(place.listens);
        if let Some(end) = place.end {
            self.ends.remove(&(end, number));
        }
        if let Some(owner) = place.owner {
            self.owners.remove(&(owner, number));
        }
        self.alone.remove(&number);
        Some(waiter)
    }

    /// The first who wants to have alone what others share.
    pub(crate) fn first_alone(&self) -> Option<&T> {
        self.waiters.get(self.alone.first()?)
    }

    /// The first behind `number` who shares, unless somebody who does not is ahead.
    pub(crate) fn next_sharing(&self, number: u64) -> Option<&T> {
        let end = self.alone.first().copied().unwrap_or(u64::MAX);
        let behind = (
            Bound::Excluded(number),
            Bound::Excluded(end.max(number + 1)),
        );
        self.waiters.range(behind).next().map(|(_, waiter)| waiter)
    }

    /// Takes one out whose wait is over at `now`, if there is one.
    pub(crate) fn take_over(&mut self, now: Moment) -> Option<T> {
        let (end, number) = *self.ends.first()?;
        if end > now {
            return None;
        }
        self.remove(number)
    }

    /// Takes one of `owner` out, if there is one.
    pub(crate) fn take_of(&mut self, owner: u64) -> Option<T> {
        let (_, number) = *self.owners.range((owner, 0)..=(owner, u64::MAX)).next()?;
        self.remove(number)
    }

    /// Takes out all that `chosen` is true for. Walks the whole queue.
    pub(crate) fn take_if(&mut self, mut chosen: impl FnMut(&T) -> bool) -> Vec<T> {
        let numbers: Vec<u64> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| chosen(waiter))
            .map(|(number, _)| *number)
            .collect();
        numbers
            .into_iter()
            .filter_map(|number| self.remove(number))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    impl Waits for Place {
        fn place(&self) -> Place {
            *self
        }
    }

    /// One who counts how often anybody looks at it.
    struct Watched<'a>(Place, &'a Cell<usize>);

    impl Waits for Watched<'_> {
        fn place(&self) -> Place {
            self.1.set(self.1.get() + 1);
            self.0
        }
    }

    #[test]
    fn a_grant_looks_at_nobody_whom_it_does_not_concern() {
        let (looks, mut queue) = (Cell::new(0), Queue::default());
        for number in 0..10_000 {
            let place = Place {
                number,
                end: Some(Moment::from_nanos(1_000 + number)),
                owner: Some(number),
                listens: true,
                alone: false,
            };
            queue.insert(Watched(place, &looks));
        }
        looks.set(0);
        for number in 0..100 {
            assert!(queue.head().is_some());
            let granted = queue.remove(number).unwrap();
            assert!(queue.take_of(granted.0.number).is_none(), "one each");
            assert!(
                queue.take_over(Moment::from_nanos(999)).is_none(),
                "in time"
            );
        }
        assert_eq!(looks.get(), 100, "at each that was granted");
    }

    fn places() -> impl Strategy<Value = Vec<Place>> {
        let place = (
            0u64..50,
            proptest::option::of(0u64..20),
            proptest::option::of(0u64..4),
            any::<bool>(),
            any::<bool>(),
        );
        let place = place.prop_map(|(number, end, owner, listens, alone)| Place {
            number,
            end: end.map(Moment::from_nanos),
            owner,
            listens,
            alone,
        });
        proptest::collection::vec(place, 0..40)
    }

    proptest! {
        /// Whatever is taken by one index is gone from the others, and nothing else is.
        #[test]
        fn all_indexes_tell_the_same(places in places(), now in 0u64..20, owner in 0u64..4) {
            let now = Moment::from_nanos(now);
            let mut queue = Queue::default();
            let mut all = BTreeMap::new();
            for place in places {
                // A number is used once.
                if all.insert(place.number, place).is_none() {
                    queue.insert(place);
                } else {
                    all.insert(place.number, *queue.iter().find(|p| p.number == place.number).unwrap());
                }
            }
            while let Some(over) = queue.take_over(now) {
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
            prop_assert_eq!(queue.has_listeners(), all.values().any(|place| place.listens));
            let alone = all.values().find(|place| place.alone);
            prop_assert_eq!(queue.first_alone(), alone);
            for after in 0..50 {
                let ahead = |place: &&Place| alone.is_none_or(|alone| place.number < alone.number);
                let next = all.values().filter(ahead).find(|place| place.number > after);
                prop_assert_eq!(queue.next_sharing(after), next);
            }
            let odd = queue.take_if(|place| place.number % 2 == 1);
            prop_assert!(odd.iter().all(|place| place.number % 2 == 1));
            prop_assert!(queue.iter().all(|place| place.number % 2 == 0));
            while let Some(head) = queue.head().copied() {
                prop_assert!(queue.contains(head.number));
                queue.remove(head.number);
            }
            prop_assert!(queue.ends.is_empty() && queue.owners.is_empty() && !queue.has_listeners());
            prop_assert!(queue.alone.is_empty());
        }
    }
}
