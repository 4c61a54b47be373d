//! The codec on the processor: one file per instruction set, the same bits from each.
//!
//! [`Path`] names them. Its methods are how everything else encodes, applies and samples; this module holds the one
//! table that leads from a path to its kernels.

pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod front;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::apply::{self, Applied, Apply};
use super::arithmetic::{INFINITY, Unit};
use super::dense::{self, Dense};
use super::encode::{self, ChunkOptions, EncodeError, Encoded};
use super::format::{DecodeError, Record};
use super::given::{Given, Nothing};
use super::parameters::Parameters;
use super::sample;
use super::values::Element;
use half::{bf16, f16};
use std::mem::MaybeUninit;
use thiserror::Error;

/// Which instructions the codec uses. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Plain Rust: the written meaning of every kernel, and what runs where there is nothing better.
    Scalar,
    /// 256-bit vectors (x86-64 with AVX2 and F16C).
    Avx2,
    /// 512-bit vectors and masks (x86-64 with AVX512-VBMI2: Ice Lake, Zen 4 and later).
    Avx512,
    /// 128-bit vectors (aarch64).
    Neon,
}

impl Path {
    /// Every path there is, available here or not, best last.
    pub const ALL: [Path; 4] = [Path::Scalar, Path::Avx2, Path::Avx512, Path::Neon];

