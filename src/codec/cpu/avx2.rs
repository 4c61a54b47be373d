//! AVX2: groups of 32 elements, four vectors of eight.
//!
//! A group that has neither hits nor special values costs a sum, a maximum, a minimum and one test. The test comes
//! before anything is stored, so a group that fails it is simply computed again with care.

use super::super::arithmetic::{INFINITY, LEAST_NORMAL, MAGNITUDE, SIGN};
use super::super::draft::CODE;
use super::super::format::NEGATIVE;
use super::super::given::Nothing;
use super::super::values::Element;
use super::front::FRONT;
use super::{Encoders, Logged, Rule, Table, Tally, scalar};
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

pub(super) static TABLE: Table = Table {
    f32: encoders(),
    f16: encoders(),
    bf16: encoders(),
    nothing: encoders(),
    clamp,
    apply_sparse,
    apply_bitmap,
    apply_f32,
    apply_bf16,
    ask,
};

const fn encoders<T: Load>() -> Encoders<T> {
    Encoders {
        sparse,
        bitmap,
        dense_f32,
        dense_bf16,
        magnitudes,
    }
}

/// Whether this processor has the path.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("popcnt")
}

/// Elements of a vector.
const LANES: usize = 8;
/// Vectors of a group.
const VECTORS: usize = 4;
/// Elements of a group.
const GROUP: usize = LANES * VECTORS;

/// Bytes of a cache line.
const LINE: usize = 64;

/// How far ahead of the pass memory is asked for, in elements: hardware prefetchers stop at a page's end.
const AHEAD: usize = 512;
/// The same for the residual alone: one stream takes as many lines under way as two.
const AHEAD_ALONE: usize = 2048;

type Group = [__m256; VECTORS];

/// The constants of a pass, in registers.
struct Constants {
    magnitude: __m256i,
    sign: __m256,
    one: __m256i,
    /// Hits are above.
    below: __m256i,
    /// Special magnitudes are above: infinities and NaN, and those to be logged.
    ordinary: __m256i,
    /// Magnitudes less 1 up to this are tiny.
    tiny: __m256i,
    unit: __m256,
}

impl Constants {
    #[target_feature(enable = "avx2")]
    fn new<T: Element>(rule: &Rule) -> Constants {
        let all = |bits: u32| _mm256_set1_epi32(bits as i32);
        Constants {
            magnitude: all(MAGNITUDE),
            sign: _mm256_castsi256_ps(all(SIGN)),
            one: all(1),
            below: all(rule.threshold - 1),
            ordinary: all(rule.logged.min(INFINITY) - 1),
            tiny: all(T::TINY - 2),
            unit: _mm256_set1_ps(rule.unit),
        }
    }
}

/// |s| in bits.
#[inline]
#[target_feature(enable = "avx2")]
fn magnitude(s: __m256, constants: &Constants) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(s), constants.magnitude)
}

#[inline]
#[target_feature(enable = "avx2")]
fn largest_of(m: [__m256i; VECTORS]) -> __m256i {
    _mm256_max_epi32(_mm256_max_epi32(m[0], m[1]), _mm256_max_epi32(m[2], m[3]))
}

/// The bits of eight lanes' signs.
#[inline]
#[target_feature(enable = "avx2")]
fn signs(lanes: __m256i) -> u32 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u32
}

/// What a group can be loaded from.
pub(super) trait Load: Element {
    /// Loads a vector and makes it f32.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C, and `from` points to a vector's elements.
    unsafe fn lanes(from: *const Self) -> __m256;
}

impl Load for f32 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn lanes(from: *const f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }
}

impl Load for f16 {
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn lanes(from: *const f16) -> __m256 {
        // SAFETY: the caller's promise.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(from.cast()) })
    }
}

impl Load for Nothing {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn lanes(_: *const Nothing) -> __m256 {
        _mm256_setzero_ps()
    }
}

impl Load for bf16 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn lanes(from: *const bf16) -> __m256 {
        // SAFETY: the caller's promise.
        let halves = unsafe { _mm_loadu_si128(from.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
    }
}

/// Loads a group.
///
/// # Safety
/// `from` points to a group's elements.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load<T: Load>(from: *const T) -> Group {
    // SAFETY: the caller's promise.
    [0, 1, 2, 3].map(|i| unsafe { T::lanes(from.add(i * LANES)) })
}

