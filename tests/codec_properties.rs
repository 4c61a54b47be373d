//! What holds of the codec for any data: every path gives the bits of a plain model, nothing is lost, any bytes can be
//! decoded.

use gradring::codec::policy::{LastStep, Magnitude, PolicyInput, Quantile, ThresholdPolicy};
use gradring::codec::{
    Apply, BLOCK, Budget, CHUNK, ChunkOptions, Clip, EncodeError, Encoded, Format, Path, Record,
    Unit, canon, cut8, payload_len,
};
use proptest::prelude::*;

fn paths() -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(|path| path.is_available())
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn laplace(&mut self, scale: f64) -> f32 {
        let size = (-self.unit().ln() * scale) as f32;
        if self.next() & 1 == 0 { size } else { -size }
    }
}

/// What the numbers of a vector are like.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// About the threshold: hits at this density.
    Ordinary(f64),
    /// Any 32 bits.
    AnyBits,
    /// The numbers at which something changes.
    Edges,
    /// Ordinary, with an edge now and then.
    Mixed,
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        (0f64..5.0).prop_map(|x| Kind::Ordinary(10f64.powf(-x))),
        Just(Kind::AnyBits),
        Just(Kind::Edges),
        Just(Kind::Mixed),
    ]
}

fn edge(random: &mut Random, unit: Unit) -> f32 {
    let [t, v, least] = [unit.t(), unit.v(), f32::MIN_POSITIVE];
    let edges = [
        0.0,
        1e-45,
        least,
        f32::from_bits(least.to_bits() - 1),
        1.5 * least,
        2f32.powi(-102),
        2f32.powi(-101),
        t,
        f32::from_bits(t.to_bits() - 1),
        f32::from_bits(t.to_bits() + 1),
        0.5 * t,
        v,
        65536.0 * v,
        f32::from_bits((65536.0 * v).to_bits() - 1),
        65537.0 * v,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let x = edges[random.below(edges.len() as u64) as usize];
    if random.next() & 1 == 0 { x } else { -x }
}

fn vector(random: &mut Random, length: usize, kind: Kind, unit: Unit) -> Vec<f32> {
    let scale = |density: f64| f64::from(unit.t()) / -density.clamp(1e-6, 0.9).ln();
    (0..length)
        .map(|_| match kind {
            Kind::Ordinary(density) => random.laplace(scale(density)),
            Kind::AnyBits => f32::from_bits(random.next() as u32),
            Kind::Edges => edge(random, unit),
            Kind::Mixed if random.below(300) == 0 => edge(random, unit),
            Kind::Mixed => random.laplace(scale(1e-2)),
        })
        .collect()
}

/// A vector as a residual may be: canonical and finite.
fn residual(random: &mut Random, length: usize, kind: Kind, unit: Unit) -> Vec<f32> {
    let canonical = |x: f32| if x.is_finite() { canon(x) } else { 0.0 };
    vector(random, length, kind, unit)
        .into_iter()
        .map(canonical)
        .collect()
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0usize..200,
        4 => 200usize..9000,
        2 => prop::sample::select(vec![4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 33]),
        1 => prop::sample::select(vec![2 * BLOCK + 17, CHUNK - 1, CHUNK]),
    ]
}

fn units() -> impl Strategy<Value = Unit> {
    let exponents = prop_oneof![4 => -20i32..5, 1 => Just(-100), 1 => Just(-99), 1 => 90i32..98];
    (exponents, 0u32..128, 0f32..1.0).prop_map(|(exponent, digits, more)| {
        let t = 2f32.powi(exponent) * (1.0 + digits as f32 / 128.0);
        Unit::new(t, cut8(t * (1.0 + more)).max(t)).expect("in range by construction")
    })
}

fn options(length: usize, seed: u64) -> ChunkOptions {
    let mut random = Random(seed ^ 0xabcd);
    let clip = match random.below(4) {
        0 => Some(Clip::new(2.0).unwrap()),
        1 => Some(Clip::new(2.0 + 30.0 * random.unit() as f32).unwrap()),
        _ => None,
    };
    let budget = match random.below(5) {
        0 => Some(random.below(length as u64 + 2)),
        1 => Some(random.below(length as u64 / 64 + 2)),
        2 => Some(0),
        _ => None,
    };
    let start = random.below(3 * length as u64 + 1) as usize;
    ChunkOptions {
        clip,
        budget: budget.map(|max_hits| Budget {
            max_hits: max_hits as usize,
            start,
        }),
    }
}

/// What one encode leaves and says.
#[derive(Debug)]
struct Outcome {
    hits: Vec<(usize, bool)>,
    residual: Vec<f32>,
    clipped: f64,
    dropped: u32,
}