    /// Whether this processor can run it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Path::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => avx2::is_available(),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => avx512::is_available(),
            #[cfg(target_arch = "aarch64")]
            Path::Neon => neon::is_available(),
            // Of another architecture.
            _ => false,
        }
    }

    /// The best that this processor can run.
    #[must_use]
    pub fn best() -> Path {
        let available = Path::ALL.into_iter().rev().find(|path| path.is_available());
        available.unwrap_or(Path::Scalar)
    }

    /// The path that the environment variable `GRADRING_SIMD` names (`scalar`, `avx2`, `avx512`, `neon`), or the
    /// best one when it is not set.
    ///
    /// # Errors
    /// [`PathError::Unknown`] and [`PathError::Unavailable`]: a path that was asked for is never replaced in silence.
    pub fn from_env() -> Result<Path, PathError> {
        match std::env::var_os("GRADRING_SIMD") {
            None => Ok(Path::best()),
            Some(name) => Path::named(&name.to_string_lossy()),
        }
    }

    fn named(name: &str) -> Result<Path, PathError> {
        let Some(path) = Path::ALL.into_iter().find(|path| path.name() == name) else {
            return Err(PathError::Unknown {
                found: name.to_owned(),
            });
        };
        if path.is_available() {
            Ok(path)
        } else {
            Err(PathError::Unavailable { path })
        }
    }

    fn name(self) -> &'static str {
        match self {
            Path::Scalar => "scalar",
            Path::Avx2 => "avx2",
            Path::Avx512 => "avx512",
            Path::Neon => "neon",
        }
    }

    /// Adds `update` to `residual`, appends to `out` the payload of what is sent, and keeps the rest in `residual`: one
    /// fused pass over one chunk. See [`encode`](mod@encode) for the exact rules.
    ///
    /// `residual` must be canonical (see [`canon`](super::canon); no NaN or infinity), as [`Residual`](super::Residual)
    /// starts and every encode leaves it; `update` may hold anything. `out` grows once and never again for chunks of at
    /// most the same length, when it is cleared in between.
    ///
    /// # Errors
    /// [`EncodeError`] when the two differ in length or are longer than a chunk; nothing has been changed then.
    #[inline]
    pub fn encode<'a>(
        self,
        residual: &mut [f32],
        update: impl Into<Given<'a>>,
        unit: Unit,
        options: &ChunkOptions,
        out: &mut Vec<u8>,
    ) -> Result<Encoded, EncodeError> {
        encode::encode(self.kernels(), residual, update.into(), unit, options, out)
    }

    /// Adds `update` to `residual` and appends to `out` the payload of all of the sum, without compression: as f32, which
    /// leaves nothing in `residual`, or as bf16, which leaves what rounding took. See [`dense`](mod@dense).
    ///
    /// # Errors
    /// As [`encode`](Path::encode).
    #[inline]
    pub fn encode_dense<'a>(
        self,
        residual: &mut [f32],
        update: impl Into<Given<'a>>,
        number: Dense,
        out: &mut Vec<u8>,
    ) -> Result<Encoded, EncodeError> {
        let update = update.into();
        encode::chunk_lengths(residual.len(), update)?;
        Ok(dense::encode(
            self.kernels(),
            residual,
            update.cursor(),
            number,
            out,
        ))
    }

    /// Applies `record` to `target`. `x` is the unit, scaled already: `v`, or `canon(v * inv)` for a mean. The unit of a
    /// dense record is 1; each of its values counts `canon(value * x)`.
    ///
    /// [`Apply::Subtract`]: `p = canon(canon(p) - x)`; [`Apply::Add`]: `s = canon(canon(s) + x)`; with the sign of the
    /// hit. A target element that is not finite stays and is counted. Elements that are no hits keep their bits.
    ///
    /// # Errors
    /// [`DecodeError`] for whatever is wrong with the record, `x`, or the target's length; all is checked before
    /// anything is applied.
    #[inline]
    pub fn apply(
        self,
        record: &Record<'_>,
        x: f32,
        how: Apply,
        target: &mut [f32],
    ) -> Result<Applied, DecodeError> {
        apply::apply(self.kernels(), record, x, how, target)
    }

    /// As [`apply`](Path::apply), to the record's elements from `start` on of what may be a list of slices: the bits are
    /// those that one vector would have.
    ///
    /// # Errors
    /// As [`apply`](Path::apply); [`DecodeError::Place`] when the record would end past the target's elements. Only
    /// [`DecodeError::Part`], of a target that lacks elements which it said it had, comes after something was applied.
    pub fn apply_at(
        self,
        record: &Record<'_>,
        x: f32,
        how: Apply,
        target: &mut dyn Parameters,
        start: usize,
    ) -> Result<Applied, DecodeError> {
        apply::apply_at(self.kernels(), record, x, how, target, start)
    }

    /// Appends to `out` a systematic sample of `|s|`, where `s` is what [`encode`](Path::encode) would form of
    /// `residual` and `update`: at least `wanted` of them, in index order, in runs of [`sample::RUN`], or
    /// [`sample::LONG_RUN`] in large samples, evenly spread over the vector, or all when there are hardly more. `phase`
    /// (the step) moves the runs. All are finite and canonical.
    ///
    /// The same on every path.
    ///
    /// # Errors
    /// [`EncodeError::Lengths`] when the two differ in length.
    #[inline]
    pub fn magnitudes<'a>(
        self,
        residual: &[f32],
        update: impl Into<Given<'a>>,
        wanted: usize,
        phase: u64,
        out: &mut Vec<f32>,
    ) -> Result<(), EncodeError> {
        let update = update.into();
        encode::lengths(residual.len(), update)?;
        let all = 0..residual.len();
        sample::magnitudes(self.kernels(), residual, update, &[all], wanted, phase, out);
        Ok(())
    }

    /// The one place where a path becomes code. A path that this processor cannot run gives the scalar kernels: the
    /// same bits, and no instruction that does not exist.
    #[inline]
    pub(super) fn kernels(self) -> Kernels {
        match self {
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 if self.is_available() => Kernels(&avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 if self.is_available() => Kernels(&avx512::TABLE),
            #[cfg(target_arch = "aarch64")]
            Path::Neon if self.is_available() => Kernels(&neon::TABLE),
            _ => Kernels(&scalar::TABLE),
        }
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why `GRADRING_SIMD` names no path.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PathError {
    /// There is no such path.
    #[error(
        "GRADRING_SIMD is {found:?}; it can be scalar, avx2, avx512 or neon, or unset for the best available"
    )]
    Unknown {
        /// What the variable says.
        found: String,
    },
    /// There is, but not on this processor.
    #[error(
        "GRADRING_SIMD asks for {path}, which this processor does not have; unset it for the best available"
    )]
    Unavailable {
        /// The path.
        path: Path,
    },
}

/// What an encoding kernel compares with and subtracts.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    /// Bits of the least |s| that is a hit; those of infinity when nothing may be sent.
    pub(crate) threshold: u32,
    pub(crate) unit: f32,
    /// Bits of the least |s| that is logged when it is a hit.
    pub(crate) logged: u32,
    /// Whether many groups are expected to have hits. Changes nothing but speed.
    pub(crate) dense: bool,
    /// Whether most are. As above.
    pub(crate) crowded: bool,
}

