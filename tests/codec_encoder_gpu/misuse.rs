//! What an encoder on a GPU refuses, and that nothing has changed then.

use super::config::{Halving, Policy};
use super::device::device_with;
use super::plain::{Random, bits};
use super::{Whose, buffer_of, compare, context, new_context, said};
use gradring::codec::gpu::wgpu::{BufferDescriptor, BufferUsages, Features, Limits};
use gradring::codec::gpu::{GpuError, GradRef};
use gradring::codec::policy::{Fixed, Magnitude};
use gradring::codec::{
    EncodeError, Encoder, EncoderBuilder, EncoderError, MomentumMemory, ResidualError, VectorsError,
};

fn builder(elements: usize) -> Option<EncoderBuilder> {
    let fixed = Fixed::new(0.25).unwrap();
    Some(
        Encoder::builder(elements)
            .policy(fixed)
            .gpu(context()?.clone()),
    )
}

#[test]
fn settings_that_a_gpu_does_not_do_are_refused_when_the_encoder_is_made() {
    let Some(builder) = builder(100) else { return };
    let refused = builder
        .momentum(MomentumMemory::new(0.5).unwrap(), 2)
        .build();
    let what = "a momentum memory".to_owned();
    assert_eq!(refused.err(), Some(EncoderError::OnGpu { what }));
    let refused = self::builder(100).unwrap().post_processor(Halving).build();
    let error = refused.err().unwrap();
    assert!(
        matches!(&error, EncoderError::OnGpu { what } if what.contains("Halving")),
        "{error}"
    );
    for elements in [usize::MAX, usize::MAX / 4] {
        let refused = self::builder(elements).unwrap().build();
        let error = EncoderError::Memory(ResidualError { elements });
        assert_eq!(refused.err(), Some(error));
    }
    for threads in [0, 65] {
        let refused = self::builder(100).unwrap().threads(threads).build();
        assert_eq!(
            refused.err(),
            Some(EncoderError::Threads { found: threads })
        );
    }
}

#[test]
fn calls_that_a_gpu_does_not_do_are_refused_and_change_nothing() {
    let Some(builder) = builder(100) else { return };
    let mut encoder = builder.build().unwrap();
    let update = [0.3f32; 100];
    let before = said(&mut encoder, 0, &update).unwrap();
    let streamed = EncodeError::OnGpu {
        what: "a streamed step",
    };
    assert_eq!(encoder.begin_streamed(1), Err(streamed));
    let mut complete = Vec::new();
    let pushed = encoder.push(0..100, &update, &mut complete);
    assert_eq!(pushed, Err(EncodeError::NotStreamed));
    encoder.begin(1, &update).unwrap();
    let refused = encoder.accumulate(0, &update);
    assert!(matches!(refused, Err(EncodeError::OnGpu { .. })));
    let unfinished = EncodeError::Unfinished {
        expected: 1,
        found: 0,
    };
    assert_eq!(encoder.begin(2, &update), Err(unfinished.clone()));
    assert_eq!(encoder.end(), Err(unfinished));
    assert_eq!(
        encoder.restore_vectors(&before.residual, None),
        Err(VectorsError::Open)
    );
    let past = EncodeError::Visit {
        expected: 1,
        found: 1,
    };
    assert_eq!(encoder.encode(1, &update), Err(past));
    encoder.encode(0, &update).unwrap();
    let twice = EncodeError::Turn {
        expected: 1,
        found: 0,
    };
    assert_eq!(encoder.encode(0, &update), Err(twice));
    encoder.end().unwrap();
    assert_eq!(encoder.encode(0, &update), Err(EncodeError::NotBegun));
    assert_eq!(encoder.end(), Err(EncodeError::NotBegun));
}

#[test]
fn updates_that_do_not_fit_are_refused_and_change_nothing() {
    let Some(builder) = builder(100) else { return };
    let context = context().unwrap();
    let mut encoder = builder.build().unwrap();
    said(&mut encoder, 0, &[0.3f32; 100]).unwrap();
    let seen = |encoder: &Encoder| {
        let residual = bits(&encoder.download_residual().unwrap());
        let states = encoder.scope_states();
        (residual, states, encoder.stats().clone())
    };
    let before = seen(&encoder);
    let lengths = |found| {
        let expected = 100;
        Err(EncodeError::Lengths { expected, found })
    };
    assert_eq!(encoder.begin(1, &[0.5f32; 99]), lengths(99));
    let buffer = buffer_of(context, 0, &[1.0; 101]);
    assert_eq!(encoder.begin(1, &GradRef::device(&buffer)), lengths(101));
    let part = |offset, len| GradRef::Device {
        buffer: &buffer,
        offset,
        len,
    };
    assert_eq!(encoder.begin(1, &part(0, u64::MAX)), lengths(usize::MAX));
    let uniform = context.device().create_buffer(&BufferDescriptor {
        label: None,
        size: 400,
        usage: BufferUsages::UNIFORM,
        mapped_at_creation: false,
    });
    for wrong in [
        part(2, 100),
        part(8, 100),
        part(u64::MAX - 3, 100),
        GradRef::device(&uniform),
    ] {
        let refused = encoder.begin(1, &wrong);
        assert!(
            matches!(refused, Err(EncodeError::Gpu(GpuError::Buffer { .. }))),
            "{refused:?}"
        );
        assert_eq!(seen(&encoder), before);
    }
    // Of an encoder on the processor nothing on a device is an update.
    let mut here = Encoder::builder(100).build().unwrap();
    assert_eq!(here.begin(0, &part(0, 100)), Err(EncodeError::OnDevice));
    assert_eq!(here.begin(0, &part(0, 99)), lengths(99));
    let commands = context.device().create_command_encoder(&Default::default());
    let refused = here.record_after(commands);
    assert!(matches!(refused, Err(EncodeError::OnProcessor { .. })));
    // It still makes steps.
    said(&mut encoder, 1, &part(4, 100)).unwrap();
}

