//! The codec: fused encode beside the memory's own speed, decode and apply, what a policy costs, the formats for
//! elsewhere.
//!
//! `cargo bench --bench codec [-- --json] [-- --quick] [-- FILTER]`

#[path = "../common/mod.rs"]
mod common;
mod formats;

use common::{Against, Bench, Random, Times, time};
use gradring::codec::policy::{LastStep, PolicyInput, Quantile, ThresholdPolicy};
use gradring::codec::{
    Apply, BLOCK, Budget, CHUNK, ChunkOptions, Dense, Encoder, InResidual, Path, Record, Residual,
    Unit, Values, cut8,
};
use half::{bf16, f16};
use std::time::Duration;

/// ResNet-50's parameters.
const ELEMENTS: usize = 25_557_032;
const ROUNDS: usize = 15;
/// The last one makes bitmaps.
const DENSITIES: [f64; 5] = [1e-4, 1e-3, 1e-2, 1e-1, 0.3];
const ADD: &str = "r += u, same vectors";

fn main() {
    let mut bench = Bench::from_args();
    let elements = bench.size(ELEMENTS, 300_000);
    let mut arena = Arena::new(elements);
    for path in Path::ALL
        .into_iter()
        .rev()
        .filter(|path| path.is_available())
    {
        encode(&mut bench, path, &mut arena);
        in_place(&mut bench, path, &mut arena);
        halves(&mut bench, path, &mut arena);
        dense(&mut bench, path, &mut arena);
        apply(&mut bench, path, &mut arena);
        quantile(&mut bench, path, &mut arena);
    }
    threads(&mut bench, &mut arena);
    streamed(&mut bench, &mut arena);
    formats::run(&mut bench);
}

/// The memory that all figures use: update and target as a trainer has them, the residual as the codec has it.
struct Arena {
    update: Vec<f32>,
    residual: Residual,
    target: Vec<f32>,
    payload: Vec<u8>,
}

impl Arena {
    fn new(elements: usize) -> Arena {
        let mut random = Random(7);
        let update = (0..elements).map(|_| random.laplace(1.0)).collect();
        let residual = Residual::zeroed(elements).expect("memory for the residual");
        Arena {
            update,
            residual,
            target: vec![1.0; elements],
            payload: Vec::new(),
        }
    }

    /// A residual of small mass, so that the update alone decides; what is sent has the density that was asked for.
    fn reset(&mut self) {
        self.residual.fill(0.0);
    }

    /// What `r += u` takes on the same vectors.
    fn roofline(&mut self) -> Duration {
        self.reset();
        time(|| add(&mut self.residual, &self.update))
    }

    /// All chunks; the hits.
    fn encode(&mut self, path: Path, unit: Unit, options: &ChunkOptions) -> u64 {
        let chunks = self
            .residual
            .chunks_mut(CHUNK)
            .zip(self.update.chunks(CHUNK));
        let encode = |(residual, update): (&mut [f32], &[f32])| {
            self.payload.clear();
            let sent = path.encode(residual, update, unit, options, &mut self.payload);
            u64::from(sent.expect("equal lengths of at most a chunk").hits)
        };
        chunks.map(encode).sum()
    }
}

/// The threshold that a Laplace variable of scale 1 exceeds with this density.
fn threshold(density: f64) -> Unit {
    let t = cut8(-density.ln() as f32);
    Unit::new(t, t).expect("a threshold of a density is in range")
}

