//! Readers of Java: which violations are theirs although others read beside them, and which are not.

use super::*;

const JAVA: u32 = 1;
const OTHER: u32 = 2;

fn acquire(
    op: u64,
    client: u32,
    kind: LockKind,
    (from, until): (u64, u64),
    count: u32,
) -> [Record; 2] {
    let call = Call::Acquire {
        wait_ms: None,
        lease_ms: None,
    };
    let asked = Record::Invoke {
        t: from * MS,
        op,
        client,
        owner: 0,
        kind,
        name: "x".to_owned(),
        call,
    };
    let answered = Record::Return {
        t: until * MS,
        op,
        since: None,
        outcome: Outcome::Acquired(count),
        token: None,
    };
    [asked, answered]
}

/// Whether it is Redisson's if these keys expired.
fn is_redissons(records: &[Record], expiries: &[(u64, &str)], violation: &Violation) -> bool {
    let expiries: Vec<_> = expiries
        .iter()
        .map(|(t, key)| (t * MS, (*key).to_owned()))
        .collect();
    let java = [(JAVA, "java".to_owned())];
    let facts = Facts::of(records, &expiries, &java);
    facts.redissons(violation).is_some()
}

const NOTE: &str = "{x}:java:7:rwlock_timeout:1";

#[test]
fn a_count_too_small_is_redissons_when_the_readers_own_lease_ran_out_before_a_writer_came() {
    let reader = acquire(1, JAVA, LockKind::Read, (0, 10), 0);
    let violation = Violation {
        breach: Breach::WrongCount {
            got: 0,
            expected: 1,
        },
        name: "x".to_owned(),
        evidence: reader.to_vec(),
    };
    let then = |kind| [reader.clone(), acquire(2, OTHER, kind, (12, 15), 1)].concat();
    let beside = then(LockKind::Read);
    assert!(is_redissons(&beside, &[(900, NOTE)], &violation));
    // Others may have kept the lock's key, and a writer that got in shows that the hold was gone.
    assert!(!is_redissons(&beside, &[(900, "x")], &violation));
    let gone = then(LockKind::Write);
    assert!(!is_redissons(&gone, &[(900, NOTE)], &violation));
}

#[test]
fn a_change_seen_by_a_reader_is_redissons_if_its_lease_had_run_out() {
    let records = [
        acquire(1, JAVA, LockKind::Read, (0, 10), 1),
        acquire(2, OTHER, LockKind::Write, (1_000, 1_010), 1),
    ]
    .concat();
    let look = Record::Look {
        op: 1,
        from: 20 * MS,
        until: 1_050 * MS,
        first: 9,
        seen: 2,
    };
    let pair = Record::Pair {
        op: 2,
        from: 1_020 * MS,
        wrote: 1_021 * MS,
        until: 1_030 * MS,
        seen: 2,
    };
    let violation = Violation {
        breach: Breach::TornPair,
        name: "x".to_owned(),
        evidence: vec![look, pair],
    };
    assert!(is_redissons(&records, &[(900, NOTE)], &violation));
    assert!(!is_redissons(&records, &[(1_200, NOTE)], &violation));
    assert!(!is_redissons(&records, &[], &violation));
}

/// It was granted at 20 ms, slept, and read that at 1 000 ms.
#[test]
fn an_overlap_with_one_who_slept_over_its_grant_is_redissons_if_its_lease_had_run_out() {
    let other = acquire(2, OTHER, LockKind::Fair, (900, 910), 1);
    let slept = acquire(1, JAVA, LockKind::Fair, (10, 1_000), 0);
    let sleep = Record::Frozen {
        client: JAVA,
        from: 30 * MS,
        until: 990 * MS,
    };
    let overlap = |first: &[Record; 2], second: &[Record; 2]| Violation {
        breach: Breach::Overlap { by: MS },
        name: "x".to_owned(),
        evidence: [first.clone(), second.clone()].concat(),
    };
    let violation = overlap(&other, &slept);
    let awake = [slept.clone(), other.clone()].concat();
    let records = [awake.clone(), vec![sleep]].concat();
    assert!(is_redissons(&records, &[(600, "x")], &violation));
    assert!(!is_redissons(&records, &[], &violation), "nothing ran out");
    assert!(!is_redissons(&awake, &[(600, "x")], &violation));
    let ours = acquire(1, OTHER + 1, LockKind::Fair, (10, 1_000), 0);
    let records = [ours.clone(), other.clone()].concat();
    let violation = overlap(&other, &ours);
    assert!(!is_redissons(&records, &[(600, "x")], &violation));
}
