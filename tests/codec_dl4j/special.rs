//! Numbers and lengths that are special.

use super::numbers::bits;
use gradring::codec::compat::{
    CompatError, Handler, Mode, Sent, check_length, decode, encode_bitmap, encode_threshold,
};

#[test]
fn thresholds_that_are_none_are_refused_and_change_nothing() {
    for t in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (mut x, mut message) = ([1f32, -1.0, 0.0], vec![3]);
        for error in [
            encode_threshold(&mut x, t, None, &mut message).unwrap_err(),
            encode_bitmap(&mut x, t, &mut message).unwrap_err(),
        ] {
            assert_eq!(
                format!("{error:?}"),
                format!("{:?}", CompatError::Threshold { found: t })
            );
        }
        assert_eq!((x, &message[..]), ([1.0, -1.0, 0.0], &[3][..]));
    }
}

#[test]
fn a_subnormal_threshold_is_one_as_any() {
    let least = f32::from_bits(1);
    for t in [least, f32::from_bits(3), f32::MIN_POSITIVE] {
        let before = [
            t,
            -t,
            0.0,
            -0.0,
            1.0,
            -1.0,
            t / 2.0,
            -t / 2.0,
            f32::MIN_POSITIVE,
        ];
        for bitmap in [false, true] {
            let (mut x, mut message) = (before, Vec::new());
            if bitmap {
                encode_bitmap(&mut x, t, &mut message).unwrap();
            } else {
                encode_threshold(&mut x, t, None, &mut message).unwrap();
            }
            assert_eq!(x[..2], [0.0, 0.0]);
            decode(&message, &mut x).unwrap();
            assert_eq!(x, before);
        }
    }
    // Doubles can be smaller still.
    let (mut x, mut message) = (
        [f64::from(least), -f64::from(least) / 2.0, 5e-324],
        Vec::new(),
    );
    assert_eq!(encode_bitmap(&mut x, least, &mut message), Ok(2));
    assert_eq!(x, [0.0, 0.0, 5e-324]);
}

#[test]
fn nan_stays_infinities_repeat_and_negative_zero_is_no_hit() {
    let before = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        1e-45,
        -1e-45,
        f32::MAX,
        -0.5,
    ];
    let mut x = before;
    for _ in 0..3 {
        let mut message = Vec::new();
        encode_threshold(&mut x, 1.0, None, &mut message).unwrap();
        assert_eq!(message[4..], [2, -3, 7], "again and again");
        assert_eq!(bits(&x), bits(&before));
        encode_bitmap(&mut x, 1.0, &mut message).unwrap();
        // The half goes out once.
        x[7] = -0.5;
        assert_eq!(bits(&x), bits(&before));
    }
}

#[test]
fn vectors_of_no_and_of_one_element_have_messages() {
    let mut none = [0f32; 0];
    let mut message = Vec::new();
    assert_eq!(
        encode_threshold(&mut none, 1.0, None, &mut message),
        Ok(Sent::Nothing { hits: 0 })
    );
    assert_eq!(encode_bitmap(&mut none, 1.0, &mut message), Ok(0));
    assert_eq!(message, [0, 0, 1f32.to_bits() as i32, 1, 0]);
    assert_eq!(decode(&message, &mut none).unwrap().touched, 0);

    let mut one = [3f64];
    message.clear();
    assert_eq!(
        encode_threshold(&mut one, 1.0, None, &mut message),
        Ok(Sent::Nothing { hits: 1 })
    );
    assert_eq!((one, message.len()), ([3.0], 0));
    let mut handler = Handler::with_mode(Mode::Sparse);
    assert_eq!(
        handler.encode(&mut one, 1.0, &mut message),
        Ok(Sent::Bitmap { touched: 1 })
    );
    assert_eq!(one, [2.0]);
}

#[test]
fn lengths_that_an_index_cannot_name_are_refused() {
    assert_eq!(check_length(i32::MAX as usize), Ok(()));
    let found = i32::MAX as usize + 1;
    assert_eq!(check_length(found), Err(CompatError::TooLong { found }));
    assert_eq!(
        check_length(usize::MAX),
        Err(CompatError::TooLong { found: usize::MAX })
    );
}
