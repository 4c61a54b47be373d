//! Byte equality with the processor's plain path.

use super::*;
use crate::codec::gpu::{GradRef, Selection, wgpu};
use crate::codec::ranges::{chunks, visited};
use crate::codec::{Budget, CHUNK, ChunkOptions, Dense, Encoded, Path, Update, Values, cut8};
use half::{bf16, f16};
use serde::Deserialize;
use wgpu::util::{BufferInitDescriptor, DeviceExt};
use wgpu::{DeviceDescriptor, Features, Limits};

#[path = "../../../../tests/codec_gpu/device.rs"]
mod device;
use device::{device_with, gpu};

/// A small random number generator (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 32) as usize * end) >> 32
    }

    /// Mostly what updates look like, and some of everything that has 32 bits.
    fn number(&mut self, unit: Unit) -> f32 {
        let t = unit.t().to_bits();
        let sign = (self.next() as u32 & 1) << 31;
        let bits = match self.below(40) {
            0 => self.next() as u32,
            1 => [0, 0x7f80_0000, 0x7fc0_0001, 0x7f7f_ffff, 0x0080_0000][self.below(5)],
            2 => self.next() as u32 & 0x007f_ffff,
            3 => t,
            4 => t - 1,
            5 => t + 1,
            6 => t + (16 << 23) + (self.next() as u32 & 0x00ff_ffff),
            _ => {
                let uniform = (self.next() >> 40) as f32 / (1 << 24) as f32;
                (1.1 * unit.t() * uniform * uniform).to_bits()
            }
        };
        f32::from_bits(bits ^ sign)
    }

    fn numbers(&mut self, count: usize, unit: Unit) -> Vec<f32> {
        (0..count).map(|_| self.number(unit)).collect()
    }

    /// About this share of hits, and nothing special.
    fn plain(&mut self, count: usize, unit: Unit, density: f64) -> Vec<f32> {
        let number = |random: &mut Random| {
            let is_hit = ((random.next() >> 11) as f64) < density * (1u64 << 53) as f64;
            let size = if is_hit { 1.25 } else { 0.1 } * unit.t();
            if random.next() & 1 == 0 { size } else { -size }
        };
        (0..count).map(|_| number(self)).collect()
    }
}

