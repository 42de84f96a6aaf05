//! Readers, writers, and the notes of writers that wait.

use super::*;

/// Readers, and a writer among them, in each order.
fn sharing(name: &str, callers: &'static [Role], sides: &'static [Side], faults: u32) {
    for open in [false, true] {
        let scenario = Scenario {
            callers,
            sides,
            open,
            faults,
            polls: 1,
            ticks: 0,
            ..QUIET
        };
        all_orders(name, scenario, 200);
    }
}

#[test]
fn readers_come_and_go() {
    let sides = &[Side::Reads, Side::Reads, Side::ReadsFixed];
    sharing("readers", &[PLAIN, CARELESS, PLAIN], sides, 0);
}

#[test]
fn readers_and_a_fault() {
    sharing(
        "a fault",
        &[PLAIN, CARELESS],
        &[Side::Reads, Side::Reads],
        1,
    );
}

#[test]
fn a_writer_between_readers() {
    let sides = &[Side::Reads, Side::Writes, Side::Reads];
    sharing("a writer", &[PLAIN, CARELESS, PLAIN], sides, 0);
}

#[test]
fn a_writer_and_a_reader_and_a_fault() {
    sharing(
        "two sides",
        &[CARELESS, PLAIN],
        &[Side::Reads, Side::Writes],
        1,
    );
}

#[test]
fn an_owner_that_writes_and_reads_beside_a_reader() {
    let callers: &[Role] = &[
        (Some(1), FOREVER, Manner::Unlocks, 1),
        (Some(1), FOREVER, Manner::Drops, 1),
        PLAIN,
    ];
    sharing(
        "downgrade",
        callers,
        &[Side::Writes, Side::Reads, Side::Reads],
        0,
    );
}

#[test]
fn writers_come_and_give_up_among_readers() {
    for open in [false, true] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS, CARELESS],
            sides: &[Side::Reads, Side::Writes, Side::Writes],
            open,
            notes: Some(0),
            polls: 0,
            ticks: 0,
            ..QUIET
        };
        all_orders("writers that wait", scenario, 1_000);
    }
}

#[test]
fn a_stranger_waits_to_write_while_readers_come_and_go() {
    for open in [false, true] {
        let scenario = Scenario {
            callers: &[PLAIN, CARELESS],
            sides: &[Side::Reads; 2],
            open,
            notes: Some(1),
            ticks: 0,
            ..QUIET
        };
        all_orders("a writer waits elsewhere", scenario, 1_000);
    }
}

#[test]
fn a_client_that_ends_takes_its_note_with_it() {
    let scenario = Scenario {
        callers: &[PLAIN, CARELESS],
        sides: &[Side::Reads, Side::Writes],
        notes: Some(0),
        closes: true,
        ticks: 0,
        ..QUIET
    };
    all_orders("a writer waits, closed", scenario, 200);
}

#[test]
fn a_downgrade_and_a_fault() {
    let callers: &[Role] = &[
        (Some(1), FOREVER, Manner::Unlocks, 1),
        (Some(1), FOREVER, Manner::Unlocks, 1),
    ];
    sharing(
        "downgrade, a fault",
        callers,
        &[Side::Writes, Side::Reads],
        1,
    );
}

#[test]
fn a_reader_behind_one_that_is_not_polled() {
    let callers: &[Role] = &[PLAIN, (None, FOREVER, Manner::Sleeps, 1), PLAIN];
    sharing(
        "asleep",
        callers,
        &[Side::Writes, Side::Reads, Side::Reads],
        0,
    );
}

#[test]
fn an_owner_whose_watched_level_goes_first_or_last() {
    let callers: &[Role] = &[
        (Some(1), FOREVER, Manner::Unlocks, 1),
        (Some(1), FOREVER, Manner::Unlocks, 1),
    ];
    let sides = &[Side::Reads, Side::ReadsFixed];
    sharing("levels", callers, sides, 0);
}
