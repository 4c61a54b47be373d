//! The directory of a rank's cells: what is where, and what it is called. Only ever appended to.

use super::{
    CELL_WORDS, ENTRY_WORDS, HEAD_WORDS, Kind, MIRROR_WORDS, Mirror, Shape, TEXT_WORDS, entries,
};
use crate::shm::sync::{AtomicU64, Ordering, Ordering::Relaxed, Site, ord};

/// The longest name of an accumulator or a key, in bytes.
pub const MAX_TEXT: usize = 8 * TEXT_WORDS;
/// What stands in an entry for the kind of an accumulator.
const ACCUMULATOR: u64 = 1;
/// Words of an entry.
const KIND: usize = 0;
const OWNER: usize = 1;
const START: usize = 2;
const LENGTH: usize = 3;
/// Of an accumulator: what its rank has made of the content by itself, for each buffer, in the words that only keys use.
const CHANGES: usize = 2;
const KEYS: usize = 4;
const FIRST: usize = 6;
const TEXT: usize = 8;

/// An entry, checked: what it speaks of lies in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The name of an accumulator.
    Accumulator,
    /// A key.
    Key {
        /// The number of its accumulator's entry.
        accumulator: u32,
        /// What it holds.
        shape: Shape,
        /// Its first word.
        start: usize,
    },
}

/// The words of one rank, as anybody may read them.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    pub(super) words: &'a [AtomicU64],
    cells: usize,
}

impl<'a> Region<'a> {
    /// The region of `cells` cells in these words; of fewer, if they are too few.
    pub fn new(words: &'a [AtomicU64], cells: usize) -> Self {
        let fits = super::words(cells).is_some_and(|needed| needed <= words.len());
        let cells = if fits { cells } else { 0 };
        let fits = super::words(cells).is_some_and(|needed| needed <= words.len());
        Self {
            words: if fits { words } else { &[] },
            cells,
        }
    }

    /// Entries that are whole.
    pub fn entries(self) -> u32 {
        let Some(used) = self.words.first() else {
            return 0;
        };
        // Pairs with the store in `Directory::append`: whoever sees the number sees the entries.
        let used = used.load(ord(Site::EntriesLoad, Ordering::Acquire));
        used.min(entries(self.cells) as u64) as u32
    }

    fn entry_words(self, number: u32) -> Option<&'a [AtomicU64]> {
        let start = HEAD_WORDS + number as usize * ENTRY_WORDS;
        if (number as usize) < entries(self.cells) {
            self.words.get(start..start + ENTRY_WORDS)
        } else {
            None
        }
    }

    /// Entry `number`, which must be below [`entries`](Self::entries) to be whole; `None` if it is none.
    pub fn entry(self, number: u32) -> Option<Entry> {
        let words = self.entry_words(number)?;
        let kind = words[KIND].load(Relaxed) & 0xff;
        if kind == ACCUMULATOR {
            return Some(Entry::Accumulator);
        }
        let shape = Shape {
            kind: Kind::from_u8(kind as u8)?,
            length: words[LENGTH].load(Relaxed).try_into().ok()?,
        };
        let start = usize::try_from(words[START].load(Relaxed)).ok()?;
        let end = start.checked_add(shape.words())?;
        let inside = start >= HEAD_WORDS && end <= self.words.len();
        inside.then_some(Entry::Key {
            accumulator: words[OWNER].load(Relaxed).try_into().ok()?,
            shape,
            start,
        })
    }

    /// What entry `number` is called; what is no UTF-8 is replaced.
    pub fn text(self, number: u32) -> Option<String> {
        let words = self.entry_words(number)?;
        let length = (words[KIND].load(Relaxed) >> 8).min(MAX_TEXT as u64) as usize;
        let mut bytes: Vec<u8> = words[TEXT..]
            .iter()
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(length);
        Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// The edges of a histogram.
    pub fn edges(self, shape: Shape, start: usize) -> Vec<f64> {
        let first = start + MIRROR_WORDS;
        let words = self.words.get(first..first + shape.edges());
        let words = words.unwrap_or_default().iter();
        words
            .map(|word| f64::from_bits(word.load(Relaxed)))
            .collect()
    }

    /// The mirror of the key that starts there.
    pub fn mirror(self, start: usize) -> Option<Mirror<'a>> {
        let words = self.words.get(start..)?.first_chunk()?;
        Some(Mirror::new(words))
    }

    /// How many keys an accumulator has published in a buffer, and the first of them.
    pub(super) fn published(self, accumulator: u32, buffer: usize) -> Option<(u64, u64)> {
        let words = self.entry_words(accumulator)?;
        let at = |word: usize| words[word + buffer].load(Relaxed);
        Some((at(KEYS), at(FIRST)))
    }

    pub(super) fn publish(self, accumulator: u32, buffer: usize, keys: u64, first: u64) {
        if let Some(words) = self.entry_words(accumulator) {
            words[KEYS + buffer].store(keys, Relaxed);
            words[FIRST + buffer].store(first, Relaxed);
        }
    }

    /// What the rank of an accumulator says of its own changes at the synchronization of a buffer.
    pub fn changes(self, accumulator: u32, buffer: usize) -> Option<u64> {
        let words = self.entry_words(accumulator)?;
        Some(words[CHANGES + (buffer & 1)].load(Relaxed))
    }

    /// Says so: before the barrier, by the rank.
    pub fn set_changes(self, accumulator: u32, buffer: usize, changes: u64) {
        if let Some(words) = self.entry_words(accumulator) {
            words[CHANGES + (buffer & 1)].store(changes, Relaxed);
        }
    }
}

