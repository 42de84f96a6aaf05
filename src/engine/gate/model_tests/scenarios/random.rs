//! Scenarios too long for all their orders: one random order each.

use super::*;

#[test]
fn ten_thousand_random_orders() {
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let roles = [
            PLAIN,
            CARELESS,
            (Some(1), FOREVER, Manner::Unlocks, 2),
            (Some(1), FOREVER, Manner::Detaches, 2),
            (None, ONCE, Manner::Drops, 2),
        ];
        let mut callers: Vec<Role> = (0..4).map(|_| roles[random.usize(..roles.len())]).collect();
        let counted = seed % 6 == 5;
        if counted {
            // Permits have no owner.
            for (owner, _, manner, _) in &mut callers {
                (*owner, *manner) = match *manner {
                    Manner::Detaches => (None, Manner::Stays),
                    manner => (None, manner),
                };
            }
        }
        let all: &[Side] = match seed % 6 {
            0 => &[Side::Plain],
            1 => &[Side::Passed],
            2 => &[Side::Passed, Side::Plain],
            3 => &[Side::Queued],
            4 => &[Side::Reads, Side::Writes, Side::ReadsFixed],
            _ => &[Side::Permits(1), Side::Permits(1), Side::Permits(2)],
        };
        let sides: Vec<Side> = (0..4).map(|_| all[random.usize(..all.len())]).collect();
        let scenario = Scenario {
            callers: Vec::leak(callers),
            faults: random.u32(..4),
            polls: random.u32(..6),
            ticks: random.u32(..3),
            calls: random.u32(..3),
            laters: random.u32(..4),
            asks: random.u32(..3),
            strangers: random.u32(..3),
            deaths: random.u32(..2),
            forgets: random.u32(..3),
            shortfalls: random.u32(..3),
            permits: if counted { random.u32(2..4) } else { 0 },
            notes: random.bool().then(|| random.u32(..3)),
            closes: random.bool(),
            alone: random.bool(),
            sides: Vec::leak(sides),
            open: random.bool(),
        };
        let mut taken = Vec::new();
        let walked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(scenario);
            for _ in 0..200 {
                let choices = world.choices();
                world.check_left_behind(&choices);
                let Some(choice) = random.choice(choices) else {
                    world.check_end();
                    break;
                };
                taken.push(choice);
                world.step(choice);
            }
        }));
        assert!(walked.is_ok(), "seed {seed}: {scenario:?} after {taken:?}");
    }
}
