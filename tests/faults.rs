//! Faults with real processes, real kills and real signals: everybody else gets the same typed error, in time.

#[path = "faults/crashes.rs"]
mod crashes;
#[path = "faults/schedules.rs"]
mod schedules;
mod world;

use gradring::replica::Operation;
use gradring::{Error, Exchange, Replica, op};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use world::{Ended, PATIENCE, Setup, World, tell};

const OPERATIONS: [&str; 5] = ["barrier", "step", "broadcast", "all_gather", "all_reduce"];

/// Does one kind of operation until an error ends the run.
fn until_error(replica: &Replica, operation: &str) -> Error {
    if schedules::OPERATIONS.contains(&operation) {
        let error = schedules::until_error(replica, operation);
        assert!(error.ends_the_run(), "{error}");
        let later = replica.barrier().expect_err("the run is over");
        assert_eq!(kind(&later), kind(&error), "the same from everything later");
        return error;
    }
    let mut exchange = match operation {
        "step" => match Exchange::builder(600_000).build(replica) {
            Ok(exchange) => Some(exchange),
            Err(error) => return error,
        },
        _ => None,
    };
    let mut vector = vec![0.5_f32; 600_000];
    let update = vec![1e-3_f32; 600_000];
    tell("running");
    loop {
        let result = match operation {
            "barrier" => replica.barrier(),
            "step" => exchange
                .as_mut()
                .map_or(Ok(()), |e| e.step(Some(&update), &mut vector).map(drop)),
            "broadcast" => replica.broadcast(0, &mut vector),
            "all_gather" => replica.all_gather(&[7; 3000]).map(drop),
            "long all_gather" => replica.all_gather(&vec![7; 10_000_000]).map(drop),
            "all_reduce" => replica.all_reduce(&mut [1_u64], op::Sum),
            other => panic!("no operation {other}"),
        };
        if let Err(error) = result {
            assert!(error.ends_the_run(), "{error}");
            let later = replica.barrier().expect_err("the run is over");
            assert_eq!(kind(&later), kind(&error), "the same from everything later");
            return error;
        }
    }
}

/// What every replica must say alike: the error's kind and rank. What each was doing differs.
fn kind(error: &Error) -> String {
    match error {
        Error::ReplicaDied { rank, .. } => format!("died {rank}"),
        Error::ReplicaLeft { rank, .. } => format!("left {rank}"),
        Error::TimedOut { rank, .. } => format!("timed out {rank}"),
        Error::Panicked { rank } => format!("panicked {rank}"),
        Error::Aborted { rank, reason } => format!("aborted {rank} {reason}"),
        Error::Protocol { rank, .. } => format!("protocol {rank}"),
        Error::Mismatch { came, .. } => {
            let came: Vec<String> = came
                .iter()
                .map(|(rank, what): &(usize, Operation)| format!("{rank}: {what}"))
                .collect();
            format!("mismatch {}", came.join("; "))
        }
        other => format!("{other}"),
    }
}

