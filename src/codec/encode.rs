//! One fused pass over a chunk: accumulate, threshold, collect.
//!
//! Per element: `s = canon(r + canon(u))`, or `s = r` where the update or the sum is not finite (dropped and counted);
//! a hit when `|s| >= t`; a hit sends `v` with the sign of `s` and keeps `s - v`; everything else stays. Then, if asked
//! for, all elements are clamped (clipping), and what that took away is counted. So what is sent and what stays add up
//! to what came, exactly while `|s| < 2^16 v`, else within half an ulp of `s`.
//!
//! The pass collects hits in one of the two formats and turns to the other when it sees that it would be smaller; the
//! final choice is by size alone. A [`Budget`] is kept without counting first: all hits are collected, and those past
//! the budget are put back.

use super::CHUNK;
use super::arithmetic::{INFINITY, Unit};
use super::cpu::{Kernels, Rule, SLACK};
use super::draft::{CODE, Draft};
use super::format::Format;
use super::given::{Cursor, Given, PIECE, Room, with_piece};
use std::mem::MaybeUninit;
use thiserror::Error;

/// What may differ from chunk to chunk and from step to step.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkOptions {
    /// Clamp what stays.
    pub clip: Option<Clip>,
    /// Send at most so many hits.
    pub budget: Option<Budget>,
}

/// Clipping: after the hits, each element of the residual is clamped to `[-b, b]`, where b is a multiple of the
/// threshold, rounded once. It throws mass away, and counts it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    multiple: f32,
}

impl Clip {
    /// Clips to `multiple` thresholds.
    ///
    /// # Errors
    /// [`ClipError`] when `multiple` is below 2 or no number: such a bound could cut what a hit leaves.
    pub fn new(multiple: f32) -> Result<Clip, ClipError> {
        if multiple >= 2.0 {
            Ok(Clip { multiple })
        } else {
            Err(ClipError { found: multiple })
        }
    }

    /// The multiple.
    #[must_use]
    pub fn multiple(self) -> f32 {
        self.multiple
    }
}

/// A clipping multiple that is too small.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error("a clipping multiple must be at least 2, not {found}")]
pub struct ClipError {
    /// The multiple.
    pub found: f32,
}

/// How many hits of a chunk may still be sent: exactly the lesser of this and of the chunk's hits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most hits.
    pub max_hits: usize,
    /// Where in the chunk the search begins when there are more: from this element (modulo the chunk's length)
    /// ascending, wrapping at the end. Moved from step to step, it starves nobody.
    pub start: usize,
}

/// What an encode did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoded {
    /// How the payload is laid out.
    pub format: Format,
    /// The hits sent.
    pub hits: u32,
    /// The elements of the update that were not finite, or whose sum with the residual was not.
    pub dropped: u32,
    /// The mass that clipping took away: the sum of magnitudes.
    pub clipped: f64,
    /// The mean |s| of the hits sent, from a sample of them; 0 without hits. For policies that send it in the next step.
    pub mean: f64,
    /// The largest magnitude in the residual's sample (see [`residual_l1`](Encoded::residual_l1)).
    pub residual_max: f32,
    /// An estimate of the residual's L1 norm in this chunk: the mean magnitude of a sample of the residual, times the
    /// chunk's elements. The sample is 64 runs of 16 elements, evenly spread, or everything up to 1024 elements.
    pub residual_l1: f64,
}

