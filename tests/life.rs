//! Life tokens of real processes: whatever ends a holder, its token says so, and nothing else makes it say so.

mod children;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use children::{Child, PATIENCE, listen, role, tell};
use gradring::shm::layout::MIN_RING_CAPACITY;
use gradring::shm::life::{Holder, Keeper, Life, look};
use gradring::shm::segment::{Config, Segment};
use gradring::shm::sync::AtomicU32;
use gradring::shm::sync::Ordering::{Acquire, Relaxed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A segment for three ranks whose name goes with it.
struct World(Arc<Segment>);

impl World {
    fn new() -> Self {
        let config = Config {
            ring_capacity: MIN_RING_CAPACITY,
            ..Config::new(3, 2)
        };
        Self(Arc::new(Segment::create(&config).unwrap()))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn word(&self, holder: Holder) -> &AtomicU32 {
        match holder {
            Holder::Rank(rank) => &self.0.rank(rank).life,
            Holder::Launcher => self.0.launcher_life(),
        }
    }

    fn look(&self, rank: usize) -> Life {
        look(self.word(Holder::Rank(rank)))
    }

    /// Waits until the rank's token says so; how long that took from `begun`.
    #[track_caller]
    fn becomes(&self, rank: usize, life: Life, begun: Instant) -> Duration {
        while self.look(rank) != life {
            assert!(
                begun.elapsed() < PATIENCE,
                "{:?}, not {life:?}",
                self.look(rank)
            );
            std::thread::yield_now();
        }
        begun.elapsed()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.0.unlink().unwrap();
    }
}

fn join(name: &str) -> Arc<Segment> {
    Arc::new(Segment::open(name, 3, Instant::now() + PATIENCE).unwrap())
}

/// Joins as rank 1.
fn hold(name: &str, lifeline: Option<OwnedFd>) -> (Arc<Segment>, Keeper) {
    let segment = join(name);
    let keeper = Keeper::start(Arc::clone(&segment), Holder::Rank(1), lifeline).unwrap();
    (segment, keeper)
}

/// Keepers that nothing drops, as a trainer's that ends by `exit`.
static KEPT: OnceLock<Keeper> = OnceLock::new();

#[test]
fn child() {
    let Some((role, words)) = role() else { return };
    let name = &words[0];
    match role.as_str() {
        "hold" => {
            let (segment, keeper) = hold(name, None);
            let touched = vec![1_u8; words[1].parse::<usize>().unwrap() << 20];
            tell(format!(
                "holds {}",
                segment.rank(1).identity.pid.load(Relaxed)
            ));
            end(&listen().unwrap_or_default(), keeper);
            drop((segment, touched));
        }
        "fork" => {
            let (_segment, _keeper) = hold(name, None);
            let orphan = fork_and_wait();
            tell(format!("forked {orphan}"));
            listen();
        }
        "close descriptors" => close_descriptors(name),
        "leave with a lost waker" => leave_with_a_lost_waker(name),
        "lifeline" => {
            let (_segment, _keeper) = hold(name, Some(inherited(&words[1])));
            tell("holds");
            loop {
                // Deaf to everything but its lifeline.
                std::thread::park();
            }
        }
        "another file on the lifeline's number" => another_file(name, &words[1]),
        "launcher" => {
            let segment = join(name);
            let _keeper = Keeper::start(segment, Holder::Launcher, None).unwrap();
            tell("holds");
            listen();
        }
        "lost lifeline" => {
            let (_segment, _keeper) = hold(name, Some(inherited(&words[1])));
            close_range_from(3);
            tell("closed");
            loop {
                std::thread::park();
            }
        }
        "thread" => the_thread(name),
        "many" => {
            let segment = join(name);
            for _ in 0..300 {
                let keeper = Keeper::start(Arc::clone(&segment), Holder::Rank(1), None).unwrap();
                assert!(matches!(look(&segment.rank(1).life), Life::Alive { .. }));
                keeper.leave();
                assert_eq!(look(&segment.rank(1).life), Life::Absent);
            }
        }
        other => panic!("no role {other}"),
    }
}

/// Ends in the way that the test asks for.
fn end(how: &str, keeper: Keeper) {
    let kept = |keeper| KEPT.set(keeper).expect("set once");
    match how {
        "leave" => keeper.leave(),
        "drop" => drop(keeper),
        "exit" => {
            kept(keeper);
            std::process::exit(3)
        }
        "abort" => {
            kept(keeper);
            std::process::abort()
        }
        "exec" => panic!("{}", Command::new("cat").exec()),
        "panic" => {
            let _keeper = keeper;
            panic!("as asked")
        }
        "panic without unwinding the keeper" => {
            kept(keeper);
            panic!("as asked")
        }
        other => panic!("no end {other:?}"),
    }
}

/// A child that holds rank 1 with `mebibytes` of touched memory.
fn holder(world: &World, mebibytes: usize) -> Child {
    assert_eq!(world.look(1), Life::Absent);
    let mut child = Child::start("hold", &[&world.name(), &mebibytes]);
    let pid: i32 = child.hear("holds").parse().unwrap();
    assert_eq!(pid, child.pid().as_raw());
    let tid = world.0.rank(1).identity.tid.load(Acquire);
    assert_eq!(world.look(1), Life::Alive { tid });
    assert!(fs::exists(format!("/proc/{pid}/task/{tid}")).unwrap());
    child
}

#[test]
fn a_killed_holder_is_dead_at_once() {
    let world = World::new();
    let mut child = holder(&world, 0);
    let begun = Instant::now();
    child.kill();
    let took = world.becomes(1, Life::Dead, begun);
    println!("killed, small: seen dead after {took:?}");
    assert_eq!(child.wait().signal(), Some(libc::SIGKILL));
    // Nobody repairs it.
    assert_eq!(world.look(1), Life::Dead);
}

#[test]
fn a_killed_holder_of_much_memory_is_dead_before_its_memory_is_gone() {
    let world = World::new();
    let mut child = holder(&world, 512);
    let begun = Instant::now();
    child.kill();
    let took = world.becomes(1, Life::Dead, begun);
    child.wait();
    println!(
        "killed, 512 MiB: seen dead after {took:?}, reaped after {:?}",
        begun.elapsed()
    );
}

#[test]
fn exit_abort_exec_and_panic_end_a_life() {
    for how in [
        "exit",
        "abort",
        "exec",
        "panic without unwinding the keeper",
    ] {
        let world = World::new();
        let mut child = holder(&world, 0);
        let begun = Instant::now();
        child.say(how);
        let took = world.becomes(1, Life::Dead, begun);
        println!("{how}: seen dead after {took:?}");
        let status = child.wait();
        match how {
            "exit" => assert_eq!(status.code(), Some(3)),
            "abort" => assert_eq!(status.signal(), Some(libc::SIGABRT)),
            "exec" => assert!(status.success(), "the new program ends with its input"),
            _ => assert_eq!(status.code(), Some(101)),
        }
        assert_eq!(world.look(1), Life::Dead, "{how}");
    }
}

#[test]
fn whoever_leaves_or_drops_or_unwinds_is_absent_and_not_dead() {
    for how in ["leave", "drop", "panic"] {
        let world = World::new();
        let mut child = holder(&world, 0);
        child.say(how);
        world.becomes(1, Life::Absent, Instant::now());
        assert_eq!(child.wait().success(), how != "panic");
        assert_eq!(world.look(1), Life::Absent, "{how}");
    }
}

#[test]
fn a_living_forked_child_does_not_hide_the_death() {
    let world = World::new();
    let mut child = Child::start("fork", &[&world.name()]);
    let orphan = Pid::from_raw(child.hear("forked").parse().unwrap());
    assert!(matches!(world.look(1), Life::Alive { .. }));
    let begun = Instant::now();
    child.kill();
    let took = world.becomes(1, Life::Dead, begun);
    println!("killed, forked child lives on: seen dead after {took:?}");
    child.wait();
    kill(orphan, None).expect("the forked child lives");
    kill(orphan, Signal::SIGKILL).unwrap();
}

#[test]
fn a_forked_child_that_ends_is_not_the_holders_death() {
    let world = World::new();
    let mut child = Child::start("fork", &[&world.name()]);
    let orphan = Pid::from_raw(child.hear("forked").parse().unwrap());
    kill(orphan, Signal::SIGKILL).unwrap();
    // A zombie now, as its parent does not wait for it.
    let stat = format!("/proc/{orphan}/stat");
    let end = Instant::now() + PATIENCE;
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    assert!(matches!(world.look(1), Life::Alive { .. }));
    child.murder();
    assert_eq!(world.look(1), Life::Dead);
}

/// A forked child that sleeps until it is killed, at the latest when the test has given up long ago.
fn fork_and_wait() -> libc::pid_t {
    // SAFETY: the child only sleeps.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: sleeps until a signal ends it.
            unsafe {
                libc::alarm(300);
                libc::pause()
            };
        },
        pid => {
            assert!(pid > 0, "{}", io::Error::last_os_error());
            pid
        }
    }
}

