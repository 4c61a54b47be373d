//! Policies: the thresholds that they give, what they remember, and how they fare in a run.

use gradring::codec::Unit;
use gradring::codec::policy::{
    Adaptive, Fixed, LastStep, Magnitude, PolicyInput, Quantile, TargetDensity, ThresholdPolicy,
};

#[path = "codec_policies/dl4j.rs"]
mod dl4j;
#[path = "codec_policies/memory.rs"]
mod memory;
#[path = "plain/random.rs"]
mod random;
#[path = "codec_policies/run.rs"]
mod run;
#[path = "codec_policies/settings.rs"]
mod settings;
#[path = "codec_policies/simulation.rs"]
mod simulation;
#[path = "codec_policies/state.rs"]
mod state;

/// One of each policy, with magnitudes and settings that make it remember or look at all that it can.
fn policies() -> Vec<Box<dyn ThresholdPolicy>> {
    vec![
        Box::new(Fixed::new(3e-3).unwrap().with_magnitude(Magnitude::Mean)),
        Box::new(Quantile::new(1e-3).unwrap().with_warm_up(20).unwrap()),
        Box::new(Adaptive::default().with_magnitude(Magnitude::Mean)),
        Box::new(Adaptive::new(1e-3, 2e-3).unwrap().with_limit(60)),
        Box::new(Adaptive::dl4j()),
        Box::new(TargetDensity::default()),
        Box::new(TargetDensity::dl4j().with_magnitude(Magnitude::Mean)),
    ]
}

/// A step without a sample.
fn input(elements: usize, last: Option<LastStep>) -> PolicyInput<'static> {
    PolicyInput {
        step: 0,
        elements,
        sample: &[],
        last,
    }
}

/// A step of this many hits, as the policies that look at hits only see it.
fn hits(hits: u64) -> Option<LastStep> {
    Some(LastStep {
        unit: Unit::new(1.0, 1.0).unwrap(),
        hits,
        density: f64::NAN,
        mean: None,
    })
}

/// The unit for a sample that is all elements, at the first step.
fn first_unit(policy: &mut dyn ThresholdPolicy, sample: &[f32]) -> Unit {
    policy.unit(&PolicyInput {
        step: 0,
        elements: sample.len(),
        sample,
        last: None,
    })
}

/// Positive numbers, in no order.
fn scattered(count: u32) -> Vec<f32> {
    (0..count)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e4 + 1.0)
        .collect()
}
