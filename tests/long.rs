//! Long random runs of real processes against one process that adds up in rank order: the same bits, whatever each rank
//! has, however it is held up, and wherever positions and numbers begin.
#![allow(unreachable_pub, reason = "its modules are shared with other tests")]

#[path = "long/conservation.rs"]
mod conservation;
#[path = "long/plan.rs"]
mod plan;
#[path = "plain/random.rs"]
mod random;
#[path = "long/run.rs"]
mod run;
#[path = "long/simulation.rs"]
mod simulation;
mod world;

use gradring::{Dense, Replica};
use nix::sys::signal::Signal;
use plan::{Plan, Schedule};
use random::Random;
use std::thread::sleep;
use std::time::Duration;
use world::{Ended, Setup, World, tell};

/// How many events there are between two comparisons.
const EVERY: usize = 100;

/// What a run is, in words that a replica finds in its environment.
#[derive(Clone, Copy)]
struct Run<'a> {
    schedules: &'a [Schedule],
    scale: usize,
    events: usize,
    seed: u64,
    /// The number of the step before the first.
    first_step: u64,
}

impl Run<'_> {
    fn plan(&self, world_size: usize) -> Plan {
        Plan::new(world_size, self.schedules, self.scale, self.seed)
    }

    fn simulate(&self, world_size: usize) -> Vec<Vec<String>> {
        simulation::simulate(&self.plan(world_size), self.events, EVERY, self.first_step)
    }

    fn environment(&self) -> Vec<(String, String)> {
        let at = |schedule: &Schedule| Schedule::ALL.iter().position(|one| one == schedule);
        let schedules = self
            .schedules
            .iter()
            .map(|one| at(one).expect("one of all"));
        let schedules: Vec<String> = schedules.map(|at| at.to_string()).collect();
        [
            ("SCHEDULES", schedules.join(" ")),
            ("SCALE", self.scale.to_string()),
            ("EVENTS", self.events.to_string()),
            ("SEED", self.seed.to_string()),
            ("FIRST_STEP", self.first_step.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    match case.as_str() {
        "books" => return conservation::books(&replica),
        "dyadic" => return conservation::dyadic(&replica),
        _ => {}
    }
    let schedules: String = variable("SCHEDULES").expect("the test sets it");
    let schedules: Vec<Schedule> = schedules
        .split(' ')
        .map(|at| Schedule::ALL[at.parse::<usize>().expect("a number")])
        .collect();
    let run = Run {
        schedules: &schedules,
        scale: variable("SCALE").expect("the test sets it"),
        events: variable("EVENTS").expect("the test sets it"),
        seed: variable("SEED").expect("the test sets it"),
        first_step: variable("FIRST_STEP").expect("the test sets it"),
    };
    match case.as_str() {
        "follow" => follow(&replica, &run),
        other => panic!("no case {other}"),
    }
}

fn follow(replica: &Replica, run: &Run<'_>) {
    let plan = run.plan(replica.world_size());
    let mut all = run::begin(replica, &plan).expect("begins");
    if run.first_step > 0 {
        for one in &mut all {
            one.goes_on_at(run.first_step);
        }
    }
    if variable::<u32>("STORM").is_some() {
        storm();
    }
    tell("running");
    for number in 0..run.events {
        if let Err(error) = run::event(replica, &plan, &mut all, number) {
            panic!("event {number}, {:?}: {error}", plan.event(number));
        }
        if (number + 1) % EVERY == 0 {
            tell(format!("at {}", run::says(&all, number)));
        }
    }
}

/// A signal each millisecond from now on, whose handler interrupts whatever this process waits for.
fn storm() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    let each = libc::timeval {
        tv_sec: 0,
        tv_usec: 1000,
    };
    let timer = libc::itimerval {
        it_interval: each,
        it_value: each,
    };
    // SAFETY: the handler does nothing, action and timer are whole.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        // Without SA_RESTART.
        action.sa_sigaction = handler as libc::sighandler_t;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()),
            0
        );
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()),
            0
        );
    }
}

fn compare(run: &Run<'_>, expected: &[Vec<String>], ended: &[Ended]) {
    for (rank, (expected, ended)) in expected.iter().zip(ended).enumerate() {
        let said = ended
            .heard
            .iter()
            .filter_map(|line| line.strip_prefix("at "));
        let said: Vec<&str> = said.collect();
        assert_eq!(said.len(), expected.len());
        for (said, expected) in said.iter().zip(expected) {
            assert_eq!(
                said, expected,
                "rank {rank}, seed {}, {:?}",
                run.seed, run.schedules
            );
        }
    }
}

fn setup(run: &Run<'_>, cores: usize) -> Setup {
    let wrapper = match cores {
        1 => ["taskset", "-c", "0"].map(str::to_owned).to_vec(),
        _ => Vec::new(),
    };
    Setup {
        cores,
        wrapper,
        environment: run.environment(),
        ..Setup::default()
    }
}

fn setup_of(environment: Vec<(String, String)>) -> Setup {
    Setup {
        environment,
        ..Setup::default()
    }
}