fn close_range_from(first: libc::c_uint) {
    // SAFETY: whoever owned these descriptors must cope, which is what is tested.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    assert_eq!(closed, 0, "{}", io::Error::last_os_error());
}

#[test]
fn closing_all_descriptors_neither_ends_a_life_nor_hides_its_end() {
    let world = World::new();
    let mut child = Child::start("close descriptors", &[&world.name()]);
    child.hear("closed");
    assert!(matches!(world.look(1), Life::Alive { .. }));
    child.murder();
    assert_eq!(world.look(1), Life::Dead);
    let other = World::new();
    let mut child = Child::start("close descriptors", &[&other.name()]);
    child.hear("closed");
    child.say("leave");
    child.hear("left");
    assert_eq!(other.look(1), Life::Absent);
    child.passes();
}

fn close_descriptors(name: &str) {
    let (segment, keeper) = hold(name, None);
    let tid = segment.rank(1).identity.tid.load(Acquire).to_string();
    close_range_from(3);
    // The numbers of the thread's sockets are given to pipes that are ready to be read and to files that must not change.
    let mut pipes = Vec::new();
    let mut files = Vec::new();
    for _ in 0..8 {
        let (reader, writer) = io::pipe().unwrap();
        io::Write::write_all(&mut &writer, b"mine").unwrap();
        pipes.push((reader, writer));
        files.push(tempfile::tempfile().unwrap());
    }
    tell("closed");
    assert_eq!(listen().as_deref(), Some("leave"));
    keeper.leave();
    has_ended(&tid);
    drop(segment);
    for (mut reader, writer) in pipes {
        drop(writer);
        let mut read = Vec::new();
        io::Read::read_to_end(&mut reader, &mut read).unwrap();
        assert_eq!(read, b"mine", "nothing was written and nothing read");
    }
    for file in files {
        assert_eq!(file.metadata().unwrap().len(), 0);
        file.write_all_at(b"still open", 0).unwrap();
    }
    tell("left");
}

