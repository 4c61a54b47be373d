//! Looking at checkpoints without a run: `gradring checkpoint show` and `verify`.

use super::damage::Damage;
use super::directory::{Listing, damages, has_manifest};
use super::manifest::{Manifest, from_utc};
use super::{Whose, name};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why nothing can be said of a path.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct InspectError {
    /// What was to be looked at.
    pub path: PathBuf,
    /// Why it cannot be.
    pub source: io::Error,
}

/// What a directory has of checkpoints, the newest first. Its text is a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// What was looked at.
    pub path: PathBuf,
    /// All checkpoints in it, or the one that it is.
    pub checkpoints: Vec<Inspected>,
    /// When.
    now: SystemTime,
}

/// A checkpoint on the disk, all of whose bytes have been read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspected {
    /// Its directory.
    pub path: PathBuf,
    /// What its manifest says; `None` where that cannot be read.
    pub content: Option<Content>,
    /// What is wrong with its files; none if it can be used.
    pub damages: Vec<Damage>,
}

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Content {
    /// The checkpoint's number.
    pub number: u64,
    /// How many replicas have made it.
    pub world_size: usize,
    /// When it was made, in UTC.
    pub written: String,
    /// How often the launcher had started the replicas again.
    pub restart: u64,
    /// Its states.
    pub states: Vec<InspectedState>,
}

/// A state in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InspectedState {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub whose: Whose,
    /// The number of the checkpoint in which it was written.
    pub checkpoint: u64,
    /// How many files it has: one if it is shared, else one of each replica that had it.
    pub files: usize,
    /// Bytes of all its files.
    pub bytes: u64,
}

/// Reads all checkpoints in a directory, or the one that the directory is.
///
/// # Errors
/// [`InspectError`] if the directory cannot be read. A damaged checkpoint is no error, but what is found.
pub fn inspect(path: &Path) -> Result<Inspection, InspectError> {
    let error = |source| InspectError {
        path: path.to_owned(),
        source,
    };
    if !std::fs::metadata(path).map_err(error)?.is_dir() {
        return Err(error(io::ErrorKind::NotADirectory.into()));
    }
    let number = path
        .file_name()
        .and_then(|name| name::checkpoint_number(name.to_str()?));
    let checkpoints = if has_manifest(path) || number.is_some() {
        // Whatever its directory is called: somebody may have copied it.
        let read = match number {
            Some(number) => Manifest::read(path, number),
            None => Manifest::read_any(path),
        };
        vec![Inspected::new(path, read)]
    } else {
        let listing = Listing::of(path).map_err(error)?;
        let numbers = listing.numbers.into_iter().rev();
        numbers
            .map(|number| {
                let path = path.join(name::checkpoint(number));
                let read = Manifest::read(&path, number);
                Inspected::new(&path, read)
            })
            .collect()
    };
    Ok(Inspection {
        path: path.to_owned(),
        checkpoints,
        now: SystemTime::now(),
    })
}

impl Inspected {
    fn new(path: &Path, read: Result<(Manifest, u32), Damage>) -> Self {
        let path = path.to_owned();
        let manifest = match read {
            Ok((manifest, _)) => manifest,
            Err(damage) => {
                return Self {
                    path,
                    content: None,
                    damages: vec![damage],
                };
            }
        };
        let damages = damages(&path, &manifest);
        let states = manifest.states.iter().map(|state| InspectedState {
            name: state.name.clone(),
            whose: state.whose,
            checkpoint: state.checkpoint,
            files: state.files.len(),
            bytes: state.bytes(),
        });
        let content = Content {
            number: manifest.number,
            world_size: manifest.world_size,
            restart: manifest.restart,
            states: states.collect(),
            written: manifest.written,
        };
        Self {
            path,
            content: Some(content),
            damages,
        }
    }

    /// Whether a run can go on from it.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }
}

impl Inspection {
    /// Whether there is a checkpoint, and none is damaged.
    pub fn is_sound(&self) -> bool {
        !self.checkpoints.is_empty() && self.checkpoints.iter().all(Inspected::is_sound)
    }

    /// The one that a run would go on from.
    pub fn newest_sound(&self) -> Option<&Inspected> {
        self.checkpoints.iter().find(|found| found.is_sound())
    }

    /// What is wrong, a line each; nothing where all is well.
    pub fn damages(&self) -> impl Iterator<Item = String> + '_ {
        let none = self.checkpoints.is_empty();
        let none = none.then(|| format!("{}: no checkpoint", self.path.display()));
        let found = self.checkpoints.iter();
        none.into_iter().chain(found.flat_map(|found| {
            let path = found.path.display();
            found
                .damages
                .iter()
                .map(move |damage| format!("{path}: {damage}"))
        }))
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.checkpoints.is_empty() {
            return write!(f, "{}: no checkpoint", self.path.display());
        }
        let loaded = self.newest_sound().map(|found| &found.path);
        for (i, found) in self.checkpoints.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", found.path.display())?;
            if Some(&found.path) == loaded {
                write!(f, " (a run would go on from this one)")?;
            }
            for damage in &found.damages {
                write!(f, "\n  damaged: {damage}")?;
            }
            if let Some(content) = &found.content {
                let age = from_utc(&content.written)
                    .and_then(|written| self.now.duration_since(written).ok())
                    .map_or_else(String::new, |age| {
                        format!(" ({} ago)", duration(age.as_secs()))
                    });
                let replicas = if content.world_size == 1 {
                    "replica"
                } else {
                    "replicas"
                };
                write!(
                    f,
                    "\n  made {}{age} by {} {replicas}, after {} restarts",
                    content.written.escape_debug(),
                    content.world_size,
                    content.restart
                )?;
                table(f, &content.states)?;
            }
        }
        Ok(())
    }
}

fn table(f: &mut fmt::Formatter<'_>, states: &[InspectedState]) -> fmt::Result {
    let head = ["state", "whose", "files", "bytes", "written in"].map(str::to_owned);
    let rows = states.iter().map(|state| {
        [
            // A name may hold what moves a terminal's cursor.
            state.name.escape_debug().to_string(),
            state.whose.to_string(),
            state.files.to_string(),
            state.bytes.to_string(),
            name::checkpoint(state.checkpoint),
        ]
    });
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max();
    let width: [usize; 5] = std::array::from_fn(|at| width(at).unwrap_or(0));
    for [state, whose, files, bytes, written] in &rows {
        write!(
            f,
            "\n  {state:<0$}  {whose:<1$}  {files:>2$}  {bytes:>3$}  {written}",
            width[0], width[1], width[2], width[3]
        )?;
    }
    Ok(())
}

/// A duration as people say it: in its largest unit.
fn duration(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3600 => (seconds / 60, "min"),
        3600..86_400 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    format!("{count} {unit}")
}