/// The rules of the codec, one element at a time.
fn model(residual: &[f32], update: &[f32], unit: Unit, options: &ChunkOptions) -> Outcome {
    let (mut after, n, mut dropped) = (residual.to_vec(), residual.len(), 0);
    for (r, &u) in after.iter_mut().zip(update) {
        let sum = *r + canon(u);
        if u.is_finite() && sum.is_finite() {
            *r = canon(sum);
        } else {
            dropped += 1;
        }
    }
    let start = options.budget.map_or(0, |budget| budget.start);
    let order = (0..n).map(|k| (start + k) % n);
    let mut chosen: Vec<usize> = order.filter(|&i| after[i].abs() >= unit.t()).collect();
    chosen.truncate(options.budget.map_or(n, |budget| budget.max_hits));
    chosen.sort_unstable();
    let mut hits = Vec::new();
    for i in chosen {
        let negative = after[i] < 0.0;
        hits.push((i, negative));
        after[i] = canon(if negative {
            after[i] + unit.v()
        } else {
            after[i] - unit.v()
        });
    }
    let mut clipped = 0.0;
    if let Some(clip) = options.clip {
        let bound = clip.multiple() * unit.t();
        for r in &mut after {
            let kept = r.clamp(-bound, bound);
            clipped += (f64::from(*r) - f64::from(kept)).abs();
            *r = kept;
        }
    }
    Outcome {
        hits,
        residual: after,
        clipped,
        dropped,
    }
}

/// The payload of these hits, made by hand.
fn payload(format: Format, elements: usize, hits: &[(usize, bool)]) -> Vec<u8> {
    match format {
        Format::Sparse => {
            let blocks = elements.div_ceil(BLOCK);
            let count = |block| hits.iter().filter(|(i, _)| i / BLOCK == block).count() as u16;
            let code =
                |&(i, negative): &(usize, bool)| (i % BLOCK) as u16 | u16::from(negative) << 15;
            let halves = (0..blocks).map(count).chain(hits.iter().map(code));
            halves.flat_map(u16::to_le_bytes).collect()
        }
        Format::Bitmap => {
            let mut bytes = vec![0u8; 4 * elements.div_ceil(16)];
            for &(i, negative) in hits {
                bytes[i / 4] |= if negative { 2 } else { 1 } << (2 * (i % 4));
            }
            bytes
        }
        Format::DenseF32 | Format::DenseBf16 => panic!("{format} has no hits"),
    }
}

fn smaller(elements: usize, hits: usize) -> Format {
    let length = |format| payload_len(format, elements, hits).expect("a possible record");
    if length(Format::Sparse) <= length(Format::Bitmap) {
        Format::Sparse
    } else {
        Format::Bitmap
    }
}