/// A thread that has been joined is in the list until the kernel has taken it apart.
#[track_caller]
fn has_ended(tid: &str) {
    let end = Instant::now() + PATIENCE;
    while tasks().contains(tid) {
        assert!(Instant::now() < end, "the engine thread goes on");
        std::thread::yield_now();
    }
}

fn tasks() -> HashSet<String> {
    let entries = fs::read_dir("/proc/self/task").unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_thread_that_cannot_be_woken_sleeps_and_still_ends() {
    let world = World::new();
    let child = Child::start("leave with a lost waker", &[&world.name()]);
    child.passes();
    assert_eq!(world.look(1), Life::Absent);
}

fn leave_with_a_lost_waker(name: &str) {
    let segment = join(name);
    let before = sockets();
    let keeper = Keeper::start(Arc::clone(&segment), Holder::Rank(1), None).unwrap();
    let tid = segment.rank(1).identity.tid.load(Acquire);
    // One of the pair: the thread's own end hangs up, and would say so at every poll.
    let waker = *sockets().difference(&before).min().unwrap();
    // SAFETY: taken from the engine on purpose.
    assert_eq!(unsafe { libc::close(waker) }, 0);
    let begun = Instant::now();
    // Long enough for a thread that spins to be caught at it.
    std::thread::park_timeout(Duration::from_millis(1500));
    let ticks = ticks(tid);
    assert!(
        ticks < 20,
        "{ticks} ticks of processor time within {:?}",
        begun.elapsed()
    );
    keeper.leave();
    has_ended(&tid.to_string());
}

fn sockets() -> HashSet<i32> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries
        .filter(|entry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        })
        .map(|entry| entry.file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

/// Processor time of one of this process's threads, in ticks of 10 ms.
fn ticks(tid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A pipe whose reading end a child inherits, with its number.
fn lifeline() -> (io::PipeReader, io::PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    // SAFETY: an open descriptor; F_SETFD sets a flag.
    let set = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFD, 0) };
    assert_eq!(set, 0);
    (reader, writer)
}

