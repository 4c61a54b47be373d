//! The exchange of uncompressed runs: everything is sent, every step, as f32 or as bf16, and nothing stays behind.
//!
//! Deeplearning4j's `BasicGradientsAccumulator` and AdaptDL's plain synchronization. The values of all ranks that give
//! data are summed unscaled, from +0, in rank order: `S = canon(S + canon(x))`. An element that is not finite, or whose
//! sum is not, is left out and counted for the rank whose x it is; so S is always finite. Then, for Mean, `canon(S *
//! inv)` with inv = 1/k rounded once, and `p = canon(canon(p) - S)` once. Each element is summed in this order by one
//! rank or by all, so that the way of the values, flat or scattered, changes no bit.
//!
//! As bf16 every x is rounded when it is sent, to nearest even and never to infinity, and so is S, once, when it is
//! complete. What rounding takes from an x is lost, as in any plain bf16 sum: at most 1/256 of it, half of that unless
//! it is among the largest numbers. A trainer that wants it back sends the range dense inside a compressed exchange,
//! where it stays in the residual.

use super::sums::{self, Lanes};
use super::{
    Concluded, Exchange, Reduction as Reduced, Report, Target, compare_hashes, nanoseconds,
};
use crate::codec::values::{Element, SINGLES, with_slice};
use crate::codec::{Apply, Dense, Given, Parameters, Values};
use crate::replica::port::{Port, Taken, run};
use crate::replica::raw::{Raw, Source};
use crate::replica::record::{HAS_DATA, HAS_HASH, Record};
use crate::replica::reduce::{Cut, Reduction, Turn, Work};
use crate::replica::wait::Wait;
use crate::replica::{Error, Kind};
use crate::shm::ring::WriteGrant;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Of a chunk's own values at most this many are looked at for the report.
const LOOKED_AT: usize = 256;

/// What an exchange without compression keeps from step to step, memory only: sums of what this rank folds of a chunk.
/// Scattered, one is folded while the one before has not been published.
pub(super) type Sums = [Vec<f32>; 2];

/// One step's question.
struct Asked<'a> {
    exchange: u16,
    step: u64,
    /// Hash of the parameters after the last checked step, if it has not been compared.
    hash: Option<u64>,
    update: Option<Given<'a>>,
    reduction: Reduced,
    apply: Apply,
    target: &'a mut dyn Parameters,
}

impl Exchange {
    pub(super) fn step_uncompressed(
        &mut self,
        number: Dense,
        update: Option<Given<'_>>,
        target: Target<'_>,
    ) -> Result<Report, Error> {
        let began = Instant::now();
        let kind = match target.apply {
            Apply::Subtract => Kind::Uncompressed,
            Apply::Add => Kind::UncompressedSum,
        };
        let shared = Arc::clone(&self.shared);
        let engine = &mut *shared.engine()?;
        let elements = self.length;
        let operation = self.step_operation(kind);
        let wait = shared.enter(engine, operation)?;
        let max_payload = shared.segment.ring(shared.rank).max_payload();
        let cut = Cut::new(elements, number.bytes(), shared.world_size, max_payload);
        let folded = cut.most_folded();
        self.sums[0].resize(folded, 0.0);
        self.sums[1].resize(if cut.is_scattered() { folded } else { 0 }, 0.0);
        let asked = Asked {
            exchange: self.index,
            step: self.step,
            hash: self.hash,
            update,
            reduction: self.reduction,
            apply: target.apply,
            target: &mut *target.vector,
        };
        let work = Summing {
            number,
            lanes: Lanes::of(self.encoder.path()),
            sums: &mut self.sums,
            asked,
            scattered: cut.is_scattered(),
            scale: 1.0,
            agreed: 0,
            dropped: vec![0; shared.world_size],
            elsewhere: vec![0; shared.world_size],
            report: Report {
                step: self.step,
                ..Report::default()
            },
        };
        let mut reduction = Reduction::new(Port::new(&shared, engine, wait), work, cut);
        if let Err(error) = run(&wait, &mut reduction, shared.ahead()) {
            // A peer that saw a divergence first has poisoned the run, maybe before this rank had looked: it can see
            // the same, since all first records were out by then.
            if matches!(&error, Error::Diverged { hashes, .. } if hashes.is_empty()) {
                reduction.look_at_heads()?;
            }
            return Err(error);
        }
        let Reduction { work, bytes, .. } = reduction;
        let Summing {
            agreed,
            mut dropped,
            elsewhere,
            mut report,
            ..
        } = work;
        for (dropped, elsewhere) in dropped.iter_mut().zip(elsewhere) {
            *dropped = dropped.saturating_add(elsewhere);
        }
        report.bytes = bytes;
        report.dropped = dropped[shared.rank];
        let concluded = Concluded {
            report,
            dropped,
            agreed,
            updates: Vec::new(),
            began,
            gave: update.is_some(),
            counts: true,
        };
        self.conclude(engine, target, concluded)
    }
}

