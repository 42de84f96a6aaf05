//! The queue by itself: its indexes agree, and a grant looks only at those it concerns.

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
        prop_assert!(!queue.has_listeners());
        let index = queue.index.unwrap_or_default();
        prop_assert!(index.ends.is_empty() && index.owners.is_empty() && index.writers.is_empty());
    }
}
