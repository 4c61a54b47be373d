//! What a trainer can do wrong with real processes: an error where it is done, and never a hang or a lie elsewhere.

mod world;

use gradring::codec::policy::{Adaptive, PolicyInput, ThresholdPolicy};
use gradring::codec::{CHUNK, Dense, MomentumMemory, NamedRange, Parameters, Unit};
use gradring::exchange::external::{ExternalUpdate, SourceError, UpdateSource};
use gradring::{
    Asynchronous, Bypass, Error, Exchange, Fixed, Flags, InResidual, Replica, parameter_hash,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use world::{Ended, Setup, World, tell};

fn fixed() -> Fixed {
    Fixed::new(0.25).expect("a threshold")
}

/// A world in which nothing takes long.
fn soon() -> Setup {
    Setup {
        deadline: Duration::from_secs(10),
        ..Setup::default()
    }
}

/// What all of them tell after `begin`; the same.
fn all_say(ended: &[Ended], begin: &str) -> String {
    let first = ended[0].one(begin);
    assert!(ended.iter().all(|one| one.one(begin) == first), "{begin}");
    first.to_owned()
}

fn asynchronous(name: &str, replica: &Replica, length: usize, max_lag: u64) -> Exchange {
    Exchange::builder(length)
        .name(name)
        .policy(fixed())
        .asynchronous(Asynchronous {
            max_lag,
            settle_every: u64::MAX,
        })
        .build(replica)
        .expect("agreed")
}

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    match case.as_str() {
        "in residual with momentum" => in_residual_with_momentum(&replica),
        "asynchronous step in an open one" => asynchronous_step_in_an_open_one(&replica),
        "open barrier and lag" => open_barrier_and_lag(&replica),
        "caught panic" => caught_panic(&replica),
        "nested" => nested(&replica),
        "epochs apart" => epochs_apart(&replica),
        "short parameters" => short_parameters(&replica),
        "slow to apply" => slow_to_apply(&replica),
        other => panic!("no case {other}"),
    }
}

fn in_residual_with_momentum(replica: &Replica) {
    let mut exchange = Exchange::builder(8)
        .policy(fixed())
        .momentum(MomentumMemory::new(0.5).expect("a momentum"))
        .build(replica)
        .expect("agreed");
    let mut parameters = [1.0_f32; 8];
    if replica.rank() == 1 {
        let error = exchange
            .step(Some(&InResidual), &mut parameters)
            .expect_err("the velocity needs the gradient");
        assert!(
            matches!(&error, Error::Invalid { what, .. } if *what == "an update in the residual"),
            "{error}"
        );
    }
    for _ in 0..2 {
        exchange
            .step(Some(&[1.0; 8]), &mut parameters)
            .expect("nothing had happened");
    }
    tell(format!("parameters {parameters:?}"));
}

#[test]
fn an_update_in_the_residual_of_a_momentum_memory_is_refused_before_the_step_is_announced() {
    all_say(
        &World::with("in residual with momentum", 2, &soon()).succeed(),
        "parameters",
    );
}

fn asynchronous_step_in_an_open_one(replica: &Replica) {
    let length = CHUNK + 8;
    let mut streamed = Exchange::builder(length)
        .policy(fixed())
        .streamed()
        .build(replica)
        .expect("agreed");
    let mut eager = asynchronous("eager", replica, 8, 4);
    let (mut p, mut q) = (vec![1.0_f32; length], vec![1.0_f32; 8]);
    let own = vec![0.5_f32; length];
    let mut open = streamed.begin().expect("begins");
    open.push(0..CHUNK, &own[..CHUNK]).expect("is pushed");
    if replica.rank() == 1 {
        let error = eager
            .step(Some(&[1.0; 8]), &mut q)
            .expect_err("its records would lie between those of the open step");
        assert!(matches!(error, Error::StepOpen), "{error}");
        assert_eq!((eager.steps(), &q), (0, &vec![1.0; 8]));
    }
    open.push(CHUNK..length, &own[CHUNK..]).expect("is pushed");
    open.finish(&mut p).expect("finishes");
    drop(open);
    eager.step(Some(&[1.0; 8]), &mut q).expect("steps");
    eager.settle(&mut q).expect("settles");
    tell(format!("parameters {:x} {q:?}", parameter_hash(&p)));
}

