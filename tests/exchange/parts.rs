//! Updates and parameters as lists of slices, and updates in place: the bits of whole vectors, whatever the way.

use super::world::{World, tell};
use super::{LENGTH, all_say, fixed, noise, update};
use gradring::codec::Values;
use gradring::exchange::Builder;
use gradring::{
    Asynchronous, Bypass, Dense, Error, Exchange, InResidual, MomentumMemory, NamedRange,
    Parameters, Replica, parameter_hash,
};
use half::{bf16, f16};

/// Where a vector is cut into tensors: some of them empty, some of one element, some that no block's end divides.
fn cuts(step: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..40)
        .map(|i| (noise(step, i, 3).to_bits() as usize >> 2) % LENGTH)
        .collect();
    cuts.extend([0, 0, 1, 2, 32_768, 32_769, LENGTH, LENGTH]);
    cuts.sort_unstable();
    cuts
}

fn cut<T: Clone>(vector: &[T], cuts: &[usize]) -> Vec<Vec<T>> {
    let parts = cuts.windows(2).map(|cut| vector[cut[0]..cut[1]].to_vec());
    parts.collect()
}

/// An update whose numbers are the same as f32, f16 and bf16.
fn short(rank: usize, step: usize) -> Vec<f32> {
    let round = |x: f32| bf16::from_f32((x * 256.0).round() / 256.0).to_f32();
    update(rank, step, LENGTH).into_iter().map(round).collect()
}

/// The parts of an update, each in another type.
struct Mixed(Vec<(Vec<f32>, Vec<f16>, Vec<bf16>)>);

impl Mixed {
    fn new(update: &[f32], cuts: &[usize]) -> Self {
        let parts = cut(update, cuts).into_iter().enumerate();
        Self(
            parts
                .map(|(i, part)| match i % 3 {
                    0 => (part, vec![], vec![]),
                    1 => (
                        vec![],
                        part.iter().map(|&x| f16::from_f32(x)).collect(),
                        vec![],
                    ),
                    _ => (
                        vec![],
                        vec![],
                        part.iter().map(|&x| bf16::from_f32(x)).collect(),
                    ),
                })
                .collect(),
        )
    }

    fn values(&self) -> Vec<Values<'_>> {
        let parts = self.0.iter().enumerate();
        parts
            .map(|(i, part)| match i % 3 {
                0 => Values::F32(&part.0),
                1 => Values::F16(&part.1),
                _ => Values::Bf16(&part.2),
            })
            .collect()
    }
}

const WAYS: [&str; 6] = [
    "lockstep",
    "ranges",
    "uncompressed",
    "uncompressed as bf16",
    "a bypass",
    "a whole bypass",
];

fn builder(way: &str) -> Builder {
    let builder = Exchange::builder(LENGTH).check_every(2);
    match way {
        "lockstep" => builder.policy(fixed()),
        "ranges" => builder.policy(fixed()).threads(3).ranges([
            NamedRange::compressed("a", 40_001),
            NamedRange::dense("b", 70_000, Dense::F32),
            NamedRange::dense("c", 50_003, Dense::Bf16),
            NamedRange::compressed("d", LENGTH - 160_004),
        ]),
        "uncompressed" => builder.uncompressed(Dense::F32),
        "uncompressed as bf16" => builder.uncompressed(Dense::Bf16),
        "a bypass" => builder.policy(fixed()).bypass(Bypass::Encoded),
        _ => builder.bypass(Bypass::Whole),
    }
}

pub(super) fn replica(case: &str, replica: &Replica) -> bool {
    match case {
        "parts" => {
            for way in WAYS {
                if way.contains("bypass") && replica.world_size() > 1 {
                    continue;
                }
                parts(replica, way);
            }
        }
        "parts asynchronously" => asynchronously(replica),
        "in place" => in_place(replica),
        _ => return false,
    }
    true
}

