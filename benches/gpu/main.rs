//! The codec on a GPU: its kernels beside one that does nothing but read and write, what crosses the bus, and whole steps
//! beside the processor's.
//!
//! `cargo bench --bench gpu [-- --json] [-- --quick] [-- FILTER]`; `GRADRING_ADAPTER` chooses the adapter. On one in
//! software the figures say nothing but that the bench works.

#[path = "../common/mod.rs"]
mod common;
mod roofline;

use common::{Against, Bench, Random, Times, median, time};
use gradring::codec::gpu::{
    GpuApplier, GpuContext, GpuError, GradRef, Selection, TimedVector, wgpu,
};
use gradring::codec::policy::{Fixed, Quantile, ThresholdPolicy};
use gradring::codec::{Apply, Encoder, Message, Path, Record, Unit, cut8};
use roofline::{Roofline, bytes, wait};
use std::time::Duration;
use wgpu::BufferUsages;

/// ResNet-50's parameters.
const ELEMENTS: usize = 25_557_032;
const IN_SOFTWARE: usize = 1_000_000;
const ROUNDS: usize = 21;
const ROUNDS_IN_SOFTWARE: usize = 3;
/// The last one makes bitmaps on much of the vector.
const DENSITIES: [f64; 5] = [1e-4, 1e-3, 1e-2, 1e-1, 0.3];
const MOVES: &str = "a kernel that moves 12 bytes an element";

fn main() {
    let mut bench = Bench::from_args();
    let selection = Selection::from_env().expect("GRADRING_ADAPTER");
    let context = match GpuContext::new(&selection) {
        Ok(context) => context,
        Err(error @ GpuError::NoAdapter { .. }) => {
            eprintln!("NOT RUN: {error}");
            let required = std::env::var("GRADRING_REQUIRE_GPU").is_ok_and(|value| value == "1");
            std::process::exit(i32::from(required));
        }
        Err(error) => panic!("{error}"),
    };
    let full = if context.is_software() {
        IN_SOFTWARE
    } else {
        ELEMENTS
    };
    let arena = Arena::new(&context, bench.size(full, 100_000));
    let elements = arena.elements;
    let written = buffer(&context, elements);
    let roofline = Roofline::new(&context, &arena.updates[0], &written, elements);
    bench.about("adapter", &context.name());
    bench.about("driver", &context.adapter().driver_info);
    let clock = if roofline.has_clock() {
        "the device's own"
    } else {
        "from a submission to its end"
    };
    bench.about("clock of the kernels", clock);
    bench.about("elements", &elements.to_string());
    for density in DENSITIES {
        kernels(&mut bench, &arena, &roofline, density);
        read_back(&mut bench, &arena, density);
        apply(&mut bench, &arena, density);
        step(&mut bench, &arena, "fixed", density, &fixed);
        step(&mut bench, &arena, "quantile", density, &quantile);
    }
}

/// The vectors that all figures use, on the device and here.
struct Arena<'a> {
    context: &'a GpuContext,
    elements: usize,
    /// An update and its negative, which take turns: what the first one leaves in the residual the second one takes away,
    /// and both have the hits that the threshold was made for.
    here: [Vec<f32>; 2],
    updates: [wgpu::Buffer; 2],
    parameters: wgpu::Buffer,
}

impl<'a> Arena<'a> {
    fn new(context: &'a GpuContext, elements: usize) -> Arena<'a> {
        let mut random = Random(7);
        let update: Vec<f32> = (0..elements).map(|_| random.laplace(1.0)).collect();
        let negative: Vec<f32> = update.iter().map(|u| -u).collect();
        let on_device = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let buffer = buffer(context, elements);
            context.queue().write_buffer(&buffer, 0, &bytes);
            buffer
        };
        let updates = [on_device(&update), on_device(&negative)];
        Arena {
            parameters: on_device(&vec![1.0; elements]),
            context,
            elements,
            here: [update, negative],
            updates,
        }
    }

    fn rounds(&self) -> usize {
        if self.context.is_software() {
            ROUNDS_IN_SOFTWARE
        } else {
            ROUNDS
        }
    }

    fn on_device(&self, policy: Box<dyn ThresholdPolicy>) -> Encoder {
        Encoder::builder(self.elements)
            .policy(policy)
            .gpu(self.context.clone())
            .build()
            .expect("a GPU encodes with these settings")
    }

    fn on_processor(&self, policy: Box<dyn ThresholdPolicy>) -> Encoder {
        let builder = Encoder::builder(self.elements).policy(policy);
        builder.build().expect("memory")
    }
}

