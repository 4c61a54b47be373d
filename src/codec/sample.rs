//! The magnitudes of some elements, as a step is about to see them.
//!
//! A threshold made of this same step's values fits it, however wrong the last one was. A systematic sample in whole
//! cache lines costs a small fraction of the pass that follows.

use super::cpu::Kernels;
use super::given::{Cursor, Given, Piece, with_piece};
use std::ops::Range;

/// Elements of a run: four cache lines.
pub const RUN: usize = 64;
/// Elements of a run of a sample that has at least 512 of these: fewer places to go to, for the same number of lines.
pub const LONG_RUN: usize = 256;
/// How many long runs represent a vector well.
const MANY: usize = 512;
/// Runs begin at multiples of this, so that a run of a vector that does so too lies in whole lines.
const LINE: usize = 16;
/// Runs that are asked for ahead of the one that is read: they lie too far apart for the hardware to guess.
const AHEAD: usize = 8;

/// Samples `ranges` of a vector as if they stood one behind the other: each element is as likely to be taken as any
/// other, however many ranges there are and however short they are.
///
/// `update` has an element for each of the residual's.
pub(super) fn magnitudes(
    kernels: Kernels,
    residual: &[f32],
    update: Given<'_>,
    ranges: &[Range<usize>],
    wanted: usize,
    phase: u64,
    out: &mut Vec<f32>,
) {
    let elements = ranges.iter().map(Range::len).sum();
    let run = run_of(wanted);
    let starts = runs(elements, wanted, run, phase);
    out.reserve(
        starts
            .as_ref()
            .map_or(elements, |starts| run * starts.len()),
    );
    let mut reader = Reader::of(residual, update);
    let mut take = |piece: Range<usize>| {
        reader.each(piece, |residual, update| {
            with_piece!(update, update => kernels.magnitudes(residual, update, out));
        });
    };
    match starts {
        None => ranges.iter().cloned().for_each(take),
        Some(starts) => {
            let pieces = starts.scan(Places::of(ranges), |places, start| {
                Some(places.take(start, run))
            });
            let mut asked = pieces.clone().flatten();
            let mut reader = Reader::of(residual, update);
            let mut ask = |count: usize| {
                for piece in asked.by_ref().take(count) {
                    reader.each(piece, |residual, update| {
                        kernels.ask(residual);
                        with_piece!(update, update => kernels.ask(update));
                    });
                }
            };
            ask(AHEAD);
            for piece in pieces.flatten() {
                ask(1);
                take(piece);
            }
        }
    }
}

/// Reads residual and update at ascending places.
struct Reader<'a> {
    residual: &'a [f32],
    update: Cursor<'a>,
    /// Where the cursor stands.
    at: usize,
}

impl<'a> Reader<'a> {
    fn of(residual: &'a [f32], update: Given<'a>) -> Reader<'a> {
        Reader {
            residual,
            update: update.cursor(),
            at: 0,
        }
    }

    /// Calls `with` for the elements of `piece`, as many at a time as lie in one slice of the update.
    fn each(&mut self, piece: Range<usize>, mut with: impl FnMut(&'a [f32], Piece<'a>)) {
        self.update.skip(piece.start - self.at);
        self.at = piece.start;
        while self.at < piece.end {
            let update = self.update.some(piece.end - self.at);
            let count = with_piece!(update, update => update.len());
            if count == 0 {
                return;
            }
            with(&self.residual[self.at..self.at + count], update);
            self.at += count;
        }
    }
}

/// Where the elements of ranges that stand one behind the other lie in the vector.
#[derive(Clone)]
struct Places<'a> {
    ranges: &'a [Range<usize>],
    /// Elements of the ranges before these.
    before: usize,
}

impl<'a> Places<'a> {
    fn of(ranges: &'a [Range<usize>]) -> Places<'a> {
        Places { ranges, before: 0 }
    }

    /// The pieces of the vector that hold the run from `start` on, which must lie inside. Starts must ascend.
    fn take(
        &mut self,
        start: usize,
        run: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone + use<'a> {
        while let Some((first, rest)) = self.ranges.split_first()
            && self.before + first.len() <= start
        {
            self.before += first.len();
            self.ranges = rest;
        }
        let mut skipped = start - self.before;
        let mut left = run;
        self.ranges.iter().map_while(move |range| {
            let piece = range.start + skipped..range.end.min(range.start + skipped + left);
            (skipped, left) = (0, left - piece.len());
            (left > 0 || !piece.is_empty()).then_some(piece)
        })
    }
}

/// Elements of the runs of a sample of `wanted`.
fn run_of(wanted: usize) -> usize {
    if wanted >= MANY * LONG_RUN {
        LONG_RUN
    } else {
        RUN
    }
}

/// Where the runs begin; `None`: everything is to be taken.
fn runs(
    elements: usize,
    wanted: usize,
    run: usize,
    phase: u64,
) -> Option<impl ExactSizeIterator<Item = usize> + Clone> {
    let count = wanted.div_ceil(run);
    let lines = elements / LINE;
    let of_run = run / LINE;
    let free = lines.checked_sub(count * of_run)?;
    // With less than one free line a run there is nothing to choose.
    if free < count {
        return None;
    }
    // The free lines are spread evenly before the runs. The phase says how many of them come before the first one's
    // share: the odd multiplier walks through the phases in large steps.
    let (count, free) = (count as u64, free as u64);
    let shift = (phase.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (free + 1);
    let line = move |run: u64| run * of_run as u64 + (run * free + shift) / count;
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
            (262_144, 131_071),
            (262_144, 131_072),
            (262_144, 200_000),
        ] {
            for phase in 0..50 {
                let run = run_of(wanted);
                let starts: Vec<usize> = runs(elements, wanted, run, phase).unwrap().collect();
                assert!(starts.len() * run >= wanted);
                assert!(starts.windows(2).all(|pair| pair[0] + run <= pair[1]));
                assert!(starts.last().unwrap() + run <= elements);
                assert!(starts.iter().all(|start| start % LINE == 0));
            }
        }
    }

    #[test]
    fn runs_over_ranges_are_those_of_the_ranges_laid_end_to_end() {
        for lengths in [
            &[5000][..],
            &[0, 3, 0, 4000, 1, 0],
            &[64; 100],
            &[1; 3000],
            &[63, 2000, 65, 7],
        ] {
            let (mut ranges, mut end_to_end, mut end) = (Vec::new(), Vec::new(), 5);
            for &length in lengths {
                ranges.push(end..end + length);
                end_to_end.extend(end..end + length);
                end += length + 3;
            }
            for phase in 0..20 {
                let mut places = Places::of(&ranges);
                for start in runs(end_to_end.len(), 700, RUN, phase).unwrap() {
                    let found: Vec<usize> = places.take(start, RUN).flatten().collect();
                    assert_eq!(found, end_to_end[start..start + RUN]);
                }
            }
        }
    }

    #[test]
    fn the_phase_reaches_the_whole_vector() {
        let (elements, wanted) = (10_000, 1_000);
        let mut seen = vec![false; elements];
        for phase in 0..4000 {
            for start in runs(elements, wanted, RUN, phase).unwrap() {
                seen[start..start + RUN].fill(true);
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn a_small_vector_is_taken_whole() {
        assert!(runs(0, 10, RUN, 0).is_none());
        assert!(runs(10, 10, RUN, 0).is_none());
        assert!(runs(1000, 990, RUN, 3).is_none());
        assert!(runs(64, 64, RUN, 3).is_none());
        assert_eq!(runs(1000, 0, RUN, 3).map(|starts| starts.len()), Some(0));
    }
}
