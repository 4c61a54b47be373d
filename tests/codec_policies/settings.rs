//! What policies can be told.

use super::{first_unit, hits, input};
use gradring::codec::policy::{
    Adaptive, Fixed, LastStep, Magnitude, PolicyError, PolicyInput, Quantile, TargetDensity,
    ThresholdPolicy,
};
use gradring::codec::{Unit, cut8};

#[test]
fn numbers_that_make_no_policy_are_refused() {
    let nan = f64::NAN;
    for (least, most) in [
        (0.0, 0.1),
        (-0.1, 0.1),
        (0.1, 0.01),
        (0.1, 1.1),
        (0.1, f64::INFINITY),
    ] {
        let refused = Some(PolicyError::Band { least, most });
        assert_eq!(Adaptive::new(least, most).err(), refused);
    }
    assert!(Adaptive::new(nan, 0.1).is_err() && Adaptive::new(0.1, nan).is_err());
    assert!(Adaptive::new(1e-2, 1e-2).is_ok() && Adaptive::new(1e-9, 1.0).is_ok());

    for found in [0.0, -0.1, 1.0, 2.0, f64::INFINITY] {
        let refused = Some(PolicyError::Target { found });
        assert_eq!(TargetDensity::new(found).err(), refused);
    }
    assert!(TargetDensity::new(nan).is_err());
    assert!(TargetDensity::new(0.0625).is_ok() && TargetDensity::new(0.99).is_ok());

    for found in [0.0, -1.0, 2f64.powi(-101), 2f64.powi(99), f64::INFINITY] {
        let refused = Some(PolicyError::Initial { found });
        assert_eq!(Adaptive::default().starting_at(found).err(), refused);
        assert_eq!(TargetDensity::default().starting_at(found).err(), refused);
    }
    assert!(Adaptive::default().starting_at(nan).is_err());

    for found in [0.0, 0.49, 1.0, 1.1, -0.9] {
        let refused = Some(PolicyError::Decay { found });
        assert_eq!(Adaptive::default().with_decay(found).err(), refused);
        assert_eq!(TargetDensity::default().with_decay(found).err(), refused);
    }
    assert!(Adaptive::default().with_decay(nan).is_err());
    assert!(Adaptive::default().with_decay(0.5).is_ok());

    for found in [0.0, -1.0, 1e38, f32::INFINITY] {
        let refused = Some(PolicyError::Threshold { found });
        assert_eq!(Adaptive::default().with_floor(found).err(), refused);
        assert_eq!(Adaptive::default().with_ceiling(found).err(), refused);
        assert_eq!(TargetDensity::default().with_floor(found).err(), refused);
        assert_eq!(Quantile::default().with_floor(found).err(), refused);
    }
    assert!(Adaptive::default().with_floor(f32::NAN).is_err());
    assert!(Adaptive::default().with_ceiling(f32::NAN).is_err());

    let bounded = Adaptive::default().with_ceiling(1.0).unwrap();
    let refused = Some(PolicyError::Bounds {
        floor: 2.0,
        ceiling: 1.0,
    });
    assert_eq!(bounded.clone().with_floor(2.0).err(), refused);
    let point = bounded.with_floor(1.0).unwrap();
    assert!(point.with_ceiling(0.5).is_err());
}

#[test]
fn a_refusal_says_what_was_found_and_what_was_expected() {
    let text = Adaptive::new(0.5, 0.1).unwrap_err().to_string();
    assert!(text.contains("0.5 to 0.1"), "{text}");
    let text = TargetDensity::new(1.5).unwrap_err().to_string();
    assert!(text.contains("1.5") && text.contains("below 1"), "{text}");
}

#[test]
fn every_policy_takes_a_limit() {
    let limits: [Box<dyn ThresholdPolicy>; 4] = [
        Box::new(Fixed::new(1.0).unwrap().with_limit(9)),
        Box::new(Quantile::default().with_limit(9)),
        Box::new(Adaptive::default().with_limit(9)),
        Box::new(TargetDensity::default().with_limit(9)),
    ];
    assert!(limits.iter().all(|p| p.limit(1 << 20, 3) == Some(9)));
    let none: [Box<dyn ThresholdPolicy>; 4] = [
        Box::new(Fixed::new(1.0).unwrap().with_limit(9).without_limit()),
        Box::new(Quantile::default().without_limit()),
        Box::new(Adaptive::default()),
        Box::new(TargetDensity::default()),
    ];
    assert!(none.iter().all(|p| p.limit(1 << 20, 3).is_none()));
}

