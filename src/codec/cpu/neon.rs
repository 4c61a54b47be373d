//! NEON: groups of 32 elements, eight vectors of four.
//!
//! The pass is the one of the other vector paths. What a compiler makes vectors of by itself, or what waits for memory,
//! is left to the scalar kernels: every aarch64 processor has NEON.

use super::super::arithmetic::{INFINITY, LEAST_NORMAL, MAGNITUDE, SIGN};
use super::super::draft::CODE;
use super::super::format::NEGATIVE;
use super::super::given::Nothing;
use super::super::values::Element;
use super::front::FRONT;
use super::{Encoders, Logged, Rule, Table, Tally, scalar};
use half::{bf16, f16};
use std::arch::aarch64::*;
use std::array::from_fn;
use std::mem::MaybeUninit;

pub(super) static TABLE: Table = Table {
    f32: encoders(),
    f16: encoders(),
    bf16: encoders(),
    nothing: encoders(),
    clamp: scalar::clamp,
    apply_sparse: scalar::apply_sparse,
    apply_bitmap,
    apply_f32: scalar::apply_f32,
    apply_bf16: scalar::apply_bf16,
    ask: scalar::ask,
};

const fn encoders<T: Load>() -> Encoders<T> {
    Encoders {
        sparse,
        bitmap,
        dense_f32: scalar::dense_f32,
        dense_bf16: scalar::dense_bf16,
        magnitudes: scalar::magnitudes,
    }
}

/// Whether this processor has the path.
pub(super) fn is_available() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

/// Elements of a vector.
const LANES: usize = 4;
/// Vectors of a group.
const VECTORS: usize = 8;
/// Elements of a group.
const GROUP: usize = LANES * VECTORS;

type Group = [float32x4_t; VECTORS];
type Masks = [uint32x4_t; VECTORS];

/// What a group can be loaded from.
trait Load: Element {
    /// Loads a vector and makes it f32.
    ///
    /// # Safety
    /// The processor has NEON, and `from` points to a vector's elements.
    unsafe fn lanes(from: *const Self) -> float32x4_t;
}

impl Load for f32 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn lanes(from: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_f32(from) }
    }
}

impl Load for f16 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn lanes(from: *const f16) -> float32x4_t {
        // SAFETY: the caller's promise.
        let halves = unsafe { vld1_u16(from.cast()) };
        let singles: float32x4_t;
        // SAFETY: an instruction of NEON that works on registers alone; it has no stable intrinsic.
        unsafe {
            std::arch::asm!(
                "fcvtl {singles:v}.4s, {halves:v}.4h",
                singles = lateout(vreg) singles,
                halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        singles
    }
}

impl Load for Nothing {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn lanes(_: *const Nothing) -> float32x4_t {
        vdupq_n_f32(0.0)
    }
}

impl Load for bf16 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn lanes(from: *const bf16) -> float32x4_t {
        // SAFETY: the caller's promise.
        let halves = unsafe { vld1_u16(from.cast()) };
        vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
    }
}

/// Loads a group.
///
/// # Safety
/// `from` points to a group's elements.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load<T: Load>(from: *const T) -> Group {
    // SAFETY: the caller's promise.
    from_fn(|i| unsafe { T::lanes(from.add(i * LANES)) })
}

/// Stores a group.
///
/// # Safety
/// `to` points to room for a group's elements.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(to: *mut f32, group: Group) {
    for (i, s) in group.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(to.add(i * LANES), s) };
    }
}

/// |s| in bits.
#[inline]
#[target_feature(enable = "neon")]
fn magnitude(s: float32x4_t) -> uint32x4_t {
    vandq_u32(vreinterpretq_u32_f32(s), vdupq_n_u32(MAGNITUDE))
}

#[inline]
#[target_feature(enable = "neon")]
fn largest_of(m: Masks) -> uint32x4_t {
    m.into_iter().fold(vdupq_n_u32(0), |a, b| vmaxq_u32(a, b))
}

/// Where eight elements are set, as bits.
#[inline]
#[target_feature(enable = "neon")]
fn bits_of(low: uint32x4_t, high: uint32x4_t) -> u8 {
    const BITS: [u8; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
    let set = vmovn_u16(vcombine_u16(vmovn_u32(low), vmovn_u32(high)));
    // SAFETY: the array has a vector's size.
    let bits = unsafe { vld1_u8(BITS.as_ptr()) };
    vaddv_u8(vand_u8(set, bits))
}

/// Whether any element has other bits.
#[inline]
#[target_feature(enable = "neon")]
fn differ(a: Group, b: Group) -> bool {
    let mut any = vdupq_n_u32(0);
    for (a, b) in a.into_iter().zip(b) {
        let differing = veorq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b));
        any = vorrq_u32(any, differing);
    }
    vmaxvq_u32(any) != 0
}

