//! Elastic runs for tests: the body of a test, run by N replicas, says with how many the next generation runs.
//!
//! A test calls [`elastic`] with its own name. Started by `cargo test` that starts the test's own program again as
//! replicas, through the launcher, for this one test; in such a replica the same call runs the body and ends the process.
//! All generations have the same checkpoint directory. What replicas [`tell`](Generation::tell) comes back by generation
//! and rank. Nothing is left behind.
#![allow(dead_code, reason = "each test file uses a part")]

use gradring::launch::{Launch, Outcome, Stopper};
use std::fmt::{Debug, Display};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NAME: &str = "GRADRING_TEST_ELASTIC";
const NUMBER: &str = "GRADRING_TEST_GENERATION";
const DIRECTORY: &str = "GRADRING_TEST_DIRECTORY";
/// More generations than any test has.
const MOST: usize = 50;

/// One replica's view of the generation that it belongs to.
pub(crate) struct Generation {
    /// How many generations there were before.
    pub(crate) number: usize,
    directory: PathBuf,
    rank: String,
}

impl Generation {
    fn here() -> Self {
        let variable = |name| std::env::var(name).expect("the test sets it");
        Self {
            number: variable(NUMBER).parse().expect("a number"),
            directory: variable(DIRECTORY).into(),
            rank: variable("GRADRING_RANK"),
        }
    }

    fn file(&self, what: &str) -> PathBuf {
        self.directory
            .join(format!("{what}-{}-{}", self.number, self.rank))
    }

    /// Tells the test a line.
    pub(crate) fn tell(&self, what: impl Display) {
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .create(true)
            .append(true)
            .open(self.file("told"))
            .expect("the test's directory is there");
        let line = format!("{what}\n");
        file.write_all(line.as_bytes()).expect("room for a line");
    }

    /// With how many replicas it goes on if this generation stops before its body has returned.
    pub(crate) fn next(&self, replicas: usize) {
        fs::write(self.file("next"), replicas.to_string()).expect("room for a number");
    }

    /// The directory of checkpoints.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.directory.join("checkpoints")
    }

    /// A directory that all generations share, for whatever a test needs.
    pub(crate) fn shared(&self) -> &Path {
        &self.directory
    }
}

/// How a generation ended.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// What each rank has told, by rank.
    pub(crate) told: Vec<Vec<String>>,
}

impl Ended {
    /// What all ranks have told after this word, by rank.
    pub(crate) fn all(&self, begin: &str) -> Vec<Vec<&str>> {
        self.told
            .iter()
            .map(|lines| {
                let found = lines.iter().filter_map(|line| line.strip_prefix(begin));
                found.map(str::trim).collect()
            })
            .collect()
    }

    /// Numbers that ranks have told after this word, of all ranks together, ascending.
    pub(crate) fn numbers(&self, begin: &str) -> Vec<usize> {
        let words = self.all(begin).into_iter().flatten();
        let words = words.flat_map(str::split_whitespace);
        let mut numbers: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// How generations are started.
pub(crate) struct Setup<'a> {
    /// Variables for the replicas.
    pub(crate) environment: Vec<(&'a str, String)>,
    /// Called with each generation's number just before it is started, to stop it later.
    pub(crate) watch: &'a dyn Fn(usize, Stopper, &Path),
    /// The code with which a generation may end besides 0, 130 and 143: a kill that the test means.
    pub(crate) killed: Option<u8>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            environment: Vec::new(),
            watch: &|_, _, _| {},
            killed: None,
        }
    }
}

/// Runs generations of `body`, the first with `first` replicas, each next one with as many as all replicas of the one
/// before have returned, until that is 0. `name`: the test's own name, with its modules.
pub(crate) fn elastic(
    name: &str,
    first: usize,
    body: impl FnOnce(&Generation) -> usize,
) -> Vec<Ended> {
    elastic_with(name, first, &Setup::default(), body)
}

pub(crate) fn elastic_with(
    name: &str,
    first: usize,
    setup: &Setup<'_>,
    body: impl FnOnce(&Generation) -> usize,
) -> Vec<Ended> {
    if let Ok(own) = std::env::var(NAME) {
        assert_eq!(own, name, "the name of this test");
        let generation = Generation::here();
        let next = body(&generation);
        generation.next(next);
        std::process::exit(0);
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut ended = Vec::new();
    let mut replicas = first;
    while replicas > 0 {
        assert!(ended.len() < MOST, "{name} goes on for ever");
        let (end, next) = generation(name, ended.len(), replicas, setup, directory.path());
        ended.push(end);
        replicas = next;
    }
    ended
}

fn generation(
    name: &str,
    number: usize,
    replicas: usize,
    setup: &Setup<'_>,
    directory: &Path,
) -> (Ended, usize) {
    let program = std::env::current_exe().expect("this program has a path");
    // What a replica writes is shown if it fails.
    let script = format!(
        "exec \"$0\" --exact {name} --nocapture --test-threads=1 >\"$DIRECTORY/wrote-{number}-$RANK\" 2>&1"
    );
    let mut launch = Launch::new("/bin/sh")
        .args(["-c".as_ref(), script.as_ref(), program.as_os_str()])
        .replicas(replicas)
        .checkpoint_directory(directory.join("checkpoints"))
        .deadline(Duration::from_secs(60))
        .env("DIRECTORY", directory)
        .env(NAME, name)
        .env(NUMBER, number.to_string())
        .env(DIRECTORY, directory);
    for (name, value) in &setup.environment {
        launch = launch.env(*name, value);
    }
    (setup.watch)(number, launch.stopper(), directory);
    let outcome = launch.run().expect("a generation starts");
    let read = |what: &str| -> Vec<String> {
        let file = |rank| directory.join(format!("{what}-{number}-{rank}"));
        let text = |rank| fs::read_to_string(file(rank)).unwrap_or_default();
        (0..replicas).map(text).collect()
    };
    let fine = [0, 130, 143].into_iter().chain(setup.killed);
    let fine = fine.into_iter().any(|code| code == outcome.code);
    let show = |why: &dyn Debug| -> ! {
        let wrote = read("wrote");
        for (rank, wrote) in wrote.iter().enumerate() {
            eprintln!("--- rank {rank} of {replicas}, generation {number}:\n{wrote}");
        }
        panic!("generation {number} of {name}: {why:?}\n{outcome}");
    };
    if !fine {
        show(&"it failed");
    }
    let next = read("next");
    let next: Vec<Option<usize>> = next.iter().map(|text| text.parse().ok()).collect();
    let Some(agreed) = next[0].filter(|_| next.iter().all(|other| *other == next[0])) else {
        show(&next);
    };
    let told = read("told");
    let told = told
        .iter()
        .map(|told| told.lines().map(str::to_owned).collect());
    let told = told.collect();
    (Ended { outcome, told }, agreed)
}