#[test]
fn without_a_sample_a_hit_sends_the_mean_of_the_step_before() {
    let mean = |mean| {
        Some(LastStep {
            unit: Unit::new(1.0, 1.0).unwrap(),
            hits: 100,
            density: 1e-2,
            mean,
        })
    };
    let with = Magnitude::Mean;
    let mut policies: [Box<dyn ThresholdPolicy>; 3] = [
        Box::new(Fixed::new(1.0).unwrap().with_magnitude(with)),
        Box::new(
            Adaptive::default()
                .starting_at(1.0)
                .unwrap()
                .with_magnitude(with),
        ),
        Box::new(
            TargetDensity::new(1e-2)
                .unwrap()
                .starting_at(1.0)
                .unwrap()
                .with_magnitude(with),
        ),
    ];
    for policy in &mut policies {
        let mut v = |last| {
            let unit = policy.unit(&input(10_000, last));
            assert_eq!(unit.t(), 1.0);
            unit.v()
        };
        assert_eq!(v(None), 1.0);
        assert_eq!(v(mean(Some(1.234))), cut8(1.234));
        assert_eq!(v(mean(Some(7.0))), 2.0);
        assert_eq!(v(mean(Some(0.5))), 1.0);
        assert_eq!(v(mean(None)), 1.0);
        assert_eq!(v(mean(Some(f64::NAN))), 1.0);
    }
}

#[test]
fn thresholds_stay_between_floor_and_ceiling_whatever_comes() {
    let bounded: [Box<dyn ThresholdPolicy>; 2] = [
        Box::new(
            Adaptive::default()
                .with_floor(1e-5)
                .unwrap()
                .with_ceiling(10.0)
                .unwrap(),
        ),
        Box::new(
            TargetDensity::dl4j()
                .with_floor(1e-5)
                .unwrap()
                .with_ceiling(10.0)
                .unwrap(),
        ),
    ];
    for mut policy in bounded {
        assert!(first_unit(policy.as_mut(), &[1.0; 1000]).t() >= cut8(1e-5));
        // Dead gradients, then everything a hit.
        for (count, bound) in [(0, cut8(1e-5)), (1000, 10.0)] {
            for _ in 0..1000 {
                let t = policy.unit(&input(1000, hits(count))).t();
                assert!((cut8(1e-5)..=10.0).contains(&t), "{t}");
            }
            assert_eq!(policy.unit(&input(1000, hits(count))).t(), bound);
        }
    }
    // A start outside is brought inside.
    let policy = Adaptive::default().with_floor(1.0).unwrap();
    let unit = policy.starting_at(1e-6).unwrap().unit(&input(10, None));
    assert_eq!(unit.t(), 1.0);

    // Without bounds it ends at those of the arithmetic, and stays a number.
    let mut policy = Adaptive::default().starting_at(1e-3).unwrap();
    for (count, bound) in [(0, Unit::LEAST), (1000, Unit::MOST)] {
        for _ in 0..6000 {
            policy.unit(&input(1000, hits(count)));
        }
        assert_eq!(policy.unit(&input(1000, hits(count))).t(), bound);
    }
}

#[test]
fn an_update_of_zeros_is_no_first_threshold() {
    for magnitude in [Magnitude::Threshold, Magnitude::Mean] {
        let policy = Adaptive::default().with_magnitude(magnitude);
        let mut policy = policy.with_floor(0.5).unwrap();
        for _ in 0..3 {
            let dead = first_unit(&mut policy, &[0.0; 1000]);
            assert_eq!((dead.t(), dead.v()), (0.5, 0.5));
            assert_eq!((policy.threshold(), policy.density()), (None, None));
            assert_eq!(policy.sample_size(1000, 1), 1000);
        }
        let sample = [3.0; 1000];
        let unit = policy.unit(&PolicyInput {
            sample: &sample,
            ..input(1000, hits(0))
        });
        assert_eq!(unit, Unit::new(3.0, 3.0).unwrap());
        assert_eq!(policy.threshold(), Some(3.0));
    }
}

#[test]
fn steps_up_and_down_cancel_out_though_every_unit_is_cut() {
    let mut policy = TargetDensity::new(0.1).unwrap().starting_at(0.01).unwrap();
    policy.unit(&input(1000, None));
    for _ in 0..500 {
        policy.unit(&input(1000, hits(500)));
        policy.unit(&input(1000, hits(5)));
    }
    let t = policy.threshold().unwrap();
    assert!((t / 0.01 - 1.0).abs() < 1e-12, "{t}");
}

#[test]
fn a_step_that_its_limit_cut_short_counts_as_too_dense() {
    let policy = Adaptive::default().with_limit(20);
    let mut policy = policy.starting_at(1.0).unwrap();
    policy.unit(&input(1_000_000, None));
    // 19 hits are below the band of 100 and more; 20 may have been any number.
    policy.unit(&input(1_000_000, hits(20)));
    let up = policy.threshold().unwrap();
    assert!(up > 1.0);
    assert_eq!(policy.density(), Some(1.0));
    policy.unit(&input(1_000_000, hits(19)));
    assert!(policy.threshold().unwrap() < up);
}
