//! Where an update's elements are, window by window.

use super::layout::Window;
use crate::codec::Values;
use crate::codec::given::Given;
use crate::codec::gpu::error::GpuError;
use crate::codec::gpu::slices::{DeviceSlice, GradRef};
use wgpu::BufferUsages;

/// A part of an update, in one kind of memory.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Host(Values<'a>),
    Device(DeviceSlice<'a>),
}

impl<'a> Part<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Part::Host(values) => values.len(),
            Part::Device(slice) => usize::try_from(slice.len).unwrap_or(usize::MAX),
        }
    }

    /// Some of its elements, which must be there.
    pub(super) fn slice(&self, start: usize, len: usize) -> Part<'a> {
        match self {
            Part::Host(values) => Part::Host(values.slice(start..start + len)),
            Part::Device(slice) => Part::Device(DeviceSlice {
                offset: slice.offset + 4 * start as u64,
                len: len as u64,
                ..*slice
            }),
        }
    }
}

/// The parts of an update, in order, empty ones left out; `None` if it is in the residual. Refuses buffers that cannot be
/// read.
pub(super) fn parts_of(update: Given<'_>) -> Result<Option<Vec<Part<'_>>>, GpuError> {
    let mut parts: Vec<Part<'_>> = match update {
        Given::InResidual => return Ok(None),
        Given::Slice(values) => vec![Part::Host(values)],
        Given::Parts(parts) => parts.iter().map(|&values| Part::Host(values)).collect(),
        Given::Device(parts) => parts
            .iter()
            .map(|part| match part {
                GradRef::Host(values) => Part::Host(Values::F32(values)),
                &GradRef::Device {
                    buffer,
                    offset,
                    len,
                } => Part::Device(DeviceSlice {
                    buffer,
                    offset,
                    len,
                }),
            })
            .collect(),
    };
    for part in &parts {
        if let Part::Device(slice) = part {
            slice.check("an update", BufferUsages::STORAGE)?;
        }
    }
    parts.retain(|part| part.len() > 0);
    Ok(Some(parts))
}

/// Elements of a window that are added together.
pub(super) struct Share<'a> {
    /// In the window.
    pub(super) start: usize,
    pub(super) len: usize,
    /// Where they are; `None` of those that are uploaded to the vector's own buffer, at the place that they have in the
    /// window.
    pub(super) from: Option<DeviceSlice<'a>>,
}

/// What a window gets of an update.
pub(super) struct Shares<'a> {
    pub(super) shares: Vec<Share<'a>>,
    /// What is uploaded, and where in the window it belongs.
    pub(super) host: Vec<(usize, Values<'a>)>,
}

impl Shares<'_> {
    /// Whether all of a window comes from one place, so that it is counted as it is read.
    pub(super) fn is_whole(&self, window: &Window) -> bool {
        matches!(&self.shares[..], [share] if share.len == window.elements.len())
    }
}

/// Hands an update out to the windows.
pub(super) fn shares<'a>(parts: &[Part<'a>], windows: &[Window]) -> Vec<Shares<'a>> {
    let (mut next, mut done) = (0, 0);
    let share = |window: &Window| {
        let mut found = Shares {
            shares: Vec::new(),
            host: Vec::new(),
        };
        let elements = window.elements.len();
        let mut start = 0;
        while start < elements
            && let Some(part) = parts.get(next)
        {
            let len = (part.len() - done).min(elements - start);
            match part.slice(done, len) {
                Part::Host(values) => {
                    found.host.push((start, values));
                    match found.shares.last_mut() {
                        Some(last) if last.from.is_none() => last.len += len,
                        _ => found.shares.push(Share {
                            start,
                            len,
                            from: None,
                        }),
                    }
                }
                Part::Device(slice) => found.shares.push(Share {
                    start,
                    len,
                    from: Some(slice),
                }),
            }
            start += len;
            done += len;
            if done == part.len() {
                (next, done) = (next + 1, 0);
            }
        }
        found
    };
    windows.iter().map(share).collect()
}