#[test]
fn an_asynchronous_step_inside_an_open_streamed_one_is_refused() {
    all_say(
        &World::with("asynchronous step in an open one", 2, &soon()).succeed(),
        "parameters",
    );
}

/// Rank 0 waits in a barrier for rank 2, which keeps pace with rank 1, which has entered the barrier without waiting.
fn open_barrier_and_lag(replica: &Replica) {
    let mut exchange = asynchronous("eager", replica, 8, 1);
    let mut parameters = [1.0_f32; 8];
    let steps = |exchange: &mut Exchange, parameters: &mut [f32; 8]| {
        for _ in 0..5 {
            exchange
                .step(Some(&[1.0; 8]), parameters)
                .expect("nobody waits in a circle");
        }
    };
    match replica.rank() {
        0 => replica.barrier().expect("all come"),
        1 => {
            std::thread::sleep(Duration::from_millis(100));
            let ticket = replica.arrive().expect("arrives");
            steps(&mut exchange, &mut parameters);
            ticket.wait().expect("all come");
        }
        _ => {
            std::thread::sleep(Duration::from_millis(300));
            steps(&mut exchange, &mut parameters);
            replica.barrier().expect("all come");
        }
    }
    exchange.settle(&mut parameters).expect("settles");
    tell(format!("parameters {parameters:?}"));
}

#[test]
fn a_rank_with_an_open_barrier_does_not_wait_for_the_steps_of_one_that_waits_in_it() {
    all_say(
        &World::with("open barrier and lag", 3, &soon()).succeed(),
        "parameters",
    );
}

/// Panics in its second step.
#[derive(Debug)]
struct Panics;

impl ThresholdPolicy for Panics {
    fn kind(&self) -> &'static str {
        "Panics"
    }
    fn sample_size(&self, _: usize, _: u64) -> usize {
        0
    }
    fn unit(&mut self, input: &PolicyInput<'_>) -> Unit {
        assert!(input.step == 0, "as it must");
        Unit::nearest(0.25, 0.25)
    }
    fn limit(&self, _: usize, _: u64) -> Option<usize> {
        None
    }
}

/// Never panics, with the same name.
#[derive(Debug)]
struct Calm;

impl ThresholdPolicy for Calm {
    fn kind(&self) -> &'static str {
        "Panics"
    }
    fn sample_size(&self, _: usize, _: u64) -> usize {
        0
    }
    fn unit(&mut self, _: &PolicyInput<'_>) -> Unit {
        Unit::nearest(0.25, 0.25)
    }
    fn limit(&self, _: usize, _: u64) -> Option<usize> {
        None
    }
}

fn caught_panic(replica: &Replica) {
    let builder = Exchange::builder(8);
    let builder = match replica.rank() {
        1 => builder.policy(Panics),
        _ => builder.policy(Calm),
    };
    let mut exchange = builder.build(replica).expect("agreed");
    let mut parameters = [1.0_f32; 8];
    exchange
        .step(Some(&[1.0; 8]), &mut parameters)
        .expect("steps");
    let began = Instant::now();
    let mut step = || exchange.step(Some(&[1.0; 8]), &mut parameters);
    let error = if replica.rank() == 1 {
        catch_unwind(AssertUnwindSafe(step)).expect_err("the policy panics");
        // Its handle lives on, and it does nothing for a while.
        std::thread::sleep(Duration::from_secs(4));
        replica.barrier().expect_err("the run is over")
    } else {
        let error = step().expect_err("rank 1 never gives its update");
        assert!(began.elapsed() < Duration::from_secs(3), "{error}");
        error
    };
    tell(format!("error {error}"));
}

