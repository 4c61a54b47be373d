//! One external update, and its chunks' records.

use super::SourceError;
use crate::codec::format::{bitmap_len, sparse_len};
use crate::codec::{BLOCK, Format, canon};
use std::ops::Range;

/// An update that comes from outside, of all elements of an exchange: hits of one value, or a dense vector.
///
/// It is subtracted from the parameters (or added to the sum) as a replica's own update would be.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalUpdate {
    pub(super) elements: usize,
    pub(super) content: Content,
}

/// Its numbers. All are canonical and finite.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Elements that are all one value, or its negative; ascending.
    Hits { value: f32, hits: Vec<Hit> },
    /// Some elements, ascending, and what they are.
    Some(Vec<(usize, f32)>),
    /// All elements.
    All(Vec<f32>),
}

/// An element, and in the lowest bit whether it is negative: ordered as the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hit(u64);

impl Hit {
    pub(super) fn new(element: usize, is_negative: bool) -> Hit {
        Hit((element as u64) << 1 | u64::from(is_negative))
    }

    pub(super) fn element(self) -> usize {
        (self.0 >> 1) as usize
    }

    pub(super) fn is_negative(self) -> bool {
        self.0 & 1 == 1
    }

    /// What it sends.
    pub(super) fn of(self, value: f32) -> f32 {
        if self.is_negative() { -value } else { value }
    }
}

impl ExternalUpdate {
    /// An update of `elements`, those of `hits` being `value`, or `-value` where the second is true, all others 0.
    ///
    /// # Errors
    /// [`SourceError::Value`] unless the value is at least 2^-126 and finite; [`SourceError::Element`],
    /// [`SourceError::Order`] unless the hits are inside, ascending.
    pub fn hits(
        elements: usize,
        value: f32,
        hits: impl IntoIterator<Item = (usize, bool)>,
    ) -> Result<ExternalUpdate, SourceError> {
        let mut ascending: Vec<Hit> = Vec::new();
        for (hit, (element, is_negative)) in hits.into_iter().enumerate() {
            if element >= elements {
                return Err(SourceError::Element {
                    hit,
                    expected: elements,
                    found: element,
                });
            }
            if let Some(previous) = ascending.last()
                && previous.element() >= element
            {
                return Err(SourceError::Order {
                    hit,
                    previous: previous.element(),
                    found: element,
                });
            }
            ascending.push(Hit::new(element, is_negative));
        }
        ExternalUpdate::of_hits(elements, value, ascending)
    }

    /// The same of hits that are inside and ascend.
    pub(super) fn of_hits(
        elements: usize,
        value: f32,
        hits: Vec<Hit>,
    ) -> Result<ExternalUpdate, SourceError> {
        if !(f32::MIN_POSITIVE..=f32::MAX).contains(&value) {
            return Err(SourceError::Value { found: value });
        }
        Ok(ExternalUpdate {
            elements,
            content: Content::Hits { value, hits },
        })
    }

    /// An update of these values. Subnormals and -0 become +0.
    ///
    /// # Errors
    /// [`SourceError::NotFinite`].
    pub fn dense(mut values: Vec<f32>) -> Result<ExternalUpdate, SourceError> {
        let mut all_finite = true;
        for x in &mut values {
            *x = canon(*x);
            all_finite &= x.is_finite();
        }
        if !all_finite && let Some(element) = values.iter().position(|x| !x.is_finite()) {
            return Err(SourceError::NotFinite {
                element,
                found: values[element],
            });
        }
        Ok(ExternalUpdate {
            elements: values.len(),
            content: Content::All(values),
        })
    }

    /// How many elements it has.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// All elements that are not 0, ascending, and what they are.
    pub fn values(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        self.nonzero(0..self.elements)
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let numbers = match &self.content {
            Content::Hits { hits, .. } => size_of_val(&hits[..]),
            Content::Some(pairs) => size_of_val(&pairs[..]),
            Content::All(values) => size_of_val(&values[..]),
        };
        size_of::<Self>() + numbers
    }