fn report(error: &Error) {
    tell(format!("error {}", kind(error)));
    tell(format!("message {error}"));
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let patience = if case == "join briefly" {
        Duration::from_millis(500)
    } else {
        PATIENCE
    };
    let replica = match Replica::builder().join_timeout(patience).join() {
        Ok(replica) => replica,
        Err(error) => {
            report(&error);
            return;
        }
    };
    let rank = replica.rank();
    let operation = variable("OPERATION");
    match case.as_str() {
        "apart" => report(&crashes::apart(&replica)),
        "until error" => report(&until_error(&replica, &operation)),
        "big victim" => {
            let mut memory = vec![0_u8; if rank == 1 { 512 << 20 } else { 1 }];
            for page in memory.chunks_mut(4096) {
                page[0] = 1;
            }
            report(&until_error(&replica, &operation));
            std::hint::black_box(&memory);
        }
        "victim ends" => {
            if rank != 1 {
                report(&until_error(&replica, &operation));
                return;
            }
            // One of everything, so that the others are inside their operation.
            tell("running");
            match variable("END").as_str() {
                "panic" => panic!("this is the test's panic"),
                "exit" => std::process::exit(3),
                "abort" => std::process::abort(),
                "leave" => drop(replica),
                other => panic!("no end {other}"),
            }
        }
        "aborts" => {
            let other = replica.clone();
            let thread = std::thread::spawn(move || {
                if other.rank() == 1 {
                    other.abort("the data is wrong");
                    other.abort("another reason comes too late");
                }
            });
            report(&until_error(&replica, &operation));
            thread.join().expect("no panic");
        }
        "mismatch" => {
            let began = Instant::now();
            let mut exchange = Exchange::builder(1000).build(&replica).expect("agreed");
            let mut parameters = vec![0.0; 1000];
            let error = if rank == 0 {
                replica.barrier().expect_err("the others step")
            } else {
                exchange
                    .step(Some(&[1.0; 1000]), &mut parameters)
                    .map(drop)
                    .expect_err("rank 0 is in a barrier")
            };
            report(&error);
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "not at the deadline"
            );
        }
        "mismatched values" => {
            let error = if rank == 0 {
                replica.all_reduce(&mut [1_u64], op::Sum)
            } else {
                replica.all_reduce(&mut [1_u64], op::Max)
            };
            report(&error.expect_err("they differ"));
        }
        "mismatch before rank 0" => {
            if rank == 0 {
                // After the others' first look around, and long before they stop waiting for it.
                std::thread::sleep(Duration::from_millis(40));
            }
            let error = match rank {
                1 => replica.barrier(),
                _ => replica.all_gather(&[]).map(drop),
            };
            report(&error.expect_err("they differ"));
        }
        "mismatched broadcasts" => {
            let error = match (operation.as_str(), rank) {
                ("barrier", 1) => replica.barrier(),
                ("root", 1) => replica.broadcast(1, &mut []),
                ("length", 1) => replica.broadcast(0, &mut [0.0; 2]),
                ("no length", 1) => replica.broadcast(0, &mut [0.0]),
                ("length", _) => replica.broadcast(0, &mut [0.0]),
                _ => replica.broadcast(0, &mut []),
            };
            report(&error.expect_err("they differ"));
        }
        "descriptors" => {
            // A child that lives on, and all descriptors but the one that the test reads closed.
            if rank == 1 {
                // SAFETY: the child only sleeps and ends, without any lock or memory of this process.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: as above. The child must end by itself, and hold no pipe of the test.
                    unsafe {
                        libc::close_range(0, u32::MAX, 0);
                        libc::sleep(20);
                        libc::_exit(0)
                    }
                }
                tell(format!("child {child}"));
                for descriptor in (0..100).filter(|&descriptor| descriptor != 1) {
                    // SAFETY: what belongs to them is meant to meet closed descriptors.
                    unsafe { libc::close(descriptor) };
                }
            }
            report(&until_error(&replica, &operation));
        }
        "signals" => {
            extern "C" fn nothing(_: libc::c_int) {}
            let each = libc::timeval {
                tv_sec: 0,
                tv_usec: 1000,
            };
            let timer = libc::itimerval {
                it_interval: each,
                it_value: each,
            };
            let handler: extern "C" fn(libc::c_int) = nothing;
            // SAFETY: the handler does nothing, and the timer is a valid one.
            unsafe {
                libc::signal(libc::SIGALRM, handler as libc::sighandler_t);
                libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
            }
            let mut exchange = Exchange::builder(300_000).build(&replica).expect("agreed");
            let mut parameters = vec![0.0; 300_000];
            for step in 0..300 {
                let update = vec![1e-3 * (step + rank) as f32; 300_000];
                exchange
                    .step(Some(&update), &mut parameters)
                    .expect("no spurious error");
                replica.barrier().expect("no spurious error");
            }
            tell("done");
        }
        "barriers" => {
            for _ in 0..6 {
                replica.barrier().expect("all come");
            }
            // Every other operation, so that all barriers have numbers of one kind.
            for _ in 0..6 {
                replica.barrier().expect("all come");
                replica.all_gather(&[1]).expect("all come");
            }
            tell("done");
        }
        "crowd" => {
            let mut exchange = Exchange::builder(100_000).build(&replica).expect("agreed");
            let mut parameters = vec![0.0; 100_000];
            for step in 0..100 {
                let update: Vec<f32> = (0..100_000)
                    .map(|i| ((i * (rank + 2) + step) as f32).sin())
                    .collect();
                exchange
                    .step(Some(&update), &mut parameters)
                    .expect("steps");
                replica.barrier().expect("all come");
            }
            tell(format!(
                "parameters {:016x}",
                gradring::parameter_hash(&parameters)
            ));
        }
        other => panic!("no case {other}"),
    }
}

