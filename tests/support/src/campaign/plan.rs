//! What an owner does next, out of the seed alone.

use std::time::Duration;

use fastrand::Rng;

/// One section: a lock, perhaps entered again, held for a while.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    /// `None`: as long as it takes.
    pub(super) wait_ms: Option<u64>,
    /// A lease for each level; `None`: under the watchdog.
    pub(super) leases_ms: Vec<Option<u64>>,
    pub(super) hold: Duration,
    pub(super) pause: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Plans {
    rng: Rng,
    names: u32,
}

impl Plans {
    pub(super) fn seeded(seed: u64, slot: usize, owner: u32, names: u32) -> Self {
        let own = seed ^ (slot as u64 + 1) << 48 ^ u64::from(owner + 1) << 40;
        Self {
            rng: Rng::with_seed(own),
            names,
        }
    }

    pub(super) fn next(&mut self) -> Plan {
        let rng = &mut self.rng;
        // Half of all sections crowd on a third of the names.
        let (crowded, spread) = (rng.u32(..self.names.div_ceil(3)), rng.u32(..self.names));
        let name = format!("chaos:{}", if rng.bool() { crowded } else { spread });
        let wait_ms = match rng.u32(..10) {
            0..4 => None,
            4..6 => Some(0),
            _ => Some(rng.u64(1..400)),
        };
        let levels = if rng.u32(..4) == 0 { rng.u32(2..4) } else { 1 };
        let leases_ms = (0..levels).map(|_| lease_ms(rng)).collect();
        let hold = match rng.u32(..100) {
            0..90 => Duration::from_micros(rng.u64(..2_000)),
            90..99 => Duration::from_millis(rng.u64(2..60)),
            _ => Duration::from_millis(rng.u64(100..1_500)),
        };
        let pause = Duration::from_micros(rng.u64(..4_000));
        Plan {
            name,
            wait_ms,
            leases_ms,
            hold,
            pause,
        }
    }
}

fn lease_ms(rng: &mut Rng) -> Option<u64> {
    rng.bool().then(|| rng.u64(100..1_000))
}
