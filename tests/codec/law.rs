//! Nothing is lost: what is sent and what stays is what came, but for roundings that can be named, in exact arithmetic.

use super::exact::Exact;
use super::plain::{Kind, Random, kinds, lengths, options, paths, residual, units, vector};
use gradring::codec::policy::{Fixed, Quantile};
use gradring::codec::{
    Apply, BLOCK, CHUNK, ChunkOptions, Clipping, Dense, Encoder, Format, Message, NamedRange, Path,
    Record, Unit, canon,
};
use proptest::prelude::*;

/// The least number that is no subnormal, which bounds what `canon` can take.
fn least() -> Exact {
    Exact::of(f32::MIN_POSITIVE)
}

/// Half a unit in the last place of `s`.
fn half_ulp(s: f32) -> Exact {
    // 2 to the exponent of s, less 24.
    let power = f32::from_bits(s.to_bits() & 0x7f80_0000);
    Exact::of(power / 16_777_216.0)
}

/// `s` as the rules have it, and what may be lost on the way there: the rounding of `r + u` and what `canon` takes.
/// `None`: the element of the update is dropped.
fn accumulate(r: f32, u: f32) -> Option<(f32, Exact)> {
    let mut allowed = Exact::default();
    if u != 0.0 && canon(u) == 0.0 {
        allowed += least();
    }
    let u = canon(u);
    let sum = r + u;
    if !sum.is_finite() {
        return None;
    }
    allowed += (Exact::of(r) + Exact::of(u) - Exact::of(sum)).abs();
    if sum != 0.0 && canon(sum) == 0.0 {
        allowed += least();
    }
    Some((canon(sum), allowed))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

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
                let s = accumulate(before[i], update[i]).map_or(before[i], |(s, _)| s);
                let (m, r) = (message[i], after[i]);
                let lost = (Exact::of(r) + Exact::of(m) - Exact::of(s)).abs();
                let exact = m == 0.0 || s.abs() < 65536.0 * unit.v();
                prop_assert!(
                    if exact { lost.is_zero() } else { lost <= half_ulp(s) },
                    "element {}: {:e} + {:e} of {:e}", i, r, m, s
                );
            }
        }
    }

    #[test]
    fn a_dense_message_and_what_stays_is_what_came(
        (length, unit, seed) in (lengths(), units(), any::<u64>()),
        (of_residual, of_update) in (kinds(), kinds()),
        number in prop::sample::select(vec![Dense::F32, Dense::Bf16]),
    ) {
        let random = &mut Random(seed);
        let before = residual(random, length, of_residual, unit);
        let update = vector(random, length, of_update, unit);
        for path in paths() {
            let (mut after, mut out) = (before.clone(), Vec::new());
            let sent = path.encode_dense(&mut after, &update, number, &mut out).unwrap();
            let record = Record { format: sent.format, hits: 0, elements: length, payload: &out };
            let mut message = vec![0.0; length];
            path.apply(&record, 1.0, Apply::Add, &mut message).unwrap();
            for i in 0..length {
                let s = accumulate(before[i], update[i]).map_or(before[i], |(s, _)| s);
                let lost = (Exact::of(after[i]) + Exact::of(message[i]) - Exact::of(s)).abs();
                // A rest that is subnormal becomes 0.
                let most = if number == Dense::F32 { Exact::default() } else { least() };
                prop_assert!(lost.is_zero() || lost < most, "element {}", i);
                prop_assert!(number == Dense::Bf16 || after[i].to_bits() == 0);
                // 8 bits now, the rest later.
                prop_assert!(after[i].abs() <= s.abs() / 256.0 || s.abs() > 3.38e38);
            }
        }
    }
}

/// All steps of a run: by element what was sent and stays less what came, and what may be lost.
struct Ledger {
    balance: Vec<Exact>,
    allowed: Vec<Exact>,
    /// What clipping took, in all.
    clipped: Exact,
    formats: [bool; 5],
}

impl Ledger {
    fn of(encoder: &Encoder) -> Ledger {
        Ledger {
            balance: encoder.residual().iter().map(|&r| -Exact::of(r)).collect(),
            allowed: vec![Exact::default(); encoder.elements()],
            clipped: Exact::default(),
            formats: [false; 5],
        }
    }

