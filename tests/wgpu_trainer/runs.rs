//! Whole runs of the example.

use crate::common::mlp::Mlp;
use crate::device;
use serde_json::Value;
use std::path::PathBuf;
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

fn run(words: &str) -> Output {
    let mut command = Command::new(program());
    command.args(words.split_whitespace()).stdin(Stdio::null());
    command.output().expect("it can be started")
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
    assert_eq!(found["steps"], 135);
    let accuracy = found["accuracy"].as_f64().expect("a number");
    assert!(accuracy > 0.9, "{accuracy}");
    let compression = found["compression"].as_f64().expect("a number");
    assert!(compression > 30.0, "{compression}");
}

#[test]
fn an_adapter_that_is_not_there_is_said_once() {
    let ended = run("--adapter nonesuch");
    assert_eq!(ended.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&ended.stderr);
    let said = errors.matches("no GPU adapter is named \"nonesuch\"; there is ");
    assert_eq!(said.count(), 1, "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

#[test]
fn a_wrong_argument_is_refused() {
    for words in ["-n 0", "-n", "--epochs many", "--rate 1"] {
        let ended = run(words);
        assert_eq!(ended.status.code(), Some(2), "{words}");
        assert!(!ended.stderr.is_empty());
    }
}
