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
    let places = Places::new(elements, wanted, phase);
    out.reserve(places.len());
    let mut reader = Reader::of(residual, update);
    let mut take = |piece: Range<usize>| {
        reader.each(piece, |residual, update| {
            with_piece!(update, update => kernels.magnitudes(residual, update, out));
        });
    };
    match places {
        Places::All { .. } => ranges.iter().cloned().for_each(take),
        Places::Runs(runs) => {
            let pieces = runs.starts().scan(EndToEnd::of(ranges), |ranges, start| {
                Some(ranges.take(start, runs.run))
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

/// Appends the pieces of the vector whose magnitudes [`magnitudes`] gives, in its order: for a residual that is elsewhere.
/// How many elements they have in all.
#[cfg(feature = "gpu")]
pub(super) fn pieces(
    ranges: &[Range<usize>],
    wanted: usize,
    phase: u64,
    out: &mut Vec<Range<usize>>,
) -> usize {
    let elements = ranges.iter().map(Range::len).sum();
    let places = Places::new(elements, wanted, phase);
    match places {
        Places::All { .. } => out.extend_from_slice(ranges),
        Places::Runs(runs) => {
            let mut end_to_end = EndToEnd::of(ranges);
            for start in runs.starts() {
                out.extend(end_to_end.take(start, runs.run));
            }
        }
    }
    places.len()
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
            let count = update.len();
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
struct EndToEnd<'a> {
    ranges: &'a [Range<usize>],
    /// Elements of the ranges before these.
    before: usize,
}

impl<'a> EndToEnd<'a> {
    fn of(ranges: &'a [Range<usize>]) -> EndToEnd<'a> {
        EndToEnd { ranges, before: 0 }
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

/// Where the elements of a sample lie among all of its ranges, laid end to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Places {
    All { elements: usize },
    Runs(Runs),
}

/// Runs of one length, evenly spread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    run: usize,
    count: u64,
    /// Lines that are in none of them.
    free: u64,
    /// How many of those come before the first one's share.
    shift: u64,
}

impl Places {
    pub(super) fn new(elements: usize, wanted: usize, phase: u64) -> Places {
        let run = run_of(wanted);
        let count = wanted.div_ceil(run);
        let lines = elements / LINE;
        // With less than one free line a run there is nothing to choose.
        match lines.checked_sub(count * (run / LINE)) {
            Some(free) if free >= count => {
                let (count, free) = (count as u64, free as u64);
                // The odd multiplier walks through the phases in large steps.
                let shift = (phase.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (free + 1);
                Places::Runs(Runs {
                    run,
                    count,
                    free,
                    shift,
                })
            }
            _ => Places::All { elements },
        }
    }

    /// Elements of the sample.
    pub(super) fn len(&self) -> usize {
        match self {
            Places::All { elements } => *elements,
            Places::Runs(runs) => runs.run * runs.count as usize,
        }
    }

    /// Calls `with` for those of `elements` that are in the sample: where they stand there, and which they are.
    pub(super) fn among(&self, elements: Range<usize>, mut with: impl FnMut(usize, Range<usize>)) {
        match self {
            Places::All { .. } => with(elements.start, elements),
            Places::Runs(runs) => {
                for at in runs.first_past(elements.start)..runs.count {
                    let start = runs.start(at);
                    let inside = start.max(elements.start)..(start + runs.run).min(elements.end);
                    if inside.start >= inside.end {
                        return;
                    }
                    with(runs.run * at as usize + inside.start - start, inside);
                }
            }
        }
    }
}

impl Runs {
    /// The free lines are spread evenly before the runs.
    fn start(&self, at: u64) -> usize {
        let line = at * (self.run / LINE) as u64 + (at * self.free + self.shift) / self.count;
        LINE * line as usize
    }

    fn starts(self) -> impl ExactSizeIterator<Item = usize> + Clone {
        (0..self.count as usize).map(move |at| self.start(at as u64))
    }

    /// The first run that ends past an element.
    fn first_past(&self, element: usize) -> u64 {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle) + self.run > element {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(elements: usize, wanted: usize, phase: u64) -> Option<Runs> {
        match Places::new(elements, wanted, phase) {
            Places::All { elements: all } => {
                assert_eq!(all, elements);
                None
            }
            Places::Runs(runs) => Some(runs),
        }
    }

    #[test]
    fn a_sample_is_the_same_whatever_pieces_it_is_taken_from_in_any_order() {
        let all: Vec<usize> = (0..9000).collect();
        for wanted in [0, 1, 64, 65, 1000, 2000, 8000, 8900, 9000] {
            for phase in 0..40 {
                let places = Places::new(all.len(), wanted, phase);
                let expected: Vec<usize> = match places {
                    Places::All { .. } => all.clone(),
                    Places::Runs(runs) => runs
                        .starts()
                        .flat_map(|start| start..start + runs.run)
                        .collect(),
                };
                assert_eq!(places.len(), expected.len());
                let mut cuts = [
                    0,
                    9000,
                    1,
                    17,
                    64,
                    700,
                    701,
                    4096,
                    8999,
                    3000 + phase as usize,
                ];
                cuts.sort_unstable();
                let mut found = vec![usize::MAX; places.len()];
                for pair in cuts.windows(2).rev() {
                    places.among(pair[0]..pair[1], |at, elements| {
                        found[at..at + elements.len()].copy_from_slice(&all[elements]);
                    });
                }
                assert_eq!(found, expected, "{wanted} wanted, phase {phase}");
            }
        }
    }

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
                let starts: Vec<usize> = runs(elements, wanted, phase).unwrap().starts().collect();
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
                let mut places = EndToEnd::of(&ranges);
                for start in runs(end_to_end.len(), 700, phase).unwrap().starts() {
                    let found: Vec<usize> = places.take(start, RUN).flatten().collect();
                    assert_eq!(found, end_to_end[start..start + RUN]);
                }
            }
        }
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn pieces_are_where_magnitudes_are_taken() {
        use crate::codec::Path;

        let residual: Vec<f32> = (0..9000).map(|i| i as f32).collect();
        let update = vec![0.5f32; residual.len()];
        let ranges = [3..5, 10..10, 100..4000, 4500..4501, 4501..9000];
        for wanted in [0, 1, 700, 4000, 8400, 9000] {
            for phase in 0..20 {
                let (kernels, mut expected) = (Path::Scalar.kernels(), Vec::new());
                let given = Given::from(&update);
                magnitudes(
                    kernels,
                    &residual,
                    given,
                    &ranges,
                    wanted,
                    phase,
                    &mut expected,
                );
                let mut found = Vec::new();
                let count = pieces(&ranges, wanted, phase, &mut found);
                let found: Vec<f32> = found
                    .into_iter()
                    .flatten()
                    .map(|i| i as f32 + 0.5)
                    .collect();
                assert_eq!(count, found.len());
                assert_eq!(found, expected, "{wanted} wanted, phase {phase}");
            }
        }
    }

    #[test]
    fn the_phase_reaches_the_whole_vector() {
        let (elements, wanted) = (10_000, 1_000);
        let mut seen = vec![false; elements];
        for phase in 0..4000 {
            for start in runs(elements, wanted, phase).unwrap().starts() {
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
        assert_eq!(runs(1000, 0, 3).map(|runs| runs.starts().len()), Some(0));
    }
}
