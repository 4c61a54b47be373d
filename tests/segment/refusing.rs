//! What is refused, and with which reason.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use gradring::shm::cells::DEFAULT_CELLS;
use gradring::shm::layout::{self, Layout, MIN_RING_CAPACITY};
use gradring::shm::segment::{Segment, SegmentError};
use nix::unistd::geteuid;

use crate::children::Child;
use crate::{Named, Planted, exists, open_now, path, refusal, soon, sweep_away};

#[test]
fn without_a_name_there_is_no_segment() {
    let name = Planted::name();
    let result = Segment::open(&name, 1, soon());
    assert!(
        matches!(&result, Err(SegmentError::NotFound { name: n }) if *n == name),
        "{result:?}"
    );
    for name in [
        "",
        "/",
        "/other",
        "/gradring-xyz",
        "/gradring-../../../../../etc/passwd000000",
    ] {
        assert_eq!(refusal(open_now(name, 1), name).0, "name");
    }
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let victim = tempfile::NamedTempFile::new().unwrap();
    let link = Planted::with(|path| symlink(victim.path(), path).unwrap());
    let own = Named::new(1);
    let link_to_segment = Planted::with(|to| symlink(path(own.0.name()), to).unwrap());
    let fifo = Planted::with(|path| {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    });
    let directory = Planted::with(|path| fs::create_dir(path).unwrap());
    let socket = Planted::with(|path| drop(std::os::unix::net::UnixListener::bind(path).unwrap()));
    for (planted, kind) in [
        (&link, "a symbolic link"),
        (&link_to_segment, "a symbolic link"),
        (&fifo, "a FIFO"),
        (&directory, "a directory"),
        (&socket, "a socket"),
    ] {
        let (what, expected, found) = refusal(open_now(&planted.name, 1), &planted.name);
        assert_eq!(
            (what, expected.as_str(), found.as_str()),
            ("kind of file", "a regular file", kind)
        );
        Segment::sweep();
        assert!(exists(&planted.name), "a sweep leaves {kind} alone");
    }
    assert_eq!(victim.as_file().metadata().unwrap().len(), 0);
}

#[test]
fn a_file_that_others_may_use_is_refused() {
    for mode in [0o666, 0o640, 0o604, 0o4600, 0o400] {
        let planted = Planted::file(mode, 1 << 20);
        let (what, expected, found) = refusal(open_now(&planted.name, 1), &planted.name);
        assert_eq!(
            (what, expected, found),
            ("mode", "0600".into(), format!("{mode:04o}"))
        );
    }
}

#[test]
fn another_users_file_is_refused_and_not_swept() {
    if !geteuid().is_root() {
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: another_users_file_is_refused_and_not_swept: needs root for a second user"
        );
        return;
    }
    let planted = Planted::with(|path| {
        fs::write(path, [0; 100]).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
    });
    Segment::sweep();
    let (what, expected, found) = refusal(open_now(&planted.name, 1), &planted.name);
    assert_eq!(
        (what, expected, found),
        ("owner", "uid 0".into(), "uid 65534".into())
    );
}

#[test]
fn a_file_of_another_length_is_refused() {
    let whole = Named::new(2);
    let total = whole.0.layout().total as u64;
    let end_of_state = (layout::STATE + 4) as u64;
    for length in [
        1,
        100,
        end_of_state - 1,
        end_of_state,
        total / 2,
        total - 1,
        total + 1,
        total * 2,
    ] {
        let segment = Named::new(2);
        segment.file().set_len(length).unwrap();
        let (what, _, found) = refusal(open_now(segment.0.name(), 2), segment.0.name());
        assert_eq!((what, found), ("length", length.to_string()));
    }
}

#[test]
fn a_file_with_a_hole_is_refused() {
    let segment = Named::new(2);
    let total = segment.0.layout().total as u64;
    segment.file().set_len(total - 4096).unwrap();
    segment.file().set_len(total).unwrap();
    let (what, expected, _) = refusal(open_now(segment.0.name(), 2), segment.0.name());
    assert_eq!((what, expected), ("allocated bytes", total.to_string()));
}

