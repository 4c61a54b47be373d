//! What holds of devices and their kernels, whoever made them.
#![cfg(feature = "gpu")]

#[path = "codec_gpu/device.rs"]
mod device;
#[path = "codec_gpu/encoders.rs"]
mod encoders;
#[path = "codec_gpu/selection.rs"]
mod selection;

use gradring::codec::gpu::{GpuContext, GpuError, Selection, wgpu};