fn buffer(context: &GpuContext, elements: usize) -> wgpu::Buffer {
    context.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4 * elements as u64,
        usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// The threshold that a Laplace variable of scale 1 exceeds with this density.
fn fixed(density: f64) -> Box<dyn ThresholdPolicy> {
    let policy = Fixed::new(cut8(-density.ln() as f32));
    Box::new(policy.expect("the threshold of a density is in range"))
}

fn quantile(density: f64) -> Box<dyn ThresholdPolicy> {
    Box::new(Quantile::new(density).expect("a density"))
}

/// Steps on the device.
struct OnDevice<'a> {
    arena: &'a Arena<'a>,
    encoder: Encoder,
    step: u64,
}

impl<'a> OnDevice<'a> {
    fn new(arena: &'a Arena<'a>, policy: Box<dyn ThresholdPolicy>) -> Self {
        OnDevice {
            arena,
            encoder: arena.on_device(policy),
            step: 0,
        }
    }

    /// A whole step, and how long it takes; `message` is told of each chunk.
    fn step(&mut self, mut message: impl FnMut(&Message, &[u8])) -> Duration {
        let update = [GradRef::device(&self.arena.updates[self.step as usize % 2])];
        // What was submitted before is none of its time.
        wait(self.arena.context);
        let took = time(|| {
            let encoder = &mut self.encoder;
            encoder.begin(self.step, &update).expect("the device works");
            for visit in 0..encoder.chunks() {
                let sent = encoder.encode(visit, &update).expect("in order");
                message(&sent, encoder.payload());
            }
            encoder.end().expect("all are visited");
        });
        self.step += 1;
        took
    }
}

/// The same on the processor.
struct OnProcessor<'a> {
    arena: &'a Arena<'a>,
    encoder: Encoder,
    step: u64,
}

impl OnProcessor<'_> {
    fn step(&mut self) -> Duration {
        let update = &self.arena.here[self.step as usize % 2];
        let took = time(|| {
            let encoder = &mut self.encoder;
            encoder.begin(self.step, update).expect("equal lengths");
            for visit in 0..encoder.chunks() {
                encoder.encode(visit, update).expect("in order");
            }
            encoder.end().expect("all are visited");
        });
        self.step += 1;
        took
    }
}

/// Adding the update, counting, planning and writing the message, beside the roofline; each stage, and looking at what
/// stays, by itself.
fn kernels(bench: &mut Bench, arena: &Arena<'_>, roofline: &Roofline<'_>, density: f64) {
    let name = format!("encode kernels, density {density:e}");
    if !bench.wants(&name) {
        return;
    }
    let bytes = 12.0 * arena.elements as f64;
    let report = |bench: &mut Bench, ours: &Times, theirs: &Times| {
        let against = Against {
            ratio: theirs.over(ours),
            reference: MOVES,
        };
        bench.report(&name, ours.median() * 1e3, "ms", Some(against));
        let name = format!("12 bytes an element, density {density:e}");
        bench.report(&name, bytes / theirs.median() / 1e9, "GB/s", None);
    };
    let mut theirs = || roofline.run();
    if !roofline.has_clock() {
        let mut device = OnDevice::new(arena, fixed(density));
        let mut ours = || device.step(|_, _| {});
        let times = bench.interleave(arena.rounds(), &mut [&mut ours, &mut theirs]);
        report(bench, &times[0], &times[1]);
        return;
    }
    let made = TimedVector::new(arena.context, arena.elements);
    let mut vector = made.expect("a device with a clock");
    let t = cut8(-density.ln() as f32);
    let unit = Unit::new(t, t).expect("the threshold of a density is in range");
    let mut step = 0;
    let mut stages: [Vec<f64>; 4] = Default::default();
    let mut ours = || {
        let update = [GradRef::device(&arena.updates[step as usize % 2])];
        let took = vector.encode(&update, unit, usize::MAX, step);
        let took = took.expect("the device works");
        step += 1;
        let each = [took.count, took.plan, took.write, took.look];
        for (stage, took) in stages.iter_mut().zip(each) {
            stage.push(took.as_secs_f64());
        }
        took.count + took.plan + took.write
    };
    // The second step is the first one whose message has the length that was guessed.
    ours();
    let times = bench.interleave(arena.rounds(), &mut [&mut ours, &mut theirs]);
    report(bench, &times[0], &times[1]);
    for (stage, took) in ["count", "plan", "write", "look"].into_iter().zip(stages) {
        let name = format!("stage {stage}, density {density:e}");
        bench.report(&name, median(took) * 1e3, "ms", None);
    }
}