/// A hit of which `s` cannot be had back from what it left: its place in the chunk, and `s`.
pub(crate) type Logged = (u32, f32);

/// What an encoding kernel saw.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) hits: usize,
    pub(crate) dropped: u32,
    /// Bits of the largest |s|.
    pub(crate) largest: u32,
}

impl Tally {
    #[inline(always)]
    pub(crate) fn add(&mut self, other: Tally) {
        self.hits += other.hits;
        self.dropped += other.dropped;
        self.largest = self.largest.max(other.largest);
    }
}

/// Bytes that a sparse kernel may write past its last code.
pub(crate) const SLACK: usize = 32;

type Fused<T> =
    unsafe fn(&Rule, &[T], &mut [f32], usize, &mut [MaybeUninit<u8>], &mut Vec<Logged>) -> Tally;

type Whole<T> = unsafe fn(&[T], &mut [f32], &mut [MaybeUninit<u8>]) -> u32;

/// The kernels of one path that read updates of one type.
pub(crate) struct Encoders<T> {
    sparse: Fused<T>,
    bitmap: Fused<T>,
    dense_f32: Whole<T>,
    dense_bf16: Whole<T>,
    magnitudes: unsafe fn(&[f32], &[T], &mut Vec<f32>),
}

/// The kernels of one path. An entry may only be called on a processor that has the path.
pub(crate) struct Table {
    f32: Encoders<f32>,
    f16: Encoders<f16>,
    bf16: Encoders<bf16>,
    nothing: Encoders<Nothing>,
    clamp: unsafe fn(&mut [f32], f32) -> f64,
    apply_sparse: unsafe fn(&[u8], f32, &mut [f32]) -> u32,
    apply_bitmap: unsafe fn(&[u8], usize, f32, &mut [f32]) -> u32,
    apply_f32: unsafe fn(&[u8], f32, &mut [f32]) -> u32,
    apply_bf16: unsafe fn(&[u8], f32, &mut [f32]) -> u32,
    ask: unsafe fn(*const u8, usize),
}

/// A type of which each path has kernels.
pub(crate) trait Input: Copy + Send + Sync + 'static {
    /// Its kernels in a path's table.
    fn encoders(table: &'static Table) -> &'static Encoders<Self>;
}