fn setup(operation: &str) -> Setup {
    Setup {
        environment: vec![("OPERATION".into(), operation.into())],
        ..Setup::default()
    }
}

fn with(mut setup: Setup, name: &str, value: &str) -> Setup {
    setup.environment.push((name.into(), value.into()));
    setup
}

fn survivors_say(ended: &[Ended], victim: usize, expected: &str) {
    for (rank, replica) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
        assert_eq!(
            replica.one("error"),
            expected,
            "rank {rank}: {:?}",
            replica.heard
        );
        assert!(
            replica.status.success(),
            "rank {rank}: {} {:?}",
            replica.status,
            replica.heard
        );
    }
}

#[test]
fn a_killed_replica_is_reported_to_every_other_whatever_they_do() {
    for operation in OPERATIONS {
        let mut world = World::with("until error", 4, &setup(operation));
        world.hear("running");
        let killed = Instant::now();
        world.replicas[1].signal(Signal::SIGKILL);
        for rank in [0, 2, 3] {
            world.replicas[rank].hear("error");
        }
        println!(
            "{operation}: all had the error {:?} after the kill",
            killed.elapsed()
        );
        assert!(
            killed.elapsed() < Duration::from_secs(5),
            "not at the deadline"
        );
        survivors_say(&world.finish(), 1, "died 1");
    }
}

#[test]
fn a_killed_replica_with_much_memory_is_reported_as_well() {
    let mut world = World::with("big victim", 2, &setup("barrier"));
    world.hear("running");
    let killed = Instant::now();
    world.replicas[1].signal(Signal::SIGKILL);
    world.replicas[0].hear("error");
    println!(
        "512 MiB: the error came {:?} after the kill",
        killed.elapsed()
    );
    survivors_say(&world.finish(), 1, "died 1");
}

#[test]
fn the_last_one_alive_has_the_error_too() {
    let mut world = World::with("until error", 4, &setup("step"));
    world.hear("running");
    for rank in [0, 1, 3] {
        world.replicas[rank].signal(Signal::SIGKILL);
    }
    let error = world.replicas[2].hear("error");
    assert!(error.starts_with("error died"), "{error}");
}

#[test]
fn a_replica_that_dies_while_the_others_still_join_is_reported() {
    // Rank 2 never comes.
    let mut world = World::empty(3, &setup("barrier"));
    world.add("until error", 0, &setup("barrier"));
    world.add("until error", 1, &setup("barrier"));
    let end = Instant::now() + PATIENCE;
    let joined = |world: &World, rank: usize| {
        world.segment.rank(rank).state.get() == gradring::shm::seat::Seated::Joined
    };
    while !(joined(&world, 0) && joined(&world, 1)) {
        assert!(Instant::now() < end, "they do not join");
        std::thread::yield_now();
    }
    world.replicas[1].signal(Signal::SIGKILL);
    survivors_say(&world.finish(), 1, "died 1");
}

#[test]
fn however_a_replica_ends_the_others_are_told() {
    let ends = [
        ("panic", "panicked 1"),
        ("exit", "died 1"),
        ("abort", "died 1"),
        ("leave", "left 1"),
    ];
    for operation in OPERATIONS {
        for (end, expected) in ends {
            let world = World::with("victim ends", 3, &with(setup(operation), "END", end));
            let ended = world.finish();
            survivors_say(&ended, 1, expected);
            if end == "exit" {
                assert_eq!(ended[1].status.code(), Some(3));
            }
        }
    }
}

