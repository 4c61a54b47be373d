//! AVX-512: groups of 64 elements, four vectors of 16, and what is found in them as masks of 64 bits.
//!
//! The pass is the one of [`avx2`], with comparisons into masks. A bitmap's words are two such masks with their bits
//! interleaved; the codes of 32 elements go to the front of a vector by one instruction (AVX512-VBMI2). Where nothing
//! is gained, the kernels of [`avx2`] are used: every processor of this path has its instructions.

use super::super::arithmetic::{INFINITY, LEAST_NORMAL, MAGNITUDE, SIGN};
use super::super::draft::CODE;
use super::super::format::NEGATIVE;
use super::super::given::Nothing;
use super::super::values::Element;
use super::{Encoders, Logged, Rule, Table, Tally, avx2, scalar};
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

pub(super) static TABLE: Table = Table {
    f32: encoders(),
    f16: encoders(),
    bf16: encoders(),
    nothing: encoders(),
    clamp: avx2::clamp,
    apply_sparse,
    apply_bitmap,
    apply_f32,
    apply_bf16,
    ask: avx2::ask,
};

const fn encoders<T: Load>() -> Encoders<T> {
    Encoders {
        sparse,
        bitmap,
        dense_f32,
        dense_bf16,
        magnitudes: avx2::magnitudes,
    }
}

/// Whether this processor has the path.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("bmi2")
        && avx2::is_available()
}

/// Elements of a vector.
const LANES: usize = 16;
/// Vectors of a group.
const VECTORS: usize = 4;
/// Elements of a group: as many as a mask has bits.
const GROUP: usize = LANES * VECTORS;

type Group = [__m512; VECTORS];

/// The lower bits of 32 elements' codes in a bitmap.
const LOWER: u64 = 0x5555_5555_5555_5555;

/// The constants of a pass, in registers.
struct Constants {
    magnitude: __m512i,
    sign: __m512i,
    one: __m512i,
    /// Hits are from here on.
    threshold: __m512i,
    /// Special magnitudes are from here on: infinities and NaN, and those to be logged.
    special: __m512i,
    /// Magnitudes less 1 below this are tiny.
    tiny: __m512i,
    unit: __m512i,
}

impl Constants {
    #[target_feature(enable = "avx512f")]
    fn new<T: Element>(rule: &Rule) -> Constants {
        let all = |bits: u32| _mm512_set1_epi32(bits as i32);
        Constants {
            magnitude: all(MAGNITUDE),
            sign: all(SIGN),
            one: all(1),
            threshold: all(rule.threshold),
            special: all(rule.logged.min(INFINITY)),
            tiny: all(T::TINY - 1),
            unit: all(rule.unit.to_bits()),
        }
    }
}

/// |s| in bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn magnitude(s: __m512, constants: &Constants) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(s), constants.magnitude)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn largest_of(m: [__m512i; VECTORS]) -> __m512i {
    _mm512_max_epu32(_mm512_max_epu32(m[0], m[1]), _mm512_max_epu32(m[2], m[3]))
}

/// The masks of a group's vectors as one, a bit for each element.
#[inline]
fn joined(masks: [__mmask16; VECTORS]) -> u64 {
    let [a, b, c, d] = masks.map(u64::from);
    a | b << 16 | c << 32 | d << 48
}

/// What a group can be loaded from.
trait Load: avx2::Load {
    /// Loads a vector and makes it f32.
    ///
    /// # Safety
    /// The processor has AVX512F, and `from` points to a vector's elements.
    unsafe fn lanes(from: *const Self) -> __m512;
}

impl Load for f32 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn lanes(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }
}

impl Load for f16 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn lanes(from: *const f16) -> __m512 {
        // SAFETY: the caller's promise.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
    }
}

impl Load for Nothing {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn lanes(_: *const Nothing) -> __m512 {
        _mm512_setzero_ps()
    }
}

impl Load for bf16 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn lanes(from: *const bf16) -> __m512 {
        // SAFETY: the caller's promise.
        let halves = unsafe { _mm256_loadu_si256(from.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }
}

/// Loads a group.
///
/// # Safety
/// `from` points to a group's elements.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<T: Load>(from: *const T) -> Group {
    // SAFETY: the caller's promise.
    [0, 1, 2, 3].map(|i| unsafe { <T as Load>::lanes(from.add(i * LANES)) })
}