fn same(a: &Encoded, b: &Encoded) -> bool {
    (a.format, a.hits, a.dropped) == (b.format, b.hits, b.dropped)
        && a.clipped.to_bits() == b.clipped.to_bits()
        && a.residual_max.to_bits() == b.residual_max.to_bits()
        && a.residual_l1.to_bits() == b.residual_l1.to_bits()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_path_encodes_any_data_to_the_models_bits(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_residual, of_update) in (kinds(), kinds()),
    ) {
        let random = &mut Random(seed);
        let before = residual(random, length, of_residual, unit);
        let update = vector(random, length, of_update, unit);
        let options = options(length, seed);
        let expected = model(&before, &update, unit, &options);
        let format = smaller(length, expected.hits.len());
        let expected_payload = payload(format, length, &expected.hits);

        let mut first: Option<Encoded> = None;
        for path in paths() {
            let mut after = before.clone();
            let mut out = vec![7];
            let sent = path.encode(&mut after, &update, unit, &options, &mut out).unwrap();
            prop_assert_eq!(sent.format, format, "on {}", path);
            prop_assert!(out[0] == 7 && out[1..] == expected_payload, "payload on {}", path);
            let differs = bits(&after).iter().zip(bits(&expected.residual)).position(|(a, b)| *a != b);
            prop_assert_eq!(differs, None, "residual on {}", path);
            prop_assert_eq!(sent.hits as usize, expected.hits.len());
            prop_assert_eq!(sent.dropped, expected.dropped, "on {}", path);
            let error = (sent.clipped - expected.clipped).abs();
            prop_assert!(error <= 1e-12 * expected.clipped, "clipped {} on {}", sent.clipped, path);
            prop_assert!(same(first.get_or_insert(sent), &sent), "{:?} and {:?}", first, sent);

            let largest = expected.residual.iter().fold(0f32, |most, r| most.max(r.abs()));
            prop_assert!(sent.residual_max <= largest);
            if length <= 1024 {
                let l1: f64 = expected.residual.iter().map(|r| f64::from(r.abs())).sum();
                prop_assert_eq!(sent.residual_max, largest);
                prop_assert!((sent.residual_l1 - l1).abs() <= 1e-5 * l1 || !l1.is_finite() || l1 > 1e37);
            }
        }
    }

    #[test]
    fn what_is_sent_and_what_stays_is_what_came(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_residual, of_update) in (kinds(), kinds()),
    ) {
        let random = &mut Random(seed);
        let before = residual(random, length, of_residual, unit);
        let update = vector(random, length, of_update, unit);
        for path in paths() {
            let (mut after, mut out) = (before.clone(), Vec::new());
            let options = ChunkOptions { clip: None, ..options(length, seed) };
            let sent = path.encode(&mut after, &update, unit, &options, &mut out).unwrap();
            let record = Record { format: sent.format, hits: sent.hits, elements: length, payload: &out };
            let mut message = vec![0.0; length];
            path.apply(&record, unit.v(), Apply::Add, &mut message).unwrap();
            for i in 0..length {
                let sum = before[i] + canon(update[i]);
                let s = f64::from(if sum.is_finite() { canon(sum) } else { before[i] });
                let (m, r) = (f64::from(message[i]), f64::from(after[i]));
                if s.abs() < 65536.0 * f64::from(unit.v()) {
                    prop_assert!(r + m == s, "element {}: {} + {} is not {}", i, r, m, s);
                } else {
                    // s - r is exact: they are close. Half a unit in the last place of s.
                    let ulp = 2f64.powi(s.abs().log2().floor() as i32 - 23);
                    prop_assert!((s - r - m).abs() <= ulp / 2.0, "element {}: {} + {} of {}", i, r, m, s);
                }
            }
        }
    }

    #[test]
    fn every_path_applies_either_format_to_any_target(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        density in (0f64..4.0).prop_map(|x| 10f64.powf(-x)),
        inverse in prop_oneof![Just(1.0f32), Just(0.5), Just(1.0 / 3.0), Just(1e-30)],
    ) {
        let random = &mut Random(seed);
        let hits: Vec<(usize, bool)> = (0..length)
            .filter(|_| random.unit() < density)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|i| (i, random.next() & 1 == 1))
            .collect();
        let x = canon(unit.v() * inverse);
        let kind = if seed % 2 == 0 { Kind::Mixed } else { Kind::AnyBits };
        let target = vector(random, length, kind, unit);
        for how in [Apply::Subtract, Apply::Add] {
            let mut expected = target.clone();
            let mut not_finite = 0;
            for &(i, negative) in &hits {
                let x = if negative { -x } else { x };
                let p = expected[i];
                expected[i] = match how {
                    _ if !p.is_finite() => p,
                    Apply::Subtract => canon(canon(p) - x),
                    Apply::Add => canon(canon(p) + x),
                };
                not_finite += u32::from(!p.is_finite());
            }
            for (path, format) in paths().flat_map(|p| [(p, Format::Sparse), (p, Format::Bitmap)]) {
                let payload = payload(format, length, &hits);
                let hits = hits.len() as u32;
                let record = Record { format, hits, elements: length, payload: &payload };
                let mut after = target.clone();
                let applied = path.apply(&record, x, how, &mut after).unwrap();
                prop_assert!(bits(&after) == bits(&expected), "{:?} of {} on {}", how, format, path);
                prop_assert_eq!(applied.not_finite, not_finite);
            }
        }
    }

    #[test]
    fn any_bytes_decode_to_an_error_or_to_what_they_say(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (format, changes) in (prop::sample::select(vec![Format::Sparse, Format::Bitmap]), 0usize..4),
        fresh in any::<bool>(),
    ) {
        let random = &mut Random(seed);
        let chosen: Vec<usize> = (0..length).filter(|_| random.below(9) == 0).collect();
        let hits: Vec<(usize, bool)> =
            chosen.into_iter().map(|i| (i, random.next() & 1 == 1)).collect();
        let mut bytes = payload(format, length, &hits);
        let (mut count, mut elements) = (hits.len() as u32, length);
        if fresh {
            bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
        }
        for _ in 0..changes {
            let at = random.below(bytes.len().max(1) as u64) as usize;
            match random.below(12) {
                0 => count = random.next() as u32,
                1 => count = count.wrapping_add(random.below(3) as u32).wrapping_sub(1),
                2 => elements = random.below(2 * CHUNK as u64) as usize,
                3 => bytes.truncate(at),
                4 => bytes.push(random.next() as u8),
                _ => if let Some(byte) = bytes.get_mut(at) { *byte ^= 1 << random.below(8) },
            }
        }
        let record = Record { format, hits: count, elements, payload: &bytes };
        let target = vector(random, elements, Kind::Mixed, unit);
        let mut outcomes = paths().map(|path| {
            let mut after = target.clone();
            let outcome = path.apply(&record, unit.v(), Apply::Add, &mut after);
            (outcome, bits(&after))
        });
        let first = outcomes.next().expect("there is always the scalar path");
        if first.0.is_err() {
            prop_assert!(first.1 == bits(&target), "an error applies nothing");
        } else {
            prop_assert_eq!(Some(bytes.len()), payload_len(format, elements, count as usize));
            let touched = first.1.iter().zip(&target).filter(|(a, b)| **a != b.to_bits()).count();
            prop_assert!(touched <= count as usize);
        }
        for other in outcomes {
            prop_assert!(other == first, "{:?} and {:?}", other.0, first.0);
        }
    }

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

