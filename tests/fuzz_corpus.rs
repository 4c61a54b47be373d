//! Every seed of the fuzz targets (`fuzz/README.md`), through the same code, as an ordinary test.

#[path = "../fuzz/fuzz_targets/bodies/mod.rs"]
mod bodies;

fn run(target: &str, body: fn(&[u8])) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let files =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds = 0;
    for file in files {
        let path = file.expect("a folder that can be listed").path();
        println!("{}", path.display());
        body(&std::fs::read(&path).expect("a seed that can be read"));
        seeds += 1;
    }
    assert!(seeds >= 20, "{seeds} seeds for {target}");
}

#[test]
fn seeds_of_records() {
    run("record", bodies::record::run);
}

#[test]
fn seeds_of_compact_streams() {
    run("compact", bodies::compact::run);
}

#[test]
fn seeds_of_deeplearning4j_messages() {
    run("compat", bodies::compat::run);
}

#[test]
fn a_guarded_copy_ends_where_nothing_may_be_touched() {
    let guarded = bodies::guard::Guarded::new(&[1_u32, 2, 3]);
    assert_eq!(guarded[..], [1, 2, 3]);
    // A system call refuses to read from where this process may not.
    let end = guarded.as_ptr_range().end;
    let mut pipe = [0; 2];
    // SAFETY: two numbers are written to, and the kernel checks what it reads.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], guarded.as_ptr().cast(), 12), 12);
        assert_eq!(libc::write(pipe[1], end.cast(), 1), -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EFAULT)
        );
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
}
