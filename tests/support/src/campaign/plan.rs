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

impl Plan {
    /// For Redisson, whose re-entry with a lease of its own shortens that of the hold.
    pub(super) fn make_plain(&mut self) {
        let first = self.leases_ms[0];
        if first.is_some() {
            self.leases_ms.truncate(1);
        }
        self.leases_ms.fill(first);
    }
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
        let (leases_ms, hold) = section(rng);
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

/// The leases of the levels and how long to stay: mostly a moment, sometimes beyond the lease, and
/// sometimes through several renewals.
fn section(rng: &mut Rng) -> (Vec<Option<u64>>, Duration) {
    let levels = if rng.u32(..4) == 0 { rng.u32(2..4) } else { 1 };
    let leases_ms = (0..levels).map(|_| lease_ms(rng)).collect();
    let (moment, while_ms) = (rng.u64(..2_000), rng.u64(2..60));
    let (short_ms, long_ms) = (rng.u64(100..300), rng.u64(1_000..2_500));
    match rng.u32(..1_000) {
        0..920 => (leases_ms, Duration::from_micros(moment)),
        920..980 => (leases_ms, Duration::from_millis(while_ms)),
        980..994 => (vec![Some(short_ms)], Duration::from_millis(2 * short_ms)),
        _ => (vec![None], Duration::from_millis(long_ms)),
    }
}

fn lease_ms(rng: &mut Rng) -> Option<u64> {
    rng.bool().then(|| rng.u64(100..1_000))
}
