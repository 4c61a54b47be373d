//! Steps whose update comes part by part, as a trainer's backward pass makes it.
//!
//! Each part is added to the residual as it comes; a chunk all of whose elements have come is complete, and can be encoded
//! while others are still to come. So that its threshold is known by then, it is made of a sample of the step before,
//! which that step gathers from each chunk on its way out: as many |s|, at places as evenly spread, as a sample taken
//! before the step would be of.

use super::on_processor::Plan;
use super::{Encoder, Message};
use crate::codec::encode::{EncodeError, accumulate};
use crate::codec::given::Given;
use crate::codec::ranges::ChunkCoding;
use crate::codec::values::Values;
use std::ops::Range;

/// What a GPU does not do.
const STREAMED: &str = "a streamed step";

/// What has come of a streamed step.
#[derive(Default)]
pub(super) struct Stream {
    is_open: bool,
    /// Of each chunk.
    chunks: Vec<State>,
    encoded: usize,
    /// What has been pushed: ascending, with something missing between any two.
    pushed: Vec<Range<usize>>,
    /// Parts so far.
    parts: usize,
}

#[derive(Clone, Copy)]
enum State {
    /// So many elements are missing; complete with none.
    Missing(usize),
    Encoded,
}

impl Stream {
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Chunks encoded so far.
    pub(super) fn encoded(&self) -> usize {
        self.encoded
    }

    fn begin(&mut self, chunks: impl Iterator<Item = usize>) {
        // Pushed in the same parts, whatever their order, later steps need no memory.
        self.pushed.clear();
        self.pushed.reserve(self.parts + 1);
        self.chunks.clear();
        self.chunks.extend(chunks.map(State::Missing));
        (self.parts, self.encoded, self.is_open) = (0, 0, true);
    }

    /// Notes elements, of which none may have come before.
    fn note(&mut self, elements: &Range<usize>) -> Result<(), EncodeError> {
        let Range { start, end } = *elements;
        let at = self.pushed.partition_point(|pushed| pushed.end < start);
        // The first that ends at or after the start, and the one behind it.
        let around = &self.pushed[at..];
        for pushed in around.iter().take(2) {
            let both = start.max(pushed.start)..end.min(pushed.end);
            if !both.is_empty() {
                let Range { start, end } = both;
                return Err(EncodeError::Overlap { start, end });
            }
        }
        self.parts += 1;
        let touches_before = around.first().is_some_and(|pushed| pushed.end == start);
        let next = at + usize::from(touches_before);
        let touches_next = self
            .pushed
            .get(next)
            .is_some_and(|pushed| pushed.start == end);
        match (touches_before, touches_next) {
            (false, false) => self.pushed.insert(at, start..end),
            (true, false) => self.pushed[at].end = end,
            (false, true) => self.pushed[at].start = start,
            (true, true) => {
                self.pushed[at].end = self.pushed[next].end;
                self.pushed.remove(next);
            }
        }
        Ok(())
    }

    /// The first elements that have not come.
    fn first_missing(&self, elements: usize) -> Option<Range<usize>> {
        let (from, rest) = match self.pushed.first() {
            Some(first) if first.start == 0 => (first.end, &self.pushed[1..]),
            _ => (0, &self.pushed[..]),
        };
        let to = rest.first().map_or(elements, |pushed| pushed.start);
        (from < to).then_some(from..to)
    }
}

impl Encoder {
    /// Begins a step whose update comes in parts: [`push`](Self::push) adds each to the residual,
    /// [`encode_complete`](Self::encode_complete) sends a chunk of which nothing is missing any more, and
    /// [`end`](Self::end) ends the step.
    ///
    /// Thresholds are made of samples that were gathered during the step before, if that was a streamed one too;
    /// otherwise of the first chunk of each scope that is complete. A limit is spent in the order in which chunks are
    /// encoded. All of it happens on the caller's thread.
    ///
    /// # Errors
    /// [`EncodeError::StreamedClipping`] with a momentum memory that clips; [`EncodeError::OnGpu`];
    /// [`EncodeError::Unfinished`] when the step before has not ended. Nothing has changed then.
    pub fn begin_streamed(&mut self, step: u64) -> Result<(), EncodeError> {
        self.check_streams()?;
        self.check_closed()?;
        self.begin_anew(step, false);
        for scope in &mut self.scopes {
            scope.choose_streamed(step);
        }
        let lengths = self.chunks.iter().map(|chunk| chunk.elements.len());
        self.stream.begin(lengths);
        Ok(())
    }

