//! Nothing is lost over a whole run, by the codec's law: what was sent and what stays is what came, but for roundings,
//! whose bound follows from the run's own numbers, and for what is counted.

use super::plan::{Form, Model, Number, Schedule, Shape, shuffled};
use super::random::Random;
use super::world::{Ended, PATIENCE, Setup, World, tell};
use super::{setup_of, variable};
use gradring::codec::{Unit, canon};
use gradring::shm::layout::MIN_RING_CAPACITY;
use gradring::{
    Asynchronous, Clipping, Dense, Error, Exchange, Fixed, Quantile, Reduction, Replica,
};
use nix::sys::signal::Signal;
use std::thread::sleep;
use std::time::{Duration, Instant};

const STEPS: usize = 400;

/// Which run it is.
#[derive(Clone, Copy, Debug)]
struct Case {
    schedule: Schedule,
    seed: u64,
    clips: bool,
    limits: bool,
}

impl Case {
    fn model(self, scale: usize, world_size: usize) -> Model {
        let random = &mut Random(self.seed);
        let mut model = Model::random(0, self.schedule, (world_size, scale), random);
        // One threshold for all, so that a hit's unit is known; and all kinds of ranges.
        for (at, range) in model.ranges.iter_mut().enumerate() {
            range.1 = [None, Some(Dense::Bf16), None, Some(Dense::F32), None][at % 5];
            range.2 = false;
        }
        model
    }
}

fn build(replica: &Replica, model: &Model, case: Case, is_dyadic: bool) -> Exchange {
    let rank = replica.rank();
    let builder = Exchange::builder(model.length())
        .reduction(Reduction::Sum)
        .ranges(model.named_ranges(rank))
        .path(model.path(rank))
        .threads(model.threads(rank))
        .keep_hits(true);
    let builder = match case.schedule {
        Schedule::Streamed => builder.streamed(),
        Schedule::Asynchronous => builder.asynchronous(Asynchronous {
            max_lag: 24,
            settle_every: 25,
        }),
        _ => builder,
    };
    let builder = if case.clips {
        let every = 1 + rank as u64;
        builder.post_processor(Clipping::new(2.0 + 0.25 * rank as f32, every).expect("numbers"))
    } else {
        builder
    };
    let builder = if is_dyadic {
        let policy = Fixed::new(1.0 / 128.0).expect("a threshold");
        builder.policy(if case.limits {
            policy.with_limit(50)
        } else {
            policy.without_limit()
        })
    } else {
        let policy = Quantile::new([0.05, 0.2, 0.01][rank % 3]).expect("a density");
        builder.policy(if case.limits {
            policy.with_limit(10 * (1 + rank))
        } else {
            policy
        })
    };
    builder.build(replica).expect("agreed")
}

/// What a rank's books say of each element, in f64.
struct Ledger {
    /// What was sent, what clipping took and what stays, less what came.
    balance: Vec<f64>,
    /// What roundings can have taken.
    allowed: Vec<f64>,
    /// What was sent in all, and its sizes.
    sent: Vec<f64>,
    sizes: Vec<f64>,
}

impl Ledger {
    fn new(residual: &[f32]) -> Ledger {
        let zeros = || vec![0.0; residual.len()];
        Ledger {
            balance: residual.iter().map(|&r| -f64::from(r)).collect(),
            allowed: zeros(),
            sent: zeros(),
            sizes: zeros(),
        }
    }

    fn note(&mut self, at: usize, came: f64, sent: f64, taken: f64, rounded: f64) {
        let sizes = came.abs() + sent.abs() + taken.abs();
        self.balance[at] += sent + taken - came;
        // These sums are rounded too.
        self.allowed[at] += rounded + sizes * STEPS as f64 * f64::EPSILON;
        self.sent[at] += sent;
        self.sizes[at] += sent.abs();
    }

