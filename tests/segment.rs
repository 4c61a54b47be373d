//! Segments between real processes: how they come to be, who may attach, how they go away.

mod children;
#[path = "segment/limits.rs"]
mod limits;
#[path = "segment/living.rs"]
mod living;
#[path = "segment/making.rs"]
mod making;
#[path = "segment/refusing.rs"]
mod refusing;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Instant;

use children::{PATIENCE, listen, role, tell};
use gradring::shm::layout::MIN_RING_CAPACITY;
use gradring::shm::segment::{Config, Segment, SegmentError};
use gradring::shm::sync::Ordering::Relaxed;

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
        "write" => making::write(&words[0]),
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
        "close descriptors" => living::close_descriptors(),
        "fork and drop" => living::fork_and_drop(),
        "fork and wait" => living::fork_and_wait(),
        "exec" => {
            let segment = Segment::create(&config(1)).unwrap();
            tell(format!("name {}", segment.name()));
            panic!("{}", std::process::Command::new("cat").exec());
        }
        "no room" => limits::no_room(),
        "just enough room" => limits::just_enough_room(),
        "closed standard descriptors" => limits::closed_standard_descriptors(),
        "interrupted" => limits::interrupted(),
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
            while living::listen_without_waiting() {
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
            while living::listen_without_waiting() {
                Segment::sweep();
            }
        }
        "limits" => limits::limits(),
        "crowd" => living::crowd(),
        other => panic!("no role {other}"),
    }
}

fn names() -> Vec<String> {
    fs::read_dir("/dev/shm")
        .unwrap()
        .flatten()
        .map(|entry| format!("/{}", entry.file_name().to_string_lossy()))
        .filter(|name| name.starts_with("/gradring-"))
        .collect()
}