/// Stores a group.
///
/// # Safety
/// `to` points to room for a group's elements.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(to: *mut f32, group: Group) {
    for (i, s) in group.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to.add(i * LANES), s) };
    }
}

/// Whether any element has other bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn differ(a: Group, b: Group) -> bool {
    let mut any = _mm512_setzero_si512();
    for (a, b) in a.into_iter().zip(b) {
        // any | (a ^ b)
        let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
        any = _mm512_ternarylogic_epi32::<0b11_11_01_10>(any, a, b);
    }
    _mm512_test_epi32_mask(any, any) != 0
}

/// s of each element of a group where some value is special, in the residual's place. Hits that cannot be had back from
/// what they leave are logged. How many elements were dropped.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn careful<T: Load>(
    residual: &mut [f32],
    update: &[T],
    first: usize,
    rule: &Rule,
    log: &mut Vec<Logged>,
) -> u32 {
    let all = |bits: u32| _mm512_set1_epi32(bits as i32);
    let size = |x: __m512| _mm512_and_si512(_mm512_castps_si512(x), all(MAGNITUDE));
    let canon = |x: __m512| {
        let normal = _mm512_cmpge_epu32_mask(size(x), all(LEAST_NORMAL));
        _mm512_maskz_mov_ps(normal, x)
    };
    let (mut dropped, mut largest) = (0, _mm512_setzero_si512());
    let vectors = residual.chunks_exact_mut(LANES);
    for (residual, update) in vectors.zip(update.chunks_exact(LANES)) {
        // SAFETY: the slices have a vector's elements.
        let (r, u) = unsafe {
            let u = <T as Load>::lanes(update.as_ptr());
            (_mm512_loadu_ps(residual.as_ptr()), u)
        };
        let sum = _mm512_add_ps(r, canon(u));
        let finite = _mm512_cmplt_epu32_mask(size(sum), all(INFINITY));
        let left = if T::IN_RESIDUAL {
            _mm512_setzero_ps()
        } else {
            r
        };
        let s = _mm512_mask_mov_ps(left, finite, canon(sum));
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(residual.as_mut_ptr(), s) };
        dropped += (!finite).count_ones();
        largest = _mm512_max_epu32(largest, size(s));
    }
    if _mm512_reduce_max_epu32(largest) >= rule.logged {
        scalar::note(residual, first, rule, log);
    }
    dropped
}

/// The fused pass over the whole groups: `emit` is called with a group's place, which of its elements are hits, and
/// which are negative. With `SKIP` it is not called for groups without hits. See [`avx2`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn pass<T: Load, const SKIP: bool>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    log: &mut Vec<Logged>,
    mut emit: impl FnMut(usize, u64, u64),
) -> Tally {
    let constants = &Constants::new::<T>(rule);
    let mut tally = Tally::default();
    let mut running = _mm512_setzero_si512();
    let groups = residual.chunks_exact_mut(GROUP);
    for (index, (residual, update)) in groups.zip(update.chunks_exact(GROUP)).enumerate() {
        avx2::ahead::<T, GROUP>(residual, update);
        // SAFETY: the slices have a group's elements.
        let (r, u) = unsafe { (load(residual.as_ptr()), load(update.as_ptr())) };
        let mut s = [0, 1, 2, 3].map(|i| _mm512_add_ps(r[i], u[i]));
        let mut m = s.map(|s| magnitude(s, constants));
        let mut largest = largest_of(m);
        // Zero wraps round to the top, so that only what is tiny and not 0 is low.
        let less = m.map(|m| _mm512_sub_epi32(m, constants.one));
        let least = _mm512_min_epu32(
            _mm512_min_epu32(less[0], less[1]),
            _mm512_min_epu32(less[2], less[3]),
        );
        let tiny = _mm512_cmplt_epu32_mask(least, constants.tiny);
        if SKIP {
            let hit = _mm512_cmpge_epu32_mask(largest, constants.threshold);
            if tiny | hit == 0 {
                running = _mm512_max_epu32(running, largest);
                if !T::IN_RESIDUAL || differ(r, s) {
                    // SAFETY: as above.
                    unsafe { store(residual.as_mut_ptr(), s) };
                }
                continue;
            }
        }
        let mut before = r;
        let large = _mm512_cmpge_epu32_mask(largest, constants.special);
        if tiny | large != 0 {
            tally.dropped += careful(residual, update, first + index * GROUP, rule, log);
            // SAFETY: as above.
            s = unsafe { load(residual.as_ptr()) };
            m = s.map(|s| magnitude(s, constants));
            largest = largest_of(m);
            before = s;
        }
        running = _mm512_max_epu32(running, largest);
        let hits = m.map(|m| _mm512_cmpge_epu32_mask(m, constants.threshold));
        let negative = s.map(|s| _mm512_movepi32_mask(_mm512_castps_si512(s)));
        let rest = spend(s, hits, constants);
        // What is written where nothing changes costs as much as what is read.
        if !T::IN_RESIDUAL || differ(before, rest) {
            // SAFETY: as above.
            unsafe { store(residual.as_mut_ptr(), rest) };
        }
        emit(index * GROUP, joined(hits), joined(negative));
    }
    tally.largest = _mm512_reduce_max_epu32(running);
    tally
}