/// s of each element of a group where some value is special, in the residual's place. Hits that cannot be had back from
/// what they leave are logged. How many elements were dropped.
#[cold]
#[inline(never)]
fn careful<T: Load>(
    residual: &mut [f32],
    update: &[T],
    first: usize,
    rule: &Rule,
    log: &mut Vec<Logged>,
) -> u32 {
    let (mut dropped, mut largest) = (0, 0);
    for (r, &u) in residual.iter_mut().zip(update) {
        let (s, not_finite) = scalar::accumulate(*r, u);
        *r = s;
        dropped += u32::from(not_finite);
        largest = largest.max(s.to_bits() & MAGNITUDE);
    }
    if largest >= rule.logged {
        scalar::note(residual, first, rule, log);
    }
    dropped
}

/// The fused pass over the whole groups: `emit` is called with a group's place, its s, and where they are hits, before
/// the units are taken away. With `SKIP` it is not called for groups without hits.
#[inline]
#[target_feature(enable = "neon")]
fn pass<T: Load, const SKIP: bool>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    log: &mut Vec<Logged>,
    mut emit: impl FnMut(usize, Group, Masks),
) -> Tally {
    let special = rule.logged.min(INFINITY);
    let threshold = vdupq_n_u32(rule.threshold);
    let mut tally = Tally::default();
    let mut running = vdupq_n_u32(0);
    let groups = residual.chunks_exact_mut(GROUP);
    for (index, (residual, update)) in groups.zip(update.chunks_exact(GROUP)).enumerate() {
        // SAFETY: the slices have a group's elements.
        let (r, u) = unsafe { (load(residual.as_ptr()), load(update.as_ptr())) };
        let mut s: Group = from_fn(|i| vaddq_f32(r[i], u[i]));
        let mut m: Masks = s.map(|s| magnitude(s));
        // Zero wraps round to the top, so that only what is tiny and not 0 is low.
        let least = m
            .map(|m| vsubq_u32(m, vdupq_n_u32(1)))
            .into_iter()
            .fold(vdupq_n_u32(u32::MAX), |a, b| vminq_u32(a, b));
        let mut largest = largest_of(m);
        let most = vmaxvq_u32(largest);
        let tiny = vminvq_u32(least) < T::TINY - 1;
        if SKIP && !tiny && most < rule.threshold {
            running = vmaxq_u32(running, largest);
            if !T::IN_RESIDUAL || differ(r, s) {
                // SAFETY: as above.
                unsafe { store(residual.as_mut_ptr(), s) };
            }
            continue;
        }
        let mut before = r;
        if tiny || most >= special {
            tally.dropped += careful(residual, update, first + index * GROUP, rule, log);
            // SAFETY: as above.
            s = unsafe { load(residual.as_ptr()) };
            m = s.map(|s| magnitude(s));
            largest = largest_of(m);
            before = s;
        }
        running = vmaxq_u32(running, largest);
        let hits = m.map(|m| vcgeq_u32(m, threshold));
        let rest = spend(s, hits, rule.unit);
        // What is written where nothing changes costs as much as what is read.
        if !T::IN_RESIDUAL || differ(before, rest) {
            // SAFETY: as above.
            unsafe { store(residual.as_mut_ptr(), rest) };
        }
        emit(index * GROUP, s, hits);
    }
    tally.largest = vmaxvq_u32(running);
    tally
}

/// `s` less a unit of its sign where `hits` is set. (`s - 0` is `s`: it is not -0.)
#[inline]
#[target_feature(enable = "neon")]
fn spend(s: Group, hits: Masks, unit: f32) -> Group {
    from_fn(|i| {
        let unit = vbslq_f32(vdupq_n_u32(SIGN), s[i], vdupq_n_f32(unit));
        let taken = vandq_u32(vreinterpretq_u32_f32(unit), hits[i]);
        vsubq_f32(s[i], vreinterpretq_f32_u32(taken))
    })
}

