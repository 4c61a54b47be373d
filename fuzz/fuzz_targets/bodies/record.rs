//! A record from anywhere onto a target, on every path: all give the same result, and the same bits.
//!
//! Input: a byte of choices, elements and hits (3 bytes each), the payload. Choices: bits 0 and 1 the format; 2 to
//! subtract; 3 to 5 the scaled unit; 6 for a large target, where without it the elements are below 1024 and a run is
//! fast; 7 to give the record the hits that its payload has room for, whatever the input says.

use super::Input;
use super::guard::Guarded;
use gradring::codec::{Apply, BLOCK, CHUNK, Format, Path, Record};
use std::sync::LazyLock;

const UNITS: [f32; 8] = [
    1.0,
    0.0078125,
    0.0,
    f32::MAX,
    f32::MIN_POSITIVE,
    f32::INFINITY,
    f32::NAN,
    -1.0,
];

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choices = input.byte();
    let format = Format::ALL[usize::from(choices & 3)];
    let how = if choices & 4 == 0 {
        Apply::Add
    } else {
        Apply::Subtract
    };
    let x = UNITS[usize::from(choices >> 3 & 7)];
    let elements = match (input.number(), choices & 0x40) {
        (number, 0) => number % 1024,
        (number, _) => number.min(CHUNK + 1),
    };
    let mut hits = input.number();
    let payload = Guarded::new(input.0);
    if choices & 0x80 != 0 {
        hits = fitting(format, elements, &payload);
    }
    let record = Record {
        format,
        hits: hits as u32,
        elements,
        payload: &payload,
    };

    static ELEMENTS: LazyLock<Vec<f32>> = LazyLock::new(|| (0..=CHUNK).map(element).collect());
    let before = &ELEMENTS[..elements];
    let mut outcomes = Path::ALL
        .into_iter()
        .filter(|path| path.is_available())
        .map(|path| {
            let mut target = Guarded::new(before);
            let result = path.apply(&record, x, how, &mut target);
            // As text, since a number in an error may be NaN.
            (path, format!("{result:?}"), result.is_ok(), target)
        });
    let (_, result, applied, target) = outcomes.next().expect("there is always a path");
    if !applied {
        assert!(same(&target, before), "{result}, and something was applied");
    }
    for (path, other, _, other_target) in outcomes {
        assert_eq!(other, result, "{path}");
        assert!(same(&other_target, &target), "{path} gives other bits");
    }
}

/// Numbers of all kinds.
fn element(at: usize) -> f32 {
    match at % 23 {
        3 => f32::NAN,
        7 => f32::INFINITY,
        11 => -0.0,
        13 => 1e-40,
        17 => f32::MAX,
        19 => -f32::MIN_POSITIVE,
        other => other as f32 / 8.0 - 1.0,
    }
}

/// To the bit. (As bytes, which are compared at once; a loop of ours would be slow, since a target's own code is
/// instrumented.)
fn same(a: &[f32], b: &[f32]) -> bool {
    // SAFETY: any f32 is four bytes, and all of them are read only.
    let bytes =
        |x: &[f32]| unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<u8>(), size_of_val(x)) };
    bytes(a) == bytes(b)
}

fn fitting(format: Format, elements: usize, payload: &[u8]) -> usize {
    match format {
        Format::Sparse => (payload.len() / 2).saturating_sub(elements.div_ceil(BLOCK)),
        Format::Bitmap => payload.iter().map(|byte| byte.count_ones() as usize).sum(),
        _ => 0,
    }
}
