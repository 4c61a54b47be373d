//! What the trainer has added to the residual itself: every path gives the bits of the plain model of a residual that may
//! hold anything, and writes only where something changes.

use super::plain::{
    self, Kind, Random, bits, first_difference, kinds, lengths, lengths_around_everything, options,
    paths, units, vector,
};
use gradring::codec::{
    Budget, CHUNK, ChunkOptions, Dense, EncodeError, Format, InResidual, Unit, canon, cut8,
};
use proptest::prelude::*;

/// The residual as it counts, and how many of its elements were not finite.
fn counted(touched: &[f32]) -> (Vec<f32>, u32) {
    let dropped = touched.iter().filter(|r| !r.is_finite()).count();
    let canonical = |&r: &f32| if r.is_finite() { canon(r) } else { 0.0 };
    (touched.iter().map(canonical).collect(), dropped as u32)
}

/// A chunk with a threshold, on every path.
fn encodes(touched: &[f32], unit: Unit, options: &ChunkOptions) -> Format {
    let (before, dropped) = counted(touched);
    let expected = plain::encode(&before, &vec![0.0; before.len()], unit, options);
    let format = plain::smaller(before.len(), expected.hits.len());
    let payload = plain::payload(format, before.len(), &expected.hits);
    for path in paths() {
        let case = format!("{} elements, {options:?} on {path}", before.len());
        let (mut after, mut out) = (touched.to_vec(), vec![7]);
        let sent = path
            .encode(&mut after, InResidual, unit, options, &mut out)
            .unwrap();
        assert!(out[0] == 7 && out[1..] == payload, "payload of {case}");
        let differs = first_difference(&after, &expected.residual);
        assert_eq!(differs, None, "residual of {case}");
        assert_eq!((sent.format, sent.dropped), (format, dropped), "{case}");
        assert_eq!(sent.hits as usize, expected.hits.len(), "{case}");
        let error = (sent.clipped - expected.clipped).abs();
        assert!(error <= 1e-12 * expected.clipped, "clipped of {case}");
    }
    format
}

