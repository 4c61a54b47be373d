//! Making a checkpoint: an operation of all replicas.
//!
//! They meet four times. First to compare what they have come to save, whether all are ready, and what entries have to
//! tell each other; then for the name of the temporary directory, which rank 0 makes; then when all have written; and when
//! rank 0 has made it a checkpoint. What one cannot do, all know at the next meeting.

use super::directory::{Listing, Temporary, remove, remove_stale, superseded};
use super::entry::{Entry, Registry};
use super::files::{Output, sync_directory};
use super::manifest::{FORMAT, FileRecord, MANIFEST, Manifest, StateRecord, to_utc};
use super::meet::{Failure, Writing, decode, encode, meet, meet_with};
use super::resume::{Resume, Waiting, look};
use super::saved::Saved;
use super::{Whose, name};
use crate::replica::shared::Shared;
use crate::replica::{Error, Kind};
use crate::shm::crash::{self, Point};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// What a rank comes with. The entries' contributions follow, one after the other.
#[derive(Serialize, Deserialize)]
struct Coming {
    has_directory: bool,
    not_ready: Option<String>,
    states: Vec<(String, Whose)>,
    lengths: Vec<u64>,
}

/// What rank 0 says of a checkpoint.
#[derive(Serialize, Deserialize)]
struct Made {
    bytes: u64,
    not_removed: Vec<u64>,
}

/// Makes a checkpoint, or, without a directory, only lets the entries agree.
pub(super) fn checkpoint(shared: &Shared, registry: &Registry) -> Result<Option<Saved>, Error> {
    let began = Instant::now();
    look(shared, registry)?;
    let entries = registry.entries();
    compare(shared, &entries)?;
    let Some(directory) = &shared.settings.directory else {
        return Ok(None);
    };
    let _writing = Writing::begin(shared);
    let (number, made) = save(shared, registry, directory, &entries)?;
    let path = directory.join(name::checkpoint(number));
    let not_removed = made.not_removed.into_iter();
    let saved = Saved {
        number,
        bytes: made.bytes,
        took: began.elapsed(),
        not_removed: not_removed
            .map(|number| directory.join(name::checkpoint(number)))
            .collect(),
        path: path.clone(),
    };
    let mut registered = registry.lock();
    if let Some(resume) = &mut registered.resume {
        for waiting in resume.waiting.values_mut() {
            // The one that they came from may be gone now.
            waiting.directory.clone_from(&path);
        }
    }
    registered.saved = Some(saved.clone());
    Ok(Some(saved))
}

/// The first meeting.
fn compare(shared: &Shared, entries: &[Arc<dyn Entry>]) -> Result<(), Error> {
    let directory = shared.settings.directory.as_deref();
    let path = || directory.unwrap_or(Path::new("")).to_owned();
    let of_entries = || entries.iter().find_map(|entry| entry.not_ready());
    let contributions: Vec<Vec<u8>> = entries.iter().map(|entry| entry.contribution()).collect();
    let mut message = encode(&Coming {
        has_directory: directory.is_some(),
        not_ready: shared.not_ready().or_else(of_entries),
        states: entries
            .iter()
            .map(|entry| (entry.name().to_owned(), entry.whose()))
            .collect(),
        lengths: contributions.iter().map(|part| part.len() as u64).collect(),
    })?;
    message.extend(contributions.iter().flatten());
    let told = {
        let engine = &mut *shared.engine()?;
        shared.checkpoint_begins(engine);
        meet_with(shared, engine, Kind::Checkpoint, 0, &message)
    };
    let told = told.map_err(|error| match error {
        Error::Unsettled { rank, .. } => Error::NotSaved {
            rank,
            path: path(),
            why: "an exchange has stepped asynchronously and not settled".to_owned(),
        },
        other => other,
    })?;
    let mut came = Vec::with_capacity(told.len());
    let mut parts: Vec<Vec<&[u8]>> = vec![Vec::new(); entries.len()];
    for (rank, bytes) in told.iter().enumerate() {
        let mut rest = &bytes[..];
        came.push(decode::<Coming>(shared, rank, &mut rest)?);
        let lengths = &came[rank].lengths;
        if lengths.len() != came[rank].states.len() {
            return Err(shared.broken(rank, "a contribution is missing"));
        }
        for (at, &length) in lengths.iter().enumerate() {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let Some((part, after)) = rest.split_at_checked(length) else {
                return Err(shared.broken(
                    rank,
                    format!(
                        "expected {length} bytes of a contribution, found {}",
                        rest.len()
                    ),
                ));
            };
            rest = after;
            // Where there are others than here the ranks differ, which is the next thing to be found.
            if let Some(parts) = parts.get_mut(at) {
                parts.push(part);
            }
        }
    }
    same_states(&came)?;
    let has_directory = |came: &Coming| if came.has_directory { "one" } else { "none" };
    same(&came, "checkpoint directory", |came| {
        has_directory(came).to_owned()
    })?;
    let not_ready = came.iter().enumerate();
    let mut not_ready = not_ready.filter_map(|(rank, came)| Some((rank, came.not_ready.clone()?)));
    if let Some((rank, why)) = not_ready.next() {
        let path = path();
        return Err(Error::NotSaved { rank, path, why });
    }
    for (entry, parts) in entries.iter().zip(&parts) {
        entry.agree(parts)?;
    }
    Ok(())
}

