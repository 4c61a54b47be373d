//! A step: thresholds first, then chunk after chunk.

use super::home::Home;
use super::on_processor::Plan;
use super::slot::Aim;
use super::{Encoder, Message};
use crate::codec::draft::each_hit;
use crate::codec::encode::{Budget, ChunkOptions, EncodeError, Encoded};
use crate::codec::given::Given;
use crate::codec::memory::Velocity;
use crate::codec::post::PostInput;
use crate::codec::ranges::{ChunkCoding, visited};
use crate::codec::stats::{ResidualPercentiles, StepStats};
use crate::codec::{Format, Unit, dense};
use std::ops::Range;

impl Encoder {
    /// Begins step number `step` (from 0): takes the update into the momentum memory, if there is one, and chooses the
    /// thresholds.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when the update has another length than the vector; [`EncodeError::InResidual`] with a
    /// momentum memory; [`EncodeError::OnDevice`] of an update on a GPU for an encoder that is not;
    /// [`EncodeError::Unfinished`] when the step before has not [ended](Self::end). Nothing has changed then.
    /// `EncodeError::Gpu`: no step has begun. If that is final (`GpuError::is_final`), the residual is lost, but for what
    /// `EncoderBuilder::snapshot_every` has copied.
    pub fn begin<'a>(
        &mut self,
        step: u64,
        update: impl Into<Given<'a>>,
    ) -> Result<(), EncodeError> {
        let update = update.into();
        self.check(update)?;
        self.check_closed()?;
        // The pass of what is in the residual does it by itself.
        self.begin_anew(step, matches!(update, Given::InResidual));
        match self.home {
            Home::Processor(_) => self.choose(update),
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => self.begin_on_gpu(update)?,
        }
        self.next = Some(0);
        Ok(())
    }

    /// Takes the update into the momentum memory, and chooses the thresholds of a step on the processor.
    pub(super) fn choose(&mut self, update: Given<'_>) {
        let update = match &mut self.memory {
            Some(memory) => {
                self.stats.dropped += memory.accumulate(update);
                memory.values()
            }
            None => update,
        };
        let residual = self.home.residual();
        for scope in &mut self.scopes {
            scope.choose(self.path, residual, update, self.step, &mut self.magnitudes);
        }
    }

    /// Visits the chunks of the step that has begun from this one on, instead of from number `step mod chunks`: before the
    /// first visit, for exchanges that cannot always send all of them.
    pub(crate) fn visit_from(&mut self, chunk: usize) {
        debug_assert_eq!(self.next, Some(0), "before the first visit");
        debug_assert!(self.home.check_processor("another order").is_ok());
        self.first = chunk as u64;
    }

    /// Refuses while a step is under way.
    pub(super) fn check_closed(&self) -> Result<(), EncodeError> {
        let found = if self.stream.is_open() {
            Some(self.stream.encoded())
        } else {
            self.next
        };
        match found {
            None => Ok(()),
            Some(found) => Err(EncodeError::Unfinished {
                expected: self.chunks(),
                found,
            }),
        }
    }

    /// What each kind of step begins with.
    pub(super) fn begin_anew(&mut self, step: u64, reads_in_place: bool) {
        self.step = step;
        self.first = step;
        self.stats = StepStats {
            dropped: std::mem::take(&mut self.unreported),
            ..StepStats::default()
        };
        if let Some(hits) = &mut self.hits {
            hits.clear();
        }
        match &mut self.home {
            Home::Processor(home) => self.stats.dropped += home.begin(reads_in_place),
            #[cfg(feature = "gpu")]
            Home::Gpu(home) => home.begin(),
        }
    }

    /// Whether a step can be made of this update.
    pub(crate) fn check(&self, update: Given<'_>) -> Result<(), EncodeError> {
        self.check_length(update)?;
        #[cfg(feature = "gpu")]
        if let Home::Gpu(home) = &self.home {
            home.check_slices(update)?;
        }
        Ok(())
    }

    /// The part of it that each visit asks for again.
    fn check_length(&self, update: Given<'_>) -> Result<(), EncodeError> {
        if self.memory.is_some() && matches!(update, Given::InResidual) {
            return Err(EncodeError::InResidual);
        }
        self.home.check_length(self.elements(), update)
    }

    /// Encodes the chunk that is visited as number `visit` in the step that has begun. Each must be visited once, in
    /// order, with the same update.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when the update has another length than the vector; [`EncodeError::NotBegun`];
    /// [`EncodeError::Visit`] past the last chunk, [`EncodeError::Turn`] when it is another one's turn. Nothing has
    /// changed then.
    pub fn encode<'a>(
        &mut self,
        visit: usize,
        update: impl Into<Given<'a>>,
    ) -> Result<Message, EncodeError> {
        let number = self.take_turn(visit, update.into(), Aim::Send)?;
        self.finish(number)
    }

    /// Takes a visit's turn, but sends nothing: all that the chunk has stays in the residual, and no post-processor takes
    /// any of it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`EncodeError::OnGpu`] on a GPU, which encodes all chunks when the step begins.
    pub fn accumulate<'a>(
        &mut self,
        visit: usize,
        update: impl Into<Given<'a>>,
    ) -> Result<(), EncodeError> {
        self.home.check_processor("a visit that sends nothing")?;
        let number = self.take_turn(visit, update.into(), Aim::Keep)?;
        let (kernels, chunk) = (self.path.kernels(), &self.chunks[number]);
        let home = self.home.processor("a visit that sends nothing")?;
        let (dropped, most, l1) = home.keep(kernels, chunk);
        self.stats.residual_max = self.stats.residual_max.max(most);
        self.stats.residual_l1 += l1;
        self.stats.dropped += u64::from(dropped);
        Ok(())
    }

    /// Makes the visit's chunk the one that is sent or kept next. Its number.
    fn take_turn(
        &mut self,
        visit: usize,
        update: Given<'_>,
        aim: Aim,
    ) -> Result<usize, EncodeError> {
        self.check_length(update)?;
        if self.stream.is_open() {
            return Err(EncodeError::Streamed);
        }
        let next = self.next.ok_or(EncodeError::NotBegun)?;
        if visit >= self.chunks() {
            return Err(EncodeError::Visit {
                expected: self.chunks(),
                found: visit,
            });
        }
        if visit != next {
            return Err(EncodeError::Turn {
                expected: next,
                found: visit,
            });
        }
        let update = self.memory.as_ref().map_or(update, Velocity::values);
        let plan = Plan {
            kernels: self.path.kernels(),
            chunks: &self.chunks,
            scopes: &self.scopes,
            first: self.first,
        };
        match &mut self.home {
            Home::Processor(home) => home.take_turn(plan, visit, update, aim),
            // All chunks have been encoded when the step began.
            #[cfg(feature = "gpu")]
            Home::Gpu(_) => {}
        }
        // Whatever becomes of it, a chunk is finished once: what stands in its slot is used up by that.
        self.next = Some(visit + 1);
        Ok(visited(self.first, visit, self.chunks.len()))
    }

    /// The second stage of the chunk whose turn it is.
    pub(super) fn finish(&mut self, number: usize) -> Result<Message, EncodeError> {
        let chunk = &self.chunks[number];
        let unit = match chunk.coding {
            ChunkCoding::Threshold(scope) => {
                let unit = self.scopes[scope].stats.unit;
                Some(unit.ok_or(EncodeError::NotBegun)?)
            }
            ChunkCoding::Dense(_) => None,
        };
        let encoded = match &mut self.home {
            Home::Processor(home) => {
                let kernels = self.path.kernels();
                match (chunk.coding, unit) {
                    (ChunkCoding::Threshold(scope), Some(unit)) => {
                        let scope = &self.scopes[scope];
                        let post = self.post.as_deref();
                        let options = ChunkOptions {
                            clip: post.and_then(|post| post.clip(self.step)),
                            budget: (scope.left < usize::MAX).then(|| Budget {
                                max_hits: scope.left,
                                start: (self.step as u32).wrapping_mul(0x9E37_79B1) as usize,
                            }),
                        };
                        let mut encoded = home.send_hits(kernels, chunk, unit, &options);
                        if let Some(post) = post {
                            let step = self.step;
                            let input = PostInput { step, unit };
                            home.process(chunk, post, &input, &mut encoded);
                        }
                        encoded
                    }
                    (ChunkCoding::Threshold(_), None) => return Err(EncodeError::NotBegun),
                    (ChunkCoding::Dense(number), _) => home.send_whole(kernels, chunk, number),
                }
            }
            #[cfg(feature = "gpu")]
            Home::Gpu(home) => home.send(number),
        };
        self.note(number, unit, &encoded);
        Ok(Message {
            elements: self.chunks[number].elements.clone(),
            format: encoded.format,
            unit,
            hits: encoded.hits,
        })
    }

    /// Counts what came of a chunk that is sent.
    fn note(&mut self, number: usize, unit: Option<Unit>, encoded: &Encoded) {
        let (chunk, stats) = (&self.chunks[number], &mut self.stats);
        let payload = self.home.payload();
        match encoded.format {
            Format::Sparse => stats.sparse_chunks += 1,
            Format::Bitmap => stats.bitmap_chunks += 1,
            Format::DenseF32 | Format::DenseBf16 => stats.dense_chunks += 1,
        }
        stats.residual_max = stats.residual_max.max(encoded.residual_max);
        stats.residual_l1 += encoded.residual_l1;
        stats.clipped += encoded.clipped;
        stats.dropped += u64::from(encoded.dropped);
        match (chunk.coding, unit) {
            (ChunkCoding::Threshold(scope), Some(unit)) => {
                let scope = &mut self.scopes[scope];
                let hits = u64::from(encoded.hits);
                if scope.left < usize::MAX {
                    scope.left = scope.left.saturating_sub(encoded.hits as usize);
                }
                scope.stats.hits += hits;
                scope.tested += chunk.elements.len();
                scope.mass += encoded.mean * hits as f64;
                stats.hits += hits;
                stats.l1_sent += hits as f64 * f64::from(unit.v());
                if self.memory.is_some() || self.hits.is_some() {
                    let Range { start, end } = chunk.elements;
                    each_hit(encoded.format, end - start, payload, |index| {
                        if let Some(memory) = &mut self.memory {
                            memory.mask(start + index);
                        }
                        if let Some(hits) = &mut self.hits {
                            hits.push(start + index);
                        }
                    });
                }
            }
            (ChunkCoding::Threshold(_), None) => {}
            (ChunkCoding::Dense(number), _) => stats.l1_sent += dense::l1(number, payload),
        }
    }

    /// The payload of the chunk that was encoded last.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.home.payload()
    }

    /// Ends a step all of whose chunks have been encoded: policies hear of it in the next one.
    ///
    /// # Errors
    /// [`EncodeError::Unfinished`] while chunks have not been encoded, [`EncodeError::Missing`] while parts have not been
    /// pushed in a streamed step, [`EncodeError::NotBegun`]; nothing has changed then.
    pub fn end(&mut self) -> Result<(), EncodeError> {
        if self.stream.is_open() {
            self.end_stream()?;
            self.look_back();
            return Ok(());
        }
        let (expected, found) = (self.chunks(), self.next.ok_or(EncodeError::NotBegun)?);
        if found < expected {
            return Err(EncodeError::Unfinished { expected, found });
        }
        self.next = None;
        for scope in &mut self.scopes {
            scope.end();
        }
        self.look_back();
        Ok(())
    }

    /// Makes the percentiles of a step that has ended, where they are wanted.
    fn look_back(&mut self) {
        if let Some((percentiles, room)) = &mut self.percentiles {
            percentiles.clear();
            let residual = self.home.looked_at();
            for scope in &self.scopes {
                let ranges = scope.ranges.iter();
                let residual = ranges.flat_map(|range| &residual[range.clone()]);
                let t = scope.stats.unit.map_or(0.0, Unit::t);
                percentiles.push(ResidualPercentiles::of(residual, t, room));
            }
        }
    }
}