fn parts(replica: &Replica, way: &str) {
    let rank = replica.rank();
    let mut whole = builder(way).build(replica).expect("agreed");
    let mut parted = builder(way).build(replica).expect("agreed");
    let mut p: Vec<f32> = (0..LENGTH).map(|i| noise(9, 9, i)).collect();
    let mut q = cut(&vec![f32::NAN; LENGTH], &cuts(rank));
    // Rank 0's parts are cut elsewhere than the others'.
    if rank == 0 {
        q = cut(&p, &cuts(7));
    }
    parted.start(&mut q).expect("starts");
    assert!(q.concat() == p, "{way}");
    let (mut a, mut b) = (vec![f32::NAN; LENGTH], cut(&vec![1.0; LENGTH], &cuts(3)));
    for step in 0..5 {
        let own = short(rank, step);
        let mixed = Mixed::new(&own, &cuts(step + rank));
        let given = (step + rank) % 4 != 3;
        let one = whole
            .step(given.then_some(&own as _), &mut p)
            .expect("steps");
        let values = mixed.values();
        let mut slices: Vec<&mut [f32]> = q.iter_mut().map(Vec::as_mut_slice).collect();
        let other = parted.step(given.then_some(&values as _), &mut slices[..]);
        let other = other.expect("steps");
        assert_eq!(
            (one.hits, one.bytes, one.contributors),
            (other.hits, other.bytes, other.contributors)
        );
        assert!(q.concat() == p, "{way}, step {step}");
        whole.all_reduce(Some(&own), &mut a).expect("steps");
        parted.all_reduce(Some(&values), &mut b).expect("steps");
        assert!(b.concat() == a, "{way}, step {step}");
        assert!(whole.residual() == parted.residual(), "{way}, step {step}");
    }
    parted.check(&mut q).expect("the same everywhere");
    if way.contains("uncompressed") {
        let error = whole.flush(&mut p).expect_err("there is no residual");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        let error = whole
            .step(Some(&InResidual), &mut p)
            .expect_err("there is none");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    } else if !way.contains("bypass") {
        whole.flush(&mut p).expect("flushes");
        parted.flush(&mut q).expect("flushes");
        assert!(q.concat() == p, "{way}");
    }
    if way == "lockstep" {
        let momentum = MomentumMemory::new(0.5).expect("a momentum");
        let mut exchange = builder(way)
            .momentum(momentum)
            .build(replica)
            .expect("agreed");
        // Local: nothing was entered, nobody waits.
        let error = exchange
            .step(Some(&InResidual), &mut p)
            .expect_err("it needs the gradient");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        exchange.step(None, &mut p).expect("the run goes on");
    }
    let wrong: Vec<Values> = vec![(&[0.0_f32; 7]).into(); 3];
    let error = parted
        .step(Some(&wrong), &mut q)
        .expect_err("another length");
    assert!(matches!(error, Error::Length { found: 21, .. }), "{error}");
    q.pop();
    q.pop();
    let found = q.elements();
    let error = parted.step(None, &mut q).err();
    assert_eq!(found == LENGTH, error.is_none());
    if error.is_none() {
        whole.step(None, &mut p).expect("steps");
    }
    tell(format!("{way}: {:016x}", parameter_hash(&p)));
}

fn asynchronously(replica: &Replica) {
    let rank = replica.rank();
    let mut exchange = builder("ranges")
        .asynchronous(Asynchronous::default())
        .build(replica)
        .expect("agreed");
    let mut q = cut(&vec![0.0_f32; LENGTH], &cuts(rank));
    exchange.start(&mut q).expect("starts");
    for step in 0..20 {
        let own = short(rank, step);
        let mixed = Mixed::new(&own, &cuts(step));
        exchange.step(Some(&mixed.values()), &mut q).expect("steps");
    }
    exchange.settle(&mut q).expect("settles");
    tell(format!("parameters {:016x}", parameter_hash(&q.concat())));
}

/// What is added in place goes out as what is handed over.
fn in_place(replica: &Replica) {
    let rank = replica.rank();
    for way in ["lockstep", "ranges"] {
        let mut handed = builder(way).build(replica).expect("agreed");
        let mut placed = builder(way).build(replica).expect("agreed");
        let (mut p, mut q) = (vec![0.25_f32; LENGTH], vec![0.25_f32; LENGTH]);
        for step in 0..6 {
            let own = update(rank, step, LENGTH);
            for (r, u) in placed.residual_mut().iter_mut().zip(&own) {
                *r += u;
            }
            let given = step % 2 == 0 || rank == 0;
            if step == 4 && rank == 1 {
                placed.residual_mut()[11] = f32::NAN;
                handed.residual_mut()[11] = f32::NEG_INFINITY;
                // What of it was handed over would be kept otherwise.
                let mut own = own.clone();
                own[11] = 0.0;
                let one = handed.step(Some(&own), &mut p).map(drop);
                let other = placed.step(Some(&InResidual), &mut q).map(drop);
                for result in [one, other] {
                    let error = result.expect_err("one is not finite");
                    assert!(
                        matches!(error, Error::NonFinite { first: (1, 1), .. }),
                        "{error}"
                    );
                }
            } else if given {
                let one = handed.step(Some(&own), &mut p);
                let other = placed.step(Some(&InResidual), &mut q);
                if step == 4 && replica.world_size() > 1 {
                    assert!(one.is_err() && other.is_err());
                } else {
                    assert_eq!(one.expect("steps").hits, other.expect("steps").hits);
                }
            } else {
                handed.step(None, &mut p).expect("steps");
                placed.step(None, &mut q).expect("steps");
                for r in handed.residual_mut().iter_mut().zip(&own) {
                    *r.0 += r.1;
                }
            }
            assert!(p == q, "{way}, step {step}");
        }
        tell(format!("{way} {:016x}", parameter_hash(&q)));
    }
}

#[test]
fn lists_of_slices_give_the_bits_of_the_vectors_that_they_make() {
    for world_size in [1, 2, 3] {
        let ended = World::start("parts", world_size).succeed();
        for way in WAYS.iter().take(if world_size == 1 { 6 } else { 4 }) {
            all_say(&ended, &format!("{way}: "));
        }
    }
}

#[test]
fn asynchronous_replicas_with_parameters_in_lists_settle_alike() {
    let ended = World::start("parts asynchronously", 3).succeed();
    all_say(&ended, "parameters");
}

#[test]
fn what_is_accumulated_in_place_goes_out_as_what_is_handed_over() {
    for world_size in [1, 2, 3] {
        let ended = World::start("in place", world_size).succeed();
        for way in ["lockstep ", "ranges "] {
            all_say(&ended, way);
        }
    }
}
