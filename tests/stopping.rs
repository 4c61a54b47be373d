//! Flags and signals: what one replica is asked, all agree on, after the same operation.

mod world;

use gradring::{Error, Flags, Replica, Stop};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, raise, sigaction};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use world::{Setup, World, case, tell};

fn join() -> Replica {
    Replica::join().expect("all come")
}

/// Meets the others until all have agreed to stop.
fn until_the_stop(replica: &Replica) {
    assert_eq!(replica.stop_requested(), None);
    tell("going");
    let mut barriers = 0;
    loop {
        replica.barrier().expect("all come");
        barriers += 1;
        if let Some(stop) = replica.stop_requested() {
            tell(format!("stopped {stop} after {barriers}"));
            return;
        }
    }
}

static FORMER: AtomicU32 = AtomicU32::new(0);

extern "C" fn former(_: i32) {
    FORMER.fetch_add(1, Ordering::SeqCst);
}

fn dispose(signal: Signal, handler: SigHandler) {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handlers here only add to an atomic.
    unsafe { sigaction(signal, &action) }.expect("a signal that can be handled");
}

/// Waits for a signal that ends this process.
fn until_the_end() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn replica() {
    let Some(case) = case() else { return };
    match case.as_str() {
        "until the stop" => until_the_stop(&join()),
        "never asks" => {
            let replica = join();
            tell("going");
            while replica.barrier().is_ok() {}
            until_the_end();
        }
        "asks, and does not stop" => {
            let replica = join();
            assert_eq!(replica.stop_requested(), None);
            tell("going");
            until_the_end();
        }
        "without handlers" => {
            let replica = Replica::builder().handle_signals(false).join();
            let replica = replica.expect("alone");
            assert_eq!(replica.stop_requested(), None);
            tell("going");
            until_the_end();
        }
        "has left" => {
            let replica = join();
            assert_eq!(replica.stop_requested(), None);
            drop(replica);
            tell("going");
            until_the_end();
        }
        "former handler" => {
            dispose(Signal::SIGTERM, SigHandler::Handler(former));
            let replica = join();
            raise(Signal::SIGTERM).expect("this process");
            assert_eq!(FORMER.load(Ordering::SeqCst), 1);
            replica.barrier().expect("alone");
            assert_eq!(replica.stop_requested(), Some(Stop::Terminate));
            tell("done");
        }
        "ignored" => {
            dispose(Signal::SIGINT, SigHandler::SigIgn);
            let replica = join();
            assert_eq!(replica.stop_requested(), None);
            raise(Signal::SIGINT).expect("this process");
            replica.barrier().expect("alone");
            assert_eq!(replica.agreed(), Flags::NONE);
            tell("done");
        }
        "forks" => {
            let replica = join();
            assert_eq!(replica.stop_requested(), None);
            // SAFETY: the child only sleeps, until a signal ends it.
            match unsafe { fork() }.expect("room for a process") {
                ForkResult::Child => until_the_end(),
                ForkResult::Parent { child } => {
                    kill(child, Signal::SIGTERM).expect("it is there until it is waited for");
                    let ended = waitpid(child, None).expect("an own child");
                    assert_eq!(ended, WaitStatus::Signaled(child, Signal::SIGTERM, false));
                }
            }
            replica.barrier().expect("alone");
            assert_eq!(
                replica.agreed(),
                Flags::NONE,
                "the child's signal is its own"
            );
            tell("done");
        }
        "before it joined" => {
            // Each a world of its own.
            // SAFETY: the other threads of this process only wait.
            unsafe { std::env::remove_var(gradring::replica::RANK) };
            // A first replica, with whom the handlers come, and which is gone.
            let first = join();
            first.stop_requested();
            raise(Signal::SIGTERM).expect("this process");
            first.barrier().expect("alone");
            assert_eq!(first.agreed(), Flags::TERMINATE);
            drop(first);
            let second = join();
            second.barrier().expect("alone");
            assert_eq!(second.agreed(), Flags::NONE, "that was before its time");
            tell("done");
        }
        other => panic!("no case {other}"),
    }
}

