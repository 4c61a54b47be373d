//! Going on from a checkpoint: finding it, and loading what is registered.

use super::damage::Damage;
use super::directory::{Listing, Temporary, verify};
use super::entry::{Entry, Registry, duplicate};
use super::files::Input;
use super::manifest::{Manifest, StateRecord};
use super::meet::{Failure, Writing, decode, encode, meet};
use super::saved::{Resumed, Skipped};
use super::{StateError, name};
use crate::replica::shared::Shared;
use crate::replica::{Error, Kind, Replica};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the run goes on from.
#[derive(Clone, Default)]
pub(crate) struct Resume {
    pub(crate) from: Option<Resumed>,
    /// Numbers of checkpoints that cannot be used.
    pub(crate) damaged: BTreeSet<u64>,
    /// States that nobody has registered in this run yet, by name.
    pub(crate) waiting: BTreeMap<String, Waiting>,
}

/// A state of a checkpoint that nobody has registered yet.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub(crate) directory: PathBuf,
    pub(crate) record: StateRecord,
}

/// What rank 0 has found.
#[derive(Serialize, Deserialize)]
struct Found {
    /// The newest checkpoint that verifies, and the checksum of its manifest.
    newest: Option<(u64, u32)>,
    skipped: Vec<(u64, Vec<Damage>)>,
}

impl Found {
    fn look(directory: &Path) -> Result<Self, Failure> {
        let listing = Listing::of(directory).map_err(|error| Failure::new(directory, error))?;
        let mut found = Self {
            newest: None,
            skipped: Vec::new(),
        };
        for &number in listing.numbers.iter().rev() {
            match verify(&directory.join(name::checkpoint(number)), number) {
                Ok((_, crc)) => {
                    found.newest = Some((number, crc));
                    break;
                }
                Err(damages) => found.skipped.push((number, damages)),
            }
        }
        Ok(found)
    }
}

/// Finds out, together with all other replicas, what the run goes on from, unless that is known.
///
/// # Errors
/// [`Error::NotLoaded`] if there are checkpoints and none of them can be used, [`Error::Disagreement`] if replicas see
/// different ones: both the same on all; what ended the run.
pub(super) fn look(shared: &Shared, registry: &Registry) -> Result<(), Error> {
    if registry.lock().resume.is_some() {
        return Ok(());
    }
    let resume = match &shared.settings.directory {
        None => Resume::default(),
        Some(directory) => look_in(shared, directory)?,
    };
    registry.lock().resume = Some(resume);
    Ok(())
}

fn look_in(shared: &Shared, directory: &Path) -> Result<Resume, Error> {
    let message = if shared.rank == 0 {
        let _reading = Writing::begin(shared);
        let found = Found::look(directory);
        if found.is_ok()
            && let Err(error) = try_out(directory)
        {
            // A run that only reads can do without; all others should know before the first one is due.
            say(format_args!(
                "no checkpoint can be made in {}: {error}",
                directory.display()
            ));
        }
        encode(&found)?
    } else {
        Vec::new()
    };
    let told = meet(shared, Kind::Resume, 0, &message)?;
    let found: Result<Found, Failure> = decode(shared, 0, &mut &told[0][..])?;
    let (seen, manifest) = match &found {
        Ok(found) => sees(directory, found.newest),
        Err(_) => (String::new(), None),
    };
    let told = meet(shared, Kind::Resume, 1, seen.as_bytes())?;
    let unusable = |why: String| Error::NotLoaded {
        state: "(all)".to_owned(),
        path: directory.to_owned(),
        why: why.into(),
    };
    let Found { newest, skipped } = found.map_err(|failure| unusable(failure.to_string()))?;
    if told.iter().any(|seen| *seen != told[0]) {
        let text = |seen: &Vec<u8>| String::from_utf8_lossy(seen).into_owned();
        return Err(Error::Disagreement {
            what: "resuming".to_owned(),
            field: "newest checkpoint".to_owned(),
            values: told.iter().map(text).enumerate().collect(),
        });
    }
    let path = |number| directory.join(name::checkpoint(number));
    let skipped: Vec<Skipped> = skipped
        .into_iter()
        .map(|(number, damages)| Skipped {
            number,
            path: path(number),
            damages,
        })
        .collect();
    let damaged = skipped.iter().map(|skipped| skipped.number).collect();
    let (Some((number, _)), Some(manifest)) = (newest, manifest) else {
        if skipped.is_empty() {
            return Ok(Resume::default());
        }
        let list: Vec<String> = skipped.iter().map(ToString::to_string).collect();
        return Err(unusable(format!(
            "no checkpoint can be used ({}); to begin anew, remove them",
            list.join("; ")
        )));
    };
    if shared.rank == 0 {
        for skipped in &skipped {
            // Where nobody can be told, `Resumed` still tells.
            say(format_args!(
                "going on from checkpoint {number}; a newer one cannot be used: {skipped}"
            ));
        }
    }
    let waiting = manifest.states.into_iter().map(|record| {
        let directory = path(number);
        (record.name.clone(), Waiting { directory, record })
    });
    Ok(Resume {
        damaged,
        waiting: waiting.collect(),
        from: Some(Resumed {
            number,
            path: path(number),
            world_size: manifest.world_size,
            skipped,
        }),
    })
}

fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "gradring: {what}");
}

/// Whether a checkpoint can be begun there.
fn try_out(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    Temporary::create(directory, 0).map(drop)
}

/// What this rank sees of rank 0's newest checkpoint: in words, and the manifest.
fn sees(directory: &Path, newest: Option<(u64, u32)>) -> (String, Option<Manifest>) {
    let Some((number, crc)) = newest else {
        let listing = Listing::of(directory);
        return match listing.map(|listing| listing.numbers.last().copied()) {
            // Damaged ones are rank 0's business.
            Ok(_) => ("none that can be used".to_owned(), None),
            Err(error) => (error.to_string(), None),
        };
    };
    let name = name::checkpoint(number);
    match Manifest::read(&directory.join(&name), number) {
        Err(damage) => (format!("{name}, of which {damage}"), None),
        Ok((manifest, found)) => {
            let seen = format!("{name} with manifest {found:08x}");
            (seen, (found == crc).then_some(manifest))
        }
    }
}

/// Registers what every checkpoint is to save, and loads it if the run goes on from a checkpoint that has it; whether it
/// did.
///
/// # Errors
/// [`Error::Duplicate`] if there is one of that name, [`Error::Invalid`] if no state can have that name,
/// [`Error::NotLoaded`]; as [`look`].
pub(crate) fn register(replica: &Replica, entry: Arc<dyn Entry>) -> Result<bool, Error> {
    let shared = replica.shared();
    shared.look_at_stops();
    let name = entry.name().to_owned();
    name::encode(&name)?;
    let registry = shared.attached::<Registry>();
    if registry.lock().place(&name).is_ok() {
        return Err(duplicate(&name));
    }
    look(shared, &registry)?;
    let waiting = {
        let registered = registry.lock();
        let resume = registered.resume.as_ref();
        resume.and_then(|resume| resume.waiting.get(&name).cloned())
    };
    if let Some(waiting) = &waiting {
        load(&*entry, waiting, shared.rank, shared.world_size)?;
    }
    let mut registered = registry.lock();
    let Err(place) = registered.place(&name) else {
        return Err(duplicate(&name));
    };
    registered.entries.insert(place, entry);
    if let Some(resume) = &mut registered.resume {
        resume.waiting.remove(&name);
    }
    Ok(waiting.is_some())
}

fn load(entry: &dyn Entry, waiting: &Waiting, rank: usize, world_size: usize) -> Result<(), Error> {
    let Waiting { directory, record } = waiting;
    let not_loaded = |path: PathBuf, why: Box<dyn std::error::Error + Send + Sync>| {
        let state = record.name.clone();
        Error::NotLoaded { state, path, why }
    };
    if record.whose != entry.whose() {
        let differs = StateError::Differs {
            state: record.name.clone(),
            what: "whose it is".to_owned(),
            expected: entry.whose().to_string(),
            found: record.whose.to_string(),
        };
        return Err(not_loaded(directory.clone(), differs.into()));
    }
    let files = record.files.iter().cloned();
    let mut inputs: Vec<Input> = files.map(|file| Input::new(directory, file)).collect();
    let mut readers: Vec<&mut dyn Read> = inputs.iter_mut().map(|input| input as _).collect();
    let loaded = entry.load(&mut readers, rank, world_size);
    // What is wrong with a file says more than what a state makes of it.
    for input in inputs {
        let path = directory.join(input.file());
        input
            .finish()
            .map_err(|damage| not_loaded(path, damage.into()))?;
    }
    loaded.map_err(|error| not_loaded(directory.clone(), error.into()))
}
