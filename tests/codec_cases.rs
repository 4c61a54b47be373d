//! The codec's arithmetic on cases of a reference model, on every path that this processor has.
//!
//! `tests/data/codec.json` was printed by a plain model in float32, one element at a time.

use gradring::codec::{Apply, Budget, ChunkOptions, Clip, Format, Path, Record, Unit, payload_len};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    threshold: String,
    unit: String,
    clip_multiple: Option<String>,
    max_hits: Option<usize>,
    start: usize,
    residual: Vec<String>,
    update: Vec<String>,
    hits: Vec<(usize, i32)>,
    residual_after: Vec<String>,
    clipped_mass: f64,
    dropped: u32,
}

fn number(bits: &str) -> f32 {
    f32::from_bits(u32::from_str_radix(bits, 16).expect("the cases hold hexadecimal bits"))
}

fn numbers(bits: &[String]) -> Vec<f32> {
    bits.iter().map(|bits| number(bits)).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// What a payload says, read by hand.
fn read(format: Format, elements: usize, payload: &[u8]) -> Vec<(usize, i32)> {
    match format {
        Format::Sparse => {
            let blocks = elements.div_ceil(32_768);
            let half =
                |at: usize| usize::from(payload[2 * at]) | usize::from(payload[2 * at + 1]) << 8;
            let mut at = blocks;
            let mut hits = Vec::new();
            for block in 0..blocks {
                for _ in 0..half(block) {
                    let code = half(at);
                    let sign = if code & 0x8000 == 0 { 1 } else { -1 };
                    hits.push((32_768 * block + (code & 0x7fff), sign));
                    at += 1;
                }
            }
            assert_eq!(2 * at, payload.len());
            hits
        }
        Format::Bitmap => (0..elements)
            .filter_map(|i| match payload[i / 4] >> (2 * (i % 4)) & 3 {
                0 => None,
                1 => Some((i, 1)),
                2 => Some((i, -1)),
                _ => panic!("element {i} is 11"),
            })
            .collect(),
        Format::DenseF32 | Format::DenseBf16 => panic!("{format} has no hits"),
    }
}

#[test]
fn every_path_gives_the_reference_models_bits() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("data/codec.json")).expect("the cases can be read");
    assert!(cases.len() > 25);
    let mut formats = [0; 3];
    for path in Path::ALL.into_iter().filter(|path| path.is_available()) {
        for case in &cases {
            let name = format!("{} on {path}", case.name);
            let mut residual = numbers(&case.residual);
            let update = numbers(&case.update);
            let unit = Unit::new(number(&case.threshold), number(&case.unit)).unwrap();
            let options = ChunkOptions {
                clip: case
                    .clip_multiple
                    .as_ref()
                    .map(|bits| Clip::new(number(bits)).unwrap()),
                budget: case.max_hits.map(|max_hits| Budget {
                    max_hits,
                    start: case.start,
                }),
            };
            let mut payload = vec![0xaa; 3];
            let sent = path
                .encode(&mut residual, &update, unit, &options, &mut payload)
                .unwrap();
            let payload = payload.split_off(3);

            assert_eq!(
                read(sent.format, update.len(), &payload),
                case.hits,
                "{name}"
            );
            assert_eq!(
                bits(&residual),
                bits(&numbers(&case.residual_after)),
                "{name}"
            );
            assert_eq!(sent.hits as usize, case.hits.len(), "{name}");
            assert_eq!(sent.dropped, case.dropped, "{name}");
            let error = (sent.clipped - case.clipped_mass).abs();
            assert!(
                error <= 1e-12 * case.clipped_mass,
                "{name}: {} clipped",
                sent.clipped
            );
            let length = |format| payload_len(format, update.len(), case.hits.len()).unwrap();
            assert_eq!(payload.len(), length(sent.format), "{name}");
            assert!(
                length(Format::Sparse) != length(Format::Bitmap) || sent.format == Format::Sparse
            );
            assert!(
                payload.len() <= length(Format::Sparse).min(length(Format::Bitmap)),
                "{name}"
            );
            formats[sent.format as usize] += 1;

            let record = Record {
                format: sent.format,
                hits: sent.hits,
                elements: update.len(),
                payload: &payload,
            };
            let mut sum = vec![0.0; update.len()];
            let applied = path.apply(&record, unit.v(), Apply::Add, &mut sum).unwrap();
            assert_eq!(applied.not_finite, 0, "{name}");
            let mut expected = vec![0.0; update.len()];
            for &(index, sign) in &case.hits {
                expected[index] = unit.v() * sign as f32;
            }
            assert_eq!(bits(&sum), bits(&expected), "{name}");
        }
    }
    assert!(
        formats[1] > 0 && formats[2] > 0,
        "the cases use both formats"
    );
}
