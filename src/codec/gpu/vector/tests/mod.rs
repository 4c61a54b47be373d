//! Byte equality with the processor's plain path.

use super::{GpuContext, GpuError, GpuStep, GpuVector};
use crate::codec::encode::Clip;
use crate::codec::gpu::{GradRef, Selection, wgpu};
use crate::codec::ranges::{Chunk, ChunkCoding, chunks, visited};
use crate::codec::{Budget, CHUNK, ChunkOptions, Dense, Encoded, Given, Path, Unit, Update, cut8};
use std::sync::Arc;
use wgpu::util::{BufferInitDescriptor, DeviceExt};

mod bytes;
#[path = "../../../../../tests/codec_gpu/device.rs"]
mod device;
mod devices;
mod updates;
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
