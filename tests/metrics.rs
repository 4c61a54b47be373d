//! Accumulators: what they give, alone and in worlds of real processes, and through restarts.

#[path = "metrics/alone.rs"]
mod alone;
#[path = "metrics/exact.rs"]
mod exact;
#[path = "metrics/restarts.rs"]
mod restarts;
#[path = "metrics/together.rs"]
mod together;
mod world;

use gradring::Replica;

#[test]
fn replica() {
    let Some(case) = world::case() else { return };
    let replica = Replica::join().expect("joins");
    match case.split_once(' ') {
        Some(("together", case)) => together::replica(case, &replica),
        Some(("exact", case)) => exact::replica(case, &replica),
        Some(("restarts", case)) => restarts::replica(case, &replica),
        _ => panic!("no case {case}"),
    }
    world::tell("done");
}
