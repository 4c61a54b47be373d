//! What one replica sees: the two modes, and what is refused.

use gradring::metrics::{Kind, Value};
use gradring::replica::{Error, Replica};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn alone() -> Replica {
    Replica::join().expect("a world of one")
}

#[test]
fn what_is_added_is_there_after_the_synchronization() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    a.add("sum", 1.5).unwrap();
    a.sub("sum", 0.25_f32).unwrap();
    a.add("count", 3).unwrap();
    a.add("count", true).unwrap();
    a.sub("count", 10_u8).unwrap();
    a.add("sums", &[1.0, 2.0][..]).unwrap();
    a.add("sums", [0.5, 0.5]).unwrap();
    a.add("counts", vec![1_u64, 2, 3]).unwrap();
    a.sub("counts", [1, 1, 1]).unwrap();
    a.extend([("d", 1), ("d", 2)]).unwrap();
    let mut all = a.synchronized().unwrap();
    assert_eq!(all.sum("sum").unwrap(), 1.25);
    assert_eq!(all.count("count").unwrap(), -6);
    assert_eq!(all.sums("sums").unwrap(), [1.5, 2.5]);
    assert_eq!(all.counts("counts").unwrap(), [0, 1, 2]);
    assert_eq!(all.count("d").unwrap(), 3, "not the last one only");
    let keys: Vec<&str> = all.keys().collect();
    assert_eq!(keys, ["count", "counts", "d", "sum", "sums"]);
    assert!(!all.replayed());
    // It is read and written like a map.
    assert_eq!(all.insert("new", 7).unwrap(), None);
    assert_eq!(all.insert("new", 0.5).unwrap(), Some(Value::from(7)));
    all.add("new", 0.5).unwrap();
    all.sub("count", 4).unwrap();
    all.extend([("d", 1), ("d", 1)]).unwrap();
    assert_eq!(all.remove("sums").map(|it| it.kind()), Some(Kind::Sums));
    assert_eq!(all.remove("sums"), None);
    assert_eq!((all.len(), all.contains_key("sums")), (5, false));
    drop(all);
    a.add("new", 0.25).unwrap();
    let mut all = a.synchronized().unwrap();
    assert_eq!(all.sum("new").unwrap(), 1.25);
    assert_eq!(
        (all.count("count").unwrap(), all.count("d").unwrap()),
        (-10, 5)
    );
    all.clear();
    assert!(all.is_empty() && all.iter().next().is_none());
    drop(all);
    assert!(a.synchronized().unwrap().is_empty());
}