/// A dense chunk, on every path.
fn encodes_dense(touched: &[f32]) {
    let (before, dropped) = counted(touched);
    for number in [Dense::F32, Dense::Bf16] {
        let (message, rest, _) = plain::dense(&before, &vec![0.0; before.len()], number);
        for path in paths() {
            let case = format!("{} elements as {number} on {path}", before.len());
            let (mut after, mut out) = (touched.to_vec(), Vec::new());
            let sent = path
                .encode_dense(&mut after, InResidual, number, &mut out)
                .unwrap();
            assert_eq!(first_difference(&after, &rest), None, "residual of {case}");
            assert_eq!((sent.format, sent.dropped), (number.format(), dropped));
            let values = plain::Message::Values(bits(&message));
            assert!(
                plain::decode(sent.format, before.len(), &out) == values,
                "{case}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_residual_is_encoded_to_the_models_bits(
        (length, unit, seed, kind) in (lengths(), units(), any::<u64>(), kinds()),
    ) {
        let touched = vector(&mut Random(seed), length, kind, unit);
        encodes(&touched, unit, &options(length, seed));
        encodes_dense(&touched);
    }

    #[test]
    fn a_sample_is_that_of_the_canonical_residual(
        (length, unit, seed, kind) in (lengths(), units(), any::<u64>(), kinds()),
        share in 0f64..1.2,
    ) {
        let touched = vector(&mut Random(seed), length, kind, unit);
        let (before, _) = counted(&touched);
        let (nothing, wanted) = (vec![0.0f32; length], (share * length as f64) as usize);
        for path in paths() {
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            path.magnitudes(&touched, InResidual, wanted, seed, &mut found).unwrap();
            path.magnitudes(&before, &nothing, wanted, seed, &mut expected).unwrap();
            prop_assert!(bits(&found) == bits(&expected), "on {}", path);
        }
    }
}

#[test]
fn every_length_format_and_limit_gives_the_models_bits() {
    let mut random = Random(61);
    let mut formats = [0u32; 3];
    for length in lengths_around_everything() {
        for kind in [
            Kind::Ordinary(2e-3),
            Kind::Ordinary(0.125),
            Kind::Ordinary(0.7),
            Kind::Single(700),
            Kind::Mixed,
            Kind::Edges,
        ] {
            let t = cut8(0.01 + 0.3 * random.unit() as f32);
            let unit = Unit::nearest(t, 1.3 * t);
            let touched = vector(&mut random, length, kind, unit);
            let start = random.below(2 * length as u64 + 1) as usize;
            let hits = touched.iter().filter(|r| r.abs() >= t).count();
            for most in [None, Some(0), Some(1), Some(hits / 2), Some(hits)] {
                let options = ChunkOptions {
                    clip: None,
                    budget: most.map(|max_hits| Budget { max_hits, start }),
                };
                formats[encodes(&touched, unit, &options) as usize] += 1;
            }
            encodes_dense(&touched);
        }
    }
    assert!(formats[Format::Sparse as usize] > 100 && formats[Format::Bitmap as usize] > 100);
}

#[test]
fn more_than_a_chunk_in_the_residual_is_refused_and_unchanged() {
    let unit = Unit::new(1.0, 1.0).unwrap();
    let mut long = vec![f32::NAN; CHUNK + 1];
    for path in paths() {
        let refused = Err(EncodeError::TooLong { found: CHUNK + 1 });
        let mut out = Vec::new();
        let options = ChunkOptions::default();
        let sent = path.encode(&mut long, InResidual, unit, &options, &mut out);
        assert_eq!(sent.map(drop), refused);
        let sent = path.encode_dense(&mut long, InResidual, Dense::F32, &mut out);
        assert_eq!(sent.map(drop), refused);
        assert!(out.is_empty() && long.iter().all(|r| r.is_nan()));
    }
}

/// Memory that can be made read-only.
struct Pages {
    start: std::ptr::NonNull<std::ffi::c_void>,
    bytes: usize,
}

impl Pages {
    fn of(elements: &[f32]) -> Pages {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
        let bytes = size_of_val(elements);
        let length = std::num::NonZeroUsize::new(bytes).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, of which nobody knows.
        let start = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) }.unwrap();
        let mut pages = Pages { start, bytes };
        pages.elements().copy_from_slice(elements);
        pages
    }

    fn elements(&mut self) -> &mut [f32] {
        // SAFETY: the mapping has so many bytes, and any bits are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / 4) }
    }

    /// Whoever writes to its elements from `first` on, which begin a page, is killed from now on.
    fn protect(&mut self, first: usize) {
        use nix::sys::mman::{ProtFlags, mprotect};
        // SAFETY: inside the mapping.
        unsafe {
            mprotect(
                self.start.byte_add(4 * first),
                self.bytes - 4 * first,
                ProtFlags::PROT_READ,
            )
        }
        .unwrap();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        let _ = unsafe { nix::sys::mman::munmap(self.start, self.bytes) };
    }
}

#[test]
fn where_nothing_changes_nothing_is_written() {
    let unit = Unit::new(1.0, 1.0).unwrap();
    let mut random = Random(67);
    // Below the threshold, zeros and the least numbers among them.
    let quiet = |random: &mut Random| match random.below(50) {
        0 => 0.0,
        1 => -f32::MIN_POSITIVE,
        2 => 2f32.powi(-110),
        _ => random.unit() as f32 * 0.999 - 0.4,
    };
    let mut residual: Vec<f32> = (0..8192).map(|_| quiet(&mut random)).collect();
    let mut pages = Pages::of(&residual);
    pages.protect(0);
    for path in paths() {
        let mut out = Vec::new();
        let sent = path
            .encode(
                pages.elements(),
                InResidual,
                unit,
                &ChunkOptions::default(),
                &mut out,
            )
            .unwrap();
        assert_eq!(sent.hits, 0);
        let mut sample = Vec::new();
        path.magnitudes(pages.elements(), InResidual, 100, 3, &mut sample)
            .unwrap();
    }
    // Hits in the first half only, so many that it becomes a bitmap: the second half is as it was.
    residual[..4096].iter_mut().for_each(|r| *r += 5.0);
    for path in paths() {
        let mut pages = Pages::of(&residual);
        pages.protect(4096);
        let mut out = Vec::new();
        let options = ChunkOptions::default();
        let sent = path
            .encode(pages.elements(), InResidual, unit, &options, &mut out)
            .unwrap();
        assert_eq!((sent.hits, sent.format), (4096, Format::Bitmap));
        assert!(pages.elements()[..4096].iter().all(|r| *r < 4.7));
    }
}