fn unit(t: f32) -> Unit {
    Unit::new(cut8(t), cut8(1.5 * t)).unwrap()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn layout_of(ranges: &[(usize, ChunkCoding)]) -> Arc<[Chunk]> {
    chunks(ranges.iter().copied()).collect()
}

fn of_one_scope(elements: usize) -> Arc<[Chunk]> {
    layout_of(&[(elements, ChunkCoding::Threshold(0))])
}

/// What the processor's plain path does with the same vector.
struct Plain {
    chunks: Arc<[Chunk]>,
    residual: Vec<f32>,
}

impl Plain {
    fn new(chunks: &Arc<[Chunk]>) -> Plain {
        let elements = chunks.last().map_or(0, |chunk| chunk.elements.end);
        Plain {
            chunks: Arc::clone(chunks),
            residual: vec![0.0; elements],
        }
    }

    /// A step, as `Encoder` makes it: of each chunk what came of it, and its payload.
    fn encode(&mut self, update: Given<'_>, step: &GpuStep<'_>) -> Vec<(Encoded, Vec<u8>)> {
        let mut left: Vec<usize> = step.scopes.iter().map(|scope| scope.1).collect();
        let mut came = vec![None; self.chunks.len()];
        for visit in 0..self.chunks.len() {
            let number = visited(step.first, visit, self.chunks.len());
            let chunk = &self.chunks[number];
            let residual = &mut self.residual[chunk.elements.clone()];
            let mut singles = vec![0.0; residual.len()];
            let given = match update {
                Given::InResidual => Given::InResidual,
                update => {
                    update.each(chunk.elements.clone(), &mut |done, values| {
                        values.to_singles(&mut singles[done..done + values.len()]);
                    });
                    Given::from(&singles[..])
                }
            };
            let mut payload = Vec::new();
            let encoded = match chunk.coding {
                ChunkCoding::Threshold(scope) => {
                    let options = ChunkOptions {
                        clip: step.clip,
                        budget: (left[scope] < usize::MAX).then(|| Budget {
                            max_hits: left[scope],
                            start: (step.step as u32).wrapping_mul(0x9E37_79B1) as usize,
                        }),
                    };
                    let unit = step.scopes[scope].0;
                    let encoded = Path::Scalar
                        .encode(residual, given, unit, &options, &mut payload)
                        .unwrap();
                    if left[scope] < usize::MAX {
                        left[scope] -= encoded.hits as usize;
                    }
                    encoded
                }
                ChunkCoding::Dense(number) => Path::Scalar
                    .encode_dense(residual, given, number, &mut payload)
                    .unwrap(),
            };
            came[number] = Some((encoded, payload));
        }
        came.into_iter().map(Option::unwrap).collect()
    }
}

/// One step on both, and everything compared. How many chunks had each format.
fn step_of_both(
    vector: &mut GpuVector,
    plain: &mut Plain,
    on_device: Given<'_>,
    on_host: Given<'_>,
    step: &GpuStep<'_>,
    name: &str,
) -> [usize; 5] {
    vector.encode(on_device, step).unwrap();
    let expected = plain.encode(on_host, step);
    let mut formats = [0; 5];
    for (number, (encoded, payload)) in expected.iter().enumerate() {
        let name = format!("{name}, chunk {number}");
        let found = vector.chunk(number);
        assert_eq!(found.format, encoded.format, "{name}");
        assert_eq!(found.hits, encoded.hits, "{name}");
        assert!(
            vector.payload(number) == &payload[..],
            "{name}: the payload"
        );
        assert_eq!(
            found.mean.to_bits(),
            encoded.mean.to_bits(),
            "{name}: mean {} {}",
            found.mean,
            encoded.mean
        );
        assert_eq!(
            found.residual_max.to_bits(),
            encoded.residual_max.to_bits(),
            "{name}"
        );
        let error = (found.residual_l1 - encoded.residual_l1).abs();
        assert!(
            error <= 1e-9 * encoded.residual_l1,
            "{name}: L1 {} {}",
            found.residual_l1,
            encoded.residual_l1
        );
        formats[encoded.format as usize] += 1;
    }
    let dropped: u64 = expected.iter().map(|(e, _)| u64::from(e.dropped)).sum();
    assert_eq!(vector.dropped(), dropped, "{name}");
    let clipped: f64 = expected.iter().map(|(e, _)| e.clipped).sum();
    assert!(
        (vector.clipped() - clipped).abs() <= 1e-12 * clipped,
        "{name}: clipped {} {clipped}",
        vector.clipped()
    );
    assert!(
        bits(&vector.residual().unwrap()) == bits(&plain.residual),
        "{name}: the residual"
    );
    formats
}

fn pair(context: &GpuContext, chunks: &Arc<[Chunk]>, scopes: usize) -> (GpuVector, Plain) {
    let vector = GpuVector::new(context, Arc::clone(chunks), scopes).unwrap();
    (vector, Plain::new(chunks))
}

fn buffer_of(context: &GpuContext, words: &[u32]) -> wgpu::Buffer {
    context.device().create_buffer_init(&BufferInitDescriptor {
        label: Some("a test's update"),
        contents: bytemuck::cast_slice(words),
        usage: wgpu::BufferUsages::STORAGE,
    })
}

fn buffer_of_numbers(context: &GpuContext, numbers: &[f32]) -> wgpu::Buffer {
    buffer_of(context, &bits(numbers))
}

#[test]
fn every_length_gives_the_plain_paths_bytes_for_any_bits() {
    let Some(context) = gpu() else { return };
    let unit = unit(1e-3);
    let mut random = Random(1);
    for elements in [
        1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 4095, 4096, 4097, 32_767,
        32_768, 32_769, 262_143, 262_144, 262_145, 1_000_003,
    ] {
        let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
        for step in 0..2 {
            let update = random.numbers(elements, unit);
            let buffer = buffer_of_numbers(context, &update);
            step_of_both(
                &mut vector,
                &mut plain,
                GradRef::device(&buffer).given(),
                Given::from(&update),
                &GpuStep {
                    step,
                    first: step,
                    scopes: &[(unit, usize::MAX)],
                    clip: None,
                },
                &format!("{elements} elements, step {step}"),
            );
        }
    }
}

#[test]
fn every_density_gives_the_plain_paths_bytes_in_both_formats() {
    let Some(context) = gpu() else { return };
    let unit = unit(3e-2);
    let mut random = Random(2);
    let elements = CHUNK + 50_000;
    let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
    let mut formats = [0; 5];
    for (step, density) in [0.0, 1e-4, 1e-2, 0.12, 0.13, 0.5, 1.0, 1e-3]
        .into_iter()
        .enumerate()
    {
        let update = random.plain(elements, unit, density);
        // What stayed of the last step is gone.
        vector.restore(&vec![0.0; elements]).unwrap();
        plain.residual.fill(0.0);
        let buffer = buffer_of_numbers(context, &update);
        let seen = step_of_both(
            &mut vector,
            &mut plain,
            GradRef::device(&buffer).given(),
            Given::from(&update),
            &GpuStep {
                step: step as u64,
                first: step as u64,
                scopes: &[(unit, usize::MAX)],
                clip: None,
            },
            &format!("density {density}"),
        );
        for (all, seen) in formats.iter_mut().zip(seen) {
            *all += seen;
        }
    }
    assert!(formats[1] >= 6 && formats[2] >= 6, "{formats:?}");
}

#[test]
fn a_limit_sends_exactly_the_hits_that_the_plain_path_sends() {
    let Some(context) = gpu() else { return };
    let unit = unit(2.0);
    let mut random = Random(3);
    let elements = 2 * CHUNK + 10_001;
    let chunks = of_one_scope(elements);
    for density in [1e-3, 0.3] {
        let update = random.plain(elements, unit, density);
        let hits = update.iter().filter(|x| x.abs() >= unit.t()).count();
        let buffer = buffer_of_numbers(context, &update);
        for (first, limit) in [0, 1, 7, hits / 7, hits / 2, hits - 1, hits, hits + 1]
            .into_iter()
            .flat_map(|limit| [(0, limit), (1, limit), (2, limit)])
        {
            let (mut vector, mut plain) = pair(context, &chunks, 1);
            // The start of the search is somewhere else in each step.
            for step in [first, first + 3 * (limit as u64 + 1)] {
                step_of_both(
                    &mut vector,
                    &mut plain,
                    GradRef::device(&buffer).given(),
                    Given::from(&update),
                    &GpuStep {
                        step,
                        first,
                        scopes: &[(unit, limit)],
                        clip: None,
                    },
                    &format!("density {density}, limit {limit} of {hits}, step {step}"),
                );
            }
        }
    }
}

/// Ranges of several scopes and of dense numbers, some short.
fn mixed() -> Vec<(usize, ChunkCoding)> {
    use ChunkCoding::{Dense as Whole, Threshold};
    vec![
        (10_000, Threshold(0)),
        (3, Whole(Dense::F32)),
        (70_000, Threshold(1)),
        (4099, Whole(Dense::Bf16)),
        (1, Threshold(0)),
        (40_001, Whole(Dense::F32)),
        (CHUNK + 1, Threshold(0)),
        (0, Threshold(2)),
        (33, Threshold(1)),
        (33_000, Whole(Dense::Bf16)),
        (5000, Threshold(0)),
    ]
}

#[test]
fn scopes_and_dense_ranges_keep_apart_over_several_steps() {
    let Some(context) = gpu() else { return };
    let chunks = layout_of(&mixed());
    let units = [unit(1e-3), unit(3e-3), unit(1.0)];
    let mut random = Random(4);
    let (mut vector, mut plain) = pair(context, &chunks, 3);
    let elements = plain.residual.len();
    let mut formats = [0; 5];
    for step in 0..14 {
        let update = random.numbers(elements, units[0]);
        let buffer = buffer_of_numbers(context, &update);
        let limits = match step % 3 {
            0 => [usize::MAX; 3],
            1 => [5000, 900, 0],
            _ => [12_345, usize::MAX, 7],
        };
        let scopes = [0, 1, 2].map(|scope| (units[scope], limits[scope]));
        let seen = step_of_both(
            &mut vector,
            &mut plain,
            GradRef::device(&buffer).given(),
            Given::from(&update),
            &GpuStep {
                step,
                first: step * 5,
                scopes: &scopes,
                clip: (step % 4 == 3).then(|| Clip::new(2.0).unwrap()),
            },
            &format!("step {step}"),
        );
        for (all, seen) in formats.iter_mut().zip(seen) {
            *all += seen;
        }
    }
    assert!(formats[1..].iter().all(|&seen| seen > 0), "{formats:?}");
}

#[test]
fn clipping_cuts_and_counts_as_the_plain_path_does() {
    let Some(context) = gpu() else { return };
    let elements = CHUNK + 3000;
    let mut random = Random(5);
    for (t, multiple) in [
        (1e-3, 2.0),
        (1e-3, 5.5),
        (Unit::LEAST, 2.0),
        (1.0, f32::INFINITY),
        (Unit::MOST, 1e30),
    ] {
        let unit = Unit::nearest(t, t);
        let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
        for step in 0..3 {
            let update = random.numbers(elements, unit);
            let buffer = buffer_of_numbers(context, &update);
            step_of_both(
                &mut vector,
                &mut plain,
                GradRef::device(&buffer).given(),
                Given::from(&update),
                &GpuStep {
                    step,
                    first: step,
                    scopes: &[(unit, if step == 1 { 100 } else { usize::MAX })],
                    clip: Some(Clip::new(multiple).unwrap()),
                },
                &format!("t {t:e}, {multiple} t, step {step}"),
            );
        }
    }
}

#[test]
fn updates_in_parts_anywhere_in_their_buffers_are_one_update() {
    let Some(context) = gpu() else { return };
    let chunks = layout_of(&mixed());
    let units = [unit(1e-3), unit(3e-3), unit(1.0)];
    let scopes = units.map(|unit| (unit, usize::MAX));
    let mut random = Random(6);
    let (mut vector, mut plain) = pair(context, &chunks, 3);
    let elements = plain.residual.len();
    for step in 0..6 {
        let update = random.numbers(elements, units[0]);
        // All of it at an odd offset of a buffer that has something before and behind.
        let mut words = vec![0xffff_ffff; 3 + step];
        words.extend(bits(&update));
        words.extend([0x7fc0_0000; 5]);
        let buffer = buffer_of(context, &words);
        let part = |range: Range<usize>| GradRef::Device {
            buffer: &buffer,
            offset: 4 * (3 + step + range.start) as u64,
            len: range.len() as u64,
        };
        let mut host = update[20_000..31_111].to_vec();
        let parts = match step % 3 {
            0 => vec![part(0..elements)],
            1 => vec![
                part(0..1),
                part(1..12_345),
                part(12_345..12_345),
                part(12_345..elements),
            ],
            _ => vec![
                part(0..20_000),
                GradRef::Host(&mut host),
                part(31_111..elements),
            ],
        };
        step_of_both(
            &mut vector,
            &mut plain,
            parts.given(),
            Given::from(&update),
            &GpuStep {
                step: step as u64,
                first: 0,
                scopes: &scopes,
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

#[test]
fn updates_of_this_process_are_uploaded_whatever_their_numbers() {
    let Some(context) = gpu() else { return };
    let unit = unit(1e-3);
    let mut random = Random(7);
    let elements = CHUNK + 77;
    let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
    for step in 0..4 {
        let singles = random.numbers(elements, unit);
        let halves: Vec<f16> = singles.iter().map(|&x| f16::from_f32(x)).collect();
        let upper: Vec<bf16> = singles.iter().map(|&x| bf16::from_f32(x)).collect();
        let parts = [
            Values::F32(&singles[..1000]),
            Values::F16(&halves[1000..100_001]),
            Values::Bf16(&upper[100_001..]),
        ];
        let update = match step {
            0 => Given::from(&singles),
            1 => Given::from(&halves),
            2 => Given::from(&upper),
            _ => Given::from(&parts),
        };
        step_of_both(
            &mut vector,
            &mut plain,
            update,
            update,
            &GpuStep {
                step,
                first: step,
                scopes: &[(unit, usize::MAX)],
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

#[test]
fn an_update_in_the_residual_is_encoded_from_there() {
    let Some(context) = gpu() else { return };
    let chunks = layout_of(&mixed());
    let units = [unit(1e-3), unit(3e-3), unit(1.0)];
    let mut random = Random(8);
    let (mut vector, mut plain) = pair(context, &chunks, 3);
    for step in 0..3 {
        let numbers = random.numbers(plain.residual.len(), units[0]);
        vector.restore(&numbers).unwrap();
        plain.residual.copy_from_slice(&numbers);
        step_of_both(
            &mut vector,
            &mut plain,
            Given::InResidual,
            Given::InResidual,
            &GpuStep {
                step,
                first: step,
                scopes: &units.map(|unit| (unit, 4000)),
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

/// The least that a device may bind: 4 Mi elements a window.
fn small_limits() -> Limits {
    Limits {
        max_storage_buffer_binding_size: 1 << 24,
        max_buffer_size: 1 << 26,
        ..Limits::default()
    }
}

#[test]
fn windows_change_no_byte() {
    let Some(context) = device_with(Features::empty(), small_limits()) else {
        return;
    };
    let units = [unit(1e-3), unit(3e-3)];
    // Windows are cut by elements, and by the masks of many short chunks.
    let mut ranges = vec![(3_000_000, ChunkCoding::Threshold(0))];
    ranges.extend((0..45_000).map(|at| {
        let coding = match at % 5 {
            0 => ChunkCoding::Dense(Dense::Bf16),
            at => ChunkCoding::Threshold(at % 2),
        };
        (at % 4, coding)
    }));
    ranges.push((4_400_000, ChunkCoding::Threshold(1)));
    let chunks = layout_of(&ranges);
    let (mut vector, mut plain) = pair(&context, &chunks, 2);
    let windows = vector.buffers().count();
    assert!(windows >= 3, "{windows}");
    let elements = plain.residual.len();
    let mut random = Random(9);
    for step in 0..3 {
        let update = random.numbers(elements, units[0]);
        let buffer = buffer_of_numbers(&context, &update);
        let whole = [GradRef::device(&buffer)];
        let halves = [0, elements as u64 / 2 + 1].map(|start| GradRef::Device {
            buffer: &buffer,
            offset: 4 * start,
            len: if start == 0 {
                elements as u64 / 2 + 1
            } else {
                elements as u64 - start
            },
        });
        let on_device = match step {
            0 => whole.given(),
            1 => halves.given(),
            _ => Given::from(&update),
        };
        step_of_both(
            &mut vector,
            &mut plain,
            on_device,
            Given::from(&update),
            &GpuStep {
                step,
                first: 11_111 * step,
                scopes: &[(units[0], 600_000), (units[1], usize::MAX)],
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

#[test]
fn a_device_of_default_limits_and_one_without_subgroups_give_the_same_bytes() {
    for features in [Features::empty(), Features::SUBGROUP] {
        let Some(context) = device_with(features, Limits::default()) else {
            return;
        };
        let chunks = layout_of(&mixed());
        let units = [unit(1e-3), unit(3e-3), unit(1.0)];
        let mut random = Random(10);
        let (mut vector, mut plain) = pair(&context, &chunks, 3);
        for step in 0..3 {
            let update = random.numbers(plain.residual.len(), units[0]);
            let buffer = buffer_of_numbers(&context, &update);
            step_of_both(
                &mut vector,
                &mut plain,
                GradRef::device(&buffer).given(),
                Given::from(&update),
                &GpuStep {
                    step,
                    first: step,
                    scopes: &units.map(|unit| (unit, 20_000)),
                    clip: None,
                },
                &format!("{features:?}, step {step}"),
            );
        }
    }
}

#[test]
fn magnitudes_are_those_of_the_plain_path() {
    let Some(context) = gpu() else { return };
    let unit = unit(1e-3);
    let mut random = Random(11);
    let elements = 300_000;
    let chunks = of_one_scope(elements);
    let residual: Vec<f32> = random
        .numbers(elements, unit)
        .into_iter()
        .map(|x| {
            if x.is_finite() {
                crate::codec::canon(x)
            } else {
                0.5
            }
        })
        .collect();
    let update = random.numbers(elements, unit);
    let mut vector = GpuVector::new(context, chunks, 1).unwrap();
    vector.restore(&residual).unwrap();
    let buffer = buffer_of_numbers(context, &update);
    let part = |range: Range<usize>| GradRef::Device {
        buffer: &buffer,
        offset: 4 * range.start as u64,
        len: range.len() as u64,
    };
    let parts = [part(0..777), part(777..150_001), part(150_001..elements)];
    let runs = (0..290).map(|run| 1000 * run + run..1000 * run + run + 64);
    let runs: Vec<Range<usize>> = runs.collect();
    for pieces in [&runs[..], &[0..elements], &[5..5, 776..778, 0..1], &[]] {
        for given in [
            Given::InResidual,
            Given::from(&update),
            GradRef::device(&buffer).given(),
            parts.given(),
        ] {
            let mut found = vec![7.0];
            vector.magnitudes(given, pieces, &mut found).unwrap();
            let mut expected = vec![7.0];
            for piece in pieces {
                let kernels = Path::Scalar;
                let piece_of = &residual[piece.clone()];
                let result = match given {
                    Given::InResidual => kernels.magnitudes(
                        piece_of,
                        Given::InResidual,
                        piece.len(),
                        0,
                        &mut expected,
                    ),
                    _ => kernels.magnitudes(
                        piece_of,
                        &update[piece.clone()],
                        piece.len(),
                        0,
                        &mut expected,
                    ),
                };
                result.unwrap();
            }
            assert!(bits(&found) == bits(&expected), "{} pieces", pieces.len());
        }
    }
    assert!(bits(&vector.residual().unwrap()) == bits(&residual));
}

#[derive(Deserialize)]
struct Case {
    name: String,
    threshold: String,
    unit: String,
    clip_multiple: Option<String>,
    max_hits: Option<usize>,
    start: usize,
    residual: Vec<String>,
    update: Vec<String>,
}

#[test]
fn the_reference_models_cases_give_the_plain_paths_bytes() {
    let Some(context) = gpu() else { return };
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../tests/data/codec.json")).unwrap();
    let number = |bits: &String| f32::from_bits(u32::from_str_radix(bits, 16).unwrap());
    // A step whose number, times the odd constant, is the case's start.
    let inverse = (0..5).fold(1u32, |inverse, _| {
        inverse.wrapping_mul(2u32.wrapping_sub(0x9E37_79B1u32.wrapping_mul(inverse)))
    });
    assert!(cases.len() > 25);
    for case in cases {
        let update: Vec<f32> = case.update.iter().map(number).collect();
        let residual: Vec<f32> = case.residual.iter().map(number).collect();
        let chunks = of_one_scope(update.len());
        let (mut vector, mut plain) = pair(context, &chunks, 1);
        vector.restore(&residual).unwrap();
        plain.residual.copy_from_slice(&residual);
        let unit = Unit::new(number(&case.threshold), number(&case.unit)).unwrap();
        step_of_both(
            &mut vector,
            &mut plain,
            Given::from(&update),
            Given::from(&update),
            &GpuStep {
                step: u64::from((case.start as u32).wrapping_mul(inverse)),
                first: 0,
                scopes: &[(unit, case.max_hits.unwrap_or(usize::MAX))],
                clip: case
                    .clip_multiple
                    .as_ref()
                    .map(|multiple| Clip::new(number(multiple)).unwrap()),
            },
            &case.name,
        );
    }
}

#[test]
fn a_vector_without_elements_sends_nothing() {
    let Some(context) = gpu() else { return };
    let mut vector = GpuVector::new(context, [].into(), 1).unwrap();
    let update: [f32; 0] = [];
    let step = GpuStep {
        step: 0,
        first: 0,
        scopes: &[(unit(1.0), 3)],
        clip: None,
    };
    vector.encode(Given::from(&update), &step).unwrap();
    assert!(vector.residual().unwrap().is_empty());
    assert_eq!((vector.dropped(), vector.clipped()), (0, 0.0));
    let mut out = Vec::new();
    vector
        .magnitudes(Given::from(&update), &[], &mut out)
        .unwrap();
    assert!(out.is_empty());
}

#[test]
fn every_kernel_is_valid_with_subgroups_and_without() {
    for features in [Features::empty(), Features::SUBGROUP] {
        let (device, queue) = wgpu::Device::noop(&DeviceDescriptor {
            required_features: features,
            ..DeviceDescriptor::default()
        });
        let context = GpuContext::from_wgpu(device, queue).unwrap();
        assert!(GpuVector::new(&context, of_one_scope(100_000), 1).is_ok());
    }
}

#[test]
fn what_no_kernel_gives_is_an_error() {
    // A device that does nothing gives zeros.
    let (device, queue) = wgpu::Device::noop(&DeviceDescriptor::default());
    let context = GpuContext::from_wgpu(device, queue).unwrap();
    let mut vector = GpuVector::new(&context, of_one_scope(1000), 1).unwrap();
    let step = GpuStep {
        step: 0,
        first: 0,
        scopes: &[(unit(1.0), usize::MAX)],
        clip: None,
    };
    let found = vector.encode(Given::from(&vec![1.0f32; 1000]), &step);
    assert!(matches!(found, Err(GpuError::Refused { .. })), "{found:?}");
}

#[test]
fn steps_of_the_same_buffers_make_nothing_new_on_the_device() {
    let Some(context) = device_with(Features::all(), Limits::default()) else {
        return;
    };
    let unit = unit(1e-3);
    let elements = CHUNK + 4321;
    let mut random = Random(12);
    let updates = [0, 1].map(|_| random.plain(elements, unit, 0.02));
    let buffers = updates
        .each_ref()
        .map(|update| buffer_of_numbers(&context, update));
    let (mut vector, mut plain) = pair(&context, &of_one_scope(elements), 1);
    let mut made = 0;
    for step in 0..40 {
        let at = step as usize % 2;
        let half = elements as u64 / 2;
        let parts = [0, half].map(|start| GradRef::Device {
            buffer: &buffers[at],
            offset: 4 * start,
            len: if start == 0 {
                half
            } else {
                elements as u64 - half
            },
        });
        let whole = GradRef::device(&buffers[at]);
        let given = match step / 2 % 3 {
            0 => whole.given(),
            1 => parts.given(),
            _ => Given::from(&updates[at]),
        };
        let mut sample = Vec::new();
        vector.magnitudes(given, &[5..700], &mut sample).unwrap();
        assert_eq!(sample.len(), 695);
        step_of_both(
            &mut vector,
            &mut plain,
            given,
            Given::from(&updates[at]),
            &GpuStep {
                step,
                first: step,
                scopes: &[(unit, 5000)],
                clip: (step % 5 == 4).then(|| Clip::new(3.0).unwrap()),
            },
            &format!("step {step}"),
        );
        // Each comparison downloads the residual through a buffer of its own.
        let others = context.made() - step as usize;
        if step <= 5 {
            made = others;
        }
        assert_eq!(others, made, "step {step}");
    }
}

#[test]
fn a_vector_of_timestamps_says_how_long_each_stage_took() {
    let Some(context) = gpu() else { return };
    if !context
        .device()
        .features()
        .contains(Features::TIMESTAMP_QUERY)
    {
        eprintln!("NOT RUN: {} has no timestamps", context.name());
        return;
    }
    let unit = unit(1e-3);
    let elements = 500_000;
    let update = Random(13).plain(elements, unit, 0.01);
    let buffer = buffer_of_numbers(context, &update);
    let mut vector = TimedVector::new(context, elements).unwrap();
    let times = vector
        .encode(GradRef::device(&buffer).given(), unit, usize::MAX, 0)
        .unwrap();
    let stages = [times.count, times.plan, times.write, times.look];
    assert!(stages.iter().all(|time| !time.is_zero()), "{times:?}");
    assert!(times.all >= stages.iter().sum(), "{times:?}");
    let expected = update.iter().filter(|x| x.abs() >= unit.t()).count();
    assert_eq!(vector.hits(), expected as u64);
    assert!(vector.message_bytes() >= 2 * expected);
}
