//! Its messages word for word, and bad ones refused.

use super::numbers::{Number, bits, equal, numbers};
use gradring::codec::compat::{
    CompatError, Decoded, Encoding, Sent, decode, encode_bitmap, encode_threshold,
    max_message_words,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Cases {
    threshold: Vec<Case>,
    bitmap: Vec<Case>,
    bitmap_words: Vec<(usize, usize)>,
    bad_messages: Vec<Bad>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    dtype: Option<String>,
    t: f64,
    limit: Option<usize>,
    x: Vec<Value>,
    message: Option<Vec<i32>>,
    residual: Option<Vec<Value>>,
    decoded: Option<Vec<Value>>,
    touched: Option<usize>,
}

#[derive(Deserialize)]
struct Bad {
    name: String,
    message: Vec<i32>,
    expects_len: Option<usize>,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("../data/dl4j.json")).expect("the cases can be read")
}

fn threshold_case<T: Number>(case: &Case) {
    let name = &case.name;
    let mut x: Vec<T> = numbers(&case.x);
    let before = x.clone();
    let mut message = vec![77];
    let sent = encode_threshold(&mut x, case.t as f32, case.limit, &mut message).unwrap();
    assert_eq!(message.remove(0), 77, "it appends");
    assert!(
        equal(&x, &numbers(case.residual.as_ref().unwrap())),
        "{name}: {x:?}"
    );
    let Some(expected) = &case.message else {
        assert!(matches!(sent, Sent::Nothing { .. }), "{name}: {sent:?}");
        assert_eq!((message, bits(&x)), (vec![], bits(&before)), "{name}");
        return;
    };
    assert_eq!(&message, expected, "{name}");
    let hits = expected.len() - 4;
    assert_eq!(sent, Sent::Threshold { hits }, "{name}");
    let mut sum = vec![T::of(0.0); x.len()];
    let decoded = decode(&message, &mut sum).unwrap();
    let threshold = case.t as f32;
    assert_eq!(
        decoded,
        Decoded {
            encoding: Encoding::Threshold,
            threshold,
            touched: hits
        },
        "{name}"
    );
    assert!(
        equal(&sum, &numbers(case.decoded.as_ref().unwrap())),
        "{name}: {sum:?}"
    );
}

#[test]
fn threshold_messages_are_upstreams_word_for_word() {
    let cases = cases().threshold;
    assert_eq!(cases.len(), 7);
    for case in cases {
        match case.dtype.as_deref() {
            None => threshold_case::<f32>(&case),
            Some("f64") => threshold_case::<f64>(&case),
            Some(other) => panic!("{}: {other}", case.name),
        }
    }
}

#[test]
fn bitmap_messages_are_upstreams_word_for_word() {
    let cases = cases().bitmap;
    assert_eq!(cases.len(), 2);
    for case in cases {
        let name = &case.name;
        let mut x: Vec<f32> = numbers(&case.x);
        let before = x.clone();
        let mut message = vec![77];
        let touched = encode_bitmap(&mut x, case.t as f32, &mut message).unwrap();
        assert_eq!(message.remove(0), 77, "it appends");
        assert_eq!(Some(touched), case.touched, "{name}");
        assert_eq!(Some(&message), case.message.as_ref(), "{name}");
        let expected: Vec<f32> = numbers(case.decoded.as_ref().unwrap());
        let left: Vec<f32> = before
            .iter()
            .zip(&expected)
            .map(|(x, sent)| x - sent)
            .collect();
        assert!(equal(&x, &left), "{name}: {x:?}");

        let mut sum = vec![0f32; x.len()];
        let decoded = decode(&message, &mut sum).unwrap();
        let threshold = case.t as f32;
        assert_eq!(
            decoded,
            Decoded {
                encoding: Encoding::Bitmap,
                threshold,
                touched
            },
            "{name}"
        );
        assert!(equal(&sum, &expected), "{name}: {sum:?}");
    }
}

#[test]
fn a_bitmap_has_a_spare_word_where_the_last_one_is_full() {
    for (elements, words) in cases().bitmap_words {
        let mut message = Vec::new();
        encode_bitmap(&mut vec![1f32; elements], 0.5, &mut message).unwrap();
        assert_eq!(
            (message.len(), max_message_words(elements)),
            (words, words),
            "{elements}"
        );
        let spare = elements % 16 == 0;
        assert_eq!(message[words - 1] == 0, spare, "{elements}");
    }
}

