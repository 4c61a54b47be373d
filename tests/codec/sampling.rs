//! Samples of |s|, and the density that a threshold made of one gives.

use super::plain::{Random, bits, kinds, lengths, paths, residual, units, vector};
use gradring::codec::policy::{LastStep, Magnitude, PolicyInput, Quantile, ThresholdPolicy};
use gradring::codec::{CHUNK, ChunkOptions, Path, canon};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_sample_is_of_the_vector_and_the_same_on_every_path(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (kind, share) in (kinds(), 0f64..1.2),
    ) {
        let random = &mut Random(seed);
        let before = residual(random, length, kind, unit);
        let update = vector(random, length, kind, unit);
        let wanted = (share * length as f64) as usize;
        let all: Vec<f32> = before.iter().zip(&update).map(|(&r, &u)| {
            let sum = r + canon(u);
            if sum.is_finite() { canon(sum).abs() } else { r.abs() }
        }).collect();
        let mut first: Option<Vec<f32>> = None;
        for path in paths() {
            let mut sample = vec![9.0];
            path.magnitudes(&before, &update, wanted, seed, &mut sample).unwrap();
            prop_assert_eq!(sample.remove(0), 9.0, "it appends");
            prop_assert!(sample.len() >= wanted.min(length) && sample.len() <= length);
            // In index order, in whole runs: found one after the other.
            if sample.len() == length {
                prop_assert!(bits(&sample) == bits(&all));
            } else {
                let mut at = 0;
                for run in sample.chunks(64) {
                    let place = all[at..].windows(64).position(|window| bits(window) == bits(run));
                    prop_assert!(place.is_some(), "a run of the sample is not in the vector");
                    at += place.unwrap_or(0) + 1;
                }
            }
            let first = first.get_or_insert_with(|| sample.clone());
            prop_assert!(bits(first) == bits(&sample));
        }
    }
}

/// The densities of a run of steps of a policy, on data whose scale the policy cannot know.
fn densities(
    policy: &mut dyn ThresholdPolicy,
    elements: usize,
    scales: &[f64],
    path: Path,
) -> Vec<f64> {
    let mut random = Random(3);
    let layers: Vec<f64> = (0..37)
        .map(|_| 10f64.powf(2.0 * random.unit() - 1.0))
        .collect();
    let (mut residual, mut last, mut sample, mut out) =
        (vec![0.0; elements], None, Vec::new(), Vec::new());
    let mut densities = Vec::new();
    for (step, scale) in scales.iter().enumerate() {
        let update: Vec<f32> = (0..elements)
            .map(|i| random.laplace(scale * layers[i * layers.len() / elements]))
            .collect();
        sample.clear();
        let wanted = policy.sample_size(elements, step as u64);
        path.magnitudes(&residual, &update, wanted, step as u64, &mut sample)
            .unwrap();
        let unit = policy.unit(&PolicyInput {
            step: step as u64,
            elements,
            sample: &sample,
            last,
        });
        let mut hits = 0;
        for (residual, update) in residual.chunks_mut(CHUNK).zip(update.chunks(CHUNK)) {
            out.clear();
            let sent = path
                .encode(residual, update, unit, &ChunkOptions::default(), &mut out)
                .unwrap();
            hits += u64::from(sent.hits);
        }
        let density = hits as f64 / elements as f64;
        last = Some(LastStep {
            unit,
            hits,
            density,
            mean: None,
        });
        densities.push(density);
    }
    densities
}

#[test]
fn quantile_meets_its_density_whatever_the_scale() {
    // The scale falls by ten in the middle, and later rises by ten thousand.
    let scale = |step| match step {
        0..30 => 1.0,
        30..50 => 0.1,
        _ => 1e3,
    };
    let scales: Vec<f64> = (0..60).map(scale).collect();
    for (target, elements) in [(1e-2, 60_000), (1e-2, 300_000), (1e-3, 300_000)] {
        for magnitude in [Magnitude::Mean, Magnitude::Threshold] {
            let mut policy = Quantile::new(target).unwrap().with_magnitude(magnitude);
            let densities = densities(&mut policy, elements, &scales, Path::best());
            let near = |density: &&f64| (**density / target - 1.0).abs() <= 0.25;
            let fine = densities[1..].iter().filter(near).count();
            assert!(
                fine * 10 >= 9 * (densities.len() - 1),
                "{target} of {elements}: {densities:?}"
            );
        }
    }
}
