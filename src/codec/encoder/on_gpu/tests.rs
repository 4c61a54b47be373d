//! Flushes of a residual on a GPU.

use super::*;
use crate::codec::gpu::Selection;
use crate::codec::gpu::device::gpu;
use crate::codec::policy::Fixed;
use crate::codec::{CHUNK, EncoderBuilder};

const ELEMENTS: usize = CHUNK + 1000;

fn builder() -> EncoderBuilder {
    Encoder::builder(ELEMENTS).policy(Fixed::new(0.25).unwrap())
}

fn step(encoder: &mut Encoder, number: u64) {
    let update: Vec<f32> = (0..ELEMENTS)
        .map(|at| (at * 7919 % 1000) as f32 / 2000.0 - 0.2)
        .collect();
    encoder.begin(number, &update).unwrap();
    for visit in 0..encoder.chunks() {
        encoder.encode(visit, &update).unwrap();
    }
    encoder.end().unwrap();
}

/// Takes all of a residual: its bytes, and how many elements were not finite.
fn flush(encoder: &mut Encoder) -> (Vec<u8>, u64) {
    encoder.begin_flush().unwrap();
    let (mut all, mut dropped) = (Vec::new(), 0);
    for start in (0..ELEMENTS).step_by(30_000) {
        let elements = start..ELEMENTS.min(start + 30_000);
        dropped += encoder.take_whole(elements, &mut all).unwrap();
    }
    (all, dropped)
}

#[test]
fn a_flush_takes_the_residual_from_where_it_is_and_leaves_zero() {
    let Some(context) = gpu() else { return };
    let mut on_gpu = builder().gpu(context.clone()).build().unwrap();
    let mut on_processor = builder().build().unwrap();
    for number in 0..3 {
        step(&mut on_gpu, number);
        step(&mut on_processor, number);
        // As a trainer may, that writes in place.
        on_processor.residual_mut()[4711] = [f32::NAN, 1e-45, 3.0][number as usize];
        let bits = on_processor.residual()[4711].to_le_bytes();
        for part in on_gpu.residual_on_device() {
            if let GradRef::Device { buffer, .. } = part {
                context.queue().write_buffer(buffer, 4 * 4711, &bits);
            }
        }
        let (found, expected) = (flush(&mut on_gpu), flush(&mut on_processor));
        assert!(found == expected, "after step {number}");
        assert_eq!(found.1, u64::from(number == 0));
        assert_eq!(found.0.len(), 4 * ELEMENTS);
        assert!(found.0.iter().any(|&byte| byte != 0));
        for encoder in [&on_gpu, &on_processor] {
            let left = encoder.download_residual().unwrap();
            assert!(left.iter().all(|r| r.to_bits() == 0));
        }
    }
    // Of a step under way there is none, nor a part of one without a beginning.
    on_gpu.begin(3, &vec![0.0f32; ELEMENTS]).unwrap();
    assert!(matches!(
        on_gpu.begin_flush(),
        Err(EncodeError::Unfinished { .. })
    ));
    let taken = on_gpu.take_whole(0..10, &mut Vec::new());
    assert_eq!(taken, Err(EncodeError::NotBegun));
}

#[test]
fn a_flush_of_a_lost_device_is_an_error_or_one_of_the_last_copy() {
    if gpu().is_none() {
        return;
    }
    for falls_back in [false, true] {
        let context = GpuContext::new(&Selection::from_env().unwrap()).unwrap();
        let builder = builder().gpu(context.clone()).fall_back(falls_back);
        let mut encoder = builder.snapshot_every(2).build().unwrap();
        step(&mut encoder, 0);
        step(&mut encoder, 1);
        let kept = encoder.download_residual().unwrap();
        step(&mut encoder, 2);
        context.device().destroy();
        if !falls_back {
            assert!(matches!(
                encoder.begin_flush(),
                Err(EncodeError::Gpu(GpuError::Lost { .. }))
            ));
            continue;
        }
        let (found, _) = flush(&mut encoder);
        let expected: Vec<u8> = kept.iter().flat_map(|r| r.to_le_bytes()).collect();
        assert!(found == expected);
        assert!(encoder.fell_back().is_some());
    }
}

#[test]
fn a_flush_leaves_nothing_that_could_be_lost() {
    if gpu().is_none() {
        return;
    }
    let context = GpuContext::new(&Selection::from_env().unwrap()).unwrap();
    let builder = builder().gpu(context.clone()).snapshot_every(1);
    let mut encoder = builder.build().unwrap();
    step(&mut encoder, 0);
    flush(&mut encoder);
    context.device().destroy();
    assert_eq!(encoder.download_residual().unwrap(), vec![0.0; ELEMENTS]);
}

#[test]
fn a_gpu_that_nobody_has_asked_for_and_that_has_no_room_leaves_the_encoder_on_the_processor() {
    let Some(context) = gpu() else { return };
    // One that is lost has none.
    let full = GpuContext::new(&Selection::Best).unwrap();
    full.device().destroy();
    let error = builder().gpu(full.clone()).build().err();
    assert!(matches!(error, Some(EncoderError::Gpu(_))), "{error:?}");
    let mut encoder = builder().gpu(full).if_there_is_room().build().unwrap();
    assert_eq!(encoder.residual().len(), ELEMENTS);
    assert!(encoder.fell_back().is_some());
    step(&mut encoder, 0);
    // Where there is room it is there, and stays there.
    let encoder = builder()
        .gpu(context.clone())
        .if_there_is_room()
        .build()
        .unwrap();
    assert!(encoder.residual().is_empty() && encoder.fell_back().is_none());
}
