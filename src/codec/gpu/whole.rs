//! Whole vectors between this process and a device, and what is computed of whole vectors.

use super::context::GpuContext;
use super::error::GpuError;
use super::hashing::Hashing;
use super::slices::{GradRef, PARAMETERS};
use super::transfer::{Download, Uploads};
use crate::codec::parameters::Parameters;
use wgpu::{Buffer, BufferUsages, CommandEncoder, SubmissionIndex};

/// Bytes that go at a time: the copy of one piece runs while another one is read or written here.
const PIECE: usize = 4 << 20;

impl GpuContext {
    /// The elements of a vector that is in the memory of this device, or parts of which are: for checkpoints, and for what
    /// is done on the processor. Waits for all that was submitted before.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, parts: &[GradRef<'_>]) -> Result<Vec<f32>, GpuError> {
        for part in parts.iter().filter_map(GradRef::on_device) {
            part.check("a vector", BufferUsages::COPY_SRC)?;
        }
        let mut values = vec![0.0; parts.elements()];
        Whole::new(self).download(parts, &mut values)?;
        Ok(values)
    }

    /// Copies as many values to a vector in the memory of this device. What is submitted later comes after it.
    ///
    /// # Errors
    /// [`GpuError`], such as [`GpuError::Length`].
    pub fn upload(&self, values: &[f32], parts: &[GradRef<'_>]) -> Result<(), GpuError> {
        let (expected, found) = (parts.elements(), values.len());
        if found != expected {
            return Err(GpuError::Length { expected, found });
        }
        Whole::new(self).upload(values, parts)
    }
}

/// Copies whole vectors, and hashes them. Keeps what it needs for it: for whoever does so in every step.
pub(crate) struct Whole {
    context: GpuContext,
    uploads: Option<Uploads>,
    downloads: [Download; 2],
    hashing: Option<Hashing>,
}

impl Whole {
    pub(crate) fn new(context: &GpuContext) -> Whole {
        Whole {
            context: context.clone(),
            uploads: None,
            downloads: [Download::new(context), Download::new(context)],
            hashing: None,
        }
    }