#[test]
fn a_panic_in_the_middle_of_a_step_ends_the_run_even_if_somebody_catches_it() {
    let error = all_say(&World::with("caught panic", 2, &soon()).succeed(), "error");
    assert_eq!(error, "rank 1 panicked");
}

/// A source that does what it must not while it is asked.
struct Meddles(Replica, Sender<(Flags, String)>);

impl UpdateSource for Meddles {
    fn elements(&self) -> usize {
        8
    }
    fn poll(&mut self) -> Result<Option<ExternalUpdate>, SourceError> {
        let error = self.0.barrier().expect_err("it is inside a step");
        assert!(!error.ends_the_run());
        let _ = self.1.send((self.0.agreed(), error.to_string()));
        Ok(None)
    }
    fn give_back(&mut self, _: ExternalUpdate) {}
}

fn nested(replica: &Replica) {
    let mut exchange = Exchange::builder(8)
        .policy(fixed())
        .build(replica)
        .expect("agreed");
    replica.raise(Flags::CHECKPOINT);
    replica.barrier().expect("all come");
    let (sender, told) = channel();
    if replica.rank() == 0 {
        exchange
            .attach(Meddles(replica.clone(), sender))
            .expect("attaches");
    }
    let mut parameters = [1.0_f32; 8];
    exchange
        .step(Some(&[1.0; 8]), &mut parameters)
        .expect("steps");
    if replica.rank() == 0 {
        let (flags, error) = told.recv().expect("it was asked");
        assert_eq!(flags, Flags::CHECKPOINT);
        assert!(error.contains("inside"), "{error}");
    }
    replica.barrier().expect("all come");
    tell(format!("parameters {parameters:?}"));
}

#[test]
fn an_operation_inside_another_one_of_the_same_thread_is_an_error() {
    all_say(&World::with("nested", 2, &soon()).succeed(), "parameters");
}

/// Every rank steps, but rank 1 in its first epoch and the others outside of epochs.
fn epochs_apart(replica: &Replica) {
    let mut exchange = Exchange::builder(8)
        .policy(fixed())
        .build(replica)
        .expect("agreed");
    let mut parameters = [1.0_f32; 8];
    // Flags are agreed on here, so that the epoch begins without the others.
    replica.barrier().expect("all come");
    let mut epochs = replica.epochs(2).expect("none is running");
    if replica.rank() == 1 {
        assert_eq!(epochs.next().expect("two are left").expect("alone"), 0);
    }
    let error = exchange
        .step(Some(&[1.0; 8]), &mut parameters)
        .expect_err("not the same step");
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    tell(format!("error {error}"));
}

#[test]
fn replicas_in_different_epochs_do_not_make_the_same_step() {
    let ended = World::with("epochs apart", 3, &soon()).succeed();
    for replica in &ended {
        let error = replica.one("error");
        let named = "rank 1 came for step of exchange 0 (8 elements) in epoch 0";
        assert!(error.contains(named), "{error}");
        assert!(
            error.contains("rank 0 came for step of exchange 0 (8 elements),"),
            "{error}"
        );
    }
}

/// Parameters that end before they say that they do.
struct Short([f32; 8]);

impl Parameters for Short {
    fn elements(&self) -> usize {
        8
    }
    fn rest(&mut self, element: usize) -> &mut [f32] {
        self.0.get_mut(element..6).unwrap_or_default()
    }
}

fn short_parameters(replica: &Replica) {
    let mut exchange = Exchange::builder(8)
        .policy(fixed())
        .build(replica)
        .expect("agreed");
    let mut right = [1.0_f32; 8];
    let stepped = if replica.rank() == 1 {
        exchange.step(Some(&[1.0; 8]), &mut Short(right))
    } else {
        let _ = exchange.step(Some(&[1.0; 8]), &mut right);
        exchange.step(Some(&[1.0; 8]), &mut right)
    };
    let error = stepped.expect_err("they end too early");
    assert!(matches!(error, Error::Protocol { rank: 1, .. }), "{error}");
    tell("done");
}