fn inherited(number: &str) -> OwnedFd {
    // SAFETY: the parent has handed this number down, and nobody else in this process uses it.
    unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) }
}

#[test]
fn a_replica_kills_itself_when_its_launcher_hangs_up() {
    let world = World::new();
    let (reader, writer) = lifeline();
    let mut child = Child::start("lifeline", &[&world.name(), &reader.as_raw_fd()]);
    child.hear("holds");
    drop(reader);
    assert!(matches!(world.look(1), Life::Alive { .. }));
    let begun = Instant::now();
    drop(writer);
    let took = world.becomes(1, Life::Dead, begun);
    println!("launcher hung up: seen dead after {took:?}");
    assert_eq!(child.wait().signal(), Some(libc::SIGKILL));
}

#[test]
fn another_file_on_the_lifelines_number_kills_nobody() {
    let world = World::new();
    let (reader, writer) = lifeline();
    let words: [&dyn std::fmt::Display; 2] = [&world.name(), &reader.as_raw_fd()];
    let child = Child::start("another file on the lifeline's number", &words);
    child.passes();
    drop((reader, writer));
}

fn another_file(name: &str, number: &str) {
    let lifeline = inherited(number);
    let number = lifeline.as_raw_fd();
    let (segment, keeper) = hold(name, Some(lifeline));
    let tid = segment.rank(1).identity.tid.load(Acquire);
    let (hung_up, writer) = io::pipe().unwrap();
    drop(writer);
    // SAFETY: taken from the engine on purpose, as a user's dup2 would.
    assert_eq!(unsafe { libc::dup2(hung_up.as_raw_fd(), number) }, number);
    // Over the end of the thread's slice of one second, with which it polls again.
    std::thread::park_timeout(Duration::from_millis(2200));
    assert!(ticks(tid) < 20, "the thread spins");
    keeper.leave();
    // SAFETY: F_GETFD reads a flag.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    assert_ne!(flags, -1, "the user's file was closed");
}

#[test]
fn without_its_lifeline_a_replica_still_follows_its_launcher() {
    let world = World::new();
    let (reader, writer) = lifeline();
    let mut launcher = Child::start("launcher", &[&world.name()]);
    launcher.hear("holds");
    let mut child = Child::start("lost lifeline", &[&world.name(), &reader.as_raw_fd()]);
    child.hear("closed");
    let begun = Instant::now();
    launcher.murder();
    assert_eq!(look(world.0.launcher_life()), Life::Dead);
    let took = world.becomes(1, Life::Dead, begun);
    println!("launcher dead, lifeline closed: seen dead after {took:?}");
    assert_eq!(child.wait().signal(), Some(libc::SIGKILL));
    drop((reader, writer));
}