    /// The elements of `range` that are not 0, ascending.
    fn nonzero(&self, range: Range<usize>) -> Nonzero<'_> {
        let inside = range.start.min(self.elements)..range.end.min(self.elements);
        match &self.content {
            Content::Hits { value, hits } => {
                let at = |end: usize| hits.partition_point(|hit| hit.element() < end);
                Nonzero::Hits(*value, hits[at(inside.start)..at(inside.end)].iter())
            }
            Content::Some(pairs) => {
                let at = |end: usize| pairs.partition_point(|(element, _)| *element < end);
                Nonzero::Some(pairs[at(inside.start)..at(inside.end)].iter())
            }
            Content::All(values) => {
                let start = inside.start;
                Nonzero::All(start, values[inside].iter())
            }
        }
    }

    /// The magnitude that all elements of `chunk` that are not 0 have; +0 if all are; `None` if they differ.
    pub(super) fn magnitude(&self, chunk: Range<usize>) -> Option<f32> {
        let mut all = self.nonzero(chunk);
        let Some((_, first)) = all.next() else {
            return Some(0.0);
        };
        let first = first.abs();
        // A single content of hits says so itself.
        let same =
            matches!(self.content, Content::Hits { .. }) || all.all(|(_, x)| x.abs() == first);
        same.then_some(first)
    }

    /// One record of the chunk of these elements, of which there are at most [`CHUNK`](crate::codec::CHUNK): appends its
    /// payload to `out`; its format, its hits, and what a hit counts (1 where it is dense).
    ///
    /// Where all that is not 0 has one magnitude, the chunk has one record, of hits, sparse or as a bitmap, whichever is
    /// smaller; `piece` is 0 then. Else it has as many dense records as it has blocks, and this is number `piece`.
    pub(crate) fn chunk_record(
        &self,
        chunk: &Range<usize>,
        piece: usize,
        out: &mut Vec<u8>,
    ) -> (Format, u32, f32) {
        if let Some(value) = self.magnitude(chunk.clone()) {
            let hits = self
                .nonzero(chunk.clone())
                .map(|(element, x)| (element - chunk.start, x < 0.0));
            let (format, hits) = write_hits(chunk.len(), hits, out);
            return (format, hits, value);
        }
        let start = (chunk.start + piece * BLOCK).min(chunk.end);
        let block = start..(start + BLOCK).min(chunk.end);
        let before = out.len();
        out.resize(before + 4 * block.len(), 0);
        let values = &mut out[before..];
        for (element, x) in self.nonzero(block) {
            let at = 4 * (element - start);
            values[at..at + 4].copy_from_slice(&x.to_le_bytes());
        }
        (Format::DenseF32, 0, 1.0)
    }
}