/// Every world size on one core and on two.
fn all_worlds(schedules: &[Schedule], seed: u64) {
    for world_size in 1..=8 {
        let run = Run {
            schedules,
            scale: 1,
            events: 1000,
            seed: seed + world_size as u64,
            first_step: 0,
        };
        let expected = run.simulate(world_size);
        for cores in [1, 2] {
            let ended = World::with("follow", world_size, &setup(&run, cores)).succeed();
            compare(&run, &expected, &ended);
        }
    }
}

#[test]
fn two_interleaved_exchanges_end_as_one_process_does() {
    all_worlds(&[Schedule::Lockstep, Schedule::Lockstep], 100);
}

#[test]
fn exchanges_of_all_schedules_end_as_one_process_does() {
    all_worlds(&Schedule::ALL, 200);
}

#[test]
fn streamed_exchanges_end_as_one_process_does() {
    all_worlds(&[Schedule::Streamed, Schedule::Lockstep], 300);
}

/// Positions and numbers that begin shortly before these pass them.
const BORDERS: [u64; 5] = [1 << 31, 1 << 32, 1 << 48, 1 << 63, (1 << 63) + (1 << 32)];

#[test]
fn positions_and_numbers_near_every_border_change_nothing() {
    for (seed, world_size) in (400..).zip([1, 2, 3]) {
        let run = Run {
            schedules: &Schedule::ALL,
            scale: 1,
            events: 300,
            seed,
            first_step: 0,
        };
        let expected = run.simulate(world_size);
        for border in BORDERS {
            let setup = Setup {
                begin: (border - 150, border - 60_000),
                ..setup(&run, 2)
            };
            let ended = World::with("follow", world_size, &setup).succeed();
            compare(&run, &expected, &ended);
        }
    }
}

#[test]
fn steps_near_every_border_change_nothing_but_what_follows_from_their_number() {
    let [f32, bf16] = [Dense::F32, Dense::Bf16].map(Schedule::Uncompressed);
    for border in BORDERS {
        let run = Run {
            schedules: &[Schedule::Lockstep, f32, Schedule::Streamed, bf16],
            scale: 1,
            events: 300,
            seed: 500,
            // The most that a state has is one less than 2^63.
            first_step: border.min(1 << 63) - 30,
        };
        let expected = run.simulate(2);
        let ended = World::with("follow", 2, &setup(&run, 2)).succeed();
        compare(&run, &expected, &ended);
    }
}

/// Runs of all schedules for a test that disturbs them.
const DISTURBED: [&[Schedule]; 2] = [&[Schedule::Lockstep, Schedule::Streamed], &Schedule::ALL];

#[test]
fn replicas_that_are_stopped_and_continued_at_random_change_nothing() {
    for (seed, schedules) in (700..).zip(DISTURBED) {
        for world_size in [2, 3, 4] {
            // Long enough that some steps need several frames, and that stops meet a replica in all of a step's parts.
            let run = Run {
                schedules,
                scale: 40,
                events: 300,
                seed: seed + world_size as u64,
                first_step: 0,
            };
            let expected = run.simulate(world_size);
            let mut world = World::with("follow", world_size, &setup(&run, 2));
            world.hear("running");
            let random = &mut Random(run.seed);
            let mut stops = 0;
            loop {
                let replica = &world.replicas[random.index(world_size)];
                if !replica.stop() {
                    break;
                }
                stops += 1;
                // How long it is away, and how long all run then: that is the fault, nothing waits for it.
                sleep(Duration::from_micros(random.below(2000)));
                replica.signal(Signal::SIGCONT);
                sleep(Duration::from_micros(random.below(2000)));
            }
            println!("{world_size} replicas, stopped {stops} times");
            assert!(stops > 10);
            compare(&run, &expected, &world.succeed());
        }
    }
}

#[test]
fn a_replica_that_stops_between_any_two_accesses_changes_nothing() {
    let run = Run {
        schedules: &Schedule::ALL,
        scale: 20,
        events: 100,
        seed: 750,
        first_step: 0,
    };
    let expected = run.simulate(3);
    for point in [
        "announced",
        "arrived",
        "value-written",
        "frame-written",
        "tail-stored",
        "frame-read",
        "folded",
        "step-out",
        "marker-taken",
        "parts-out",
    ] {
        for (rank, nth) in [(0, 1), (1, 3), (2, 9)] {
            // A run of a hundred events has few barriers.
            let nth = if point == "arrived" { 1 } else { nth };
            let mut setup = setup(&run, 2);
            let stop = format!("{rank} {point} {nth} stop");
            let stop = ("GRADRING_CRASH_POINT".to_owned(), stop);
            setup.environment.push(stop);
            let world = World::with("follow", 3, &setup);
            world.replicas[rank].wait_for_stop();
            // The others come as far as they can without it.
            sleep(Duration::from_millis(5));
            world.replicas[rank].signal(Signal::SIGCONT);
            compare(&run, &expected, &world.succeed());
        }
    }
}

#[test]
fn a_storm_of_signals_changes_nothing() {
    for (seed, schedules) in (800..).zip(DISTURBED) {
        let run = Run {
            schedules,
            scale: 20,
            events: 300,
            seed,
            first_step: 0,
        };
        let mut setup = setup(&run, 2);
        setup.environment.push(("STORM".into(), "1".into()));
        let expected = run.simulate(3);
        compare(&run, &expected, &World::with("follow", 3, &setup).succeed());
    }
}