    /// Copies all elements to this process's memory, which has as many. Waits.
    pub(crate) fn download(
        &mut self,
        parts: &[GradRef<'_>],
        to: &mut [f32],
    ) -> Result<(), GpuError> {
        const DURING: &str = "a download";
        let mut copies = Copies::default();
        let mut rest = &mut *to;
        let mut first = 0;
        for part in parts {
            let length = part.len().min(rest.len());
            let (now, after) = rest.split_at_mut(length);
            rest = after;
            match part {
                GradRef::Host(values) => now.copy_from_slice(&values[..length]),
                GradRef::Device { buffer, offset, .. } => {
                    if let Some(slice) = part.on_device() {
                        slice.check("a vector", BufferUsages::COPY_SRC)?;
                    }
                    copies.add(buffer, *offset, first, length);
                }
            }
            first += length;
        }
        debug_assert!(rest.is_empty(), "as many elements as the parts have");
        let mut under_way: Option<(usize, SubmissionIndex)> = None;
        // One turn more than pieces: the last one reads the last piece.
        for number in 0..=copies.pieces.len() {
            let submitted = match copies.pieces.get(number) {
                None => None,
                Some(piece) => {
                    let staging = self.downloads[number % 2].buffer(PIECE as u64)?;
                    let commands = self.context.scoped(DURING, |device| {
                        let mut commands = device.create_command_encoder(&Default::default());
                        let mut at = 0;
                        for copy in piece {
                            let bytes = 4 * copy.length as u64;
                            commands.copy_buffer_to_buffer(
                                copy.buffer,
                                copy.offset,
                                staging,
                                at,
                                bytes,
                            );
                            at += bytes;
                        }
                        commands.finish()
                    })?;
                    Some((number, self.context.submit(DURING, [commands])?))
                }
            };
            if let Some((number, index)) = std::mem::replace(&mut under_way, submitted) {
                let piece = &copies.pieces[number];
                let bytes = piece.iter().map(|copy| 4 * copy.length).sum::<usize>() as u64;
                self.downloads[number % 2].read(index, bytes, |mut bytes| {
                    for copy in piece {
                        let (now, after) = bytes.split_at(4 * copy.length);
                        let to = &mut to[copy.first..copy.first + copy.length];
                        bytemuck::cast_slice_mut(to).copy_from_slice(now);
                        bytes = after;
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Copies all elements from this process's memory. Parts in this process's memory cannot be written and are an error.
    pub(crate) fn upload(&mut self, from: &[f32], parts: &[GradRef<'_>]) -> Result<(), GpuError> {
        let mut copies = Copies::default();
        let mut first = 0;
        for (number, part) in parts.iter().enumerate() {
            let GradRef::Device { buffer, offset, .. } = part else {
                return Err(GpuError::InHostMemory {
                    what: "parameters",
                    part: number,
                });
            };
            if let Some(slice) = part.on_device() {
                slice.check("parameters", PARAMETERS)?;
            }
            let length = part.len().min(from.len() - first);
            copies.add(buffer, *offset, first, length);
            first += length;
        }
        debug_assert_eq!(first, from.len(), "as many elements as the parts have");
        let uploads = made(&mut self.uploads, || Uploads::new(&self.context, PIECE))?;
        for piece in &copies.pieces {
            for copy in piece {
                let values = &from[copy.first..copy.first + copy.length];
                uploads.write(bytemuck::cast_slice(values), copy.buffer, copy.offset)?;
            }
            submit(&self.context, "an upload", uploads, |_| {})?;
        }
        Ok(())
    }

    /// The two sums of [`parameter_hash`](crate::parameter_hash). Waits.
    pub(crate) fn hash_sums(&mut self, parts: &[GradRef<'_>]) -> Result<[u32; 2], GpuError> {
        let hashing = made(&mut self.hashing, || Hashing::new(&self.context))?;
        hashing.sums(&self.context, &mut self.downloads[0], parts)
    }
}

/// The value, which is made the first time.
fn made<T>(
    slot: &mut Option<T>,
    make: impl FnOnce() -> Result<T, GpuError>,
) -> Result<&mut T, GpuError> {
    Ok(match slot {
        Some(value) => value,
        None => slot.insert(make()?),
    })
}

/// Submits what was written, and behind it what is recorded here.
pub(super) fn submit(
    context: &GpuContext,
    during: &'static str,
    uploads: &mut Uploads,
    record: impl FnOnce(&mut CommandEncoder),
) -> Result<SubmissionIndex, GpuError> {
    let commands = context.scoped(during, |device| {
        let mut commands = device.create_command_encoder(&Default::default());
        uploads.record(&mut commands);
        record(&mut commands);
        commands.finish()
    });
    uploads.settle(commands.and_then(|commands| context.submit(during, [commands])))
}

/// Elements that go at once.
struct Copy<'a> {
    buffer: &'a Buffer,
    offset: u64,
    /// The first one in the whole vector.
    first: usize,
    length: usize,
}

/// The copies of a vector, in pieces that fit the staging buffers.
#[derive(Default)]
struct Copies<'a> {
    pieces: Vec<Vec<Copy<'a>>>,
    /// Bytes of the last one.
    bytes: usize,
}

impl<'a> Copies<'a> {
    /// Copies of one piece: many tiny parts must not make a piece of nothing but the paddings between them.
    const MOST: usize = 4096;

    fn add(&mut self, buffer: &'a Buffer, mut offset: u64, mut first: usize, mut length: usize) {
        while length > 0 {
            let is_full = |piece: &Vec<Copy<'_>>| piece.len() >= Self::MOST;
            if self.bytes >= PIECE || self.pieces.last().is_none_or(is_full) {
                self.pieces.push(Vec::new());
                self.bytes = 0;
            }
            let now = length.min((PIECE - self.bytes) / 4);
            if let Some(piece) = self.pieces.last_mut() {
                piece.push(Copy {
                    buffer,
                    offset,
                    first,
                    length: now,
                });
            }
            // Each begins at a multiple of 8 bytes in an upload buffer.
            self.bytes = (self.bytes + 4 * now).next_multiple_of(8);
            offset += 4 * now as u64;
            first += now;
            length -= now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::gpu::device::gpu;
    use crate::codec::gpu::hashing::{DISPATCHES, TILE};
    use crate::codec::hash_sums_from;

    fn vector(length: usize) -> Vec<f32> {
        let bits = |i: usize| (i as u32).wrapping_mul(0x9E37_79B1) ^ 0x1234;
        (0..length).map(|i| f32::from_bits(bits(i))).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    /// Parts of these lengths, all in one buffer, with an element between them.
    fn parts<'a>(buffer: &'a Buffer, lengths: &[usize]) -> Vec<GradRef<'a>> {
        let mut first = 0;
        let part = |&length: &usize| {
            let offset = 4 * first;
            first += length as u64 + 1;
            GradRef::Device {
                buffer,
                offset,
                len: length as u64,
            }
        };
        lengths.iter().map(part).collect()
    }

    #[test]
    fn vectors_come_back_as_they_went_and_have_the_hash_that_they_have_here() {
        let Some(context) = gpu() else {
            return;
        };
        let mut whole = Whole::new(context);
        let all = PIECE / 4;
        for lengths in [
            vec![],
            vec![0],
            vec![1],
            vec![0, 3, 0, 1, TILE as usize, 0],
            vec![TILE as usize + 1, 255],
            vec![1; 2 * Copies::MOST + 3],
            vec![7; DISPATCHES + 1],
            vec![all - 1, 2, all, 2 * all + 5],
        ] {
            let length: usize = lengths.iter().sum();
            let bytes = 4 * (length + lengths.len()) as u64;
            let made = context.buffer("a test", bytes, PARAMETERS, false);
            let buffer = made.expect("memory");
            let parts = parts(&buffer, &lengths);
            let values = vector(length);
            whole.upload(&values, &parts).expect("the device works");
            let mut back = vec![0.0; length];
            whole.download(&parts, &mut back).expect("the device works");
            assert!(bits(&back) == bits(&values), "{lengths:?}");
            let sums = whole.hash_sums(&parts).expect("the device works");
            assert_eq!(sums, hash_sums_from(0, &values), "{lengths:?}");
        }
    }

    #[test]
    fn what_cannot_be_copied_is_refused() {
        let Some(context) = gpu() else {
            return;
        };
        let mut whole = Whole::new(context);
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
        let made = context.buffer("a test", 32, usage, false);
        let buffer = made.expect("memory");
        let mut values = [0.0; 8];
        assert!(matches!(
            whole.download(&[GradRef::device(&buffer)], &mut values),
            Err(GpuError::Buffer { expected, .. }) if expected.contains("COPY_SRC")
        ));
        let mut here = [1.0; 8];
        let parts = [GradRef::Host(&mut here)];
        let refused = GpuError::InHostMemory {
            what: "parameters",
            part: 0,
        };
        let (expected, found) = (8, 7);
        assert_eq!(
            context.upload(&values[1..], &parts),
            Err(GpuError::Length { expected, found })
        );
        assert_eq!(context.download(&parts), Ok(vec![1.0; 8]));
        assert_eq!(whole.upload(&values, &parts), Err(refused.clone()));
        assert_eq!(whole.hash_sums(&parts), Err(refused));
        assert_eq!(whole.download(&parts, &mut values), Ok(()));
        assert_eq!(values, [1.0; 8]);
    }
}
