//! Any records, in any order, onto any parts.

use super::plain::{self, Kind, Random, bits, first_difference, vector};
use super::vector::{Vector, context};
use gradring::codec::gpu::{GpuApplier, GpuContext};
use gradring::codec::{Apply, BLOCK, CHUNK, Format, Path, Record, Unit, canon, payload_len};

/// A record, and how it is applied where.
pub(crate) struct Sent {
    format: Format,
    hits: u32,
    elements: usize,
    payload: Vec<u8>,
    x: f32,
    how: Apply,
    start: usize,
}

impl Sent {
    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            format: self.format,
            hits: self.hits,
            elements: self.elements,
            payload: &self.payload,
        }
    }

    /// Any record for some of so many elements.
    pub(crate) fn any(random: &mut Random, of: usize) -> Sent {
        let elements = random.index(of.min(CHUNK) + 1);
        let start = random.index(of - elements + 1);
        let format = random.one_of(&Format::ALL);
        Self::with(random, format, start, elements)
    }

    pub(crate) fn with(random: &mut Random, format: Format, start: usize, elements: usize) -> Sent {
        let unit = Unit::new(0.25, 0.375).expect("in range");
        let density = 10f64.powf(-4.0 * random.unit());
        let mut hits = Vec::new();
        let payload = match format {
            Format::DenseF32 => plain::payload_of_values(random, elements, unit),
            Format::DenseBf16 => (plain::payload_of_values(random, elements, unit).chunks_exact(4))
                .flat_map(|value| [value[2], value[3]])
                .collect(),
            _ => {
                for i in 0..elements {
                    if random.happens(density) {
                        hits.push((i, random.coin()));
                    }
                }
                plain::payload(format, elements, &hits)
            }
        };
        let scale = random.one_of(&[1.0, 1.0, 0.5, 1.0 / 3.0, 1.0 / 7.0, 1e-30, 3e37]);
        let x = match format.dense() {
            Some(_) => scale,
            None => random.one_of(&[canon(unit.v() * scale), 0.0, 2f32.powi(99)]),
        };
        assert_eq!(
            payload_len(format, elements, hits.len()),
            Some(payload.len())
        );
        Sent {
            format,
            hits: hits.len() as u32,
            elements,
            payload,
            x,
            how: random.one_of(&[Apply::Subtract, Apply::Add]),
            start,
        }
    }

    /// Onto a vector of the processor's. How many were not finite.
    pub(crate) fn expected(&self, mut target: &mut [f32]) -> u64 {
        let target = &mut target;
        let applied = Path::Scalar.apply_at(&self.record(), self.x, self.how, target, self.start);
        u64::from(applied.expect("a good record").not_finite)
    }

    pub(crate) fn apply(&self, applier: &mut GpuApplier, target: &Vector) {
        applier
            .apply(
                &self.record(),
                self.x,
                self.how,
                &target.parts(),
                self.start,
            )
            .expect("a good record");
    }
}

/// The count of elements that were not finite, when all of it is there.
pub(crate) fn not_finite(context: &GpuContext, applier: &mut GpuApplier) -> u64 {
    let mut sum = 0;
    // Nothing is waited for inside: what is not there yet is so after the device has been.
    for _ in 0..2 {
        applier.finish().expect("the device works");
        context
            .device()
            .poll(gradring::codec::gpu::wgpu::PollType::wait_indefinitely())
            .expect("the device works");
        sum += applier.take_not_finite();
    }
    sum
}

/// Lengths of parts: many are tiny, some have nothing.
fn lengths(random: &mut Random, of: usize) -> Vec<usize> {
    let longest = random.one_of(&[1, 3, 40, 1000, BLOCK, of + 1]);
    let count = random.index(60);
    (0..count)
        .map(|_| random.index(longest + 1) * usize::from(random.below(5) > 0))
        .collect()
}

