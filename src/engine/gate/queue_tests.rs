//! The queue by itself: its indexes agree, and a grant looks only at those it concerns.

use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;

use super::*;
use crate::backoff::Backoff;
use crate::engine::hold::kind::{Commands, KindCommands, KindRules, Sharing};
use crate::engine::made_tests::{Sort, kind, request};

/// A kind that counts how often anybody looks at its rules.
#[derive(Debug, Clone, Default)]
struct Watched {
    listens: bool,
    writes: bool,
    looks: Arc<AtomicUsize>,
}

impl Commands for Watched {
    fn rules(&self) -> KindRules {
        self.looks.fetch_add(1, Ordering::Relaxed);
        KindRules {
            backoff: (!self.listens).then(Backoff::new),
            sharing: if self.writes {
                Sharing::Writes
            } else {
                Sharing::Exclusive
            },
            ..KindRules::DEFAULT
        }
    }
}

fn waiter(
    number: u64,
    watched: &Watched,
    end: Option<u64>,
    owner: Option<&Arc<OwnerState>>,
) -> Arc<Ticket> {
    let end = end.map(Moment::from_nanos);
    let request = request(Sort::Plain, end.map_or(Patience::Forever, Patience::Until));
    let kind = Kind {
        commands: KindCommands::OfOne(Arc::new(watched.clone())),
        ..kind(Sort::Plain)
    };
    let owner = owner.cloned();
    Ticket::new(
        number,
        Request {
            kind,
            owner,
            ..request
        },
    )
}

#[test]
fn a_grant_looks_at_nobody_whom_it_does_not_concern() {
    let watched = Watched {
        listens: true,
        ..Watched::default()
    };
    let mut queue = Queue::default();
    for number in 0..10_000 {
        let owner = OwnerState::new();
        queue.insert(waiter(number, &watched, Some(1_000 + number), Some(&owner)));
    }
    let looks = || watched.looks.swap(0, Ordering::Relaxed);
    looks();
    assert!(queue.remove(0).is_some());
    let at_one = looks();
    for number in 1..=100 {
        assert!(queue.head().is_some());
        let granted = queue.remove(number).unwrap();
        let owner = granted.request.owner_number().unwrap();
        assert!(queue.take_of(owner).is_none(), "one each");
        assert!(
            queue.take_late(Moment::from_nanos(999)).is_none(),
            "in time"
        );
    }
    assert_eq!(looks(), 100 * at_one, "at each that was granted");
}

#[derive(Debug, Clone)]
struct Entry {
    number: u64,
    end: Option<u64>,
    owner: Option<usize>,
    watched: Watched,
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let entry = (
        0u64..50,
        proptest::option::of(0u64..20),
        proptest::option::of(0usize..4),
        any::<bool>(),
        any::<bool>(),
    );
    let entry = entry.prop_map(|(number, end, owner, listens, writes)| Entry {
        number,
        end,
        owner,
        watched: Watched {
            listens,
            writes,
            looks: Arc::default(),
        },
    });
    proptest::collection::vec(entry, 0..40)
}

fn number(ticket: &Arc<Ticket>) -> u64 {
    ticket.number
}

proptest! {
    /// Whatever is taken by one index is gone from the others, and nothing else is.
    #[test]
    fn all_indexes_agree(entries in entries(), now in 0u64..20, owner in 0usize..4) {
        let now = Moment::from_nanos(now);
        let owners = [(); 4].map(|()| OwnerState::new());
        let owner = owners[owner].number;
        let mut queue = Queue::default();
        let mut all: BTreeMap<u64, Arc<Ticket>> = BTreeMap::new();
        for Entry { number, end, owner, watched } in entries {
            // A number is used once.
            all.entry(number).or_insert_with(|| {
                let ticket = waiter(number, &watched, end, owner.map(|owner| &owners[owner]));
                queue.insert(Arc::clone(&ticket));
                ticket
            });
        }
        while let Some(over) = queue.take_late(now) {
            prop_assert!(over.end().unwrap() <= now);
            all.remove(&over.number);
        }
        while let Some(own) = queue.take_of(owner) {
            prop_assert_eq!(own.request.owner_number(), Some(owner));
            all.remove(&own.number);
        }
        let stays = |ticket: &Arc<Ticket>| {
            let in_time = ticket.end().is_none_or(|end| end > now);
            in_time && ticket.request.owner_number() != Some(owner)
        };
        prop_assert!(all.values().all(stays));
        prop_assert!(queue.iter().map(number).eq(all.values().map(number)));
        prop_assert_eq!(queue.len(), all.len());
        prop_assert_eq!(queue.has_listeners(), all.values().any(|ticket| ticket.listens()));
        let writes = |ticket: &&Arc<Ticket>| ticket.request.kind.commands.leaves_notes();
        let writer = all.values().find(writes).map(number);
        prop_assert_eq!(queue.first_writer().map(number), writer);
        for after in 0..50 {
            let ahead = |ticket: &&Arc<Ticket>| writer.is_none_or(|writer| ticket.number < writer);
            let next = all.values().filter(ahead).find(|ticket| ticket.number > after);
            prop_assert_eq!(queue.next_reader(after).map(number), next.map(number));
        }
        let odd = queue.take_if(|ticket| ticket.number % 2 == 1);
        prop_assert!(odd.iter().all(|ticket| ticket.number % 2 == 1));
        prop_assert!(queue.iter().all(|ticket| ticket.number % 2 == 0));
        while let Some(head) = queue.head().map(number) {
            prop_assert!(queue.contains(head));
            queue.remove(head);
        }
        prop_assert!(!queue.has_listeners());
        let index = queue.index.unwrap_or_default();
        prop_assert!(index.ends.is_empty() && index.owners.is_empty() && index.writers.is_empty());
    }
}
