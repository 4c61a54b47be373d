//! Saving, restoring and merging what policies remember.

use super::simulation::Simulation;
use super::{hits, input, policies};
use gradring::codec::Unit;
use gradring::codec::policy::{
    Adaptive, Counting, Fixed, PolicyInput, PolicyState, PolicyStateError, Quantile, TargetDensity,
    ThresholdPolicy,
};

#[test]
fn every_policy_goes_on_from_its_saved_state_bit_for_bit() {
    for (index, mut policy) in policies().into_iter().enumerate() {
        let mut simulation = Simulation::new(20_000);
        for step in 0..40 {
            let text = serde_json::to_string(&policy.state()).unwrap();
            let state: PolicyState = serde_json::from_str(&text).unwrap();
            let mut restored = policies().swap_remove(index);
            restored.restore(&state).unwrap();
            assert_eq!(restored.state(), policy.state(), "{policy:?}");

            let mut other = simulation.clone();
            let scale = if step < 20 { 1e-3 } else { 1e-2 };
            let ours = simulation.steps(policy.as_mut(), scale, 1);
            assert_eq!(
                other.steps(restored.as_mut(), scale, 1),
                ours,
                "{policy:?} at step {step}"
            );
            assert_eq!(restored.state(), policy.state());
        }
    }
}

#[test]
fn damaged_and_foreign_states_are_refused_and_change_nothing() {
    let mut policy = Adaptive::dl4j();
    policy.unit(&input(10_000, None));
    policy.unit(&input(10_000, hits(100)));
    let before = policy.state();
    assert_eq!(before.numbers.len(), 3);

    let nan = f64::NAN;
    let infinite = f64::INFINITY;
    for (what, numbers) in [
        ("a mode", vec![nan]),
        ("a mode", vec![2.0, 1.0]),
        ("a mode", vec![-0.0, 1.0]),
        ("a mode", vec![-1.0, 1.0, 0.5]),
        ("a threshold", vec![1.0, nan]),
        ("a threshold", vec![1.0, 0.0]),
        ("a threshold", vec![1.0, -1.0, 0.5]),
        ("a threshold", vec![1.0, infinite, 0.5]),
        ("a threshold", vec![1.0, 1e38, 0.5]),
        ("a threshold", vec![1.0, 1e-38, 0.5]),
        ("a density", vec![1.0, 1.0, nan]),
        ("a density", vec![1.0, 1.0, -0.1]),
        ("a density", vec![1.0, 1.0, -0.0]),
        ("a density", vec![1.0, 1.0, 1.1]),
        ("a density", vec![1.0, 1.0, infinite]),
    ] {
        let state = PolicyState::new("Adaptive", numbers);
        let refused = policy.restore(&state).unwrap_err();
        assert!(
            matches!(&refused, PolicyStateError::Number { what: found, .. } if *found == what),
            "{state:?}: {refused}"
        );
        assert_eq!(policy.state(), before);
        let merged = policy.merge(&[before.clone(), state]);
        assert!(matches!(merged, Err(PolicyStateError::Number { .. })));
    }
    for found in [0, 4, 1000] {
        let state = PolicyState::new("Adaptive", vec![1.0; found]);
        let refused = Err(PolicyStateError::Count {
            expected: "1 to 3",
            found,
        });
        assert_eq!(policy.restore(&state), refused);
        assert_eq!(policy.merge(&[state]).map(drop), refused);
        assert_eq!(policy.state(), before);
    }
}

#[test]
fn a_state_of_another_kind_is_refused_by_every_policy() {
    for mut policy in policies() {
        let mine = policy.state();
        assert_eq!(mine.kind, policy.kind());
        for other in policies() {
            let state = other.state();
            if state.kind == mine.kind {
                continue;
            }
            let refused = Err(PolicyStateError::Kind {
                expected: mine.kind.clone(),
                found: state.kind.clone(),
            });
            assert_eq!(policy.restore(&state), refused);
            assert_eq!(policy.merge(&[mine.clone(), state]).map(drop), refused);
        }
        assert_eq!(policy.merge(&[]), Err(PolicyStateError::Nothing));
        assert_eq!(policy.state(), mine);
    }
    // Policies without memory take no numbers.
    let mut without: [Box<dyn ThresholdPolicy>; 2] = [
        Box::new(Fixed::new(1.0).unwrap()),
        Box::<Quantile>::default(),
    ];
    for policy in &mut without {
        let refused = Err(PolicyStateError::Count {
            expected: "none",
            found: 1,
        });
        let state = PolicyState::new(policy.kind(), [1.0]);
        assert_eq!(policy.restore(&state), refused);
        assert_eq!(policy.merge(&[state]).map(drop), refused);
    }
}

#[test]
fn the_merged_state_of_equal_states_is_that_state() {
    // Thresholds whose logarithms do not come back through exp.
    let mut t = 1.3e-25;
    while t < 1e25 {
        for policy in [
            &Adaptive::default() as &dyn ThresholdPolicy,
            &TargetDensity::dl4j(),
        ] {
            let state = PolicyState::new(policy.kind(), [1.0, t, 1.0 / 3.0]);
            for count in 1..8 {
                let states = vec![state.clone(); count];
                assert_eq!(policy.merge(&states).unwrap(), state);
            }
        }
        t *= 1.7;
    }
    for policy in policies() {
        let state = policy.state();
        let merged = policy.merge(&[state.clone(), state.clone(), state.clone()]);
        assert_eq!(merged.unwrap(), state);
    }
}

