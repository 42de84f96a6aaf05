//! Rules that only some kinds of lock have: readers share, tokens grow, the order of arrival is kept.

use super::*;

fn look(op: u64, from: u64, until: u64, first: u64, seen: u64) -> Record {
    Record::Look {
        op,
        from: from * MS,
        until: until * MS,
        first,
        seen,
    }
}

fn write_pair(op: u64, from: u64, until: u64) -> Record {
    Record::Pair {
        op,
        from: from * MS,
        wrote: (from + 1) * MS,
        until: until * MS,
        seen: op,
    }
}

fn reads() -> Story {
    story().of(LockKind::Read)
}

#[test]
fn readers_share_and_nobody_else_does() {
    for kind in LockKind::ALL {
        let both = story().of(kind).lock(1, (0, 5), 1).token(1);
        let both = both.lock(2, (1, 8), 1).token(2);
        let both = both.unlock(1, (50, 51), 0).unlock(2, (60, 61), 0);
        let shared = kind == LockKind::Read;
        let broken: &[Invariant] = if shared { &[] } else { &[Invariant::I1] };
        both.breaks(broken);
    }
}

#[test]
fn a_reader_beside_a_writer_breaks_i1() {
    let beside = |inside: u32| {
        let held = reads().lock(1, (0, 5), 1).of(LockKind::Write);
        let held = held.lock(inside, (6, 8), 1).unlock(inside, (20, 21), 0);
        held.of(LockKind::Read).unlock(1, (30, 31), 0)
    };
    beside(2).breaks(&[Invariant::I1]);
    let writes = || story().of(LockKind::Write).lock(1, (0, 5), 1);
    let reads = |client| {
        let held = writes().of(LockKind::Read).lock(client, (6, 8), 1);
        let held = held.unlock(client, (20, 21), 0).of(LockKind::Write);
        held.unlock(1, (30, 31), 0)
    };
    reads(2).breaks(&[Invariant::I1]);
    reads(1).breaks(&[]);
}

#[test]
fn levels_of_two_kinds_are_counted_apart() {
    let held = story().of(LockKind::Write).lock(1, (0, 5), 1);
    let held = held
        .of(LockKind::Read)
        .lock(1, (6, 7), 1)
        .lock(1, (8, 9), 2);
    let held = held.of(LockKind::Write).unlock(1, (10, 11), 0);
    let held = held.of(LockKind::Read).unlock(1, (12, 13), 1);
    held.unlock(1, (14, 15), 0).breaks(&[]);
}

#[test]
fn a_reader_that_writes_learns_of_a_deletion_from_its_write() {
    let deleted = Record::Deleted {
        from: 100 * MS,
        until: 101 * MS,
        name: None,
    };
    let held = || story().of(LockKind::Write).lock(1, (0, 5), 1);
    let read = |story: Story| story.of(LockKind::Read).lock(1, (6, 7), 1);
    let given_back = |story: Story| {
        let story = story.of(LockKind::Read).and(deleted.clone());
        story.unlock(1, (200, 201), 0)
    };
    let learns = |story: Story| {
        let story = story.of(LockKind::Write);
        story.fails(1, (300, 301), "lost")
    };
    learns(given_back(read(held()))).breaks(&[]);
    given_back(read(story())).breaks(&[Invariant::I8]);
    let wrote_before = read(held()).of(LockKind::Write).unlock(1, (20, 21), 0);
    given_back(wrote_before).breaks(&[Invariant::I8]);
    // Another owner of the client reads, too.
    let other = |story: Story| story.op((1, 1), lock(None), (8, 9), Outcome::Acquired(1));
    let beside = || given_back(other(read(story())));
    let lost = Outcome::Failed("lost".to_owned());
    beside()
        .op((1, 1), Call::Release, (300, 301), lost)
        .breaks(&[]);
    let unaware = Outcome::Released(0);
    beside()
        .op((1, 1), Call::Release, (300, 301), unaware)
        .breaks(&[Invariant::I8]);
}

