//! The buffers of callers, as far as they can be bound.

use super::context::GpuContext;
use super::error::GpuError;
use super::slices::GradRef;
use std::collections::HashMap;
use std::ops::Range;
use wgpu::{BindGroup, BindingResource, Buffer, BufferBinding, BufferUsages};

/// A run of a buffer that fits one binding.
pub(super) struct Window<const KERNELS: usize> {
    pub(super) buffer: Buffer,
    /// Its first byte.
    pub(super) offset: u64,
    bytes: u64,
    /// What binds it, for each of the kernels.
    bound: [Option<BindGroup>; KERNELS],
    /// Since the last [`Windows::forget`].
    used: bool,
}

/// Consecutive elements of a vector that lie in one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which window.
    pub(super) window: usize,
    /// Its first element, counted from where the pieces begin.
    pub(super) from: usize,
    /// Its elements, counted from the window's start.
    pub(super) elements: Range<u32>,
}

/// All windows that are in use with some kernels. They begin at the same bytes of a buffer whatever parts of it make up a
/// vector, so that a model's tensors in one buffer are one window, and its bind groups are made once.
pub(super) struct Windows<const KERNELS: usize> {
    /// The most bytes of a window.
    span: u64,
    list: Vec<Window<KERNELS>>,
    numbers: HashMap<(Buffer, u64), usize>,
}

