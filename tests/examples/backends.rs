//! The mnist example on a GPU: the same numbers as on the processor.

use flate2::read::GzDecoder;
use gradring::codec::gpu::adapters;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How many images a replica sees, and how many are held out.
const IMAGES: usize = 320;

fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let built = test.ancestors().nth(2).expect("it lies in target/*/deps");
    let program = built.join("examples").join("mnist");
    assert!(
        program.exists(),
        "{} is not built: cargo build --example mnist",
        program.display()
    );
    program
}

/// The first images, or labels, of a set that comes along.
fn shorten(name: &str, header: usize, bytes_each: usize, to: &Path) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data");
    let packed = File::open(data.join(format!("mnist10k-{name}.gz"))).expect("it comes along");
    let mut bytes = Vec::new();
    GzDecoder::new(packed)
        .read_to_end(&mut bytes)
        .expect("it is whole");
    bytes.truncate(header + IMAGES * bytes_each);
    bytes[4..8].copy_from_slice(&(IMAGES as u32).to_be_bytes());
    let name = name.replace("test", "t10k");
    std::fs::write(to.join(name), bytes).expect("room for it");
}

/// The line of JSON of a short run.
fn run(data: &Path, backend: &str) -> Value {
    let ended = Command::new(program())
        .args(["-n", "2", "--epochs", "2", "--json", "--backend", backend])
        .arg("--data")
        .arg(data)
        .stdin(Stdio::null())
        .output()
        .expect("it can be started");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {errors}", ended.status);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(text.contains("\nencoded on "), "{text}");
    let last = text.lines().last().expect("a line");
    serde_json::from_str(last).expect("JSON")
}

#[test]
fn mnist_trains_to_the_same_bits_on_a_gpu_and_on_the_processor() {
    if adapters().is_empty() {
        let required = std::env::var("GRADRING_REQUIRE_GPU").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "GRADRING_REQUIRE_GPU is 1, and there is no adapter"
        );
        let _ = writeln!(std::io::stderr(), "NOT RUN: there is no adapter");
        return;
    }
    let data = tempfile::tempdir().expect("a directory");
    for set in ["train", "test"] {
        shorten(&format!("{set}-images-idx3-ubyte"), 16, 784, data.path());
        shorten(&format!("{set}-labels-idx1-ubyte"), 8, 1, data.path());
    }
    let [gpu, processor] = ["gpu", "processor"].map(|backend| run(data.path(), backend));
    for (result, begin) in [(&gpu, "GPU ("), (&processor, "processor (")] {
        let on = result["backends"].as_array().expect("a list");
        assert_eq!(on.len(), 2);
        let is_there = |on: &Value| on.as_str().is_some_and(|on| on.starts_with(begin));
        assert!(on.iter().all(is_there), "{on:?}");
        assert_eq!(result["identical"], true);
    }
    for what in [
        "hashes",
        "steps",
        "density",
        "compression",
        "losses",
        "accuracy",
    ] {
        assert_eq!(gpu[what], processor[what], "{what}");
    }
}
