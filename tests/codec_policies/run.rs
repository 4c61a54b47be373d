//! What density a run has.

use super::simulation::Simulation;
use gradring::codec::policy::{Adaptive, LastStep, Magnitude, Quantile, TargetDensity};

/// Where a run starts, as a multiple of the first update's quantile; `None`: there.
const STARTS: [Option<f64>; 3] = [None, Some(1e-4), Some(1e4)];

/// The threshold of the first update's quantile at a density of 1e-3.
fn quantile(elements: usize) -> f64 {
    let mut policy = TargetDensity::default();
    Simulation::new(elements).step(&mut policy, 1e-3);
    policy.threshold().unwrap()
}

fn mean_density(steps: &[LastStep]) -> f64 {
    steps.iter().map(|step| step.density).sum::<f64>() / steps.len() as f64
}

#[test]
fn adaptives_density_enters_its_band_and_stays_there_even_from_four_decades_off() {
    let elements = 20_000;
    for start in STARTS {
        let mut policy = Adaptive::default();
        if let Some(factor) = start {
            policy = policy.starting_at(factor * quantile(elements)).unwrap();
        }
        let steps = Simulation::new(elements).steps(&mut policy, 1e-3, 700);
        let fine = |step: &LastStep| (1e-4..=1e-2).contains(&step.density);
        let from = if start.is_none() { 1 } else { 500 };
        // The threshold moves after a step outside, so one now and then is.
        let outside = steps[from..].iter().filter(|step| !fine(step)).count();
        assert!(
            outside * 50 < 700 - from,
            "{outside} outside from {start:?}"
        );
        // It was far outside before, so this is the policy's doing.
        assert_eq!(fine(&steps[0]), start.is_none());
    }
}

#[test]
fn target_density_is_near_its_target_even_from_four_decades_off() {
    let elements = 20_000;
    for start in STARTS {
        let mut policy = TargetDensity::default();
        if let Some(factor) = start {
            policy = policy.starting_at(factor * quantile(elements)).unwrap();
        }
        let steps = Simulation::new(elements).steps(&mut policy, 1e-3, 700);
        for steps in steps[500..].chunks(100) {
            let factor = mean_density(steps) / 1e-3;
            assert!(
                (1.0 / 1.5..1.5).contains(&factor),
                "{factor} from {start:?}"
            );
        }
        let first = steps[0].density / 1e-3;
        assert_eq!((0.5..2.0).contains(&first), start.is_none());
    }
}

#[test]
fn a_limit_below_the_density_wanted_does_not_drive_the_threshold_to_its_floor() {
    // 200 hits would be wanted.
    let policy = TargetDensity::new(1e-2).unwrap().with_limit(50);
    let mut policy = policy.with_magnitude(Magnitude::Mean);
    let mut simulation = Simulation::new(20_000);
    simulation.steps(&mut policy, 1e-3, 300);
    let middle = policy.threshold().unwrap();
    let steps = simulation.steps(&mut policy, 1e-3, 300);
    let end = policy.threshold().unwrap();
    assert!((0.5..5.0).contains(&(end / middle)), "{middle} to {end}");
    assert!(steps.iter().all(|step| step.hits <= 50));
    assert!(mean_density(&steps) * 20_000.0 > 20.0);
}

#[test]
fn quantile_meets_its_density_with_the_default_limit_and_with_a_warm_up() {
    let elements = 200_000;
    for (target, warm_up) in [(1e-2, 0), (1e-3, 0), (1e-3, 20)] {
        let policy = Quantile::new(target).unwrap();
        let mut policy = policy.with_warm_up(warm_up).unwrap();
        let mut simulation = Simulation::new(elements);
        let mut fine = 0;
        for step in 0..50 {
            // The scale changes by a thousand on the way.
            let scale = if step < 30 { 1e-3 } else { 1.0 };
            let wanted = policy.density_at(step);
            assert!(step >= warm_up || wanted > target);
            let density = simulation.step(&mut policy, scale).density;
            assert!(density <= 2.0 * wanted + 1.0 / elements as f64);
            if step > 0 && (density / wanted - 1.0).abs() <= 0.25 {
                fine += 1;
            }
        }
        assert!(fine * 10 >= 9 * 49, "{fine} of 49, {target}, {warm_up}");
    }
}
