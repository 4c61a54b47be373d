//! The 1,797 digits of 8x8 pixels as lines of text: 64 pixels from 0 to 16, and the label.

use std::path::Path;

use crate::common::data::{CLASSES, DataError, Dataset, Samples, read_any};
use crate::common::random::Random;

/// Pixels of an image.
pub(crate) const WIDTH: usize = 64;
const BRIGHTEST: u8 = 16;
const IMAGES: usize = 1_797;
const TRAIN: usize = 1_440;
/// The file is sorted by writer, so the two parts are drawn at random, once and for all: a run's seed has no say in it.
const SPLIT_SEED: u64 = 1_797;

/// Reads and splits the digits.
pub(crate) fn load(directory: &Path) -> Result<Dataset, DataError> {
    let (path, bytes) = read_any(directory, &["digits.csv"], 1 << 20)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| DataError::damaged(&path, error.to_string()))?;
    let all = parse(text).map_err(|what| DataError::damaged(&path, what))?;

    let order = Random::new(SPLIT_SEED, 0).permutation(all.len());
    let (train, held_out) = order.split_at(TRAIN);
    Ok(Dataset {
        train: select(&all, train),
        held_out: select(&all, held_out),
    })
}

fn select(all: &Samples, indices: &[usize]) -> Samples {
    Samples {
        pixels: indices
            .iter()
            .flat_map(|&index| all.image(index))
            .copied()
            .collect(),
        labels: indices.iter().map(|&index| all.labels[index]).collect(),
        ..*all
    }
}

fn parse(text: &str) -> Result<Samples, String> {
    let mut pixels = Vec::with_capacity(IMAGES * WIDTH);
    let mut labels = Vec::with_capacity(IMAGES);
    for (line, values) in (1..).zip(text.lines()) {
        let mut fields = values.split(',').map(str::trim);
        for field in fields.by_ref().take(WIDTH) {
            match field.parse() {
                Ok(pixel) if pixel <= BRIGHTEST => pixels.push(pixel),
                _ => {
                    return Err(format!(
                        "line {line}: {field:?} is not a pixel from 0 to 16"
                    ));
                }
            }
        }
        match fields.next().map(str::parse) {
            Some(Ok(label)) if usize::from(label) < CLASSES && fields.next().is_none() => {
                labels.push(label);
            }
            _ => return Err(format!("line {line}: not 64 pixels and a digit")),
        }
    }
    if labels.len() != IMAGES {
        return Err(format!("{} images, not {IMAGES}", labels.len()));
    }
    Ok(Samples {
        width: WIDTH,
        brightest: BRIGHTEST,
        pixels,
        labels,
    })
}