/// Rank 1 kills itself when it comes to a point for the n-th time.
fn crashes(operation: &str, point: &str) -> Setup {
    with(
        setup(operation),
        "GRADRING_CRASH_POINT",
        &format!("1 {point}"),
    )
}

#[test]
fn a_replica_killed_between_any_two_accesses_leaves_nothing_torn_and_is_reported() {
    let in_rings = ["step", "broadcast", "all_gather"];
    for (point, operations) in [
        ("frame-written 5", &in_rings[..]),
        ("tail-stored 5", &in_rings[..]),
        ("frame-read 5", &in_rings[..]),
        ("arrived 5", &["barrier"][..]),
    ] {
        for operation in operations {
            // Only the root of a broadcast publishes.
            let root_only = *operation == "broadcast" && point != "frame-read 5";
            let victim = if root_only { 0 } else { 1 };
            let point = format!("{victim} {point}");
            let setup = with(setup(operation), "GRADRING_CRASH_POINT", &point);
            let ended = World::with("until error", 3, &setup).finish();
            assert_eq!(
                ended[victim].status.signal(),
                Some(libc::SIGKILL),
                "{operation} {point}"
            );
            survivors_say(&ended, victim, &format!("died {victim}"));
        }
    }
}

#[test]
fn a_replica_killed_while_joining_is_reported() {
    let ended = World::with("until error", 3, &crashes("barrier", "alive 1")).finish();
    survivors_say(&ended, 1, "died 1");
    // With its seat and without a life token it is seen by nobody but its launcher; without one it is missing.
    let ended = World::with("join briefly", 3, &crashes("barrier", "claimed 1")).finish();
    for rank in [0, 2] {
        let message = ended[rank].one("message");
        assert!(message.contains("missing rank 1"), "{message}");
    }
}

#[test]
fn a_replica_killed_while_leaving_has_left() {
    let environment = with(
        with(setup("step"), "END", "leave"),
        "GRADRING_CRASH_POINT",
        "1 seat-left 1",
    );
    let ended = World::with("victim ends", 3, &environment).finish();
    for rank in [0, 2] {
        let error = ended[rank].one("error");
        assert!(["left 1", "died 1"].contains(&error), "{error}");
    }
}

#[test]
fn a_finder_of_a_death_that_dies_too_does_not_keep_it_to_itself() {
    // Rank 1 finds rank 2 dead and dies before it has said so; rank 0 says one of both.
    let mut world = World::with("until error", 3, &crashes("barrier", "death-found 1"));
    world.hear("running");
    world.replicas[0].signal(Signal::SIGSTOP);
    world.replicas[0].wait_for_stop();
    world.replicas[2].signal(Signal::SIGKILL);
    let end = Instant::now() + PATIENCE;
    let dead = |world: &World, rank: usize| {
        let life = &world.segment.rank(rank).life;
        gradring::shm::life::look(life) == gradring::shm::life::Life::Dead
    };
    while !(dead(&world, 1) && dead(&world, 2)) {
        assert!(Instant::now() < end, "rank 1 does not find out");
        std::thread::yield_now();
    }
    world.replicas[0].signal(Signal::SIGCONT);
    let ended = world.finish();
    let error = ended[0].one("error");
    assert!(["died 1", "died 2"].contains(&error), "{error}");
}

#[test]
fn an_abort_from_any_thread_reaches_all_with_its_reason() {
    for operation in OPERATIONS {
        let ended = World::with("aborts", 3, &setup(operation)).succeed();
        survivors_say(&ended, 3, "aborted 1 the data is wrong");
    }
}

