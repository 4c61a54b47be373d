//! The formats for elsewhere: the compact one, and Deeplearning4j's two.
//!
//! *Compact* is measured from and to sparse payloads, beside the fused sparse encode of the same hits and the sparse
//! apply. Deeplearning4j's formats are measured beside the copy of the same vector.

use super::common::{Against, Bench, Random, time};
use gradring::codec::compat::{decode, encode_bitmap, encode_threshold};
use gradring::codec::{Apply, CHUNK, ChunkOptions, Format, Path, Record, Unit, compact, cut8};

/// Elements of the vector: larger than the caches of most processors.
const ELEMENTS: usize = 16 * CHUNK;
const ROUNDS: usize = 15;
const DENSITIES: [f64; 5] = [1e-4, 1e-3, 1e-2, 5e-2, 1e-1];

pub(crate) fn run(bench: &mut Bench) {
    let elements = bench.size(ELEMENTS, CHUNK);
    let mut random = Random(7);
    let update: Vec<f32> = (0..elements).map(|_| random.laplace(1.0)).collect();
    for density in DENSITIES {
        compact(bench, &update, density);
    }
    for density in DENSITIES {
        compat(bench, &update, density);
    }
}

/// The threshold that a Laplace variable of scale 1 exceeds with this density.
fn threshold(density: f64) -> f32 {
    cut8(-density.ln() as f32)
}

struct Chunk {
    elements: usize,
    hits: u32,
    sparse: Vec<u8>,
    compact: Vec<u8>,
}

impl Chunk {
    fn record(&self) -> Record<'_> {
        Record {
            format: Format::Sparse,
            hits: self.hits,
            elements: self.elements,
            payload: &self.sparse,
        }
    }
}

/// The bits of a random ternary vector: where the hits are, and a sign each.
fn entropy(elements: usize, hits: usize) -> f64 {
    let p = hits as f64 / elements as f64;
    let place = -p * p.log2() - (1.0 - p) * (1.0 - p).log2();
    elements as f64 * place + hits as f64
}

fn compact(bench: &mut Bench, update: &[f32], density: f64) {
    let name = |what| format!("compact {what}, density {density:e}");
    if !["encode", "decode", "size"]
        .into_iter()
        .any(|what| bench.wants(&name(what)))
    {
        return;
    }
    let path = Path::best();
    let t = threshold(density);
    let unit = Unit::new(t, t).expect("a threshold of a density is in range");
    let mut residual = vec![0.0; update.len()];
    let mut chunks = Vec::new();
    for (update, residual) in update.chunks(CHUNK).zip(residual.chunks_mut(CHUNK)) {
        let mut sparse = Vec::new();
        let options = ChunkOptions::default();
        let sent = path
            .encode(residual, update, unit, &options, &mut sparse)
            .expect("a chunk");
        assert_eq!(sent.format, Format::Sparse, "density {density:e}");
        let mut chunk = Chunk {
            elements: update.len(),
            hits: sent.hits,
            sparse,
            compact: Vec::new(),
        };
        let mut bytes = Vec::new();
        compact::encode(&chunk.record(), &mut bytes).expect("a record of our own");
        chunk.compact = bytes;
        chunks.push(chunk);
    }
    let hits: usize = chunks.iter().map(|chunk| chunk.hits as usize).sum();
    let bits = 8 * chunks
        .iter()
        .map(|chunk| chunk.compact.len())
        .sum::<usize>();
    let floor: f64 = chunks
        .iter()
        .map(|chunk| entropy(chunk.elements, chunk.hits as usize))
        .sum();
    let against = Against {
        ratio: bits as f64 / floor,
        reference: "entropy",
    };
    bench.report(
        &name("size"),
        bits as f64 / hits.max(1) as f64,
        "bits a hit",
        Some(against),
    );

    // Short vectors are gone through often enough to be measured.
    let repeats = 1 + 200_000 / hits.max(1);
    let (mut out, mut back, mut payload) = (Vec::new(), Vec::new(), Vec::new());
    let mut encode = || {
        time(|| {
            for chunk in (0..repeats).flat_map(|_| &chunks) {
                out.clear();
                compact::encode(&chunk.record(), &mut out).expect("a record of our own");
            }
        })
    };
    let mut decode = || {
        time(|| {
            for chunk in (0..repeats).flat_map(|_| &chunks) {
                back.clear();
                compact::decode(&chunk.compact, chunk.elements, chunk.hits, &mut back)
                    .expect("our own");
            }
        })
    };
    let mut sparse = || {
        residual.fill(0.0);
        time(|| {
            for (update, residual) in update.chunks(CHUNK).zip(residual.chunks_mut(CHUNK)) {
                payload.clear();
                let options = ChunkOptions::default();
                path.encode(residual, update, unit, &options, &mut payload)
                    .expect("a chunk");
            }
        })
    };
    let mut target = vec![1.0; update.len()];
    let mut apply = || {
        time(|| {
            for (chunk, target) in chunks.iter().zip(target.chunks_mut(CHUNK)) {
                path.apply(&chunk.record(), unit.v(), Apply::Add, target)
                    .expect("our own");
            }
        })
    };
    let times = bench.interleave(
        ROUNDS,
        &mut [&mut encode, &mut decode, &mut sparse, &mut apply],
    );
    for (side, what, other, reference) in [
        (0, "encode", 2, "sparse encode of the hits"),
        (1, "decode", 3, "sparse apply of the hits"),
    ] {
        let ratio = times[side].over(&times[other]) / repeats as f64;
        let per_hit = times[side].median() * 1e9 / (repeats * hits.max(1)) as f64;
        bench.report(
            &name(what),
            per_hit,
            "ns a hit",
            Some(Against { ratio, reference }),
        );
    }
}

