//! What can be said of a step and of a residual.

use super::Unit;
use std::fmt;

/// What this replica's encoder did in a step. Sums over all chunks.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepStats {
    /// Hits sent.
    pub hits: u64,
    /// Chunks in the sparse format.
    pub sparse_chunks: u64,
    /// Chunks in the bitmap format.
    pub bitmap_chunks: u64,
    /// Chunks that were sent dense.
    pub dense_chunks: u64,
    /// Sum of the magnitudes sent. Of dense chunks from a sample.
    pub l1_sent: f64,
    /// Largest magnitude seen in the residual afterwards; from a sample of each chunk.
    pub residual_max: f32,
    /// Sum of the magnitudes of the residual afterwards; estimated from the same sample.
    pub residual_l1: f64,
    /// Sum of the magnitudes that a post-processor took away.
    pub clipped: f64,
    /// Elements of the update that were not finite, or whose sums were not, and were left out.
    pub dropped: u64,
}

/// What one threshold did in a step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScopeStats {
    /// The range's name; that of the whole vector where ranges share the threshold.
    pub name: String,
    /// Elements that it decides on.
    pub elements: usize,
    /// Threshold and unit of the last step; `None` before the first.
    pub unit: Option<Unit>,
    /// Hits that it sent.
    pub hits: u64,
    /// Hits by elements.
    pub density: f64,
}

/// How a residual compares with the threshold: the expensive look, for finding out why a run does not train.
///
/// Many values at tens or hundreds of thresholds: the threshold is too low. Fewer than 1 in 10,000 at the threshold:
/// too high. As the encoding debug mode of Deeplearning4j, with one selection instead of five sorts.
#[derive(Clone, Debug, PartialEq)]
pub struct ResidualPercentiles {
    /// Elements.
    pub elements: usize,
    /// The threshold.
    pub threshold: f32,
    /// Elements of at least the threshold: hits of the next step, were its update 0.
    pub above: usize,
    /// The mean |r|.
    pub mean: f64,
    /// The largest |r|.
    pub max: f32,
    /// The percentiles [`ResidualPercentiles::RANKS`] of |r|.
    pub percentiles: [f32; 5],
}

impl ResidualPercentiles {
    /// Which percentiles there are.
    pub const RANKS: [f64; 5] = [50.0, 95.0, 99.0, 99.9, 99.99];

    /// Of this residual, at this threshold. `room` is overwritten; kept from call to call, it saves an allocation.
    #[must_use]
    pub fn of<'a>(
        residual: impl IntoIterator<Item = &'a f32>,
        threshold: f32,
        room: &mut Vec<f32>,
    ) -> ResidualPercentiles {
        room.clear();
        // Of magnitudes, numbers and bits have the same order.
        room.extend(residual.into_iter().map(|r| r.abs()));
        let elements = room.len();
        let mut percentiles = [0.0; 5];
        let (mut rest, mut below) = (&mut room[..], 0);
        // From the lowest up: what is below a percentile already has its place, and little is left for the higher ones.
        for (rank, percentile) in Self::RANKS.iter().zip(&mut percentiles) {
            // In ten-thousandths, which are whole.
            let at = ((rank * 100.0).round() as u128 * elements as u128 / 10_000) as usize;
            if at < elements {
                let (_, value, _) = rest.select_nth_unstable_by_key(at - below, |r| r.to_bits());
                *percentile = *value;
                rest = &mut rest[at - below..];
                below = at;
            }
        }
        ResidualPercentiles {
            elements,
            threshold,
            above: room.iter().filter(|&&r| r >= threshold).count(),
            mean: room.iter().map(|&r| f64::from(r)).sum::<f64>() / elements.max(1) as f64,
            max: room.iter().fold(0f32, |most, &r| most.max(r)),
            percentiles,
        }
    }
}

impl fmt::Display for ResidualPercentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = f64::from(self.threshold);
        let share = self.above as f64 / self.elements.max(1) as f64;
        write!(
            f,
            "residual of {} elements, threshold {t:.3e}: {} at least that ({share:.2e}), mean {:.3e} ({:.2} t), max {:.3e} \
             ({:.1} t)",
            self.elements,
            self.above,
            self.mean,
            self.mean / t,
            self.max,
            f64::from(self.max) / t,
        )?;
        for (rank, value) in Self::RANKS.iter().zip(self.percentiles) {
            write!(f, ", {rank} %: {value:.3e} ({:.2} t)", f64::from(value) / t)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_a_sorted_copy() {
        let residual: Vec<f32> = (0..100_000)
            .map(|i| {
                let x = (i * 7919 % 100_000) as f32;
                if i % 2 == 0 { x } else { -x }
            })
            .collect();
        let found = ResidualPercentiles::of(&residual, 90_000.0, &mut Vec::new());
        assert_eq!(
            found.percentiles,
            [50_000.0, 95_000.0, 99_000.0, 99_900.0, 99_990.0]
        );
        assert_eq!((found.above, found.max), (10_000, 99_999.0));
        assert_eq!(found.mean, 49_999.5);
        let text = found.to_string();
        assert!(text.contains("99.9 %: 9.990e4 (1.11 t)"), "{text}");
    }

    #[test]
    fn small_residuals_have_percentiles_too() {
        let nothing = ResidualPercentiles::of(&[], 1.0, &mut Vec::new());
        assert_eq!((nothing.elements, nothing.percentiles), (0, [0.0; 5]));
        let one = ResidualPercentiles::of(&[-3.0], 1.0, &mut vec![7.0; 9]);
        assert_eq!((one.percentiles, one.mean, one.above), ([3.0; 5], 3.0, 1));
        let two = ResidualPercentiles::of(&[-3.0, 1.0], 2.0, &mut Vec::new());
        assert_eq!(two.percentiles, [3.0; 5]);
    }
}
