//! Updates wherever they are.

use super::*;
use crate::codec::Values;
use half::{bf16, f16};
use std::ops::Range;

#[test]
fn updates_in_parts_anywhere_in_their_buffers_are_one_update() {
    let Some(context) = gpu() else { return };
    let chunks = layout_of(&mixed());
    let units = [unit(1e-3), unit(3e-3), unit(1.0)];
    let scopes = units.map(|unit| (unit, usize::MAX));
    let mut random = Random(6);
    let (mut vector, mut plain) = pair(context, &chunks, 3);
    let elements = plain.residual.len();
    for step in 0..6 {
        let update = random.numbers(elements, units[0]);
        // All of it at an odd offset of a buffer that has something before and behind.
        let mut words = vec![0xffff_ffff; 3 + step];
        words.extend(bits(&update));
        words.extend([0x7fc0_0000; 5]);
        let buffer = buffer_of(context, &words);
        let part = |range: Range<usize>| GradRef::Device {
            buffer: &buffer,
            offset: 4 * (3 + step + range.start) as u64,
            len: range.len() as u64,
        };
        let mut host = update[20_000..31_111].to_vec();
        let parts = match step % 3 {
            0 => vec![part(0..elements)],
            1 => vec![
                part(0..1),
                part(1..12_345),
                part(12_345..12_345),
                part(12_345..elements),
            ],
            _ => vec![
                part(0..20_000),
                GradRef::Host(&mut host),
                part(31_111..elements),
            ],
        };
        step_of_both(
            &mut vector,
            &mut plain,
            parts.given(),
            Given::from(&update),
            &GpuStep {
                step: step as u64,
                first: 0,
                scopes: &scopes,
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

#[test]
fn updates_of_this_process_are_uploaded_whatever_their_numbers() {
    let Some(context) = gpu() else { return };
    let unit = unit(1e-3);
    let mut random = Random(7);
    let elements = CHUNK + 77;
    let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
    for step in 0..4 {
        let singles = random.numbers(elements, unit);
        let halves: Vec<f16> = singles.iter().map(|&x| f16::from_f32(x)).collect();
        let upper: Vec<bf16> = singles.iter().map(|&x| bf16::from_f32(x)).collect();
        let parts = [
            Values::F32(&singles[..1000]),
            Values::F16(&halves[1000..100_001]),
            Values::Bf16(&upper[100_001..]),
        ];
        let update = match step {
            0 => Given::from(&singles),
            1 => Given::from(&halves),
            2 => Given::from(&upper),
            _ => Given::from(&parts),
        };
        step_of_both(
            &mut vector,
            &mut plain,
            update,
            update,
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
fn an_update_in_the_residual_is_encoded_from_there() {
    let Some(context) = gpu() else { return };
    let chunks = layout_of(&mixed());
    let units = [unit(1e-3), unit(3e-3), unit(1.0)];
    let mut random = Random(8);
    let (mut vector, mut plain) = pair(context, &chunks, 3);
    for step in 0..3 {
        let numbers = random.numbers(plain.residual.len(), units[0]);
        vector.restore(&numbers).unwrap();
        plain.residual.copy_from_slice(&numbers);
        step_of_both(
            &mut vector,
            &mut plain,
            Given::InResidual,
            Given::InResidual,
            &GpuStep {
                step,
                first: step,
                scopes: &units.map(|unit| (unit, 4000)),
                clip: None,
            },
            &format!("step {step}"),
        );
    }
}

#[test]
fn magnitudes_are_those_of_the_plain_path() {
    let Some(context) = gpu() else { return };
    let unit = unit(1e-3);
    let mut random = Random(11);
    let elements = 300_000;
    let chunks = of_one_scope(elements);
    let residual: Vec<f32> = random
        .numbers(elements, unit)
        .into_iter()
        .map(|x| {
            if x.is_finite() {
                crate::codec::canon(x)
            } else {
                0.5
            }
        })
        .collect();
    let update = random.numbers(elements, unit);
    let mut vector = GpuVector::new(context, chunks, 1).unwrap();
    vector.restore(&residual).unwrap();
    let buffer = buffer_of_numbers(context, &update);
    let part = |range: Range<usize>| GradRef::Device {
        buffer: &buffer,
        offset: 4 * range.start as u64,
        len: range.len() as u64,
    };
    let parts = [part(0..777), part(777..150_001), part(150_001..elements)];
    let runs = (0..290).map(|run| 1000 * run + run..1000 * run + run + 64);
    let runs: Vec<Range<usize>> = runs.collect();
    for pieces in [&runs[..], &[0..elements], &[5..5, 776..778, 0..1], &[]] {
        for given in [
            Given::InResidual,
            Given::from(&update),
            GradRef::device(&buffer).given(),
            parts.given(),
        ] {
            let mut found = vec![7.0];
            vector.magnitudes(given, pieces, &mut found).unwrap();
            let mut expected = vec![7.0];
            for piece in pieces {
                let kernels = Path::Scalar;
                let piece_of = &residual[piece.clone()];
                let result = match given {
                    Given::InResidual => kernels.magnitudes(
                        piece_of,
                        Given::InResidual,
                        piece.len(),
                        0,
                        &mut expected,
                    ),
                    _ => kernels.magnitudes(
                        piece_of,
                        &update[piece.clone()],
                        piece.len(),
                        0,
                        &mut expected,
                    ),
                };
                result.unwrap();
            }
            assert!(bits(&found) == bits(&expected), "{} pieces", pieces.len());
        }
    }
    assert!(bits(&vector.residual().unwrap()) == bits(&residual));
}

#[test]
fn a_vector_without_elements_sends_nothing() {
    let Some(context) = gpu() else { return };
    let mut vector = GpuVector::new(context, [].into(), 1).unwrap();
    let update: [f32; 0] = [];
    let step = GpuStep {
        step: 0,
        first: 0,
        scopes: &[(unit(1.0), 3)],
        clip: None,
    };
    vector.encode(Given::from(&update), &step).unwrap();
    assert!(vector.residual().unwrap().is_empty());
    assert_eq!((vector.dropped(), vector.clipped()), (0, 0.0));
    let mut out = Vec::new();
    vector
        .magnitudes(Given::from(&update), &[], &mut out)
        .unwrap();
    assert!(out.is_empty());
}