#[test]
fn each_bad_message_is_refused_for_its_reason() {
    let cases = cases().bad_messages;
    assert_eq!(cases.len(), 11);
    let elements = 8;
    for Bad {
        name,
        message,
        expects_len,
    } in cases
    {
        let expected = match name.as_str() {
            "shorter than its header" => CompatError::Short { found: 3 },
            "count beyond the message" => CompatError::Count {
                expected: 2,
                found: 5,
            },
            "index zero" => CompatError::Index {
                word: 4,
                elements,
                found: 0,
            },
            "index past the vector" => CompatError::Index {
                word: 5,
                elements,
                found: 9,
            },
            "index of i32::MIN" => CompatError::Index {
                word: 5,
                elements,
                found: i32::MIN,
            },
            "unknown encoding" => CompatError::Encoding { found: 7 },
            "length of another vector" => CompatError::Length {
                expected: 8,
                found: 9,
            },
            "negative count" => CompatError::Count {
                expected: 2,
                found: -2,
            },
            "bitmap cut short" => CompatError::Words {
                expected: 6,
                found: 5,
            },
            "threshold negative" => CompatError::Threshold { found: -1.0 },
            "threshold NaN" => CompatError::Threshold { found: f32::NAN },
            other => panic!("no reason is known for {other}"),
        };
        // A target of the length that the message says, unless it is to be another.
        let length = expects_len.unwrap_or(message[1] as usize);
        refuses::<f32>(&name, &message, length, expected);
        refuses::<f64>(&name, &message, length, expected);
    }
}

fn refuses<T: Number>(name: &str, message: &[i32], length: usize, expected: CompatError) {
    let mut target = vec![T::of(0.5); length];
    let error = decode(message, &mut target).unwrap_err();
    // As text, so that a NaN is one.
    assert_eq!(format!("{error:?}"), format!("{expected:?}"), "{name}");
    assert!(!error.to_string().is_empty());
    assert!(
        target.iter().all(|x| *x == T::of(0.5)),
        "{name}: an error adds nothing"
    );
}

#[test]
fn bits_and_words_that_no_vector_has_are_refused() {
    let t = 1f32.to_bits() as i32;
    let refuses = |message: &[i32], length, expected| {
        refuses::<f32>("", message, length, expected);
        refuses::<f64>("", message, length, expected);
    };
    // Behind element 18, value and sign.
    for last in [1 << 2, 1 << 18, i32::MIN] {
        refuses(
            &[18, 18, t, 1, 0, last],
            18,
            CompatError::Spare {
                elements: 18,
                found: last,
            },
        );
    }
    refuses(
        &[16, 16, t, 1, 0, 1],
        16,
        CompatError::Spare {
            elements: 16,
            found: 1,
        },
    );
    refuses(
        &[0, 0, t, 1, 1],
        0,
        CompatError::Spare {
            elements: 0,
            found: 1,
        },
    );
    refuses(
        &[3, 18, t, 1, 0, 0],
        18,
        CompatError::Length {
            expected: 18,
            found: 3,
        },
    );
    refuses(
        &[18, 18, t, 1, 0, 0, 0],
        18,
        CompatError::Words {
            expected: 6,
            found: 7,
        },
    );
    refuses(
        &[1, 8, t, 0, 1, 2],
        8,
        CompatError::Count {
            expected: 2,
            found: 1,
        },
    );
    refuses(
        &[0, -1, t, 0],
        8,
        CompatError::Length {
            expected: 8,
            found: -1,
        },
    );
    refuses(&[], 0, CompatError::Short { found: 0 });
    for threshold in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY] {
        let bits = threshold.to_bits() as i32;
        refuses(
            &[1, 8, bits, 0, 1],
            8,
            CompatError::Threshold { found: threshold },
        );
    }
}

#[test]
fn messages_that_upstream_decodes_are_decoded_though_it_never_sends_them() {
    let t = 0.5f32.to_bits() as i32;
    let mut target = [1f32; 3];
    assert_eq!(decode(&[0, 3, t, 0], &mut target).unwrap().touched, 0);
    assert_eq!(decode(&[1, 3, t, 0, -3], &mut target).unwrap().touched, 1);
    assert_eq!(target, [1.0, 1.0, 0.5]);
    // An element named twice is added twice, and the order is free.
    assert_eq!(
        decode(&[4, 3, t, 0, 2, -3, 2, 1], &mut target)
            .unwrap()
            .touched,
        4
    );
    assert_eq!(target, [1.5, 2.0, 0.0]);
}
