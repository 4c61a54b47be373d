//! What a rank has added to one accumulator since the last synchronization, in two buffers that take turns.
//!
//! What is added goes to the buffer of this generation. At a synchronization every rank publishes which keys it holds,
//! comes to the barrier, and then reads every rank's. Meanwhile a quick rank may add again: to the other buffer, which it
//! has cleared. Nobody reads that one any more: all have been through with it before they came to this barrier. A rank that
//! is quicker still waits at the next barrier. (Loom model 17.)

use super::{Entry, Region, Shape};
use crate::shm::sync::{AtomicU64, Ordering::Relaxed, Site, mutant};
use std::mem;

/// A key of this rank's own, as its private memory knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its entry's number.
    pub number: u32,
    /// Its first word.
    pub start: usize,
    /// What it holds.
    pub shape: Shape,
}

impl Key {
    /// Its elements in a buffer.
    fn elements<'a>(&self, region: Region<'a>, buffer: usize) -> &'a [AtomicU64] {
        let at = self.start + self.shape.buffer(buffer);
        &region.words[at..at + self.shape.elements()]
    }

    fn link<'a>(&self, region: Region<'a>, buffer: usize) -> &'a AtomicU64 {
        &region.words[self.start + self.shape.buffer(buffer) - 1]
    }
}

/// The two buffers of one accumulator, for their writer.
#[derive(Debug)]
pub struct Deltas {
    /// The number of the accumulator's entry.
    accumulator: u32,
    /// Synchronizations that have read everybody's buffers: the same number on all ranks.
    generation: u64,
    /// What each buffer holds, first to last; the links go from last to first.
    touched: [Vec<Key>; 2],
}

impl Deltas {
    /// Of the accumulator with this entry.
    pub fn new(accumulator: u32) -> Self {
        Self {
            accumulator,
            generation: 0,
            touched: [Vec::new(), Vec::new()],
        }
    }

    /// Which buffer is added to.
    pub fn buffer(&self) -> usize {
        if mutant(Site::OneBuffer) {
            return 0;
        }
        (self.generation & 1) as usize
    }

    /// The keys that have something pending.
    pub fn pending(&self) -> &[Key] {
        &self.touched[self.buffer()]
    }

    /// Something will be added to this key, which has nothing pending: where its elements are.
    pub fn touch(&mut self, region: Region<'_>, key: Key) -> usize {
        let buffer = self.buffer();
        let touched = &mut self.touched[buffer];
        let before = touched.last().map_or(0, |last| u64::from(last.number) + 1);
        key.link(region, buffer).store(before, Relaxed);
        touched.push(key);
        if mutant(Site::OneKeyCount) {
            self.publish(region);
        }
        key.start + key.shape.buffer(buffer)
    }

    /// Says what is pending: before the barrier.
    pub fn publish(&mut self, region: Region<'_>) {
        let buffer = self.buffer();
        let touched = &self.touched[buffer];
        let first = touched.last().map_or(0, |last| u64::from(last.number) + 1);
        region.publish(
            self.accumulator,
            published_in(buffer),
            touched.len() as u64,
            first,
        );
        if mutant(Site::ClearBeforeBarrier) {
            self.clear(region, buffer ^ 1);
        }
    }

    /// Everybody's buffers have been read: the other one is added to from now on.
    pub fn advance(&mut self, region: Region<'_>) {
        let other = self.buffer() ^ 1;
        if !mutant(Site::ClearBeforeBarrier) {
            self.clear(region, other);
        }
        self.generation += 1;
    }

    /// Drops what is pending: it has been counted already.
    pub fn forget(&mut self, region: Region<'_>) {
        self.clear(region, self.buffer());
        if mutant(Site::ReplayAdvances) {
            self.generation += 1;
        }
    }

    /// Drops what is pending for one key.
    pub fn forget_key(&mut self, region: Region<'_>, number: u32) {
        let buffer = self.buffer();
        let all = mem::take(&mut self.touched[buffer]);
        for key in all {
            if key.number == number {
                zero(key, region, buffer);
            } else {
                self.touch(region, key);
            }
        }
    }

    fn clear(&mut self, region: Region<'_>, buffer: usize) {
        for key in self.touched[buffer].drain(..) {
            zero(key, region, buffer);
        }
    }
}

