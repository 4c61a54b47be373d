//! Updates added up in order of arrival: `S = canon(S + x)`, from +0.
//!
//! As long as few elements have been touched a sum keeps just these, so that a backlog of small messages costs no vector.

use super::update::Content;
use super::{ExternalUpdate, SourceError};
use crate::codec::canon;

/// A sum of more than one in this many elements is a vector: then adding to it costs less than moving pairs.
const FEW: usize = 64;

impl ExternalUpdate {
    /// Adds another one of as many elements. An element that would not be finite keeps its sum; how many there were.
    ///
    /// # Errors
    /// [`SourceError::Memory`]; nothing was added then.
    pub(super) fn add(&mut self, other: &ExternalUpdate) -> Result<u64, SourceError> {
        let most = self.elements / FEW;
        let few = |update: &ExternalUpdate| match &update.content {
            Content::Hits { hits, .. } => hits.len() <= most,
            Content::Some(pairs) => pairs.len() <= most,
            Content::All(_) => false,
        };
        if few(self) && few(other) {
            let (sum, left_out) = merged(self, other);
            self.content = Content::Some(sum);
            return Ok(left_out);
        }
        if let Content::All(sums) = &mut self.content {
            return Ok(add_to(sums, other));
        }
        let elements = self.elements;
        let mut sums = Vec::new();
        sums.try_reserve_exact(elements)
            .map_err(|_| SourceError::Memory { elements })?;
        sums.resize(elements, 0.0);
        add_to(&mut sums, self);
        let left_out = add_to(&mut sums, other);
        self.content = Content::All(sums);
        Ok(left_out)
    }
}

/// What becomes of a sum, and whether it is finite: else it is as it was.
fn added(sum: f32, x: f32) -> (f32, bool) {
    let new = sum + x;
    if new.is_finite() {
        (canon(new), true)
    } else {
        (sum, false)
    }
}

fn add_to(sums: &mut [f32], other: &ExternalUpdate) -> u64 {
    let mut left_out = 0;
    for (element, x) in other.values() {
        let (sum, is_finite) = added(sums[element], x);
        sums[element] = sum;
        left_out += u64::from(!is_finite);
    }
    left_out
}

fn merged(sum: &ExternalUpdate, other: &ExternalUpdate) -> (Vec<(usize, f32)>, u64) {
    let mut new = Vec::new();
    let mut left_out = 0;
    let (mut ours, mut theirs) = (sum.values().peekable(), other.values().peekable());
    loop {
        new.push(match (ours.peek().copied(), theirs.peek().copied()) {
            (None, None) => return (new, left_out),
            (Some(our), their) if their.is_none_or(|their| our.0 < their.0) => {
                ours.next();
                our
            }
            (Some(our), Some(their)) if our.0 == their.0 => {
                ours.next();
                theirs.next();
                let (sum, is_finite) = added(our.1, their.1);
                left_out += u64::from(!is_finite);
                (our.0, sum)
            }
            (_, Some(their)) => {
                theirs.next();
                their
            }
            (Some(our), None) => {
                ours.next();
                our
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(update: &ExternalUpdate) -> Vec<u32> {
        let mut values = vec![0.0_f32; update.elements()];
        for (element, x) in update.values() {
            values[element] = x;
        }
        values.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn few_and_many_elements_give_the_same_sums() {
        let elements = 6400;
        let mut x = 7_u64;
        let mut random = move |end: usize| {
            x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (x >> 33) as usize % end
        };
        for _ in 0..200 {
            let mut sum = ExternalUpdate::hits(elements, 1.0, []).unwrap();
            let mut expected = vec![0.0_f32; elements];
            for _ in 0..6 {
                let count = [0, 3, 40, 100, 101, 2000][random(6)];
                let mut at: Vec<usize> = (0..count).map(|_| random(elements)).collect();
                at.sort_unstable();
                at.dedup();
                let value = [0.1, 0.25, 3e38, 1.2e-38][random(4)];
                let hits: Vec<_> = at.iter().map(|&i| (i, random(2) == 0)).collect();
                let other = if random(4) == 0 {
                    let mut values = vec![0.0; elements];
                    hits.iter().for_each(|&(i, _)| values[i] = value);
                    ExternalUpdate::dense(values).unwrap()
                } else {
                    ExternalUpdate::hits(elements, value, hits).unwrap()
                };
                let mut left_out = 0;
                for (i, x) in other.values() {
                    let new = canon(expected[i] + x);
                    if new.is_finite() {
                        expected[i] = new;
                    } else {
                        left_out += 1;
                    }
                }
                assert_eq!(sum.add(&other).unwrap(), left_out);
            }
            let expected: Vec<u32> = expected.iter().map(|x| x.to_bits()).collect();
            assert!(dense(&sum) == expected);
        }
    }
}