#[test]
fn any_records_give_the_bits_of_the_processor_on_any_parts() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let mut applier = GpuApplier::new(&context).expect("memory");
    for seed in 0..120 {
        let random = &mut Random(seed);
        let of = random.one_of(&[
            0,
            1,
            15,
            16,
            17,
            700,
            5000,
            BLOCK,
            BLOCK + 1,
            3 * BLOCK + 77,
        ]);
        let kind = random.one_of(&[Kind::Mixed, Kind::AnyBits, Kind::Edges, Kind::Ordinary(0.1)]);
        let mut expected = vector(random, of, kind, Unit::new(0.25, 0.375).expect("in range"));
        let lengths = lengths(random, of);
        let target = Vector::new(&context, random, &expected, lengths);
        let mut count = 0;
        for _ in 0..random.index(30) {
            if random.below(8) == 0 {
                let start = random.index(of + 1);
                let elements = start..start + random.index(of - start + 1);
                expected[elements.clone()].fill(0.0);
                applier.clear(&target.parts(), elements).expect("cleared");
                continue;
            }
            let sent = Sent::any(random, of);
            count += sent.expected(&mut expected);
            sent.apply(&mut applier, &target);
            if random.below(10) == 0 {
                applier.finish().expect("the device works");
            }
        }
        let found = not_finite(&context, &mut applier);
        let values = target.read();
        let first = first_difference(&values, &expected);
        assert!(
            first.is_none(),
            "seed {seed}: element {first:?} of {of}: {:?}, {:?} expected",
            first.map(|at| values[at]),
            first.map(|at| expected[at]),
        );
        assert_eq!(found, count, "seed {seed}");
    }
}

#[test]
fn records_on_the_same_elements_are_applied_in_the_order_in_which_they_come() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let mut applier = GpuApplier::new(&context).expect("memory");
    let random = &mut Random(5);
    // 1 is lost next to 2^24, and not once that is taken away again.
    let of = 2000;
    let target = Vector::new(&context, random, &vec![0.0; of], [500, 0, 1, 700]);
    let numbers = [16_777_216.0, 1.0, 16_777_216.0, 1.0];
    let hows = [Apply::Add, Apply::Add, Apply::Subtract, Apply::Add];
    let mut expected = vec![0.0; of];
    for format in [
        Format::Sparse,
        Format::Bitmap,
        Format::DenseF32,
        Format::Sparse,
    ] {
        for (number, how) in numbers.into_iter().zip(hows) {
            let hits: Vec<(usize, bool)> = (0..of).map(|i| (i, i % 3 == 0)).collect();
            let (count, payload) = if format == Format::DenseF32 {
                let values = (0..of).flat_map(|i| (i as f32).to_le_bytes()).collect();
                (0, values)
            } else {
                (of as u32, plain::payload(format, of, &hits))
            };
            let record = Record {
                format,
                hits: count,
                elements: of,
                payload: &payload,
            };
            Path::Scalar
                .apply_at(&record, number, how, &mut expected, 0)
                .expect("a good record");
            applier
                .apply(&record, number, how, &target.parts(), 0)
                .expect("a good record");
        }
    }
    applier.finish().expect("the device works");
    assert_eq!(bits(&target.read()), bits(&expected));
    assert!(expected.contains(&1.0), "some of the order is to be seen");
}

#[test]
fn what_is_not_finite_stays_and_is_told_once() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let mut applier = GpuApplier::new(&context).expect("memory");
    let random = &mut Random(6);
    let mut values = vec![1.0; 300];
    values[7] = f32::NAN;
    values[8] = f32::INFINITY;
    values[9] = f32::NEG_INFINITY;
    values[299] = f32::from_bits(0xffab_cdef);
    let target = Vector::in_one(&context, random, &values);
    let hits: Vec<(usize, bool)> = (0..300).map(|i| (i, false)).collect();
    let payload = plain::payload(Format::Bitmap, 300, &hits);
    let record = Record {
        format: Format::Bitmap,
        hits: 300,
        elements: 300,
        payload: &payload,
    };
    for _ in 0..3 {
        applier
            .apply(&record, 0.5, Apply::Add, &target.parts(), 0)
            .expect("a good record");
    }
    assert_eq!(not_finite(&context, &mut applier), 12);
    assert_eq!(not_finite(&context, &mut applier), 0);
    let mut expected = vec![2.5f32; 300];
    for at in [7, 8, 9, 299] {
        expected[at] = values[at];
    }
    assert_eq!(bits(&target.read()), bits(&expected));
}