#[test]
fn merging_takes_what_is_known_of_those_that_have_begun() {
    let policy = TargetDensity::default();
    let state = |numbers: &[f64]| PolicyState::new("TargetDensity", numbers);
    let merge = |states: &[&[f64]]| {
        let states: Vec<PolicyState> = states.iter().map(|numbers| state(numbers)).collect();
        policy.merge(&states).unwrap().numbers
    };
    // A density may be 0, so it is the arithmetic mean; one that is not known yet is left out.
    let merged = merge(&[&[0.0, 1.0, 0.0], &[0.0, 4.0], &[0.0, 2.0, 0.5], &[1.0]]);
    assert_eq!(merged.len(), 3);
    assert!((merged[1] - 2.0).abs() < 1e-12);
    assert_eq!((merged[0], merged[2]), (0.0, 0.25));
    // The mode is that of most of those that have begun, else dense.
    assert_eq!(merge(&[&[1.0, 1.0], &[0.0, 1.0]])[0], 1.0);
    assert_eq!(merge(&[&[1.0], &[1.0], &[0.0, 1.0]]), [0.0, 1.0]);
    // Nobody has begun.
    assert_eq!(merge(&[&[1.0], &[1.0]]), [1.0]);
    assert_eq!(merge(&[&[0.0], &[0.0], &[1.0]]), [0.0]);
}

#[test]
fn a_state_restores_the_mode_of_deeplearning4js_counting() {
    let policy = || Adaptive::default().with_counting(Counting::Dl4j);
    let mut sparse = policy();
    sparse
        .restore(&PolicyState::new("Adaptive", [0.0, 1.0]))
        .unwrap();
    sparse.unit(&input(10_000, hits(6)));
    assert_eq!(sparse.density(), Some(1e-3));
    let mut dense = policy();
    dense
        .restore(&PolicyState::new("Adaptive", [1.0, 1.0]))
        .unwrap();
    dense.unit(&input(10_000, hits(6)));
    assert_eq!(dense.density(), Some(0.0625));
}

/// A policy of a user's own, with something to remember: twice the mean |s| of all steps so far.
#[derive(Debug, Default)]
struct Running {
    sum: f64,
    steps: f64,
}

impl Running {
    fn read(state: &PolicyState) -> Result<Running, PolicyStateError> {
        let number = |found| PolicyStateError::Number {
            what: "a sum or a count",
            expected: "at least 0",
            found,
        };
        match *state.numbers_of("Running")? {
            [sum, steps] => match [sum, steps].into_iter().find(|x| x.is_nan() || *x < 0.0) {
                None => Ok(Running { sum, steps }),
                Some(found) => Err(number(found)),
            },
            ref numbers => Err(PolicyStateError::Count {
                expected: "2",
                found: numbers.len(),
            }),
        }
    }
}

impl ThresholdPolicy for Running {
    fn kind(&self) -> &'static str {
        "Running"
    }

    fn sample_size(&self, _elements: usize, _step: u64) -> usize {
        1000
    }

    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        let sum: f64 = input.sample.iter().map(|s| f64::from(*s)).sum();
        self.sum += sum / input.sample.len() as f64;
        self.steps += 1.0;
        let t = 2.0 * (self.sum / self.steps) as f32;
        Unit::nearest(t, 1.5 * t)
    }

    fn limit(&self, elements: usize, _step: u64) -> Option<usize> {
        Some(elements / 4)
    }

    fn state(&self) -> PolicyState {
        PolicyState::new("Running", [self.sum, self.steps])
    }

    fn restore(&mut self, state: &PolicyState) -> Result<(), PolicyStateError> {
        *self = Running::read(state)?;
        Ok(())
    }

    fn merge(&self, states: &[PolicyState]) -> Result<PolicyState, PolicyStateError> {
        let mut merged = Running::default();
        for state in states {
            let one = Running::read(state)?;
            merged.sum += one.sum;
            merged.steps += one.steps;
        }
        Ok(merged.state())
    }
}

#[test]
fn a_policy_of_ones_own_runs_and_is_saved_and_merged_as_the_others() {
    let mut policy: Box<dyn ThresholdPolicy> = Box::new(Running::default());
    let mut simulation = Simulation::new(10_000);
    simulation.steps(policy.as_mut(), 1.0, 5);
    let mut restored = Running::default();
    restored.restore(&policy.state()).unwrap();
    let mut other = simulation.clone();
    let ours = simulation.steps(policy.as_mut(), 1.0, 5);
    assert_eq!(other.steps(&mut restored, 1.0, 5), ours);
    assert!(ours.iter().all(|step| step.hits > 0 && step.hits <= 2500));
    let merged = policy.merge(&[policy.state(), restored.state()]).unwrap();
    assert_eq!(merged.numbers[1], 20.0);
    assert!(
        restored
            .restore(&PolicyState::new("Running", [f64::NAN, 1.0]))
            .is_err()
    );
    // What a policy without memory gets for nothing.
    assert!(Fixed::new(1.0).unwrap().state().numbers.is_empty());
}