    /// Enters a step, of which the residual before and after are known, and the unit and places of the hits. What clipping
    /// took in all.
    fn step(
        &mut self,
        model: &Model,
        [before, after, update]: [&[f32]; 3],
        exchange: &Exchange,
        clips: bool,
    ) -> f64 {
        let unit = exchange
            .encoder()
            .scopes()
            .next()
            .and_then(|scope| scope.unit);
        let v = unit.map_or(0.0, Unit::v);
        let mut is_hit = vec![false; before.len()];
        for &hit in exchange.encoder().hits() {
            is_hit[hit] = true;
        }
        let (mut start, mut clipped) = (0, 0.0);
        for &(elements, dense, _) in &model.ranges {
            for i in start..start + elements {
                let (r, u) = (before[i], update[i]);
                let sum = r + canon(u);
                let is_dropped = !(u.is_finite() && sum.is_finite());
                let (s, came) = if is_dropped {
                    (r, 0.0)
                } else {
                    (canon(sum), f64::from(u))
                };
                let mut rounded = (f64::from(r) + came - f64::from(s)).abs();
                let (sent, taken) = if dense.is_some() {
                    // Exact: the rest of a bf16 is an f32.
                    (f64::from(s) - f64::from(after[i]), 0.0)
                } else {
                    let m = if is_hit[i] { v.copysign(s) } else { 0.0 };
                    let left = canon(s - m);
                    let lost = (f64::from(s) - f64::from(m) - f64::from(left)).abs();
                    let most = if s.abs() < 65536.0 * v {
                        0.0
                    } else {
                        f64::from(s.abs()) / 16_777_216.0
                    };
                    assert!(lost <= most, "element {i}: {s:e} - {m:e} is {left:e}");
                    rounded += lost;
                    let taken = f64::from(left) - f64::from(after[i]);
                    assert!(
                        taken == 0.0 || clips,
                        "element {i}: {s:e} - {m:e} is {:e}",
                        after[i]
                    );
                    clipped += taken.abs();
                    (f64::from(m), taken)
                };
                self.note(i, came, sent, taken, rounded);
            }
            start += elements;
        }
        clipped
    }

    fn close(&mut self, residual: &[f32], is_dyadic: bool) {
        for (i, (balance, r)) in self.balance.iter_mut().zip(residual).enumerate() {
            *balance += f64::from(*r);
            let allowed = if is_dyadic { 0.0 } else { self.allowed[i] };
            assert!(
                balance.abs() <= allowed,
                "element {i}: {balance:e}, allowed {allowed:e}"
            );
        }
    }
}

fn gathered(replica: &Replica, own: &[f64]) -> Vec<f64> {
    let all = replica
        .all_gather(bytemuck::cast_slice(own))
        .expect("all come");
    let mut sums = vec![0.0; own.len()];
    for part in all {
        for (sum, bytes) in sums.iter_mut().zip(part.as_chunks::<8>().0) {
            *sum += f64::from_le_bytes(*bytes);
        }
    }
    sums
}

fn form(step: usize) -> Form {
    let number = [Number::Single, Number::Half, Number::Bf16][step % 3];
    let shape = Shape::Whole;
    Form { number, shape }
}

/// A step of the exchange, whole or streamed.
fn sum(
    exchange: &mut Exchange,
    schedule: Schedule,
    update: &[f32],
    step: usize,
    sum: &mut [f32],
) -> f64 {
    let report = if schedule == Schedule::Streamed {
        let mut open = exchange.begin_all_reduce().expect("no step is open");
        for part in shuffled(step as u64, update.len()) {
            open.push(part.clone(), &update[part]).expect("once");
        }
        open.finish(sum)
    } else {
        exchange.all_reduce(Some(&update), sum)
    };
    match report {
        Ok(report) => report.clipped,
        // The report is the encoder's then.
        Err(Error::NonFinite { .. }) => exchange.encoder().stats().clipped,
        Err(error) => panic!("step {step}: {error}"),
    }
}