    /// Makes a step and enters it. What a step must not lose is compared at once.
    fn step(&mut self, encoder: &mut Encoder, step: u64, update: &[f32], clips: bool) {
        let before = encoder.residual().to_vec();
        encoder.begin(step, update).unwrap();
        let mut messages = Vec::new();
        for visit in 0..encoder.chunks() {
            let message = encoder.encode(visit, update).unwrap();
            messages.push(self.read(encoder, message));
        }
        encoder.end().unwrap();
        self.enter(encoder, step, &before, update, messages, clips);
    }

    /// Makes a streamed step, its parts in any order, and enters it.
    fn stream(&mut self, encoder: &mut Encoder, step: u64, update: &[f32], random: &mut Random) {
        let before = encoder.residual().to_vec();
        let (mut parts, mut start) = (Vec::new(), 0);
        while start < update.len() {
            let end = update.len().min(start + random.below(3000) as usize);
            parts.insert(random.index(parts.len() + 1), start..end);
            start = end;
        }
        encoder.begin_streamed(step).unwrap();
        let (mut messages, mut complete) = (Vec::new(), Vec::new());
        for part in parts {
            let values = &update[part.clone()];
            encoder.push(part, values, &mut complete).unwrap();
            while random.coin() && !complete.is_empty() {
                let chunk = complete.swap_remove(random.index(complete.len()));
                let message = encoder.encode_complete(chunk).unwrap();
                messages.push(self.read(encoder, message));
            }
        }
        for chunk in complete {
            let message = encoder.encode_complete(chunk).unwrap();
            messages.push(self.read(encoder, message));
        }
        encoder.end().unwrap();
        self.enter(encoder, step, &before, update, messages, false);
    }

    /// What the encoder's last message says, element by element.
    fn read(&mut self, encoder: &Encoder, message: Message) -> (Message, Vec<f32>) {
        self.formats[message.format as usize] = true;
        let record = Record {
            format: message.format,
            hits: message.hits,
            elements: message.elements.len(),
            payload: encoder.payload(),
        };
        let mut sum = vec![0.0; record.elements];
        let x = message.unit.map_or(1.0, Unit::v);
        Path::Scalar
            .apply(&record, x, Apply::Add, &mut sum)
            .unwrap();
        (message, sum)
    }

    fn enter(
        &mut self,
        encoder: &Encoder,
        step: u64,
        before: &[f32],
        update: &[f32],
        messages: Vec<(Message, Vec<f32>)>,
        clips: bool,
    ) {
        let (mut covered, mut clipped) = (0, Exact::default());
        for (message, sum) in messages {
            covered += sum.len();
            for (i, m) in message.elements.zip(sum) {
                let u = update[i];
                let (s, lost) = match accumulate(before[i], u) {
                    Some((s, lost)) => {
                        self.balance[i] += -Exact::of(u);
                        (s, lost)
                    }
                    None => (before[i], Exact::default()),
                };
                let most = match message.unit {
                    Some(unit) if m != 0.0 && s.abs() >= 65536.0 * unit.v() => half_ulp(s),
                    None if message.format == Format::DenseBf16 => least(),
                    _ => Exact::default(),
                };
                // What a hit leaves, before it is clipped.
                let (left, r) = (canon(s - m), encoder.residual()[i]);
                let rounded = (Exact::of(left) + Exact::of(m) - Exact::of(s)).abs();
                let taken = (Exact::of(left) - Exact::of(r)).abs();
                assert!(
                    rounded <= most && (taken.is_zero() || clips && message.unit.is_some()),
                    "step {step}, element {i}: {r:e} + {m:e} of {s:e}"
                );
                clipped += taken;
                self.allowed[i] += lost + most + taken;
                self.balance[i] += Exact::of(m);
            }
        }
        assert_eq!(covered, update.len(), "each element is in one message");
        let (found, exact) = (encoder.stats().clipped, clipped.to_f64());
        assert!(
            (found - exact).abs() <= 1e-12 * exact,
            "step {step}: {found:e} clipped, not {exact:e}"
        );
        self.clipped += clipped;
    }

    fn close(mut self, encoder: &Encoder) -> Ledger {
        for (balance, &r) in self.balance.iter_mut().zip(encoder.residual()) {
            *balance += Exact::of(r);
        }
        self
    }

