//! Segments between real processes: how they come to be, who may attach, how they go away.

mod children;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use children::{Child, PATIENCE, listen, not_run, private_shared_memory, role, tell, within};
use gradring::shm::frame::Header;
use gradring::shm::layout::{self, Layout, MIN_RING_CAPACITY};
use gradring::shm::life::{Holder, Keeper};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::segment::{Config, Segment, SegmentError};
use gradring::shm::state::Phase;
use gradring::shm::sync::Ordering::{Acquire, Relaxed, Release};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::geteuid;

fn config(world_size: usize) -> Config {
    Config {
        ring_capacity: MIN_RING_CAPACITY,
        ..Config::new(world_size, 2)
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn open_now(name: &str, world_size: usize) -> Result<Segment, SegmentError> {
    Segment::open(name, world_size, Instant::now())
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm{name}"))
}

fn exists(name: &str) -> bool {
    path(name).symlink_metadata().is_ok()
}

/// A segment whose name goes with it.
struct Named(Segment);

impl Named {
    fn new(world_size: usize) -> Self {
        Self(Segment::create(&config(world_size)).unwrap())
    }

    fn file(&self) -> File {
        File::options()
            .read(true)
            .write(true)
            .open(path(self.0.name()))
            .unwrap()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.0.unlink().unwrap();
    }
}

/// Something that has a segment's name, until it is dropped.
struct Planted {
    name: String,
    /// Keeps sweepers of other tests away from it.
    _lock: Option<File>,
}

impl Planted {
    fn name() -> String {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).unwrap();
        format!("/gradring-{:032x}", u128::from_le_bytes(bits))
    }

    fn with(plant: impl FnOnce(&PathBuf)) -> Self {
        let name = Self::name();
        plant(&path(&name));
        Self { name, _lock: None }
    }

    /// A file of that length, all zero, and the lock that the living hold.
    fn file(mode: u32, length: u64) -> Self {
        let name = Self::name();
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path(&name))
            .unwrap();
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH) }, 0);
        // In this order: a change of the length clears the set-user-id bit.
        file.set_len(length).unwrap();
        fs::set_permissions(path(&name), fs::Permissions::from_mode(mode)).unwrap();
        Self {
            name,
            _lock: Some(file),
        }
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let path = path(&self.name);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
}

/// Sweeps until the name is gone: another process's sweep may be just at it, and then this one leaves it alone.
#[track_caller]
fn sweep_away(name: &str) {
    let end = soon();
    while exists(name) {
        assert!(Instant::now() < end, "{name} is not swept");
        Segment::sweep();
    }
}

