//! Writes the seeds: inputs made from real messages, and from messages that are wrong in each way there is.
//!
//! `cargo run --manifest-path fuzz/Cargo.toml --example seeds`

use gradring::codec::compat::{encode_bitmap, encode_threshold};
use gradring::codec::{BLOCK, CHUNK, ChunkOptions, Format, Path, Record, Unit, compact};
use std::io;

fn main() -> io::Result<()> {
    let mut seeds = Seeds { written: 0 };
    records(&mut seeds)?;
    compact_streams(&mut seeds)?;
    messages(&mut seeds)?;
    println!("{} seeds", seeds.written);
    Ok(())
}

struct Seeds {
    written: usize,
}

impl Seeds {
    /// A seed: a byte of choices, the numbers in three bytes each, the rest.
    fn add(
        &mut self,
        target: &str,
        name: &str,
        choices: u8,
        numbers: &[usize],
        rest: &[u8],
    ) -> io::Result<()> {
        let mut bytes = vec![choices];
        for number in numbers {
            bytes.extend(&number.to_le_bytes()[..3]);
        }
        bytes.extend(rest);
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("corpus")
            .join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), bytes)?;
        self.written += 1;
        Ok(())
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Laplace, of mean magnitude 1.
    fn laplace(&mut self) -> f32 {
        let size = -(((self.next() >> 40) + 1) as f32 / (1u64 << 24) as f32).ln();
        if self.next() & 1 == 0 { size } else { -size }
    }
}

/// What the codec sends of a vector.
struct Sent {
    name: String,
    format: Format,
    elements: usize,
    hits: usize,
    payload: Vec<u8>,
}

fn sent() -> Vec<Sent> {
    let mut random = Random(1);
    let mut all = Vec::new();
    for (elements, density) in [
        (0, 0.1),
        (1, 0.9),
        (16, 0.3),
        (17, 0.05),
        (100, 0.02),
        (1000, 0.01),
        (1000, 0.4),
        (4097, 0.03),
        (BLOCK, 1e-3),
        (BLOCK + 1, 1e-3),
        (CHUNK, 1e-4),
        (CHUNK, 1e-3),
    ] {
        let update: Vec<f32> = (0..elements).map(|_| random.laplace()).collect();
        let t = gradring::codec::cut8(-f32::ln(density));
        let unit = Unit::new(t, t).expect("the threshold of a density is in range");
        let mut payload = Vec::new();
        let options = ChunkOptions::default();
        let encoded = Path::best()
            .encode(
                &mut vec![0.0; elements],
                &update,
                unit,
                &options,
                &mut payload,
            )
            .expect("a chunk");
        all.push(Sent {
            name: format!("{}-{elements}-{density:e}", encoded.format),
            format: encoded.format,
            elements,
            hits: encoded.hits as usize,
            payload,
        });
    }
    all
}

