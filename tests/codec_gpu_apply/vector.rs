//! Vectors in the memory of a device.

use super::device::gpu;
use super::plain::Random;
use super::{GpuContext, wgpu};
use gradring::codec::gpu::GradRef;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wgpu::BufferUsages;

/// The device that all tests share, one test at a time.
pub(crate) fn context() -> Option<(GpuContext, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    gpu().map(|context| (context.clone(), turn))
}

/// What the elements around those of a vector hold: nobody may write them.
const AROUND: f32 = 77.0;

/// More than a batch of the applier has dispatches.
const MOST_BUFFERS: usize = 700;

/// A vector in buffers of a device.
pub(crate) struct Vector {
    context: GpuContext,
    buffers: Vec<wgpu::Buffer>,
    /// Which buffer, and which of its elements.
    parts: Vec<(usize, Range<usize>)>,
}

pub(crate) const USAGES: BufferUsages = BufferUsages::STORAGE
    .union(BufferUsages::COPY_SRC)
    .union(BufferUsages::COPY_DST);

pub(crate) fn buffer(context: &GpuContext, elements: usize, usage: BufferUsages) -> wgpu::Buffer {
    context.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4 * elements as u64,
        usage,
        mapped_at_creation: false,
    })
}

impl Vector {
    /// A vector in parts of these lengths, each of which has some elements of nobody before it; about every second one
    /// begins a buffer of its own.
    pub(crate) fn new(
        context: &GpuContext,
        random: &mut Random,
        values: &[f32],
        lengths: impl IntoIterator<Item = usize>,
    ) -> Vector {
        let (mut parts, mut sizes, mut left) = (Vec::new(), vec![0], values.len());
        let lengths = lengths.into_iter().chain([usize::MAX]);
        for length in lengths {
            let length = length.min(left);
            left -= length;
            if sizes.len() < MOST_BUFFERS && random.coin() {
                sizes.push(0);
            }
            let buffer = sizes.len() - 1;
            let first = sizes[buffer] + random.index(5);
            parts.push((buffer, first..first + length));
            sizes[buffer] = first + length;
        }
        let buffers: Vec<wgpu::Buffer> = (sizes.iter())
            .map(|size| buffer(context, size + 1 + random.index(70), USAGES))
            .collect();
        let vector = Vector {
            context: context.clone(),
            buffers,
            parts,
        };
        vector.write(values);
        vector
    }

    /// All of it in one part.
    pub(crate) fn in_one(context: &GpuContext, random: &mut Random, values: &[f32]) -> Vector {
        Self::new(context, random, values, [])
    }

    pub(crate) fn write(&self, values: &[f32]) {
        let mut contents: Vec<Vec<f32>> = (self.buffers.iter())
            .map(|buffer| vec![AROUND; (buffer.size() / 4) as usize])
            .collect();
        let mut rest = values;
        for (buffer, elements) in &self.parts {
            let (now, after) = rest.split_at(elements.len());
            contents[*buffer][elements.clone()].copy_from_slice(now);
            rest = after;
        }
        for (buffer, contents) in self.buffers.iter().zip(contents) {
            let bytes: Vec<u8> = contents.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.context.queue().write_buffer(buffer, 0, &bytes);
        }
    }

    pub(crate) fn parts(&self) -> Vec<GradRef<'_>> {
        let part = |(buffer, elements): &(usize, Range<usize>)| GradRef::Device {
            buffer: &self.buffers[*buffer],
            offset: 4 * elements.start as u64,
            len: elements.len() as u64,
        };
        self.parts.iter().map(part).collect()
    }

    /// What it holds. Checks that nothing around its parts has been written.
    pub(crate) fn read(&self) -> Vec<f32> {
        let mut contents: Vec<Vec<f32>> = (self.buffers.iter())
            .map(|buffer| read(&self.context, buffer))
            .collect();
        let mut values = Vec::new();
        for (buffer, elements) in &self.parts {
            let part = &mut contents[*buffer][elements.clone()];
            values.extend_from_slice(part);
            part.fill(AROUND);
        }
        let untouched = |x: &f32| x.to_bits() == AROUND.to_bits();
        assert!(contents.iter().flatten().all(untouched), "written outside");
        values
    }
}

/// All of a buffer.
pub(crate) fn read(context: &GpuContext, buffer: &wgpu::Buffer) -> Vec<f32> {
    let (device, queue) = (context.device(), context.queue());
    let staging = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: buffer.size(),
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut commands = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    commands.copy_buffer_to_buffer(buffer, 0, &staging, 0, None);
    queue.submit([commands.finish()]);
    let slice = staging.slice(..);
    slice.map_async(wgpu::MapMode::Read, |mapped| mapped.expect("mapped"));
    device
        .poll(wgpu::PollType::wait_indefinitely())
        .expect("the device works");
    let bytes = slice.get_mapped_range().expect("mapped");
    let values = bytes.chunks_exact(4);
    values
        .map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]))
        .collect()
}
