//! Vectors in either memory.

use gradring::codec::gpu::{GpuContext, GradRef, Selection, adapters, wgpu};
use gradring::{Exchange, Parameters, Update};
use std::io::Write;
use std::sync::mpsc::channel;
use wgpu::{Buffer, BufferDescriptor, BufferUsages};

/// Whether there is any adapter. If not that is said, and an error if `GRADRING_REQUIRE_GPU` is 1.
pub(crate) fn is_here() -> bool {
    let is_here = !adapters().is_empty();
    if !is_here {
        let required = std::env::var("GRADRING_REQUIRE_GPU").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "GRADRING_REQUIRE_GPU is 1, and there is no adapter"
        );
        let _ = writeln!(std::io::stderr(), "NOT RUN: there is no adapter");
    }
    is_here
}

/// A device of this process.
pub(crate) fn context() -> GpuContext {
    let selection = Selection::from_env().expect("GRADRING_ADAPTER says what it can");
    GpuContext::new(&selection).expect("a device")
}

/// Where a vector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Host,
    Device,
}

/// A vector in either memory.
pub(crate) enum Vector {
    Host(Vec<f32>),
    Device(OnDevice),
}

/// A vector in the memory of a device, in parts.
pub(crate) struct OnDevice {
    context: GpuContext,
    parts: Vec<Part>,
}

struct Part {
    buffer: Buffer,
    /// Elements before it, which are nobody's.
    skipped: usize,
    length: usize,
}

/// What lies around parts.
const NOBODYS: f32 = 12_345.0;

pub(crate) const ALL: BufferUsages = BufferUsages::STORAGE
    .union(BufferUsages::COPY_SRC)
    .union(BufferUsages::COPY_DST);

pub(crate) fn buffer(context: &GpuContext, elements: usize, usage: BufferUsages) -> Buffer {
    context.device().create_buffer(&BufferDescriptor {
        label: None,
        size: 4 * elements as u64,
        usage,
        mapped_at_creation: false,
    })
}

pub(crate) fn write(context: &GpuContext, buffer: &Buffer, first: usize, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    context
        .queue()
        .write_buffer(buffer, 4 * first as u64, &bytes);
}

/// All of a buffer.
pub(crate) fn read(context: &GpuContext, from: &Buffer) -> Vec<f32> {
    let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
    let staging = buffer(context, from.size() as usize / 4, usage);
    let mut commands = context.device().create_command_encoder(&Default::default());
    commands.copy_buffer_to_buffer(from, 0, &staging, 0, from.size());
    context.queue().submit([commands.finish()]);
    let (sender, mapped) = channel();
    staging.map_async(wgpu::MapMode::Read, .., move |outcome| {
        let _ = sender.send(outcome);
    });
    context
        .device()
        .poll(wgpu::PollType::wait_indefinitely())
        .expect("the device works");
    mapped.recv().expect("called").expect("mapped");
    let view = staging.slice(..).get_mapped_range().expect("mapped");
    let (words, _) = view.as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

impl OnDevice {
    fn new(context: &GpuContext, values: &[f32], lengths: &[usize]) -> Self {
        let mut lengths = lengths.to_vec();
        lengths.push(values.len() - lengths.iter().sum::<usize>());
        let parts = lengths.into_iter().enumerate().map(|(number, length)| {
            let skipped = [0, 3, 64, 1][number % 4];
            let buffer = buffer(context, skipped + length + 2, ALL);
            write(context, &buffer, 0, &vec![NOBODYS; skipped + length + 2]);
            Part {
                buffer,
                skipped,
                length,
            }
        });
        let vector = Self {
            context: context.clone(),
            parts: parts.collect(),
        };
        vector.write(values);
        vector
    }

    fn write(&self, values: &[f32]) {
        let mut rest = values;
        for part in &self.parts {
            let (now, later) = rest.split_at(part.length);
            write(&self.context, &part.buffer, part.skipped, now);
            rest = later;
        }
    }

    fn read(&self) -> Vec<f32> {
        let mut values = Vec::new();
        for part in &self.parts {
            let all = read(&self.context, &part.buffer);
            let (before, rest) = all.split_at(part.skipped);
            let (own, after) = rest.split_at(part.length);
            let others = before.iter().chain(after);
            assert!(others.copied().all(|x| x == NOBODYS), "beside a part");
            values.extend_from_slice(own);
        }
        values
    }

    fn refs(&self) -> Vec<GradRef<'_>> {
        let part = |part: &'_ Part| -> (usize, usize) { (part.skipped, part.length) };
        self.parts
            .iter()
            .map(|of| {
                let (skipped, length) = part(of);
                GradRef::Device {
                    buffer: &of.buffer,
                    offset: 4 * skipped as u64,
                    len: length as u64,
                }
            })
            .collect()
    }
}

impl Vector {
    pub(crate) fn new(
        memory: Memory,
        context: Option<&GpuContext>,
        values: &[f32],
        lengths: &[usize],
    ) -> Self {
        match (memory, context) {
            (Memory::Device, Some(context)) => {
                Self::Device(OnDevice::new(context, values, lengths))
            }
            _ => Self::Host(values.to_vec()),
        }
    }

    pub(crate) fn set(&mut self, values: &[f32]) {
        match self {
            Self::Host(vector) => vector.copy_from_slice(values),
            Self::Device(vector) => vector.write(values),
        }
    }

    pub(crate) fn get(&self) -> Vec<f32> {
        match self {
            Self::Host(vector) => vector.clone(),
            Self::Device(vector) => vector.read(),
        }
    }

    /// As an update, for this call.
    pub(crate) fn given<R>(&self, with: impl FnOnce(&dyn Update) -> R) -> R {
        match self {
            Self::Host(vector) => with(vector),
            Self::Device(vector) => with(&vector.refs()),
        }
    }

    /// As parameters or a sum, for this call.
    pub(crate) fn onto<R>(&mut self, with: impl FnOnce(&mut dyn Parameters) -> R) -> R {
        match self {
            Self::Host(vector) => with(vector),
            Self::Device(vector) => with(&mut vector.refs()),
        }
    }

    /// Where it is on a device.
    pub(crate) fn device_refs(&self) -> Vec<GradRef<'_>> {
        match self {
            Self::Host(_) => Vec::new(),
            Self::Device(vector) => vector.refs(),
        }
    }
}

/// A step with an update, or none, in whatever memory.
pub(crate) fn step(
    exchange: &mut Exchange,
    update: Option<&Vector>,
    parameters: &mut Vector,
) -> Result<gradring::Report, gradring::Error> {
    parameters.onto(|parameters| match update {
        None => exchange.step(None, parameters),
        Some(update) => update.given(|update| exchange.step(Some(update), parameters)),
    })
}

/// The same with a sum that is handed over.
pub(crate) fn all_reduce(
    exchange: &mut Exchange,
    update: Option<&Vector>,
    sum: &mut Vector,
) -> Result<gradring::Report, gradring::Error> {
    sum.onto(|sum| match update {
        None => exchange.all_reduce(None, sum),
        Some(update) => update.given(|update| exchange.all_reduce(Some(update), sum)),
    })
}
