//! What can be computed of parameters on any backend, so that replicas can compare it: sums of integers that do not
//! depend on the order in which elements are visited.

const SEEDS: [u32; 2] = [0x9E37_79B1, 0x85EB_CA77];

/// The two sums over index i of `mix(bits(p_i) ^ mix(i + seed))` of a part whose first element has this index; `mix` is the
/// finalizer of MurmurHash3.
pub(crate) fn sums_from(first: u32, parameters: &[f32]) -> [u32; 2] {
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
    use super::{mix, sums, sums_from};

    #[test]
    fn mix_is_the_finalizer_of_murmurhash3() {
        // Values of fmix32 for 0, 1 and 2.
        assert_eq!([mix(0), mix(1), mix(2)], [0, 0x514E_28B7, 0x30F4_C306]);
    }

    #[test]
    fn every_path_gives_the_same_sums() {
        for length in [0, 1, 7, 8, 9, 1000] {
            let parameters: Vec<f32> = (0..length).map(|i| (i as f32).sin()).collect();
            assert_eq!(sums_from(5, &parameters), sums(5, &parameters));
        }
    }
}
