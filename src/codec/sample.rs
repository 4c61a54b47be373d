//! The magnitudes of some elements, as a step is about to see them.
//!
//! A threshold made of this same step's values fits it, however wrong the last one was. A systematic sample in whole
//! cache lines costs a small fraction of the pass that follows.

use super::cpu::Kernels;
use super::encode::EncodeError;
use super::values::Element;

/// Elements of a run: four cache lines.
pub const RUN: usize = 64;
/// Runs begin at multiples of this, so that a run of a vector that does so too lies in whole lines.
const LINE: usize = 16;
/// Runs that are asked for ahead of the one that is read: they lie too far apart for the hardware to guess.
const AHEAD: usize = 8;

pub(super) fn magnitudes<T: Element>(
    kernels: Kernels,
    residual: &[f32],
    update: &[T],
    wanted: usize,
    phase: u64,
    out: &mut Vec<f32>,
) -> Result<(), EncodeError> {
    let elements = residual.len();
    if update.len() != elements {
        return Err(EncodeError::Lengths {
            expected: elements,
            found: update.len(),
        });
    }
    match runs(elements, wanted, phase) {
        None => {
            out.reserve(elements);
            kernels.magnitudes(residual, update, out);
        }
        Some(starts) => {
            out.reserve(starts.len() * RUN);
            let run = |start: usize| start..start + RUN;
            let ask = |start: usize| {
                kernels.ask(&residual[run(start)]);
                kernels.ask(&update[run(start)]);
            };
            let mut asked = starts.clone();
            for start in asked.by_ref().take(AHEAD) {
                ask(start);
            }
            for start in starts {
                if let Some(start) = asked.next() {
                    ask(start);
                }
                kernels.magnitudes(&residual[run(start)], &update[run(start)], out);
            }
        }
    }
    Ok(())
}

/// Where the runs begin; `None`: everything is to be taken.
fn runs(
    elements: usize,
    wanted: usize,
    phase: u64,
) -> Option<impl ExactSizeIterator<Item = usize> + Clone> {
    let count = wanted.div_ceil(RUN);
    let lines = elements / LINE;
    let free = lines.checked_sub(count * (RUN / LINE))?;
    // With less than one free line a run there is nothing to choose.
    if free < count {
        return None;
    }
    // The free lines are spread evenly before the runs. The phase says how many of them come before the first one's
    // share: the odd multiplier walks through the phases in large steps.
    let (count, free) = (count as u64, free as u64);
    let shift = (phase.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (free + 1);
    let line = move |run: u64| run * (RUN / LINE) as u64 + (run * free + shift) / count;
    Some((0..count as usize).map(move |run| LINE * line(run as u64) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_ascend_do_not_overlap_and_stay_inside_whatever_the_phase() {
        for (elements, wanted) in [
            (100_000, 25_000),
            (1 << 20, 64),
            (1_000_003, 7_000),
            (262_144, 200_000),
        ] {
            for phase in 0..50 {
                let starts: Vec<usize> = runs(elements, wanted, phase).unwrap().collect();
                assert!(starts.len() * RUN >= wanted);
                assert!(starts.windows(2).all(|pair| pair[0] + RUN <= pair[1]));
                assert!(starts.last().unwrap() + RUN <= elements);
                assert!(starts.iter().all(|start| start % LINE == 0));
            }
        }
    }

    #[test]
    fn the_phase_reaches_the_whole_vector() {
        let (elements, wanted) = (10_000, 1_000);
        let mut seen = vec![false; elements];
        for phase in 0..4000 {
            for start in runs(elements, wanted, phase).unwrap() {
                seen[start..start + RUN].fill(true);
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn a_small_vector_is_taken_whole() {
        assert!(runs(0, 10, 0).is_none());
        assert!(runs(10, 10, 0).is_none());
        assert!(runs(1000, 990, 3).is_none());
        assert!(runs(64, 64, 3).is_none());
        assert_eq!(runs(1000, 0, 3).map(|starts| starts.len()), Some(0));
    }
}
