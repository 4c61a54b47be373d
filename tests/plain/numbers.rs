//! The numbers that tests feed to the codec.

use super::random::Random;
use gradring::codec::{BLOCK, Budget, CHUNK, ChunkOptions, Clip, Unit, canon, cut8};
use proptest::prelude::*;

/// What the numbers of a vector are like.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// About the threshold: hits at this density.
    Ordinary(f64),
    /// Any 32 bits.
    AnyBits,
    /// The numbers at which something changes.
    Edges,
    /// Ordinary, with an edge now and then.
    Mixed,
    /// Zeros, but for one number in about so many that is a hit.
    Single(u64),
}

pub fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        (0f64..5.0).prop_map(|x| Kind::Ordinary(10f64.powf(-x))),
        Just(Kind::AnyBits),
        Just(Kind::Edges),
        Just(Kind::Mixed),
        (1u64..5000).prop_map(Kind::Single),
    ]
}

fn edge(random: &mut Random, unit: Unit) -> f32 {
    let [t, v, least] = [unit.t(), unit.v(), f32::MIN_POSITIVE];
    let edges = [
        0.0,
        1e-45,
        least,
        f32::from_bits(least.to_bits() - 1),
        f32::from_bits(least.to_bits() + 1),
        1.5 * least,
        256.0 * least,
        2f32.powi(-102),
        2f32.powi(-101),
        t,
        f32::from_bits(t.to_bits() - 1),
        f32::from_bits(t.to_bits() + 1),
        0.5 * t,
        v,
        65536.0 * v,
        f32::from_bits((65536.0 * v).to_bits() - 1),
        65537.0 * v,
        f32::from_bits(0x7f7f_7fff),
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let x = random.one_of(&edges);
    if random.coin() { x } else { -x }
}

pub fn vector(random: &mut Random, length: usize, kind: Kind, unit: Unit) -> Vec<f32> {
    let scale = |density: f64| f64::from(unit.t()) / -density.clamp(1e-6, 0.9).ln();
    (0..length)
        .map(|_| match kind {
            Kind::Ordinary(density) => random.laplace(scale(density)),
            Kind::AnyBits => f32::from_bits(random.next() as u32),
            Kind::Edges => edge(random, unit),
            Kind::Mixed if random.below(300) == 0 => edge(random, unit),
            Kind::Mixed => random.laplace(scale(1e-2)),
            Kind::Single(one_in) if random.below(one_in) == 0 => unit.t() * 1.25,
            Kind::Single(_) => 0.0,
        })
        .collect()
}

/// A vector as a residual may be: canonical and finite.
pub fn residual(random: &mut Random, length: usize, kind: Kind, unit: Unit) -> Vec<f32> {
    let canonical = |x: f32| if x.is_finite() { canon(x) } else { 0.0 };
    vector(random, length, kind, unit)
        .into_iter()
        .map(canonical)
        .collect()
}

pub fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0usize..200,
        4 => 200usize..9000,
        2 => prop::sample::select(vec![4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 33]),
        1 => prop::sample::select(vec![2 * BLOCK + 17, CHUNK - 1, CHUNK]),
    ]
}

/// Around every size at which a kernel or the layout of a payload changes: a vector's lanes, a group, a word of the
/// bitmap, a piece, a block, a chunk.
pub fn lengths_around_everything() -> impl Iterator<Item = usize> {
    let sizes = [8, 16, 32, 64, 96, 128, 1024, 4096, 8192, BLOCK, 2 * BLOCK];
    let around = sizes.into_iter().flat_map(|size| size - 1..=size + 1);
    let inside_a_word = 2 * BLOCK + 5 * 16 + 7;
    [0, 1, 2, 3]
        .into_iter()
        .chain(around)
        .chain([4096 + 31, inside_a_word, CHUNK - 1, CHUNK])
}

pub fn units() -> impl Strategy<Value = Unit> {
    let exponents = prop_oneof![4 => -20i32..5, 1 => Just(-100), 1 => Just(-99), 1 => 90i32..98];
    (exponents, 0u32..128, 0f32..1.0).prop_map(|(exponent, digits, more)| {
        let t = 2f32.powi(exponent) * (1.0 + digits as f32 / 128.0);
        Unit::new(t, cut8(t * (1.0 + more)).max(t)).expect("in range by construction")
    })
}

pub fn options(length: usize, seed: u64) -> ChunkOptions {
    let mut random = Random(seed ^ 0xabcd);
    let clip = match random.below(4) {
        0 => Some(Clip::new(2.0).expect("2 is enough")),
        1 => Some(Clip::new(2.0 + 30.0 * random.unit() as f32).expect("more than 2")),
        _ => None,
    };
    let budget = match random.below(5) {
        0 => Some(random.below(length as u64 + 2)),
        1 => Some(random.below(length as u64 / 64 + 2)),
        2 => Some(0),
        _ => None,
    };
    let start = random.below(3 * length as u64 + 1) as usize;
    ChunkOptions {
        clip,
        budget: budget.map(|max_hits| Budget {
            max_hits: max_hits as usize,
            start,
        }),
    }
}
