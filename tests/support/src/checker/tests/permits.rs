//! Permits: no more than there are, in the order of the calls of a client, and older requests before younger ones.

use super::*;

/// A semaphore with so many permits.
fn of(permits: u32) -> Story {
    Story {
        more_permits: permits - 1,
        ..story().of(LockKind::Permits(1))
    }
}

impl Story {
    /// Takes permits, and gives them back.
    fn permits(self, client: u32, count: u32, taken: (u64, u64), back: (u64, u64)) -> Self {
        let story = self.of(LockKind::Permits(count));
        let story = story.lock(client, taken, 1);
        story.unlock(client, back, 0)
    }
}

#[test]
fn no_more_permits_than_there_are_may_be_certain() {
    let two = || of(2).permits(1, 1, (0, 5), (50, 51));
    two().permits(2, 1, (1, 6), (60, 61)).breaks(&[]);
    let three = two().permits(2, 1, (1, 6), (60, 61));
    let three = three.permits(3, 1, (2, 7), (55, 56));
    three.breaks(&[Invariant::I1]);
    two()
        .permits(2, 2, (1, 6), (60, 61))
        .breaks(&[Invariant::I1]);
    two().permits(2, 2, (1, 52), (60, 61)).breaks(&[]);
}

#[test]
fn nobody_waits_beside_as_many_permits_as_the_largest_request_asks_for() {
    let held = |permits| of(permits).permits(1, 1, (0, 5), (1_900, 1_901));
    held(3)
        .permits(2, 2, (10, 900), (950, 951))
        .breaks(&[Invariant::I5]);
    held(3).permits(2, 2, (10, 20), (950, 951)).breaks(&[]);
    held(2)
        .permits(2, 2, (10, 1_910), (1_950, 1_951))
        .breaks(&[]);
}

#[test]
fn requests_of_a_client_are_granted_in_order() {
    let taken = |first: (u64, u64), second: (u64, u64)| {
        let held = of(1).permits(1, 1, (0, 5), (500, 501));
        let held = held.op((2, 1), lock(None), first, Outcome::Acquired(1));
        let end = (first.1 + 40, first.1 + 41);
        let held = held.op((2, 1), Call::Release, end, Outcome::Released(0));
        let held = held.op((2, 2), lock(None), second, Outcome::Acquired(1));
        let end = (second.1 + 40, second.1 + 41);
        held.op((2, 2), Call::Release, end, Outcome::Released(0))
    };
    taken((10, 502), (100, 544)).breaks(&[]);
    taken((10, 544), (100, 502)).breaks(&[Invariant::Order]);
}

#[test]
fn an_older_request_of_another_client_is_left_what_it_needs() {
    let taken = |called| {
        let held = of(2).permits(1, 2, (0, 5), (2_000, 2_001));
        let held = held.permits(2, 2, (10, 2_060), (2_100, 2_101));
        held.permits(3, 1, (called, 2_005), (2_050, 2_051))
    };
    // It had not waited for long enough.
    taken(500).breaks(&[]);
    taken(700).breaks(&[Invariant::Order]);
}
