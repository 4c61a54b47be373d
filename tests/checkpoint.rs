//! Checkpoints: what is kept comes back, whole or not at all, whatever happens in between.

#[path = "checkpoint/alone.rs"]
mod alone;
#[path = "checkpoint/broken.rs"]
mod broken;
mod children;
#[path = "checkpoint/crashes.rs"]
mod crashes;
#[path = "checkpoint/damage.rs"]
mod damage;
#[path = "checkpoint/replicas.rs"]
mod replicas;
#[cfg(feature = "cli")]
#[path = "checkpoint/tool.rs"]
mod tool;
mod world;

use gradring::{Error, Replica};
use std::path::{Path, PathBuf};
use world::{Setup, World};

/// A run of one replica, in this process.
fn run(directory: &Path) -> Replica {
    run_keeping(directory, 2)
}

fn run_keeping(directory: &Path, keep: usize) -> Replica {
    Replica::builder()
        .handle_signals(false)
        .checkpoint_directory(directory)
        .checkpoint_keep(keep)
        .join()
        .expect("alone")
}

/// Everything in a directory, by name.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .into_string()
                .expect("a text")
        })
        .collect();
    names.sort();
    names
}

/// Files of a checkpoint.
fn files(checkpoint: &Path) -> Vec<PathBuf> {
    let names = names(checkpoint);
    names.iter().map(|name| checkpoint.join(name)).collect()
}

/// The directory, where a replica's process looks for it.
const DIRECTORY: &str = "GRADRING_CHECKPOINT_DIR";

fn setup(directory: &Path) -> Setup {
    let directory = directory.to_str().expect("a text").to_owned();
    Setup {
        environment: vec![(DIRECTORY.to_owned(), directory)],
        ..Setup::default()
    }
}

fn world(case: &str, world_size: usize, directory: &Path) -> World {
    World::with(case, world_size, &setup(directory))
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let words: Vec<&str> = case.split_whitespace().collect();
    match words[0] {
        "train" => crashes::train(&words),
        _ => replicas::replica(&words),
    }
}

#[test]
fn child() {
    if let Some((role, _)) = children::role() {
        assert_eq!(role, "full disk");
        broken::full_disk();
    }
}

fn is_not_saved(error: &Error, expected: &str) -> bool {
    matches!(error, Error::NotSaved { .. }) && error.to_string().contains(expected)
}
