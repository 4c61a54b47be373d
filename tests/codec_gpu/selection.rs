//! Which device is taken, and which is refused.

use super::device::gpu;
use super::{GpuContext, GpuError, Selection};
use gradring::codec::gpu::adapters;
use gradring::codec::gpu::wgpu::{Device, DeviceDescriptor, Features, Limits};

#[test]
fn an_adapter_that_is_not_there_is_an_error_that_says_which_are() {
    for selection in [
        Selection::Named("no adapter has this name".to_owned()),
        Selection::Index(1000),
    ] {
        let error = GpuContext::new(&selection).unwrap_err();
        let GpuError::NoAdapter { found, .. } = &error else {
            panic!("{error}");
        };
        let there = adapters();
        assert_eq!(found.len(), there.len());
        for (found, there) in found.iter().zip(&there) {
            assert!(found.contains(&there.name), "{found}");
            assert!(error.to_string().contains(&there.name));
        }
    }
}

#[test]
fn the_adapter_that_was_taken_can_be_asked_for_by_its_name() {
    let Some(context) = gpu() else { return };
    let name = context.adapter().name.to_uppercase();
    let named = GpuContext::new(&Selection::Named(name)).unwrap();
    assert_eq!(named.name(), context.name());
    assert_eq!(named.is_software(), context.is_software());
}

#[test]
fn a_callers_device_needs_no_feature_and_no_more_than_the_default_limits() {
    for features in [
        Features::empty(),
        Features::SUBGROUP,
        Features::SUBGROUP | Features::TIMESTAMP_QUERY,
    ] {
        let (device, queue) = Device::noop(&DeviceDescriptor {
            required_features: features,
            ..DeviceDescriptor::default()
        });
        let context = GpuContext::from_wgpu(device, queue).unwrap();
        assert_eq!(context.device().features() & features, features);
    }
}

#[test]
fn a_device_whose_limits_are_too_small_is_refused_with_the_limit() {
    type Lower = fn(&mut Limits);
    let lowered: [(&str, Lower); 3] = [
        ("max_storage_buffers_per_shader_stage", |limits| {
            limits.max_storage_buffers_per_shader_stage = 4;
        }),
        ("max_compute_invocations_per_workgroup", |limits| {
            limits.max_compute_invocations_per_workgroup = 128;
        }),
        ("max_storage_buffer_binding_size", |limits| {
            limits.max_storage_buffer_binding_size = 1 << 23;
        }),
    ];
    for (name, lower) in lowered {
        let mut limits = Limits::default();
        lower(&mut limits);
        let (device, queue) = Device::noop(&DeviceDescriptor {
            required_limits: limits,
            ..DeviceDescriptor::default()
        });
        let error = GpuContext::from_wgpu(device, queue).unwrap_err();
        let GpuError::Device { why, .. } = &error else {
            panic!("{error}");
        };
        assert!(why.contains(name), "{why}");
    }
}
