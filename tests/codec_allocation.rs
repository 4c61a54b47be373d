//! After its first step an encoder makes no allocation, and applying never does.
//!
//! The only test of its program: the allocator counts what all threads do.

mod plain;

use gradring::codec::policy::{
    Adaptive, Counting, Fixed, Magnitude, Quantile, TargetDensity, ThresholdPolicy,
};
use gradring::codec::{
    Apply, CHUNK, ChunkOptions, Clipping, Dense, Encoder, EncoderBuilder, Format, Given, Message,
    MomentumMemory, NamedRange, PostInput, PostProcessor, Record, Unit, Values,
};
use half::{bf16, f16};
use plain::{Kind, Random, paths, vector};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which counts.
struct Counter;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counter = Counter;

/// How many allocations it makes.
fn allocations(of: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    of();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// A step; which formats it met, as bits.
fn step(encoder: &mut Encoder, number: u64, update: Values<'_>, sum: &mut [f32]) -> u32 {
    let mut formats = 0;
    encoder.begin(number, update).unwrap();
    for visit in 0..encoder.chunks() {
        let message = encoder.encode(visit, update).unwrap();
        formats |= 1 << message.format as u32;
        let record = Record {
            format: message.format,
            hits: message.hits,
            elements: message.elements.len(),
            payload: encoder.payload(),
        };
        let x = message.unit.map_or(1.0, Unit::v);
        encoder
            .path()
            .apply(&record, x, Apply::Subtract, &mut sum[message.elements])
            .unwrap();
    }
    encoder.end().unwrap();
    formats
}

/// Two chunks.
const LONG: usize = CHUNK + 70_000;
/// Of ranges.
const ELEMENTS: usize = 2 * 20_000 + 900 + 3000;

/// Two ranges that share a threshold, one of its own, and dense ones.
fn ranges(own: impl ThresholdPolicy + 'static) -> EncoderBuilder {
    Encoder::builder(ELEMENTS).ranges([
        NamedRange::compressed("first", 20_000),
        NamedRange::dense("f32", 450, Dense::F32),
        NamedRange::compressed("second", 20_000),
        NamedRange::dense("bf16", 450, Dense::Bf16),
        NamedRange::compressed("own", 3000).with_policy(own),
    ])
}

/// Nothing stays: how many hits there are follows from the update alone.
#[derive(Debug)]
struct Forget;

impl PostProcessor for Forget {
    fn kind(&self) -> &'static str {
        "Forget"
    }

    fn process(&self, _: &PostInput, residual: &mut [f32]) -> Option<f64> {
        residual.fill(0.0);
        Some(0.0)
    }
}

fn builders() -> Vec<(&'static str, EncoderBuilder)> {
    let long = || Encoder::builder(LONG);
    let fixed = || Fixed::new(0.25).unwrap();
    let adaptive = || Adaptive::new(1e-3, 1e-2).unwrap();
    vec![
        ("quantile", long()),
        (
            "quantile of a quarter",
            long().policy(Quantile::new(0.25).unwrap()),
        ),
        ("fixed", long().policy(fixed())),
        (
            "both formats",
            long().policy(fixed()).post_processor(Forget),
        ),
        ("adaptive", long().policy(adaptive())),
        (
            "target density",
            long().policy(TargetDensity::new(0.2).unwrap()),
        ),
        (
            "deeplearning4j",
            long().policy(Adaptive::dl4j().with_counting(Counting::Dl4j)),
        ),
        (
            "means",
            long().policy(fixed().with_magnitude(Magnitude::Mean)),
        ),
        ("limit", long().policy(fixed().with_limit(3000))),
        ("ranges", ranges(Quantile::new(0.1).unwrap())),
        (
            "ranges of other policies",
            ranges(adaptive()).policy(fixed().with_limit(700)),
        ),
        (
            "whole blocks of dense ranges",
            long().ranges([
                NamedRange::dense("f32", LONG / 2, Dense::F32),
                NamedRange::dense("bf16", LONG - LONG / 2, Dense::Bf16),
            ]),
        ),
        (
            "clipping",
            ranges(fixed()).post_processor(Clipping::new(2.0, 1).unwrap()),
        ),
        (
            "memory",
            ranges(fixed()).momentum(
                MomentumMemory::new(0.9)
                    .unwrap()
                    .with_local_clipping(1e6)
                    .unwrap(),
                4,
            ),
        ),
        (
            "hits and percentiles",
            ranges(fixed()).policy(fixed()).keep_hits(true).debug(true),
        ),
    ]
}

