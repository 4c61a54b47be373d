//! Typed handles to one key each: for hot loops, and for kinds that no addend's type says.
//!
//! A handle finds its words once for each time that the accumulator has been synchronized; until then adding is a
//! comparison and a few loads and stores.

use super::accumulator::Lease;
use super::content::Form;
use super::registry::{Cells, Core};
use crate::replica::Error;
use crate::shm::cells::{Mirror, SUM_WORDS, count, extreme, sum};
use crate::shm::sync::AtomicU64;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

pub(super) struct Handle {
    core: Arc<Core>,
    cells: Arc<Cells>,
    /// The accumulator's version when the places were found; 0 for never.
    version: Cell<u64>,
    elements: Cell<usize>,
    mirror: Cell<usize>,
    key: Box<str>,
    form: Form,
    lease: Rc<Lease>,
}

impl Handle {
    pub(super) fn new(lease: Rc<Lease>, key: &str, form: Form) -> Self {
        Self {
            core: Arc::clone(&lease.core),
            cells: Arc::clone(&lease.cells),
            version: Cell::new(0),
            elements: Cell::new(0),
            mirror: Cell::new(0),
            key: key.into(),
            form,
            lease,
        }
    }

    #[cold]
    fn find(&self) -> Result<(), Error> {
        let version = self.core.version();
        let place = self.lease.open(&self.key, &self.form)?;
        self.elements.set(place.elements);
        self.mirror.set(place.mirror);
        self.version.set(version);
        Ok(())
    }

    /// The elements to add to, and everything behind them, and the mirror.
    #[inline]
    fn words(&self) -> Result<(&[AtomicU64], Mirror<'_>), Error> {
        if self.version.get() != self.core.version() {
            self.find()?;
        }
        let words = self.cells.words();
        let elements = words.get(self.elements.get()..);
        let mirror = words
            .get(self.mirror.get()..)
            .and_then(|words| words.first_chunk());
        match (elements, mirror) {
            (Some(elements), Some(mirror)) => Ok((elements, Mirror::new(mirror))),
            // Not reached: places come from this process's own directory.
            _ => Err(super::registry::inside_block()),
        }
    }

    #[cold]
    fn overflow(&self) -> Error {
        self.core.overflow(&self.key)
    }

    /// Adds to a sum, and to what is behind it.
    #[inline]
    fn sum(&self, x: f64, n: i64) -> Result<(&[AtomicU64], Mirror<'_>), Error> {
        let (words, mirror) = self.words()?;
        if let Some((digits, rest)) = words.split_first_chunk::<SUM_WORDS>() {
            sum(digits, x);
            mirror.sum(x, n);
            return Ok((rest, mirror));
        }
        Ok((&[], mirror))
    }
}

/// Adds to a sum. Made by [`Accumulator::sum`](super::Accumulator::sum).
pub struct Sum(pub(super) Handle);

impl Sum {
    /// Adds. Exact: reading rounds once.
    ///
    /// # Errors
    /// [`Error::Invalid`] inside the accumulator's synchronized block; [`Error::Kind`] if the key was made something else
    /// there. Local, and nothing was added.
    #[inline]
    pub fn add(&self, x: f64) -> Result<(), Error> {
        self.0.sum(x, 1).map(drop)
    }

    /// Subtracts.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    #[inline]
    pub fn sub(&self, x: f64) -> Result<(), Error> {
        self.add(-x)
    }
}

/// Counts. Made by [`Accumulator::count`](super::Accumulator::count).
pub struct Count(pub(super) Handle);

impl Count {
    /// Adds.
    ///
    /// # Errors
    /// As [`Sum::add`]; [`Error::Overflow`], and nothing was added.
    #[inline]
    pub fn add(&self, x: i64) -> Result<(), Error> {
        let (words, mirror) = self.0.words()?;
        match words.first().and_then(|word| count(word, x)) {
            Some(()) => {
                mirror.count(x);
                Ok(())
            }
            None => Err(self.0.overflow()),
        }
    }

    /// Subtracts.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    #[inline]
    pub fn sub(&self, x: i64) -> Result<(), Error> {
        self.add(x.checked_neg().ok_or_else(|| self.0.overflow())?)
    }
}

/// Adds to a mean. Made by [`Accumulator::mean`](super::Accumulator::mean).
pub struct Mean(pub(super) Handle);

impl Mean {
    /// Adds one number.
    ///
    /// # Errors
    /// As [`Sum::add`].
    #[inline]
    pub fn add(&self, x: f64) -> Result<(), Error> {
        self.add_many(x, 1)
    }