/// `s` less a unit of its sign where `hits` is set.
#[inline]
#[target_feature(enable = "avx512f")]
fn spend(s: Group, hits: [__mmask16; VECTORS], constants: &Constants) -> Group {
    [0, 1, 2, 3].map(|i| {
        let bits = _mm512_castps_si512(s[i]);
        // The sign bit of s, all other bits of the unit.
        let unit = _mm512_ternarylogic_epi32::<0b11_10_10_10>(bits, constants.sign, constants.unit);
        _mm512_mask_sub_ps(s[i], hits[i], s[i], _mm512_castsi512_ps(unit))
    })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vbmi2,popcnt")]
fn sparse<T: Load>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    codes: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    let mut count = 0;
    let lanes: [u16; 32] = std::array::from_fn(|lane| lane as u16);
    // SAFETY: the array has a vector's size.
    let lanes = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
    let sign = _mm512_set1_epi16(NEGATIVE as i16);
    let emit = |at: usize, hits: u64, negative: u64| {
        for half in [0, 32] {
            let (hits, negative) = ((hits >> half) as u32, (negative >> half) as u32);
            let base = (first + at + half) as u16 & !NEGATIVE;
            let index = _mm512_add_epi16(lanes, _mm512_set1_epi16(base as i16));
            let all = _mm512_mask_add_epi16(index, negative, index, sign);
            let front = _mm512_maskz_compress_epi16(hits, all);
            // SAFETY: there are at most as many hits as elements before this half, and the codes have room for one
            // per element, this half's 32 too: `Kernels::sparse` looks.
            unsafe { _mm512_storeu_si512(codes.as_mut_ptr().add(CODE * count).cast(), front) };
            count += hits.count_ones() as usize;
        }
    };
    let mut tally = if rule.dense {
        pass::<T, false>(rule, update, residual, first, log, emit)
    } else {
        pass::<T, true>(rule, update, residual, first, log, emit)
    };
    tally.hits = count;
    let grouped = update.len() / GROUP * GROUP;
    tally.add(scalar::sparse(
        rule,
        &update[grouped..],
        &mut residual[grouped..],
        first + grouped,
        &mut codes[CODE * count..],
        log,
    ));
    tally
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,bmi2,popcnt")]
fn bitmap<T: Load>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    words: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    let mut count = 0;
    let emit = |at: usize, hits: u64, negative: u64| {
        let (plus, minus) = (hits & !negative, hits & negative);
        let bits = [0, 32]
            .map(|half| _pdep_u64(plus >> half, LOWER) | _pdep_u64(minus >> half, LOWER << 1));
        count += hits.count_ones() as usize;
        // SAFETY: the words have room for 2 bits an element: `Kernels::bitmap` looks.
        unsafe {
            let place = words.as_mut_ptr().add(at / 4);
            place.cast::<[u64; 2]>().write_unaligned(bits);
        }
    };
    let mut tally = pass::<T, false>(rule, update, residual, first, log, emit);
    tally.hits = count;
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

/// `p` with subnormals and -0 made +0, and its magnitude's bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn canon(p: __m512) -> (__m512, __m512i) {
    let size = _mm512_and_si512(_mm512_castps_si512(p), _mm512_set1_epi32(MAGNITUDE as i32));
    let normal = _mm512_cmpge_epu32_mask(size, _mm512_set1_epi32(LEAST_NORMAL as i32));
    (_mm512_maskz_mov_ps(normal, p), size)
}

/// How many hits ahead of those that are applied memory is asked for.
const HITS_AHEAD: usize = 32;