    /// Adds a part of the update, of any length, which is that of `elements`, to the residual, and appends the numbers of
    /// the chunks that have become complete by it to `complete`. With a momentum memory the part is one of the gradient.
    /// Every element must be pushed once a step; the order is free. A chunk that a part of about its size completes is
    /// still in the cache when it is encoded next.
    ///
    /// # Errors
    /// [`EncodeError::NotStreamed`]; [`EncodeError::Part`] of elements that the vector does not have,
    /// [`EncodeError::Lengths`] of a part of another length than its elements, [`EncodeError::Overlap`] of what has been
    /// pushed before. Nothing has changed then.
    pub fn push<'a>(
        &mut self,
        elements: Range<usize>,
        part: impl Into<Values<'a>>,
        complete: &mut Vec<usize>,
    ) -> Result<(), EncodeError> {
        let part = part.into();
        if !self.stream.is_open {
            return Err(EncodeError::NotStreamed);
        }
        let Range { start, end } = elements;
        if start > end || end > self.elements() {
            return Err(EncodeError::Part {
                start,
                end,
                elements: self.elements(),
            });
        }
        let (expected, found) = (end - start, part.len());
        if found != expected {
            return Err(EncodeError::Lengths { expected, found });
        }
        if elements.is_empty() {
            return Ok(());
        }
        let home = self.home.processor(STREAMED)?;
        self.stream.note(&elements)?;
        let kernels = self.path.kernels();
        let first = self
            .chunks
            .partition_point(|chunk| chunk.elements.end <= start);
        for number in first..self.chunks.len() {
            let chunk = &self.chunks[number];
            let now = start.max(chunk.elements.start)..end.min(chunk.elements.end);
            if now.is_empty() {
                break;
            }
            let mut update = part.slice(now.start - start..now.end - start);
            if let Some(memory) = &mut self.memory {
                self.stats.dropped += memory.accumulate_part(now.clone(), update);
                update = Values::F32(&memory.velocity()[now.clone()]);
            }
            let residual = &mut home.residual[now.clone()];
            let given = Given::Slice(update);
            self.stats.dropped += u64::from(accumulate(kernels, residual, given.cursor()));
            if let State::Missing(left) = &mut self.stream.chunks[number] {
                *left -= now.len();
                if *left == 0 {
                    complete.push(number);
                    if let ChunkCoding::Threshold(scope) = chunk.coding {
                        let residual = &home.residual[chunk.elements.clone()];
                        self.scopes[scope].choose_by_chunk(
                            self.path,
                            residual,
                            self.step,
                            &mut self.magnitudes,
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Encodes a chunk of a streamed step, of which nothing is missing. Each must be encoded once, in any order.
    ///
    /// # Errors
    /// [`EncodeError::NotStreamed`]; [`EncodeError::Chunk`] past the last chunk; [`EncodeError::Incomplete`] while some of
    /// it is missing; [`EncodeError::Again`] of one that has been encoded. Nothing has changed then.
    pub fn encode_complete(&mut self, chunk: usize) -> Result<Message, EncodeError> {
        if !self.stream.is_open {
            return Err(EncodeError::NotStreamed);
        }
        match self.stream.chunks.get(chunk) {
            None => {
                return Err(EncodeError::Chunk {
                    expected: self.chunks(),
                    found: chunk,
                });
            }
            Some(&State::Missing(left)) if left > 0 => {
                return Err(EncodeError::Incomplete { chunk, left });
            }
            Some(State::Encoded) => return Err(EncodeError::Again { chunk }),
            Some(State::Missing(_)) => {}
        }
        let home = self.home.processor(STREAMED)?;
        self.stream.chunks[chunk] = State::Encoded;
        self.stream.encoded += 1;
        let (kernels, place) = (self.path.kernels(), &self.chunks[chunk]);
        if let ChunkCoding::Threshold(scope) = place.coding {
            let residual = &home.residual[place.elements.clone()];
            let elements = place.elements.clone();
            self.scopes[scope].gather(kernels, elements, residual, &mut self.magnitudes);
        }
        let plan = Plan {
            kernels,
            chunks: &self.chunks,
            scopes: &self.scopes,
            first: self.first,
        };
        home.fill_complete(plan, chunk);
        self.finish(chunk)
    }

    /// Gives up a streamed step of which nothing has been encoded: what has been pushed stays in the residual, and goes
    /// out later. What was dropped counts for the next step, and policies do not hear of this one.
    ///
    /// # Errors
    /// [`EncodeError::NotStreamed`]; [`EncodeError::Unfinished`] when chunks have been encoded: what they sent is out.
    /// Nothing has changed then.
    pub fn abandon_streamed(&mut self) -> Result<(), EncodeError> {
        if !self.stream.is_open {
            return Err(EncodeError::NotStreamed);
        }
        if self.stream.encoded > 0 {
            return self.check_closed();
        }
        self.stream.is_open = false;
        self.unreported = self.stats.dropped;
        for scope in &mut self.scopes {
            scope.give_up();
        }
        Ok(())
    }

    /// Whether steps can be streamed: local clipping needs the whole gradient's norm first, and a GPU encodes all of a step
    /// at once.
    pub(crate) fn check_streams(&self) -> Result<(), EncodeError> {
        self.home.check_processor(STREAMED)?;
        if self.memory.as_ref().is_some_and(|memory| memory.clips()) {
            return Err(EncodeError::StreamedClipping);
        }
        Ok(())
    }

    /// Whether everything of the step has been pushed.
    pub(crate) fn check_pushed(&self) -> Result<(), EncodeError> {
        match self.stream.first_missing(self.elements()) {
            None => Ok(()),
            Some(Range { start, end }) => Err(EncodeError::Missing { start, end }),
        }
    }

    pub(super) fn end_stream(&mut self) -> Result<(), EncodeError> {
        self.check_pushed()?;
        if self.stream.encoded < self.chunks() {
            return self.check_closed();
        }
        self.stream.is_open = false;
        for scope in &mut self.scopes {
            scope.end_streamed();
        }
        Ok(())
    }
}