#[test]
fn parameters_that_end_early_are_the_fault_of_whoever_has_them() {
    World::with("short parameters", 2, &soon()).succeed();
}

/// Parameters of a slow machine.
struct Slow(Vec<f32>);

impl Parameters for Slow {
    fn elements(&self) -> usize {
        self.0.len()
    }
    fn rest(&mut self, element: usize) -> &mut [f32] {
        std::thread::sleep(Duration::from_millis(40));
        self.0.rest(element)
    }
}

fn slow_to_apply(replica: &Replica) {
    let length = 32_768;
    let done = std::env::var("DONE").expect("a path");
    let mut exchange = Exchange::builder(length)
        .ranges([NamedRange::dense("all", length, Dense::F32)])
        .asynchronous(Asynchronous {
            max_lag: u64::MAX,
            settle_every: u64::MAX,
        })
        .build(replica)
        .expect("agreed");
    let update = vec![0.5_f32; length];
    let mut parameters = vec![0.0_f32; length];
    if replica.rank() == 0 {
        let mut slow = Slow(parameters.clone());
        for _ in 0..3 {
            exchange.step(Some(&update), &mut slow).expect("steps");
        }
        std::fs::write(&done, "done").expect("writes");
        parameters = slow.0;
    } else {
        let began = Instant::now();
        while !std::fs::exists(&done).expect("a folder") {
            exchange
                .step(Some(&update), &mut parameters)
                .expect("steps");
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the slow one makes no steps"
            );
        }
    }
    exchange.settle(&mut parameters).expect("settles");
    tell(format!("parameters {:x}", parameter_hash(&parameters)));
}

#[test]
fn a_replica_that_applies_more_slowly_than_others_publish_makes_its_own_steps_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("done");
    let setup = Setup {
        environment: vec![("DONE".to_owned(), path.display().to_string())],
        ..soon()
    };
    all_say(
        &World::with("slow to apply", 2, &setup).succeed(),
        "parameters",
    );
}

#[test]
fn steps_that_are_given_up_do_not_move_a_policy() {
    let replica = Replica::join().expect("alone");
    let run = |given_up: usize| {
        let mut exchange = Exchange::builder(1000)
            .policy(Adaptive::new(0.5, 0.6).expect("a band"))
            .streamed()
            .build(&replica)
            .expect("alone");
        let mut parameters = vec![0.0_f32; 1000];
        let update: Vec<f32> = (0..1000).map(|i| (i % 100) as f32 / 64.0).collect();
        let mut thresholds = Vec::new();
        for _ in 0..4 {
            for _ in 0..given_up {
                let mut open = exchange.begin().expect("begins");
                open.push(0..1, &[0.0_f32]).expect("is pushed");
            }
            let report = exchange.step(Some(&update), &mut parameters);
            thresholds.push(report.expect("steps").threshold);
        }
        (thresholds, parameters)
    };
    let (thresholds, _) = run(0);
    assert!(thresholds[3] != thresholds[1], "{thresholds:?}");
    assert_eq!(run(0), run(7));
}

#[test]
fn what_a_step_that_is_given_up_found_not_finite_is_reported_by_the_next_one() {
    let replica = Replica::join().expect("alone");
    let mut exchange = Exchange::builder(8)
        .policy(fixed())
        .streamed()
        .build(&replica)
        .expect("alone");
    let mut parameters = [0.0_f32; 8];
    exchange.residual_mut()[7] = f32::INFINITY;
    for _ in 0..2 {
        let mut open = exchange.begin().expect("begins");
        open.push(0..2, &[f32::NAN, 1.0]).expect("is pushed");
    }
    let error = exchange
        .step(Some(&[0.0; 8]), &mut parameters)
        .expect_err("three were not finite");
    assert!(
        matches!(
            error,
            Error::NonFinite {
                first: (0, 3),
                total: 3
            }
        ),
        "{error}"
    );
    exchange
        .step(Some(&[0.0; 8]), &mut parameters)
        .expect("reported once");
}