fn halves(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn records(seeds: &mut Seeds) -> io::Result<()> {
    let number = |format| {
        Format::ALL
            .iter()
            .position(|known| *known == format)
            .unwrap_or(0) as u8
    };
    let large = |elements| if elements < 1024 { 0 } else { 0x40 };
    for (at, sent) in sent().iter().enumerate() {
        let choices =
            number(sent.format) | (at as u8 % 2) << 2 | (at as u8 % 3) << 3 | large(sent.elements);
        seeds.add(
            "record",
            &sent.name,
            choices,
            &[sent.elements, sent.hits],
            &sent.payload,
        )?;
    }
    let mut wrong = |name: &str, format, elements, hits, payload: &[u8]| {
        let choices = number(format) | large(elements);
        seeds.add("record", name, choices, &[elements, hits], payload)
    };
    let n = BLOCK + 5;
    let sparse = Format::Sparse;
    wrong("elements", sparse, CHUNK + 1, 3, &halves(&[2, 1, 7, 9, 4]))?;
    wrong(
        "more-hits-than-elements",
        sparse,
        2,
        3,
        &halves(&[3, 0, 1, 1]),
    )?;
    wrong("short", sparse, n, 4, &halves(&[2, 1, 7, 9, 4]))?;
    wrong("long", sparse, n, 2, &halves(&[2, 1, 7, 9, 4]))?;
    wrong("odd", sparse, n, 3, &halves(&[2, 1, 7, 9, 4])[..9])?;
    wrong("counts", sparse, n, 3, &halves(&[2, 2, 7, 9, 4]))?;
    wrong(
        "counts-of-one-block",
        sparse,
        n,
        3,
        &halves(&[0xffff, 4, 7, 9, 4]),
    )?;
    wrong("index", sparse, n, 3, &halves(&[2, 1, 7, 9, 5]))?;
    wrong(
        "last-index",
        sparse,
        n,
        3,
        &halves(&[2, 1, 7, 0xffff, 0x8004]),
    )?;
    wrong("twice", sparse, n, 3, &halves(&[2, 1, 7, 0x8007, 4]))?;
    wrong("descending", sparse, n, 3, &halves(&[2, 1, 9, 7, 4]))?;
    let bitmap = Format::Bitmap;
    wrong("bitmap-11", bitmap, 17, 3, &words(&[0b1011, 0b10]))?;
    wrong("bitmap-padding", bitmap, 17, 3, &words(&[0b1001, 0b100]))?;
    wrong("bitmap-counts", bitmap, 17, 4, &words(&[0b1001, 0b10]))?;
    wrong("bitmap-short", bitmap, 33, 3, &words(&[0b1001, 0b10]))?;
    wrong(
        "bitmap-all",
        bitmap,
        32,
        32,
        &words(&[0x5555_5555, 0xaaaa_aaaa]),
    )?;
    let dense = |numbers: &[f32]| {
        numbers
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    wrong(
        "dense",
        Format::DenseF32,
        5,
        0,
        &dense(&[0.0, 1.0, -2.5, f32::MAX, f32::MIN_POSITIVE]),
    )?;
    wrong(
        "dense-nan",
        Format::DenseF32,
        2,
        0,
        &dense(&[1.0, f32::NAN]),
    )?;
    wrong(
        "dense-subnormal",
        Format::DenseF32,
        2,
        0,
        &dense(&[1e-40, 1.0]),
    )?;
    wrong(
        "dense-negative-zero",
        Format::DenseF32,
        1,
        0,
        &dense(&[-0.0]),
    )?;
    wrong("dense-hits", Format::DenseF32, 1, 1, &dense(&[1.0]))?;
    wrong(
        "bf16",
        Format::DenseBf16,
        3,
        0,
        &halves(&[0x3f80, 0xc000, 0x0080]),
    )?;
    wrong(
        "bf16-infinity",
        Format::DenseBf16,
        2,
        0,
        &halves(&[0x3f80, 0x7f80]),
    )?;
    for (unit, name) in ["0", "max", "least", "infinite", "nan", "negative"]
        .iter()
        .enumerate()
    {
        let choices = (unit as u8 + 2) << 3;
        seeds.add(
            "record",
            &format!("unit-{name}"),
            choices,
            &[20, 2],
            &halves(&[2, 3, 0x8004]),
        )?;
    }
    // The hits follow from the payload.
    seeds.add(
        "record",
        "fitting",
        0xc0,
        &[n, 0],
        &halves(&[2, 1, 7, 9, 4]),
    )?;
    seeds.add(
        "record",
        "fitting-bitmap",
        0x81,
        &[17, 0],
        &words(&[0b1001, 0b10]),
    )
}

fn compact_streams(seeds: &mut Seeds) -> io::Result<()> {
    let stream = |format, elements, hits: usize, payload: &[u8]| {
        let record = Record {
            format,
            hits: hits as u32,
            elements,
            payload,
        };
        let mut bytes = Vec::new();
        compact::encode(&record, &mut bytes).expect("a record of our own");
        bytes
    };
    for sent in sent() {
        let bytes = stream(sent.format, sent.elements, sent.hits, &sent.payload);
        let numbers = [sent.elements, sent.hits];
        seeds.add(
            "compact",
            &format!("stream-of-{}", sent.name),
            0,
            &numbers,
            &bytes,
        )?;
        let choices = if sent.format == Format::Bitmap { 3 } else { 1 };
        seeds.add("compact", &sent.name, choices, &numbers, &sent.payload)?;
    }
    // Rows of hits: parameters of their own, and escapes between rows.
    let mut codes: Vec<u16> = (0..400).map(|at| at / 100 * 7000 + at % 100).collect();
    codes.insert(0, 400);
    codes.push(0x8000 | 32_000);
    codes[0] += 1;
    let rows = stream(Format::Sparse, BLOCK, 401, &halves(&codes));
    seeds.add("compact", "rows", 1, &[BLOCK, 401], &halves(&codes))?;
    seeds.add("compact", "stream-of-rows", 0, &[BLOCK, 401], &rows)?;
    let mut other = rows.clone();
    other[0] ^= 0b10;
    seeds.add("compact", "parameter", 0, &[BLOCK, 401], &other)?;

    let two = stream(Format::Sparse, 4, 2, &halves(&[2, 0, 1]));
    let mut wrong = |name: &str, elements, hits, bytes: &[u8]| {
        seeds.add("compact", name, 0, &[elements, hits], bytes)
    };
    wrong("followed", 4, 2, &[&two[..], &[1, 2, 3]].concat())?;
    wrong("padding", 4, 2, &[two[0] | 0x80])?;
    wrong("kind", 4, 2, &[0b1010_0001, 0])?;
    wrong("nothing", 1000, 0, &[])?;
    wrong("nothing-but-bytes", 1000, 0, &[0])?;
    wrong("no-bytes", 1000, 5, &[])?;
    wrong("elements", CHUNK + 1, 2, &two)?;
    wrong("more-hits-than-elements", 1, 2, &two)?;
    wrong("outside", 4, 2, &[0b0101_0000])?;
    wrong("longest-gap", CHUNK, 1, &[0, 0, 0xfc, 0xff, 0x0f])?;
    wrong(
        "longest-own-gap",
        CHUNK,
        2,
        &[0xff, 0xff, 0xff, 0xff, 1, 0, 0xfc, 0xff, 0xff, 0xff, 0xff],
    )?;
    wrong("ones", 1000, 900, &[0xff; 226])?;
    wrong("zeros", CHUNK, 1000, &[0; 300])?;
    wrong("short", BLOCK, 401, &rows[..rows.len() - 1])
}

fn messages(seeds: &mut Seeds) -> io::Result<()> {
    let mut random = Random(2);
    for n in [0, 1, 15, 16, 17, 31, 32, 100, 500] {
        let x: Vec<f32> = (0..n).map(|_| random.laplace()).collect();
        let mut message = Vec::new();
        encode_bitmap(&mut x.clone(), 1.0, &mut message).expect("a threshold");
        add_words(seeds, &format!("bitmap-{n}"), n, &message)?;
        message.clear();
        encode_threshold(&mut x.clone(), 2.0, None, &mut message).expect("a threshold");
        add_words(seeds, &format!("threshold-{n}"), n, &message)?;
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        seeds.add("compat", &format!("singles-{n}"), 1, &[0], &bytes)?;
        seeds.add("compat", &format!("sparse-doubles-{n}"), 7, &[0], &bytes)?;
    }
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        1e-45,
        -1e-45,
        0.25,
        -0.125,
    ];
    let bytes: Vec<u8> = special.iter().flat_map(|x| x.to_le_bytes()).collect();
    for threshold in 0..8 {
        seeds.add(
            "compat",
            &format!("special-{threshold}"),
            1 | threshold << 3,
            &[0],
            &bytes,
        )?;
    }

    let t = 1f32.to_bits() as i32;
    for (name, n, message) in [
        ("none", 8, &[][..]),
        ("header", 8, &[1, 8, t]),
        ("count", 8, &[5, 8, t, 0, 1, -2]),
        ("count-negative", 8, &[-2, 8, t, 0, 1, 2]),
        ("count-of-less", 8, &[1, 8, t, 0, 1, 2]),
        ("index-zero", 8, &[2, 8, t, 0, 0, 1]),
        ("index-past", 8, &[2, 8, t, 0, 1, 9]),
        ("index-least", 8, &[2, 8, t, 0, 1, i32::MIN]),
        ("index-twice", 8, &[3, 8, t, 0, 5, -5, 5]),
        ("encoding", 8, &[2, 8, t, 7, 1, 2]),
        ("length", 8, &[2, 9, t, 0, 1, 2]),
        ("length-negative", 8, &[2, -8, t, 0, 1, 2]),
        ("t-nan", 8, &[2, 8, 0x7fc0_0000, 0, 1, 2]),
        ("t-negative", 8, &[2, 8, i32::MIN | t, 0, 1, 2]),
        ("t-zero", 8, &[2, 8, 0, 0, 1, 2]),
        ("t-infinite", 8, &[2, 8, 0x7f80_0000, 0, 1, 2]),
        ("bitmap-short", 18, &[18, 18, t, 1, 5]),
        ("bitmap-long", 18, &[18, 18, t, 1, 5, 0, 0]),
        ("bitmap-count", 18, &[3, 18, t, 1, 5, 0]),
        ("bitmap-spare-bit", 18, &[18, 18, t, 1, 5, 1 << 18]),
        ("bitmap-spare-word", 16, &[16, 16, t, 1, 5, 1]),
    ] {
        add_words(seeds, name, n, message)?;
    }
    seeds.add("compat", "odd-bytes", 0, &[8], &[1, 2, 3, 4, 5])
}

fn add_words(seeds: &mut Seeds, name: &str, length: usize, message: &[i32]) -> io::Result<()> {
    let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_le_bytes()).collect();
    seeds.add("compat", name, 0, &[length], &bytes)
}
