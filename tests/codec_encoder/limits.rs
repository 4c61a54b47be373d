//! Limits: exactly as many hits, wherever they end, and a turn for everybody.

use super::config::{Coding, Config, Policy, Post};
use super::model::Model;
use super::plain::{Kind, Random, first_difference, paths, vector};
use super::step;
use gradring::codec::policy::{Fixed, Magnitude};
use gradring::codec::{CHUNK, Encoder, NamedRange, Unit};

fn config(ranges: Vec<(usize, Coding)>, policy: Policy) -> Config {
    Config {
        ranges,
        policy,
        post: Post::None,
        memory: None,
        first: 0,
    }
}

#[test]
fn each_scope_sends_exactly_its_limit_or_all_its_hits() {
    let fixed = |limit| Policy::Fixed(0.25, Some(limit), Magnitude::Threshold);
    let mut random = Random(51);
    let (mut bound, mut free) = (0, 0);
    for limit in [0, 1, 2, 63, 64, 500, 1999, 5000, usize::MAX - 1, usize::MAX] {
        let ranges = vec![
            (1000, Coding::Shared),
            (700, Coding::Own(fixed(limit / 3))),
            (0, Coding::Shared),
            (900, Coding::Shared),
            (33, Coding::Own(fixed(1))),
            (1500, Coding::Shared),
        ];
        let config = config(ranges, fixed(limit));
        let limits = [limit, limit / 3, 1];
        for threads in 1..=4 {
            let mut model = Model::new(&config);
            let mut encoder = config.builder().threads(threads).build().unwrap();
            for number in 0..12 {
                let density = [0.001, 0.02, 0.5, 0.9][number as usize % 4];
                let unit = Unit::nearest(0.25, 0.25);
                let update = vector(
                    &mut random,
                    config.elements(),
                    Kind::Ordinary(density),
                    unit,
                );
                let expected = model.step(number, &update);
                step(&mut encoder, number, (&update).into());
                for ((scope, limit), (.., unlimited)) in
                    encoder.scopes().zip(limits).zip(&expected.scopes)
                {
                    assert_eq!(scope.hits as usize, limit.min(*unlimited), "limit {limit}");
                    bound += u32::from(*unlimited > limit);
                    free += u32::from(*unlimited <= limit);
                }
                assert_eq!(encoder.hits(), expected.hits);
            }
        }
    }
    assert!(bound > 100 && free > 100);
}

#[test]
fn a_limit_that_ends_inside_a_batch_puts_every_number_back_as_it_was() {
    // Eight chunks of hits, most of them past 2^16 units, where what a hit leaves does not say what it was.
    let ranges = vec![(257, Coding::Shared); 8];
    for limit in [0, 1, 256, 257, 258, 600, 1100, 8 * 257 - 1, 8 * 257] {
        let policy = Policy::Fixed(0.0078125, Some(limit), Magnitude::Threshold);
        let config = config(ranges.clone(), policy);
        let mut random = Random(limit as u64);
        let mut numbers = || -> Vec<f32> {
            let mut one = || random.laplace(1e4) + if random.coin() { 1000.0 } else { -1000.0 };
            (0..config.elements()).map(|_| one()).collect()
        };
        let updates: Vec<Vec<f32>> = (0..6).map(|_| numbers()).collect();
        for (path, threads) in paths().flat_map(|path| [1, 2, 3, 4, 8, 64].map(|n| (path, n))) {
            let mut model = Model::new(&config);
            let mut encoder = config
                .builder()
                .path(path)
                .threads(threads)
                .build()
                .unwrap();
            for (number, update) in (0..).zip(&updates) {
                let expected = model.step(number, update);
                step(&mut encoder, number, update.into());
                let differs = first_difference(encoder.residual(), &model.residual);
                assert_eq!(differs, None, "limit {limit}, {threads} threads on {path}");
                assert_eq!(encoder.hits(), expected.hits);
                assert_eq!(encoder.hits().len(), limit);
            }
        }
    }
}

/// How often each element was sent in so many steps, when all want to be in each.
fn turns(ranges: &[usize], limit: usize, steps: u64) -> Vec<u32> {
    let elements = ranges.iter().sum();
    let named = |(at, length): (usize, &usize)| NamedRange::compressed(format!("{at}"), *length);
    let mut encoder = Encoder::builder(elements)
        .ranges(ranges.iter().enumerate().map(named))
        .policy(Fixed::new(1.0).unwrap().with_limit(limit))
        .keep_hits(true)
        .build()
        .unwrap();
    let update = vec![1.0; elements];
    let mut turns = vec![0; elements];
    for number in 0..steps {
        step(&mut encoder, number, (&update).into());
        assert_eq!(encoder.hits().len(), limit);
        for &element in encoder.hits() {
            turns[element] += 1;
        }
    }
    turns
}

#[test]
fn nobody_starves_under_a_limit() {
    for (ranges, limit, rounds) in [
        // One chunk; several; of sizes that go into powers of two, and of sizes far apart.
        (vec![1000], 100, 40),
        (vec![500; 4], 100, 40),
        (vec![512; 8], 64, 20),
        (vec![4096, 64, 1, 2000], 300, 40),
        (vec![500; 13], 1700, 40),
        (vec![CHUNK, 1 << 15], 40_000, 5),
    ] {
        let elements: usize = ranges.iter().sum();
        let steps = (rounds * elements).div_ceil(limit) as u64;
        let turns = turns(&ranges, limit, steps);
        let least = turns.iter().min().unwrap();
        assert!(
            *least > 0,
            "{ranges:?}: {limit} hits in each of {steps} steps"
        );
        // Whoever waits longest waits for a few rounds, not for ever: chunks get their turn by number, not by size.
        let longest = ranges.iter().max().unwrap() * ranges.len();
        let expected = (steps * limit as u64) as f64 / longest.max(elements) as f64;
        let starved = turns
            .iter()
            .filter(|&&turns| f64::from(turns) < expected / 4.0)
            .count();
        assert!(
            starved * 50 <= elements,
            "{starved} of {elements} in {ranges:?} come far less often than {expected} times"
        );
    }
}