/// Refuses ranks that have come with different states, naming the first that differs.
fn same_states(came: &[Coming]) -> Result<(), Error> {
    let mut names: Vec<&String> = came
        .iter()
        .flat_map(|came| &came.states)
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        same(came, &format!("state {name}"), |came| {
            let state = came.states.iter().find(|(other, _)| other == name);
            state.map_or_else(|| "none".to_owned(), |(_, whose)| whose.to_string())
        })?;
    }
    Ok(())
}

fn same(came: &[Coming], field: &str, value: impl Fn(&Coming) -> String) -> Result<(), Error> {
    let values: Vec<String> = came.iter().map(value).collect();
    if values.iter().all(|value| *value == values[0]) {
        return Ok(());
    }
    Err(Error::Disagreement {
        what: "checkpoint".to_owned(),
        field: field.to_owned(),
        values: values.into_iter().enumerate().collect(),
    })
}

/// The other three meetings.
fn save(
    shared: &Shared,
    registry: &Registry,
    directory: &Path,
    entries: &[Arc<dyn Entry>],
) -> Result<(u64, Made), Error> {
    let kind = Kind::Checkpoint;
    let mut temporary = None;
    let mut message = Vec::new();
    if shared.rank == 0 {
        let prepared = prepare(directory).map(|(number, made)| {
            let name = made.path().file_name().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            temporary = Some(made);
            (number, name)
        });
        crash::point(Point::TemporaryMade);
        message = encode(&prepared)?;
    }
    let told = meet(shared, kind, 1, &message)?;
    let prepared: Result<(u64, String), Failure> = decode(shared, 0, &mut &told[0][..])?;
    let (number, name) = prepared.map_err(|failure| failure.not_saved(0))?;
    if name::temporary_pid(&name).is_none() {
        return Err(shared.broken(0, format!("{name:?} is no temporary name")));
    }

    let written = write(&directory.join(&name), entries, shared.rank);
    let told = meet(shared, kind, 2, &encode(&written)?)?;
    let mut written: Vec<Vec<FileRecord>> = Vec::with_capacity(told.len());
    let mut failed = None;
    for (rank, bytes) in told.iter().enumerate() {
        match decode::<Result<Vec<FileRecord>, Failure>>(shared, rank, &mut &bytes[..])? {
            Ok(files) => written.push(files),
            Err(failure) => {
                failed.get_or_insert((rank, failure));
            }
        }
    }
    crash::point(Point::StatesSynced);

    let mut message = Vec::new();
    if let Some(mut temporary) = temporary {
        let made = match failed {
            Some(failed) => Err(failed),
            None => {
                let resume = registry.lock().resume.clone().unwrap_or_default();
                Making {
                    shared,
                    directory,
                    number,
                    resume,
                }
                .make(&mut temporary, entries, &written)
                .map_err(|failure| (0, failure))
            }
        };
        // Whatever has become of it: nobody goes on before it is gone.
        drop(temporary);
        message = encode(&made)?;
    }
    let told = meet(shared, kind, 3, &message)?;
    let made: Result<Made, (usize, Failure)> = decode(shared, 0, &mut &told[0][..])?;
    let made = made.map_err(|(rank, failure)| failure.not_saved(rank))?;
    Ok((number, made))
}

/// The number, and a directory to write in.
fn prepare(directory: &Path) -> Result<(u64, Temporary), Failure> {
    let failure = |error: io::Error| Failure::new(directory, error);
    std::fs::create_dir_all(directory).map_err(failure)?;
    let listing = Listing::of(directory).map_err(failure)?;
    remove_stale(&listing);
    let number = listing
        .next()
        .ok_or_else(|| Failure::new(directory, "there is no number after the last one"))?;
    let temporary = Temporary::create(directory, number).map_err(failure)?;
    Ok((number, temporary))
}

/// Whether this rank writes this entry.
fn writes(entry: &dyn Entry, rank: usize) -> bool {
    rank == 0 || entry.whose() == Whose::Replica
}

/// Writes what this rank has to write: in the order of the entries.
fn write(
    directory: &Path,
    entries: &[Arc<dyn Entry>],
    rank: usize,
) -> Result<Vec<FileRecord>, Failure> {
    // Who has nothing to write must see it all the same: another run is to find everything there.
    std::fs::metadata(directory).map_err(|error| Failure::new(directory, error))?;
    let own = entries.iter().filter(|entry| writes(&***entry, rank));
    own.map(|entry| {
        let encoded = name::encode(entry.name()).map_err(|error| Failure::new(directory, error))?;
        let file = name::file(&encoded, entry.whose(), rank);
        let path = directory.join(&file);
        let failure = |error: io::Error| Failure::new(&path, error);
        let mut output = Output::create(&path).map_err(failure)?;
        entry
            .save(&mut output)
            .map_err(|error| Failure::new(&path, error))?;
        let (bytes, crc32c) = output.finish().map_err(failure)?;
        crash::point(Point::StateWritten);
        Ok(FileRecord {
            file,
            bytes,
            crc32c,
        })
    })
    .collect()
}