/// One step under way.
struct Summing<'a> {
    number: Dense,
    lanes: Lanes,
    sums: &'a mut [Vec<f32>; 2],
    asked: Asked<'a>,
    /// Whether this rank folds a slice of each chunk only.
    scattered: bool,
    /// What a sum counts: 1, or 1 / how many gave data.
    scale: f32,
    /// All ranks' flags.
    agreed: u8,
    /// By rank: elements that this rank has left out of its sums.
    dropped: Vec<u64>,
    /// By rank: those that others have left out of theirs, where each folds a slice.
    elsewhere: Vec<u64>,
    report: Report,
}

impl Summing<'_> {
    /// Which memory a chunk's sum has.
    fn place(&self, chunk: u64) -> usize {
        usize::from(self.scattered && chunk % 2 == 1)
    }

    /// The memory of a chunk's sum.
    fn sum(&mut self, chunk: u64, length: usize) -> &mut [f32] {
        let at = self.place(chunk);
        &mut self.sums[at][..length]
    }

    /// A finished sum onto its elements.
    fn apply<S: Source<f32>>(
        lanes: Lanes,
        apply: Apply,
        scale: f32,
        sum: S,
        target: &mut [f32],
    ) -> u64 {
        match apply {
            Apply::Subtract => u64::from(sums::subtract(lanes, sum, scale, target)),
            Apply::Add => {
                sums::hand_over(lanes, sum, scale, target);
                0
            }
        }
    }

    /// This rank's own sum of a chunk onto its elements.
    fn apply_own(&mut self, chunk: u64, elements: Range<usize>) {
        let mut sum = &self.sums[self.place(chunk)][..elements.len()];
        let (lanes, apply, scale) = (self.lanes, self.asked.apply, self.scale);
        let mut met = 0;
        self.asked.target.each(elements, &mut |part| {
            let (now, rest) = sum.split_at(part.len());
            sum = rest;
            met += Self::apply(lanes, apply, scale, now, part);
        });
        self.report.parameters_not_finite += met;
    }

    /// Adds values to the sum of the chunk whose elements these are, from its element `at` on, and counts what is left
    /// out. The last to be added make a piece complete.
    fn add<S: Source<f32>>(&mut self, turn: Turn, elements: &Range<usize>, at: usize, values: S) {
        let (lanes, end, place) = (self.lanes, at + values.len(), self.place(turn.chunk));
        let sum = &mut self.sums[place][at..end];
        let dropped = if turn.first {
            sums::begin(lanes, sum, values)
        } else {
            sums::add(lanes, sum, values)
        };
        self.dropped[turn.rank] += u64::from(dropped);
        if !turn.last {
            return;
        }
        if self.number == Dense::Bf16 {
            sums::round_sum(lanes, sum);
        }
        if !self.scattered {
            let (apply, scale, mut sum) = (self.asked.apply, self.scale, &*sum);
            let mut met = 0;
            let place = elements.start + at..elements.start + end;
            self.asked.target.each(place, &mut |part| {
                let (now, rest) = sum.split_at(part.len());
                sum = rest;
                met += Self::apply(lanes, apply, scale, now, part);
            });
            self.report.parameters_not_finite += met;
        }
    }

    /// Looks at some of the values that are sent.
    fn note(&mut self, values: Values<'_>) {
        let stride = values.len().div_ceil(LOOKED_AT).max(1);
        let (mut sum, mut seen) = (0.0_f64, 0_u32);
        with_slice!(values, slice => {
            for value in slice.iter().step_by(stride) {
                let size = value.to_f32().abs();
                sum += if size.is_finite() { f64::from(size) } else { 0.0 };
                seen += 1;
            }
        });
        self.report.l1_sent += sum / f64::from(seen.max(1)) * values.len() as f64;
    }
}