/// A source that changes its mind.
struct Shrinks(usize);

impl UpdateSource for Shrinks {
    fn elements(&self) -> usize {
        self.0
    }
    fn poll(&mut self) -> Result<Option<ExternalUpdate>, SourceError> {
        self.0 = 5;
        ExternalUpdate::dense(vec![1.0; 5]).map(Some)
    }
    fn give_back(&mut self, _: ExternalUpdate) {}
}

#[test]
fn an_update_of_another_length_than_the_exchange_ends_its_source() {
    let replica = Replica::join().expect("alone");
    let mut exchange = Exchange::builder(8)
        .policy(fixed())
        .build(&replica)
        .expect("alone");
    exchange.attach(Shrinks(8)).expect("attaches");
    let mut parameters = [0.0_f32; 8];
    exchange
        .step(Some(&[0.0; 8]), &mut parameters)
        .expect("steps");
    let ended = exchange.sources().next().and_then(|(_, ended)| ended);
    assert!(
        matches!(
            ended,
            Some(SourceError::Length {
                expected: 8,
                found: 5
            })
        ),
        "{ended:?}"
    );
    assert_eq!(parameters, [0.0; 8]);
}

/// Panics when it is first asked, for a sample of all.
#[derive(Debug, Default)]
struct PanicsOnce(bool);

impl ThresholdPolicy for PanicsOnce {
    fn kind(&self) -> &'static str {
        "PanicsOnce"
    }
    fn sample_size(&self, elements: usize, _: u64) -> usize {
        elements
    }
    fn unit(&mut self, _: &PolicyInput<'_>) -> Unit {
        assert!(std::mem::replace(&mut self.0, true), "as it must");
        Unit::nearest(0.25, 0.25)
    }
    fn limit(&self, _: usize, _: u64) -> Option<usize> {
        None
    }
}

#[test]
fn a_step_in_which_a_push_panicked_can_only_be_given_up() {
    let replica = Replica::join().expect("alone");
    let mut exchange = Exchange::builder(8)
        .policy(PanicsOnce::default())
        .streamed()
        .build(&replica)
        .expect("alone");
    let mut parameters = [0.0_f32; 8];
    let mut open = exchange.begin().expect("begins");
    catch_unwind(AssertUnwindSafe(|| open.push(0..8, &[0.5_f32; 8])))
        .expect_err("the policy panics");
    for error in [
        open.push(0..8, &[0.5_f32; 8]).expect_err("it panicked"),
        open.finish(&mut parameters).expect_err("it panicked"),
    ] {
        assert!(error.to_string().contains("a push has panicked"), "{error}");
        assert!(!error.ends_the_run());
    }
    drop(open);
    // What was pushed goes out later.
    exchange
        .step(Some(&[0.0; 8]), &mut parameters)
        .expect("the exchange stays usable");
    assert_eq!(parameters, [-0.25; 8]);
}

#[test]
fn a_bypass_onto_parameters_that_end_early_ends_the_run() {
    for how in [Bypass::Encoded, Bypass::Whole] {
        let replica = Replica::join().expect("alone");
        let mut exchange = Exchange::builder(8)
            .bypass(how)
            .build(&replica)
            .expect("alone");
        for _ in 0..2 {
            let error = exchange
                .step(Some(&[1.0; 8]), &mut Short([1.0; 8]))
                .expect_err("they end too early");
            assert!(matches!(error, Error::Protocol { rank: 0, .. }), "{error}");
        }
    }
}
