//! Any update, any length, any limit.

use super::*;
use serde::Deserialize;

#[test]
fn every_length_gives_the_plain_paths_bytes_for_any_bits() {
    let Some(context) = gpu() else { return };
    let unit = unit(1e-3);
    let mut random = Random(1);
    for elements in [
        1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 4095, 4096, 4097, 32_767,
        32_768, 32_769, 262_143, 262_144, 262_145, 1_000_003,
    ] {
        let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
        for step in 0..2 {
            let update = random.numbers(elements, unit);
            let buffer = buffer_of_numbers(context, &update);
            step_of_both(
                &mut vector,
                &mut plain,
                GradRef::device(&buffer).given(),
                Given::from(&update),
                &GpuStep {
                    step,
                    first: step,
                    scopes: &[(unit, usize::MAX)],
                    clip: None,
                },
                &format!("{elements} elements, step {step}"),
            );
        }
    }
}

#[test]
fn every_density_gives_the_plain_paths_bytes_in_both_formats() {
    let Some(context) = gpu() else { return };
    let unit = unit(3e-2);
    let mut random = Random(2);
    let elements = CHUNK + 50_000;
    let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
    let mut formats = [0; 5];
    for (step, density) in [0.0, 1e-4, 1e-2, 0.12, 0.13, 0.5, 1.0, 1e-3]
        .into_iter()
        .enumerate()
    {
        let update = random.plain(elements, unit, density);
        // What stayed of the last step is gone.
        vector.restore(&vec![0.0; elements]).unwrap();
        plain.residual.fill(0.0);
        let buffer = buffer_of_numbers(context, &update);
        let seen = step_of_both(
            &mut vector,
            &mut plain,
            GradRef::device(&buffer).given(),
            Given::from(&update),
            &GpuStep {
                step: step as u64,
                first: step as u64,
                scopes: &[(unit, usize::MAX)],
                clip: None,
            },
            &format!("density {density}"),
        );
        for (all, seen) in formats.iter_mut().zip(seen) {
            *all += seen;
        }
    }
    assert!(formats[1] >= 6 && formats[2] >= 6, "{formats:?}");
}

#[test]
fn a_limit_sends_exactly_the_hits_that_the_plain_path_sends() {
    let Some(context) = gpu() else { return };
    let unit = unit(2.0);
    let mut random = Random(3);
    let elements = 2 * CHUNK + 10_001;
    let chunks = of_one_scope(elements);
    for density in [1e-3, 0.3] {
        let update = random.plain(elements, unit, density);
        let hits = update.iter().filter(|x| x.abs() >= unit.t()).count();
        let buffer = buffer_of_numbers(context, &update);
        for (first, limit) in [0, 1, 7, hits / 7, hits / 2, hits - 1, hits, hits + 1]
            .into_iter()
            .flat_map(|limit| [(0, limit), (1, limit), (2, limit)])
        {
            let (mut vector, mut plain) = pair(context, &chunks, 1);
            // The start of the search is somewhere else in each step.
            for step in [first, first + 3 * (limit as u64 + 1)] {
                step_of_both(
                    &mut vector,
                    &mut plain,
                    GradRef::device(&buffer).given(),
                    Given::from(&update),
                    &GpuStep {
                        step,
                        first,
                        scopes: &[(unit, limit)],
                        clip: None,
                    },
                    &format!("density {density}, limit {limit} of {hits}, step {step}"),
                );
            }
        }
    }
}

#[test]
fn scopes_and_dense_ranges_keep_apart_over_several_steps() {
    let Some(context) = gpu() else { return };
    let chunks = layout_of(&mixed());
    let units = [unit(1e-3), unit(3e-3), unit(1.0)];
    let mut random = Random(4);
    let (mut vector, mut plain) = pair(context, &chunks, 3);
    let elements = plain.residual.len();
    let mut formats = [0; 5];
    for step in 0..14 {
        let update = random.numbers(elements, units[0]);
        let buffer = buffer_of_numbers(context, &update);
        let limits = match step % 3 {
            0 => [usize::MAX; 3],
            1 => [5000, 900, 0],
            _ => [12_345, usize::MAX, 7],
        };
        let scopes = [0, 1, 2].map(|scope| (units[scope], limits[scope]));
        let seen = step_of_both(
            &mut vector,
            &mut plain,
            GradRef::device(&buffer).given(),
            Given::from(&update),
            &GpuStep {
                step,
                first: step * 5,
                scopes: &scopes,
                clip: (step % 4 == 3).then(|| Clip::new(2.0).unwrap()),
            },
            &format!("step {step}"),
        );
        for (all, seen) in formats.iter_mut().zip(seen) {
            *all += seen;
        }
    }
    assert!(formats[1..].iter().all(|&seen| seen > 0), "{formats:?}");
}

#[test]
fn clipping_cuts_and_counts_as_the_plain_path_does() {
    let Some(context) = gpu() else { return };
    let elements = CHUNK + 3000;
    let mut random = Random(5);
    for (t, multiple) in [
        (1e-3, 2.0),
        (1e-3, 5.5),
        (Unit::LEAST, 2.0),
        (1.0, f32::INFINITY),
        (Unit::MOST, 1e30),
    ] {
        let unit = Unit::nearest(t, t);
        let (mut vector, mut plain) = pair(context, &of_one_scope(elements), 1);
        for step in 0..3 {
            let update = random.numbers(elements, unit);
            let buffer = buffer_of_numbers(context, &update);
            step_of_both(
                &mut vector,
                &mut plain,
                GradRef::device(&buffer).given(),
                Given::from(&update),
                &GpuStep {
                    step,
                    first: step,
                    scopes: &[(unit, if step == 1 { 100 } else { usize::MAX })],
                    clip: Some(Clip::new(multiple).unwrap()),
                },
                &format!("t {t:e}, {multiple} t, step {step}"),
            );
        }
    }
}

#[derive(Deserialize)]
struct Case {
    name: String,
    threshold: String,
    unit: String,
    clip_multiple: Option<String>,
    max_hits: Option<usize>,
    start: usize,
    residual: Vec<String>,
    update: Vec<String>,
}

#[test]
fn the_reference_models_cases_give_the_plain_paths_bytes() {
    let Some(context) = gpu() else { return };
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../../tests/data/codec.json")).unwrap();
    let number = |bits: &String| f32::from_bits(u32::from_str_radix(bits, 16).unwrap());
    // A step whose number, times the odd constant, is the case's start.
    let inverse = (0..5).fold(1u32, |inverse, _| {
        inverse.wrapping_mul(2u32.wrapping_sub(0x9E37_79B1u32.wrapping_mul(inverse)))
    });
    assert!(cases.len() > 25);
    for case in cases {
        let update: Vec<f32> = case.update.iter().map(number).collect();
        let residual: Vec<f32> = case.residual.iter().map(number).collect();
        let chunks = of_one_scope(update.len());
        let (mut vector, mut plain) = pair(context, &chunks, 1);
        vector.restore(&residual).unwrap();
        plain.residual.copy_from_slice(&residual);
        let unit = Unit::new(number(&case.threshold), number(&case.unit)).unwrap();
        step_of_both(
            &mut vector,
            &mut plain,
            Given::from(&update),
            Given::from(&update),
            &GpuStep {
                step: u64::from((case.start as u32).wrapping_mul(inverse)),
                first: 0,
                scopes: &[(unit, case.max_hits.unwrap_or(usize::MAX))],
                clip: case
                    .clip_multiple
                    .as_ref()
                    .map(|multiple| Clip::new(number(multiple)).unwrap()),
            },
            &case.name,
        );
    }
}