/// Elements that are not 0.
#[derive(Clone)]
enum Nonzero<'a> {
    Hits(f32, std::slice::Iter<'a, Hit>),
    Some(std::slice::Iter<'a, (usize, f32)>),
    All(usize, std::slice::Iter<'a, f32>),
}

impl Iterator for Nonzero<'_> {
    type Item = (usize, f32);

    fn next(&mut self) -> Option<(usize, f32)> {
        match self {
            Nonzero::Hits(value, hits) => hits.next().map(|hit| (hit.element(), hit.of(*value))),
            Nonzero::Some(pairs) => pairs.find(|(_, x)| *x != 0.0).copied(),
            Nonzero::All(next, values) => loop {
                let x = *values.next()?;
                *next += 1;
                if x != 0.0 {
                    return Some((*next - 1, x));
                }
            },
        }
    }
}

/// Appends the smaller payload of these hits of a chunk of `elements`, sparse when equal; its format and its hits.
fn write_hits(
    elements: usize,
    hits: impl Iterator<Item = (usize, bool)> + Clone,
    out: &mut Vec<u8>,
) -> (Format, u32) {
    let count = hits.clone().count();
    let before = out.len();
    if sparse_len(elements, count) > bitmap_len(elements) {
        out.resize(before + bitmap_len(elements), 0);
        let bitmap = &mut out[before..];
        for (element, is_negative) in hits {
            bitmap[element / 4] |= if is_negative { 0b10 } else { 0b01 } << (2 * (element % 4));
        }
        return (Format::Bitmap, count as u32);
    }
    let blocks = elements.div_ceil(BLOCK);
    out.resize(before + 2 * blocks, 0);
    let mut counts = vec![0_u16; blocks];
    for (element, is_negative) in hits {
        counts[element / BLOCK] += 1;
        let code = (element % BLOCK) as u16 | u16::from(is_negative) << 15;
        out.extend_from_slice(&code.to_le_bytes());
    }
    for (bytes, count) in out[before..].chunks_exact_mut(2).zip(counts) {
        bytes.copy_from_slice(&count.to_le_bytes());
    }
    (Format::Sparse, count as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Apply, CHUNK, Path, Record};

    /// What a replica gets of it, chunk by chunk; the formats that there were.
    fn applied(update: &ExternalUpdate, chunk: usize) -> (Vec<f32>, Vec<Format>) {
        let mut target = vec![0.0; update.elements()];
        let mut formats = Vec::new();
        for start in (0..update.elements()).step_by(chunk) {
            let chunk = start..(start + chunk).min(update.elements());
            let mut piece = 0;
            loop {
                let mut payload = vec![1, 2, 3];
                let (format, hits, value) = update.chunk_record(&chunk, piece, &mut payload);
                formats.push(format);
                let of = match format.dense() {
                    None => chunk.clone(),
                    Some(_) => {
                        let start = chunk.start + piece * BLOCK;
                        start..(start + BLOCK).min(chunk.end)
                    }
                };
                let record = Record {
                    format,
                    hits,
                    elements: of.len(),
                    payload: &payload[3..],
                };
                let end = of.end;
                Path::best()
                    .apply(&record, value, Apply::Add, &mut target[of])
                    .unwrap();
                if end == chunk.end {
                    break;
                }
                piece += 1;
            }
        }
        (target, formats)
    }

    fn values(update: &ExternalUpdate) -> Vec<f32> {
        let mut values = vec![0.0; update.elements()];
        for (element, x) in update.values() {
            values[element] = x;
        }
        values
    }

    #[test]
    fn hits_become_the_smaller_of_sparse_and_bitmap_whatever_the_chunks() {
        let elements = CHUNK + 77;
        let hits = (0..elements).filter(|i| i % 1000 == 3 || (70_000..90_000).contains(i));
        let update =
            ExternalUpdate::hits(elements, 0.3, hits.map(|i| (i, i.is_multiple_of(2)))).unwrap();
        for chunk in [CHUNK, BLOCK, 1000, 33] {
            let (target, formats) = applied(&update, chunk);
            assert_eq!(target, values(&update));
            assert!(formats.contains(&Format::Sparse));
            assert_eq!(formats.contains(&Format::Bitmap), chunk < CHUNK);
        }
    }

    #[test]
    fn a_dense_update_is_dense_only_where_its_magnitudes_differ() {
        let elements = 2 * CHUNK + 100;
        let mut x = vec![0.0; elements];
        (x[5], x[CHUNK - 1]) = (0.5, -0.5);
        (x[CHUNK + 1], x[2 * CHUNK - 1]) = (0.5, -0.25);
        let update = ExternalUpdate::dense(x.clone()).unwrap();
        let (target, formats) = applied(&update, CHUNK);
        assert_eq!(target, x);
        let mut expected = vec![Format::Sparse];
        expected.extend([Format::DenseF32; 8]);
        expected.push(Format::Sparse);
        assert_eq!(formats, expected);
    }

    #[test]
    fn wrong_updates_are_refused_with_their_place() {
        let hits = |value, hits: &[(usize, bool)]| ExternalUpdate::hits(4, value, hits.to_vec());
        for value in [0.0, -1.0, 1e-40, f32::INFINITY, f32::NAN] {
            assert!(matches!(hits(value, &[]), Err(SourceError::Value { .. })));
        }
        assert!(matches!(
            hits(1.0, &[(1, false), (4, true)]),
            Err(SourceError::Element {
                hit: 1,
                expected: 4,
                found: 4
            })
        ));
        for second in [0, 1] {
            assert!(matches!(
                hits(1.0, &[(1, false), (second, true)]),
                Err(SourceError::Order {
                    hit: 1,
                    previous: 1,
                    ..
                })
            ));
        }
        for wrong in [f32::NAN, f32::NEG_INFINITY] {
            assert!(matches!(
                ExternalUpdate::dense(vec![1.0, wrong]),
                Err(SourceError::NotFinite { element: 1, .. })
            ));
        }
        let update = ExternalUpdate::dense(vec![-0.0, 1e-40, 2.0]).unwrap();
        assert_eq!(update.values().collect::<Vec<_>>(), [(2, 2.0)]);
    }
}
