//! Vectors, or parts of vectors, in the memory of a GPU.

use super::error::GpuError;
use crate::codec::given::{Given, Update};
use crate::codec::parameters::Parameters;
use wgpu::BufferUsages;

/// An update, or parameters, where they are: f32 in this process's memory, or in a buffer of a GPU.
///
/// A model's tensors are a list of them: `[GradRef]` is one vector, as `[&[f32]]` is. The parts of parameters must all be
/// in one kind of memory, and no two of them may have an element in common; those of an update may do both. Update and
/// parameters may be in one buffer, but neither may be in those of an encoder's residual.
///
/// A buffer needs [`STORAGE`](BufferUsages::STORAGE); one of parameters also [`COPY_SRC`](BufferUsages::COPY_SRC) and
/// [`COPY_DST`](BufferUsages::COPY_DST); one of an update also `COPY_SRC` where a step is staged, that is, copied to the
/// processor and worked on there. What was submitted to the queue before a step is done before it; a step's own
/// work on parameters is done before what is submitted after it.
#[derive(Debug)]
pub enum GradRef<'a> {
    /// In this process's memory.
    Host(&'a mut [f32]),
    /// In a buffer of the device whose [`GpuContext`](super::GpuContext) the encoder or exchange was made with.
    Device {
        /// The buffer. One of another device of the same `wgpu::Instance` is refused; one of another instance cannot be told
        /// from this one's, and must not be given.
        buffer: &'a wgpu::Buffer,
        /// The byte at which the first element lies: a multiple of 4.
        offset: u64,
        /// How many elements there are.
        len: u64,
    },
}

impl<'a> GradRef<'a> {
    /// All of a buffer; up to 3 bytes at its end that are no whole element are left out.
    #[must_use]
    pub fn device(buffer: &'a wgpu::Buffer) -> GradRef<'a> {
        GradRef::Device {
            buffer,
            offset: 0,
            len: buffer.size() / size_of::<f32>() as u64,
        }
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            GradRef::Host(values) => values.len(),
            GradRef::Device { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lies in the memory of a device; `None` of a slice of this process.
    pub(crate) fn on_device(&self) -> Option<DeviceSlice<'_>> {
        match *self {
            GradRef::Host(_) => None,
            GradRef::Device {
                buffer,
                offset,
                len,
            } => Some(DeviceSlice {
                buffer,
                offset,
                len,
            }),
        }
    }
}

/// What the buffers of parameters have to allow.
pub(crate) const PARAMETERS: BufferUsages = BufferUsages::STORAGE
    .union(BufferUsages::COPY_SRC)
    .union(BufferUsages::COPY_DST);

/// f32 elements in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSlice<'a> {
    pub(crate) buffer: &'a wgpu::Buffer,
    /// In bytes.
    pub(crate) offset: u64,
    /// In elements.
    pub(crate) len: u64,
}

impl DeviceSlice<'_> {
    /// Refuses one that is not inside its buffer, or lies askew, or that the buffer's usages do not allow.
    pub(crate) fn check(&self, what: &'static str, usages: BufferUsages) -> Result<(), GpuError> {
        let end = self
            .len
            .checked_mul(4)
            .and_then(|bytes| bytes.checked_add(self.offset));
        let expected = if !self.offset.is_multiple_of(4) {
            "an offset that is a multiple of 4"
        } else if end.is_none_or(|end| end > self.buffer.size()) {
            "an end inside of the buffer"
        } else if !self.buffer.usage().contains(usages) {
            if usages.contains(BufferUsages::COPY_DST) {
                "a buffer with the usages STORAGE, COPY_SRC and COPY_DST"
            } else if usages.contains(BufferUsages::COPY_SRC) {
                "a buffer with the usage COPY_SRC, since this step copies it to the processor"
            } else {
                "a buffer with the usage STORAGE"
            }
        } else {
            return Ok(());
        };
        Err(self.refused(what, expected))
    }

    /// The error of one that is not what was expected.
    pub(crate) fn refused(&self, what: &'static str, expected: &'static str) -> GpuError {
        GpuError::Buffer {
            what,
            offset: self.offset,
            len: self.len,
            size: self.buffer.size(),
            expected,
        }
    }
}

/// Refuses parts of which two have an element in common: what is applied to it would depend on where that is done. All
/// must be inside of their buffers.
pub(crate) fn check_apart(what: &'static str, parts: &[GradRef<'_>]) -> Result<(), GpuError> {
    let slices = parts.iter().filter_map(GradRef::on_device);
    let mut slices: Vec<DeviceSlice<'_>> = slices.filter(|slice| slice.len > 0).collect();
    slices.sort_unstable_by(|a, b| (a.buffer, a.offset).cmp(&(b.buffer, b.offset)));
    for pair in slices.windows(2) {
        let [before, slice] = pair else { continue };
        if before.buffer == slice.buffer && before.offset + 4 * before.len > slice.offset {
            return Err(slice.refused(what, "elements that no other part has"));
        }
    }
    Ok(())
}

impl Update for GradRef<'_> {
    fn given(&self) -> Given<'_> {
        match self {
            GradRef::Host(values) => Given::Slice((&**values).into()),
            GradRef::Device { .. } => Given::Device(std::slice::from_ref(self)),
        }
    }
}

impl Update for [GradRef<'_>] {
    fn given(&self) -> Given<'_> {
        Given::Device(self)
    }
}

impl Update for Vec<GradRef<'_>> {
    fn given(&self) -> Given<'_> {
        Given::Device(self)
    }
}

impl<const N: usize> Update for [GradRef<'_>; N] {
    fn given(&self) -> Given<'_> {
        Given::Device(self)
    }
}

impl Parameters for GradRef<'_> {
    fn elements(&self) -> usize {
        self.len()
    }

    fn rest(&mut self, element: usize) -> &mut [f32] {
        std::slice::from_mut(self).rest(element)
    }

    fn device(&self) -> Option<&[GradRef<'_>]> {
        std::slice::from_ref(self).device()
    }
}

impl Parameters for [GradRef<'_>] {
    fn elements(&self) -> usize {
        self.iter()
            .fold(0, |sum: usize, part| sum.saturating_add(part.len()))
    }

    /// Empty where the element is on a device.
    fn rest(&mut self, mut element: usize) -> &mut [f32] {
        for part in self {
            let length = part.len();
            if element < length {
                return match part {
                    GradRef::Host(values) => &mut values[element..],
                    GradRef::Device { .. } => &mut [],
                };
            }
            element -= length;
        }
        &mut []
    }

    fn device(&self) -> Option<&[GradRef<'_>]> {
        let on_device = |part: &GradRef<'_>| matches!(part, GradRef::Device { .. });
        self.iter().any(on_device).then_some(self)
    }
}

macro_rules! as_list {
    ($([$($generics:tt)*] $list:ty),*) => {$(
        impl<$($generics)*> Parameters for $list {
            fn elements(&self) -> usize {
                self[..].elements()
            }

            fn rest(&mut self, element: usize) -> &mut [f32] {
                self[..].rest(element)
            }

            fn device(&self) -> Option<&[GradRef<'_>]> {
                self[..].device()
            }
        }
    )*};
}

as_list!([] Vec<GradRef<'_>>, [const N: usize] [GradRef<'_>; N]);
