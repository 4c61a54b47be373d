//! Repeatable random numbers: every replica, and the dense run, must draw the same ones.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(u64);

impl Random {
    /// The stream number `stream` of a seed, so that for instance each epoch has its own.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self(seed);
        let mixed = mixer.next() ^ stream;
        let mut random = Self(mixed);
        Self(random.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0..bound.
    #[allow(dead_code, reason = "for permutations")]
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Uniform in -limit..limit.
    pub(crate) fn symmetric(&mut self, limit: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        (2.0 * unit - 1.0) * limit
    }

    /// 0..count in a random order.
    #[allow(dead_code, reason = "only one example has to split its data itself")]
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}