#[test]
fn handles_add_to_every_kind() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    let (sum, count) = (a.sum("sum").unwrap(), a.count("count").unwrap());
    let (min, max) = (a.min("min").unwrap(), a.max("max").unwrap());
    let mean = a.mean("mean").unwrap();
    let histogram = a.histogram("histogram", &[-1.0, 0.0, 10.0]).unwrap();
    let (sums, counts) = (a.sums("sums", 3).unwrap(), a.counts("counts", 2).unwrap());
    let unused = a.sum("unused").unwrap();
    for round in 1..=3 {
        for x in [3.0, -0.5, 1e16, 1.0, -1e16] {
            sum.add(x).unwrap();
            min.add(x).unwrap();
            max.add(x).unwrap();
            mean.add(x).unwrap();
            histogram.add(x).unwrap();
        }
        sum.sub(0.5).unwrap();
        mean.add_many(7.0, 3).unwrap();
        count.add(5).unwrap();
        count.sub(2).unwrap();
        histogram.add(0.0).unwrap();
        histogram.add(f64::NAN).unwrap();
        sums.add(&[1.0, 2.0, 3.0]).unwrap();
        sums.add_at(2, 0.5).unwrap();
        counts.add(&[1, -1]).unwrap();
        counts.add_at(0, 10).unwrap();
        let all = a.synchronized().unwrap();
        let times = f64::from(round);
        assert_eq!(all.sum("sum").unwrap(), 3.0 * times);
        assert_eq!(all.count("count").unwrap(), 3 * i64::from(round));
        assert_eq!(
            (all.min("min").unwrap(), all.max("max").unwrap()),
            (-1e16, 1e16)
        );
        assert_eq!(all.mean("mean").unwrap(), 10.5 / 8.0);
        assert_eq!(all.count("mean").unwrap(), 8 * i64::from(round));
        let buckets: Vec<i64> = [1, 2, 2, 1].iter().map(|n| n * i64::from(round)).collect();
        assert_eq!(all.counts("histogram").unwrap(), buckets);
        let it = all.get("histogram").unwrap();
        assert_eq!(it.edges().unwrap(), [-1.0, 0.0, 10.0]);
        assert_eq!(it.nans(), Some(i64::from(round)));
        assert!(it.sum().unwrap().is_nan());
        assert_eq!(all.sums("sums").unwrap(), [times, 2.0 * times, 3.5 * times]);
        assert_eq!(
            all.counts("counts").unwrap(),
            [11 * i64::from(round), -i64::from(round)]
        );
        assert!(!all.contains_key("unused"), "nothing was added");
        // In the block there is nothing to add to.
        assert!(matches!(unused.add(1.0), Err(Error::Invalid { .. })));
        assert!(matches!(sum.add(1.0), Err(Error::Invalid { .. })));
    }
    unused.add(0.0).unwrap();
    assert_eq!(a.synchronized().unwrap().sum("unused").unwrap(), 0.0);
    let negative = mean.add_many(1.0, -1);
    assert!(matches!(negative, Err(Error::Invalid { .. })));
    assert!(matches!(sums.add_at(3, 1.0), Err(Error::Invalid { .. })));
    assert!(matches!(
        sums.add(&[1.0]),
        Err(Error::Length {
            expected: 3,
            found: 1,
            ..
        })
    ));
}

#[test]
fn another_kind_is_refused_and_changes_nothing() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    a.add("x", 1.5).unwrap();
    let kind = |result: Result<(), Error>, found: &str, expected: &str| match result {
        Err(Error::Kind {
            accumulator,
            key,
            expected: e,
            found: f,
        }) => {
            assert_eq!(
                (&*accumulator, &*key, &*f, &*e),
                ("a", "x", found, expected)
            );
        }
        other => panic!("{other:?}"),
    };
    kind(a.add("x", 1), "a sum", "a count");
    kind(a.add("x", &[1.0][..]), "a sum", "a vector of 1 sums");
    kind(a.mean("x").map(drop), "a sum", "a mean");
    assert_eq!(a.synchronized().unwrap().sum("x").unwrap(), 1.5);
    kind(a.add("x", 1), "a sum", "a count");
    let sum = a.sum("x").unwrap();
    {
        let mut all = a.synchronized().unwrap();
        kind(all.add("x", 1), "a sum", "a count");
        kind(all.count("x").map(drop), "a sum", "a count");
        all.insert("x", vec![1, 2]).unwrap();
        assert!(
            matches!(all.add("y", 1), Err(Error::Kind { .. })),
            "not there"
        );
        assert!(matches!(all.sum("y"), Err(Error::Kind { .. })), "not there");
    }
    kind(sum.add(1.0), "a vector of 2 counts", "a sum");
    kind(
        a.add("x", [1, 2, 3]),
        "a vector of 2 counts",
        "a vector of 3 counts",
    );
    a.add("x", [1, 2]).unwrap();
    a.synchronized().unwrap().remove("x");
    // Removed, it may become anything.
    sum.add(0.5).unwrap();
    kind(a.add("x", 1), "a sum", "a count");
    a.discard("x").unwrap();
    a.add("x", 1).unwrap();
    assert_eq!(a.synchronized().unwrap().count("x").unwrap(), 1);
    let histogram = a.histogram("h", &[1.0, 2.0]).unwrap();
    histogram.add(1.0).unwrap();
    assert!(matches!(
        a.histogram("h", &[1.0, 3.0]),
        Err(Error::Kind { .. })
    ));
    for edges in [
        &[][..],
        &[1.0, 1.0],
        &[2.0, 1.0],
        &[f64::NAN],
        &[f64::INFINITY],
    ] {
        assert!(matches!(
            a.histogram("i", edges),
            Err(Error::Invalid { .. })
        ));
    }
}

