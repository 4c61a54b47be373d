//! Two hundred runs, each of which loses replicas to kill -9 at random times in the middle of everything: the others are
//! told, and nothing of a run is left behind.
#![allow(unreachable_pub, reason = "its modules are shared with other tests")]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "long/plan.rs"]
mod plan;
#[path = "plain/random.rs"]
mod random;
#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "long/run.rs"]
mod run;
#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "long/simulation.rs"]
mod simulation;
mod world;

use gradring::launch::{Launch, Outcome};
use gradring::replica::SEGMENT;
use gradring::shm::seat::Seated;
use gradring::{Error, Replica};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use plan::{Plan, Schedule};
use random::Random;
use std::os::unix::process::ExitStatusExt;
use std::thread::sleep;
use std::time::{Duration, Instant};
use world::{PATIENCE, Setup, World, tell};

const ROUNDS: u64 = 200;

/// Follows a plan until a peer has died; who.
fn until_a_death(replica: &Replica, seed: u64) -> usize {
    let plan = Plan::new(replica.world_size(), &Schedule::ALL, 1, seed);
    let ended = run::begin(replica, &plan).and_then(|mut all| {
        for number in 0.. {
            run::event(replica, &plan, &mut all, number)?;
        }
        Ok(())
    });
    match ended {
        Err(Error::ReplicaDied { rank, .. }) => rank,
        other => panic!("seed {seed}, rank {}: {other:?}", replica.rank()),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let seed = number("SEED").expect("the test sets it");
    let replica = match Replica::builder().join_timeout(PATIENCE).join() {
        Ok(replica) => replica,
        Err(Error::ReplicaDied { rank, .. }) => {
            tell(format!("error died {rank}"));
            return;
        }
        Err(other) => panic!("seed {seed}: {other:?}"),
    };
    if case == "dies by itself" && Some(replica.rank() as u64) == number("VICTIM") {
        let name = std::env::var(SEGMENT).expect("a launcher sets it");
        let path = std::env::var_os("NAME").expect("the test sets it");
        std::fs::write(path, name).expect("the test reads it");
        std::thread::spawn(|| {
            sleep(Duration::from_micros(
                number("AFTER").expect("the test sets it"),
            ));
            let _ = nix::sys::signal::raise(Signal::SIGKILL);
            // SAFETY: a signal to this very process, should the one to this thread not do.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
    }
    tell(format!("error died {}", until_a_death(&replica, seed)));
}

/// What a process has that a run must give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holds {
    descriptors: usize,
    threads: usize,
    children: bool,
}

impl Holds {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).expect("of this process").count();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            children: waitpid(None, Some(WaitPidFlag::WNOHANG)) != Err(Errno::ECHILD),
        }
    }

    fn is_within(self, before: Holds) -> bool {
        self.descriptors <= before.descriptors && self.threads <= before.threads && !self.children
    }
}

/// Waits until this process has no more than before: threads that read what replicas said end a moment after them.
fn back_to(before: Holds, round: u64) {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = Holds::now();
        if now.is_within(before) {
            return;
        }
        assert!(
            Instant::now() < end,
            "round {round}: {now:?}, before {before:?}"
        );
        std::thread::yield_now();
    }
}

fn is_gone(segment: &str) -> bool {
    !std::path::Path::new("/dev/shm")
        .join(&segment[1..])
        .exists()
}

