//! Arithmetic that is allowed to flush subnormals and to take zeros' signs as it likes, as a GPU's is, gives the same
//! bits: that is what canonical numbers are for.

use super::plain::{
    self, Kind, Random, first_difference, kinds, lengths, options, paths, residual, units, vector,
};
use gradring::codec::{Apply, ChunkOptions, Dense, Record, Unit};
use proptest::prelude::*;

const MAGNITUDE: u32 = 0x7fff_ffff;
const LEAST: u32 = 0x0080_0000;
const INFINITY: u32 = 0x7f80_0000;

/// A processor of which only this is known: it rounds to nearest even, and may flush subnormal inputs, subnormal
/// results or both, each time as it likes; the sign of a zero is any.
struct Hostile(Random);

impl Hostile {
    fn flushed(&mut self, x: f32) -> f32 {
        let size = x.to_bits() & MAGNITUDE;
        if size < LEAST && size != 0 && self.0.coin() {
            return f32::from_bits(x.to_bits() & !MAGNITUDE);
        }
        x
    }

    fn signed(&mut self, x: f32) -> f32 {
        if x == 0.0 && self.0.coin() { -x } else { x }
    }

    fn operation(&mut self, a: f32, b: f32, exact: impl Fn(f32, f32) -> f32) -> f32 {
        let (a, b) = (self.flushed(a), self.flushed(b));
        let (a, b) = (self.signed(a), self.signed(b));
        let result = self.flushed(exact(a, b));
        self.signed(result)
    }

    fn add(&mut self, a: f32, b: f32) -> f32 {
        self.operation(a, b, |a, b| a + b)
    }

    fn multiply(&mut self, a: f32, b: f32) -> f32 {
        self.operation(a, b, |a, b| a * b)
    }

    /// Integer work on the bits: nothing to take liberties with.
    fn canon(x: f32) -> f32 {
        let bits = x.to_bits();
        f32::from_bits(if bits & MAGNITUDE < LEAST { 0 } else { bits })
    }

    fn is_finite(x: f32) -> bool {
        x.to_bits() & MAGNITUDE < INFINITY
    }

    fn negative(x: f32) -> f32 {
        f32::from_bits(x.to_bits() ^ !MAGNITUDE)
    }

    fn accumulate(&mut self, r: f32, u: f32) -> f32 {
        let sum = self.add(r, Self::canon(u));
        if Self::is_finite(u) && Self::is_finite(sum) {
            Self::canon(sum)
        } else {
            r
        }
    }

    /// All hits of a chunk, and what stays.
    fn encode(
        &mut self,
        residual: &[f32],
        update: &[f32],
        unit: Unit,
        options: &ChunkOptions,
    ) -> (Vec<(usize, bool)>, Vec<f32>) {
        let sums = residual.iter().zip(update);
        let mut after: Vec<f32> = sums.map(|(&r, &u)| self.accumulate(r, u)).collect();
        let n = after.len();
        let start = options.budget.map_or(0, |budget| budget.start);
        let is_hit = |s: f32| s.to_bits() & MAGNITUDE >= unit.t().to_bits();
        let order = (0..n).map(|k| (start + k) % n);
        let mut chosen: Vec<usize> = order.filter(|&i| is_hit(after[i])).collect();
        chosen.truncate(options.budget.map_or(n, |budget| budget.max_hits));
        chosen.sort_unstable();
        let hits: Vec<(usize, bool)> = chosen
            .iter()
            .map(|&i| (i, after[i].to_bits() >> 31 == 1))
            .collect();
        for &(i, negative) in &hits {
            let unit = if negative {
                unit.v()
            } else {
                Self::negative(unit.v())
            };
            after[i] = Self::canon(self.add(after[i], unit));
        }
        if let Some(clip) = options.clip {
            // The bound comes from the host.
            let bound = (clip.multiple() * unit.t()).to_bits();
            for r in &mut after {
                let size = (r.to_bits() & MAGNITUDE).min(bound);
                *r = f32::from_bits(size | r.to_bits() & !MAGNITUDE);
            }
        }
        (hits, after)
    }

    fn apply(&mut self, p: f32, x: f32, how: Apply) -> f32 {
        if !Self::is_finite(p) {
            return p;
        }
        let x = match how {
            Apply::Add => x,
            Apply::Subtract => Self::negative(x),
        };
        Self::canon(self.add(Self::canon(p), x))
    }
}

/// Numbers that become subnormal, and cancel, as often as not.
fn near_nothing(random: &mut Random, length: usize) -> Vec<f32> {
    (0..length)
        .map(|_| {
            let bits = match random.below(4) {
                0 => 0,
                1 => random.below(u64::from(LEAST)) as u32,
                2 => LEAST + random.below(16) as u32,
                _ => LEAST + random.below(4 * u64::from(LEAST)) as u32,
            };
            f32::from_bits(bits | (random.next() as u32) & !MAGNITUDE)
        })
        .collect()
}