#[test]
fn a_reader_that_sees_a_writer_come_and_go_breaks_i1() {
    let story = |seen| {
        let story = reads().lock(1, (0, 5), 1).and(look(0, 6, 40, 9, seen));
        let story = story.unlock(1, (50, 51), 0).of(LockKind::Write);
        let story = story.lock(2, (10, 20), 1).and(write_pair(2, 21, 25));
        story.unlock(2, (30, 31), 0)
    };
    let torn = |story: &Story| {
        let found = story.check().violations;
        found.iter().any(|found| found.breach == Breach::TornPair)
    };
    assert!(torn(&story(2)));
    assert!(!torn(&story(9)));
}

#[test]
fn a_reader_that_sleeps_beside_readers_breaks_i5() {
    let held = || reads().lock(1, (0, 5), 1).unlock(1, (900, 901), 0);
    let waits = |until| held().lock(2, (50, until), 1).unlock(2, (950, 951), 0);
    waits(200).breaks(&[]);
    waits(700).breaks(&[Invariant::I5]);
    // A reader that a waiting writer keeps out is not asleep.
    let waits = waits(895).of(LockKind::Write);
    waits
        .op((3, 0), try_lock(840), (55, 890), Outcome::Busy)
        .breaks(&[]);
}

#[test]
fn a_writer_that_sleeps_beside_a_free_lock_breaks_i5() {
    let held = || reads().lock(1, (0, 5), 1).unlock(1, (100, 101), 0);
    let waits = |until| {
        let story = held().of(LockKind::Write).lock(2, (50, until), 1);
        story.unlock(2, (800, 801), 0)
    };
    waits(110).breaks(&[]);
    waits(300).breaks(&[Invariant::I5]);
}

#[test]
fn a_reader_that_is_answered_busy_beside_readers_breaks_i6() {
    let tried = |kind| {
        let held = story().of(kind).lock(1, (0, 5), 1).unlock(1, (50, 51), 0);
        held.of(LockKind::Read)
            .op((2, 0), try_lock(0), (10, 12), Outcome::Busy)
    };
    tried(LockKind::Write).breaks(&[]);
    tried(LockKind::Read).ends(3_000).breaks(&[Invariant::I6]);
}

fn fenced(one: u64, other: u64) -> Story {
    let story = story().of(LockKind::Fenced).lock(1, (0, 5), 1).token(one);
    let story = story
        .unlock(1, (10, 11), 0)
        .lock(2, (4, 14), 1)
        .token(other);
    story.unlock(2, (20, 21), 0)
}

#[test]
fn a_token_that_does_not_grow_breaks_the_rule_of_tokens() {
    fenced(7, 8).breaks(&[]);
    fenced(7, 1_790_000_000_000_000).breaks(&[]);
    fenced(7, 7).breaks(&[Invariant::Tokens]);
    fenced(7, 6).breaks(&[Invariant::Tokens]);
}

#[test]
fn a_token_must_grow_over_all_holds_and_losses_before() {
    let story = fenced(7, 9).and(Record::Deleted {
        from: 30 * MS,
        until: 31 * MS,
        name: None,
    });
    let story = |token| {
        let mut later = Story::default().of(LockKind::Fenced);
        later.records.clone_from(&story.records);
        later.next = story.next;
        later
            .lock(3, (40, 45), 1)
            .token(token)
            .unlock(3, (50, 51), 0)
    };
    story(10).breaks(&[]);
    story(8).breaks(&[Invariant::Tokens]);
    story(1).breaks(&[Invariant::Tokens]);
}

#[test]
fn a_disturbed_client_may_have_been_first() {
    let disturbed = |from| {
        let story = story().of(LockKind::Fenced).lock(1, (0, 5), 1).token(7);
        let story = story.unlock(1, (10, 11), 0).fault(1, 2, Scope::Client(2));
        story
            .op((2, 0), lock(Some(300)), (from, 900), Outcome::Acquired(1))
            .token(6)
    };
    let broken = |from| {
        disturbed(from)
            .lost(2, 901)
            .check()
            .breaks(Invariant::Tokens)
    };
    assert!(!broken(4), "its answer may have come late");
    assert!(broken(6), "the first was answered before it asked");
}

#[test]
fn a_hold_keeps_its_token() {
    let entered = |token| {
        let story = story().of(LockKind::Fenced).lock(1, (0, 5), 1).token(7);
        let story = story.lock(1, (6, 7), 2).token(token);
        story.unlock(1, (10, 11), 1).unlock(1, (12, 13), 0)
    };
    entered(7).breaks(&[]);
    entered(8).breaks(&[Invariant::Tokens]);
    let story = story().of(LockKind::Fenced).lock(1, (0, 5), 1);
    story.unlock(1, (6, 7), 0).breaks(&[Invariant::Tokens]);
}