#[test]
fn a_signal_at_any_replica_stops_all_after_the_same_operation() {
    for (signal, stop) in [
        (Signal::SIGTERM, Stop::Terminate),
        (Signal::SIGINT, Stop::Interrupt),
    ] {
        for rank in 0..3 {
            let mut world = World::start("until the stop", 3);
            world.hear("going");
            world.replicas[rank].signal(signal);
            let ended = world.succeed();
            let said = ended[0].one("stopped");
            assert!(said.starts_with(&stop.to_string()), "{said}");
            for other in &ended {
                assert_eq!(other.one("stopped"), said);
            }
        }
    }
}

#[test]
fn a_storm_of_sigterm_is_one_stop() {
    let mut world = World::start("until the stop", 4);
    world.hear("going");
    let pids: Vec<Pid> = world.replicas.iter().map(world::Process::pid).collect();
    let ended = std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            for turn in 0..400 {
                // Not waited for before the storm is over: the number is still theirs.
                kill(pids[turn % 4], Signal::SIGTERM).expect("not waited for yet");
            }
        });
        storm.join().expect("it ends");
        world.succeed()
    });
    for other in &ended {
        assert_eq!(other.one("stopped"), ended[0].one("stopped"));
    }
}

#[test]
fn flags_of_several_replicas_come_together() {
    let replica = join();
    replica.raise(Flags::RESIZE);
    assert_eq!(replica.agreed(), Flags::NONE, "nobody acts on a raw flag");
    replica.barrier().expect("alone");
    assert_eq!(replica.stop_requested(), Some(Stop::Resize));
    replica.raise(Flags::TERMINATE);
    replica.barrier().expect("alone");
    assert_eq!(replica.agreed(), Flags::RESIZE | Flags::TERMINATE);
}

/// What ends a process that gets a signal when it has told that it is going.
fn ended_by(case: &str, signals: &[Signal]) -> Option<i32> {
    let mut world = World::start(case, 1);
    for (turn, signal) in signals.iter().enumerate() {
        if turn == 0 {
            world.hear("going");
        } else {
            // It has not ended by the one before, and this is no echo of it.
            std::thread::sleep(Duration::from_millis(200));
        }
        world.replicas[0].signal(*signal);
    }
    world.finish()[0].status.signal()
}

#[test]
fn a_replica_that_never_asks_whether_to_stop_ends_by_the_signal_like_any_program() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        for case in ["never asks", "without handlers", "has left"] {
            assert_eq!(ended_by(case, &[signal]), Some(signal as i32), "{case}");
        }
    }
}

#[test]
fn the_echo_of_a_ctrl_c_is_no_second_one() {
    let mut world = World::start("until the stop", 1);
    world.hear("going");
    for _ in 0..20 {
        // Not waited for yet: the number is still its own.
        kill(world.replicas[0].pid(), Signal::SIGINT).expect("it is there until it is waited for");
    }
    assert!(world.succeed()[0].one("stopped").starts_with("interrupted"));
}

#[test]
fn a_second_ctrl_c_ends_a_replica_that_does_not_stop() {
    let twice = [Signal::SIGINT, Signal::SIGINT];
    let ended = ended_by("asks, and does not stop", &twice);
    assert_eq!(ended, Some(Signal::SIGINT as i32));
    let many = [Signal::SIGTERM, Signal::SIGTERM, Signal::SIGKILL];
    let ended = ended_by("asks, and does not stop", &many);
    assert_eq!(
        ended,
        Some(Signal::SIGKILL as i32),
        "a second SIGTERM says nothing new"
    );
}

#[test]
fn handlers_leave_the_rest_of_the_program_as_it_was() {
    for case in ["former handler", "ignored", "forks", "before it joined"] {
        let setup = Setup::default();
        let ended = World::with(case, 1, &setup).succeed();
        ended[0].one("done");
    }
}

#[test]
fn what_a_builder_or_a_variable_says_of_checkpoints_is_checked() {
    let error = Replica::builder()
        .checkpoint_keep(0)
        .join()
        .expect_err("none is kept");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("at least 1"), "{error}");
}
