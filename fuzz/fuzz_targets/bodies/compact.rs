//! A compact stream from anywhere: refused, or the one stream of what it says. And a record from anywhere: refused, or
//! what comes out of its stream again.
//!
//! Input: a byte of choices, elements and hits (3 bytes each), the stream or the payload. Choices: bit 0 for a record
//! instead of a stream; 1 for a bitmap; 2 for fewer than 256 hits, of which more streams are right.

use super::Input;
use super::guard::Guarded;
use gradring::codec::compact::{CompactError, decode, decode_front, encode};
use gradring::codec::{Apply, CHUNK, Format, Path, Record};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choices = input.byte();
    let elements = input.number().min(CHUNK + 1);
    let most = if choices & 4 == 0 { usize::MAX } else { 255 };
    let hits = (input.number() & most) as u32;
    let bytes = Guarded::new(input.0);
    if choices & 1 == 0 {
        stream(elements, hits, &bytes);
    } else {
        let format = if choices & 2 == 0 {
            Format::Sparse
        } else {
            Format::Bitmap
        };
        record(format, elements, hits, &bytes);
    }
}

fn stream(elements: usize, hits: u32, bytes: &[u8]) {
    let mut out = vec![1, 2, 3];
    let taken = match decode_front(bytes, elements, hits, &mut out) {
        Ok(taken) => taken,
        Err(error) => {
            assert_eq!(out, [1, 2, 3], "an error appends nothing");
            assert_eq!(decode(bytes, elements, hits, &mut out), Err(error));
            assert_eq!(out, [1, 2, 3]);
            return;
        }
    };
    let payload = out.split_off(3);
    let mut again = Vec::new();
    let record = sparse(elements, hits, &payload);
    assert_eq!(
        encode(&record, &mut again),
        Ok(taken),
        "what was decoded is a right record"
    );
    assert!(again == bytes[..taken], "a set of hits has one stream");
    let expected = if taken == bytes.len() {
        Ok(())
    } else {
        Err(CompactError::Length {
            expected: taken,
            found: bytes.len(),
        })
    };
    assert_eq!(decode(bytes, elements, hits, &mut out), expected);
}

fn record(format: Format, elements: usize, hits: u32, payload: &[u8]) {
    let record = Record {
        format,
        hits,
        elements,
        payload,
    };
    let mut bytes = vec![9];
    let Ok(taken) = encode(&record, &mut bytes) else {
        assert_eq!(bytes, [9], "an error appends nothing");
        return;
    };
    assert_eq!(bytes.len(), 1 + taken);
    let bytes = Guarded::new(&bytes[1..]);
    let mut back = Vec::new();
    assert_eq!(decode(&bytes, elements, hits, &mut back), Ok(()));
    if format == Format::Sparse {
        assert!(back == payload, "what goes in comes out");
    } else {
        let mut targets = [(); 2].map(|()| vec![0.0; elements]);
        for (record, target) in [record, sparse(elements, hits, &back)]
            .iter()
            .zip(&mut targets)
        {
            let applied = Path::best().apply(record, 1.0, Apply::Add, target);
            assert!(applied.is_ok(), "{applied:?}");
        }
        assert!(targets[0] == targets[1], "what goes in comes out");
    }
}

fn sparse(elements: usize, hits: u32, payload: &[u8]) -> Record<'_> {
    Record {
        format: Format::Sparse,
        hits,
        elements,
        payload,
    }
}
