//! Labelled images, and what may be wrong with the files that they are read from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use thiserror::Error;

/// How many kinds of images there are: the ten digits.
pub(crate) const CLASSES: usize = 10;

/// Images as rows of `width` bytes, and the class of each.
///
/// The bytes are kept as they are in the files: every replica holds all images, and as f32 they would be four times as
/// large.
pub(crate) struct Samples {
    pub(crate) width: usize,
    /// The byte that means 1.0; 0 means 0.0.
    pub(crate) brightest: u8,
    pub(crate) pixels: Vec<u8>,
    pub(crate) labels: Vec<u8>,
}

impl Samples {
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    pub(crate) fn image(&self, index: usize) -> &[u8] {
        &self.pixels[index * self.width..][..self.width]
    }

    /// What one step of a byte is worth: images are vectors of 0.0..=1.0.
    pub(crate) fn unit(&self) -> f32 {
        1.0 / f32::from(self.brightest)
    }
}

/// What is trained on, and what the result is judged by.
pub(crate) struct Dataset {
    pub(crate) train: Samples,
    pub(crate) held_out: Samples,
}

/// The data could not be read.
#[derive(Debug, Error)]
pub(crate) enum DataError {
    #[error(
        "no data in {}: looked for {}, each with or without .gz; say where it is with --data DIR",
        .directory.display(), .names.join(", ")
    )]
    Missing {
        directory: PathBuf,
        names: Vec<String>,
    },
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged: {what}", .path.display())]
    Damaged { path: PathBuf, what: String },
}

impl DataError {
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}

/// Reads the first of `names` that `directory` holds, each tried plain and as `.gz`, and gives the path that it had.
/// At most `limit` bytes are taken, so that a small damaged archive cannot fill the memory.
pub(crate) fn read_any(
    directory: &Path,
    names: &[&str],
    limit: u64,
) -> Result<(PathBuf, Vec<u8>), DataError> {
    for name in names {
        for suffix in ["", ".gz"] {
            let path = directory.join(format!("{name}{suffix}"));
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(DataError::Read { path, source }),
            };
            let bytes = if suffix.is_empty() {
                read_up_to(file, limit)
            } else {
                read_up_to(GzDecoder::new(file), limit)
            };
            return match bytes {
                Ok(bytes) if bytes.len() as u64 > limit => Err(DataError::damaged(
                    &path,
                    format!("it holds more than {limit} bytes"),
                )),
                Ok(bytes) => Ok((path, bytes)),
                // What the decompressor says of bytes that are no gzip, or are cut short.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::InvalidInput
                            | io::ErrorKind::InvalidData
                            | io::ErrorKind::UnexpectedEof
                    ) =>
                {
                    Err(DataError::damaged(&path, error.to_string()))
                }
                Err(source) => Err(DataError::Read { path, source }),
            };
        }
    }
    Err(DataError::Missing {
        directory: directory.to_owned(),
        names: names.iter().map(|&name| name.to_owned()).collect(),
    })
}

fn read_up_to(source: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
