//! `math.random` as Redis has it: the same numbers from each start of the server.

/// The generator of `lrand48`.
#[derive(Debug)]
pub(super) struct ScriptRandom(u64);

const MOST: f64 = 2_147_483_647.0;

impl ScriptRandom {
    /// As a server begins, before any script gave a seed.
    pub(super) fn unseeded() -> Self {
        Self(0x1234_ABCD_330E)
    }

    pub(super) fn new(seed: i32) -> Self {
        let seed = u64::from(seed.cast_unsigned());
        Self(seed << 16 | 0x330E)
    }

    /// From 0, below 1.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & 0xFFFF_FFFF_FFFF;
        ((self.0 >> 17) % 2_147_483_647) as f64 / MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_the_numbers_of_redis() {
        let mut random = ScriptRandom::unseeded();
        let text = format!("{:.14}", random.next());
        assert_eq!(text, "0.39646477363839");
    }
}
