//! What can be added by name: the type says whether it is a sum or a count.

use super::content::{Content, Form};
use crate::shm::cells::exact::Exact;
use crate::shm::cells::{Kind, Mirror, SUM_WORDS, count, sum};
use crate::shm::sync::{AtomicU64, Ordering::Relaxed};

mod sealed {
    use super::{AtomicU64, Content, Form, Mirror};

    pub trait Sealed {
        /// What it is added to.
        fn form(&self) -> Form;
        /// Adds or subtracts; `None`, and nothing changed, where a count overflows.
        fn add(&self, words: &[AtomicU64], mirror: Mirror<'_>, subtract: bool) -> Option<()>;
        /// What it makes of nothing.
        fn content(&self, subtract: bool) -> Content;
    }

    pub trait Element: Copy {
        const IS_COUNT: bool;
        fn count(self) -> Option<i64>;
        /// All of a count, also of one that does not fit 64 bits.
        fn wide(self) -> i128;
        fn float(self) -> f64;
    }
}

use sealed::{Element, Sealed};

/// What can be added: an f32 or f64 to a sum, an integer or a bool to a count, a slice of them element by element to a
/// vector of sums or counts.
///
/// Nothing else can:
///
/// ```compile_fail
/// # let replica = gradring::Replica::join().unwrap();
/// # let training = replica.accumulator("training").unwrap();
/// training.add("loss", "a text"); // nor a list of texts, nor None
/// ```
pub trait Addend: Sealed {}

impl<T: Sealed> Addend for T {}

macro_rules! counts {
    ($($t:ty)*) => {$(
        impl Element for $t {
            const IS_COUNT: bool = true;
            #[inline]
            fn count(self) -> Option<i64> {
                i64::try_from(self).ok()
            }
            fn wide(self) -> i128 {
                self as i128
            }
            fn float(self) -> f64 {
                0.0
            }
        }
        scalar!($t);
    )*};
}

macro_rules! scalar {
    ($t:ty) => {
        impl Sealed for $t {
            fn form(&self) -> Form {
                let kind = if Self::IS_COUNT {
                    Kind::Count
                } else {
                    Kind::Sum
                };
                Form::scalar(kind)
            }
            fn add(&self, words: &[AtomicU64], mirror: Mirror<'_>, subtract: bool) -> Option<()> {
                add_one(*self, words, subtract)?;
                if Self::IS_COUNT {
                    mirror.count(signed(self.count()?, subtract)?);
                } else {
                    let x = self.float();
                    mirror.sum(if subtract { -x } else { x }, 1);
                }
                Some(())
            }
            fn content(&self, subtract: bool) -> Content {
                if Self::IS_COUNT {
                    Content::Count(wide(*self, subtract))
                } else {
                    Content::Sum(Box::new(exact(*self, subtract)))
                }
            }
        }
    };
}

impl Element for bool {
    const IS_COUNT: bool = true;
    fn count(self) -> Option<i64> {
        Some(self.into())
    }
    fn wide(self) -> i128 {
        self.into()
    }
    fn float(self) -> f64 {
        0.0
    }
}

impl Element for f32 {
    const IS_COUNT: bool = false;
    fn count(self) -> Option<i64> {
        None
    }
    fn wide(self) -> i128 {
        0
    }
    fn float(self) -> f64 {
        self.into()
    }
}

impl Element for f64 {
    const IS_COUNT: bool = false;
    fn count(self) -> Option<i64> {
        None
    }
    fn wide(self) -> i128 {
        0
    }
    fn float(self) -> f64 {
        self
    }
}

counts!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize);
scalar!(bool);
scalar!(f32);
scalar!(f64);

fn signed(x: i64, subtract: bool) -> Option<i64> {
    if subtract { x.checked_neg() } else { Some(x) }
}

fn wide<T: Element>(x: T, subtract: bool) -> i128 {
    if subtract { -x.wide() } else { x.wide() }
}

fn exact<T: Element>(x: T, subtract: bool) -> Exact {
    let mut sum = Exact::default();
    sum.add(if subtract { -x.float() } else { x.float() });
    sum
}

/// Adds one element to its own words.
fn add_one<T: Element>(x: T, words: &[AtomicU64], subtract: bool) -> Option<()> {
    if T::IS_COUNT {
        count(words.first()?, signed(x.count()?, subtract)?)
    } else {
        let x = x.float();
        sum(
            words.first_chunk::<SUM_WORDS>()?,
            if subtract { -x } else { x },
        );
        Some(())
    }
}

impl<T: Element> Sealed for &[T] {
    fn form(&self) -> Form {
        let kind = if T::IS_COUNT {
            Kind::Counts
        } else {
            Kind::Sums
        };
        // More than 32 bits count has no room anyway.
        Form::vector(kind, u32::try_from(self.len()).unwrap_or(u32::MAX))
    }

    fn add(&self, words: &[AtomicU64], mirror: Mirror<'_>, subtract: bool) -> Option<()> {
        if T::IS_COUNT {
            // First whether all fit: nothing has changed where one does not.
            for (x, word) in self.iter().zip(words) {
                let old = word.load(Relaxed) as i64;
                old.checked_add(signed(x.count()?, subtract)?)?;
            }
        }
        let each = if T::IS_COUNT { 1 } else { SUM_WORDS };
        for (x, words) in self.iter().zip(words.chunks(each)) {
            add_one(*x, words, subtract)?;
        }
        mirror.count(1);
        Some(())
    }

    fn content(&self, subtract: bool) -> Content {
        if T::IS_COUNT {
            Content::Counts(self.iter().map(|&x| wide(x, subtract)).collect())
        } else {
            Content::Sums(self.iter().map(|&x| exact(x, subtract)).collect())
        }
    }
}

/// Adds a slice to the words of as many elements.
#[inline]
pub(super) fn add<T: Element>(all: &[T], words: &[AtomicU64], mirror: Mirror<'_>) -> Option<()> {
    all.add(words, mirror, false)
}

macro_rules! as_slices {
    ($([$($generics:tt)*] $t:ty;)*) => {$(
        impl<T: Element, $($generics)*> Sealed for $t {
            fn form(&self) -> Form {
                (&self[..]).form()
            }
            fn add(&self, words: &[AtomicU64], mirror: Mirror<'_>, subtract: bool) -> Option<()> {
                (&self[..]).add(words, mirror, subtract)
            }
            fn content(&self, subtract: bool) -> Content {
                (&self[..]).content(subtract)
            }
        }
    )*};
}

as_slices! {
    [const N: usize] &[T; N];
    [const N: usize] [T; N];
    [] &Vec<T>;
    [] Vec<T>;
}
