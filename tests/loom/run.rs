//! How a model is run, and how a mutant is proven to be noticed.
//!
//! Models share by std's `Arc`: loom's would order threads by its own counter, and hide a race.

use gradring::shm::frame::Header;
use gradring::shm::ring::{Arena, Cells, Consumer, Producer, Refused, Ring};
use gradring::shm::sync::{AtomicU64, Mutation, Padded, forget_mutations};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

/// What loom says of two accesses to the same bytes that nothing orders.
pub(crate) const RACE: &str = "Causality violation";
/// What a consumer says of a tail that has overtaken it.
pub(crate) const OVERTAKEN: &str = "TailTooFar";
/// What loom says when every thread sleeps.
pub(crate) const DEADLOCK: &str = "deadlock";

// All threads of a model are coroutines on the test's own thread, so these belong to one test.
thread_local! {
    static REACHED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    static A_PANIC_IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Notes that some interleaving has come to this, for [`check_reaching`].
pub(crate) fn reached(what: &'static str) {
    REACHED.with_borrow_mut(|all| all.insert(what));
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // Going past this is a panic.
    builder.max_branches = 10_000;
    // Whatever the environment says: each of these ends the search early, and without a word.
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.checkpoint_file = None;
    REACHED.with_borrow_mut(BTreeSet::clear);
    let executions = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&executions);
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions with {preemptions} preemptions");
}

/// Runs all interleavings with at most so many preemptions.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    check_reaching(preemptions, &[], model);
}

/// As [`check`]; and each of `wanted` must be [`reached`] by some interleaving. Polls are bounded, so a model could
/// otherwise pass because everybody gave up early.
pub(crate) fn check_reaching(
    preemptions: usize,
    wanted: &[&'static str],
    model: impl Fn() + Sync + Send + 'static,
) {
    forget_mutations();
    explore(preemptions, model);
    REACHED.with_borrow(|all| {
        for what in wanted {
            assert!(all.contains(what), "no interleaving reached {what:?}");
        }
    });
}

/// Runs the model with a mistake in the code; it must be noticed, and for the right reason.
pub(crate) fn notices(
    mutation: impl FnOnce() -> Mutation,
    reason: &str,
    preemptions: usize,
    model: impl Fn() + Sync + Send + 'static,
) {
    forget_mutations();
    let mutation = mutation();
    let outcome = quietly(|| explore(preemptions, model));
    let panic = match outcome {
        Ok(()) => panic!("the model does not notice {mutation:?}"),
        Err(panic) => panic,
    };
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(
        message.contains(reason),
        "{mutation:?} is noticed, but for another reason than {reason:?}: {message}"
    );
}

/// Runs something that should panic, without the report on standard error.
fn quietly(run: impl FnOnce()) -> std::thread::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !A_PANIC_IS_EXPECTED.get() {
                report(info);
            }
        }));
    });
    A_PANIC_IS_EXPECTED.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    A_PANIC_IS_EXPECTED.set(false);
    outcome
}

/// A ring in memory that loom watches.
pub(crate) struct Memory {
    tail: Padded<AtomicU64>,
    cursors: Vec<Padded<AtomicU64>>,
    cells: Cells,
}

impl Memory {
    /// An empty ring of `units` times 64 bytes that stands at `position`.
    pub(crate) fn at(position: u64, consumers: usize, units: usize) -> Arc<Self> {
        Arc::new(Self {
            tail: Padded::new(AtomicU64::new(position)),
            cursors: (0..consumers)
                .map(|_| Padded::new(AtomicU64::new(position)))
                .collect(),
            cells: Cells::new(64 * units),
        })
    }

    /// An empty ring of `units` times 64 bytes.
    pub(crate) fn new(consumers: usize, units: usize) -> Arc<Self> {
        Self::at(0, consumers, units)
    }

    pub(crate) fn ring(&self) -> Ring<'_> {
        Ring::new(&self.tail, &self.cursors, Arena::from_cells(&self.cells))
    }
}

/// The kind of the models' frames.
pub(crate) const KIND: u8 = 7;

/// Publishes a frame that carries `value`: in the header, and in each 8 bytes of the payload. False if it has no room.
pub(crate) fn send(ring: Ring<'_>, producer: &mut Producer, value: u64, payload: usize) -> bool {
    let mut grant = match ring.reserve(producer, payload) {
        Ok(grant) => grant,
        Err(Refused::Full) => return false,
        Err(other) => panic!("{other}"),
    };
    for at in (0..payload).step_by(8) {
        assert!(grant.write(at, &value.to_ne_bytes()));
    }
    grant.commit(header(value));
    true
}

/// The header of a frame that carries `value`.
pub(crate) fn header(value: u64) -> Header {
    let mut header = Header::new(KIND);
    header.user[4..12].copy_from_slice(&value.to_ne_bytes());
    header
}

/// Takes the next frame and gives what it carries; `None` if none has come.
pub(crate) fn take(ring: Ring<'_>, consumer: &mut Consumer) -> Option<u64> {
    let grant = ring.peek(consumer).expect("nobody breaks the protocol")?;
    assert_eq!(
        grant.header().kind,
        KIND,
        "only the user's frames are delivered"
    );
    let value = u64::from_ne_bytes(grant.header().user[4..12].try_into().expect("8 bytes"));
    let mut payload = Vec::new();
    grant.copy_payload(&mut payload);
    assert!(
        payload.chunks(8).all(|word| word == value.to_ne_bytes()),
        "the payload is torn"
    );
    grant.release();
    Some(value)
}

/// Takes everything that has come, and asserts that it is `next`, `next + 1`, .. `end - 1`.
pub(crate) fn drain(ring: Ring<'_>, consumer: &mut Consumer, next: u64, end: u64) {
    let rest: Vec<u64> = std::iter::from_fn(|| take(ring, consumer)).collect();
    assert_eq!(rest, (next..end).collect::<Vec<_>>(), "lost or invented");
}

/// Tries `tries` times to take; the number that is expected next.
pub(crate) fn take_some(ring: Ring<'_>, consumer: &mut Consumer, tries: usize) -> u64 {
    let mut next = 0;
    for _ in 0..tries {
        if let Some(value) = take(ring, consumer) {
            assert_eq!(value, next, "in order");
            next += 1;
        }
    }
    next
}
