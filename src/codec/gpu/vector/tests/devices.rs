//! Devices of any limits and features.

use super::*;
use crate::codec::gpu::vector::TimedVector;
use std::io::Write;
use wgpu::{DeviceDescriptor, Features, Limits};

/// The least that a device may bind: 4 Mi elements a window.
fn small_limits() -> Limits {
    Limits {
        max_storage_buffer_binding_size: 1 << 24,
        max_buffer_size: 1 << 26,
        ..Limits::default()
    }
}

#[test]
fn windows_change_no_byte() {
    let Some(context) = device_with(Features::empty(), small_limits()) else {
        return;
    };
    let units = [unit(1e-3), unit(3e-3)];
    // Windows are cut by elements, and by the masks of many short chunks.
    let mut ranges = vec![(3_000_000, ChunkCoding::Threshold(0))];
    ranges.extend((0..45_000).map(|at| {
        let coding = match at % 5 {
            0 => ChunkCoding::Dense(Dense::Bf16),
            at => ChunkCoding::Threshold(at % 2),
        };
        (at % 4, coding)
    }));
    ranges.push((4_400_000, ChunkCoding::Threshold(1)));
    let chunks = layout_of(&ranges);
    let (mut vector, mut plain) = pair(&context, &chunks, 2);
    let windows = vector.parts().len();
    assert!(windows >= 3, "{windows}");
    let elements = plain.residual.len();
    let mut random = Random(9);
    for step in 0..3 {
        let update = random.numbers(elements, units[0]);
        let buffer = buffer_of_numbers(&context, &update);
        let whole = [GradRef::device(&buffer)];
        let halves = [0, elements as u64 / 2 + 1].map(|start| GradRef::Device {
            buffer: &buffer,
            offset: 4 * start,
            len: if start == 0 {
                elements as u64 / 2 + 1
            } else {
                elements as u64 - start
            },
        });
        let on_device = match step {
            0 => whole.given(),
            1 => halves.given(),
            _ => Given::from(&update),
        };
        step_of_both(
            &mut vector,
            &mut plain,
            on_device,
            Given::from(&update),
            &GpuStep {
                step,
                first: 11_111 * step,
                scopes: &[(units[0], 600_000), (units[1], usize::MAX)],
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

#[test]
fn a_message_that_is_longer_than_any_buffer_is_read_back_in_pieces() {
    let limits = Limits {
        max_buffer_size: 1 << 24,
        ..small_limits()
    };
    let Some(context) = device_with(Features::empty(), limits) else {
        return;
    };
    // 16 MiB hold 4 Mi values.
    let ranges = [
        (9 * CHUNK, ChunkCoding::Dense(Dense::F32)),
        (1000, ChunkCoding::Threshold(0)),
        (9 * CHUNK + 5, ChunkCoding::Dense(Dense::F32)),
    ];
    let (mut vector, mut plain) = pair(&context, &layout_of(&ranges), 1);
    let unit = unit(1e-3);
    let update = Random(12).numbers(plain.residual.len(), unit);
    // In the second step it is known how long the message will be.
    for step in 0..2 {
        step_of_both(
            &mut vector,
            &mut plain,
            Given::from(&update),
            Given::from(&update),
            &GpuStep {
                step,
                first: step,
                scopes: &[(unit, usize::MAX)],
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

#[test]
fn a_device_of_default_limits_and_one_without_subgroups_give_the_same_bytes() {
    for features in [Features::empty(), Features::SUBGROUP] {
        let Some(context) = device_with(features, Limits::default()) else {
            return;
        };
        let chunks = layout_of(&mixed());
        let units = [unit(1e-3), unit(3e-3), unit(1.0)];
        let mut random = Random(10);
        let (mut vector, mut plain) = pair(&context, &chunks, 3);
        for step in 0..3 {
            let update = random.numbers(plain.residual.len(), units[0]);
            let buffer = buffer_of_numbers(&context, &update);
            step_of_both(
                &mut vector,
                &mut plain,
                GradRef::device(&buffer).given(),
                Given::from(&update),
                &GpuStep {
                    step,
                    first: step,
                    scopes: &units.map(|unit| (unit, 20_000)),
                    clip: None,
                },
                &format!("{features:?}, step {step}"),
            );
        }
    }
}

#[test]
fn every_kernel_is_valid_with_subgroups_and_without() {
    for features in [Features::empty(), Features::SUBGROUP] {
        let (device, queue) = wgpu::Device::noop(&DeviceDescriptor {
            required_features: features,
            ..DeviceDescriptor::default()
        });
        let context = GpuContext::from_wgpu(device, queue).unwrap();
        assert!(GpuVector::new(&context, of_one_scope(100_000), 1).is_ok());
    }
}

#[test]
fn what_no_kernel_gives_is_an_error() {
    // A device that does nothing gives zeros.
    let (device, queue) = wgpu::Device::noop(&DeviceDescriptor::default());
    let context = GpuContext::from_wgpu(device, queue).unwrap();
    let mut vector = GpuVector::new(&context, of_one_scope(1000), 1).unwrap();
    let step = GpuStep {
        step: 0,
        first: 0,
        scopes: &[(unit(1.0), usize::MAX)],
        clip: None,
    };
    let found = vector.encode(Given::from(&vec![1.0f32; 1000]), &step);
    assert!(matches!(found, Err(GpuError::Refused { .. })), "{found:?}");
}

#[test]
fn steps_of_the_same_buffers_make_nothing_new_on_the_device() {
    let Some(context) = device_with(Features::all(), Limits::default()) else {
        return;
    };
    let unit = unit(1e-3);
    let elements = CHUNK + 4321;
    let mut random = Random(12);
    let updates = [0, 1].map(|_| random.plain(elements, unit, 0.02));
    let buffers = updates
        .each_ref()
        .map(|update| buffer_of_numbers(&context, update));
    let (mut vector, mut plain) = pair(&context, &of_one_scope(elements), 1);
    let mut made = 0;
    for step in 0..40 {
        let at = step as usize % 2;
        let half = elements as u64 / 2;
        let parts = [0, half].map(|start| GradRef::Device {
            buffer: &buffers[at],
            offset: 4 * start,
            len: if start == 0 {
                half
            } else {
                elements as u64 - half
            },
        });
        let whole = GradRef::device(&buffers[at]);
        let given = match step / 2 % 3 {
            0 => whole.given(),
            1 => parts.given(),
            _ => Given::from(&updates[at]),
        };
        let mut sample = Vec::new();
        let pieces = [5..100, 100..700];
        vector.magnitudes(given, &pieces, &mut sample).unwrap();
        assert_eq!(sample.len(), 695);
        step_of_both(
            &mut vector,
            &mut plain,
            given,
            Given::from(&updates[at]),
            &GpuStep {
                step,
                first: step,
                scopes: &[(unit, 5000)],
                clip: (step % 5 == 4).then(|| Clip::new(3.0).unwrap()),
            },
            &format!("step {step}"),
        );
        // Each comparison downloads the residual through a buffer of its own.
        let others = context.made() - step as usize;
        if step <= 5 {
            made = others;
        }
        assert_eq!(others, made, "step {step}");
    }
}

#[test]
fn a_vector_of_timestamps_says_how_long_each_stage_took() {
    let Some(context) = gpu() else { return };
    if !context
        .device()
        .features()
        .contains(Features::TIMESTAMP_QUERY)
    {
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: {} has no timestamps",
            context.name()
        );
        return;
    }
    let unit = unit(1e-3);
    let elements = 500_000;
    let update = Random(13).plain(elements, unit, 0.01);
    let buffer = buffer_of_numbers(context, &update);
    let mut vector = TimedVector::new(context, elements).unwrap();
    let times = vector
        .encode(GradRef::device(&buffer).given(), unit, usize::MAX, 0)
        .unwrap();
    let stages = [times.count, times.plan, times.write, times.look];
    assert!(stages.iter().all(|time| !time.is_zero()), "{times:?}");
    assert!(times.all >= stages.iter().sum(), "{times:?}");
    let expected = update.iter().filter(|x| x.abs() >= unit.t()).count();
    assert_eq!(vector.hits(), expected as u64);
    assert!(vector.message_bytes() >= 2 * expected);
}