#[track_caller]
fn refusal(result: Result<Segment, SegmentError>, name: &str) -> (&'static str, String, String) {
    match result {
        Err(SegmentError::Refused {
            name: named,
            what,
            expected,
            found,
        }) => {
            assert_eq!(named, name);
            (what, expected, found)
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn child() {
    let Some((role, words)) = role() else { return };
    match role.as_str() {
        "write" => write(&words[0]),
        "open when ready" => {
            tell("opening");
            let segment = Segment::open(&words[0], 2, soon()).unwrap();
            tell(format!(
                "opened {}",
                segment.rank(1).counters[0].load(Relaxed)
            ));
        }
        "live" => {
            let segment = Segment::create(&config(2)).unwrap();
            tell(format!("name {}", segment.name()));
            listen();
            segment.rank(0).counters[0].store(1, Relaxed);
            segment.unlink().unwrap();
        }
        "close descriptors" => close_descriptors(),
        "fork and drop" => fork_and_drop(),
        "fork and wait" => fork_and_wait(),
        "exec" => {
            let segment = Segment::create(&config(1)).unwrap();
            tell(format!("name {}", segment.name()));
            panic!("{}", std::process::Command::new("cat").exec());
        }
        "no room" => no_room(),
        "just enough room" => just_enough_room(),
        "closed standard descriptors" => closed_standard_descriptors(),
        "interrupted" => interrupted(),
        "create and remove" => {
            for _ in 0..200 {
                let segment = Segment::create(&config(1)).unwrap();
                assert!(
                    segment.unlink().unwrap(),
                    "a sweeper removed a living segment's name"
                );
            }
        }
        "open and close" => {
            let mut opened = false;
            while listen_without_waiting() {
                for name in names() {
                    // Whatever comes of it, it must not disturb those who create and sweep.
                    let opens = open_now(&name, 1).is_ok();
                    if opens && !opened {
                        tell("opened");
                    }
                    opened |= opens;
                }
            }
        }
        "sweep" => {
            while listen_without_waiting() {
                Segment::sweep();
            }
        }
        "limits" => limits(),
        "crowd" => crowd(),
        other => panic!("no role {other}"),
    }
}

/// True as long as the test has not closed this process's input.
fn listen_without_waiting() -> bool {
    let mut input = libc::pollfd {
        fd: 0,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, writable.
    let found = unsafe { libc::poll(&raw mut input, 1, 0) };
    found == 0
}

fn names() -> Vec<String> {
    fs::read_dir("/dev/shm")
        .unwrap()
        .flatten()
        .map(|entry| format!("/{}", entry.file_name().to_string_lossy()))
        .filter(|name| name.starts_with("/gradring-"))
        .collect()
}

#[test]
fn what_one_process_writes_another_reads() {
    let segment = Named::new(2);
    let (name, segment) = (segment.0.name().to_owned(), &segment.0);
    let mut child = Child::start("write", &[&name]);
    child.hear("written");
    let rank = segment.rank(1);
    assert_eq!(rank.inline[1].number.load(Acquire), 7);
    assert_eq!(rank.inline[1].words[127].load(Relaxed), u64::MAX);
    assert_eq!(rank.slots[63].extra.load(Acquire), 63);
    assert_eq!(rank.reason.words[30].load(Relaxed), 30);
    assert_eq!(rank.counters[15].load(Relaxed), 15);
    assert_eq!(rank.identity.raised.load(Relaxed), 4);
    assert_eq!(segment.rank(0).counters[15].load(Relaxed), 0);
    // The largest frame, so many times that the arena is full and wrapped.
    let mut consumer = Consumer::at(0, 0);
    let mut payload = Vec::new();
    for round in 0..9_u8 {
        let end = soon();
        loop {
            if let Some(grant) = segment.ring(1).peek(&mut consumer).unwrap() {
                grant.copy_payload(&mut payload);
                grant.release();
                break;
            }
            assert!(Instant::now() < end, "frame {round} has not come");
            std::thread::yield_now();
        }
        assert_eq!(payload, [round; layout::MAX_PAYLOAD]);
    }
    child.passes();
}

fn write(name: &str) {
    let segment = Segment::open(name, 2, soon()).unwrap();
    let rank = segment.rank(1);
    assert!(rank.state.claim());
    assert_eq!(segment.cores(), 2);
    assert_eq!(segment.world_size(), 2);
    assert_ne!(segment.header().creator(), std::process::id());
    rank.inline[1].words[127].store(u64::MAX, Relaxed);
    rank.reason.words[30].store(30, Relaxed);
    rank.counters[15].store(15, Relaxed);
    rank.identity.raised.store(4, Relaxed);
    rank.slots[63].extra.store(63, Release);
    rank.inline[1].number.store(7, Release);
    tell("written");
    // My own cursor is in front of every record.
    let (ring, mut producer, mut own) = (segment.ring(1), Producer::at(0), Consumer::at(1, 0));
    for round in 0..9_u8 {
        let bytes = [round; layout::MAX_PAYLOAD];
        let end = soon();
        loop {
            if let Ok(mut grant) = ring.reserve(&mut producer, bytes.len()) {
                assert!(grant.write(0, &bytes));
                let mut header: Header = bytemuck::Zeroable::zeroed();
                header.kind = 1;
                grant.commit(header);
                break;
            }
            assert!(Instant::now() < end, "no room for frame {round}");
            std::thread::yield_now();
        }
        ring.peek(&mut own)
            .unwrap()
            .expect("just committed")
            .release();
    }
}

#[test]
fn a_new_segment_is_ready_private_allocated_and_zero() {
    let segment = Named::new(3);
    let metadata = fs::metadata(path(segment.0.name())).unwrap();
    let layout = Layout::new(3, MIN_RING_CAPACITY).unwrap();
    assert_eq!(*segment.0.layout(), layout);
    assert_eq!(metadata.len(), layout.total as u64);
    assert!(metadata.blocks() * 512 >= metadata.len());
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert_eq!(segment.0.state().get(), Phase::Ready);
    assert_eq!(segment.0.header().creator(), std::process::id());
    assert_ne!(segment.0.header().creator_start(), 0);
    assert_ne!(segment.0.header().nonce(), Named::new(3).0.header().nonce());
    let digits = segment.0.name().strip_prefix("/gradring-").unwrap();
    assert_eq!(digits.len(), 32);
    let mut bytes = vec![0; layout.total];
    segment.file().read_exact_at(&mut bytes, 0).unwrap();
    let written: HashSet<usize> = (0..layout.total)
        .filter(|i| bytes[*i] != 0)
        .map(|i| i / layout::LINE)
        .collect();
    let lines_of_the_header = 0..2;
    assert!(written.iter().all(|line| lines_of_the_header.contains(line) || *line == layout::STATE / layout::LINE));
}

#[test]
fn two_segments_at_once_have_nothing_in_common() {
    let (a, b) = (Named::new(2), Named::new(2));
    assert_ne!(a.0.name(), b.0.name());
    let again = open_now(a.0.name(), 2).unwrap();
    a.0.rank(0).counters[0].store(11, Relaxed);
    b.0.rank(0).counters[0].store(22, Relaxed);
    assert_eq!(again.rank(0).counters[0].load(Relaxed), 11);
    assert_eq!(b.0.rank(0).counters[0].load(Relaxed), 22);
}

#[test]
fn impossible_configurations_are_refused_before_anything_is_made() {
    for (world_size, ring_capacity, cores) in [
        (0, MIN_RING_CAPACITY, 1),
        (256, MIN_RING_CAPACITY, 1),
        (1, MIN_RING_CAPACITY + 1, 1),
        (1, MIN_RING_CAPACITY / 2, 1),
        (255, 1 << 62, 1),
        (1, MIN_RING_CAPACITY, 0),
    ] {
        let config = Config {
            world_size,
            ring_capacity,
            cores,
        };
        let result = Segment::create(&config);
        assert!(
            matches!(result, Err(SegmentError::Config(_))),
            "{config:?}: {result:?}"
        );
    }
    let two = Segment::alone(&config(2));
    assert!(matches!(two, Err(SegmentError::Config(_))), "{two:?}");
}

#[test]
fn a_segment_for_one_process_alone_leaves_no_name() {
    let segment = Segment::alone(&config(1)).unwrap();
    assert!(!exists(segment.name()));
    segment.rank(0).counters[0].store(3, Relaxed);
    assert_eq!(segment.rank(0).counters[0].load(Relaxed), 3);
    assert!(!segment.unlink().unwrap());
}

#[test]
fn a_name_is_removed_once_and_only_from_its_own_file() {
    let segment = Segment::create(&config(1)).unwrap();
    assert!(segment.unlink().unwrap());
    assert!(!segment.unlink().unwrap());
    fs::write(path(segment.name()), "somebody else's").unwrap();
    // A sweeper of another test may take the foreign file first, as it is nobody's; then there is nothing to show.
    assert!(!segment.unlink().unwrap());
    let _ = fs::remove_file(path(segment.name()));
}

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
        println!(
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
    let total = Layout::new(1, MIN_RING_CAPACITY).unwrap().total as u64;
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
    let total = Layout::new(1, MIN_RING_CAPACITY).unwrap().total as u64;
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
fn whoever_opens_waits_until_the_creator_is_ready() {
    let segment = Named::new(2);
    let state = layout::STATE as u64;
    segment
        .file()
        .write_all_at(&0_u32.to_ne_bytes(), state)
        .unwrap();
    let mut child = Child::start("open when ready", &[&segment.0.name()]);
    child.hear("opening");
    segment.0.rank(1).counters[0].store(42, Relaxed);
    segment.0.state().publish();
    assert_eq!(child.hear("opened"), "42");
    child.passes();
}

#[test]
fn a_sweep_removes_the_dead_and_leaves_the_living() {
    let mut living = Child::start("live", &[]);
    let mut dead = Child::start("live", &[]);
    let (alive, gone) = (living.hear("name"), dead.hear("name"));
    Segment::sweep();
    assert!(exists(&alive) && exists(&gone));
    dead.murder();
    sweep_away(&gone);
    assert!(exists(&alive));
    drop(open_now(&alive, 2).unwrap());
    living.say("end");
    living.passes();
    assert!(!exists(&alive));
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

#[test]
fn a_process_that_closes_all_descriptors_still_lives_in_its_segment() {
    let mut child = Child::start("close descriptors", &[]);
    let name = child.hear("name");
    Segment::sweep();
    assert!(exists(&name), "swept although somebody lives there");
    drop(open_now(&name, 1).unwrap());
    child.say("drop");
    child.hear("dropped");
    sweep_away(&name);
    child.passes();
}

fn close_descriptors() {
    let segment = Segment::create(&config(1)).unwrap();
    close_range_from(3);
    // The numbers of the crate's descriptor and of ours are given to files of the user's.
    let files: Vec<File> = (0..16).map(|_| tempfile::tempfile().unwrap()).collect();
    assert!(
        files.iter().any(|file| file.as_raw_fd() < 6),
        "the numbers are used again"
    );
    let name = segment.name().to_owned();
    tell(format!("name {name}"));
    assert_eq!(listen().as_deref(), Some("drop"));
    segment.rank(0).counters[0].store(1, Relaxed);
    drop(segment);
    for file in &files {
        file.write_all_at(b"still mine", 0).unwrap();
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(&name), "still mapped: {maps}");
    tell("dropped");
    assert_eq!(listen(), None);
}

fn close_range_from(first: libc::c_uint) {
    // SAFETY: whoever owned these descriptors must cope, which is what is tested.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    assert_eq!(closed, 0, "{}", io::Error::last_os_error());
}

/// A forked child that runs `child` and ends without running anything of the parent's.
fn fork(child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses what it has a copy of, and ends by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let good = child();
            // SAFETY: ends the process.
            unsafe { libc::_exit(if good { 0 } else { 1 }) }
        }
        pid => {
            assert!(pid > 0, "{}", io::Error::last_os_error());
            pid
        }
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_forked_child_that_drops_the_segment_touches_nothing() {
    let mut child = Child::start("fork and drop", &[]);
    let name = child.hear("name");
    Segment::sweep();
    assert!(exists(&name), "the lock is gone");
    child.say("go on");
    child.passes();
    assert!(!exists(&name));
}

fn fork_and_drop() {
    let segment = Arc::new(Segment::create(&config(1)).unwrap());
    let keeper = Keeper::start(Arc::clone(&segment), Holder::Rank(0), None).unwrap();
    let life = segment.rank(0).life.load(Relaxed);
    let before = descriptors();
    let name = segment.name().to_owned();
    let (copy, copied_keeper): (&Segment, &Keeper) = (&segment, &keeper);
    let pid = fork(|| {
        // SAFETY: the child's own copies of both values, which it never uses again. (The segment's own destructor, which
        // the engine thread's share of it would keep from running.)
        let (segment, keeper) = unsafe { (std::ptr::read(copy), std::ptr::read(copied_keeper)) };
        drop(keeper);
        drop(segment);
        let mapped = fs::read_to_string("/proc/self/maps")
            .unwrap()
            .contains(&name);
        mapped && descriptors() == before && exists(&name)
    });
    let mut status = 0;
    // SAFETY: an own child, waited for once.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the forked child closed or unmapped something");
    assert_eq!(
        segment.rank(0).life.load(Relaxed),
        life,
        "the token was given away"
    );
    assert_eq!(descriptors(), before);
    tell(format!("name {}", segment.name()));
    assert_eq!(listen().as_deref(), Some("go on"));
    keeper.leave();
    assert!(segment.unlink().unwrap());
}

#[test]
fn a_forked_child_that_lives_on_does_not_keep_a_dead_segment() {
    let mut child = Child::start("fork and wait", &[]);
    let name = child.hear("name");
    let orphan = child.hear("forked").parse().unwrap();
    Segment::sweep();
    assert!(exists(&name));
    child.murder();
    let swept = std::panic::catch_unwind(|| sweep_away(&name));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(orphan), Signal::SIGKILL).unwrap();
    assert!(swept.is_ok(), "a forked child kept the lock");
}

fn fork_and_wait() {
    let segment = Segment::create(&config(1)).unwrap();
    let pid = fork(|| {
        loop {
            // SAFETY: sleeps until a signal ends it, at the latest when the test has given up long ago.
            unsafe {
                libc::alarm(300);
                libc::pause()
            };
        }
    });
    tell(format!("name {}", segment.name()));
    tell(format!("forked {pid}"));
    listen();
}

#[test]
fn exec_ends_a_life_in_a_segment() {
    let mut child = Child::start("exec", &[]);
    let name = child.hear("name");
    // The new program says back what it hears, so it runs.
    child.say("@ running");
    child.hear("running");
    sweep_away(&name);
    child.passes();
}

#[test]
fn a_shared_memory_that_is_too_small_is_an_error_and_leaves_nothing() {
    let test = "a_shared_memory_that_is_too_small_is_an_error_and_leaves_nothing";
    let Some(front) = private_shared_memory("1m") else {
        return not_run(
            test,
            "no private /dev/shm, neither as root nor in a user namespace",
        );
    };
    let mut child = Child::spawn(&mut within(&front, "no room", &[]));
    println!("{}", child.hear("refused"));
    child.passes();
    let Some(front) = private_shared_memory("1m") else {
        unreachable!("it was possible just now")
    };
    Child::spawn(&mut within(&front, "just enough room", &[])).passes();
}

fn no_room() {
    let entries = || fs::read_dir("/dev/shm").unwrap().count();
    assert_eq!(entries(), 0);
    let need = Layout::new(2, MIN_RING_CAPACITY).unwrap().total as u64;
    assert!(need > 1 << 20);
    for attempt in [Segment::create(&config(2)), Segment::create(&config(2))] {
        match attempt {
            Err(error @ SegmentError::NoSpace { need: n, free }) => {
                assert_eq!(n, need);
                assert_eq!(
                    free,
                    1 << 20,
                    "everything that the attempt had taken is back"
                );
                let text = error.to_string();
                assert!(
                    text.contains("/dev/shm") && text.contains(&need.to_string()),
                    "{text}"
                );
                tell(format!("refused: {text}"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(entries(), 0);
    }
}

fn just_enough_room() {
    let segment = Segment::create(&config(1)).unwrap();
    // Every page exists, so the last byte can be touched; this would be a bus error otherwise.
    let ring = segment.ring(0);
    let mut producer = Producer::at(0);
    let mut consumer = Consumer::at(0, 0);
    for _ in 0..20 {
        let mut grant = ring.reserve(&mut producer, layout::MAX_PAYLOAD).unwrap();
        assert!(grant.write(0, &[1; layout::MAX_PAYLOAD]));
        let mut header: Header = bytemuck::Zeroable::zeroed();
        header.kind = 1;
        grant.commit(header);
        ring.peek(&mut consumer).unwrap().unwrap().release();
    }
    assert!(matches!(
        Segment::create(&config(1)),
        Err(SegmentError::NoSpace { .. })
    ));
    segment.unlink().unwrap();
}

#[test]
fn closed_standard_descriptors_are_not_used_for_a_segment() {
    let child = Child::start("closed standard descriptors", &[]);
    child.passes();
}

fn closed_standard_descriptors() {
    // SAFETY: nobody reads from it or writes to it in this process any more, and std does not close them.
    assert_eq!(unsafe { libc::close(0) | libc::close(2) }, 0);
    let segment = Segment::create(&config(1)).unwrap();
    let again = Segment::open(segment.name(), 1, soon()).unwrap();
    let null = fs::metadata("/dev/null").unwrap().rdev();
    let check = || {
        for number in [0, 2] {
            let found = fs::metadata(format!("/proc/self/fd/{number}")).unwrap();
            assert_eq!(found.rdev(), null, "descriptor {number}");
        }
    };
    check();
    segment.unlink().unwrap();
    drop((segment, again));
    check();
}

#[test]
fn limits_of_the_process_are_errors_and_leave_nothing() {
    let test = "limits_of_the_process_are_errors_and_leave_nothing";
    let Some(front) = private_shared_memory("64m") else {
        return not_run(
            test,
            "no private /dev/shm, neither as root nor in a user namespace",
        );
    };
    Child::spawn(&mut within(&front, "limits", &[])).passes();
}

fn limits() {
    let code = |error| match error {
        SegmentError::Os { source, .. } => source.raw_os_error(),
        other => panic!("{other}"),
    };
    let with = |resource, soft: u64| {
        let (former, hard) = getrlimit(resource).unwrap();
        setrlimit(resource, soft, hard).unwrap();
        let made = Segment::create(&config(1));
        setrlimit(resource, former, hard).unwrap();
        assert_eq!(names(), Vec::<String>::new(), "{resource:?} {soft}");
        code(made.unwrap_err())
    };
    assert_eq!(with(Resource::RLIMIT_FSIZE, 64 << 10), Some(libc::EFBIG));
    assert_eq!(with(Resource::RLIMIT_AS, 1 << 20), Some(libc::ENOMEM));
    // First the crate's descriptor is missing, then each of ours.
    let lowest_free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    for more in 0..3 {
        let code = with(Resource::RLIMIT_NOFILE, lowest_free + more);
        assert_eq!(code, Some(libc::EMFILE), "{more}");
    }
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o777));
    let made = Segment::create(&config(1));
    nix::sys::stat::umask(before);
    assert_eq!(names(), Vec::<String>::new());
    match made {
        Err(SegmentError::Refused {
            what: "mode",
            found,
            ..
        }) => assert_eq!(found, "0000"),
        Err(error) => assert_eq!(code(error), Some(libc::EACCES)),
        Ok(_) => panic!("nobody could open this"),
    }
}

#[test]
fn signals_do_not_disturb_the_making_of_a_segment() {
    let mut command = children::command("interrupted", &[]);
    // For the whole child; the one thread that is to be interrupted lets it in again.
    let block = || Ok(one_signal(Signal::SIGALRM).thread_block()?);
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(block) };
    Child::spawn(&mut command).passes();
}

fn one_signal(signal: Signal) -> SigSet {
    let mut set = SigSet::empty();
    set.add(signal);
    set
}

static SIGNALS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

fn interrupted() {
    extern "C" fn count(_: libc::c_int) {
        SIGNALS.fetch_add(1, Relaxed);
    }
    let action = SigAction::new(
        SigHandler::Handler(count),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler only adds to an atomic.
    unsafe { sigaction(Signal::SIGALRM, &action) }.unwrap();
    one_signal(Signal::SIGALRM).thread_unblock().unwrap();
    alarm_every(300);
    // Large enough to be interrupted many times each.
    let config = Config {
        ring_capacity: 16 << 20,
        ..config(2)
    };
    let end = soon();
    while SIGNALS.load(Relaxed) < 200 {
        let segment = Segment::create(&config).unwrap();
        assert!(segment.unlink().unwrap());
        assert!(Instant::now() < end);
    }
    alarm_every(0);
}

/// SIGALRM at every so many microseconds; 0: no more.
fn alarm_every(microseconds: libc::suseconds_t) {
    let each = libc::timeval {
        tv_sec: 0,
        tv_usec: microseconds,
    };
    let timer = libc::itimerval {
        it_interval: each,
        it_value: each,
    };
    // SAFETY: a valid timer; no old value is asked for.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

#[test]
fn many_who_create_open_and_sweep_at_once_never_lose_a_living_segment() {
    let test = "many_who_create_open_and_sweep_at_once_never_lose_a_living_segment";
    // In a /dev/shm of their own, so that they do not open and hold the dead segments of other tests.
    let Some(front) = private_shared_memory("64m") else {
        return not_run(
            test,
            "no private /dev/shm, neither as root nor in a user namespace",
        );
    };
    Child::spawn(&mut within(&front, "crowd", &[])).passes();
}

fn crowd() {
    let mut visitor = Child::start("open and close", &[]);
    let sweepers: Vec<Child> = (0..2).map(|_| Child::start("sweep", &[])).collect();
    let creators: Vec<Child> = (0..3)
        .map(|_| Child::start("create and remove", &[]))
        .collect();
    for creator in creators {
        creator.passes();
    }
    for sweeper in sweepers {
        sweeper.passes();
    }
    // It may have come too late for any of theirs.
    let segment = Named::new(1);
    visitor.hear("opened");
    visitor.passes();
    drop(segment);
    assert_eq!(names(), Vec::<String>::new());
}