    /// The law over the run, element by element and for all of them together.
    fn holds(&self) {
        let add = |sum: Exact, x: &Exact| sum + *x;
        for (i, (balance, allowed)) in self.balance.iter().zip(&self.allowed).enumerate() {
            assert!(balance.abs() <= *allowed, "element {i}");
        }
        let [balance, allowed] =
            [&self.balance, &self.allowed].map(|all| all.iter().fold(Exact::default(), add));
        assert!(balance.abs() <= allowed);
    }
}

/// Ranges of all kinds, short ones too.
fn ranges(random: &mut Random, t: f32) -> (usize, Vec<NamedRange>) {
    let mut elements = 0;
    let ranges = (0..9)
        .map(|at| {
            let length = match random.below(5) {
                0 => random.below(32) as usize,
                1 => 1,
                _ => random.below(3000) as usize,
            };
            elements += length;
            let name = format!("range {at}");
            match random.below(6) {
                0 => NamedRange::dense(name, length, Dense::F32),
                1 => NamedRange::dense(name, length, Dense::Bf16),
                2 => NamedRange::compressed(name, length).with_policy(Quantile::new(0.05).unwrap()),
                3 => NamedRange::compressed(name, length)
                    .with_policy(Fixed::new(t).unwrap().with_limit(length / 10)),
                _ => NamedRange::compressed(name, length),
            }
        })
        .collect();
    (elements, ranges)
}

#[test]
fn over_a_run_nothing_is_lost_but_roundings_that_can_be_named() {
    let mut formats = [false; 5];
    let mut lossless = 0;
    for seed in 0..12 {
        let mut random = Random(seed);
        let t = [2e-3, 0.5, 3e-30, 1e25][seed as usize % 4];
        let (elements, ranges) = ranges(&mut random, t);
        let limit = random.below(elements as u64 + 1) as usize;
        let policy = Fixed::new(t).unwrap();
        let clips = seed % 3 == 2;
        let mut builder = Encoder::builder(elements)
            .ranges(ranges)
            .policy(if seed % 2 == 0 {
                policy
            } else {
                policy.with_limit(limit)
            })
            .path(paths().nth(seed as usize % paths().count()).unwrap())
            .threads(1 + seed as usize % 3);
        if clips {
            builder = builder.post_processor(Clipping::new(3.0, 2).unwrap());
        }
        let mut encoder = builder.build().unwrap();
        let mut ledger = Ledger::of(&encoder);
        let unit = Unit::nearest(t, t);
        for step in 0..40 {
            // Formats change to and fro; single hits, none at all, and what is far past 2^16 units too.
            let kind = match step % 8 {
                0 => Kind::Ordinary(0.3),
                1 => Kind::Single(400),
                2 => Kind::Ordinary(1e-3),
                3 => Kind::Mixed,
                4 => Kind::Single(u64::MAX),
                5 => Kind::Edges,
                6 => Kind::Ordinary(0.9),
                _ if random.below(3) == 0 => Kind::AnyBits,
                _ => Kind::Ordinary(0.1),
            };
            let update = vector(&mut random, elements, kind, unit);
            ledger.step(&mut encoder, step, &update, clips);
        }
        let ledger = ledger.close(&encoder);
        ledger.holds();
        lossless += ledger
            .balance
            .iter()
            .filter(|balance| balance.is_zero())
            .count();
        assert_eq!(clips, !ledger.clipped.is_zero(), "seed {seed}");
        (1..5).for_each(|format| formats[format] |= ledger.formats[format]);
    }
    assert_eq!(formats[1..], [true; 4], "all formats are met");
    assert!(lossless > 100);
}