/// # Safety
/// Each hit's index is below `target.len()`.
#[target_feature(enable = "avx512f,avx512vl,popcnt")]
unsafe fn apply_sparse(hits: &[u8], x: f32, target: &mut [f32]) -> u32 {
    let infinity = _mm512_set1_epi32(INFINITY as i32);
    let unit = _mm512_castps_si512(_mm512_set1_ps(x));
    let start = target.as_mut_ptr();
    let mut not_finite = 0;
    let (vectors, rest) = hits.as_chunks::<{ CODE * LANES }>();
    for (i, vector) in vectors.iter().enumerate() {
        if let Some(later) = hits.get(CODE * (LANES * i + HITS_AHEAD)..) {
            for code in later[..later.len().min(CODE * LANES)].as_chunks::<2>().0 {
                let code = u16::from_le_bytes(*code);
                _mm_prefetch::<_MM_HINT_T0>(
                    start.wrapping_add(usize::from(code & !NEGATIVE)).cast(),
                );
            }
        }
        // SAFETY: the array has a vector's size.
        let codes = unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) };
        let codes = _mm512_cvtepu16_epi32(codes);
        let index = _mm512_and_si512(codes, _mm512_set1_epi32(i32::from(!NEGATIVE)));
        let sign = _mm512_slli_epi32::<16>(_mm512_andnot_si512(index, codes));
        // SAFETY: the caller's promise.
        let p = unsafe { _mm512_i32gather_ps::<4>(index, start) };
        let (before, size) = canon(p);
        let finite = _mm512_cmplt_epu32_mask(size, infinity);
        let unit = _mm512_castsi512_ps(_mm512_xor_si512(unit, sign));
        let (after, _) = canon(_mm512_add_ps(before, unit));
        // SAFETY: the caller's promise.
        unsafe { _mm512_mask_i32scatter_ps::<4>(start, finite, index, after) };
        not_finite += (!finite).count_ones();
    }
    // SAFETY: the caller's promise.
    not_finite + unsafe { scalar::apply_sparse(rest, x, target) }
}

#[target_feature(enable = "avx512f,avx2,bmi2,popcnt")]
fn apply_bitmap(words: &[u8], hits: usize, x: f32, target: &mut [f32]) -> u32 {
    if hits < target.len() / scalar::DRAINED {
        return avx2::drain(words, x, target);
    }
    let infinity = _mm512_set1_epi32(INFINITY as i32);
    let [plus_unit, minus_unit] = [x, -x].map(|x| _mm512_set1_ps(x));
    let mut not_finite = 0;
    let whole = target.len() / (2 * LANES);
    let (bulk, rest) = target.split_at_mut(2 * LANES * whole);
    let (words, rest_words) = words.split_at(8 * whole);
    for (pair, target) in words
        .as_chunks()
        .0
        .iter()
        .zip(bulk.chunks_exact_mut(2 * LANES))
    {
        let pair = u64::from_le_bytes(*pair);
        if pair == 0 {
            continue;
        }
        let minus = _pext_u64(pair, LOWER << 1);
        let hit = _pext_u64(pair, LOWER) | minus;
        for (half, target) in target.chunks_exact_mut(LANES).enumerate() {
            let [minus, hit] = [minus, hit].map(|mask| (mask >> (LANES * half)) as __mmask16);
            // SAFETY: the chunk has a vector's elements.
            let p = unsafe { _mm512_loadu_ps(target.as_ptr()) };
            let (before, size) = canon(p);
            let finite = _mm512_cmplt_epu32_mask(size, infinity);
            let unit = _mm512_mask_blend_ps(minus, plus_unit, minus_unit);
            let (after, _) = canon(_mm512_add_ps(before, unit));
            let after = _mm512_mask_blend_ps(hit & finite, p, after);
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(target.as_mut_ptr(), after) };
            not_finite += (hit & !finite).count_ones();
        }
    }
    not_finite + avx2::drain(rest_words, x, rest)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
fn dense_f32<T: Load>(update: &[T], residual: &mut [f32], out: &mut [MaybeUninit<u8>]) -> u32 {
    avx2::dense_f32(update, residual, out)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
fn dense_bf16<T: Load>(update: &[T], residual: &mut [f32], out: &mut [MaybeUninit<u8>]) -> u32 {
    avx2::dense_bf16(update, residual, out)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn apply_f32(values: &[u8], inverse: f32, target: &mut [f32]) -> u32 {
    scalar::apply_f32(values, inverse, target)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn apply_bf16(values: &[u8], inverse: f32, target: &mut [f32]) -> u32 {
    scalar::apply_bf16(values, inverse, target)
}
