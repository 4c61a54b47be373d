//! MNIST in its own format, IDX: a header of big-endian words, then a byte a pixel or label.

use std::path::Path;

use crate::common::data::{CLASSES, DataError, Dataset, Samples, read_any};

/// Pixels of an image.
pub(crate) const WIDTH: usize = SIDE * SIDE;
const SIDE: usize = 28;
/// More than any set of this kind holds: where reading a file stops that is something else.
const MOST_IMAGES: usize = 1_000_000;
const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;

/// Reads the training set and the held-out set: the original's file names, or those of the small one that comes along.
pub(crate) fn load(directory: &Path) -> Result<Dataset, DataError> {
    let train = [
        "train-images-idx3-ubyte",
        "train-images.idx3-ubyte",
        "mnist10k-train-images-idx3-ubyte",
    ];
    let held_out = [
        "t10k-images-idx3-ubyte",
        "t10k-images.idx3-ubyte",
        "mnist10k-test-images-idx3-ubyte",
    ];
    Ok(Dataset {
        train: read_set(directory, &train)?,
        held_out: read_set(directory, &held_out)?,
    })
}

fn read_set(directory: &Path, names: &[&str]) -> Result<Samples, DataError> {
    let limit = 16 + (MOST_IMAGES * WIDTH) as u64;
    let (images_path, images) = read_any(directory, names, limit)?;
    let labels_name = labels_beside(&images_path);
    let (labels_path, labels) = read_any(directory, &[&labels_name], limit)?;

    let pixels = payload(&images, IMAGES_MAGIC, &[SIDE, SIDE])
        .map_err(|what| DataError::damaged(&images_path, what))?;
    let labels = payload(&labels, LABELS_MAGIC, &[])
        .map_err(|what| DataError::damaged(&labels_path, what))?;
    if pixels.len() / WIDTH != labels.len() {
        let what = format!(
            "{} labels for {} images",
            labels.len(),
            pixels.len() / WIDTH
        );
        return Err(DataError::damaged(&labels_path, what));
    }
    if let Some(position) = labels
        .iter()
        .position(|&label| usize::from(label) >= CLASSES)
    {
        let what = format!("label {position} is {}, not a digit", labels[position]);
        return Err(DataError::damaged(&labels_path, what));
    }
    Ok(Samples {
        width: WIDTH,
        brightest: u8::MAX,
        pixels: pixels.to_vec(),
        labels: labels.to_vec(),
    })
}

/// The name, without `.gz`, of the labels that belong to a file of images.
fn labels_beside(images: &Path) -> String {
    let name = images.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.replace("images", "labels").replace("idx3", "idx1")
}

/// What follows the header, after the header was found to be right: `item` are the lengths of one item's axes.
fn payload<'a>(bytes: &'a [u8], magic: u32, item: &[usize]) -> Result<&'a [u8], String> {
    let mut words = bytes
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    match words.next() {
        Some(found) if found == magic => {}
        Some(found) => return Err(format!("it begins with {found:#010x}, not {magic:#010x}")),
        None => return Err("it ends within its header".to_owned()),
    }
    let header = 8 + 4 * item.len();
    let (Some(count), true) = (words.next(), bytes.len() >= header) else {
        return Err("it ends within its header".to_owned());
    };
    if count == 0 {
        return Err("it holds nothing".to_owned());
    }
    let axes: Vec<usize> = words.take(item.len()).map(|axis| axis as usize).collect();
    if axes != item {
        return Err(format!("its images are {axes:?}, not {item:?}"));
    }
    let expected = u64::from(count) * item.iter().product::<usize>() as u64;
    let payload = &bytes[header..];
    if payload.len() as u64 != expected {
        return Err(format!(
            "its header promises {expected} bytes, {} follow",
            payload.len()
        ));
    }
    Ok(payload)
}