#[test]
fn nothing_at_all_is_lost_where_every_number_is_a_multiple_of_one() {
    // Quanta down to the least: with 2^-126 no sum reaches a threshold, and everything stays.
    for (power, path) in [-126, -112, -20, 60]
        .into_iter()
        .flat_map(|p| paths().map(move |path| (p, path)))
    {
        let quantum = 2f32.powi(power);
        let mut random = Random(11);
        let mut numbers = |length: usize, most: u64| -> Vec<f32> {
            let mut one = || random.below(2 * most + 1) as f32 - most as f32;
            (0..length).map(|_| one() * quantum).collect()
        };
        let t = if power == -126 {
            2f32.powi(-100)
        } else {
            4096.0 * quantum
        };
        let fixed = |times: f32| Fixed::new(times * t).unwrap();
        let (small, large) = (509, 2 * 4096 + 77);
        let mut encoder = Encoder::builder(2 * large + 3 * small + 31)
            .ranges([
                NamedRange::compressed("shared", large),
                NamedRange::dense("f32", small, Dense::F32),
                NamedRange::dense("bf16", small, Dense::Bf16),
                NamedRange::compressed("own", small).with_policy(fixed(1.5)),
                NamedRange::compressed("limited", large).with_policy(fixed(1.0).with_limit(500)),
                NamedRange::compressed("short", 31),
            ])
            .policy(fixed(1.0))
            .path(path)
            .threads(2)
            .build()
            .unwrap();
        let mut ledger = Ledger::of(&encoder);
        for step in 0..24 {
            // From next to none to nearly all are hits.
            let most = [1 << 10, 1 << 14, 1 << 12, 40_000][step % 4];
            let update = numbers(encoder.elements(), most);
            ledger.step(&mut encoder, step as u64, &update, false);
        }
        let ledger = ledger.close(&encoder);
        assert!(
            ledger.balance.iter().all(|balance| balance.is_zero()),
            "{power} on {path}"
        );
        assert!(ledger.allowed.iter().zip(0..).all(|(allowed, i)| {
            // A dense range may lose what it did not.
            allowed.is_zero() || (large + small..large + 2 * small).contains(&i)
        }));
        assert_eq!(ledger.formats[Format::Bitmap as usize], power != -126);
    }
}

#[test]
fn parts_in_any_order_lose_nothing_either() {
    for seed in 0..9 {
        let mut random = Random(300 + seed);
        let t = [2e-3, 0.5, 3e-30][seed as usize % 3];
        let (elements, ranges) = ranges(&mut random, t);
        let limit = random.below(elements as u64 + 1) as usize;
        let mut encoder = Encoder::builder(elements)
            .ranges(ranges)
            .policy(Fixed::new(t).unwrap().with_limit(limit))
            .path(paths().nth(seed as usize % paths().count()).unwrap())
            .build()
            .unwrap();
        let mut ledger = Ledger::of(&encoder);
        let unit = Unit::nearest(t, t);
        for step in 0..30 {
            let kind = match step % 5 {
                0 => Kind::Ordinary(0.3),
                1 => Kind::Edges,
                2 => Kind::Mixed,
                3 => Kind::AnyBits,
                _ => Kind::Ordinary(1e-2),
            };
            let update = vector(&mut random, elements, kind, unit);
            if step % 4 == 3 {
                ledger.step(&mut encoder, step, &update, false);
            } else {
                ledger.stream(&mut encoder, step, &update, &mut random);
            }
        }
        ledger.close(&encoder).holds();
    }
    // Exactly, where every number is a multiple of one.
    let mut random = Random(310);
    let mut encoder = Encoder::builder(9000)
        .policy(Quantile::new(0.05).unwrap())
        .build()
        .unwrap();
    let mut ledger = Ledger::of(&encoder);
    for step in 0..20 {
        let mut one = || (random.below(2001) as f32 - 1000.0) / 1024.0;
        let update: Vec<f32> = (0..9000).map(|_| one()).collect();
        ledger.stream(&mut encoder, step, &update, &mut random);
    }
    let ledger = ledger.close(&encoder);
    assert!(ledger.allowed.iter().all(|exact| exact.is_zero()));
    assert!(ledger.balance.iter().all(|exact| exact.is_zero()));
}

#[test]
fn chunks_of_a_long_vector_lose_nothing_either() {
    let elements = CHUNK + BLOCK + 19;
    for threads in [1, 2] {
        let mut random = Random(17);
        let mut encoder = Encoder::builder(elements)
            .policy(Quantile::new(0.02).unwrap())
            .threads(threads)
            .build()
            .unwrap();
        let mut ledger = Ledger::of(&encoder);
        let unit = Unit::nearest(0.1, 0.1);
        for step in 0..4 {
            let update = vector(&mut random, elements, Kind::Mixed, unit);
            ledger.step(&mut encoder, step, &update, false);
        }
        ledger.close(&encoder).holds();
    }
}