/// Waits until the threads that encode wait for work: what a thread allocates when it starts is no step's.
fn wait_for_threads(count: usize) {
    let waits = |stat: &String| {
        stat.contains("(gradring encode")
            && stat.split(") ").nth(1).is_some_and(|s| s.starts_with('S'))
    };
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        // A task may end meanwhile.
        let stats = tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
        if stats.filter(waits).count() == count {
            return;
        }
        std::thread::yield_now();
    }
}

/// Updates from none that is a hit to nearly all that are, and up and down again; what may grow grows in the first step.
struct Updates {
    singles: Vec<Vec<f32>>,
    f16s: Vec<Vec<f16>>,
    bf16s: Vec<Vec<bf16>>,
}

impl Updates {
    fn of(elements: usize) -> Updates {
        let mut random = Random(7);
        let unit = Unit::nearest(0.25, 0.25);
        let densities = [0.9, 1e-4, 0.3, 1e-2, 0.12, 0.13, 0.9, 1e-6];
        let kinds = densities
            .map(Kind::Ordinary)
            .into_iter()
            .chain([Kind::Single(u64::MAX)]);
        let singles: Vec<Vec<f32>> = kinds
            .map(|kind| vector(&mut random, elements, kind, unit))
            .collect();
        Updates {
            f16s: singles
                .iter()
                .map(|of| of.iter().map(|&u| f16::from_f32(u)).collect())
                .collect(),
            bf16s: singles
                .iter()
                .map(|of| of.iter().map(|&u| bf16::from_f32(u)).collect())
                .collect(),
            singles,
        }
    }

    fn of_step(&self, number: u64) -> Values<'_> {
        let at = number as usize % self.singles.len();
        match number % 4 {
            0 | 1 => Values::F32(&self.singles[at]),
            2 => Values::F16(&self.f16s[at]),
            _ => Values::Bf16(&self.bf16s[at]),
        }
    }
}

fn encoders() {
    let (long, short) = (Updates::of(LONG), Updates::of(ELEMENTS));
    let builders = builders()
        .into_iter()
        .map(|builder| (1, builder))
        .chain(builders().into_iter().map(|builder| (2, builder)));
    for (threads, (name, builder)) in builders {
        let mut encoder = builder.threads(threads).build().unwrap();
        wait_for_threads(threads - 1);
        let updates = if encoder.elements() == LONG {
            &long
        } else {
            &short
        };
        let mut sum = vec![0.0; encoder.elements()];
        let mut formats = 0;
        for number in 0..18 {
            let found = allocations(|| {
                formats |= step(&mut encoder, number, updates.of_step(number), &mut sum);
            });
            assert!(
                number == 0 || found == 0,
                "{name}, {threads} threads: {found} in step {number}"
            );
        }
        let both = [Format::Sparse, Format::Bitmap].map(|format| 1 << format as u32);
        if name == "both formats" {
            assert!(both.iter().all(|format| formats & format != 0));
        }
    }
}

/// In how many pieces updates and parameters are cut.
const PARTS: usize = 37;

