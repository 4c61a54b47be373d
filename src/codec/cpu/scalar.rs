//! Plain Rust: the written meaning of every kernel.
//!
//! The other paths hand their last few elements to these kernels, and are tested against them.

use super::super::arithmetic::{INFINITY, MAGNITUDE, SIGN, canon, choose};
use super::super::dense;
use super::super::draft::CODE;
use super::super::format::{LOWER, NEGATIVE};
use super::super::values::{Element, SINGLES};
use super::{Encoders, Logged, Rule, Table, Tally};
use std::mem::MaybeUninit;

/// Elements that are looked at together.
const GROUP: usize = 32;

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

const fn encoders<T: Element>() -> Encoders<T> {
    Encoders {
        sparse,
        bitmap,
        dense_f32,
        dense_bf16,
        magnitudes,
    }
}

/// `s = canon(r + canon(u))`, or `r` and `true` where that is not finite: the element of the update is dropped. If that
/// is in the residual already, `r` is gone with it, and +0 is left.
#[inline(always)]
pub(crate) fn accumulate<T: Element>(r: f32, u: T) -> (f32, bool) {
    accumulate_single::<T>(r, u.to_f32())
}

#[inline(always)]
fn accumulate_single<T: Element>(r: f32, u: f32) -> (f32, bool) {
    let sum = r + canon(u);
    // An update that is not finite makes a sum that is not.
    let finite = sum.to_bits() & MAGNITUDE < INFINITY;
    let left = if T::IN_RESIDUAL { 0.0 } else { r };
    (choose(finite, canon(sum), left), !finite)
}

/// `s` with one unit of its sign taken away.
///
/// Never subnormal nor -0, so canonical: both have quanta of at least 2^-123, and x - x is +0.
#[inline(always)]
pub(super) fn spend(s: f32, unit: f32) -> f32 {
    s - f32::from_bits(s.to_bits() & SIGN | unit.to_bits())
}

/// The fused pass: `emit` is called with the place and s of each hit.
#[inline(always)]
fn pass<T: Element>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    log: &mut Vec<Logged>,
    mut emit: impl FnMut(usize, f32),
) -> Tally {
    let mut tally = Tally::default();
    let groups = residual.chunks_mut(GROUP).zip(update.chunks(GROUP));
    for (group, (residual, update)) in groups.enumerate() {
        if let Some(largest) = accumulate_plain(rule, residual, update) {
            tally.largest = tally.largest.max(largest);
            continue;
        }
        for (i, (r, &u)) in residual.iter_mut().zip(update).enumerate() {
            let (s, dropped) = accumulate(*r, u);
            let size = s.to_bits() & MAGNITUDE;
            tally.dropped += u32::from(dropped);
            tally.largest = tally.largest.max(size);
            *r = s;
            if size >= rule.threshold {
                let at = GROUP * group + i;
                if size >= rule.logged {
                    log.push(((first + at) as u32, s));
                }
                tally.hits += 1;
                *r = spend(s, rule.unit);
                emit(at, s);
            }
        }
    }
    tally
}

/// Accumulates a group that has neither hits nor special values, and says how large it is; leaves any other alone. The
/// loops have neither branches nor unknown lengths, so that a compiler can make vectors of them.
#[inline(always)]
fn accumulate_plain<T: Element>(rule: &Rule, residual: &mut [f32], update: &[T]) -> Option<u32> {
    let residual: &mut [f32; GROUP] = residual.try_into().ok()?;
    let update: &[T; GROUP] = update.try_into().ok()?;
    let mut sums = [0f32; GROUP];
    let (mut largest, mut tiny) = (0i32, 0u32);
    for i in 0..GROUP {
        sums[i] = residual[i] + update[i].to_f32();
        let size = (sums[i].to_bits() & MAGNITUDE) as i32;
        largest = largest.max(size);
        tiny |= u32::from(size < T::TINY as i32) & u32::from(size != 0);
    }
    let largest = largest as u32;
    if largest >= rule.threshold || tiny != 0 {
        return None;
    }
    // What is written where nothing changes costs as much as what is read.
    if !T::IN_RESIDUAL || differ(residual, &sums) {
        *residual = sums;
    }
    Some(largest)
}

#[inline(always)]
fn differ(a: &[f32; GROUP], b: &[f32; GROUP]) -> bool {
    let pairs = a.iter().zip(b);
    pairs.fold(0, |any, (a, b)| any | (a.to_bits() ^ b.to_bits())) != 0
}

/// For the other paths: logs the elements of a group that are to be logged. They are hits: they are far above the
/// threshold.
pub(super) fn note(s: &[f32], first: usize, rule: &Rule, log: &mut Vec<Logged>) {
    for (i, s) in s.iter().enumerate() {
        if s.to_bits() & MAGNITUDE >= rule.logged {
            log.push(((first + i) as u32, *s));
        }
    }
}