/// Kills replicas from outside, whatever they are doing: joining, making exchanges, in the middle of a step.
fn killed_from_outside(world_size: usize, seed: u64, random: &mut Random) {
    let environment = vec![("SEED".to_owned(), seed.to_string())];
    let setup = Setup {
        environment,
        cores: 1 + random.index(2),
        ..Setup::default()
    };
    let mut world = World::with("soak", world_size, &setup);
    let mut victims = vec![random.index(world_size)];
    if world_size > 2 && random.below(4) == 0 {
        victims.push((victims[0] + 1) % world_size);
    }
    let end = Instant::now() + PATIENCE;
    for &victim in &victims {
        // One that has not joined would only be missing.
        while world.segment.rank(victim).state.get() != Seated::Joined {
            assert!(
                Instant::now() < end,
                "seed {seed}: rank {victim} does not join"
            );
            std::thread::yield_now();
        }
    }
    let most = random.one_of(&[100, 3000, 30_000]);
    sleep(Duration::from_micros(random.below(most)));
    for &victim in &victims {
        world.replicas[victim].signal(Signal::SIGKILL);
    }
    let killed = Instant::now();
    let others = (0..world_size).filter(|rank| !victims.contains(rank));
    for rank in others {
        let error = world.replicas[rank].hear("error died ");
        let named = error.trim_start_matches("error died ").parse();
        let named: usize = named.expect("a rank");
        assert!(
            victims.contains(&named),
            "seed {seed}: rank {rank} says {error}"
        );
    }
    assert!(
        killed.elapsed() < Duration::from_secs(10),
        "seed {seed}: not at the deadline"
    );
    let name = world.segment.name().to_owned();
    let ended = world.finish();
    for (rank, ended) in ended.iter().enumerate() {
        let is_killed = ended.status.signal() == Some(libc::SIGKILL);
        // A second victim may have had the first one's death as an error, and have ended.
        let may_be = if victims[0] == rank {
            is_killed
        } else {
            ended.status.success() || is_killed && victims.contains(&rank)
        };
        assert!(may_be, "seed {seed}: rank {rank}, {}", ended.status);
    }
    assert!(is_gone(&name), "seed {seed}");
}

/// The same under a launcher in this process.
fn killed_under_a_launcher(world_size: usize, seed: u64, random: &mut Random) {
    let victim = random.index(world_size);
    let most = random.one_of(&[100, 3000, 30_000]);
    let program = std::env::current_exe().expect("this program has a path");
    let name = tempfile::NamedTempFile::new().expect("room for a name");
    // What a replica says goes to nobody.
    let quietly = "exec \"$0\" --exact replica --nocapture --test-threads=1 >/dev/null";
    let outcome: Outcome = Launch::new("/bin/sh")
        .args(["-c", quietly])
        .arg(program)
        .env("GRADRING_TEST_CASE", "dies by itself")
        .env("SEED", seed.to_string())
        .env("NAME", name.path())
        .env("VICTIM", victim.to_string())
        .env("AFTER", random.below(most).to_string())
        .replicas(world_size)
        .run()
        .expect("it starts");
    let culprit = outcome.culprit.as_ref().expect("somebody was killed");
    assert_eq!(culprit.rank, victim, "seed {seed}: {outcome}");
    let status = culprit.status.and_then(|status| status.signal());
    assert_eq!(status, Some(libc::SIGKILL), "seed {seed}: {outcome}");
    // The others have had its death as an error, or were stopped before they could.
    let codes = outcome
        .ranks
        .iter()
        .map(|end| end.status.and_then(|status| status.code()));
    assert!(
        codes.flatten().all(|code| code == 0),
        "seed {seed}: {outcome}"
    );
    let name = std::fs::read_to_string(name.path()).expect("a replica has written it");
    assert!(is_gone(&name), "seed {seed}: {name}");
}

#[test]
fn two_hundred_rounds_of_kill_9_leave_nothing_behind() {
    // Another one every time; a failure names it, and SOAK_SEED repeats it.
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = number("SOAK_SEED").unwrap_or(time.expect("after 1970").as_nanos() as u64);
    println!("SOAK_SEED={seed}");
    let before = Holds::now();
    assert!(!before.children);
    for round in 0..ROUNDS {
        let random = &mut Random(seed.wrapping_add(round << 20));
        let (world_size, of_round) = (2 + random.index(3), random.next());
        if round % 4 == 3 {
            killed_under_a_launcher(world_size, of_round, random);
        } else {
            killed_from_outside(world_size, of_round, random);
        }
        back_to(before, round);
    }
}
