//! More than fits a batch, and more than fits a binding.

use super::device::device_with;
use super::plain::{Kind, Random, first_difference, vector};
use super::records::Sent;
use super::vector::{Vector, context};
use super::wgpu;
use gradring::codec::gpu::{GpuApplier, GpuContext};
use gradring::codec::{BLOCK, CHUNK, Format, Unit};

fn same(
    context: &GpuContext,
    mut expected: Vec<f32>,
    target: &Vector,
    records: impl IntoIterator<Item = Sent>,
) {
    let mut applier = GpuApplier::new(context).expect("memory");
    for sent in records {
        sent.expected(&mut expected);
        sent.apply(&mut applier, target);
    }
    applier.finish().expect("the device works");
    assert_eq!(first_difference(&target.read(), &expected), None);
}

fn values(random: &mut Random, of: usize) -> Vec<f32> {
    let unit = Unit::new(0.25, 0.375).expect("in range");
    vector(random, of, Kind::Mixed, unit)
}

#[test]
fn records_of_more_bytes_than_a_batch_keep_their_order() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let random = &mut Random(1);
    let expected = values(random, CHUNK + 9);
    let target = Vector::new(&context, random, &expected, [100_000, 3, 0, 1]);
    let records: Vec<Sent> = (0..8)
        .map(|i| Sent::with(random, Format::ALL[2 + i % 2], i, CHUNK))
        .collect();
    same(&context, expected, &target, records);
}

#[test]
fn a_record_on_more_parts_than_a_batch_has_items_or_dispatches_is_applied_whole() {
    let Some((context, _turn)) = context() else {
        return;
    };
    let random = &mut Random(2);
    let of = BLOCK + 5000;
    let expected = values(random, of);
    // Of one element each: of the dense record each part is an item.
    let target = Vector::new(&context, random, &expected, vec![1; of]);
    let records: Vec<Sent> = [Format::DenseBf16, Format::Sparse, Format::Bitmap]
        .into_iter()
        .map(|format| Sent::with(random, format, 0, of))
        .collect();
    same(&context, expected, &target, records);
}

#[test]
fn a_buffer_larger_than_a_binding_is_applied_to_at_every_place() {
    let Some((_, _turn)) = context() else {
        return;
    };
    let limits = wgpu::Limits {
        max_storage_buffer_binding_size: 1 << 24,
        ..wgpu::Limits::default()
    };
    let small = device_with(wgpu::Features::empty(), limits);
    let context = small.expect("the adapter of the shared device");
    let random = &mut Random(3);
    // A binding has 4 Mi elements.
    let window = 1 << 22;
    let of = 2 * window + 70_000;
    let expected = values(random, of);
    for lengths in [vec![], vec![window - 3, 1, 1, 30_000]] {
        let target = Vector::new(&context, random, &expected, lengths);
        let records: Vec<Sent> = Format::ALL
            .into_iter()
            .flat_map(|format| {
                [
                    (format, window - CHUNK / 2 - 7),
                    (format, 2 * window - 99_999),
                ]
            })
            .map(|(format, start)| Sent::with(random, format, start, CHUNK.min(of - start)))
            .collect();
        same(&context, expected.clone(), &target, records);
    }
}
