//! Numbers that look random and follow from a seed.

/// The generator `SplitMix64`.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let end = end as u64;
        usize::try_from(self.next().checked_rem(end).unwrap_or(0)).unwrap_or(0)
    }

    /// Indexes below `end`: up to `count` different ones in order of chance, or exactly `-count` if that is negative.
    pub(super) fn choose<E>(
        &mut self,
        end: usize,
        count: i64,
        reasonable: impl Fn(u64) -> Result<usize, E>,
    ) -> Result<Vec<usize>, E> {
        if end == 0 {
            return Ok(Vec::new());
        }
        if count < 0 {
            let count = reasonable(count.unsigned_abs())?;
            return Ok((0..count).map(|_| self.below(end)).collect());
        }
        let mut all: Vec<_> = (0..end).collect();
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(end);
        for at in 0..count {
            let other = at + self.below(end - at);
            all.swap(at, other);
        }
        all.truncate(count);
        Ok(all)
    }

    /// Forty hexadecimal digits, as Redis names runs.
    pub(super) fn id(&mut self) -> String {
        let digits = (0..3).map(|_| format!("{:016x}", self.next()));
        digits.collect::<String>().chars().take(40).collect()
    }
}