/// What rank 0 needs to make a checkpoint of what all have written.
struct Making<'a> {
    shared: &'a Shared,
    directory: &'a Path,
    number: u64,
    resume: Resume,
}

impl Making<'_> {
    fn make(
        &self,
        temporary: &mut Temporary,
        entries: &[Arc<dyn Entry>],
        written: &[Vec<FileRecord>],
    ) -> Result<Made, Failure> {
        let mut states = self.records(entries, written)?;
        for Waiting { directory, record } in self.resume.waiting.values() {
            for file in &record.files {
                let to = temporary.path().join(&file.file);
                carry(&directory.join(&file.file), &to, file)
                    .map_err(|error| Failure::new(&to, error))?;
            }
            states.push(record.clone());
        }
        let manifest = Manifest {
            format: FORMAT,
            number: self.number,
            world_size: self.shared.world_size,
            written: to_utc(SystemTime::now()),
            restart: self.shared.settings.restart,
            states,
        };
        let path = temporary.path().join(MANIFEST);
        let failure = |error: io::Error| Failure::new(&path, error);
        let bytes = manifest
            .to_bytes()
            .map_err(|error| Failure::new(&path, error))?;
        let mut output = Output::create(&path).map_err(failure)?;
        output.write_all(&bytes).map_err(failure)?;
        output.finish().map_err(failure)?;
        crash::point(Point::ManifestWritten);
        self.publish(temporary)?;
        let states = manifest.states.iter();
        Ok(Made {
            bytes: states.fold(0, |sum, state| state.bytes().saturating_add(sum)),
            not_removed: self.prune(),
        })
    }

    /// What the manifest says of the states that were written now.
    fn records(
        &self,
        entries: &[Arc<dyn Entry>],
        written: &[Vec<FileRecord>],
    ) -> Result<Vec<StateRecord>, Failure> {
        let mut written: Vec<_> = written.iter().map(|files| files.iter().cloned()).collect();
        let mut states = Vec::with_capacity(entries.len());
        for entry in entries {
            let ranks = written.iter_mut().enumerate();
            let files: Option<Vec<FileRecord>> = ranks
                .filter(|(rank, _)| writes(&**entry, *rank))
                .map(|(_, files)| files.next())
                .collect();
            let files = files
                .ok_or_else(|| Failure::new(self.directory, "a rank has not told all files"))?;
            states.push(StateRecord {
                name: entry.name().to_owned(),
                whose: entry.whose(),
                checkpoint: self.number,
                files,
            });
        }
        Ok(states)
    }

    /// Makes a checkpoint of the temporary directory. Its content is on the disk before it has the name, and the name is
    /// before anybody hears of it.
    fn publish(&self, temporary: &mut Temporary) -> Result<(), Failure> {
        let path = self.directory.join(name::checkpoint(self.number));
        sync_directory(temporary.path()).map_err(|error| Failure::new(temporary.path(), error))?;
        temporary
            .rename(&path)
            .map_err(|error| Failure::new(&path, error))?;
        crash::point(Point::Renamed);
        sync_directory(self.directory).map_err(|error| {
            // Nobody may take it for one that lasts.
            remove(self.directory, std::iter::once(self.number));
            Failure::new(self.directory, error)
        })
    }

    /// Removes the checkpoints that are not to be kept any more. Numbers of those that are still there.
    fn prune(&self) -> Vec<u64> {
        let Ok(listing) = Listing::of(self.directory) else {
            return Vec::new();
        };
        let damaged = &self.resume.damaged;
        let mut numbers = listing.numbers;
        numbers.retain(|&number| self.path(number).is_dir());
        let superseded = superseded(&numbers, damaged, self.shared.settings.keep);
        let left = remove(self.directory, superseded.iter().copied());
        crash::point(Point::Pruned);
        let is_left = |number: &u64| left.iter().any(|(path, _)| *path == self.path(*number));
        superseded.into_iter().filter(is_left).collect()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(name::checkpoint(number))
    }
}

/// Takes a file of an older checkpoint along: by another name for the same bytes, else by a copy.
fn carry(from: &Path, to: &Path, record: &FileRecord) -> io::Result<()> {
    match std::fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(error),
        Err(_) => {
            let directory = from.parent().unwrap_or(Path::new("."));
            let mut input = super::files::Input::new(directory, record.clone());
            let mut output = Output::create(to)?;
            let mut piece = vec![0; 1 << 20];
            loop {
                match input.read(&mut piece)? {
                    0 => break,
                    read => output.write_all(&piece[..read])?,
                }
            }
            output.finish().map(|_| ())
        }
    }
}
