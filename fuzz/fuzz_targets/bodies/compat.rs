//! A message of Deeplearning4j's from anywhere: refused, or added to the target, whatever the target's numbers. And a
//! vector of any numbers: what is encoded of it can be decoded.
//!
//! Input: a byte of choices, the target's length (3 bytes), the message's or the vector's bytes. Choices: bit 0 for a
//! vector instead of a message; 1 for doubles in it; 2 for sparse mode; bits 3 to 5 the threshold.

use super::Input;
use super::guard::Guarded;
use gradring::codec::compat::{
    Element, Handler, Mode, Sent, decode, encode_bitmap, encode_threshold, from_bytes,
    max_message_words,
};

const THRESHOLDS: [f32; 8] = [
    0.25,
    1e-3,
    f32::MAX,
    1e-45,
    f32::MIN_POSITIVE,
    0.0,
    f32::NAN,
    f32::INFINITY,
];
/// Larger targets find nothing more.
const MOST: usize = 1 << 10;

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choices = input.byte();
    let length = input.number().min(MOST);
    let threshold = THRESHOLDS[usize::from(choices >> 3 & 7)];
    let mode = if choices & 4 == 0 {
        Mode::Dense
    } else {
        Mode::Sparse
    };
    if choices & 1 == 0 {
        message(length, input.0);
    } else if choices & 2 == 0 {
        let numbers = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        vector(
            &input
                .0
                .as_chunks()
                .0
                .iter()
                .map(numbers)
                .collect::<Vec<_>>(),
            threshold,
            mode,
        );
    } else {
        let numbers = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
        vector(
            &input
                .0
                .as_chunks()
                .0
                .iter()
                .map(numbers)
                .collect::<Vec<_>>(),
            threshold,
            mode,
        );
    }
}

fn message(length: usize, bytes: &[u8]) {
    let bytes = Guarded::new(bytes);
    let mut words = vec![5];
    if from_bytes(&bytes, &mut words).is_err() {
        assert_eq!(words, [5]);
        assert!(!bytes.len().is_multiple_of(4));
        return;
    }
    let words = Guarded::new(&words[1..]);
    let mut single = Guarded::new(&vec![0.5_f32; length]);
    let mut double = Guarded::new(&vec![0.5_f64; length]);
    let decoded = decode(&words, &mut single);
    let again = decode(&words, &mut double);
    // As text, since a number in an error may be NaN.
    assert_eq!(format!("{decoded:?}"), format!("{again:?}"));
    match decoded {
        Err(_) => {
            assert!(single.iter().all(|x| *x == 0.5) && double.iter().all(|x| *x == 0.5));
        }
        Ok(decoded) => {
            let changed = double.iter().filter(|x| **x != 0.5).count();
            assert!(changed <= decoded.touched && decoded.touched <= 16 * words.len());
        }
    }
}

fn vector<T: Element + PartialEq>(before: &[T], threshold: f32, mode: Mode) {
    let right = threshold > 0.0 && threshold.is_finite();
    let mut x = Guarded::new(before);
    let mut message = Vec::new();
    let sent = encode_bitmap(&mut x, threshold, &mut message);
    assert_eq!(sent.is_ok(), right);
    if let Ok(touched) = sent {
        let words = Guarded::new(&message);
        assert_eq!(words.len(), max_message_words(before.len()));
        assert_eq!(
            decode(&words, &mut x).map(|decoded| decoded.touched),
            Ok(touched)
        );
    }

    message.clear();
    let mut x = Guarded::new(before);
    let sent = encode_threshold(&mut x, threshold, Some(before.len() / 2), &mut message);
    assert_eq!(sent.is_ok(), right);
    if let Ok(Sent::Threshold { hits }) = sent {
        assert_eq!(message.len(), 4 + hits);
        assert_eq!(
            decode(&message, &mut x).map(|decoded| decoded.touched),
            Ok(hits)
        );
    }

    message.clear();
    let mut x = Guarded::new(before);
    let mut handler = Handler::with_mode(mode);
    let sent = handler.encode(&mut x, threshold, &mut message);
    assert!(sent.is_ok() == right && message.len() <= max_message_words(before.len()));
    if !message.is_empty() {
        assert!(decode(&message, &mut x).is_ok());
    }
}