/// Both of Deeplearning4j's messages of the same vector: threshold by hit, bitmap by element.
fn compat(bench: &mut Bench, update: &[f32], density: f64) {
    let name = |what| format!("dl4j {what}, density {density:e}");
    let sides = [
        "threshold encode",
        "bitmap encode",
        "threshold decode",
        "bitmap decode",
    ];
    if !sides.into_iter().any(|what| bench.wants(&name(what))) {
        return;
    }
    let t = threshold(density);
    let x = std::cell::RefCell::new(update.to_vec());
    let (mut hits, mut bitmap) = (Vec::new(), Vec::new());
    encode_threshold(&mut x.borrow_mut(), t, None, &mut hits).expect("a threshold");
    x.borrow_mut().copy_from_slice(update);
    encode_bitmap(&mut x.borrow_mut(), t, &mut bitmap).expect("a threshold");

    let encoded = std::cell::RefCell::new(Vec::new());
    let encode = |bitmap: bool| {
        let (mut x, mut out) = (x.borrow_mut(), encoded.borrow_mut());
        x.copy_from_slice(update);
        out.clear();
        time(|| {
            if bitmap {
                encode_bitmap(&mut x, t, &mut out).expect("a threshold");
            } else {
                encode_threshold(&mut x, t, None, &mut out).expect("a threshold");
            }
        })
    };
    let decode = |message: &[i32]| {
        let mut x = x.borrow_mut();
        x.copy_from_slice(update);
        time(|| decode(message, &mut x).expect("our own"))
    };
    let mut copy = || {
        let mut x = x.borrow_mut();
        time(|| x.copy_from_slice(std::hint::black_box(update)))
    };
    let times = bench.interleave(
        ROUNDS,
        &mut [
            &mut || encode(false),
            &mut || encode(true),
            &mut || decode(&hits),
            &mut || decode(&bitmap),
            &mut copy,
        ],
    );
    for (what, times_of) in sides.iter().zip(&times) {
        let (per, unit) = if what.starts_with("bitmap") || what.ends_with("encode") {
            (update.len(), "ns an element")
        } else {
            (hits.len() - 4, "ns a hit")
        };
        let against = Against {
            ratio: times_of.over(&times[4]),
            reference: "copy of the vector",
        };
        let each = times_of.median() * 1e9 / per.max(1) as f64;
        bench.report(&name(what), each, unit, Some(against));
    }
}
