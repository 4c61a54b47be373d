//! The command line: what is there, and what is damaged.

use super::run;
use gradring::checkpoint::Value;
use std::path::Path;
use std::process::{Command, Output};

fn tool(what: &str, path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gradring"))
        .args(["checkpoint", what])
        .arg(path)
        .output()
        .expect("the tool is built with the tests")
}

fn says(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("a text")
}

#[test]
fn checkpoints_are_shown_and_what_is_damaged_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let empty = tool("verify", directory);
    assert_eq!(empty.status.code(), Some(1));
    assert!(says(&empty).contains("no checkpoint"));
    {
        let replica = run(directory);
        replica
            .keep_value(Value::shared("weights/\u{1b}[31m", vec![0.5_f32; 100]))
            .unwrap();
        replica.keep_value(Value::per_replica("seen", 3)).unwrap();
        replica.checkpoint().unwrap();
        replica.checkpoint().unwrap();
    }
    let whole = tool("verify", directory);
    assert_eq!(whole.status.code(), Some(0));
    assert!(says(&whole).contains("2 checkpoints, all whole"));
    let shown = says(&tool("show", directory));
    println!("{shown}");
    for part in [
        "checkpoint-2 (a run would go on from this one)",
        "checkpoint-1",
        "s ago)",
        "1 replica,",
    ] {
        assert!(shown.contains(part), "{part}");
    }
    assert!(shown.contains("per replica") && !shown.contains('\u{1b}'));

    let damaged = directory.join("checkpoint-2");
    std::fs::write(damaged.join("seen.rank-0"), "x").unwrap();
    let found = tool("verify", directory);
    assert_eq!(found.status.code(), Some(1));
    assert!(
        says(&found).contains("seen.rank-0 has 1 bytes"),
        "{}",
        says(&found)
    );
    let shown = says(&tool("show", directory));
    assert!(
        shown.contains("checkpoint-1 (a run would go on from this one)"),
        "{shown}"
    );
    assert!(shown.contains("damaged: seen.rank-0"), "{shown}");
    // One alone, also under a name of its own.
    assert_eq!(tool("verify", &damaged).status.code(), Some(1));
    let copy = directory.join("copy");
    std::fs::rename(directory.join("checkpoint-1"), &copy).unwrap();
    assert_eq!(tool("verify", &copy).status.code(), Some(0));
    for path in [directory.join("none"), copy.join("manifest")] {
        let output = tool("verify", &path);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(path.to_str().unwrap()));
    }
}
