//! Who lives in a segment, and what is swept.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use gradring::shm::life::{Holder, Keeper};
use gradring::shm::segment::Segment;
use gradring::shm::sync::Ordering::Relaxed;
use nix::sys::signal::Signal;

use crate::children::{Child, listen, not_run, private_shared_memory, tell, within};
use crate::{Named, config, exists, names, open_now, sweep_away};

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

pub(crate) fn close_descriptors() {
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

pub(crate) fn fork_and_drop() {
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

pub(crate) fn fork_and_wait() {
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

pub(crate) fn crowd() {
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

/// True as long as the test has not closed this process's input.
pub(crate) fn listen_without_waiting() -> bool {
    let mut input = libc::pollfd {
        fd: 0,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, writable.
    let found = unsafe { libc::poll(&raw mut input, 1, 0) };
    found == 0
}