    /// Adds so many numbers of which only the sum is known, as a batch's loss.
    ///
    /// # Errors
    /// As [`Sum::add`]; [`Error::Overflow`] of the count; [`Error::Invalid`] for fewer than 0.
    #[inline]
    pub fn add_many(&self, sum: f64, many: i64) -> Result<(), Error> {
        if many < 0 {
            return Err(Error::Invalid {
                what: "how many numbers a mean is given",
                expected: "at least 0".into(),
                found: many.to_string(),
            });
        }
        let (words, _) = self.0.words()?;
        let counted = words.get(SUM_WORDS).and_then(|word| count(word, many));
        counted.ok_or_else(|| self.0.overflow())?;
        self.0.sum(sum, many).map(drop)
    }
}

macro_rules! extremes {
    ($($name:ident, $method:literal, $what:literal, $largest:literal;)*) => {$(
        #[doc = concat!("Keeps the ", $what, " number. Made by [`Accumulator::", $method, "`](super::Accumulator::", $method, ").")]
        pub struct $name(pub(super) Handle);

        impl $name {
            /// One more number. A NaN stays; -0 is smaller than 0.
            ///
            /// # Errors
            /// As [`Sum::add`].
            #[inline]
            pub fn add(&self, x: f64) -> Result<(), Error> {
                let (words, mirror) = self.0.words()?;
                if let Some(word) = words.first() {
                    extreme(word, x, $largest);
                    mirror.extreme(x, $largest);
                }
                Ok(())
            }
        }
    )*};
}

extremes! {
    Min, "min", "smallest", false;
    Max, "max", "largest", true;
}

/// Sorts numbers between edges. Made by [`Accumulator::histogram`](super::Accumulator::histogram).
pub struct Histogram(pub(super) Handle);

impl Histogram {
    /// One more number.
    ///
    /// # Errors
    /// As [`Sum::add`]; [`Error::Overflow`] of a count.
    pub fn add(&self, x: f64) -> Result<(), Error> {
        let edges = self.0.form.edges();
        let bucket = if x.is_nan() {
            edges.len() + 1
        } else {
            edges.partition_point(|edge| *edge < x)
        };
        let (words, _) = self.0.words()?;
        let counted = words
            .get(SUM_WORDS + bucket)
            .and_then(|word| count(word, 1));
        counted.ok_or_else(|| self.0.overflow())?;
        self.0.sum(x, 1).map(drop)
    }
}

macro_rules! vectors {
    ($($name:ident, $method:literal, $what:literal, $element:ty;)*) => {$(
        #[doc = concat!("Adds to a vector of ", $what, ". Made by [`Accumulator::", $method, "`](super::Accumulator::", $method, ").")]
        pub struct $name(pub(super) Handle);

        impl $name {
            /// Adds, element by element.
            ///
            /// # Errors
            /// As [`Sum::add`]; [`Error::Length`]; [`Error::Overflow`] of a count. Nothing was added then.
            pub fn add(&self, all: &[$element]) -> Result<(), Error> {
                let expected = self.0.form.shape.length as usize;
                if all.len() != expected {
                    return Err(Error::Length {
                        what: "what is added to a vector",
                        expected,
                        found: all.len(),
                    });
                }
                self.apply(0, all)
            }

            /// Adds to one element.
            ///
            /// # Errors
            /// As [`Sum::add`]; [`Error::Invalid`] if there is no such element; [`Error::Overflow`] of a count.
            #[inline]
            pub fn add_at(&self, at: usize, x: $element) -> Result<(), Error> {
                if at >= self.0.form.shape.length as usize {
                    return Err(self.0.no_element(at));
                }
                self.apply(at, &[x])
            }

            #[inline]
            fn apply(&self, at: usize, all: &[$element]) -> Result<(), Error> {
                use crate::shm::cells::{Kind, Shape};
                let element = Shape { kind: Kind::$name, length: 1 }.elements();
                let (words, mirror) = self.0.words()?;
                let added = words
                    .get(element * at..)
                    .and_then(|words| super::addend::add(all, words, mirror));
                added.ok_or_else(|| self.0.overflow())
            }
        }
    )*};
}

vectors! {
    Sums, "sums", "sums", f64;
    Counts, "counts", "counts", i64;
}

impl Handle {
    #[cold]
    fn no_element(&self, at: usize) -> Error {
        Error::Invalid {
            what: "element of a vector",
            expected: format!("below {}", self.form.shape.length),
            found: at.to_string(),
        }
    }
}
