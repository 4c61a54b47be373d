//! The program's own device, and vectors in its memory.

use std::io::{self, Read, Write};

use gradring::checkpoint::{State, StateError, Whose};
use gradring::{GpuContext, GpuError, GradRef, Parameters};
use thiserror::Error;
use wgpu::{
    Adapter, AdapterInfo, Backends, Buffer, BufferDescriptor, BufferUsages, Device,
    DeviceDescriptor, DeviceType, Instance, InstanceDescriptor, Queue,
};

/// What the device does not do.
#[derive(Debug, Error)]
pub(crate) enum DeviceError {
    #[error(
        "there is no GPU here, nor software that stands in for one (such as Mesa's lavapipe for Vulkan)"
    )]
    NoAdapter,
    #[error("no GPU is named {name:?}; there is {found}")]
    NoneNamed { name: String, found: String },
    #[error("{adapter} gives no device: {why}")]
    NoDevice { adapter: String, why: String },
    #[error(transparent)]
    Context(#[from] GpuError),
}

/// A device and its queue.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) queue: Queue,
    pub(crate) info: AdapterInfo,
    /// The same, for the exchange and for copies.
    pub(crate) context: GpuContext,
}

impl Gpu {
    /// Opens the adapter that [`adapter`] gives.
    pub(crate) fn open(name: Option<&str>, rank: usize) -> Result<Gpu, DeviceError> {
        let adapter = adapter(name, rank)?;
        let info = adapter.get_info();
        let made = pollster::block_on(adapter.request_device(&DeviceDescriptor::default()));
        let (device, queue) = made.map_err(|error| DeviceError::NoDevice {
            adapter: info.name.clone(),
            why: error.to_string(),
        })?;
        Ok(Gpu {
            context: GpuContext::from_wgpu(device.clone(), queue.clone())?,
            device,
            queue,
            info,
        })
    }

    /// A buffer for so many elements of 4 bytes, all 0.
    pub(crate) fn buffer(&self, what: &str, elements: usize) -> Buffer {
        self.device.create_buffer(&BufferDescriptor {
            label: Some(what),
            size: (elements * size_of::<f32>()) as u64,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }
}

/// The adapter for the replica of this rank: of those that have `name` in their own, real ones before software, and of
/// several of these one after the other.
pub(crate) fn adapter(name: Option<&str>, rank: usize) -> Result<Adapter, DeviceError> {
    let instance = Instance::new(InstanceDescriptor {
        backends: Backends::PRIMARY,
        ..InstanceDescriptor::new_without_display_handle()
    });
    let all = pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY));
    let names = all.iter().map(|adapter| adapter.get_info().name);
    let Some(found) = names.reduce(|list, name| format!("{list}, {name}")) else {
        return Err(DeviceError::NoAdapter);
    };
    let wanted = name.unwrap_or_default().to_lowercase();
    let (software, real): (Vec<Adapter>, Vec<Adapter>) = all
        .into_iter()
        .filter(|adapter| adapter.get_info().name.to_lowercase().contains(&wanted))
        .partition(|adapter| adapter.get_info().device_type == DeviceType::Cpu);
    let mut adapters = if real.is_empty() { software } else { real };
    if adapters.is_empty() {
        let name = name.unwrap_or_default().to_owned();
        return Err(DeviceError::NoneNamed { name, found });
    }
    let chosen = rank % adapters.len();
    Ok(adapters.swap_remove(chosen))
}

/// A vector of f32 in the device's memory, in as many buffers as a model has tensors. Copies are the same memory.
#[derive(Clone)]
pub(crate) struct Tensors {
    gpu: Gpu,
    name: &'static str,
    whose: Whose,
    pub(crate) buffers: Vec<Buffer>,
}

impl Tensors {
    /// Tensors of these lengths, full of +0. `whose`: for checkpoints.
    pub(crate) fn new(gpu: &Gpu, name: &'static str, whose: Whose, lengths: &[usize]) -> Tensors {
        let buffers = lengths.iter().map(|&length| gpu.buffer(name, length));
        Tensors {
            gpu: gpu.clone(),
            name,
            whose,
            buffers: buffers.collect(),
        }
    }

    /// As they are handed over to an exchange.
    pub(crate) fn parts(&self) -> Vec<GradRef<'_>> {
        self.buffers.iter().map(GradRef::device).collect()
    }

    /// How many elements there are in all.
    pub(crate) fn elements(&self) -> usize {
        self.parts().elements()
    }

    /// Copies as many elements to the device.
    pub(crate) fn write(&self, values: &[f32]) -> Result<(), GpuError> {
        self.gpu.context.upload(values, &self.parts())
    }

    /// Waits for all that was submitted, and copies all elements from the device.
    pub(crate) fn read(&self) -> Result<Vec<f32>, GpuError> {
        self.gpu.context.download(&self.parts())
    }

    fn state_error(&self, error: GpuError) -> StateError {
        StateError::io(self.name, io::Error::other(error))
    }
}

/// In a checkpoint they are the bytes of their elements.
impl State for Tensors {
    fn name(&self) -> &str {
        self.name
    }

    fn whose(&self) -> Whose {
        self.whose
    }

    fn save(&self, out: &mut dyn Write) -> Result<(), StateError> {
        let values = self.read().map_err(|error| self.state_error(error))?;
        let written = out.write_all(bytemuck::cast_slice(&values));
        written.map_err(|error| StateError::io(self.name, error))
    }

    fn load(&mut self, from: &mut dyn Read) -> Result<(), StateError> {
        let written = self.write(&self.saved(from)?);
        written.map_err(|error| self.state_error(error))
    }

    /// Where there were more or fewer replicas, and each had its own, all go on from the mean; of what they share, one is
    /// as good as another.
    fn merge(
        &mut self,
        old: &mut [&mut dyn Read],
        _rank: usize,
        _world_size: usize,
    ) -> Result<(), StateError> {
        let old = match self.whose {
            Whose::Shared => &mut old[..1],
            Whose::Replica => old,
        };
        let all: Result<Vec<_>, _> = old.iter_mut().map(|from| self.saved(*from)).collect();
        let all = all?;
        let mean = |element: usize| {
            let sum: f32 = all.iter().map(|values| values[element]).sum();
            sum / all.len() as f32
        };
        let means: Vec<f32> = (0..self.elements()).map(mean).collect();
        let written = self.write(&means);
        written.map_err(|error| self.state_error(error))
    }
}

impl Tensors {
    /// What `save` wrote.
    fn saved(&self, from: &mut dyn Read) -> Result<Vec<f32>, StateError> {
        let mut values = vec![0.0; self.elements()];
        let read = from.read_exact(bytemuck::cast_slice_mut(&mut values));
        read.map_err(|error| StateError::io(self.name, error))?;
        Ok(values)
    }
}