/// Where the keys of a buffer are published.
fn published_in(buffer: usize) -> usize {
    if mutant(Site::OneKeyCount) { 0 } else { buffer }
}

fn zero(key: Key, region: Region<'_>, buffer: usize) {
    use super::{Kind, SUM_WORDS, clear};
    let elements = key.elements(region, buffer);
    let zero = |words: &[AtomicU64]| words.iter().for_each(|word| word.store(0, Relaxed));
    match key.shape.kind {
        Kind::Sum | Kind::Mean | Kind::Histogram => {
            if let Some((sum, rest)) = elements.split_first_chunk::<SUM_WORDS>() {
                clear(sum);
                zero(rest);
            }
        }
        Kind::Sums => elements.as_chunks::<SUM_WORDS>().0.iter().for_each(clear),
        Kind::Count | Kind::Min | Kind::Max | Kind::Counts => zero(elements),
    }
}

/// Gives, for each key that an accumulator of a rank has published in a buffer: its entry's number, the entry, and its
/// elements. False if what is published is not what a correct rank publishes.
///
/// Between the barrier of that buffer's synchronization and the next one, nobody writes any of it.
pub fn each_pending<'a>(
    region: Region<'a>,
    accumulator: u32,
    buffer: usize,
    mut with: impl FnMut(u32, Entry, &'a [AtomicU64]),
) -> bool {
    let Some((keys, mut next)) = region.published(accumulator, published_in(buffer)) else {
        return false;
    };
    let entries = region.entries();
    if keys > entries.into() {
        return false;
    }
    for _ in 0..keys {
        let number = next
            .checked_sub(1)
            .and_then(|next| u32::try_from(next).ok());
        let Some(number) = number.filter(|&number| number < entries) else {
            return false;
        };
        let Some(entry) = region.entry(number) else {
            return false;
        };
        let Entry::Key {
            accumulator: owner,
            shape,
            start,
        } = entry
        else {
            return false;
        };
        if owner != accumulator {
            return false;
        }
        let key = Key {
            number,
            start,
            shape,
        };
        with(number, entry, key.elements(region, buffer));
        next = key.link(region, buffer).load(Relaxed);
    }
    next == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::cells::{Directory, Kind, count};

    #[test]
    fn a_buffer_holds_what_was_added_until_its_next_turn() {
        let words: Vec<AtomicU64> = (0..crate::shm::cells::words(4).unwrap())
            .map(|_| AtomicU64::new(0))
            .collect();
        let region = Region::new(&words, 4);
        let mut directory = Directory::default();
        let accumulator = directory.accumulator(region, "a").unwrap();
        let shape = Shape {
            kind: Kind::Count,
            length: 1,
        };
        let mut key = |name| {
            let (number, start) = directory
                .key(region, accumulator, shape, name, &[])
                .unwrap();
            Key {
                number,
                start,
                shape,
            }
        };
        let keys = [key("x"), key("y"), key("z")];
        let mut deltas = Deltas::new(accumulator);
        let read = |buffer| {
            let mut all = Vec::new();
            let whole = each_pending(region, accumulator, buffer, |number, _, elements| {
                all.push((number, elements[0].load(Relaxed)));
            });
            assert!(whole);
            all.sort_unstable();
            all
        };
        let add = |deltas: &mut Deltas, key: Key, x| {
            let at = deltas.touch(region, key);
            count(&words[at], x).unwrap();
        };
        add(&mut deltas, keys[0], 1);
        add(&mut deltas, keys[1], 2);
        add(&mut deltas, keys[2], 3);
        deltas.forget_key(region, keys[1].number);
        deltas.publish(region);
        assert_eq!(read(0), [(1, 1), (3, 3)]);
        deltas.advance(region);
        add(&mut deltas, keys[1], 7);
        assert_eq!(read(0), [(1, 1), (3, 3)], "still there");
        deltas.publish(region);
        assert_eq!(read(1), [(2, 7)]);
        deltas.advance(region);
        add(&mut deltas, keys[0], 5);
        deltas.forget(region);
        add(&mut deltas, keys[0], 9);
        deltas.publish(region);
        assert_eq!(read(0), [(1, 9)]);
    }
}