/// What crosses the bus, and how often the processor waits for it.
fn read_back(bench: &mut Bench, arena: &Arena<'_>, density: f64) {
    let name = format!("read-back, density {density:e}");
    if !bench.wants(&name) {
        return;
    }
    let context = arena.context;
    for (policy, made) in [("fixed", fixed(density)), ("quantile", quantile(density))] {
        let mut device = OnDevice::new(arena, made);
        for _ in 0..3 {
            device.step(|_, _| {});
        }
        let before = context.waits();
        device.step(|_, _| {});
        let waits = (context.waits() - before) as f64;
        let name = format!("waits a step, {policy}, density {density:e}");
        bench.report(&name, waits, "", None);
    }
    let mut device = OnDevice::new(arena, fixed(density));
    let mut count = 0;
    device.step(|_, payload| count += payload.len());
    bench.report(&name, count as f64 / 1024.0, "KiB", None);
    let size = (count as u64)
        .next_multiple_of(4)
        .min(arena.parameters.size());
    let staging = context.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size,
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut read = || {
        time(|| {
            let mut commands = context.device().create_command_encoder(&Default::default());
            commands.copy_buffer_to_buffer(&arena.parameters, 0, &staging, 0, size);
            context.queue().submit([commands.finish()]);
            bytes(context, &staging, size)
        })
    };
    let times = bench.interleave(arena.rounds(), &mut [&mut read]);
    let name = format!("time of one such, density {density:e}");
    bench.report(&name, times[0].median() * 1e6, "us", None);
}

/// A whole message onto parameters, until they are done, beside the processor.
fn apply(bench: &mut Bench, arena: &Arena<'_>, density: f64) {
    let name = format!("apply of a message, density {density:e}");
    if !bench.wants(&name) {
        return;
    }
    let mut messages: Vec<(Message, Vec<u8>)> = Vec::new();
    OnDevice::new(arena, fixed(density))
        .step(|message, payload| messages.push((message.clone(), payload.to_vec())));
    let records = || {
        messages.iter().map(|(message, payload)| {
            let record = Record {
                format: message.format,
                hits: message.hits,
                elements: message.elements.len(),
                payload,
            };
            let x = message.unit.map_or(1.0, |unit| unit.v() * 0.5);
            (record, x, message.elements.start)
        })
    };
    let mut applier = GpuApplier::new(arena.context).expect("memory");
    let target = [GradRef::device(&arena.parameters)];
    let mut ours = || {
        wait(arena.context);
        time(|| {
            for (record, x, start) in records() {
                applier
                    .apply(&record, x, Apply::Subtract, &target, start)
                    .expect("good records");
            }
            applier.finish().expect("the device works");
            wait(arena.context);
        })
    };
    let mut parameters = vec![1.0; arena.elements];
    let mut theirs = || {
        time(|| {
            for (record, x, start) in records() {
                Path::best()
                    .apply_at(&record, x, Apply::Subtract, &mut parameters, start)
                    .expect("good records");
            }
        })
    };
    let times = bench.interleave(arena.rounds(), &mut [&mut ours, &mut theirs]);
    beside(bench, &name, &times);
}

/// A step without exchange, from the update to all messages, beside the processor's.
fn step(
    bench: &mut Bench,
    arena: &Arena<'_>,
    policy: &str,
    density: f64,
    made: &dyn Fn(f64) -> Box<dyn ThresholdPolicy>,
) {
    let name = format!("step, {policy}, density {density:e}");
    if !bench.wants(&name) {
        return;
    }
    let mut device = OnDevice::new(arena, made(density));
    let mut processor = OnProcessor {
        arena,
        encoder: arena.on_processor(made(density)),
        step: 0,
    };
    for _ in 0..2 {
        device.step(|_, _| {});
        processor.step();
    }
    let mut ours = || device.step(|_, _| {});
    let mut theirs = || processor.step();
    let times = bench.interleave(arena.rounds(), &mut [&mut ours, &mut theirs]);
    beside(bench, &name, &times);
}

fn beside(bench: &mut Bench, name: &str, times: &[Times]) {
    let against = Against {
        ratio: times[0].over(&times[1]),
        reference: "the same by one thread of the processor",
    };
    bench.report(name, times[0].median() * 1e3, "ms", Some(against));
}
