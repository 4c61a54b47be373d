//! Exact sums: the bits that mathematics says, for any order and any number of replicas.

use crate::world::{Setup, World};
use gradring::Replica;
use serde_json::Value;

/// The addends and the bits of their sum; `None` for NaN.
fn cases() -> Vec<(String, Vec<f64>, Option<u64>)> {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../data/sums.json")).expect("the data is in order");
    let bits = |text: &Value| u64::from_str_radix(text.as_str()?, 16).ok();
    let one = |case: &Value| -> Option<_> {
        let values = case["values"].as_array()?.iter();
        let values: Option<Vec<f64>> = values.map(|x| bits(x).map(f64::from_bits)).collect();
        Some((
            case["name"].as_str()?.to_owned(),
            values?,
            bits(&case["sum"]),
        ))
    };
    let cases: Vec<_> = cases
        .iter()
        .map(|case| one(case).expect("a case"))
        .collect();
    assert_eq!(cases.len(), 16);
    cases
}

/// Shuffles, the same for each seed.
fn shuffle(values: &mut [f64], seed: u64) {
    let mut state = seed;
    for i in (1..values.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        values.swap(i, (state >> 33) as usize % (i + 1));
    }
}

pub(crate) fn replica(seed: &str, replica: &Replica) {
    let seed: u64 = seed.parse().expect("a number");
    let mut a = replica.accumulator("sums").expect("is new");
    let cases = cases();
    for (name, values, _) in &cases {
        let mut values = values.clone();
        shuffle(&mut values, seed);
        let sum = a.sum(name).expect("has room");
        let all = a.sums("all", cases.len()).expect("has room");
        let at = cases.iter().position(|(other, ..)| other == name);
        sum.add(0.0).expect("adds");
        for x in values
            .iter()
            .skip(replica.rank())
            .step_by(replica.world_size())
        {
            sum.add(*x).expect("adds");
            all.add_at(at.expect("a case"), *x).expect("adds");
        }
    }
    let all = a.synchronized().expect("all come");
    let vector = all.sums("all").expect("is there");
    for (at, (name, _, expected)) in cases.iter().enumerate() {
        let expected = expected.unwrap_or(0x7ff8_0000_0000_0000);
        let found = all.sum(name).expect("is there");
        assert_eq!(found.to_bits(), expected, "{name}: {found:e}");
        assert_eq!(vector[at].to_bits(), expected, "{name} in a vector");
    }
}

#[test]
fn sums_are_the_same_bits_for_one_to_eight_replicas_in_any_order() {
    for world_size in 1..=8 {
        for seed in [1, 2, 3] {
            World::start(&format!("exact {}", seed * 100 + world_size), world_size).succeed();
        }
    }
}

#[test]
fn sums_do_not_need_a_processor_for_each_replica() {
    let setup = Setup {
        cores: 1,
        ..Setup::default()
    };
    World::with("exact 7", 3, &setup).succeed();
}