/// What a replica does: `all_reduce`s whose sums it adds up, and its own books.
pub fn books(replica: &Replica) {
    let rank = replica.rank();
    let case = Case {
        schedule: Schedule::ALL[variable::<usize>("SCHEDULE").expect("the test sets it")],
        seed: variable("SEED").expect("the test sets it"),
        clips: variable::<u8>("CLIPS").is_some(),
        limits: variable::<u8>("LIMITS").is_some(),
    };
    let model = case.model(2, replica.world_size());
    let mut exchange = build(replica, &model, case, false);
    let length = model.length();
    let random = &mut Random(case.seed ^ rank as u64);
    for r in exchange.residual_mut() {
        *r = random.laplace(1e-3);
    }
    let mut ledger = Ledger::new(exchange.residual());
    let (mut sums, mut all) = (vec![0.0_f32; length], vec![0.0_f64; length]);
    let mut clipped = [0.0; 2];
    for step in 0..STEPS {
        let before = exchange.residual().to_vec();
        if step % 90 == 77 {
            exchange.flush_all_reduce(&mut sums).expect("flushes");
            for (i, &r) in before.iter().enumerate() {
                ledger.note(i, 0.0, f64::from(r), 0.0, 0.0);
            }
        } else if (step + rank) % 7 == 3 && step % 2 == 0 {
            match exchange.all_reduce(None, &mut sums) {
                Ok(report) if report.epoch_ended() => continue,
                Ok(_) | Err(Error::NonFinite { .. }) => {}
                Err(error) => panic!("step {step}: {error}"),
            }
        } else {
            let update = model.update(rank, step, form(step));
            clipped[0] += sum(&mut exchange, case.schedule, &update, step, &mut sums);
            let after = exchange.residual();
            let vectors = [&before[..], after, &update[..]];
            clipped[1] += ledger.step(&model, vectors, &exchange, case.clips);
        }
        for (all, sum) in all.iter_mut().zip(&sums) {
            *all += f64::from(*sum);
        }
    }
    ledger.close(exchange.residual(), false);
    let [said, found] = clipped;
    assert!(
        (said - found).abs() <= 1e-11 * found,
        "{said} clipped, not {found}"
    );
    assert!(case.clips || found == 0.0);
    assert!(!case.clips || found > 0.0 || rank != 1, "nothing to clip");
    // What was handed over is what all sent, but for the roundings of its additions.
    let sent = gathered(replica, &ledger.sent);
    let sizes = gathered(replica, &ledger.sizes);
    let additions = (replica.world_size() - 1) as f64;
    for i in 0..length {
        let allowed = sizes[i] * (additions / 16_777_216.0 + STEPS as f64 * f64::EPSILON);
        let difference = (all[i] - sent[i]).abs();
        assert!(
            difference <= allowed,
            "element {i}: {difference:e}, allowed {allowed:e}"
        );
    }
    assert!(sent.iter().filter(|sent| **sent != 0.0).count() > length / 4);
    tell("done");
}

/// The same of dyadic numbers, of which nothing is ever rounded: parameters, in the end, lack exactly what was given and
/// does not stay.
pub fn dyadic(replica: &Replica) {
    let rank = replica.rank();
    let schedule = Schedule::ALL[variable::<usize>("SCHEDULE").expect("the test sets it")];
    let case = Case {
        schedule,
        seed: variable("SEED").expect("the test sets it"),
        clips: false,
        limits: variable::<u8>("LIMITS").is_some(),
    };
    let scale = variable("SCALE").unwrap_or(12);
    let model = case.model(scale, replica.world_size());
    // The model's own numbers are dyadic when it is asynchronous.
    let numbers = Case {
        schedule: Schedule::Asynchronous,
        ..case
    }
    .model(scale, replica.world_size());
    let length = model.length();
    let mut exchange = build(replica, &model, case, true);
    let mut parameters = model.first_parameters();
    exchange.start(&mut parameters).expect("starts");
    let mut given = vec![0.0_f64; length];
    let mut accumulated = 0;
    tell("running");
    for step in 0..STEPS {
        let mut update = numbers.update(rank, step, form(0));
        update.resize(length, 1.0 / 2048.0);
        for (given, u) in given.iter_mut().zip(&update) {
            *given += f64::from(*u);
        }
        let report = exchange
            .step(Some(&update), &mut parameters)
            .expect("steps");
        accumulated += report.accumulated_chunks;
    }
    if schedule == Schedule::Asynchronous {
        exchange.finish_epoch(&mut parameters).expect("ends");
    }
    exchange.check(&mut parameters).expect("identical");
    let left = given.iter().zip(exchange.residual());
    let sent: Vec<f64> = left.map(|(given, r)| given - f64::from(*r)).collect();
    let sent = gathered(replica, &sent);
    for (i, first) in model.first_parameters().iter().enumerate() {
        assert_eq!(
            f64::from(*first) - sent[i],
            f64::from(parameters[i]),
            "element {i}"
        );
    }
    tell(format!("accumulated {accumulated}"));
}