#[test]
fn a_plain_hold_that_was_entered_through_a_fenced_lock_has_a_token() {
    let then = |again: Option<u64>, next| {
        let story = story().lock(1, (0, 5), 1).lock(1, (6, 7), 2).token(7);
        let story = story.lock(1, (8, 9), 3);
        let story = again.into_iter().fold(story, Story::token);
        let story = (0..3).fold(story, |story, at| {
            story.unlock(
                1,
                (10 + 2 * at, 11 + 2 * at),
                2 - u32::try_from(at).unwrap(),
            )
        });
        let story = story.of(LockKind::Fenced).lock(2, (20, 25), 1).token(next);
        story.unlock(2, (26, 27), 0)
    };
    then(Some(7), 8).breaks(&[]);
    then(None, 8).breaks(&[Invariant::Tokens]);
    then(Some(8), 9).breaks(&[Invariant::Tokens]);
    then(Some(7), 7).breaks(&[Invariant::Tokens]);
}

/// The first holds it; the second comes at 50, the third at some later time; returns who gets it when.
fn queue(third: u64, second_got: u64, third_got: u64) -> Story {
    let story = story().of(LockKind::Fair).lock(1, (0, 5), 1);
    let story = story.unlock(1, (400, 401), 0);
    let (first, last) = (second_got.min(third_got), second_got.max(third_got));
    let client = |got| if got == second_got { 2 } else { 3 };
    let asked = |got| if got == second_got { 50 } else { third };
    let story = story.lock(client(first), (asked(first), first), 1);
    let story = story.unlock(client(first), (first + 20, first + 21), 0);
    let story = story.lock(client(last), (asked(last), last), 1);
    story.unlock(client(last), (last + 20, last + 21), 0)
}

#[test]
fn an_overtaking_in_a_fair_queue_breaks_the_order() {
    queue(200, 402, 424).breaks(&[]);
    queue(200, 424, 402).breaks(&[Invariant::Order]);
    // 40 ms is the margin here: a waiter that came so shortly before may have entered the queue later.
    queue(80, 424, 402).breaks(&[]);
    queue(200, 424, 402)
        .of(LockKind::Lock)
        .breaks(&[Invariant::Order]);
}

#[test]
fn a_fault_of_the_overtaken_excuses_an_overtaking() {
    let excused = |client| queue(200, 424, 402).fault(60, 70, Scope::Client(client));
    excused(2).breaks(&[]);
    excused(3).breaks(&[Invariant::Order]);
}

#[test]
fn a_place_that_a_client_could_not_withdraw_excuses_an_overtaking() {
    let gave_up = |client| {
        let story = queue(200, 424, 402);
        story.op((client, 1), try_lock(260), (40, 300), Outcome::Busy)
    };
    let fault = |client, of| gave_up(client).fault(250, 310, Scope::Client(of));
    fault(3, 3).breaks(&[]);
    gave_up(3).breaks(&[Invariant::Order]);
    fault(4, 4).breaks(&[Invariant::Order]);
}

#[test]
fn a_waiter_behind_the_places_of_its_client_comes_to_the_queue_when_one_is_free() {
    let behind = |fellows: u32, client: u32, until: u64| {
        (1..=fellows).fold(queue(200, 424, 402), |story, owner| {
            let call = try_lock(until - 10);
            story.op((client, owner), call, (10, until), Outcome::Busy)
        })
    };
    behind(64, 2, 300).breaks(&[]);
    behind(63, 2, 300).breaks(&[Invariant::Order]);
    behind(64, 3, 300).breaks(&[Invariant::Order]);
    behind(64, 2, 100).breaks(&[Invariant::Order]);
}

#[test]
fn a_waiter_that_is_not_polled_excuses_its_client_out_of_step() {
    let fellow = |client| {
        let story = queue(200, 424, 402);
        let story = story.op((client, 1), lock(None), (40, 460), Outcome::Acquired(1));
        story.op((client, 1), Call::Release, (470, 471), Outcome::Released(0))
    };
    for client in [2, 3] {
        fellow(client).unpolled(6, 45, 455).breaks(&[]);
        fellow(client).breaks(&[Invariant::Order]);
    }
}