/// Why nothing was encoded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EncodeError {
    /// Residual and update differ in length.
    #[error("an update of {found} elements for a residual of {expected}")]
    Lengths {
        /// The residual's length.
        expected: usize,
        /// The update's length.
        found: usize,
    },
    /// A chunk is visited that the vector does not have.
    #[error("visit {found} of a vector of {expected} chunks")]
    Visit {
        /// The chunks.
        expected: usize,
        /// The visit.
        found: usize,
    },
    /// A chunk is visited out of turn: twice, or before those that come first.
    #[error("visit {found} of a step, expected visit {expected}: each comes once, in order")]
    Turn {
        /// The visit whose turn it is; how many there are, when all have been made.
        expected: usize,
        /// The visit.
        found: usize,
    },
    /// A visit or an end without a step that has begun.
    #[error("no step has begun")]
    NotBegun,
    /// A step begins or ends while chunks of the one before, or of this one, have not been encoded, or a step begins
    /// before the one before has been ended.
    #[error(
        "the step that has begun has not ended; {found} of {expected} chunks have been encoded"
    )]
    Unfinished {
        /// The chunks.
        expected: usize,
        /// How many of them have been encoded.
        found: usize,
    },
    /// What is in the residual already, for an encoder with a momentum memory: the velocity needs the gradient.
    #[error("an update in the residual; a momentum memory needs the gradient itself")]
    InResidual,
    /// A streamed step with local clipping.
    #[error("a streamed step with local clipping, which needs the norm of the whole gradient")]
    StreamedClipping,
    /// An update in the memory of a GPU, for an encoder on the processor.
    #[error("an update on a GPU for an encoder on the processor")]
    OnDevice,
    /// A visit in a streamed step.
    #[error("the step that has begun is streamed: its chunks are encoded as they become complete")]
    Streamed,
    /// A part or a complete chunk without a streamed step.
    #[error("no streamed step has begun")]
    NotStreamed,
    /// A part that lies outside the vector, or ends before it begins.
    #[error("a part of elements {start} to {end} of a vector of {elements}")]
    Part {
        /// Its first element.
        start: usize,
        /// The one after its last.
        end: usize,
        /// The vector's elements.
        elements: usize,
    },
    /// A part of which some has been pushed in this step.
    #[error("elements {start} to {end} have been pushed in this step already")]
    Overlap {
        /// The first of them.
        start: usize,
        /// The one after the last of them.
        end: usize,
    },
    /// Elements that have not been pushed when the step is to end.
    #[error("elements {start} to {end} have not been pushed in this step")]
    Missing {
        /// The first of them.
        start: usize,
        /// The one after those that follow it.
        end: usize,
    },
    /// A chunk that the vector does not have.
    #[error("chunk {found} of a vector of {expected}")]
    Chunk {
        /// The chunks.
        expected: usize,
        /// The number.
        found: usize,
    },
    /// A chunk of which parts have not been pushed.
    #[error("{left} elements of chunk {chunk} have not been pushed in this step")]
    Incomplete {
        /// The chunk.
        chunk: usize,
        /// How many of its elements.
        left: usize,
    },
    /// A chunk that has been encoded in this step.
    #[error("chunk {chunk} has been encoded in this step already")]
    Again {
        /// The chunk.
        chunk: usize,
    },
    /// More than a chunk.
    #[error("a chunk of {found} elements; it can have at most {CHUNK}")]
    TooLong {
        /// The length.
        found: usize,
    },
    /// What an encoder whose residual is on a GPU does not do.
    #[error("an encoder on a GPU cannot do this: {what}")]
    OnGpu {
        /// What was asked for.
        what: &'static str,
    },
    /// What only an encoder whose residual is on a GPU does.
    #[error("an encoder on the processor cannot do this: {what}")]
    OnProcessor {
        /// What was asked for.
        what: &'static str,
    },
    /// The GPU on which the residual is.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] super::gpu::GpuError),
}

/// Refuses an update of another length than the residual's.
pub(super) fn length(elements: usize, update: Given<'_>) -> Result<(), EncodeError> {
    match update.elements() {
        Some(found) if found != elements => Err(EncodeError::Lengths {
            expected: elements,
            found,
        }),
        _ => Ok(()),
    }
}

/// Refuses an update that cannot be added to a residual of so many elements on the processor.
pub(super) fn lengths(elements: usize, update: Given<'_>) -> Result<(), EncodeError> {
    length(elements, update)?;
    #[cfg(feature = "gpu")]
    if let Given::Device(_) = update {
        return Err(EncodeError::OnDevice);
    }
    Ok(())
}

pub(super) fn chunk_lengths(elements: usize, update: Given<'_>) -> Result<(), EncodeError> {
    lengths(elements, update)?;
    if elements > CHUNK {
        return Err(EncodeError::TooLong { found: elements });
    }
    Ok(())
}