fn setup(case: Case) -> Setup {
    let at = Schedule::ALL.iter().position(|one| *one == case.schedule);
    let mut environment = vec![
        ("SCHEDULE".to_owned(), at.expect("one of all").to_string()),
        ("SEED".to_owned(), case.seed.to_string()),
    ];
    if case.clips {
        environment.push(("CLIPS".to_owned(), "1".to_owned()));
    }
    if case.limits {
        environment.push(("LIMITS".to_owned(), "1".to_owned()));
    }
    setup_of(environment)
}

#[test]
fn what_was_sent_and_what_stays_is_what_came_over_a_whole_run() {
    for schedule in [Schedule::Lockstep, Schedule::Streamed] {
        for (seed, (clips, limits)) in
            (900..).zip([(false, false), (false, true), (true, false), (true, true)])
        {
            let case = Case {
                schedule,
                seed,
                clips,
                limits,
            };
            for ended in World::with("books", 3, &setup(case)).succeed() {
                ended.one("done");
            }
        }
    }
}

fn accumulated(ended: &[Ended]) -> u64 {
    let counts = ended
        .iter()
        .map(|ended| ended.one("accumulated").parse::<u64>());
    counts.map(|count| count.expect("a number")).sum()
}

#[test]
fn of_dyadic_numbers_nothing_is_ever_rounded() {
    for schedule in [
        Schedule::Lockstep,
        Schedule::Streamed,
        Schedule::Asynchronous,
    ] {
        for (seed, limits) in [(950, false), (951, true)] {
            let case = Case {
                schedule,
                seed,
                clips: false,
                limits,
            };
            World::with("dyadic", 3, &setup(case)).succeed();
        }
    }
}

#[test]
fn what_finds_no_room_in_a_ring_is_not_lost() {
    let case = Case {
        schedule: Schedule::Asynchronous,
        seed: 960,
        clips: false,
        limits: false,
    };
    let mut setup = Setup {
        ring_capacity: MIN_RING_CAPACITY,
        ..setup(case)
    };
    // Two steps or so fill a ring.
    setup.environment.push(("SCALE".into(), "200".into()));
    let mut world = World::with("dyadic", 3, &setup);
    world.hear("running");
    let random = &mut Random(case.seed);
    // Stopped, a rank leaves the others' rings full: first until one has come as far as it may, then now and then.
    assert!(world.replicas[1].stop());
    let end = Instant::now() + PATIENCE;
    let pace = || world.segment.rank(0).pace.get();
    while pace().stepping && pace().steps < 20 {
        assert!(Instant::now() < end, "{:?}", pace());
        std::thread::yield_now();
    }
    world.replicas[1].signal(Signal::SIGCONT);
    while world.replicas[random.index(3)].stop() {
        sleep(Duration::from_micros(random.below(20_000)));
        for replica in &world.replicas {
            replica.signal(Signal::SIGCONT);
        }
        sleep(Duration::from_micros(random.below(3000)));
    }
    let ended = world.succeed();
    let accumulated = accumulated(&ended);
    println!("{accumulated} chunks found no room");
    assert!(accumulated > 0);
}
