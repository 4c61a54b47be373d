//! In which order a data loop visits its samples.
//!
//! A shuffled order follows from (seed, epoch, pass) alone, so that any replica finds any part of it by itself, after a
//! restart too. Up to 65,536 samples it is a table, shuffled as Fisher and Yates did: every order is as likely. Beyond,
//! it is a permutation that is computed at each position (a Feistel network over the next power of two, stepping over
//! what lies outside): no memory and no time at the loop's start, however many samples there are.

/// As many samples as a table is made for: 256 KiB.
const TABLE: u64 = 1 << 16;
/// Of the Feistel network; each changes one half.
const ROUNDS: usize = 8;

/// SplitMix64's output function (Steele, Lea, Flood 2014): spreads what differs in any bit over all of them.
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `end`, each as likely but for 2^-48 at the sizes of a table.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Which sample stands at which position.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Position i is sample i.
    AsTheyAre,
    Table(Vec<u32>),
    Computed {
        samples: u64,
        /// Bits of the lower half.
        low: u32,
        /// Bits of the upper half.
        high: u32,
        keys: [u64; ROUNDS],
    },
}

impl Order {
    /// That of `samples` samples under a seed, in an epoch (`None` outside) when the loop has run `pass` times in it.
    pub(crate) fn shuffled(samples: u64, seed: u64, epoch: Option<u64>, pass: u64) -> Self {
        // Outside of all epochs is one more epoch.
        let epoch = epoch.map_or(0, |epoch| epoch.wrapping_add(1));
        // Each part changes what the parts before it have come to: exchanged, they give another start.
        let start = [epoch, pass].iter().fold(mix(seed), |start, part| {
            let turned = start.wrapping_mul(0xff51_afd7_ed55_8ccd);
            mix(turned.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ mix(*part))
        });
        let mut numbers = Numbers(start);
        if samples <= TABLE {
            let mut table: Vec<u32> = (0..samples as u32).collect();
            for at in (1..table.len()).rev() {
                let other = numbers.below(at as u64 + 1) as usize;
                table.swap(at, other);
            }
            return Self::Table(table);
        }
        let bits = u64::BITS - (samples - 1).leading_zeros();
        Self::Computed {
            samples,
            low: bits / 2,
            high: bits - bits / 2,
            keys: std::array::from_fn(|_| numbers.next()),
        }
    }

    /// The sample at `position`, which must be below the number of samples.
    pub(crate) fn at(&self, position: u64) -> u64 {
        match self {
            Self::AsTheyAre => position,
            Self::Table(table) => u64::from(table[position as usize]),
            Self::Computed {
                samples,
                low,
                high,
                keys,
            } => {
                let mut x = position;
                // What the network gives outside is followed until it comes back inside: as each has one successor and one
                // predecessor, it does, after less than two steps in the mean.
                loop {
                    x = network(x, *low, *high, keys);
                    if x < *samples {
                        return x;
                    }
                }
            }
        }
    }
}

/// A permutation of the numbers of `low + high` bits: each round adds to one half what follows from the other.
fn network(x: u64, low: u32, high: u32, keys: &[u64; ROUNDS]) -> u64 {
    let (mut upper, mut lower) = (x >> low, x & ((1 << low) - 1));
    for pair in keys.as_chunks::<2>().0 {
        upper ^= mix(lower.wrapping_add(pair[0])) >> (u64::BITS - high);
        lower ^= mix(upper.wrapping_add(pair[1])) >> (u64::BITS - low);
    }
    upper << low | lower
}

#[cfg(test)]
mod tests {
    use super::{Order, TABLE};

    fn all(order: &Order, samples: u64) -> Vec<u64> {
        (0..samples).map(|position| order.at(position)).collect()
    }

    #[test]
    fn every_order_has_each_sample_once() {
        for samples in [
            0,
            1,
            2,
            3,
            100,
            TABLE,
            TABLE + 1,
            100_003,
            1 << 17,
            (1 << 17) + 1,
        ] {
            for (seed, epoch, pass) in [(0, None, 0), (0, Some(0), 0), (7, Some(3), 2)] {
                let order = Order::shuffled(samples, seed, epoch, pass);
                let mut found = all(&order, samples);
                found.sort_unstable();
                assert!(found.into_iter().eq(0..samples), "{samples}");
            }
        }
    }

    #[test]
    fn seed_epoch_and_pass_each_give_another_order() {
        for samples in [50, TABLE + 50] {
            let of = |seed, epoch, pass| all(&Order::shuffled(samples, seed, epoch, pass), 50);
            let orders = [
                of(0, None, 0),
                of(0, Some(0), 0),
                of(0, Some(1), 0),
                of(0, Some(0), 1),
                of(0, None, 1),
                of(1, Some(0), 0),
                of(1, None, 0),
            ];
            for (i, one) in orders.iter().enumerate() {
                assert!(!orders[i + 1..].contains(one), "{samples}, {i}: {one:?}");
            }
            assert_eq!(of(1, None, 0), orders[6]);
        }
    }

    /// How far the counts of `cells` equally likely outcomes are from their mean, in standard deviations of that.
    fn chi_square(counts: &[u64]) -> f64 {
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let sum: f64 = counts
            .iter()
            .map(|&n| (n as f64 - mean).powi(2) / mean)
            .sum();
        let freedom = counts.len() as f64 - 1.0;
        (sum - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn a_small_order_is_any_of_all_orders_alike() {
        let mut counts = vec![0; 24];
        for epoch in 0..24_000 {
            let order = all(&Order::shuffled(4, 5, Some(epoch), 0), 4);
            let mut rank = 0;
            for (i, x) in order.iter().enumerate() {
                let later = order[i + 1..].iter().filter(|y| *y < x).count();
                rank = rank * (4 - i) + later;
            }
            counts[rank] += 1;
        }
        assert!(chi_square(&counts).abs() < 5.0, "{counts:?}");
    }

    #[test]
    fn a_computed_order_puts_any_sample_anywhere_and_any_pair_any_way_apart() {
        let samples = (1 << 20) + 12_345;
        let (mut places, mut steps) = (vec![0; 64], vec![0; 64]);
        for epoch in 0..100 {
            let order = Order::shuffled(samples, 1, Some(epoch), 0);
            for position in 0..1000 {
                let (here, next) = (order.at(position), order.at(position + 1));
                places[(here * 64 / samples) as usize] += 1;
                let step = (next + samples - here) % samples;
                steps[(step * 64 / samples) as usize] += 1;
            }
        }
        assert!(chi_square(&places).abs() < 5.0, "{places:?}");
        assert!(chi_square(&steps).abs() < 5.0, "{steps:?}");
    }

    #[test]
    fn as_many_samples_as_there_are_numbers_have_an_order() {
        for samples in [1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX] {
            let order = Order::shuffled(samples, 0, None, 0);
            for position in [0, 1, samples / 2, samples - 1] {
                assert!(order.at(position) < samples);
            }
        }
    }
}