/// Steps of lists of slices, of what is in the residual, some of whose chunks are kept, and streamed ones.
fn other_steps() {
    let (long, short) = (Updates::of(LONG), Updates::of(ELEMENTS));
    for (threads, (name, builder)) in [1, 2].into_iter().flat_map(|threads| {
        let builders = builders().into_iter();
        builders.map(move |builder| (threads, builder))
    }) {
        let mut encoder = builder.threads(threads).build().unwrap();
        wait_for_threads(threads - 1);
        let updates = if encoder.elements() == LONG {
            &long
        } else {
            &short
        };
        let has_memory = name == "memory";
        let mut sums = vec![vec![0.0; encoder.elements() / PARTS]; PARTS];
        sums.push(vec![0.0; encoder.elements() % PARTS]);
        let mut complete = Vec::with_capacity(encoder.chunks());
        let mut random = Random(11);
        for number in 0..32 {
            let update = updates.of_step(number);
            let singles = &updates.singles[number as usize % updates.singles.len()];
            let parts: Vec<Values<'_>> = singles
                .chunks(singles.len().div_ceil(PARTS))
                .map(Values::from)
                .collect();
            let mut starts: Vec<usize> = (0..parts.len()).collect();
            for last in (1..starts.len()).rev() {
                starts.swap(last, random.index(last + 1));
            }
            let length = parts[0].len();
            let found = allocations(|| {
                let mut apply = |encoder: &Encoder, message: Message| {
                    let record = Record {
                        format: message.format,
                        hits: message.hits,
                        elements: message.elements.len(),
                        payload: encoder.payload(),
                    };
                    let x = message.unit.map_or(1.0, Unit::v);
                    let start = message.elements.start;
                    encoder
                        .path()
                        .apply_at(&record, x, Apply::Subtract, &mut sums, start)
                        .unwrap();
                };
                // Local clipping needs the whole gradient, and a velocity the gradient itself.
                if number % 2 == 0 && !has_memory {
                    encoder.begin_streamed(number).unwrap();
                    for &at in &starts {
                        let elements = at * length..at * length + parts[at].len();
                        encoder.push(elements, parts[at], &mut complete).unwrap();
                        while let Some(chunk) = complete.pop() {
                            let message = encoder.encode_complete(chunk).unwrap();
                            apply(&encoder, message);
                        }
                    }
                } else {
                    let given = match number % 4 {
                        1 if !has_memory => Given::InResidual,
                        _ if number % 8 == 3 => Given::Slice(update),
                        _ => Given::Parts(&parts),
                    };
                    encoder.begin(number, given).unwrap();
                    for visit in 0..encoder.chunks() {
                        if (visit as u64 + number).is_multiple_of(3) {
                            encoder.accumulate(visit, given).unwrap();
                        } else {
                            let message = encoder.encode(visit, given).unwrap();
                            apply(&encoder, message);
                        }
                    }
                }
                encoder.end().unwrap();
            });
            // One of each kind comes first.
            assert!(
                number < 9 || found == 0,
                "{name}, {threads} threads: {found} in step {number}"
            );
        }
    }
}

fn chunks_and_records() {
    let mut random = Random(8);
    let unit = Unit::nearest(0.25, 0.25);
    let payload = |path: gradring::codec::Path, update: &[f32], dense: Option<Dense>| {
        let (mut residual, mut out) = (vec![0.0; update.len()], Vec::new());
        let sent = match dense {
            None => path.encode(
                &mut residual,
                update,
                unit,
                &ChunkOptions::default(),
                &mut out,
            ),
            Some(number) => path.encode_dense(&mut residual, update, number, &mut out),
        };
        (sent.unwrap(), out)
    };
    for path in paths() {
        for (density, dense) in [
            (1e-3, None),
            (0.9, None),
            (0.9, Some(Dense::F32)),
            (0.9, Some(Dense::Bf16)),
        ] {
            let update = vector(&mut random, CHUNK - 5, Kind::Ordinary(density), unit);
            let (sent, payload) = payload(path, &update, dense);
            let record = Record {
                format: sent.format,
                hits: sent.hits,
                elements: update.len(),
                payload: &payload,
            };
            let mut target = update.clone();
            target[7] = f32::NAN;
            // The first call included; also what refuses.
            let wrong = Record {
                hits: sent.hits ^ 1,
                ..record
            };
            let found = allocations(|| {
                for how in [Apply::Add, Apply::Subtract] {
                    path.apply(&record, 0.25, how, &mut target).unwrap();
                    path.apply(&wrong, 0.25, how, &mut target).unwrap_err();
                    path.apply(&record, -1.0, how, &mut target).unwrap_err();
                }
            });
            assert_eq!(found, 0, "{} on {path}", sent.format);
        }
    }
}

#[test]
fn nothing_is_allocated_after_the_first_step() {
    // The counter counts.
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    chunks_and_records();
    encoders();
    other_steps();
}