/// There is no room for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// How many cells there are.
    pub cells: usize,
    /// How many it needs.
    pub needed: usize,
}

/// What the writer of a region knows of it: in private memory, so that nobody else can change it.
#[derive(Debug, Default)]
pub struct Directory {
    entries: u32,
    /// Cells in use.
    used: usize,
}

impl Directory {
    /// Appends an accumulator; the number of its entry. The name must have at most [`MAX_TEXT`] bytes.
    ///
    /// # Errors
    /// [`Full`].
    pub fn accumulator(&mut self, region: Region<'_>, name: &str) -> Result<u32, Full> {
        self.append(region, [ACCUMULATOR, 0, 0, 0], name, 0)
    }

    /// Appends a key of an accumulator, with edges if it is a histogram: its entry's number, and where its words begin.
    ///
    /// # Errors
    /// [`Full`].
    pub fn key(
        &mut self,
        region: Region<'_>,
        accumulator: u32,
        shape: Shape,
        key: &str,
        edges: &[f64],
    ) -> Result<(u32, usize), Full> {
        let start = HEAD_WORDS + entries(region.cells) * ENTRY_WORDS + self.used * CELL_WORDS;
        let cells = shape.cells();
        self.room(region, cells)?;
        for (word, edge) in region.words[start + MIRROR_WORDS..].iter().zip(edges) {
            word.store(edge.to_bits(), Relaxed);
        }
        let words = [
            shape.kind as u64,
            accumulator.into(),
            start as u64,
            shape.length.into(),
        ];
        let number = self.append(region, words, key, cells)?;
        Ok((number, start))
    }

    fn room(&self, region: Region<'_>, needed: usize) -> Result<(), Full> {
        let cells = region.cells;
        let entry = (self.entries as usize) < entries(cells) && !region.words.is_empty();
        if entry && needed <= cells - self.used {
            Ok(())
        } else {
            Err(Full { cells, needed })
        }
    }