#[test]
fn a_count_that_overflows_is_refused() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    let overflows = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Overflow { .. })), "{result:?}");
    };
    let n = a.count("n").unwrap();
    n.add(i64::MAX).unwrap();
    overflows(n.add(1));
    overflows(a.add("n", 1));
    overflows(a.add("n", u64::MAX));
    overflows(n.sub(i64::MIN));
    a.add("v", [i64::MAX, 0]).unwrap();
    overflows(a.add("v", [1, 1]));
    overflows(a.add("v", [0_u64, u64::MAX]));
    {
        let mut all = a.synchronized().unwrap();
        assert_eq!(all.count("n").unwrap(), i64::MAX);
        assert_eq!(
            all.counts("v").unwrap(),
            [i64::MAX, 0],
            "nothing of it was added"
        );
        overflows(all.add("n", 1));
        all.sub("n", 1).unwrap();
    }
    // What is pending fits, the sum does not: nothing changes, and nothing is lost.
    n.add(2).unwrap();
    overflows(a.synchronized().map(drop));
    n.sub(1).unwrap();
    assert_eq!(a.synchronized().unwrap().count("n").unwrap(), i64::MAX);
    // In a block, where numbers of any width are added to what is there.
    let mut all = a.synchronized().unwrap();
    all.insert("zero", 0).unwrap();
    all.insert("zeros", [0, -1]).unwrap();
    overflows(all.add("zero", u64::MAX));
    overflows(all.add("zeros", [u64::MAX, 0]));
    assert_eq!(all.count("zero").unwrap(), 0, "nothing was added");
    all.sub("zero", i64::MAX).unwrap();
    all.add("zero", u64::MAX / 2 + 1).unwrap();
    assert_eq!(all.count("zero").unwrap(), 1);
    // What becomes a value by itself has nobody to tell.
    all.insert("largest", u64::MAX).unwrap();
    assert_eq!(all.count("largest").unwrap(), i64::MAX);
}

#[test]
fn a_vector_that_no_checkpoint_could_be_read_with_is_refused() {
    let replica = alone();
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Invalid { what, found, .. }) => {
            assert_eq!((what, &*found), ("elements of a vector", "16777217"));
        }
        other => panic!("{other:?}"),
    };
    let long = vec![0; (1 << 24) + 1];
    refused(replica.accumulator_from("a", [("v", &long)]).map(drop));
    let mut a = replica.accumulator("a").unwrap();
    let mut all = a.synchronized().unwrap();
    refused(all.insert("v", &long).map(drop));
    assert!(all.is_empty());
    all.insert("v", &long[1..]).unwrap();
    assert_eq!(all.counts("v").unwrap().len(), 1 << 24);
}

#[test]
fn cells_that_are_full_are_an_error_that_says_how_many_there_are() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    let mut keys = 0..;
    let full = keys.find_map(|i| a.add(&format!("key {i}"), 1).err());
    match full.expect("they are full some time") {
        Error::MetricsFull {
            accumulator,
            key,
            cells,
            needed,
        } => {
            assert_eq!(
                (&*accumulator, &*key, cells, needed),
                ("a", "key 256", 256, 1)
            );
        }
        other => panic!("{other}"),
    }
    assert!(matches!(a.counts("v", 1 << 40), Err(Error::Invalid { .. })));
    assert!(matches!(
        a.counts("v", 1 << 31),
        Err(Error::MetricsFull { .. })
    ));
    assert_eq!(a.synchronized().unwrap().len(), 256, "the run goes on");
    a.add("key 7", 1).unwrap();
    assert_eq!(a.synchronized().unwrap().count("key 7").unwrap(), 2);
}

