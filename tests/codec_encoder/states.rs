//! What policies go on from: saved, restored bit for bit, merged, and refused when damaged.

use super::config::{Coding, Config, Policy, Post};
use super::plain::{Random, bits};
use super::step;
use gradring::codec::policy::{LastStep, Magnitude, PolicyState, PolicyStateError};
use gradring::codec::{
    Dense, Encoder, EncoderBuilder, PostInput, PostProcessor, ScopeState, ScopeStateError, Unit,
};

/// Nothing stays, so that a new encoder starts with the residual of an old one.
#[derive(Debug)]
struct Forget;

impl PostProcessor for Forget {
    fn kind(&self) -> &'static str {
        "Forget"
    }

    fn process(&self, _: &PostInput, residual: &mut [f32]) -> Option<f64> {
        residual.fill(0.0);
        Some(0.0)
    }
}

fn policies() -> [Policy; 8] {
    [
        Policy::Fixed(0.25, None, Magnitude::Mean),
        Policy::Fixed(0.25, Some(70), Magnitude::Threshold),
        Policy::Quantile(0.05, Magnitude::Mean),
        Policy::WarmUp(0.02, 30),
        Policy::Adaptive(0.02, 0.03, None, Magnitude::Mean),
        Policy::Adaptive(0.3, 0.4, Some(100), Magnitude::Threshold),
        Policy::TargetDensity(0.05),
        Policy::TargetDensity(0.5),
    ]
}

fn builder(shared: Policy, own: Policy) -> EncoderBuilder {
    let config = Config {
        ranges: vec![
            (900, Coding::Shared),
            (50, Coding::Dense(Dense::F32)),
            (800, Coding::Own(own)),
            (700, Coding::Shared),
        ],
        policy: shared,
        post: Post::None,
        memory: None,
        first: 0,
    };
    config.builder().post_processor(Forget)
}

fn update(random: &mut Random, elements: usize) -> Vec<f32> {
    let scale = 0.05 + 0.2 * random.unit();
    (0..elements).map(|_| random.laplace(scale)).collect()
}

