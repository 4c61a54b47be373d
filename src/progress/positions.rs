//! Sets of positions: which samples of a data loop's order are done, and which remain.

use std::ops::Range;

/// Positions in the order of a loop, as ascending ranges that are not empty and neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Positions(Vec<Range<u64>>);

impl Positions {
    /// All positions of these ranges, which may come in any order, overlap and be empty.
    pub(crate) fn of(mut pieces: Vec<Range<u64>>) -> Self {
        pieces.sort_unstable_by_key(|piece| (piece.start, piece.end));
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for piece in pieces {
            match ranges.last_mut() {
                _ if piece.is_empty() => {}
                Some(last) if piece.start <= last.end => last.end = last.end.max(piece.end),
                _ => ranges.push(piece),
            }
        }
        Self(ranges)
    }

    /// What a state says: pairs of begin and end. `None` where they are not as these ranges are, or reach past `end`.
    pub(crate) fn from_numbers(numbers: &[u64], end: u64) -> Option<Self> {
        let (pairs, rest) = numbers.as_chunks::<2>();
        let mut ranges = Vec::with_capacity(pairs.len());
        let mut least = 0;
        for &[start, stop] in pairs {
            // The first may begin at 0; after that one position at least is left out.
            if start < least || start >= stop || stop > end {
                return None;
            }
            ranges.push(start..stop);
            least = stop.checked_add(1)?;
        }
        rest.is_empty().then_some(Self(ranges))
    }

    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Of the positions below `end` those that are not here.
    pub(crate) fn others(&self, end: u64) -> Sequence {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        let mut start = 0;
        for range in &self.0 {
            if start < range.start {
                ranges.push(start..range.start);
            }
            start = range.end;
        }
        if start < end {
            ranges.push(start..end);
        }
        Sequence::new(ranges)
    }
}

/// The same as a sequence: its i-th element is the i-th lowest position.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    ranges: Vec<Range<u64>>,
    /// How many positions stand in the ranges up to each one, itself included.
    up_to: Vec<u64>,
}

impl Sequence {
    fn new(ranges: Vec<Range<u64>>) -> Self {
        let up_to = ranges.iter().scan(0, |sum, range| {
            *sum += range.end - range.start;
            Some(*sum)
        });
        Self {
            up_to: up_to.collect(),
            ranges,
        }
    }

    /// How many positions there are.
    pub(crate) fn len(&self) -> u64 {
        self.up_to.last().copied().unwrap_or(0)
    }

    /// The ranges of positions that elements `part` are.
    pub(crate) fn slice(&self, part: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.up_to.partition_point(|&up_to| up_to <= part.start);
        let ranges = self.ranges[first..].iter().zip(&self.up_to[first..]);
        ranges
            .map(move |(range, &up_to)| {
                let before = up_to - (range.end - range.start);
                let start = part.start.max(before);
                let end = part.end.min(up_to).max(start);
                range.start + (start - before)..range.start + (end - before)
            })
            .take_while(|range| !range.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::Positions;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::ops::Range;

    fn pieces() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0..60_u64, 0..9_u64).prop_map(|(at, n)| at..at + n), 0..12)
    }

    proptest! {
        #[test]
        fn ranges_are_the_set_of_their_positions(pieces in pieces()) {
            let set: BTreeSet<u64> = pieces.iter().cloned().flatten().collect();
            let positions = Positions::of(pieces);
            prop_assert!(positions.0.iter().cloned().flatten().eq(set.iter().copied()));
            prop_assert!(positions.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            let numbers: Vec<u64> = positions.0.iter().flat_map(|range| [range.start, range.end]).collect();
            prop_assert_eq!(Positions::from_numbers(&numbers, 70), Some(positions.clone()));
            let others = positions.others(70);
            let expected: Vec<u64> = (0..70).filter(|at| !set.contains(at)).collect();
            prop_assert_eq!(others.len(), expected.len() as u64);
            for start in 0..=expected.len() {
                for end in start..=expected.len() {
                    let found: Vec<u64> = others.slice(start as u64..end as u64).flatten().collect();
                    prop_assert_eq!(&found, &expected[start..end]);
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_no_such_ranges_are_refused() {
        for numbers in [
            &[0_u64, 1, 2][..],
            &[3, 3],
            &[4, 3],
            &[0, 2, 2, 4],
            &[0, 5, 3, 8],
            &[5, 8, 0, 2],
            &[0, 11],
            &[u64::MAX, u64::MAX],
            &[0, u64::MAX],
        ] {
            assert_eq!(Positions::from_numbers(numbers, 10), None, "{numbers:?}");
        }
        assert_eq!(
            Positions::from_numbers(&[0, u64::MAX, 0, 1], u64::MAX),
            None
        );
    }
}