#[test]
fn nothing_at_all_is_lost_where_every_number_is_a_multiple_of_one() {
    let quantum = 2f64.powi(-20);
    for path in paths() {
        let mut random = Random(11);
        let n = 3 * BLOCK + 77;
        let mut dyadic = |most: u64| {
            let mut one = || (random.below(2 * most + 1) as f64 - most as f64) * quantum;
            (0..n).map(|_| one() as f32).collect::<Vec<f32>>()
        };
        let mut residual = dyadic(1 << 10);
        // Exact as long as all sums are below 2^53 quanta.
        let mut balance: Vec<f64> = residual.iter().map(|&r| f64::from(r)).collect();
        let mut out = Vec::new();
        for step in 0..40 {
            let update = dyadic(1 << 12);
            let t = 8 + step % 5;
            let [t, v] = [t, t + step % 7].map(|quanta| quanta as f32 / 4096.0);
            let unit = Unit::new(t, v).unwrap();
            let budget = (step % 3 == 1).then_some(Budget {
                max_hits: 5000,
                start: 991 * step,
            });
            let options = ChunkOptions { budget, clip: None };
            out.clear();
            let sent = path
                .encode(&mut residual, &update, unit, &options, &mut out)
                .unwrap();
            assert_eq!(sent.dropped, 0);
            let record = Record {
                format: sent.format,
                hits: sent.hits,
                elements: n,
                payload: &out,
            };
            let mut message = vec![0.0; n];
            path.apply(&record, unit.v(), Apply::Add, &mut message)
                .unwrap();
            for i in 0..n {
                balance[i] += f64::from(update[i]) - f64::from(message[i]);
            }
        }
        assert!(
            balance
                .iter()
                .zip(&residual)
                .all(|(&balance, &r)| balance == f64::from(r)),
            "on {path}"
        );
    }
}

#[test]
fn a_payload_buffer_grows_once() {
    for path in paths() {
        let mut random = Random(5);
        let mut out = Vec::new();
        let unit = Unit::new(1.0, 1.0).unwrap();
        let mut seen = None;
        for step in 0..12 {
            let density = [1e-4, 0.9, 0.12, 0.13][step % 4];
            let update = vector(&mut random, CHUNK, Kind::Ordinary(density), unit);
            let mut residual = vec![0.0; CHUNK];
            let budget = (step % 2 == 0).then_some(Budget {
                max_hits: 1000,
                start: step,
            });
            out.clear();
            path.encode(
                &mut residual,
                &update,
                unit,
                &ChunkOptions { clip: None, budget },
                &mut out,
            )
            .unwrap();
            let now = (out.as_ptr(), out.capacity());
            assert_eq!(*seen.get_or_insert(now), now, "on {path}, step {step}");
        }
    }
}

#[test]
fn lengths_that_cannot_be_encoded_are_errors_and_change_nothing() {
    let unit = Unit::new(1.0, 1.0).unwrap();
    let options = ChunkOptions::default();
    for path in paths() {
        let mut out = vec![1, 2];
        let mut residual = vec![2.0; 5];
        let error = path.encode(&mut residual, &[3.0; 4], unit, &options, &mut out);
        assert_eq!(
            error.unwrap_err(),
            EncodeError::Lengths {
                expected: 5,
                found: 4
            }
        );
        let mut long = vec![2.0; CHUNK + 1];
        let error = path.encode(&mut long, &vec![3.0; CHUNK + 1], unit, &options, &mut out);
        assert_eq!(
            error.unwrap_err(),
            EncodeError::TooLong { found: CHUNK + 1 }
        );
        let error = path.magnitudes(&residual, &[3.0; 4], 1, 0, &mut Vec::new());
        assert_eq!(
            error.unwrap_err(),
            EncodeError::Lengths {
                expected: 5,
                found: 4
            }
        );
        assert_eq!((out, residual), (vec![1, 2], vec![2.0; 5]));
        assert!(long.iter().all(|&r| r == 2.0));
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
