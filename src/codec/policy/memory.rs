//! What a threshold that follows the density keeps from step to step.

use super::counting::Mode;
use super::{PolicyState, PolicyStateError};
use crate::codec::Unit;
use std::ops::RangeInclusive;

/// Thresholds that a policy may have.
pub(super) const THRESHOLDS: RangeInclusive<f64> = Unit::LEAST as f64..=Unit::MOST as f64;

/// What is kept from step to step. As a [`PolicyState`] its numbers are the mode (0 sparse, 1 dense), then the threshold
/// if there is one yet, then the density if there is one yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Memory {
    pub(super) mode: Mode,
    pub(super) threshold: Option<f64>,
    /// The last one counted; `None` without a threshold.
    pub(super) density: Option<f64>,
}

impl Memory {
    pub(super) fn write(&self, kind: &str) -> PolicyState {
        let numbers = [Some(number(self.mode)), self.threshold, self.density];
        PolicyState::new(kind, numbers.into_iter().flatten().collect::<Vec<f64>>())
    }

    pub(super) fn read(kind: &str, state: &PolicyState) -> Result<Memory, PolicyStateError> {
        let (mode, threshold, density) = match *state.numbers_of(kind)? {
            [mode] => (mode, None, None),
            [mode, threshold] => (mode, Some(threshold), None),
            [mode, threshold, density] => (mode, Some(threshold), Some(density)),
            ref numbers => {
                return Err(PolicyStateError::Count {
                    expected: "1 to 3",
                    found: numbers.len(),
                });
            }
        };
        let wrong = |what, expected, found| PolicyStateError::Number {
            what,
            expected,
            found,
        };
        let mode = [Mode::Sparse, Mode::Dense]
            .into_iter()
            .find(|known| number(*known).to_bits() == mode.to_bits())
            .ok_or_else(|| wrong("a mode", "0 or 1", mode))?;
        // A NaN is in no range. A negative zero is in one, but is never written.
        if let Some(t) = threshold.filter(|t| !THRESHOLDS.contains(t)) {
            return Err(wrong("a threshold", "2^-100 to 2^98", t));
        }
        if let Some(r) = density.filter(|r| r.is_sign_negative() || !(0.0..=1.0).contains(r)) {
            return Err(wrong("a density", "0 to 1", r));
        }
        Ok(Memory {
            mode,
            threshold,
            density,
        })
    }

    /// Several as one, without those that have no threshold yet, unless none has: the thresholds' geometric mean, since
    /// they move in factors; the known densities' arithmetic mean, since one may be 0; and the mode of most, dense where
    /// they are as many.
    pub(super) fn merged(memories: &[Memory]) -> Memory {
        let begun = memories.iter().any(|memory| memory.threshold.is_some());
        let used = || {
            let used = move |memory: &&Memory| memory.threshold.is_some() || !begun;
            memories.iter().filter(used)
        };
        let thresholds = || used().filter_map(|memory| memory.threshold);
        let densities = || used().filter_map(|memory| memory.density);
        Memory {
            mode: most_frequent(used()),
            threshold: within(mean(thresholds().map(f64::ln)).map(f64::exp), thresholds()),
            density: within(mean(densities()), densities()),
        }
    }
}

/// A mode as a number.
fn number(mode: Mode) -> f64 {
    match mode {
        Mode::Sparse => 0.0,
        Mode::Dense => 1.0,
    }
}

fn most_frequent<'a>(memories: impl Iterator<Item = &'a Memory>) -> Mode {
    let balance: i64 = memories
        .map(|memory| match memory.mode {
            Mode::Dense => 1,
            Mode::Sparse => -1,
        })
        .sum();
    if balance < 0 {
        Mode::Sparse
    } else {
        Mode::Dense
    }
}

/// The arithmetic mean; `None` of nothing.
fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0u32), |(sum, count), x| (sum + x, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// `mean`, which rounding may have taken out of the range of those that it is the mean of, back in it. So the mean of
/// equal numbers is that number, to the last bit.
fn within(mean: Option<f64>, numbers: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let least = numbers.clone().reduce(f64::min)?;
    let most = numbers.reduce(f64::max)?;
    mean.map(|mean| mean.clamp(least, most))
}
