//! The hash by which replicas prove to each other that they hold the same parameters.

use crate::codec::Parameters;

const SEEDS: [u32; 2] = [0x9E37_79B1, 0x85EB_CA77];

/// Two u32 sums over index i of `mix(bits(p_i) ^ mix(i + seed))`, the first in the low half; `mix` is the finalizer of
/// MurmurHash3. Sums do not depend on the order in which elements are visited, so that any backend can compute it.
pub fn parameter_hash(parameters: &[f32]) -> u64 {
    joined(sums_from(0, parameters))
}

/// The same of what may be a list of slices: that of the vector which they make.
pub(super) fn of_parts(parameters: &mut dyn Parameters) -> u64 {
    let (mut first, mut totals) = (0_u32, [0_u32; 2]);
    let all = 0..parameters.elements();
    parameters.each(all, &mut |part| {
        for (total, sum) in totals.iter_mut().zip(sums_from(first, part)) {
            *total = total.wrapping_add(sum);
        }
        first = first.wrapping_add(part.len() as u32);
    });
    joined(totals)
}

pub(super) fn joined(totals: [u32; 2]) -> u64 {
    u64::from(totals[0]) | u64::from(totals[1]) << 32
}

/// The sums of a part whose first element has this index.
fn sums_from(first: u32, parameters: &[f32]) -> [u32; 2] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { sums_avx2(first, parameters) };
    }
    sums(first, parameters)
}

/// The same code, where the compiler may use 8 lanes: 32-bit multiplications need more than SSE2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sums_avx2(first: u32, parameters: &[f32]) -> [u32; 2] {
    sums(first, parameters)
}

#[inline(always)]
fn sums(first: u32, parameters: &[f32]) -> [u32; 2] {
    let mut totals = [0_u32; 2];
    let seeds = SEEDS.map(|seed| seed.wrapping_add(first));
    for (i, parameter) in parameters.iter().enumerate() {
        for (total, seed) in totals.iter_mut().zip(seeds) {
            *total =
                total.wrapping_add(mix(parameter.to_bits() ^ mix((i as u32).wrapping_add(seed))));
        }
    }
    totals
}

#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x85EB_CA6B);
    x ^= x >> 13;
    x = x.wrapping_mul(0xC2B2_AE35);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use super::{joined, mix, of_parts, parameter_hash, sums};

    #[test]
    fn mix_is_the_finalizer_of_murmurhash3() {
        // Values of fmix32 for 0, 1 and 2.
        assert_eq!([mix(0), mix(1), mix(2)], [0, 0x514E_28B7, 0x30F4_C306]);
    }

    #[test]
    fn every_path_gives_the_same_sums() {
        for length in [0, 1, 7, 8, 9, 1000] {
            let parameters: Vec<f32> = (0..length).map(|i| (i as f32).sin()).collect();
            assert_eq!(parameter_hash(&parameters), joined(sums(0, &parameters)));
        }
    }

    #[test]
    fn parts_have_the_hash_of_the_vector_that_they_make() {
        let vector: Vec<f32> = (0..100).map(|i| (i as f32).cos()).collect();
        let mut parts = [3, 0, 50, 47].map(|length| vec![0.0; length]);
        let mut elements = vector.iter();
        for x in parts.iter_mut().flatten() {
            *x = *elements.next().unwrap();
        }
        assert_eq!(of_parts(&mut parts), parameter_hash(&vector));
        assert_eq!(of_parts(&mut vector.clone()), parameter_hash(&vector));
    }

    #[test]
    fn one_bit_or_two_swapped_elements_change_it() {
        let parameters = [1.0, 2.0, 3.0_f32];
        let flipped = [1.0, 2.0, f32::from_bits(3.0_f32.to_bits() ^ 1)];
        let swapped = [2.0, 1.0, 3.0];
        assert_ne!(parameter_hash(&parameters), parameter_hash(&flipped));
        assert_ne!(parameter_hash(&parameters), parameter_hash(&swapped));
        assert_eq!(parameter_hash(&[]), 0);
    }
}