#[test]
fn an_acquire_that_gave_up_was_overtaken_before() {
    let gave_up = |until| {
        let story = queue(200, 424, 402);
        story.op((4, 0), try_lock(until - 60), (60, until), Outcome::Busy)
    };
    let overtakings = |story: Story| story.check().count(Invariant::Order);
    assert_eq!(overtakings(gave_up(300)), 1);
    assert_eq!(overtakings(gave_up(420)), 2);
}

#[test]
fn a_dead_waiter_in_a_fair_queue_excuses_those_behind_for_its_time() {
    let dead = |kind| {
        let story = story().of(kind).lock(1, (0, 5), 1).unlock(1, (400, 401), 0);
        let story = story.open((2, 0), lock(None), 50).and(Record::Killed {
            t: 100 * MS,
            client: 2,
        });
        story.lock(3, (200, 5_000), 1).unlock(3, (5_001, 5_002), 0)
    };
    dead(LockKind::Fair).breaks(&[]);
    dead(LockKind::Lock).breaks(&[Invariant::I5]);
}

/// Redisson's dead waiters run out one after another, from when those ahead of them are out.
#[test]
fn dead_waiters_of_redisson_in_a_fair_queue_excuse_those_behind_one_after_another() {
    let waits_until = |until| {
        let dead_turn = Duration::from_millis(400);
        let story = Story {
            dead_turn,
            ..story()
        }
        .of(LockKind::Fair);
        let story = story.lock(1, (0, 5), 1).unlock(1, (400, 401), 0);
        let story = story.open((2, 0), lock(None), 50);
        let story = story.open((4, 0), lock(None), 60);
        let killed = |t, client| Record::Killed { t: t * MS, client };
        let story = story.and(killed(100, 2)).and(killed(101, 4));
        story
            .lock(3, (200, until), 1)
            .unlock(3, (until + 1, until + 2), 0)
    };
    // The first is out after 0.1 + 16 + 0.5 s, and each has its turn; a waiter sleeps 0.53 s at most.
    waits_until(17_400 + 500).breaks(&[]);
    waits_until(17_400 + 600).breaks(&[Invariant::I5]);
}

/// A place that a killed client could not give up any more keeps the others out; one that it had given up does not.
#[test]
fn a_client_that_is_killed_while_it_leaves_a_fair_queue_excuses_those_behind() {
    let left = |faulty_until| {
        let story = story().of(LockKind::Fair).lock(1, (0, 5), 1);
        let story = story.unlock(1, (500, 501), 0);
        let story = story.op((2, 0), try_lock(90), (10, 101), Outcome::Busy);
        let story = story.fault(90, faulty_until, Scope::Client(2));
        let story = story.and(Record::Killed {
            t: 900 * MS,
            client: 2,
        });
        story.lock(3, (200, 5_000), 1).unlock(3, (5_001, 5_002), 0)
    };
    left(900).breaks(&[]);
    left(95).breaks(&[Invariant::I5]);
}

#[test]
fn a_spin_lock_is_polled_for() {
    let waits = |kind, until| {
        let story = story().of(kind).lock(1, (0, 5), 1).unlock(1, (100, 101), 0);
        story.lock(2, (50, until), 1).unlock(2, (900, 901), 0)
    };
    waits(LockKind::Lock, 400).breaks(&[Invariant::I5]);
    waits(LockKind::Spin, 400).breaks(&[]);
    waits(LockKind::Spin, 800).breaks(&[Invariant::I5]);
}

/// Owners that take a read/write lock one after the other, at random, as a correct lock would grant it.
#[test]
fn chance_histories_of_correct_locks_are_lawful() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut story = Story::default();
        let (mut now, mut token) = (0, 0);
        for _ in 0..30 {
            now += rng.u64(1..20);
            let kind = LockKind::ALL[rng.usize(..LockKind::ALL.len())];
            let holders = if kind == LockKind::Read {
                rng.u32(1..4)
            } else {
                1
            };
            story = story.of(kind);
            for client in 1..=holders {
                token += rng.u64(1..5);
                story = story.lock(client, (now, now + 2), 1);
                story = if kind.has_tokens() {
                    story.token(token)
                } else {
                    story
                };
            }
            for client in 1..=holders {
                now += rng.u64(3..9);
                story = story.unlock(client, (now, now + 1), 0);
            }
            now += 1;
        }
        story.breaks(&[]);
    }
}