/// Stores a group.
///
/// # Safety
/// `to` points to room for a group's elements.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(to: *mut f32, group: Group) {
    for (i, s) in group.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to.add(i * LANES), s) };
    }
}

/// Whether any element has other bits.
#[inline]
#[target_feature(enable = "avx2")]
fn differ(a: Group, b: Group) -> bool {
    let mut any = _mm256_setzero_ps();
    for (a, b) in a.into_iter().zip(b) {
        any = _mm256_or_ps(any, _mm256_xor_ps(a, b));
    }
    let any = _mm256_castps_si256(any);
    _mm256_testz_si256(any, any) == 0
}

/// s of each element of a group where some value is special, in the residual's place. Hits that cannot be had back from
/// what they leave are logged. How many elements were dropped.
///
/// Slices, not vectors, go in and out, so that the pass itself keeps its vectors in registers.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,f16c,popcnt")]
fn careful<T: Load>(
    residual: &mut [f32],
    update: &[T],
    first: usize,
    rule: &Rule,
    log: &mut Vec<Logged>,
) -> u32 {
    let all = |bits: u32| _mm256_set1_epi32(bits as i32);
    let size = |x: __m256| _mm256_and_si256(_mm256_castps_si256(x), all(MAGNITUDE));
    let canon = |x: __m256| {
        let normal = _mm256_cmpgt_epi32(size(x), all(LEAST_NORMAL - 1));
        _mm256_and_ps(x, _mm256_castsi256_ps(normal))
    };
    let (mut dropped, mut largest) = (0, _mm256_setzero_si256());
    let vectors = residual.chunks_exact_mut(LANES);
    for (residual, update) in vectors.zip(update.chunks_exact(LANES)) {
        // SAFETY: the slices have a vector's elements.
        let (r, u) = unsafe {
            (
                _mm256_loadu_ps(residual.as_ptr()),
                T::lanes(update.as_ptr()),
            )
        };
        let sum = _mm256_add_ps(r, canon(u));
        let finite = _mm256_cmpgt_epi32(all(INFINITY), size(sum));
        let left = if T::IN_RESIDUAL {
            _mm256_setzero_ps()
        } else {
            r
        };
        let s = _mm256_blendv_ps(left, canon(sum), _mm256_castsi256_ps(finite));
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(residual.as_mut_ptr(), s) };
        dropped += (!signs(finite) & 0xff).count_ones();
        largest = _mm256_max_epi32(largest, size(s));
    }
    if fold(largest) >= rule.logged {
        scalar::note(residual, first, rule, log);
    }
    dropped
}

/// `s` less a unit of its sign where `hits` is set. (`s - 0` is `s`: it is not -0.)
#[inline]
#[target_feature(enable = "avx2")]
fn spend(s: Group, hits: [__m256i; VECTORS], constants: &Constants) -> Group {
    [0, 1, 2, 3].map(|i| {
        let unit = _mm256_or_ps(_mm256_and_ps(s[i], constants.sign), constants.unit);
        _mm256_sub_ps(s[i], _mm256_and_ps(unit, _mm256_castsi256_ps(hits[i])))
    })
}

#[inline]
#[target_feature(enable = "avx2")]
fn fold(running: __m256i) -> u32 {
    let mut lanes = [0u32; LANES];
    // SAFETY: the array has a vector's size.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), running) };
    lanes.into_iter().fold(0, u32::max)
}