/// Hands an update over in pieces of f32, with the place of each.
fn in_pieces(values: Values<'_>, mut with: impl FnMut(usize, &[f32])) {
    let mut room = [0.0; SINGLES];
    with_slice!(values, slice => {
        for (at, piece) in slice.chunks(SINGLES).enumerate() {
            with(at * SINGLES, Element::singles(piece, &mut room));
        }
    });
}

impl Work for Summing<'_> {
    const IN_PLACE: bool = false;

    fn record(&self) -> Record {
        Record {
            exchange: self.asked.exchange,
            step: self.asked.step as u32,
            flags: u8::from(self.asked.hash.is_some()) * HAS_HASH,
            hash: self.asked.hash.unwrap_or(0),
            ..Record::of_reduction()
        }
    }

    fn gives(&self) -> bool {
        self.asked.update.is_some()
    }

    fn begin(&mut self, wait: &Wait<'_>, heads: &[Record]) -> Result<(), Error> {
        let expected = self.asked.hash.is_some();
        if let Some(rank) = heads
            .iter()
            .position(|head| (head.flags & HAS_HASH != 0) != expected)
        {
            return Err(wait.protocol(rank, || {
                format!("hash present: {}, expected {expected}", !expected)
            }));
        }
        let hashes = heads.iter().map(|head| head.hash).collect();
        compare_hashes(wait, self.asked.step, hashes)?;
        let contributors = heads.iter().filter(|head| head.flags & HAS_DATA != 0);
        self.report.contributors = contributors.count();
        self.scale = match self.asked.reduction {
            Reduced::Mean => 1.0 / self.report.contributors.max(1) as f32,
            Reduced::Sum => 1.0,
        };
        self.agreed = heads.iter().fold(0, |or, head| or | head.agreement);
        Ok(())
    }

    fn contribute(&mut self, elements: Range<usize>, into: &mut WriteGrant<'_, '_>, offset: usize) {
        let Some(update) = self.asked.update else {
            return;
        };
        let start = Instant::now();
        let (number, lanes) = (self.number, self.lanes);
        let mut whole = true;
        update.each(elements, &mut |start, values| {
            let offset = offset + number.bytes() * start;
            match (number, values) {
                (Dense::F32, Values::F32(values)) => {
                    whole &= into.write(offset, bytemuck::cast_slice(values));
                }
                (Dense::Bf16, Values::Bf16(values)) => {
                    whole &= into.write(offset, bytemuck::cast_slice(values));
                }
                (Dense::F32, values) => in_pieces(values, |at, piece| {
                    whole &= into.write(offset + 4 * at, bytemuck::cast_slice(piece));
                }),
                (Dense::Bf16, values) => in_pieces(values, |at, piece| {
                    let mut room = [0_u16; SINGLES];
                    let room = &mut room[..piece.len()];
                    sums::round(lanes, piece, room);
                    whole &= into.write(offset + 2 * at, bytemuck::cast_slice(room));
                }),
            }
            self.note(values);
        });
        debug_assert!(whole, "it was reserved for these");
        self.report.encode_ns += nanoseconds(start);
    }

    fn fold_own(&mut self, turn: Turn, elements: Range<usize>) {
        let Some(update) = self.asked.update else {
            return;
        };
        let start = Instant::now();
        if self.scattered {
            // The one slice that this rank has sent to nobody but itself.
            update.each(elements.clone(), &mut |_, values| self.note(values));
        }
        update.each(
            elements.clone(),
            &mut |start, values| match (self.number, values) {
                (Dense::F32, values) => in_pieces(values, |at, piece| {
                    self.add(turn, &elements, start + at, piece);
                }),
                (Dense::Bf16, values) => in_pieces(values, |at, piece| {
                    // What the others have of them.
                    let (mut half, mut single) = ([0_u16; SINGLES], [0.0_f32; SINGLES]);
                    let (half, single) = (&mut half[..piece.len()], &mut single[..piece.len()]);
                    sums::round(self.lanes, piece, half);
                    sums::widen(self.lanes, &*half, single);
                    self.add(turn, &elements, start + at, &*single);
                }),
            },
        );
        self.report.decode_ns += nanoseconds(start);
    }

    fn fold(&mut self, turn: Turn, elements: Range<usize>, theirs: &Taken<'_>, offset: usize) {
        let start = Instant::now();
        let length = elements.len();
        match self.number {
            Dense::F32 => {
                let values = theirs.values::<f32>(offset, length);
                for at in (0..length).step_by(SINGLES) {
                    self.add(turn, &elements, at, values.part(at, SINGLES));
                }
            }
            Dense::Bf16 => widened(self.lanes, theirs.values(offset, length), |at, values| {
                self.add(turn, &elements, at, values);
            }),
        }
        self.report.decode_ns += nanoseconds(start);
    }

    fn trailer(&self) -> usize {
        size_of::<u64>() * self.dropped.len()
    }

    fn publish_reduced(
        &mut self,
        chunk: u64,
        elements: Range<usize>,
        last: bool,
        into: &mut WriteGrant<'_, '_>,
    ) {
        let (number, lanes, length) = (self.number, self.lanes, elements.len());
        let sum = &*self.sum(chunk, length);
        let mut whole = true;
        match number {
            Dense::F32 => whole = into.write(0, bytemuck::cast_slice(sum)),
            Dense::Bf16 => in_pieces(Values::F32(sum), |at, piece| {
                // Rounded before, so that this takes nothing away.
                let mut room = [0_u16; SINGLES];
                let room = &mut room[..piece.len()];
                sums::round(lanes, piece, room);
                whole &= into.write(2 * at, bytemuck::cast_slice(room));
            }),
        }
        if last {
            whole &= into.write(number.bytes() * length, bytemuck::cast_slice(&self.dropped));
        }
        debug_assert!(whole, "it was reserved for these");
    }

    fn take_own_reduced(&mut self, chunk: u64, elements: Range<usize>) {
        let start = Instant::now();
        self.apply_own(chunk, elements);
        self.report.decode_ns += nanoseconds(start);
    }

    fn take_reduced(&mut self, elements: Range<usize>, last: bool, theirs: &Taken<'_>) {
        let start = Instant::now();
        let (number, lanes, apply, scale) = (self.number, self.lanes, self.asked.apply, self.scale);
        let length = elements.len();
        let target = &mut *self.asked.target;
        let mut met = 0;
        match number {
            Dense::F32 => {
                let values = theirs.values::<f32>(0, length);
                let mut at = 0;
                target.each(elements, &mut |part| {
                    met += Self::apply(lanes, apply, scale, values.part(at, part.len()), part);
                    at += part.len();
                });
            }
            Dense::Bf16 => widened(lanes, theirs.values(0, length), |at, mut values| {
                let start = elements.start + at;
                target.each(start..start + values.len(), &mut |part| {
                    let (now, rest) = values.split_at(part.len());
                    values = rest;
                    met += Self::apply(lanes, apply, scale, now, part);
                });
            }),
        }
        self.report.parameters_not_finite += met;
        if last {
            for (rank, elsewhere) in self.elsewhere.iter_mut().enumerate() {
                let mut count = [0; size_of::<u64>()];
                let at = number.bytes() * length + size_of::<u64>() * rank;
                let whole = theirs.read(at, &mut count);
                debug_assert!(whole, "the length has been compared");
                *elsewhere = elsewhere.saturating_add(u64::from_le_bytes(count));
            }
        }
        self.report.decode_ns += nanoseconds(start);
    }
}

/// Hands a frame's values over as f32, piece by piece, with the place of each.
fn widened(lanes: Lanes, values: Raw<'_, u16>, mut with: impl FnMut(usize, &[f32])) {
    let mut wide = [0.0_f32; SINGLES];
    for at in (0..values.len()).step_by(SINGLES) {
        let part = values.part(at, SINGLES);
        let wide = &mut wide[..part.len()];
        sums::widen(lanes, part, wide);
        with(at, wide);
    }
}