/// Client 1 has the locks `names` as one from 5 to 50, client 2 the lock `other` from 11 to 20.
fn several_beside_one(names: &'static str, other: &'static str) -> Story {
    let several = story().of(LockKind::Multi).named(names);
    let held = several.lock(1, (0, 5), 1).of(LockKind::Lock).named(other);
    let held = held.lock(2, (6, 11), 1).unlock(2, (20, 21), 0);
    let held = held.of(LockKind::Multi).named(names);
    held.unlock(1, (50, 51), 0)
}

#[test]
fn several_locks_as_one_have_each_of_their_names() {
    several_beside_one("a, b", "a").breaks(&[Invariant::I1]);
    several_beside_one("a, b", "b").breaks(&[Invariant::I1]);
    several_beside_one("a, b", "c").breaks(&[]);
    let two = |names, others| {
        let held = story()
            .of(LockKind::Multi)
            .named(names)
            .lock(1, (0, 5), 1)
            .named(others)
            .lock(2, (6, 11), 1);
        let held = held.unlock(2, (20, 21), 0).named(names);
        held.unlock(1, (50, 51), 0)
    };
    two("a, b", "b, c").breaks(&[Invariant::I1]);
    two("a, b", "c, d").breaks(&[]);
}

#[test]
fn several_locks_as_one_are_free_when_all_of_them_are() {
    let waits = |until| {
        let held = story().named("b").lock(1, (0, 5), 1);
        let held = held.unlock(1, (100, 101), 0);
        let waits = held.of(LockKind::Multi).named("a, b");
        let got = waits.lock(2, (50, until), 1);
        got.unlock(2, (until + 10, until + 11), 0)
    };
    // A release is only the beginning, so the bound is the cap.
    waits(400).breaks(&[]);
    waits(800).breaks(&[Invariant::I5]);
}

#[test]
fn each_other_caller_of_several_may_take_a_few_rounds() {
    let waits = |others: u32, names, until| {
        let held = story().named("b").lock(1, (0, 5), 1);
        let held = held.unlock(1, (100, 101), 0).of(LockKind::Multi);
        let held = (3..3 + others).fold(held.named(names), |story, other| {
            story.op((other, 0), try_lock(600), (60, until), Outcome::Busy)
        });
        let got = held.named("a, b").lock(2, (50, until), 1);
        got.unlock(2, (until + 10, until + 11), 0)
    };
    waits(2, "b, c", 650).breaks(&[]);
    waits(0, "b, c", 650).breaks(&[Invariant::I5]);
    waits(2, "c, d", 650).breaks(&[Invariant::I5]);
}

/// A caller that tries for several may have one of them for a moment; one that has all of them leaves none to others.
#[test]
fn a_waiter_for_one_waits_for_holders_of_several() {
    let waits = |until| {
        let held = story().of(LockKind::Multi).named("a, b");
        let held = held.lock(1, (0, 5), 1).unlock(1, (1_000, 1_001), 0);
        let waits = held.of(LockKind::Lock).named("b");
        let got = waits.lock(2, (50, until), 1);
        got.unlock(2, (until + 10, until + 11), 0)
    };
    waits(1_010).breaks(&[]);
    waits(1_200).breaks(&[Invariant::I5]);
}

/// A far client finds the lock free by luck alone. Where it changes hands for a moment only, that is no wonder.
#[test]
fn a_client_that_gets_a_lock_again_and_again_keeps_it_to_itself() {
    let waits_beside = |holds: &[u64]| {
        let mut story = story().of(LockKind::Lock);
        let mut now = 0;
        for held in holds {
            story = story.lock(1, (now, now + 1), 1);
            now += held;
            story = story.unlock(1, (now - 2, now - 1), 0);
        }
        let story = story.lock(2, (3, now + 5), 1);
        story.unlock(2, (now + 10, now + 11), 0)
    };
    waits_beside(&[80; 60]).breaks(&[Invariant::Turns]);
    waits_beside(&[80; 30]).breaks(&[]);
    let mut rarely = [20; 61];
    rarely[30] = 4_000;
    waits_beside(&rarely).breaks(&[]);
}