/// The fused pass over the whole groups: `emit` is called with a group's place, its s, and where they are hits, before
/// the units are taken away. With `SKIP` it is not called for groups without hits.
///
/// The skip is a branch that is well guessed where few groups have hits; elsewhere it is dearer than the work.
#[inline]
#[target_feature(enable = "avx2,f16c,popcnt")]
fn pass<T: Load, const SKIP: bool>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    log: &mut Vec<Logged>,
    mut emit: impl FnMut(usize, Group, [__m256i; VECTORS]),
) -> Tally {
    let constants = &Constants::new::<T>(rule);
    let mut tally = Tally::default();
    let mut running = _mm256_setzero_si256();
    let groups = residual.chunks_exact_mut(GROUP);
    for (index, (residual, update)) in groups.zip(update.chunks_exact(GROUP)).enumerate() {
        ahead::<T, GROUP>(residual, update);
        // SAFETY: the slices have a group's elements.
        let (r, u) = unsafe { (load(residual.as_ptr()), load(update.as_ptr())) };
        let mut s = [0, 1, 2, 3].map(|i| _mm256_add_ps(r[i], u[i]));
        let mut m = s.map(|s| magnitude(s, constants));
        let mut largest = largest_of(m);
        // Zero wraps round to the top, so that only what is tiny and not 0 is low.
        let less = m.map(|m| _mm256_sub_epi32(m, constants.one));
        let least = _mm256_min_epu32(
            _mm256_min_epu32(less[0], less[1]),
            _mm256_min_epu32(less[2], less[3]),
        );
        let tiny = _mm256_cmpeq_epi32(_mm256_min_epu32(least, constants.tiny), least);
        if SKIP {
            let hit = _mm256_cmpgt_epi32(largest, constants.below);
            if signs(_mm256_or_si256(tiny, hit)) == 0 {
                running = _mm256_max_epi32(running, largest);
                if !T::IN_RESIDUAL || differ(r, s) {
                    // SAFETY: as above.
                    unsafe { store(residual.as_mut_ptr(), s) };
                }
                continue;
            }
        }
        let mut before = r;
        let large = _mm256_cmpgt_epi32(largest, constants.ordinary);
        if signs(_mm256_or_si256(tiny, large)) != 0 {
            tally.dropped += careful(residual, update, first + index * GROUP, rule, log);
            // SAFETY: as above.
            s = unsafe { load(residual.as_ptr()) };
            m = s.map(|s| magnitude(s, constants));
            largest = largest_of(m);
            before = s;
        }
        running = _mm256_max_epi32(running, largest);
        let hits = m.map(|m| _mm256_cmpgt_epi32(m, constants.below));
        let rest = spend(s, hits, constants);
        // What is written where nothing changes costs as much as what is read.
        if !T::IN_RESIDUAL || differ(before, rest) {
            // SAFETY: as above.
            unsafe { store(residual.as_mut_ptr(), rest) };
        }
        emit(index * GROUP, s, hits);
    }
    tally.largest = fold(running);
    tally
}

/// Asks for the memory that the pass will come to after this group of so many elements.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn ahead<T, const ELEMENTS: usize>(residual: &[f32], update: &[T]) {
    // Nothing is read that could be seen, wherever these point.
    let ahead = if size_of::<T>() == 0 {
        AHEAD_ALONE
    } else {
        AHEAD
    };
    for line in (0..ELEMENTS).step_by(LINE / size_of::<f32>()) {
        _mm_prefetch::<_MM_HINT_T0>(residual.as_ptr().wrapping_add(ahead + line).cast());
    }
    if size_of::<T>() == 0 {
        return;
    }
    for line in (0..ELEMENTS).step_by(LINE / size_of::<T>().max(1)) {
        _mm_prefetch::<_MM_HINT_T0>(update.as_ptr().wrapping_add(AHEAD + line).cast());
    }
}