fn through_json(states: &[ScopeState]) -> Vec<ScopeState> {
    let text = serde_json::to_string(states).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn an_encoder_goes_on_from_anothers_states_bit_for_bit() {
    for (at, shared) in policies().into_iter().enumerate() {
        let own = policies()[(at + 3) % 8];
        let mut random = Random(at as u64);
        let mut old = builder(shared, own).build().unwrap();
        for number in 0..23 {
            // Before the first step, too, there is something to save.
            let states = old.scope_states();
            assert_eq!(through_json(&states), states, "{shared:?}, step {number}");
            let mut new = builder(shared, own).build().unwrap();
            new.restore_scopes(&through_json(&states)).unwrap();
            assert_eq!(new.scope_states(), states);
            let mut restored = old.scope_states();
            for later in number..number + 3 {
                let update = update(&mut random, old.elements());
                let expected = step(&mut old, later, (&update).into());
                assert!(
                    step(&mut new, later, (&update).into()) == expected,
                    "{shared:?} and {own:?}, step {later} from {number}"
                );
                assert_eq!(new.scope_states(), old.scope_states());
                if later == number {
                    restored = old.scope_states();
                }
            }
            // Back to after this step: what was restored before, or has been seen since, counts no more.
            old.restore_scopes(&restored).unwrap();
        }
    }
}

#[test]
fn states_of_several_replicas_become_one() {
    let policies = [
        Policy::Adaptive(0.02, 0.03, None, Magnitude::Threshold),
        Policy::TargetDensity(0.1),
    ];
    let mut random = Random(77);
    let run = |random: &mut Random, steps: u64| {
        let mut encoder = builder(policies[0], policies[1]).build().unwrap();
        for number in 0..steps {
            let update = update(random, encoder.elements());
            step(&mut encoder, number, (&update).into());
        }
        encoder
    };
    let replicas: Vec<Encoder> = [3, 9, 14].map(|steps| run(&mut random, steps)).into();
    let states: Vec<Vec<ScopeState>> = replicas.iter().map(Encoder::scope_states).collect();
    let merged = replicas[0].merge_scopes(&states).unwrap();
    assert_eq!(merged.len(), 2);
    for (scope, merged) in merged.iter().enumerate() {
        // A state's second number is the threshold; they move in factors.
        let ln = |state: &Vec<ScopeState>| state[scope].policy.numbers[1].ln();
        let mean = states.iter().map(ln).sum::<f64>() / 3.0;
        assert!((merged.policy.numbers[1].ln() - mean).abs() < 1e-12);
        assert_eq!(merged.last, None);
    }
    // It makes no difference where they are merged, and one's own are one's own.
    assert_eq!(replicas[2].merge_scopes(&states).unwrap(), merged);
    let alone = replicas[1].merge_scopes(&states[1..2]).unwrap();
    assert!(
        alone
            .iter()
            .zip(&states[1])
            .all(|(one, own)| one.policy == own.policy)
    );

    let mut new = builder(policies[0], policies[1]).build().unwrap();
    new.restore_scopes(&merged).unwrap();
    let update = update(&mut random, new.elements());
    step(&mut new, 0, (&update).into());
    for (scope, merged) in new.scopes().zip(&merged) {
        let t = f64::from(scope.unit.unwrap().t());
        assert!((t / merged.policy.numbers[1] - 1.0).abs() < 0.05, "{t}");
    }

    let nothing = replicas[0].merge_scopes(&[]).unwrap_err();
    let source = PolicyStateError::Nothing;
    let name = "all".to_owned();
    assert_eq!(nothing, ScopeStateError::Policy { name, source });
    let short = replicas[0]
        .merge_scopes(&[states[0].clone(), vec![]])
        .unwrap_err();
    let (expected, found) = (2, 0);
    assert_eq!(short, ScopeStateError::Count { expected, found });
    let mut mixed = states.clone();
    mixed[1].reverse();
    assert!(matches!(
        replicas[0].merge_scopes(&mixed),
        Err(ScopeStateError::Policy {
            source: PolicyStateError::Kind { .. },
            ..
        })
    ));
}

#[test]
fn damaged_states_are_refused_and_change_nothing() {
    let policies = [
        Policy::TargetDensity(0.1),
        Policy::Adaptive(0.02, 0.03, None, Magnitude::Mean),
    ];
    let mut random = Random(78);
    let mut encoder = builder(policies[0], policies[1]).build().unwrap();
    for number in 0..9 {
        let update = update(&mut random, encoder.elements());
        step(&mut encoder, number, (&update).into());
    }
    let states = encoder.scope_states();
    let unit = Unit::nearest(0.5, 0.5);
    let last = |hits, mean| {
        Some(LastStep {
            unit,
            hits,
            density: 0.5,
            mean,
        })
    };
    // The first scope's state is a good one, but another one than it has.
    let mut good = states[0].clone();
    good.policy.numbers[1] *= 2.0;
    let damages: Vec<fn(&mut ScopeState)> = vec![
        |state| state.policy.kind = "TargetDensity".into(),
        |state| state.policy.kind = String::new(),
        |state| state.policy.numbers.clear(),
        |state| state.policy.numbers.push(0.5),
        |state| state.policy.numbers[0] = 0.5,
        |state| state.policy.numbers[1] = f64::NAN,
        |state| state.policy.numbers[1] = -1.0,
        |state| state.policy.numbers[1] = 1e300,
        |state| state.policy.numbers[2] = 1.5,
        |state| state.policy.numbers[2] = f64::NEG_INFINITY,
    ];
    let before = format!("{states:?}");
    let mut refused = |damaged: &[ScopeState]| {
        let error = encoder.restore_scopes(damaged).unwrap_err();
        assert_eq!(format!("{:?}", encoder.scope_states()), before);
        error
    };
    for damage in damages {
        let mut damaged = states[1].clone();
        damage(&mut damaged);
        let error = refused(&[good.clone(), damaged]);
        assert!(
            matches!(&error, ScopeStateError::Policy { name, .. } if name == "range 2"),
            "{error}"
        );
    }
    for (hits, mean) in [
        (801, Some(0.5)),
        (u64::MAX, None),
        (3, Some(0.0)),
        (3, Some(-1.0)),
        (3, Some(f64::NAN)),
        (3, Some(f64::INFINITY)),
        (3, None),
        (0, Some(0.5)),
    ] {
        let damaged = ScopeState {
            last: last(hits, mean),
            ..states[1].clone()
        };
        let error = refused(&[good.clone(), damaged]);
        assert!(
            matches!(error, ScopeStateError::Last { hits: found, .. } if found == hits),
            "{error}"
        );
    }
    for damaged in [
        &states[..1],
        &[],
        &[states[0].clone(), states[1].clone(), states[1].clone()][..],
    ] {
        let (expected, found) = (2, damaged.len());
        assert_eq!(refused(damaged), ScopeStateError::Count { expected, found });
    }
    // A density that does not fit is not believed.
    let mut dense = states.clone();
    dense[1].last = last(80, Some(0.75));
    encoder.restore_scopes(&dense).unwrap();
    assert_eq!(encoder.scope_states()[1].last.unwrap().density, 0.1);
    encoder.restore_scopes(&states).unwrap();
    assert_eq!(encoder.scope_states(), states);
    assert!(bits(encoder.residual()).iter().all(|&r| r == 0));
}

#[test]
fn a_damaged_text_is_no_state() {
    let mut encoder = builder(
        Policy::TargetDensity(0.1),
        Policy::Quantile(0.1, Magnitude::Mean),
    )
    .build()
    .unwrap();
    let mut random = Random(79);
    for number in 0..4 {
        let update = update(&mut random, encoder.elements());
        step(&mut encoder, number, (&update).into());
    }
    let text = serde_json::to_string(&encoder.scope_states()).unwrap();
    // Any byte of it may be another one: then it is an error somewhere, or a state that makes steps.
    let (mut refused, mut taken) = (0, 0);
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = random.one_of(b"0123456789-.,[]{}\"aeE ");
        match serde_json::from_slice::<Vec<ScopeState>>(&bytes) {
            Err(_) => refused += 1,
            Ok(states) => match encoder.restore_scopes(&states) {
                Err(_) => refused += 1,
                Ok(()) => {
                    let update = update(&mut random, encoder.elements());
                    step(&mut encoder, 4, (&update).into());
                    taken += 1;
                }
            },
        }
    }
    assert!(
        refused > taken && taken > 0,
        "{refused} refused, {taken} taken"
    );
}

#[test]
fn states_say_which_policy_they_are_of() {
    let encoder = builder(
        Policy::TargetDensity(0.1),
        Policy::Quantile(0.1, Magnitude::Mean),
    )
    .build()
    .unwrap();
    let states = encoder.scope_states();
    assert_eq!(states[1].policy, PolicyState::new("Quantile", []));
    assert_eq!(
        states.iter().map(|state| state.last).collect::<Vec<_>>(),
        [None, None]
    );
}
