//! A stop at every place of a program: in every iteration, between loops, between epochs, before and after all of them.

use crate::harness::{Generation, elastic};
use crate::seen::{Seen, exactly_once};
use gradring::checkpoint::Value;
use gradring::progress::Sampler;
use gradring::{Flags, Replica};

/// Counts the ends of batches and of loops that had any; at the last place rank 0 asks all to stop.
struct Places(usize);

impl Places {
    fn pass(&mut self, replica: &Replica) {
        if self.0 == 0 && replica.rank() == 0 {
            replica.raise(Flags::TERMINATE);
        }
        self.0 = self.0.wrapping_sub(1);
    }
}

fn body(generation: &Generation, places: usize) -> usize {
    // A stop does not let the body return: said in advance.
    generation.next([2, 3, 1, 4][generation.number % 4]);
    let mut places = Places(places);
    let replica = Replica::join().unwrap();
    let seen = Seen::of(&replica);
    let ends = replica.keep_value(Value::shared("ends", 0_u64)).unwrap();
    let mut run = |name: String, samples: usize| {
        let sampler = Sampler::new(samples).global_batch(3).shuffled(4);
        let batches = replica.batches(&name, sampler).unwrap();
        let goes_on = batches.iterations_left() > 0;
        for batch in batches {
            seen.see(&name, &batch.unwrap());
            places.pass(&replica);
        }
        if goes_on {
            places.pass(&replica);
        }
    };
    run("before".to_owned(), 4);
    for epoch in replica.epochs(2).unwrap() {
        let epoch = epoch.unwrap();
        run(format!("a{epoch}"), 7);
        run(format!("b{epoch}"), 0);
        run(format!("c{epoch}"), 6);
        // After the last loop: not done again.
        *ends.lock().unwrap() += 1;
    }
    assert_eq!(*ends.lock().unwrap(), 2);
    run("after".to_owned(), 5);
    seen.tell(generation);
    0
}

const LOOPS: [(&str, usize); 6] = [
    ("after", 5),
    ("a0", 7),
    ("a1", 7),
    ("before", 4),
    ("c0", 6),
    ("c1", 6),
];

#[test]
fn a_stop_at_each_place_in_turn() {
    let ended = elastic(
        "boundaries::a_stop_at_each_place_in_turn",
        1,
        |generation| body(generation, generation.number % 3),
    );
    // 14 iterations and 6 ends of loops, one to three of them in each.
    assert!((7..=15).contains(&ended.len()), "{}", ended.len());
    let codes: Vec<u8> = ended.iter().map(|ended| ended.outcome.code).collect();
    let (last, stopped) = codes.split_last().unwrap();
    assert_eq!(*last, 0);
    assert!(stopped.iter().all(|code| *code == 143), "{codes:?}");
    exactly_once(&ended, &LOOPS);
}

#[test]
fn one_stop_at_any_place() {
    let name = "boundaries::one_stop_at_any_place";
    // In a replica this runs the body of whichever generation it is.
    for place in 0..21 {
        let ended = crate::harness::elastic_with(
            name,
            2,
            &crate::harness::Setup {
                environment: vec![("PLACE", place.to_string())],
                ..Default::default()
            },
            |generation| {
                let place = std::env::var("PLACE").unwrap().parse().unwrap();
                body(
                    generation,
                    if generation.number == 0 {
                        place
                    } else {
                        usize::MAX - 1
                    },
                )
            },
        );
        assert!(ended.len() <= 2);
        exactly_once(&ended, &LOOPS);
    }
}