#[test]
fn vectors_that_no_encoder_leaves_are_not_restored() {
    let Some(builder) = builder(100) else { return };
    let mut encoder = builder.build().unwrap();
    let before = said(&mut encoder, 0, &[0.1f32; 100]).unwrap().residual;
    let mut wrong = before.clone();
    for number in [f32::NAN, f32::INFINITY, -0.0, 1e-45] {
        wrong[7] = number;
        let refused = encoder.restore_vectors(&wrong, None);
        assert!(matches!(
            refused,
            Err(VectorsError::Value { element: 7, .. })
        ));
    }
    let refused = encoder.restore_vectors(&before[1..], None);
    assert!(matches!(
        refused,
        Err(VectorsError::Length { found: 99, .. })
    ));
    let refused = encoder.restore_vectors(&before, Some(&before));
    assert_eq!(refused, Err(VectorsError::Velocity { expected: false }));
    assert_eq!(bits(&encoder.download_residual().unwrap()), bits(&before));
}

#[test]
fn what_the_device_refuses_is_an_error_and_the_next_step_is_as_any_other() {
    let policies = [
        Policy::Adaptive(0.01, 0.1, None, Magnitude::Mean),
        Policy::Quantile(0.05, Magnitude::Mean),
    ];
    for policy in policies {
        let devices = [0, 1].map(|_| new_context(Whose::Own));
        let [Some(context), Some(other)] = &devices else {
            return;
        };
        let make = || Encoder::builder(3000).policy(policy.make());
        let mut encoder = make().gpu(context.clone()).build().unwrap();
        let mut expected = make().build().unwrap();
        let foreign = buffer_of(other, 0, &[1.0; 3000]);
        let Some(strange) = device_with(Features::empty(), Limits::default()) else {
            return;
        };
        let buffer = buffer_of(context, 0, &[0.0; 3000]);
        let mut random = Random(11);
        for number in 0..10 {
            let update: Vec<f32> = (0..3000).map(|_| random.laplace(1.0)).collect();
            if number % 2 == 1 {
                let mut commands = context.device().create_command_encoder(&Default::default());
                let refused = match number {
                    // A buffer of another device, commands that are none, and those of a buffer that is gone.
                    1 | 5 => encoder.begin(number, &GradRef::device(&foreign)),
                    // Commands of another instance's device: wgpu panics, which nobody may see.
                    7 => {
                        let commands = strange.device().create_command_encoder(&Default::default());
                        let recorded = encoder.record_after(commands);
                        recorded.and_then(|()| encoder.begin(number, &update))
                    }
                    3 => {
                        commands.copy_buffer_to_buffer(&buffer, 0, &buffer, 2, 1);
                        encoder.record_after(commands)
                    }
                    _ => {
                        let gone = buffer_of(context, 0, &[0.0; 4]);
                        commands.clear_buffer(&gone, 0, None);
                        gone.destroy();
                        encoder.record_after(commands).unwrap();
                        encoder.begin(number, &update)
                    }
                };
                assert!(
                    matches!(refused, Err(EncodeError::Gpu(GpuError::Refused { .. }))),
                    "{refused:?}"
                );
                assert_eq!(encoder.end(), Err(EncodeError::NotBegun));
            }
            let found = said(&mut encoder, number, &update).unwrap();
            let wanted = said(&mut expected, number, &update).unwrap();
            compare(&found, &wanted, &format!("{policy:?}, step {number}"));
        }
        // The residual is no update.
        let GradRef::Device { buffer, .. } = encoder.residual_on_device().swap_remove(0) else {
            panic!("it is on the device");
        };
        let residual = buffer.clone();
        let refused = encoder.begin(8, &GradRef::device(&residual));
        assert!(
            matches!(&refused, Err(EncodeError::Gpu(GpuError::Buffer { expected, .. })) if expected.contains("residual")),
            "{refused:?}"
        );
    }
}