pub(super) fn sparse<T: Element>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    codes: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    let mut places = codes.chunks_exact_mut(CODE);
    pass(rule, update, residual, first, log, |at, s| {
        let sign = if s.is_sign_negative() { NEGATIVE } else { 0 };
        let code = (first + at) as u16 & !NEGATIVE | sign;
        if let Some(place) = places.next() {
            place.copy_from_slice(&code.to_le_bytes().map(MaybeUninit::new));
        }
    })
}

pub(super) fn bitmap<T: Element>(
    rule: &Rule,
    update: &[T],
    residual: &mut [f32],
    first: usize,
    words: &mut [MaybeUninit<u8>],
    log: &mut Vec<Logged>,
) -> Tally {
    let mut tally = Tally::default();
    let groups = residual.chunks_mut(GROUP).zip(update.chunks(GROUP));
    for ((group, (residual, update)), words) in groups.enumerate().zip(words.chunks_mut(GROUP / 4))
    {
        let mut bits = 0u64;
        tally.add(pass(
            rule,
            update,
            residual,
            first + GROUP * group,
            log,
            |at, s| {
                let code = if s.is_sign_negative() { 0b10 } else { 0b01 };
                bits |= code << (2 * at);
            },
        ));
        // A word or two: as many as the group has, except that the last may have more room.
        let bytes = 4 * residual.len().div_ceil(16);
        words[..bytes].copy_from_slice(&bits.to_le_bytes().map(MaybeUninit::new)[..bytes]);
    }
    tally
}

#[inline(always)]
pub(super) fn clamp(residual: &mut [f32], bound: f32) -> f64 {
    let mut taken = 0.0;
    // The sum is in index order: groups with nothing past the bound add nothing to it.
    for group in residual.chunks_mut(GROUP) {
        if group.iter().any(|r| r.abs() > bound) {
            taken = clamp_from(taken, group, bound);
        }
    }
    taken
}

/// Clamps, and adds what that takes away to `taken`, in index order.
fn clamp_from(mut taken: f64, residual: &mut [f32], bound: f32) -> f64 {
    for r in residual {
        if r.abs() > bound {
            taken += f64::from(r.abs()) - f64::from(bound);
            *r = bound.copysign(*r);
        }
    }
    taken
}

/// `canon(canon(p) + x)`, or `p` and `true` where `p` is not finite.
///
/// A hit keeps a finite `p` finite: the scaled unit is below 2^100, far less than half a step of the largest f32. A dense
/// value can overflow it, as it would in any trainer; that is seen, and counted, from then on.
#[inline(always)]
pub(super) fn moved(p: f32, x: f32) -> (f32, bool) {
    let finite = p.to_bits() & MAGNITUDE < INFINITY;
    (choose(finite, canon(canon(p) + x), p), !finite)
}

/// # Safety
/// Each hit's index is below `target.len()`.
pub(super) unsafe fn apply_sparse(hits: &[u8], x: f32, target: &mut [f32]) -> u32 {
    let codes = hits
        .chunks_exact(CODE)
        .map(|code| u16::from_le_bytes([code[0], code[1]]));
    // SAFETY: the caller's promise.
    codes
        .map(|code| unsafe { apply_hit(code, x, target) })
        .sum()
}

/// One hit; 1 if its element is not finite.
///
/// # Safety
/// Its index is below `target.len()`.
#[inline(always)]
pub(super) unsafe fn apply_hit(code: u16, x: f32, target: &mut [f32]) -> u32 {
    let x = f32::from_bits(x.to_bits() ^ u32::from(code & NEGATIVE) << 16);
    let index = usize::from(code & !NEGATIVE);
    debug_assert!(index < target.len());
    // SAFETY: the caller's promise.
    let p = unsafe { target.get_unchecked_mut(index) };
    let (after, stays) = moved(*p, x);
    *p = after;
    u32::from(stays)
}

pub(super) fn apply_bitmap(words: &[u8], _hits: usize, x: f32, target: &mut [f32]) -> u32 {
    let mut not_finite = 0;
    for (word, target) in words.chunks_exact(4).zip(target.chunks_mut(16)) {
        not_finite += apply_word(
            u32::from_le_bytes([word[0], word[1], word[2], word[3]]),
            x,
            target,
        );
    }
    not_finite
}

/// For the other paths: bitmaps with fewer hits than one in this many elements are drained.
pub(super) const DRAINED: usize = 32;