/// `r += u` with the widest vectors that the codec uses too: what a trainer built for this processor gets.
fn add(residual: &mut [f32], update: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if Path::Avx512.is_available() {
            // SAFETY: the features are there.
            return unsafe { add_avx512(residual, update) };
        }
        if Path::Avx2.is_available() {
            // SAFETY: as above.
            return unsafe { add_avx2(residual, update) };
        }
    }
    add_plain(residual, update);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_avx512(residual: &mut [f32], update: &[f32]) {
    use std::arch::x86_64::{_mm512_add_ps, _mm512_loadu_ps, _mm512_storeu_ps};
    // By hand: a compiler prefers vectors of half the width here.
    let (vectors, rest) = residual.as_chunks_mut::<16>();
    let (update_vectors, update_rest) = update.as_chunks::<16>();
    for (r, u) in vectors.iter_mut().zip(update_vectors) {
        // SAFETY: both are a vector's elements.
        unsafe {
            let sum = _mm512_add_ps(_mm512_loadu_ps(r.as_ptr()), _mm512_loadu_ps(u.as_ptr()));
            _mm512_storeu_ps(r.as_mut_ptr(), sum);
        }
    }
    add_plain(rest, update_rest);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(residual: &mut [f32], update: &[f32]) {
    add_plain(residual, update);
}

#[inline(always)]
fn add_plain(residual: &mut [f32], update: &[f32]) {
    for (r, u) in residual.iter_mut().zip(update) {
        *r += u;
    }
}

/// With a bound to be kept, as in a step, but never binding.
fn bounded() -> ChunkOptions {
    ChunkOptions {
        budget: Some(Budget {
            max_hits: CHUNK - 1,
            start: 0,
        }),
        ..ChunkOptions::default()
    }
}

fn encode(bench: &mut Bench, path: Path, arena: &mut Arena) {
    for density in DENSITIES {
        let name = format!("{path} encode, density {density:e}");
        if !bench.wants(&name) {
            continue;
        }
        let unit = threshold(density);
        let options = bounded();
        let mut hits = 0;
        // One arena, two sides that take turns.
        let arena = std::cell::RefCell::new(&mut *arena);
        let mut ours = || {
            let mut arena = arena.borrow_mut();
            arena.reset();
            time(|| hits = arena.encode(path, unit, &options))
        };
        let mut theirs = || arena.borrow_mut().roofline();
        let times = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let ratio = times[1].over(&times[0]);
        bench.report(
            &name,
            times[0].median() * 1e3,
            "ms",
            Some(Against {
                ratio,
                reference: ADD,
            }),
        );
        let elements = arena.borrow().update.len() as f64;
        let seen = hits as f64 / elements;
        // The threshold is cut to 8 bits, and a small vector has few hits.
        let error = 0.1 + 5.0 / (density * elements).sqrt();
        assert!(
            (seen / density - 1.0).abs() < error,
            "{name}: the density was {seen:e}"
        );
    }
}

/// What the trainer has added to the residual itself: 4 bytes to read an element, and next to nothing to write.
fn in_place(bench: &mut Bench, path: Path, arena: &mut Arena) {
    for density in DENSITIES {
        let name = format!("{path} encode in place, density {density:e}");
        if !bench.wants(&name) {
            continue;
        }
        let unit = threshold(density);
        let options = bounded();
        let arena = std::cell::RefCell::new(&mut *arena);
        let mut ours = || {
            let arena = &mut **arena.borrow_mut();
            arena.residual.copy_from_slice(&arena.update);
            time(|| {
                for residual in arena.residual.chunks_mut(CHUNK) {
                    arena.payload.clear();
                    path.encode(residual, InResidual, unit, &options, &mut arena.payload)
                        .expect("at most a chunk");
                }
            })
        };
        let mut theirs = || arena.borrow_mut().roofline();
        let times = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let against = Against {
            ratio: times[0].over(&times[1]),
            reference: "the time of r += u",
        };
        bench.report(&name, times[0].median() * 1e3, "ms", Some(against));
    }
}

/// Updates of two bytes an element: 10 bytes to move instead of 12.
fn halves(bench: &mut Bench, path: Path, arena: &mut Arena) {
    for number in ["f16", "bf16"] {
        let name = format!("{path} encode of {number}, density 1e-3");
        if !bench.wants(&name) {
            continue;
        }
        let f16s: Vec<f16> = if number == "f16" {
            arena.update.iter().map(|&u| f16::from_f32(u)).collect()
        } else {
            Vec::new()
        };
        let bf16s: Vec<bf16> = if number == "bf16" {
            arena.update.iter().map(|&u| bf16::from_f32(u)).collect()
        } else {
            Vec::new()
        };
        let unit = threshold(1e-3);
        let arena = std::cell::RefCell::new(&mut *arena);
        let mut ours = || {
            let arena = &mut **arena.borrow_mut();
            arena.reset();
            time(|| {
                for (at, residual) in arena.residual.chunks_mut(CHUNK).enumerate() {
                    let range = CHUNK * at..CHUNK * at + residual.len();
                    let update = if f16s.is_empty() {
                        Values::Bf16(&bf16s[range])
                    } else {
                        Values::F16(&f16s[range])
                    };
                    arena.payload.clear();
                    let options = ChunkOptions::default();
                    path.encode(residual, update, unit, &options, &mut arena.payload)
                        .expect("equal lengths of at most a chunk");
                }
            })
        };
        let mut theirs = || arena.borrow_mut().roofline();
        let times = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let against = Against {
            ratio: times[1].over(&times[0]),
            reference: "r += u, both f32",
        };
        bench.report(&name, times[0].median() * 1e3, "ms", Some(against));
    }
}

/// Without compression, block by block: f32 moves 16 bytes an element, bf16 14.
fn dense(bench: &mut Bench, path: Path, arena: &mut Arena) {
    for number in [Dense::F32, Dense::Bf16] {
        let name = format!("{path} encode, dense {number}");
        if !bench.wants(&name) {
            continue;
        }
        let arena = std::cell::RefCell::new(&mut *arena);
        let mut ours = || {
            let arena = &mut **arena.borrow_mut();
            arena.reset();
            time(|| {
                let blocks = arena.residual.chunks_mut(BLOCK);
                for (residual, update) in blocks.zip(arena.update.chunks(BLOCK)) {
                    arena.payload.clear();
                    path.encode_dense(residual, update, number, &mut arena.payload)
                        .expect("equal lengths of at most a chunk");
                }
            })
        };
        let mut theirs = || arena.borrow_mut().roofline();
        let times = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let against = Against {
            ratio: times[1].over(&times[0]),
            reference: ADD,
        };
        bench.report(&name, times[0].median() * 1e3, "ms", Some(against));
    }
    for number in [Dense::F32, Dense::Bf16] {
        let name = format!("{path} Subtract, dense {number}");
        if !bench.wants(&name) {
            continue;
        }
        arena.reset();
        let mut payload = Vec::new();
        let (residual, update) = (&mut arena.residual[..BLOCK], &arena.update[..BLOCK]);
        path.encode_dense(residual, update, number, &mut payload)
            .expect("a block");
        let arena = std::cell::RefCell::new(&mut *arena);
        let mut ours = || {
            let arena = &mut **arena.borrow_mut();
            time(|| {
                for target in arena.target.chunks_exact_mut(BLOCK) {
                    let record = Record {
                        format: number.format(),
                        hits: 0,
                        elements: BLOCK,
                        payload: &payload,
                    };
                    path.apply(&record, 0.5, Apply::Subtract, target)
                        .expect("a record of our own");
                }
            })
        };
        let mut theirs = || {
            let arena = &mut **arena.borrow_mut();
            time(|| add(&mut arena.target, &arena.update))
        };
        let times = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let against = Against {
            ratio: times[1].over(&times[0]),
            reference: "p += u",
        };
        bench.report(&name, times[0].median() * 1e3, "ms", Some(against));
    }
}

/// A whole encoder, with its policy, step after step, on one thread and on two, beside `r += u` on as many.
fn threads(bench: &mut Bench, arena: &mut Arena) {
    for (density, threads) in [(1e-3, 1), (1e-3, 2), (1e-2, 1), (1e-2, 2)] {
        let name = format!("encoder on {threads} threads, density {density:e}");
        if !bench.wants(&name) {
            continue;
        }
        let elements = arena.update.len();
        let mut encoder = Encoder::builder(elements)
            .policy(Quantile::new(density).expect("a density"))
            .threads(threads)
            .build()
            .expect("an encoder");
        let mut step = 0;
        let update = &arena.update;
        let mut ours = || {
            let update = Values::F32(update);
            let took = time(|| {
                encoder.begin(step, update).expect("equal lengths");
                for visit in 0..encoder.chunks() {
                    encoder.encode(visit, update).expect("a chunk");
                }
                encoder.end().expect("all chunks were encoded");
            });
            step += 1;
            took
        };
        let residual = &mut arena.residual;
        let mut theirs = || {
            residual.fill(0.0);
            time(|| {
                if threads == 1 {
                    add(residual, update);
                } else {
                    let middle = elements / 2;
                    let (low, high) = residual.split_at_mut(middle);
                    std::thread::scope(|scope| {
                        scope.spawn(|| add(high, &update[middle..]));
                        add(low, &update[..middle]);
                    });
                }
            })
        };
        let times = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let reference = if threads == 1 {
            ADD
        } else {
            "r += u on two threads"
        };
        let against = Against {
            ratio: times[1].over(&times[0]),
            reference,
        };
        bench.report(&name, times[0].median() * 1e3, "ms", Some(against));
    }
}

/// The same with an update that comes in parts, the last first; each chunk is encoded when it is complete.
fn streamed(bench: &mut Bench, arena: &mut Arena) {
    /// Elements of a part: some of a chunk, and no divisor of it.
    const PART: usize = 100_000;
    for density in [1e-3, 1e-2] {
        let name = format!("encoder, streamed, density {density:e}");
        if !bench.wants(&name) {
            continue;
        }
        let elements = arena.update.len();
        let mut encoder = Encoder::builder(elements)
            .policy(Quantile::new(density).expect("a density"))
            .build()
            .expect("an encoder");
        let (mut step, mut complete) = (0, Vec::new());
        let update = &arena.update;
        let mut ours = || {
            let took = time(|| {
                encoder.begin_streamed(step).expect("no step is open");
                for first in (0..elements).step_by(PART).rev() {
                    let part = first..elements.min(first + PART);
                    let values = &update[part.clone()];
                    encoder
                        .push(part, values, &mut complete)
                        .expect("each once");
                    for chunk in complete.drain(..) {
                        encoder.encode_complete(chunk).expect("a chunk");
                    }
                }
                encoder.end().expect("all chunks were encoded");
            });
            step += 1;
            took
        };
        let residual = &mut arena.residual;
        let mut theirs = || {
            residual.fill(0.0);
            time(|| add(residual, update))
        };
        let times = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let against = Against {
            ratio: times[1].over(&times[0]),
            reference: ADD,
        };
        bench.report(&name, times[0].median() * 1e3, "ms", Some(against));
    }
}

fn apply(bench: &mut Bench, path: Path, arena: &mut Arena) {
    for density in DENSITIES {
        for how in [Apply::Subtract, Apply::Add] {
            let name = format!("{path} {how:?}, density {density:e}");
            if !bench.wants(&name) {
                continue;
            }
            let unit = threshold(density);
            arena.reset();
            let mut records = Vec::new();
            for (residual, update) in arena
                .residual
                .chunks_mut(CHUNK)
                .zip(arena.update.chunks(CHUNK))
            {
                let mut payload = Vec::new();
                let options = ChunkOptions::default();
                let sent = path
                    .encode(residual, update, unit, &options, &mut payload)
                    .expect("chunks");
                records.push((sent, payload));
            }
            let hits: u32 = records.iter().map(|(sent, _)| sent.hits).sum();
            let target = &mut arena.target;
            let mut ours = || {
                // Elsewhere in the caches, as after a trainer's own work.
                std::hint::black_box(&mut *arena.residual).fill(0.0);
                time(|| {
                    for ((sent, payload), target) in records.iter().zip(target.chunks_mut(CHUNK)) {
                        let (format, hits) = (sent.format, sent.hits);
                        let record = Record {
                            format,
                            hits,
                            elements: target.len(),
                            payload,
                        };
                        path.apply(&record, unit.v(), how, target)
                            .expect("a record of our own");
                    }
                })
            };
            let times = bench.interleave(ROUNDS, &mut [&mut ours]);
            let per_hit = times[0].median() * 1e9 / f64::from(hits.max(1));
            bench.report(&name, per_hit, "ns a hit", None);
        }
    }
}

fn quantile(bench: &mut Bench, path: Path, arena: &mut Arena) {
    for density in [1e-2, 1e-3] {
        let name = format!("{path} Quantile, density {density:e}");
        if !bench.wants(&name) {
            continue;
        }
        let unit = threshold(density);
        let elements = arena.update.len();
        let mut policy = Quantile::new(density).expect("a density");
        let mut sample = Vec::new();
        let mut phase = 0;
        let mut last = None;
        let arena = std::cell::RefCell::new(&mut *arena);
        let mut ours = || {
            let mut arena = arena.borrow_mut();
            arena.reset();
            time(|| {
                phase += 1;
                sample.clear();
                let wanted = policy.sample_size(elements, phase);
                path.magnitudes(&arena.residual, &arena.update, wanted, phase, &mut sample)
                    .expect("equal lengths");
                let unit = policy.unit(&PolicyInput {
                    step: phase,
                    elements,
                    sample: &sample,
                    last,
                });
                last = Some(LastStep {
                    unit,
                    hits: 0,
                    density,
                    mean: None,
                });
            })
        };
        let mut theirs = || -> Duration {
            let mut arena = arena.borrow_mut();
            arena.reset();
            time(|| arena.encode(path, unit, &ChunkOptions::default()))
        };
        let times: Vec<Times> = bench.interleave(ROUNDS, &mut [&mut ours, &mut theirs]);
        let against = Against {
            ratio: times[0].over(&times[1]),
            reference: "encode",
        };
        bench.report(&name, times[0].median() * 1e3, "ms", Some(against));
    }
}