#[test]
fn a_stopped_replica_is_named_at_the_deadline_and_publishes_nothing_more() {
    // In the long ones the others do not wait for the stopped one's records, but for room that it does not give.
    for (operation, stopped) in [
        ("barrier", 1),
        ("step", 1),
        ("broadcast", 2),
        ("long all_gather", 0),
    ] {
        let setup = Setup {
            deadline: Duration::from_secs(1),
            ..setup(operation)
        };
        let mut world = World::with("until error", 3, &setup);
        world.hear("running");
        world.replicas[stopped].signal(Signal::SIGSTOP);
        for rank in (0..3).filter(|&rank| rank != stopped) {
            world.replicas[rank].hear("error");
        }
        world.replicas[stopped].signal(Signal::SIGCONT);
        survivors_say(&world.finish(), 3, &format!("timed out {stopped}"));
    }
}

#[test]
fn a_barrier_against_a_step_is_a_mismatch_that_names_both() {
    let ended = World::start("mismatch", 2).succeed();
    let expected = "mismatch 0: barrier; 1: step of exchange 0 (1000 elements)";
    survivors_say(&ended, 2, expected);
}

#[test]
fn all_reduces_that_differ_are_a_mismatch_that_names_both() {
    let ended = World::start("mismatched values", 2).succeed();
    survivors_say(
        &ended,
        2,
        "mismatch 0: all_reduce of 1 values (sum of u64); 1: all_reduce of 1 values (max of u64)",
    );
}

#[test]
fn who_differs_is_told_by_rank_0_though_it_comes_last() {
    // A machine that is busy may hold rank 0 up for longer than the others wait.
    let came = (0..20).any(|_| {
        let mut world = World::start("mismatch before rank 0", 3);
        let said: Vec<String> = (0..3)
            .map(|rank| world.replicas[rank].hear("error"))
            .collect();
        let verdict = world.segment.poison().get().expect("the run is over");
        world.succeed();
        let all = "error mismatch 0: all_gather; 1: barrier; 2: all_gather";
        said.iter().all(|said| said == all) && verdict.rank == 1
    });
    assert!(came);
}

#[test]
fn broadcasts_that_differ_succeed_nowhere() {
    let zero = "0: broadcast of 0 elements from rank 0";
    for (operation, expected) in [
        ("barrier", format!("{zero}; 1: barrier")),
        (
            "root",
            format!("{zero}; 1: broadcast of 0 elements from rank 1"),
        ),
        (
            "no length",
            format!("{zero}; 1: broadcast of 1 elements from rank 0"),
        ),
        (
            "length",
            "0: broadcast of 1 elements from rank 0; 1: broadcast of 2 elements from rank 0".into(),
        ),
    ] {
        let ended = World::with("mismatched broadcasts", 2, &setup(operation)).succeed();
        survivors_say(&ended, 2, &format!("mismatch {expected}"));
    }
}

#[test]
fn a_replica_that_never_joins_is_named() {
    let mut world = World::empty(4, &setup("barrier"));
    for rank in [0, 2] {
        world.add("join briefly", rank, &setup("barrier"));
    }
    for rank in 0..2 {
        let message = world.replicas[rank].hear("message");
        assert!(message.contains("missing ranks 1, 3"), "{message}");
    }
    // For the launcher too it is not the fault of those that came.
    let verdict = world.segment.poison().get().expect("the run is over");
    assert_eq!(verdict.rank, 1);
    // Who comes too late is told so.
    world.add("join briefly", 1, &setup("barrier"));
    assert_eq!(world.replicas[2].hear("error"), "error timed out 1");
    world.succeed();
}

#[test]
fn a_second_process_of_a_rank_is_refused() {
    let mut world = World::with("until error", 2, &setup("barrier"));
    world.hear("running");
    world.add("until error", 1, &setup("barrier"));
    let message = world.replicas[2].hear("message");
    assert!(message.contains("rank 1 is taken by process"), "{message}");
    assert!(
        message.contains(&world.replicas[1].pid().to_string()),
        "{message}"
    );
    // The run of the two goes on undisturbed, until this.
    world.replicas[1].signal(Signal::SIGKILL);
    world.replicas[0].hear("error died 1");
}

