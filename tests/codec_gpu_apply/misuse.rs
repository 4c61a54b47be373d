//! Bad records and bad targets: an error, and nothing applied.

use super::device::device_with;
use super::plain::{self, Random, bits};
use super::vector::{USAGES, Vector, buffer, context, read};
use super::wgpu;
use gradring::codec::gpu::wgpu::BufferUsages;
use gradring::codec::gpu::{GpuApplier, GpuApplyError, GpuError, GradRef};
use gradring::codec::{Apply, CHUNK, DecodeError, Format, Path, Record};

#[test]
fn a_damaged_record_is_refused_as_on_the_processor_and_changes_nothing() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let mut applier = GpuApplier::new(&context).expect("memory");
    let random = &mut Random(1);
    let of = 3000;
    let values: Vec<f32> = (0..of).map(|i| i as f32).collect();
    let target = Vector::new(&context, random, &values, [17, 1000]);
    let mut expected = values;
    let mut refused = 0;
    for _ in 0..400 {
        let format = random.one_of(&Format::ALL);
        let hits: Vec<(usize, bool)> = (0..of)
            .filter_map(|i| random.happens(0.05).then(|| (i, random.coin())))
            .collect();
        let (mut payload, mut count) = match format.dense() {
            None => (plain::payload(format, of, &hits), hits.len() as u32),
            Some(number) => (vec![0; of * number.bytes()], 0),
        };
        let (mut elements, mut start, mut x) = (of, 0, 0.5);
        let at = random.index(payload.len());
        match random.below(8) {
            0 => count = count.wrapping_add(1),
            1 => elements = random.index(2 * CHUNK),
            2 => payload.truncate(at),
            3 => start = random.one_of(&[1, usize::MAX, usize::MAX - of + 1]),
            4 => x = random.one_of(&[f32::NAN, f32::INFINITY, -1.0, -0.0, 1e-40]),
            _ => payload[at] ^= 1 << random.below(8),
        }
        let record = Record {
            format,
            hits: count,
            elements,
            payload: &payload,
        };
        let wanted = Path::Scalar.apply_at(&record, x, Apply::Add, &mut expected, start);
        let found = applier.apply(&record, x, Apply::Add, &target.parts(), start);
        match wanted {
            Ok(_) => assert_eq!(found, Ok(())),
            Err(error) => {
                refused += 1;
                let error = format!("{:?}", GpuApplyError::Record(error));
                // A NaN is not equal to itself, but reads the same.
                assert_eq!(format!("{:?}", found.expect_err("refused")), error);
            }
        }
    }
    applier.finish().expect("the device works");
    assert_eq!(bits(&target.read()), bits(&expected));
    assert!(refused > 100, "only {refused} were refused");
}

#[test]
fn a_target_that_cannot_be_written_is_refused_before_anything_is_applied() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let mut applier = GpuApplier::new(&context).expect("memory");
    let good = buffer(&context, 8, USAGES);
    let bare = buffer(&context, 8, BufferUsages::STORAGE);
    let payload = plain::payload(Format::Sparse, 12, &[(0, false), (11, false)]);
    let record = Record {
        format: Format::Sparse,
        hits: 2,
        elements: 12,
        payload: &payload,
    };
    let part = |offset, len| GradRef::Device {
        buffer: &good,
        offset,
        len,
    };
    let mut apply = |parts: &[GradRef<'_>]| applier.apply(&record, 1.0, Apply::Add, parts, 0);

    let mut here = [0.0; 4];
    assert_eq!(
        apply(&[part(0, 8), GradRef::Host(&mut here)]),
        Err(GpuError::InHostMemory {
            what: "parameters",
            part: 1
        }
        .into())
    );
    for second in [
        part(2, 4),
        part(20, 4),
        part(4, u64::MAX),
        part(0, u64::MAX / 2),
    ] {
        assert!(matches!(
            apply(&[part(0, 8), second]),
            Err(GpuApplyError::Gpu(GpuError::Buffer { size: 32, .. }))
        ));
    }
    assert!(matches!(
        apply(&[part(0, 8), GradRef::device(&bare)]),
        Err(GpuApplyError::Gpu(GpuError::Buffer { expected, .. })) if expected.contains("COPY_DST")
    ));
    assert_eq!(
        apply(&[part(0, 8), part(0, 3)]),
        Err(DecodeError::Place {
            elements: 12,
            start: 0,
            found: 11
        }
        .into())
    );
    applier.finish().expect("the device works");
    assert_eq!(read(&context, &good), [0.0; 8]);
}

#[test]
fn a_destroyed_target_is_an_error_and_the_next_step_goes_on() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let mut applier = GpuApplier::new(&context).expect("memory");
    let (gone, here) = (buffer(&context, 8, USAGES), buffer(&context, 8, USAGES));
    let payload = plain::payload(Format::Sparse, 8, &[(3, true)]);
    let record = Record {
        format: Format::Sparse,
        hits: 1,
        elements: 8,
        payload: &payload,
    };
    let target = [GradRef::device(&gone)];
    applier
        .apply(&record, 1.0, Apply::Add, &target, 0)
        .expect("a good target");
    gone.destroy();
    let error = applier.finish().expect_err("it is destroyed");
    assert!(matches!(error, GpuError::Refused { .. }), "{error}");
    for _ in 0..5 {
        let target = [GradRef::device(&here)];
        applier
            .apply(&record, 1.0, Apply::Add, &target, 0)
            .expect("a good target");
        applier.finish().expect("the device works");
    }
    assert_eq!(read(&context, &here)[3], -5.0);
}

/// The handler that a device has by itself panics.
#[test]
fn a_count_of_a_callers_device_that_is_destroyed_is_not_told_and_no_handler_hears_of_it() {
    let Some((_, _turn)) = context() else {
        return;
    };
    let device = device_with(wgpu::Features::empty(), wgpu::Limits::default());
    let context = device.expect("the adapter of the shared device");
    let mut applier = GpuApplier::new(&context).expect("memory");
    let here = buffer(&context, 8, USAGES);
    let payload = plain::payload(Format::Sparse, 8, &[(3, true)]);
    let record = Record {
        format: Format::Sparse,
        hits: 1,
        elements: 8,
        payload: &payload,
    };
    let target = [GradRef::device(&here)];
    let apply = |applier: &mut GpuApplier| applier.apply(&record, 1.0, Apply::Add, &target, 0);
    apply(&mut applier).expect("a good target");
    applier.finish().expect("the device works");
    // The count is there, and nobody has looked at it.
    let polled = context.device().poll(wgpu::PollType::wait_indefinitely());
    polled.expect("the device works");
    context.device().destroy();
    assert_eq!(applier.take_not_finite(), 0);
    let refused = apply(&mut applier).and_then(|()| Ok(applier.finish()?));
    assert!(
        matches!(refused, Err(GpuApplyError::Gpu(GpuError::Lost { .. }))),
        "{refused:?}"
    );
}
