//! The hash by which replicas prove to each other that they hold the same parameters.

use crate::codec::{Parameters, hash_sums_from as sums_from};

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

#[cfg(test)]
mod tests {
    use super::{of_parts, parameter_hash};

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