#[target_feature(enable = "avx2,f16c,popcnt")]
fn sparse<T: Load>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    codes: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    let mut hits = 0;
    let emit = |at: usize, s: Group, mask: [__m256i; VECTORS]| {
        let base = _mm256_set1_epi16(((first + at) as u16 & !NEGATIVE) as i16);
        for pair in 0..VECTORS / 2 {
            let [low, high] = [2 * pair, 2 * pair + 1];
            let all = codes_of(s[low], s[high], LANES * low, base);
            for (mask, all) in [
                (mask[low], _mm256_castsi256_si128(all)),
                (mask[high], _mm256_extracti128_si256::<1>(all)),
            ] {
                let mask = signs(mask);
                // SAFETY: the table has an entry for each mask of eight bits. There are at most as many hits as
                // elements before this vector, and the codes have room for one per element: `Kernels::sparse` looks.
                unsafe {
                    let front = _mm_loadu_si128(FRONT[mask as usize].as_ptr().cast());
                    let place = codes.as_mut_ptr().add(CODE * hits);
                    _mm_storeu_si128(place.cast(), _mm_shuffle_epi8(all, front));
                }
                hits += mask.count_ones() as usize;
            }
        }
    };
    // Without an update to wait for, what is done for groups without hits takes longer than a branch that is guessed
    // wrong now and then.
    let every = if T::IN_RESIDUAL {
        rule.crowded
    } else {
        rule.dense
    };
    let mut tally = if every {
        pass::<T, false>(rule, update, residual, first, log, emit)
    } else {
        pass::<T, true>(rule, update, residual, first, log, emit)
    };
    tally.hits = hits;
    let grouped = update.len() / GROUP * GROUP;
    tally.add(scalar::sparse(
        rule,
        &update[grouped..],
        &mut residual[grouped..],
        first + grouped,
        &mut codes[CODE * hits..],
        log,
    ));
    tally
}

/// The codes that 16 elements have if they are hits, `offset` elements into the group that starts at `base`.
#[inline]
#[target_feature(enable = "avx2")]
fn codes_of(low: __m256, high: __m256, offset: usize, base: __m256i) -> __m256i {
    let lanes = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let index = _mm256_add_epi16(lanes, _mm256_set1_epi16(offset as i16));
    let sign = _mm256_and_si256(
        halves(_mm256_castps_si256(low), _mm256_castps_si256(high)),
        _mm256_set1_epi16(NEGATIVE as i16),
    );
    _mm256_or_si256(sign, _mm256_add_epi16(base, index))
}

/// 16 lanes of 32 bits, saturated to 16, in their order.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(low: __m256i, high: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high))
}

#[target_feature(enable = "avx2,f16c,popcnt")]
fn bitmap<T: Load>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    words: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    let mut hits = 0;
    let emit = |at: usize, s: Group, mask: [__m256i; VECTORS]| {
        // In 16 bits an element: bit 7 for +v, bit 15 for -v. The sign bit saturates to bit 15 alone.
        let sign = _mm256_set1_epi32(SIGN as i32);
        let plus = _mm256_set1_epi32(0x80);
        let code = [0, 1, 2, 3].map(|i| {
            let code = _mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(s[i]), sign), plus);
            _mm256_and_si256(code, mask[i])
        });
        let pairs = [halves(code[0], code[1]), halves(code[2], code[3])];
        let bits = pairs.map(|pair| _mm256_movemask_epi8(pair) as u32);
        hits += (bits[0].count_ones() + bits[1].count_ones()) as usize;
        // SAFETY: the words have room for 2 bits an element: `Kernels::bitmap` looks.
        unsafe {
            let place = words.as_mut_ptr().add(at / 4);
            place.cast::<[u32; 2]>().write_unaligned(bits);
        }
    };
    let mut tally = pass::<T, false>(rule, update, residual, first, log, emit);
    tally.hits = hits;
    let grouped = update.len() / GROUP * GROUP;
    tally.add(scalar::bitmap(
        rule,
        &update[grouped..],
        &mut residual[grouped..],
        first + grouped,
        &mut words[grouped / 4..],
        log,
    ));
    tally
}

