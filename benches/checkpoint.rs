//! A checkpoint against a plain write of the same bytes, and a resumption against a plain read of them.
//!
//! The plain write is what nobody can do without: the bytes into a new file, fsync, and a rename onto the one before. A
//! checkpoint has checksums, a manifest and two directories to bring to the disk besides.

mod common;

use common::{Against, Bench, time};
use gradring::Replica;
use gradring::checkpoint::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

fn main() {
    let mut bench = Bench::from_args();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let large = bench.size(25_000_000, 250_000);
    for (elements, rounds) in [(large, 9), (250, 31)] {
        let name = format!("checkpoint of {elements} f32");
        if bench.wants(&name) {
            measure(&mut bench, &name, folder.path(), elements, rounds);
        }
    }
}

fn measure(bench: &mut Bench, name: &str, folder: &Path, elements: usize, rounds: usize) {
    let vector: Vec<f32> = (0..elements).map(|i| i as f32).collect();
    let directory = folder.join(elements.to_string());
    let (plain, new) = (folder.join("plain"), folder.join("new"));
    // Alone, without a launcher: no other replica to wait for.
    let join = || {
        let builder = Replica::builder().handle_signals(false);
        let builder = builder.checkpoint_directory(&directory).checkpoint_keep(1);
        builder.join().expect("alone")
    };
    let replica = join();
    let kept = replica.keep_value(Value::shared("vector", vector.clone()));
    let _kept = kept.expect("kept");
    let mut save = || {
        time(|| {
            replica
                .checkpoint()
                .expect("room")
                .expect("there is a directory")
        })
    };
    let mut write = || {
        time(|| {
            let mut file = File::create(&new).expect("a new file");
            file.write_all(bytemuck::cast_slice(&vector)).expect("room");
            file.sync_all().expect("a disk");
            // The one before is gone then, as with a checkpoint.
            fs::rename(&new, &plain).expect("beside it");
        })
    };
    let mut resume = || -> Duration {
        let replica = join();
        time(|| {
            let kept = replica.keep_value(Value::shared("vector", Vec::<f32>::new()));
            assert!(kept.expect("kept").resumed());
        })
    };
    let mut read = || {
        time(|| {
            let mut bytes = Vec::new();
            let mut file = File::open(&plain).expect("it was written");
            file.read_to_end(&mut bytes).expect("it was written");
            bytes
        })
    };
    let times = bench.interleave(rounds, &mut [&mut save, &mut write, &mut resume, &mut read]);
    let against = |ratio, reference| Some(Against { ratio, reference });
    let ratio = times[0].over(&times[1]);
    let of = against(
        ratio,
        "a plain write with fsync that replaces the one before",
    );
    bench.report(name, times[0].median() * 1e3, "ms", of);
    let ratio = times[2].over(&times[3]);
    let of = against(ratio, "a plain read of the bytes");
    bench.report(
        &format!("{name}, resumed"),
        times[2].median() * 1e3,
        "ms",
        of,
    );
}