#[test]
fn a_token_has_one_holder() {
    let world = World::new();
    let keeper = Keeper::start(Arc::clone(&world.0), Holder::Rank(1), None).unwrap();
    let life = world.look(1);
    let second = Keeper::start(Arc::clone(&world.0), Holder::Rank(1), None);
    assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(world.look(1), life);
    // Others are free.
    let launcher = Keeper::start(Arc::clone(&world.0), Holder::Launcher, None).unwrap();
    assert!(matches!(look(world.0.launcher_life()), Life::Alive { .. }));
    assert_eq!(world.look(0), Life::Absent);
    keeper.leave();
    launcher.leave();
    assert_eq!(world.look(1), Life::Absent);
    assert_eq!(look(world.0.launcher_life()), Life::Absent);
}

#[test]
fn a_dead_holders_token_is_not_taken_again() {
    let world = World::new();
    holder(&world, 0).murder();
    let second = Keeper::start(Arc::clone(&world.0), Holder::Rank(1), None);
    assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(world.look(1), Life::Dead);
}

#[test]
fn a_rank_that_is_not_there_has_no_token() {
    let world = World::new();
    for rank in [3, 255, usize::MAX] {
        let keeper = Keeper::start(Arc::clone(&world.0), Holder::Rank(rank), None);
        assert_eq!(keeper.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn the_thread_blocks_all_signals_and_goes_with_its_keeper() {
    let world = World::new();
    Child::start("thread", &[&world.name()]).passes();
}

fn the_thread(name: &str) {
    let (before, own) = (tasks(), own_mask());
    let (segment, keeper) = hold(name, None);
    assert_eq!(own_mask(), own, "the caller's mask is as before");
    let tid = segment.rank(1).identity.tid.load(Acquire).to_string();
    let new: Vec<String> = tasks().difference(&before).cloned().collect();
    assert_eq!(new, [tid.as_str()]);
    let blocked = mask(&tid);
    for signal in Signal::iterator() {
        let bit = 1 << (signal as i32 - 1);
        let never = matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
        assert_eq!(blocked & bit == 0, never, "{signal}");
    }
    drop(keeper);
    has_ended(&tid);
    assert_eq!(tasks(), before);
    assert_eq!(
        Arc::strong_count(&segment),
        1,
        "the thread gave the segment back"
    );
}

fn own_mask() -> u64 {
    // SAFETY: gettid has no arguments.
    mask(&unsafe { libc::gettid() }.to_string())
}

fn mask(tid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn joining_and_leaving_leaves_nothing_behind() {
    let world = World::new();
    let descriptors = |pid: Pid| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let mut child = Child::start("many", &[&world.name()]);
    assert!(descriptors(child.pid()) < 50);
    assert!(child.wait().success());
    let (segment, keeper) = hold(world.name(), None);
    let file = File::open("/dev/null").unwrap();
    let first = file.as_raw_fd();
    keeper.leave();
    drop((segment, file));
    assert!(first < 100, "descriptors leak: {first}");
}

#[test]
fn any_word_has_a_meaning() {
    let of = |word: u32| look(&AtomicU32::new(word));
    assert_eq!(of(0), Life::Absent);
    assert_eq!(of(4711), Life::Alive { tid: 4711 });
    assert_eq!(of(4711 | libc::FUTEX_WAITERS), Life::Alive { tid: 4711 });
    assert_eq!(of(libc::FUTEX_OWNER_DIED), Life::Dead);
    assert_eq!(of(libc::FUTEX_OWNER_DIED | libc::FUTEX_WAITERS), Life::Dead);
    assert_eq!(of(libc::FUTEX_WAITERS), Life::Absent);
    assert_eq!(of(u32::MAX), Life::Dead);
}
