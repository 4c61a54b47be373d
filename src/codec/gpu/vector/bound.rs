//! Bindings of callers' buffers, kept from step to step.

use crate::codec::gpu::error::GpuError;
use crate::codec::gpu::slices::DeviceSlice;
use std::collections::HashMap;
use wgpu::{BindGroup, BindingResource, Buffer, BufferBinding};

/// Steps for which a binding that is not used is kept, and its buffer with it.
const KEPT: u64 = 8;

/// What a binding is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    Count,
    Accumulate,
    Magnitudes,
}

/// A part of a buffer, as it can be bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bindable {
    buffer: Buffer,
    offset: u64,
    bytes: u64,
}

impl Bindable {
    /// The part that holds a slice, and how many elements of it come before the slice: bindings begin at multiples of
    /// `alignment`, slices anywhere.
    pub(super) fn of(slice: &DeviceSlice<'_>, alignment: u64) -> (Bindable, u32) {
        let offset = slice.offset / alignment * alignment;
        let before = slice.offset - offset;
        let bound = Bindable {
            buffer: slice.buffer.clone(),
            offset,
            bytes: before + 4 * slice.len,
        };
        (bound, (before / 4) as u32)
    }

    pub(super) fn resource(&self) -> BindingResource<'_> {
        BindingResource::Buffer(BufferBinding {
            buffer: &self.buffer,
            offset: self.offset,
            size: std::num::NonZeroU64::new(self.bytes),
        })
    }
}

/// Bind groups by what they are for, the window, and the caller's buffer.
#[derive(Default)]
pub(super) struct Bound {
    groups: HashMap<(Use, usize, Bindable), (BindGroup, u64)>,
    steps: u64,
}

impl Bound {
    /// Another step begins: what has not been used for long is let go.
    pub(super) fn begin(&mut self) {
        self.steps += 1;
        let steps = self.steps;
        self.groups.retain(|_, (_, used)| *used + KEPT >= steps);
    }

    /// Lets go of all that are for this.
    pub(super) fn forget(&mut self, what: Use) {
        self.groups.retain(|key, _| key.0 != what);
    }

    /// The one for this, which is made if there is none.
    pub(super) fn get(
        &mut self,
        what: Use,
        window: usize,
        bindable: Bindable,
        make: impl FnOnce(BindingResource<'_>) -> Result<BindGroup, GpuError>,
    ) -> Result<BindGroup, GpuError> {
        let steps = self.steps;
        let key = (what, window, bindable);
        if let Some((group, used)) = self.groups.get_mut(&key) {
            *used = steps;
            return Ok(group.clone());
        }
        let group = make(key.2.resource())?;
        self.groups.insert(key, (group.clone(), steps));
        Ok(group)
    }
}