#[test]
fn an_empty_or_unfinished_file_is_not_ready_at_the_deadline() {
    let total = Layout::new(1, MIN_RING_CAPACITY, DEFAULT_CELLS)
        .unwrap()
        .total as u64;
    for length in [0, total] {
        let planted = Planted::file(0o600, length);
        let patience = Duration::from_millis(30);
        let begun = Instant::now();
        match Segment::open(&planted.name, 1, begun + patience) {
            Err(SegmentError::NotReady { name, waited }) => {
                assert_eq!(name, planted.name);
                assert!(waited >= patience && begun.elapsed() >= patience);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn foreign_content_is_refused() {
    let total = Layout::new(1, MIN_RING_CAPACITY, DEFAULT_CELLS)
        .unwrap()
        .total as u64;
    let planted = Planted::file(0o600, total);
    let file = File::options()
        .write(true)
        .open(path(&planted.name))
        .unwrap();
    file.write_all_at(&vec![0x5a; layout::PAGE], 0).unwrap();
    file.write_all_at(&1_u32.to_ne_bytes(), layout::STATE as u64)
        .unwrap();
    let (what, expected, found) = refusal(open_now(&planted.name, 1), &planted.name);
    assert_eq!(
        (what, expected, found),
        ("magic", "gradring".into(), "ZZZZZZZZ".into())
    );
}

#[test]
fn every_byte_of_the_header_flipped_is_refused_and_the_right_one_accepted() {
    let segment = Named::new(2);
    let (name, file) = (segment.0.name(), segment.file());
    let mut page = vec![0; layout::PAGE];
    file.read_exact_at(&mut page, 0).unwrap();
    let length = page.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(length > 100);
    let mut reasons = HashSet::new();
    for (i, byte) in page[..length].iter().enumerate() {
        file.write_all_at(&[!byte], i as u64).unwrap();
        let (what, expected, found) = refusal(open_now(name, 2), name);
        assert_ne!(expected, found, "{what}");
        reasons.insert(what);
        file.write_all_at(&[*byte], i as u64).unwrap();
    }
    for reason in [
        "magic",
        "ABI version",
        "byte order",
        "layout (another build)",
        "header checksum",
    ] {
        assert!(reasons.contains(reason), "{reason} in {reasons:?}");
    }
    drop(open_now(name, 2).unwrap());
}

#[test]
fn another_world_size_is_refused_with_both() {
    let segment = Named::new(3);
    for world_size in [0, 1, 2, 4, 255, usize::MAX] {
        let result = open_now(segment.0.name(), world_size);
        let (what, expected, found) = refusal(result, segment.0.name());
        assert_eq!(
            (what, expected, found),
            ("world size", world_size.to_string(), "3".into())
        );
    }
}

#[test]
fn a_segment_under_another_name_is_refused() {
    let segment = Named::new(1);
    let copy = Planted::with(|to| fs::hard_link(path(segment.0.name()), to).unwrap());
    let (what, expected, found) = refusal(open_now(&copy.name, 1), &copy.name);
    assert_eq!(what, "name in the header");
    assert_eq!(format!("/gradring-{expected}"), copy.name);
    assert_eq!(format!("/gradring-{found}"), segment.0.name());
}

#[test]
fn a_segment_that_is_over_or_scribbled_on_is_refused() {
    let segment = Named::new(1);
    segment.0.state().close();
    let (what, _, found) = refusal(open_now(segment.0.name(), 1), segment.0.name());
    assert_eq!((what, found.as_str()), ("state", "Closed"));
    segment
        .file()
        .write_all_at(&77_u32.to_ne_bytes(), layout::STATE as u64)
        .unwrap();
    let (what, _, found) = refusal(open_now(segment.0.name(), 1), segment.0.name());
    assert_eq!((what, found.as_str()), ("state", "Unknown(77)"));
}

#[test]
fn what_a_dead_run_left_is_refused() {
    let mut child = Child::start("live", &[]);
    let name = child.hear("name");
    drop(open_now(&name, 2).unwrap());
    child.murder();
    // Unless another test's sweep has it already.
    match Segment::open(&name, 2, soon()) {
        Err(SegmentError::Refused {
            what: "life",
            found,
            ..
        }) => {
            assert_eq!(found, "a dead run's leftover");
        }
        Err(SegmentError::NotFound { .. }) => assert!(!exists(&name)),
        other => panic!("{other:?}"),
    }
    sweep_away(&name);
}
