//! What holds of records that are applied in the memory of a device: the bits are those of the processor.
#![cfg(feature = "gpu")]

use gradring::codec::gpu::{GpuContext, GpuError, Selection, wgpu};

#[path = "codec_gpu/device.rs"]
mod device;
#[path = "codec_gpu_apply/misuse.rs"]
mod misuse;
mod plain;
#[path = "codec_gpu_apply/records.rs"]
mod records;
#[path = "codec_gpu_apply/sizes.rs"]
mod sizes;
#[path = "codec_gpu_apply/vector.rs"]
mod vector;
