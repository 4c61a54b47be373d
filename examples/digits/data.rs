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

    let mut dataset = Dataset {
        train: Samples::new(WIDTH, BRIGHTEST),
        held_out: Samples::new(WIDTH, BRIGHTEST),
    };
    let order = Random::new(SPLIT_SEED, 0).permutation(all.len());
    for (position, index) in order.into_iter().enumerate() {
        let part = if position < TRAIN {
            &mut dataset.train
        } else {
            &mut dataset.held_out
        };
        part.push(all.image(index), all.labels[index]);
    }
    Ok(dataset)
}

fn parse(text: &str) -> Result<Samples, String> {
    let mut samples = Samples::new(WIDTH, BRIGHTEST);
    let mut image = Vec::with_capacity(WIDTH);
    for (line, values) in (1..).zip(text.lines()) {
        image.clear();
        let mut fields = values.split(',');
        for field in fields.by_ref().take(WIDTH) {
            match field.trim().parse::<u8>() {
                Ok(pixel) if pixel <= BRIGHTEST => image.push(pixel),
                _ => return Err(format!("line {line}: {field:?} is not a pixel from 0 to 16")),
            }
        }
        let label = fields.next();
        match label.map(|field| field.trim().parse::<u8>()) {
            Some(Ok(label)) if usize::from(label) < CLASSES && fields.next().is_none() => {
                samples.push(&image, label);
            }
            _ => return Err(format!("line {line}: not 64 pixels and a digit")),
        }
    }
    if samples.len() != IMAGES {
        return Err(format!("{} images, not {IMAGES}", samples.len()));
    }
    Ok(samples)
}
