//! Whole runs of the example.

use crate::common::mlp::Mlp;
use crate::device;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// As in the example.
pub(crate) const SHAPE: Mlp = Mlp {
    inputs: crate::digits::WIDTH,
    hidden: 32,
};

fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let built = test.ancestors().nth(2).expect("it lies in target/*/deps");
    let program = built.join("examples").join("wgpu_trainer");
    assert!(
        program.exists(),
        "{} is not built: cargo build --example wgpu_trainer",
        program.display()
    );
    program
}

fn command(words: &str) -> Command {
    let mut command = Command::new(program());
    command.args(words.split_whitespace()).stdin(Stdio::null());
    command
}

fn run(words: &str) -> Output {
    command(words).output().expect("it can be started")
}

/// The last line of a run that went well.
fn result(ended: &Output) -> Value {
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {errors}", ended.status);
    let text = String::from_utf8_lossy(&ended.stdout);
    let last = text.lines().last().expect("a line");
    serde_json::from_str(last).expect("JSON")
}

#[test]
fn replicas_learn_and_end_identical() {
    if device().is_none() {
        return;
    }
    let found = result(&run("-n 2 --epochs 3 --json"));
    assert_eq!(found["identical"], true);
    assert_eq!(found["hashes"][0], found["hashes"][1]);
    assert_eq!(
        (&found["steps"], &found["seen"]),
        (&135.into(), &(3 * 1440).into())
    );
    let accuracy = found["accuracy"].as_f64().expect("a number");
    assert!(accuracy > 0.9, "{accuracy}");
    let compression = found["compression"].as_f64().expect("a number");
    assert!(compression > 30.0, "{compression}");
    let backend = found["backend"].as_str().expect("a name");
    assert!(backend.starts_with("GPU"), "{backend}");
}

#[test]
fn updates_that_are_encoded_on_the_processor_end_in_the_same_bits() {
    if device().is_none() {
        return;
    }
    let words = "-n 3 --epochs 1 --json --backend";
    let [on_gpu, on_processor] =
        ["gpu", "processor"].map(|backend| result(&run(&format!("{words} {backend}"))));
    assert_ne!(on_gpu["backend"], on_processor["backend"]);
    for key in ["hashes", "losses", "accuracies", "compression"] {
        assert_eq!(on_gpu[key], on_processor[key], "{key}");
    }
}

/// `gradring run` with a directory for checkpoints.
fn launcher(replicas: usize, checkpoints: &Path, epochs: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradring"));
    command
        .args(["run", "--no-prefix", "-n", &replicas.to_string()])
        .arg("--checkpoint-dir")
        .arg(checkpoints)
        .arg("--")
        .arg(program())
        .args(["--json", "--epochs", &epochs.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn a_stopped_run_goes_on_with_the_bits_of_one_that_never_was() {
    if device().is_none() {
        return;
    }
    let never = result(&run("-n 2 --epochs 3 --json"));
    let directory = tempfile::tempdir().expect("a directory");
    let mut stopped = launcher(2, directory.path(), 3).spawn().expect("started");
    let mut lines = BufReader::new(stopped.stdout.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.starts_with("epoch 1/3"), "{first}");
    kill(Pid::from_raw(stopped.id() as i32), Signal::SIGTERM).expect("it is there");
    let ended = stopped.wait_with_output().expect("its end");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(128 + libc::SIGTERM), "{errors}");
    assert!(errors.contains("stopped by agreement"), "{errors}");

    let found = result(&launcher(2, directory.path(), 3).output().expect("started"));
    for key in ["hashes", "losses", "accuracies", "steps", "seen"] {
        assert_eq!(found[key], never[key], "{key}");
    }

    // And a run that has ended goes on with more epochs, and with other replicas.
    let found = result(&launcher(3, directory.path(), 4).output().expect("started"));
    assert_eq!(
        (&found["seen"], &found["steps"]),
        (&(4 * 1440).into(), &165.into())
    );
    assert_eq!(found["identical"], true);
    assert_eq!(found["hashes"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_gpu_that_is_not_there_is_said_once() {
    let without_any = "there is no GPU here";
    let mut said = vec![without_any];
    if device().is_some() {
        said.push("no GPU is named \"nonesuch\"; there is ");
    }
    for expected in said {
        let mut command = command("--adapter nonesuch");
        if expected == without_any {
            // Where the loader of Vulkan looks for drivers, now and in its older versions.
            command.env("VK_DRIVER_FILES", "/nonesuch.json");
            command.env("VK_ICD_FILENAMES", "/nonesuch.json");
        }
        let ended = command.output().expect("it can be started");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{errors}");
        assert_eq!(errors.matches(expected).count(), 1, "{errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}

#[test]
fn a_wrong_argument_is_refused() {
    for words in ["-n 0", "-n", "--epochs many", "--backend cpu", "--rate 1"] {
        let ended = run(words);
        assert_eq!(ended.status.code(), Some(2), "{words}");
        assert!(!ended.stderr.is_empty());
    }
}