#[test]
fn a_dead_replica_with_a_living_child_and_without_descriptors_is_reported() {
    let mut world = World::with("descriptors", 2, &setup("step"));
    let child = world.replicas[1]
        .hear("child")
        .trim_start_matches("child ")
        .parse()
        .expect("a number");
    world.hear("running");
    world.replicas[1].signal(Signal::SIGKILL);
    survivors_say(&world.finish(), 1, "died 1");
    // This test's own process's child's child; it would end by itself.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGKILL);
}

#[test]
fn a_storm_of_signals_causes_no_error() {
    World::start("signals", 2).succeed();
}

#[test]
fn eight_replicas_on_one_core_finish() {
    let wrapper = ["taskset", "-c", "0"].map(str::to_owned).to_vec();
    let ended = World::with(
        "crowd",
        8,
        &Setup {
            wrapper,
            cores: 1,
            ..Setup::default()
        },
    )
    .succeed();
    let hashes: Vec<&str> = ended
        .iter()
        .map(|replica| replica.one("parameters"))
        .collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn two_runs_at_once_do_not_meet() {
    let one = World::start("crowd", 2);
    let two = World::start("crowd", 3);
    let (one, two) = (one.succeed(), two.succeed());
    assert_eq!(one[0].one("parameters"), one[1].one("parameters"));
    assert_eq!(two[0].one("parameters"), two[2].one("parameters"));
    assert_ne!(
        one[0].one("parameters"),
        two[0].one("parameters"),
        "other data"
    );
}

#[test]
fn who_is_behind_is_told_though_the_sum_of_all_positions_passes_64_bits() {
    // Rank 1 stops in the 3rd frame of 128 KiB, the root publishes as many more as its ring holds, and waits for room: the
    // sum of the positions of rank 1 is below 2^64, of the others above.
    let before = 5 * (131_072 + 64);
    let mut setup = crashes("broadcast", "frame-read 3 stop");
    setup.deadline = Duration::from_secs(1);
    setup.begin = (0, (u64::MAX - before) / 3);
    let mut world = World::with("until error", 3, &setup);
    for rank in [0, 2] {
        world.replicas[rank].hear("error");
    }
    world.replicas[1].signal(Signal::SIGCONT);
    survivors_say(&world.finish(), 9, "timed out 1");
}

/// The number of the operation before the first, and where all rings begin: shortly before what 31, 32, 48 and 63 bits
/// can count.
const BORDERS: [u64; 5] = [1 << 31, 1 << 32, 1 << 48, 1 << 63, 3 << 62];

#[test]
fn barriers_pass_whatever_their_number() {
    for border in BORDERS {
        for before in 0..4 {
            let setup = Setup {
                begin: (border - before, 0),
                ..Setup::default()
            };
            for ended in World::with("barriers", 2, &setup).succeed() {
                ended.one("done");
            }
        }
    }
}

#[test]
fn who_came_for_what_is_told_whatever_the_number() {
    for border in BORDERS {
        let setup = Setup {
            begin: (border - 1, 0),
            ..Setup::default()
        };
        let ended = World::with("mismatch", 2, &setup).succeed();
        let expected = "mismatch 0: barrier; 1: step of exchange 0 (1000 elements)";
        survivors_say(&ended, 2, expected);
    }
}

#[test]
fn who_holds_the_others_up_is_told_wherever_the_rings_stand() {
    for (operation, stopped) in [("step", 1), ("long all_gather", 0), ("broadcast", 2)] {
        // The sums of all positions pass what 64 bits can count.
        for world_size in [3_u64, 4] {
            let setup = Setup {
                deadline: Duration::from_secs(1),
                begin: (0, u64::MAX / world_size - 5_000_000),
                ..setup(operation)
            };
            let mut world = World::with("until error", world_size as usize, &setup);
            world.hear("running");
            world.replicas[stopped].signal(Signal::SIGSTOP);
            let others = (0..world_size as usize).filter(|&rank| rank != stopped);
            for rank in others {
                world.replicas[rank].hear("error");
            }
            world.replicas[stopped].signal(Signal::SIGCONT);
            survivors_say(&world.finish(), 9, &format!("timed out {stopped}"));
        }
    }
}