#[test]
fn of_one_name_there_is_one_at_a_time_and_the_next_goes_on() {
    let replica = alone();
    let a = replica.accumulator_from("a", [("n", 1)]).unwrap();
    let duplicate = |result| match result {
        Err(Error::Duplicate {
            what: "accumulator",
            name,
        }) => assert_eq!(name, "a"),
        other => panic!("{other:?}"),
    };
    duplicate(replica.accumulator("a"));
    a.add("n", 1).unwrap();
    let n = a.count("n").unwrap();
    drop(a);
    duplicate(replica.accumulator("a"));
    n.add(1).unwrap();
    drop(n);
    let mut a = replica.accumulator_from("a", [("n", 100)]).unwrap();
    assert_eq!(a.synchronized().unwrap().count("n").unwrap(), 3);
    for name in ["", &"x".repeat(193)] {
        assert!(matches!(
            replica.accumulator(name),
            Err(Error::Invalid { .. })
        ));
        assert!(matches!(a.add(name, 1), Err(Error::Invalid { .. })));
        let inserted = a.synchronized().unwrap().insert(name, 1);
        assert!(matches!(inserted, Err(Error::Invalid { .. })));
    }
    let long = "é".repeat(96);
    let mut b = replica.accumulator(&long).unwrap();
    b.add(&long, 1).unwrap();
    assert_eq!(b.synchronized().unwrap().count(&long).unwrap(), 1);
    assert_eq!(b.name(), long);
}

#[test]
fn a_panic_in_the_block_ends_the_mode_and_keeps_what_was_written() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    a.add("n", 1).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let mut all = a.synchronized().unwrap();
        all.add("n", 10).unwrap();
        panic!("in the block");
    }));
    assert!(caught.is_err());
    a.add("n", 100).unwrap();
    assert_eq!(a.synchronized().unwrap().count("n").unwrap(), 111);
    replica.barrier().expect("the run goes on");
}

#[test]
fn a_nested_block_is_the_same_block() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    a.add("n", 1).unwrap();
    let mut all = a.synchronized().unwrap();
    {
        let inner = all.synchronized();
        inner.add("n", 1).unwrap();
        assert_eq!(inner.synchronized().count("n").unwrap(), 2);
    }
    all.add("n", 1).unwrap();
    assert_eq!(all.count("n").unwrap(), 3, "the mode has not ended");
}

#[test]
fn a_block_that_is_leaked_is_an_error_and_no_hang() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    std::mem::forget(a.synchronized().unwrap());
    assert!(matches!(a.synchronized(), Err(Error::Invalid { .. })));
    assert!(matches!(a.add("n", 1), Err(Error::Invalid { .. })));
    let refused = replica.checkpoint();
    assert!(
        matches!(refused, Err(Error::NotSaved { .. })),
        "{refused:?}"
    );
    drop(a);
    assert!(matches!(
        replica.accumulator("a"),
        Err(Error::Invalid { .. })
    ));
    replica.accumulator("b").unwrap();
}

#[test]
fn a_checkpoint_waits_for_no_block_and_takes_no_other_threads_accumulator() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    a.add("n", 1).unwrap();
    let refused = |result: Result<_, Error>, why: &str| match result {
        Err(Error::NotSaved { why: found, .. }) => assert_eq!(found, why),
        other => panic!("{other:?}"),
    };
    let other = replica.clone();
    let elsewhere = move || {
        std::thread::spawn(move || other.checkpoint())
            .join()
            .unwrap()
    };
    refused(elsewhere(), "accumulator a is another thread's");
    let all = a.synchronized().unwrap();
    refused(
        replica.checkpoint(),
        "accumulator a is in its synchronized block",
    );
    drop(all);
    a.add("n", 2).unwrap();
    assert_eq!(
        replica.checkpoint().unwrap(),
        None,
        "no directory: but merged"
    );
    a.add("n", 4).unwrap();
    assert_eq!(a.synchronized().unwrap().count("n").unwrap(), 7);
}

#[test]
fn vectors_do_not_follow_what_the_caller_does_with_them() {
    let replica = alone();
    let mut a = replica.accumulator("a").unwrap();
    let mut mine = vec![1.0, 2.0];
    a.add("v", &mine).unwrap();
    mine[0] = 100.0;
    let given = a.synchronized().unwrap().sums("v").unwrap();
    a.add("v", [1.0, 1.0]).unwrap();
    drop(a.synchronized().unwrap());
    assert_eq!(given, [1.0, 2.0]);
}