/// A bitmap of few hits, bit by bit, empty words two at a time.
#[inline(always)]
pub(super) fn drain(words: &[u8], x: f32, target: &mut [f32]) -> u32 {
    let mut not_finite = 0;
    for (words, target) in words.chunks(8).zip(target.chunks_mut(32)) {
        if words.iter().all(|&byte| byte == 0) {
            continue;
        }
        not_finite += apply_bitmap(words, 0, x, target);
    }
    not_finite
}

/// One word of a bitmap onto its elements, bit by bit.
#[inline(always)]
pub(crate) fn apply_word(word: u32, x: f32, target: &mut [f32]) -> u32 {
    let mut not_finite = 0;
    let mut left = (word | word >> 1) & LOWER;
    while left != 0 {
        let bit = left.trailing_zeros();
        left &= left - 1;
        let x = f32::from_bits(x.to_bits() ^ (word >> bit & 0b10) << 30);
        if let Some(p) = target.get_mut(bit as usize / 2) {
            let (after, stays) = moved(*p, x);
            *p = after;
            not_finite += u32::from(stays);
        }
    }
    not_finite
}

/// The dense pass: s goes out as f32, and nothing stays.
///
/// The loops over single pieces are such that a compiler makes vectors of them, where the caller lets it.
#[inline(always)]
pub(super) fn dense_f32<T: Element>(
    update: &[T],
    residual: &mut [f32],
    out: &mut [MaybeUninit<u8>],
) -> u32 {
    let (values, _) = out.as_chunks_mut::<{ size_of::<f32>() }>();
    whole(update, residual, values, |s, value| {
        *value = s.to_le_bytes().map(MaybeUninit::new);
        0.0
    })
}

/// The dense pass: s goes out as bf16, and what that rounds away stays.
#[inline(always)]
pub(super) fn dense_bf16<T: Element>(
    update: &[T],
    residual: &mut [f32],
    out: &mut [MaybeUninit<u8>],
) -> u32 {
    let (values, _) = out.as_chunks_mut::<{ size_of::<u16>() }>();
    whole(update, residual, values, |s, value| {
        let m = dense::to_bf16(s);
        *value = m.to_le_bytes().map(MaybeUninit::new);
        canon(s - dense::from_bf16(m))
    })
}

/// Hands each s to `send`, with the place of its value; what that gives stays. How many elements were dropped.
#[inline(always)]
fn whole<T: Element, V>(
    update: &[T],
    residual: &mut [f32],
    values: &mut [V],
    send: impl Fn(f32, &mut V) -> f32,
) -> u32 {
    let mut room = [0f32; SINGLES];
    let mut dropped = 0;
    let pieces = residual.chunks_mut(SINGLES).zip(values.chunks_mut(SINGLES));
    for (update, (residual, values)) in update.chunks(SINGLES).zip(pieces) {
        let update = T::singles(update, &mut room);
        for ((r, &u), value) in residual.iter_mut().zip(update).zip(values) {
            let (s, not_finite) = accumulate_single::<T>(*r, u);
            dropped += u32::from(not_finite);
            *r = send(s, value);
        }
    }
    dropped
}

/// `p = canon(canon(p) + canon(value * inverse))` for each value. How many elements were not finite, and stay.
#[inline(always)]
pub(super) fn apply_f32(values: &[u8], inverse: f32, target: &mut [f32]) -> u32 {
    let (values, _) = values.as_chunks::<{ size_of::<f32>() }>();
    let values = values.iter().map(|value| f32::from_le_bytes(*value));
    apply_values(values, inverse, target)
}

/// The same from bf16.
#[inline(always)]
pub(super) fn apply_bf16(values: &[u8], inverse: f32, target: &mut [f32]) -> u32 {
    let (values, _) = values.as_chunks::<{ size_of::<u16>() }>();
    let values = values
        .iter()
        .map(|value| dense::from_bf16(u16::from_le_bytes(*value)));
    apply_values(values, inverse, target)
}

#[inline(always)]
fn apply_values(values: impl Iterator<Item = f32>, inverse: f32, target: &mut [f32]) -> u32 {
    let mut not_finite = 0;
    for (p, value) in target.iter_mut().zip(values) {
        let (after, stays) = moved(*p, canon(value * inverse));
        *p = after;
        not_finite += u32::from(stays);
    }
    not_finite
}

#[inline(always)]
pub(super) fn magnitudes<T: Element>(residual: &[f32], update: &[T], out: &mut Vec<f32>) {
    out.extend(
        residual
            .iter()
            .zip(update)
            .map(|(&r, &u)| accumulate(r, u).0.abs()),
    );
}

/// There is no plain way to ask for memory ahead of its use.
pub(super) fn ask(_from: *const u8, _bytes: usize) {}
