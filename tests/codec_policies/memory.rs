//! No policy asks for memory after its first step.

use super::policies;
use gradring::codec::policy::{LastStep, PolicyInput};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counted;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: the system's allocator does it all; the count is a thread's own, without a destructor, and allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

#[test]
fn no_policy_asks_for_memory_after_its_first_step() {
    let elements = 1 << 20;
    // Samples change their size during a warm-up, and their scale so that guesses fail.
    let all: Vec<f32> = super::scattered(elements);
    for mut policy in policies() {
        let mut last = None;
        for step in 0..40 {
            let before = ALLOCATIONS.get();
            let wanted = policy.sample_size(all.len(), step);
            let from = if step % 3 == 0 { all.len() - wanted } else { 0 };
            let unit = policy.unit(&PolicyInput {
                step,
                elements: all.len(),
                sample: &all[from..from + wanted],
                last,
            });
            policy.limit(all.len(), step);
            let asked = ALLOCATIONS.get() - before;
            assert!(
                step == 0 || asked == 0,
                "{asked} at step {step}: {}",
                policy.kind()
            );
            last = Some(LastStep {
                unit,
                hits: 1000 * (step % 2),
                density: 0.0,
                mean: Some(f64::from(unit.t())),
            });
        }
    }
}