pub(super) fn encode(
    kernels: Kernels,
    residual: &mut [f32],
    update: Given<'_>,
    unit: Unit,
    options: &ChunkOptions,
    out: &mut Vec<u8>,
) -> Result<Encoded, EncodeError> {
    chunk_lengths(residual.len(), update)?;
    let most = options.budget.map_or(usize::MAX, |budget| budget.max_hits);
    let mut draft = Draft::after(std::mem::take(out));
    draft.fill(kernels, residual, update.cursor(), unit, most..=most);
    let encoded = draft.finish(kernels, residual, unit, options);
    *out = std::mem::take(draft.payload_mut());
    Ok(encoded)
}

/// Adds an update, which has an element for each of the residual's, and sends nothing. How many elements were dropped.
pub(super) fn accumulate(kernels: Kernels, residual: &mut [f32], mut update: Cursor<'_>) -> u32 {
    // The pass that collects hits, with a threshold that nothing reaches.
    let rule = Rule {
        threshold: INFINITY,
        unit: 1.0,
        logged: u32::MAX,
        dense: false,
        crowded: false,
    };
    let mut codes = [MaybeUninit::uninit(); CODE * PIECE + SLACK];
    let (mut room, mut log, mut dropped) = (Room::default(), Vec::new(), 0);
    for residual in residual.chunks_mut(PIECE) {
        let piece = update.next(residual.len(), &mut room);
        let seen = with_piece!(piece, update => {
            kernels.sparse(&rule, update, residual, 0, &mut codes, &mut log)
        });
        dropped += seen.dropped;
    }
    dropped
}

/// The largest magnitude and the estimated L1 norm, from 64 lines of a cache-hot chunk: too few to cost anything.
pub(super) fn look_at(residual: &[f32]) -> (f32, f64) {
    const LINE: usize = 16;
    const LINES: usize = 64;
    const LANES: usize = 8;
    let stride = if residual.len() <= LINE * LINES {
        LINE
    } else {
        residual.len() / LINES
    };
    // Eight of each, so that lines need not wait for one another. Sums in f32 could overflow.
    let (mut largest, mut sums, mut seen) = ([0u32; LANES], [0f64; LANES], 0);
    let mut add = |few: &[f32]| {
        for ((r, largest), sum) in few.iter().zip(&mut largest).zip(&mut sums) {
            *largest = (*largest).max(r.abs().to_bits());
            *sum += f64::from(r.abs());
        }
    };
    for run in residual.chunks(stride) {
        let run = &run[..run.len().min(LINE)];
        seen += run.len();
        let (eights, rest) = run.as_chunks::<LANES>();
        for eight in eights {
            add(eight);
        }
        add(rest);
    }
    // All are at least +0, so bits and numbers have the same order.
    let largest = largest.into_iter().fold(0, u32::max);
    let mean = sums.iter().sum::<f64>() / seen.max(1) as f64;
    (f32::from_bits(largest), mean * residual.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_residuals_statistics_are_of_all_when_small_and_near_when_large() {
        assert_eq!(look_at(&[]), (0.0, 0.0));
        assert_eq!(look_at(&[1.0, -3.0, 0.5]), (3.0, 4.5));
        let all: Vec<f32> = (0..1024).map(|i| i as f32).collect();
        assert_eq!(look_at(&all), (1023.0, 1023.0 * 512.0));
        assert_eq!(
            look_at(&[f32::MAX; 3]),
            (f32::MAX, 3.0 * f64::from(f32::MAX))
        );

        let large: Vec<f32> = (0..CHUNK).map(|i| (i * 7919 % 1000) as f32).collect();
        let (most, l1) = look_at(&large);
        let exact: f64 = large.iter().copied().map(f64::from).sum();
        assert!(
            (900.0..1000.0).contains(&most) && (l1 / exact - 1.0).abs() < 0.1,
            "{most} {l1} {exact}"
        );
    }

    #[test]
    fn clipping_multiples_that_could_cut_what_a_hit_leaves_are_refused() {
        assert_eq!(Clip::new(2.0).map(Clip::multiple), Ok(2.0));
        assert_eq!(Clip::new(1.99), Err(ClipError { found: 1.99 }));
        assert!(Clip::new(f32::NAN).is_err());
    }
}