    fn append(
        &mut self,
        region: Region<'_>,
        [kind, owner, start, length]: [u64; 4],
        text: &str,
        cells: usize,
    ) -> Result<u32, Full> {
        self.room(region, cells)?;
        let number = self.entries;
        let Some(words) = region.entry_words(number) else {
            return Err(Full {
                cells: region.cells,
                needed: cells,
            });
        };
        let bytes = &text.as_bytes()[..text.len().min(MAX_TEXT)];
        words[KIND].store(kind | (bytes.len() as u64) << 8, Relaxed);
        words[OWNER].store(owner, Relaxed);
        words[START].store(start, Relaxed);
        words[LENGTH].store(length, Relaxed);
        for (word, bytes) in words[TEXT..].iter().zip(bytes.chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(eight), Relaxed);
        }
        self.entries += 1;
        self.used += cells;
        // SYNC POINT: publishes the entry, and the edges, to displays (Acquire in `Region::entries`).
        region.words[0].store(
            self.entries.into(),
            ord(Site::EntriesStore, Ordering::Release),
        );
        Ok(number)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(cells: usize) -> Vec<AtomicU64> {
        let words = crate::shm::cells::words(cells).unwrap();
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }

    fn shape(kind: Kind, length: u32) -> Shape {
        Shape { kind, length }
    }

    #[test]
    fn entries_say_what_is_where_and_cells_end() {
        let words = region(8);
        let region = Region::new(&words, 8);
        let mut directory = Directory::default();
        assert_eq!(region.entries(), 0);
        let a = directory.accumulator(region, "training").unwrap();
        let edges = [0.5, 1.5];
        let (n, at) = directory
            .key(region, a, shape(Kind::Histogram, 2), "h", &edges)
            .unwrap();
        assert_eq!((a, n, region.entries()), (0, 1, 2));
        assert_eq!(region.entry(a), Some(Entry::Accumulator));
        let expected = Entry::Key {
            accumulator: a,
            shape: shape(Kind::Histogram, 2),
            start: at,
        };
        assert_eq!(region.entry(n), Some(expected));
        assert_eq!(region.text(a).as_deref(), Some("training"));
        assert_eq!(region.edges(shape(Kind::Histogram, 2), at), edges);
        // 7 cells are left.
        let full = directory.key(region, a, shape(Kind::Counts, 560), "v", &[]);
        assert_eq!(
            full,
            Err(Full {
                cells: 8,
                needed: 8
            })
        );
        for i in 0..7 {
            let (_, next) = directory
                .key(region, a, shape(Kind::Sum, 1), "s", &[])
                .unwrap();
            assert_eq!(next, at + (i + 1) * CELL_WORDS);
        }
        let full = directory.key(region, a, shape(Kind::Count, 1), "c", &[]);
        assert_eq!(
            full,
            Err(Full {
                cells: 8,
                needed: 1
            })
        );
        while directory.accumulator(region, "x").is_ok() {}
        assert_eq!(region.entries() as usize, entries(8));
        assert_eq!(region.text(10_000), None);
    }

    #[test]
    fn no_cells_and_too_few_words_are_full() {
        let words = region(0);
        let region = Region::new(&words, 0);
        let mut directory = Directory::default();
        let a = directory.accumulator(region, "a").unwrap();
        let full = directory.key(region, a, shape(Kind::Count, 1), "c", &[]);
        assert_eq!(
            full,
            Err(Full {
                cells: 0,
                needed: 1
            })
        );
        let short = Region::new(&words[..20], 7);
        assert_eq!(short.entries(), 0);
        let full = Directory::default().accumulator(short, "a");
        assert_eq!(
            full,
            Err(Full {
                cells: 0,
                needed: 0
            })
        );
    }

    proptest! {
        #[test]
        fn any_words_are_read_without_harm(
            head in prop::collection::vec(any::<u64>(), 16..300), fill in any::<u64>(), small in any::<bool>(),
        ) {
            let words = region(4);
            for (word, x) in words.iter().zip(head) {
                word.store(if small { x % 600 } else { x }, Relaxed);
            }
            words[17 * 32 % words.len()].store(fill, Relaxed);
            let region = Region::new(&words, 4);
            for number in 0..region.entries() + 2 {
                let _ = region.text(number);
                if let Some(Entry::Key { shape, start, .. }) = region.entry(number) {
                    let _ = region.edges(shape, start);
                    prop_assert!(region.mirror(start).is_some());
                }
                for buffer in 0..2 {
                    crate::shm::cells::each_pending(region, number, buffer, |_, _, _| {});
                }
            }
        }
    }
}
