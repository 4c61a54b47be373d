//! A system or a process without room, descriptors or quiet.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::time::Instant;

use gradring::shm::cells::DEFAULT_CELLS;
use gradring::shm::frame::Header;
use gradring::shm::layout::{self, Layout, MIN_RING_CAPACITY};
use gradring::shm::ring::{Consumer, Producer};
use gradring::shm::segment::{Config, Segment, SegmentError};
use gradring::shm::sync::Ordering::Relaxed;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::children::{self, Child, not_run, private_shared_memory, tell, within};
use crate::{config, names, soon};

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

pub(crate) fn no_room() {
    let entries = || fs::read_dir("/dev/shm").unwrap().count();
    assert_eq!(entries(), 0);
    let need = Layout::new(2, MIN_RING_CAPACITY, DEFAULT_CELLS)
        .unwrap()
        .total as u64;
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

pub(crate) fn just_enough_room() {
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

pub(crate) fn closed_standard_descriptors() {
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

pub(crate) fn limits() {
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

pub(crate) fn interrupted() {
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