#[test]
fn tokens_of_a_quorum_grow_as_well() {
    let held = |second| {
        let story = story().of(LockKind::RedFenced);
        let story = story.lock(1, (0, 5), 1).token(7).unlock(1, (10, 11), 0);
        let story = story.lock(2, (20, 25), 1).token(second);
        story.unlock(2, (30, 31), 0)
    };
    held(8).breaks(&[]);
    held(7).breaks(&[Invariant::Tokens]);
}

/// Client 1 has `a, b` as one, for 500 ms or under the watchdog, and is notified at 493 that it is lost.
fn several_lost(lease: Option<u64>, lost: bool) -> Story {
    let several = story().of(LockKind::Multi).named("a, b");
    let got = Outcome::Acquired(1);
    let held = several.op((1, 0), lock(lease), (0, 5), got);
    // A fault excuses the loss of a hold under the watchdog.
    let held = held.fault(100, 450, Scope::All);
    if !lost {
        return held;
    }
    held.and(Record::Lost {
        t: 493 * MS,
        client: 1,
        owner: 0,
        kind: LockKind::Multi,
        name: "a, b".to_owned(),
        reason: "expired".to_owned(),
    })
}

/// Client 1 enters one lock, which has `count` levels then, and gives back one.
fn one(story: Story, kind: LockKind, from: u64, count: u32) -> Story {
    let one = story.of(kind).named("a").lock(1, (from, from + 5), count);
    one.unlock(1, (from + 10, from + 11), count - 1)
}

#[test]
fn an_owner_that_lost_several_as_one_may_still_have_one_of_them() {
    let entered = |lease, lost| one(several_lost(lease, lost), LockKind::Lock, 499, 2);
    entered(Some(500), true).breaks(&[]);
    entered(None, true).breaks(&[]);
    entered(Some(500), false).breaks(&[Invariant::I2]);
    // Levels that an owner entered are given back before others have the lock.
    let next = entered(Some(500), true).lock(2, (505, 530), 1);
    next.unlock(2, (540, 541), 0).ends(60_000).breaks(&[]);
}

#[test]
fn the_rest_of_several_lost_locks_ends_with_its_lease() {
    let entered = |from, count| {
        let kept = one(several_lost(Some(500), true), LockKind::Lock, 499, 2);
        one(kept, LockKind::Lock, from, count)
    };
    // The watchdog's lease of a second counts from the release of the level that was entered in between.
    entered(1_400, 2).breaks(&[]);
    entered(1_400, 1).breaks(&[]);
    let late = |lease| one(several_lost(lease, true), LockKind::Lock, 600, 2);
    late(Some(500)).breaks(&[Invariant::I2]);
    late(None).breaks(&[]);
    let much_later = |count| one(entered(1_400, 2), LockKind::Lock, 60_000, count);
    much_later(1).breaks(&[]);
    much_later(2).breaks(&[Invariant::I2]);
}

#[test]
fn of_several_lost_locks_no_more_stays_than_there_was() {
    one(several_lost(Some(500), true), LockKind::Lock, 499, 3).breaks(&[Invariant::I2]);
    // They are plain locks.
    one(several_lost(Some(500), true), LockKind::Spin, 499, 2).breaks(&[Invariant::I2]);
    let given_back = several_lost(Some(500), true).fails(1, (494, 495), "lost");
    one(given_back, LockKind::Lock, 499, 2).breaks(&[Invariant::I2]);
    let others = several_lost(Some(500), true).of(LockKind::Lock).named("a");
    let others = others.lock(2, (499, 504), 2).unlock(2, (509, 510), 1);
    others.breaks(&[Invariant::I2]);
}

#[test]
fn a_waiter_for_the_rest_of_several_lost_locks_does_not_sleep() {
    let waits = |lease| {
        let waits = several_lost(lease, true).of(LockKind::Lock).named("a");
        waits.open((2, 0), lock(None), 600).ends(9_000)
    };
    waits(None).breaks(&[]);
    waits(Some(500)).breaks(&[Invariant::I5]);
}