impl<const KERNELS: usize> Windows<KERNELS> {
    pub(super) fn new(context: &GpuContext) -> Self {
        Windows {
            span: context.most_bound(),
            list: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    pub(super) fn window(&self, number: usize) -> &Window<KERNELS> {
        &self.list[number]
    }

    /// The pieces, in order, of some elements of the vector that these parts make. All parts must be on a device, and
    /// those that hold the elements in buffers with these usages; elements past the end have no pieces.
    pub(super) fn cut(
        &mut self,
        what: &'static str,
        usages: BufferUsages,
        parts: &[GradRef<'_>],
        elements: Range<usize>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), GpuError> {
        pieces.clear();
        let mut first = 0usize;
        for (part, slice) in parts.iter().enumerate() {
            let Some(slice) = slice.on_device() else {
                return Err(GpuError::InHostMemory { what, part });
            };
            let end = first.saturating_add(parts[part].len());
            let inside = elements.start.max(first)..elements.end.min(end);
            if !inside.is_empty() {
                slice.check(what, usages)?;
                let byte = |element: usize| slice.offset + 4 * (element - first) as u64;
                let bytes = byte(inside.start)..byte(inside.end);
                let from = inside.start - elements.start;
                self.cut_buffer(slice.buffer, bytes, from, pieces);
            }
            first = end;
        }
        Ok(())
    }

    fn cut_buffer(
        &mut self,
        buffer: &Buffer,
        bytes: Range<u64>,
        mut from: usize,
        pieces: &mut Vec<Piece>,
    ) {
        let mut at = bytes.start;
        while at < bytes.end {
            let start = at / self.span * self.span;
            let until = bytes.end.min(start + self.span);
            let elements = ((at - start) / 4) as u32..((until - start) / 4) as u32;
            let length = elements.len();
            pieces.push(Piece {
                window: self.number(buffer, start),
                from,
                elements,
            });
            from += length;
            at = until;
        }
    }

    fn number(&mut self, buffer: &Buffer, offset: u64) -> usize {
        let list = &mut self.list;
        let number = *self
            .numbers
            .entry((buffer.clone(), offset))
            .or_insert_with(|| {
                list.push(Window {
                    buffer: buffer.clone(),
                    offset,
                    bytes: (buffer.size() - offset).min(self.span) / 4 * 4,
                    bound: [const { None }; KERNELS],
                    used: true,
                });
                list.len() - 1
            });
        list[number].used = true;
        number
    }

    /// What binds a window for a kernel, if it has been [made](Self::bind).
    pub(super) fn bound(&self, number: usize, kernel: usize) -> Option<&BindGroup> {
        self.list[number].bound[kernel].as_ref()
    }

    /// Makes what binds a window for a kernel, unless there is one.
    pub(super) fn bind(
        &mut self,
        number: usize,
        kernel: usize,
        make: impl FnOnce(BindingResource<'_>) -> Result<BindGroup, GpuError>,
    ) -> Result<(), GpuError> {
        let window = &mut self.list[number];
        if window.bound[kernel].is_none() {
            let resource = BindingResource::Buffer(BufferBinding {
                buffer: &window.buffer,
                offset: window.offset,
                size: window.bytes.try_into().ok(),
            });
            window.bound[kernel] = Some(make(resource)?);
        }
        Ok(())
    }

    /// Lets go of those that have not been used since the last time: a buffer that its owner has dropped is not kept.
    /// Numbers change.
    pub(super) fn forget(&mut self) {
        if self.list.iter().any(|window| !window.used) {
            self.list.retain(|window| window.used);
            let keys = (self.list.iter()).map(|window| (window.buffer.clone(), window.offset));
            self.numbers = keys.zip(0..).collect();
        }
        for window in &mut self.list {
            window.used = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::{Device, DeviceDescriptor, Limits};

    /// A device that does nothing, whose bindings hold 16 MiB.
    fn context() -> GpuContext {
        let (device, queue) = Device::noop(&DeviceDescriptor {
            required_limits: Limits {
                max_storage_buffer_binding_size: 1 << 24,
                ..Limits::default()
            },
            ..DeviceDescriptor::default()
        });
        GpuContext::from_wgpu(device, queue).expect("it takes everything")
    }

    fn buffer(context: &GpuContext, elements: u64) -> Buffer {
        let made = context.buffer("a test", 4 * elements, BufferUsages::STORAGE, false);
        made.expect("memory")
    }

    fn part(buffer: &Buffer, elements: Range<u64>) -> GradRef<'_> {
        GradRef::Device {
            buffer,
            offset: 4 * elements.start,
            len: elements.end - elements.start,
        }
    }

    fn cut(
        windows: &mut Windows<1>,
        parts: &[GradRef<'_>],
        elements: Range<usize>,
    ) -> Vec<(usize, usize, Range<u32>)> {
        let mut pieces = Vec::new();
        windows
            .cut(
                "a test",
                BufferUsages::STORAGE,
                parts,
                elements,
                &mut pieces,
            )
            .expect("good parts");
        let piece = |piece: Piece| (piece.window, piece.from, piece.elements);
        pieces.into_iter().map(piece).collect()
    }

    #[test]
    fn windows_begin_at_the_same_bytes_whatever_the_parts() {
        let context = context();
        let mut windows = Windows::<1>::new(&context);
        // A window has 4 Mi elements.
        let span = 1 << 22;
        let (large, small) = (buffer(&context, 2 * span + 9), buffer(&context, 8));
        let parts = [
            part(&large, 5..5),
            part(&small, 1..4),
            part(&large, span - 2..2 * span + 3),
            part(&large, 0..1),
        ];
        let whole = span as u32;
        assert_eq!(
            cut(&mut windows, &parts, 0..usize::MAX),
            [
                (0, 0, 1..4),
                (1, 3, whole - 2..whole),
                (2, 5, 0..whole),
                (3, 5 + span as usize, 0..3),
                (1, 8 + span as usize, 0..1),
            ]
        );
        // In other parts, and with the last one first.
        let parts = [part(&large, 3..6), part(&large, 2 * span + 1..2 * span + 2)];
        let found = cut(&mut windows, &parts, 1..4);
        assert_eq!(found, [(1, 0, 4..6), (3, 2, 1..2)]);
    }

    #[test]
    fn what_binds_a_window_is_made_once_while_it_is_used() {
        let context = context();
        let mut windows = Windows::<1>::new(&context);
        let kernel = &context.kernels().hash;
        let uniform = context.buffer("a test", 16, BufferUsages::UNIFORM, false);
        let (uniform, totals) = (uniform.expect("memory"), buffer(&context, 4));
        let (first, second) = (buffer(&context, 8), buffer(&context, 8));
        let mut made = 0;
        let mut step = |windows: &mut Windows<1>, buffer: &Buffer| {
            let [(window, 0, _)] = cut(windows, &[part(buffer, 2..5)], 0..3)[..] else {
                panic!("one window");
            };
            windows
                .bind(window, 0, |target| {
                    made += 1;
                    let buffers = [
                        uniform.as_entire_binding(),
                        target,
                        totals.as_entire_binding(),
                    ];
                    context.scoped("a test", |device| kernel.bind(device, &buffers))
                })
                .expect("good buffers");
            assert!(windows.bound(window, 0).is_some());
            windows.forget();
            made
        };
        assert_eq!(step(&mut windows, &first), 1);
        assert_eq!(step(&mut windows, &first), 1);
        assert_eq!(step(&mut windows, &second), 2);
        // The first one was let go meanwhile.
        assert_eq!(step(&mut windows, &first), 3);
    }
}