impl Input for f32 {
    #[inline(always)]
    fn encoders(table: &'static Table) -> &'static Encoders<f32> {
        &table.f32
    }
}

impl Input for f16 {
    #[inline(always)]
    fn encoders(table: &'static Table) -> &'static Encoders<f16> {
        &table.f16
    }
}

impl Input for bf16 {
    #[inline(always)]
    fn encoders(table: &'static Table) -> &'static Encoders<bf16> {
        &table.bf16
    }
}

impl Input for Nothing {
    #[inline(always)]
    fn encoders(table: &'static Table) -> &'static Encoders<Nothing> {
        &table.nothing
    }
}

/// The kernels of a path that this processor has.
#[derive(Clone, Copy)]
pub(crate) struct Kernels(&'static Table);

impl Kernels {
    /// Accumulates a piece of a block into `residual` and writes a code for each hit to `codes`, 2 bytes each;
    /// `first` is the chunk's index of the piece's first element. `codes` has room for a code per element, and
    /// [`SLACK`].
    #[inline]
    pub(crate) fn sparse<T: Element>(
        self,
        rule: &Rule,
        update: &[T],
        residual: &mut [f32],
        first: usize,
        codes: &mut [MaybeUninit<u8>],
        log: &mut Vec<Logged>,
    ) -> Tally {
        // The kernels rely on these.
        assert!(update.len() == residual.len() && codes.len() >= 2 * update.len() + SLACK);
        debug_assert!(rule.threshold <= INFINITY);
        // SAFETY: `Path::kernels` gives this table only where the path is available.
        unsafe { (T::encoders(self.0).sparse)(rule, update, residual, first, codes, log) }
    }

    /// The same, with 2 bits an element, in whole words.
    #[inline]
    pub(crate) fn bitmap<T: Element>(
        self,
        rule: &Rule,
        update: &[T],
        residual: &mut [f32],
        first: usize,
        words: &mut [MaybeUninit<u8>],
        log: &mut Vec<Logged>,
    ) -> Tally {
        assert!(update.len() == residual.len() && words.len() >= 4 * update.len().div_ceil(16));
        debug_assert!(rule.threshold <= INFINITY);
        // SAFETY: as in `sparse`.
        unsafe { (T::encoders(self.0).bitmap)(rule, update, residual, first, words, log) }
    }

    /// Clamps each element to `[-bound, bound]`; the sum, in index order, of what that took away.
    #[inline]
    pub(crate) fn clamp(self, residual: &mut [f32], bound: f32) -> f64 {
        // SAFETY: as in `sparse`.
        unsafe { (self.0.clamp)(residual, bound) }
    }

    /// Adds `x`, or `-x` where the sign bit says so, for each of one block's hits. How many elements were not finite.
    ///
    /// # Safety
    /// Each hit's index is below `target.len()`.
    #[inline]
    pub(crate) unsafe fn apply_sparse(self, hits: &[u8], x: f32, target: &mut [f32]) -> u32 {
        // SAFETY: as in `sparse`; the indices are the caller's promise.
        unsafe { (self.0.apply_sparse)(hits, x, target) }
    }

    /// The same from a checked bitmap's words.
    #[inline]
    pub(crate) fn apply_bitmap(self, words: &[u8], hits: usize, x: f32, target: &mut [f32]) -> u32 {
        assert!(words.len() == 4 * target.len().div_ceil(16));
        // SAFETY: as in `sparse`.
        unsafe { (self.0.apply_bitmap)(words, hits, x, target) }
    }

    /// Accumulates, writes each s, and leaves what that rounds away. How many elements were dropped.
    #[inline]
    pub(crate) fn dense<T: Element>(
        self,
        number: Dense,
        update: &[T],
        residual: &mut [f32],
        out: &mut [MaybeUninit<u8>],
    ) -> u32 {
        assert!(update.len() == residual.len() && out.len() == number.bytes() * update.len());
        let encoders = T::encoders(self.0);
        let kernel = match number {
            Dense::F32 => encoders.dense_f32,
            Dense::Bf16 => encoders.dense_bf16,
        };
        // SAFETY: as in `sparse`.
        unsafe { kernel(update, residual, out) }
    }

    /// Adds each value, times `x`. How many elements were not finite.
    #[inline]
    pub(crate) fn apply_dense(
        self,
        number: Dense,
        values: &[u8],
        x: f32,
        target: &mut [f32],
    ) -> u32 {
        assert!(values.len() == number.bytes() * target.len());
        let kernel = match number {
            Dense::F32 => self.0.apply_f32,
            Dense::Bf16 => self.0.apply_bf16,
        };
        // SAFETY: as in `sparse`.
        unsafe { kernel(values, x, target) }
    }

    /// Appends |s| of each element.
    #[inline]
    pub(crate) fn magnitudes<T: Element>(self, residual: &[f32], update: &[T], out: &mut Vec<f32>) {
        assert!(update.len() == residual.len());
        // SAFETY: as in `sparse`.
        unsafe { (T::encoders(self.0).magnitudes)(residual, update, out) }
    }

    /// Asks for memory that will be read soon. Changes nothing but speed.
    #[inline]
    pub(crate) fn ask<T>(self, slice: &[T]) {
        // SAFETY: as in `sparse`.
        unsafe { (self.0.ask)(slice.as_ptr().cast(), size_of_val(slice)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_path_is_available_and_scalar_always_is() {
        assert!(Path::best().is_available());
        assert!(Path::Scalar.is_available());
    }

    #[test]
    fn a_path_is_had_by_its_name_and_by_no_other() {
        for path in Path::ALL {
            let expected = if path.is_available() {
                Ok(path)
            } else {
                Err(PathError::Unavailable { path })
            };
            assert_eq!(Path::named(&path.to_string()), expected);
        }
        for name in ["", "AVX2", "sse2", "scalar "] {
            assert_eq!(
                Path::named(name),
                Err(PathError::Unknown {
                    found: name.to_owned()
                })
            );
        }
    }
}