#[target_feature(enable = "avx2")]
pub(super) fn clamp(residual: &mut [f32], bound: f32) -> f64 {
    scalar::clamp(residual, bound)
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn magnitudes<T: Load>(residual: &[f32], update: &[T], out: &mut Vec<f32>) {
    scalar::magnitudes(residual, update, out);
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn dense_f32<T: Load>(
    update: &[T],
    residual: &mut [f32],
    out: &mut [MaybeUninit<u8>],
) -> u32 {
    scalar::dense_f32(update, residual, out)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn dense_bf16<T: Load>(
    update: &[T],
    residual: &mut [f32],
    out: &mut [MaybeUninit<u8>],
) -> u32 {
    scalar::dense_bf16(update, residual, out)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn apply_f32(values: &[u8], inverse: f32, target: &mut [f32]) -> u32 {
    scalar::apply_f32(values, inverse, target)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn apply_bf16(values: &[u8], inverse: f32, target: &mut [f32]) -> u32 {
    scalar::apply_bf16(values, inverse, target)
}

/// How many hits ahead of the one that is applied memory is asked for.
const HITS_AHEAD: usize = 16;

/// # Safety
/// Each hit's index is below `target.len()`.
#[target_feature(enable = "avx2")]
unsafe fn apply_sparse(hits: &[u8], x: f32, target: &mut [f32]) -> u32 {
    let start = target.as_ptr();
    let code = |code: &[u8]| u16::from_le_bytes([code[0], code[1]]);
    let ask = |code: u16| {
        let place = start.wrapping_add(usize::from(code & !NEGATIVE));
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    };
    let ahead = hits.len().min(CODE * HITS_AHEAD);
    hits[..ahead]
        .chunks_exact(CODE)
        .for_each(|hit| ask(code(hit)));
    let mut not_finite = 0;
    for (hit, later) in hits
        .chunks_exact(CODE)
        .zip(hits[ahead..].chunks_exact(CODE))
    {
        ask(code(later));
        // SAFETY: the caller's promise.
        not_finite += unsafe { scalar::apply_hit(code(hit), x, target) };
    }
    // SAFETY: the caller's promise.
    not_finite + unsafe { scalar::apply_sparse(&hits[hits.len() - ahead..], x, target) }
}

#[target_feature(enable = "avx2")]
pub(super) fn ask(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast());
    }
}

#[target_feature(enable = "avx2,popcnt")]
fn apply_bitmap(words: &[u8], hits: usize, x: f32, target: &mut [f32]) -> u32 {
    if hits < target.len() / scalar::DRAINED {
        return drain(words, x, target);
    }
    let infinity = _mm256_set1_epi32(INFINITY as i32);
    let least = _mm256_set1_epi32(LEAST_NORMAL as i32 - 1);
    let canon = |p: __m256| {
        let size = _mm256_and_si256(_mm256_castps_si256(p), _mm256_set1_epi32(MAGNITUDE as i32));
        _mm256_and_ps(p, _mm256_castsi256_ps(_mm256_cmpgt_epi32(size, least)))
    };
    let unit = _mm256_castps_si256(_mm256_set1_ps(x));
    let shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    let mut not_finite = 0;
    let whole = target.len() / 16;
    let (bulk, rest) = target.split_at_mut(16 * whole);
    for (word, target) in words.chunks_exact(4).zip(bulk.chunks_exact_mut(16)) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if word == 0 {
            continue;
        }
        for (half, target) in target.chunks_exact_mut(LANES).enumerate() {
            let codes = _mm256_srlv_epi32(_mm256_set1_epi32((word >> (16 * half)) as i32), shifts);
            // Bit 0 and bit 1 of each code, at the sign.
            let plus = _mm256_slli_epi32::<31>(codes);
            let minus = _mm256_slli_epi32::<30>(codes);
            let hit = _mm256_or_si256(plus, minus);
            let sign = _mm256_and_si256(minus, _mm256_set1_epi32(SIGN as i32));
            // SAFETY: the chunk has a vector's elements.
            let p = unsafe { _mm256_loadu_ps(target.as_ptr()) };
            let size =
                _mm256_and_si256(_mm256_castps_si256(p), _mm256_set1_epi32(MAGNITUDE as i32));
            let finite = _mm256_cmpgt_epi32(infinity, size);
            let moved = _mm256_add_ps(canon(p), _mm256_castsi256_ps(_mm256_xor_si256(unit, sign)));
            let taken = _mm256_castsi256_ps(_mm256_and_si256(hit, finite));
            // SAFETY: as above. The sign bit of `taken` is what `blendv` looks at.
            unsafe {
                _mm256_storeu_ps(
                    target.as_mut_ptr(),
                    _mm256_blendv_ps(p, canon(moved), taken),
                )
            };
            not_finite += signs(_mm256_andnot_si256(finite, hit)).count_ones();
        }
    }
    not_finite + drain(&words[4 * whole..], x, rest)
}

#[inline]
#[target_feature(enable = "avx2,popcnt")]
pub(super) fn drain(words: &[u8], x: f32, target: &mut [f32]) -> u32 {
    scalar::drain(words, x, target)
}