#[target_feature(enable = "neon")]
fn sparse<T: Load>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    codes: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    const LANE: [u16; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    let mut count = 0;
    // SAFETY: the array has a vector's size.
    let lane = unsafe { vld1q_u16(LANE.as_ptr()) };
    let emit = |at: usize, s: Group, hits: Masks| {
        for pair in 0..VECTORS / 2 {
            let [low, high] = [2 * pair, 2 * pair + 1];
            let base = (first + at + low * LANES) as u16 & !NEGATIVE;
            let index = vaddq_u16(lane, vdupq_n_u16(base));
            let [below, above] = [s[low], s[high]].map(|s| vreinterpretq_u32_f32(s));
            let upper = vcombine_u16(vshrn_n_u32::<16>(below), vshrn_n_u32::<16>(above));
            let all = vbslq_u16(vdupq_n_u16(NEGATIVE), upper, index);
            let mask = bits_of(hits[low], hits[high]);
            // SAFETY: the table has an entry for each mask. There are at most as many hits as elements before these
            // eight, and the codes have room for one per element: `Kernels::sparse` looks.
            unsafe {
                let front = vld1q_u8(FRONT[usize::from(mask)].as_ptr());
                let place = codes.as_mut_ptr().add(CODE * count);
                vst1q_u8(place.cast(), vqtbl1q_u8(vreinterpretq_u8_u16(all), front));
            }
            count += mask.count_ones() as usize;
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

/// How far each of a bitmap word's elements is from its bit 0, by vector.
const SHIFTS: [[i32; LANES]; 4] = [
    [0, 2, 4, 6],
    [8, 10, 12, 14],
    [16, 18, 20, 22],
    [24, 26, 28, 30],
];

#[target_feature(enable = "neon")]
fn bitmap<T: Load>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    words: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    let mut count = 0;
    // SAFETY: the arrays have a vector's size.
    let shifts = SHIFTS.map(|shifts| unsafe { vld1q_s32(shifts.as_ptr()) });
    let emit = |at: usize, s: Group, hits: Masks| {
        let code: Masks = from_fn(|i| {
            let negative = vshrq_n_u32::<31>(vreinterpretq_u32_f32(s[i]));
            let code = vandq_u32(vaddq_u32(negative, vdupq_n_u32(1)), hits[i]);
            vshlq_u32(code, shifts[i % 4])
        });
        let words_of: [u32; 2] = from_fn(|word| {
            let [a, b, c, d] = from_fn(|i| code[4 * word + i]);
            // No two have a bit in common.
            vaddvq_u32(vorrq_u32(vorrq_u32(a, b), vorrq_u32(c, d)))
        });
        count += (words_of[0].count_ones() + words_of[1].count_ones()) as usize;
        let bytes = words_of.map(u32::to_le_bytes);
        // SAFETY: the words have room for 2 bits an element: `Kernels::bitmap` looks.
        unsafe {
            let place = words.as_mut_ptr().add(at / 4);
            place.cast::<[[u8; 4]; 2]>().write_unaligned(bytes);
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

#[target_feature(enable = "neon")]
fn apply_bitmap(words: &[u8], hits: usize, x: f32, target: &mut [f32]) -> u32 {
    if hits < target.len() / scalar::DRAINED {
        return scalar::drain(words, x, target);
    }
    let canon = |p: float32x4_t| {
        let normal = vcgeq_u32(magnitude(p), vdupq_n_u32(LEAST_NORMAL));
        vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(p), normal))
    };
    // SAFETY: the arrays have a vector's size.
    let shifts = SHIFTS.map(|shifts| vnegq_s32(unsafe { vld1q_s32(shifts.as_ptr()) }));
    let mut not_finite = vdupq_n_u32(0);
    let (bulk, rest) = target.as_chunks_mut::<16>();
    let (bulk_words, rest_words) = words.split_at(4 * bulk.len());
    for (word, target) in bulk_words.as_chunks().0.iter().zip(bulk) {
        let word = u32::from_le_bytes(*word);
        if word == 0 {
            continue;
        }
        for (target, shift) in target.as_chunks_mut::<LANES>().0.iter_mut().zip(shifts) {
            let code = vshlq_u32(vdupq_n_u32(word), shift);
            let hit = vtstq_u32(code, vdupq_n_u32(0b11));
            let minus = vshlq_n_u32::<30>(code);
            let sign = vandq_u32(minus, vdupq_n_u32(SIGN));
            let unit = veorq_u32(vdupq_n_u32(x.to_bits()), sign);
            // SAFETY: the chunk has a vector's elements.
            let p = unsafe { vld1q_f32(target.as_ptr()) };
            let finite = vcltq_u32(magnitude(p), vdupq_n_u32(INFINITY));
            let moved = canon(vaddq_f32(canon(p), vreinterpretq_f32_u32(unit)));
            let after = vbslq_f32(vandq_u32(hit, finite), moved, p);
            // SAFETY: as above.
            unsafe { vst1q_f32(target.as_mut_ptr(), after) };
            // A mask is -1 where it is set.
            not_finite = vsubq_u32(not_finite, vbicq_u32(hit, finite));
        }
    }
    vaddvq_u32(not_finite) + scalar::drain(rest_words, x, rest)
}
