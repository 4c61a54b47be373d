//! Deeplearning4j's worked sequences and defaults.

use super::{first_unit, hits, input, scattered};
use gradring::codec::cut8;
use gradring::codec::policy::{
    Adaptive, Counting, Magnitude, PolicyState, Quantile, TargetDensity, ThresholdPolicy,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Cases {
    adaptive_threshold: Sequence,
}

/// What each step before was (the first: none), and the next threshold.
#[derive(Deserialize)]
struct Sequence {
    initial: f64,
    min: f64,
    max: f64,
    decay: f64,
    steps: Vec<(Option<Before>, f64)>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Before {
    /// "dense".
    Dense(Dense),
    Density(f64),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Dense {
    Dense,
}

fn sequence() -> Sequence {
    let text = include_str!("../data/dl4j.json");
    let cases: Cases = serde_json::from_str(text).expect("the cases are JSON");
    cases.adaptive_threshold
}

fn initial_policy(sequence: &Sequence) -> Adaptive {
    let policy = Adaptive::new(sequence.min, sequence.max).unwrap();
    let policy = policy.with_decay(sequence.decay).unwrap();
    policy.starting_at(sequence.initial).unwrap()
}

fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-12
}

/// The policy after the whole sequence, its densities given as hits by elements.
fn after_the_sequence() -> Adaptive {
    let sequence = sequence();
    let mut policy = initial_policy(&sequence);
    for (before, expected) in &sequence.steps {
        let last = before.and_then(|before| match before {
            Before::Dense(Dense::Dense) => hits(625),
            Before::Density(density) => hits((density * 1e4).round() as u64),
        });
        let unit = policy.unit(&input(10_000, last));
        let t = policy.threshold().unwrap();
        assert_eq!(t, *expected, "after {before:?}");
        // Only the step's own threshold is cut.
        assert_eq!((unit.t(), unit.v()), (cut8(t as f32), cut8(t as f32)));
    }
    policy
}

#[test]
fn adaptive_gives_the_worked_sequence_from_densities() {
    let policy = after_the_sequence();
    assert_eq!(policy.density(), Some(1e-4));
}

#[test]
fn adaptive_gives_the_worked_sequence_by_deeplearning4js_own_counting() {
    let sequence = sequence();
    let mut policy = initial_policy(&sequence).with_counting(Counting::Dl4j);
    // Dense, dense again but with few enough hits to go on sparse, then 6 hits and a header of 4 in 100,000.
    let lasts = [None, hits(50_000), hits(3000), hits(6)];
    for (last, (_, expected)) in lasts.into_iter().zip(&sequence.steps) {
        policy.unit(&input(100_000, last));
        assert_eq!(policy.threshold(), Some(*expected), "after {last:?}");
    }
    assert_eq!(policy.density(), Some(1e-4));
}

#[test]
fn the_next_epoch_goes_on_from_the_merged_state_without_a_last_step() {
    let policy = after_the_sequence();
    let sequence = sequence();
    // Merging equals, and one that has not begun, changes nothing.
    let unused = initial_policy(&sequence);
    let states = [policy.state(), unused.state(), policy.clone().state()];
    let merged = unused.merge(&states).unwrap();
    assert_eq!(merged, policy.state());

    let mut next = unused;
    next.restore(&merged).unwrap();
    assert_eq!(next.threshold(), policy.threshold());
    next.unit(&input(10_000, None));
    // The density stored is below the band, so one step down: back at the initial threshold.
    assert!(near(next.threshold().unwrap(), 1e-3));
    assert_eq!(next.density(), Some(1e-4));
}

#[test]
fn merged_thresholds_are_a_geometric_mean() {
    let policy = Adaptive::default();
    let stored = |t| PolicyState::new("Adaptive", [0.0, t, 1e-3]);
    let merged = policy.merge(&[stored(1e-4), stored(5e-4)]).unwrap();
    assert!(near(merged.numbers[1], 5e-8f64.sqrt()), "{merged:?}");
    // A factor of two down and one up cancel out.
    let merged = policy.merge(&[stored(5e-4), stored(2e-3)]).unwrap();
    assert!(near(merged.numbers[1], 1e-3), "{merged:?}");
}

#[test]
fn after_an_epoch_threshold_and_density_are_known_and_have_changed() {
    let mut policy = Adaptive::dl4j();
    let before = policy.state();
    policy.unit(&input(10_000, None));
    let first = policy.threshold().unwrap();
    assert_eq!((first, policy.density()), (1e-4, None));
    for _ in 0..50 {
        policy.unit(&input(10_000, hits(5000)));
    }
    assert!(policy.threshold().unwrap() > 5.0 * first);
    assert_eq!(policy.density(), Some(1.0 / 16.0));
    assert_ne!(policy.state(), before);
    assert!(policy.state().numbers.iter().all(|x| x.is_finite()));
}

#[test]
fn deeplearning4js_defaults_are_its_own() {
    let mut policies: [Box<dyn ThresholdPolicy>; 2] =
        [Box::new(Adaptive::dl4j()), Box::new(TargetDensity::dl4j())];
    for policy in &mut policies {
        assert_eq!(policy.sample_size(1 << 20, 0), 0);
        assert_eq!(policy.limit(1 << 20, 0), None);
        let unit = policy.unit(&input(10_000, None));
        assert_eq!((unit.t(), unit.v()), (cut8(1e-4), cut8(1e-4)));
        // The first message is dense, and that is too many, though nothing was a hit.
        policy.unit(&input(10_000, hits(0)));
        let up = 1e-4 * 2f64.powf(1.0 / 20.0);
        assert!(near(policy.state().numbers[1], up));
        // The second is sparse. A single hit is none.
        policy.unit(&input(10_000, hits(1)));
        assert!(near(policy.state().numbers[1], 1e-4));
        assert_eq!(policy.state().numbers[2], 0.0);
    }
    // With the header's words the target is met exactly by 6 hits of 10,000, and the threshold stays.
    let [adaptive, target] = &mut policies;
    for (policy, next) in [(adaptive, [0.0; 3]), (target, [0.0, -1.0, 1.0])] {
        for (count, steps) in [6, 5, 7].into_iter().zip(next) {
            let before = policy.state().numbers[1];
            policy.unit(&input(10_000, hits(count)));
            let expected = before * 2f64.powf(steps / 20.0);
            assert!(near(policy.state().numbers[1], expected), "{count} hits");
        }
    }
}

#[test]
fn by_default_hits_are_counted_without_a_header() {
    let mut policy = TargetDensity::default().starting_at(1.0).unwrap();
    policy.unit(&input(10_000, None));
    for (count, steps) in [(10, 0.0), (9, -1.0), (11, 0.0), (1, -1.0), (10, -1.0)] {
        policy.unit(&input(10_000, hits(count)));
        let expected = 2f64.powf(steps / 20.0);
        assert!(near(policy.threshold().unwrap(), expected), "{count} hits");
        assert_eq!(policy.density(), Some(count as f64 / 1e4));
    }
}

#[test]
fn the_first_threshold_is_the_first_updates_quantile() {
    let sample = scattered(60_000);
    // Adaptive's band of 1e-4 to 1e-2 has its geometric middle at 1e-3.
    for magnitude in [Magnitude::Threshold, Magnitude::Mean] {
        let quantile = Quantile::new(1e-3).unwrap();
        let expected = first_unit(&mut quantile.with_magnitude(magnitude), &sample);
        let mut policies: [Box<dyn ThresholdPolicy>; 2] = [
            Box::new(Adaptive::default().with_magnitude(magnitude)),
            Box::new(TargetDensity::default().with_magnitude(magnitude)),
        ];
        for policy in &mut policies {
            let quantile = Quantile::new(1e-3).unwrap();
            let wanted = quantile.sample_size(1 << 25, 0);
            assert_eq!(policy.sample_size(1 << 25, 0), wanted);
            assert_eq!(first_unit(policy.as_mut(), &sample), expected);
            assert_eq!(policy.sample_size(1 << 25, 1), 0);
            assert_eq!(policy.state().numbers[1], f64::from(expected.t()));
        }
    }
}
