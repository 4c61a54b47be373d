//! The devices that tests of the codec on a GPU run on. Whoever includes this file imports what it needs of the codec.

use super::{GpuContext, GpuError, Selection, wgpu};
use std::io::Write;
use std::sync::OnceLock;
use wgpu::{Backends, DeviceDescriptor, Features, Instance, InstanceDescriptor, Limits};

/// The device that the tests of a process share. `None`, and a line that says so, where there is no adapter; a failure if
/// `GRADRING_REQUIRE_GPU` is 1.
pub(crate) fn gpu() -> Option<&'static GpuContext> {
    static GPU: OnceLock<Option<GpuContext>> = OnceLock::new();
    let gpu = GPU.get_or_init(|| {
        let selection = Selection::from_env().expect("GRADRING_ADAPTER selects an adapter");
        match GpuContext::new(&selection) {
            Ok(context) => {
                eprintln!("GPU tests run on {}", context.name());
                Some(context)
            }
            Err(error @ GpuError::NoAdapter { .. }) => {
                assert!(
                    std::env::var("GRADRING_REQUIRE_GPU").as_deref() != Ok("1"),
                    "GRADRING_REQUIRE_GPU is 1, but {error}"
                );
                None
            }
            // An adapter that cannot be used is no reason to test nothing.
            Err(error) => panic!("{error}"),
        }
    });
    if gpu.is_none() {
        let _ = writeln!(std::io::stderr(), "NOT RUN: no GPU adapter");
    }
    gpu.as_ref()
}

/// Another device of the adapter of [`gpu`], with these of its features and these limits.
pub(crate) fn device_with(features: Features, limits: Limits) -> Option<GpuContext> {
    let wanted = gpu()?.adapter();
    let instance = Instance::new(InstanceDescriptor {
        backends: Backends::PRIMARY,
        ..InstanceDescriptor::new_without_display_handle()
    });
    let adapters = pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY));
    let adapter = adapters.into_iter().find(|adapter| {
        let info = adapter.get_info();
        info.name == wanted.name && info.backend == wanted.backend
    });
    let adapter = adapter.expect("the adapter is still there");
    let descriptor = DeviceDescriptor {
        label: Some("a test's device"),
        required_features: adapter.features() & features,
        required_limits: limits,
        ..DeviceDescriptor::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
        .expect("the adapter gives a device with fewer features and limits than it has");
    Some(GpuContext::from_wgpu(device, queue).expect("the kernels run on it"))
}
