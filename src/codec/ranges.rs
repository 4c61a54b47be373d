//! Named ranges of a vector, such as a model's layers, and how each is encoded.

use super::policy::ThresholdPolicy;
use super::{BLOCK, CHUNK, Dense};
use std::ops::Range;

/// A named range of a vector: a layer, say. Ranges follow one another and cover the vector.
#[derive(Debug)]
pub struct NamedRange {
    pub(super) name: String,
    pub(super) elements: usize,
    pub(super) coding: Coding,
}

#[derive(Debug)]
pub(super) enum Coding {
    /// With the threshold that all such ranges share.
    Shared,
    /// With a threshold of its own.
    Own(Box<dyn ThresholdPolicy>),
    /// Without compression.
    Dense(Dense),
}

impl NamedRange {
    /// `elements` that are compressed with the same threshold as all other such ranges.
    #[must_use]
    pub fn compressed(name: impl Into<String>, elements: usize) -> NamedRange {
        NamedRange {
            name: name.into(),
            elements,
            coding: Coding::Shared,
        }
    }

    /// `elements` that are sent whole, each step: for biases and norms.
    #[must_use]
    pub fn dense(name: impl Into<String>, elements: usize, number: Dense) -> NamedRange {
        NamedRange {
            name: name.into(),
            elements,
            coding: Coding::Dense(number),
        }
    }

    /// Compressed with a threshold of its own, which `policy` chooses from this range alone.
    #[must_use]
    pub fn with_policy(self, policy: impl ThresholdPolicy + 'static) -> NamedRange {
        NamedRange {
            coding: Coding::Own(Box::new(policy)),
            ..self
        }
    }

    /// What replicas must agree on: everything but the policy's numbers.
    pub(crate) fn agreement(&self) -> String {
        let coding = match &self.coding {
            Coding::Shared => "shared threshold".to_owned(),
            Coding::Own(policy) => format!("own threshold by {}", policy.kind()),
            Coding::Dense(number) => format!("dense {number}"),
        };
        format!("{} ({} elements, {coding})", self.name, self.elements)
    }
}

/// How a chunk is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkCoding {
    /// With the threshold of the scope of this number.
    Threshold(usize),
    /// Without compression.
    Dense(Dense),
}

/// A chunk of a vector: it lies in one range.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) elements: Range<usize>,
    pub(crate) coding: ChunkCoding,
}

/// Cuts ranges into chunks: of up to 8 blocks, or of one block where it is dense, so that each record of values fits one
/// frame.
pub(super) fn chunks(
    ranges: impl IntoIterator<Item = (usize, ChunkCoding)>,
) -> impl Iterator<Item = Chunk> {
    let mut start = 0;
    ranges.into_iter().flat_map(move |(elements, coding)| {
        let range = start..start + elements;
        start += elements;
        let most = match coding {
            ChunkCoding::Threshold(_) => CHUNK,
            ChunkCoding::Dense(_) => BLOCK,
        };
        range.clone().step_by(most).map(move |first| Chunk {
            elements: first..(first + most).min(range.end),
            coding,
        })
    })
}

/// A vector without ranges, all of which is sent dense.
pub(crate) fn in_dense_chunks(elements: usize, number: Dense) -> Vec<Chunk> {
    chunks([(elements, ChunkCoding::Dense(number))]).collect()
}

/// Which of a vector's `chunks` is visited as number `visit` of step `step`: a limit must not starve the last ones.
pub(crate) fn visited(step: u64, visit: usize, chunks: usize) -> usize {
    ((step % chunks as u64) as usize + visit) % chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_chunk_spans_two_ranges_and_all_elements_are_in_one() {
        let ranges = [
            (CHUNK + 1, ChunkCoding::Threshold(0)),
            (3, ChunkCoding::Dense(Dense::F32)),
            (0, ChunkCoding::Threshold(0)),
            (2 * BLOCK + 5, ChunkCoding::Dense(Dense::Bf16)),
            (7, ChunkCoding::Threshold(1)),
        ];
        let chunks: Vec<Chunk> = chunks(ranges).collect();
        let lengths: Vec<usize> = chunks.iter().map(|chunk| chunk.elements.len()).collect();
        assert_eq!(lengths, [CHUNK, 1, 3, BLOCK, BLOCK, 5, 7]);
        assert!(
            chunks
                .windows(2)
                .all(|pair| pair[0].elements.end == pair[1].elements.start)
        );
        assert_eq!(chunks[6].coding, ChunkCoding::Threshold(1));
        assert_eq!(chunks[6].elements.end, CHUNK + 1 + 3 + 2 * BLOCK + 5 + 7);
    }
}