fn canonical(numbers: Vec<f32>) -> Vec<f32> {
    numbers.into_iter().map(Hostile::canon).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn hostile_arithmetic_encodes_to_the_same_bits(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_residual, of_update, tiny) in (kinds(), kinds(), any::<bool>()),
    ) {
        let random = &mut Random(seed);
        let (before, update) = if tiny {
            (canonical(near_nothing(random, length)), near_nothing(random, length))
        } else {
            (residual(random, length, of_residual, unit), vector(random, length, of_update, unit))
        };
        let options = options(length, seed);
        let mut hostile = Hostile(Random(!seed));
        let (hits, expected) = hostile.encode(&before, &update, unit, &options);
        for path in paths() {
            let (mut after, mut out) = (before.clone(), Vec::new());
            let sent = path.encode(&mut after, &update, unit, &options, &mut out).unwrap();
            prop_assert_eq!(first_difference(&after, &expected), None, "on {}", path);
            prop_assert!(plain::decode(sent.format, length, &out) == plain::Message::Hits(hits.clone()));
        }
    }

    #[test]
    fn hostile_arithmetic_encodes_dense_chunks_to_the_same_bits(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_residual, of_update, tiny) in (kinds(), kinds(), any::<bool>()),
        number in prop::sample::select(vec![Dense::F32, Dense::Bf16]),
    ) {
        let random = &mut Random(seed);
        let (before, update) = if tiny {
            (canonical(near_nothing(random, length)), near_nothing(random, length))
        } else {
            (residual(random, length, of_residual, unit), vector(random, length, of_update, unit))
        };
        let mut hostile = Hostile(Random(!seed));
        let (mut message, mut expected) = (Vec::new(), Vec::new());
        for (&r, &u) in before.iter().zip(&update) {
            let s = hostile.accumulate(r, u);
            let m = match number {
                Dense::F32 => s,
                Dense::Bf16 => plain::to_bf16(s),
            };
            message.push(m.to_bits());
            expected.push(Hostile::canon(hostile.add(s, Hostile::negative(m))));
        }
        for path in paths() {
            let (mut after, mut out) = (before.clone(), Vec::new());
            let sent = path.encode_dense(&mut after, &update, number, &mut out).unwrap();
            prop_assert_eq!(first_difference(&after, &expected), None, "on {}", path);
            prop_assert!(
                plain::decode(sent.format, length, &out) == plain::Message::Values(message.clone())
            );
        }
    }

    #[test]
    fn hostile_arithmetic_applies_to_the_same_bits(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (kind, tiny, halved) in (kinds(), any::<bool>(), any::<bool>()),
    ) {
        let random = &mut Random(seed);
        let mut hostile = Hostile(Random(!seed));
        let target = if tiny {
            near_nothing(random, length)
        } else {
            vector(random, length, kind, unit)
        };
        let values: Vec<f32> = if tiny {
            canonical(near_nothing(random, length))
        } else {
            residual(random, length, kind, unit)
        };
        let hits: Vec<(usize, bool)> = values
            .iter()
            .enumerate()
            .filter(|(_, value)| **value != 0.0)
            .map(|(i, value)| (i, value.is_sign_negative()))
            .collect();
        let inverse = if halved { 0.5 } else { 1.0 };
        // As small as a unit gets, or far smaller: a mean of very many.
        let x = if tiny { f32::MIN_POSITIVE * 1.5 } else { unit.v() };
        for how in [Apply::Add, Apply::Subtract] {
            let mut expected = target.clone();
            for &(i, negative) in &hits {
                let x = if negative { Hostile::negative(x) } else { x };
                expected[i] = hostile.apply(expected[i], x, how);
            }
            let mut of_values = target.clone();
            for (p, &value) in of_values.iter_mut().zip(&values) {
                let x = Hostile::canon(hostile.multiply(value, inverse));
                *p = hostile.apply(*p, x, how);
            }
            for path in paths() {
                for format in [plain::smaller(length, hits.len()), gradring::codec::Format::Bitmap] {
                    let payload = plain::payload(format, length, &hits);
                    let record = Record {
                        format, hits: hits.len() as u32, elements: length, payload: &payload,
                    };
                    let mut after = target.clone();
                    path.apply(&record, x, how, &mut after).unwrap();
                    prop_assert_eq!(first_difference(&after, &expected), None, "{} on {}", format, path);
                }
                let payload: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                let record = Record {
                    format: Dense::F32.format(), hits: 0, elements: length, payload: &payload,
                };
                let mut after = target.clone();
                path.apply(&record, inverse, how, &mut after).unwrap();
                prop_assert_eq!(first_difference(&after, &of_values), None, "dense on {}", path);
            }
        }
    }
}

#[test]
fn the_plain_model_is_what_hostile_arithmetic_gives_too() {
    // Of the adversary itself: it does take its liberties.
    let mut hostile = Hostile(Random(1));
    let tiny = f32::from_bits(LEAST - 1);
    let sums: Vec<u32> = (0..200)
        .map(|_| hostile.add(tiny, tiny).to_bits())
        .collect();
    let zeros: Vec<u32> = (0..200).map(|_| hostile.add(1.0, -1.0).to_bits()).collect();
    assert!(sums.iter().any(|&sum| sum == (2.0 * tiny).to_bits()));
    assert!(sums.iter().any(|&sum| sum & MAGNITUDE == 0));
    assert!(zeros.contains(&0) && zeros.contains(&!MAGNITUDE));

    let mut random = Random(2);
    let unit = Unit::new(1.0, 1.0).unwrap();
    for kind in [Kind::Edges, Kind::AnyBits] {
        let before = residual(&mut random, 5000, kind, unit);
        let update = vector(&mut random, 5000, kind, unit);
        let options = ChunkOptions::default();
        let expected = plain::encode(&before, &update, unit, &options);
        let (hits, after) = hostile.encode(&before, &update, unit, &options);
        assert_eq!(hits, expected.hits);
        assert_eq!(first_difference(&after, &expected.residual), None);
    }
}
