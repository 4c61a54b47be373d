//! From the accumulation mode to the synchronized one.

use super::accumulator::Lease;
use super::history::Snapshot;
use super::peers::{Failure, name_of};
use super::registry::{Core, inside_block};
use super::synchronized::Synchronized;
use crate::replica::shared::Shared;
use crate::replica::{Error, Kind, Operation};
use std::panic::Location;
use std::sync::Arc;

/// The synchronization itself.
const SYNCHRONIZE: u16 = 0;
/// After one that all ranks refuse: nobody goes on adding while another still reads why.
const REFUSED: u16 = 1;

/// What all ranks must come for: which accumulator, and which of its synchronizations.
fn operation(subject: u16, core: &Core, epoch: Option<u64>, ordinal: Option<u64>) -> Operation {
    let half = |x: Option<u64>| x.map_or(0, |x| x.saturating_add(1).min(u32::MAX.into()));
    let place = half(epoch) << 32 | half(ordinal);
    Operation::new(Kind::Synchronize, subject, core.hash, place)
}

pub(super) fn synchronize<'a>(
    lease: &'a Lease,
    site: &'static Location<'static>,
    recorded: bool,
) -> Result<Synchronized<'a>, Error> {
    if lease.replica.shared().stage().is_broken_off() {
        // What comes now comes again after the restart, when the loop that was left is over.
        lease.replica.checkpoint_point()?;
    }
    let (core, cells, shared) = (&*lease.core, &*lease.cells, lease.replica.shared());
    let mut guard = core.state().ok_or_else(inside_block)?;
    let state = &mut *guard;
    let epoch = shared.stage().epoch();
    let recorded = recorded && !shared.stage().in_loop();
    let mut ordinal = None;
    if recorded {
        let (next, replayed) = state.history.next(epoch);
        if let Some(snapshot) = replayed {
            let found = site.to_string();
            if *snapshot.site != *found {
                return Err(Error::Replay {
                    accumulator: core.name.to_string(),
                    epoch,
                    ordinal: next,
                    expected: snapshot.site.to_string(),
                    found,
                });
            }
            let results = Arc::clone(&snapshot.results);
            state.history.count(epoch);
            if epoch.is_some() {
                state.history.prune(epoch);
            }
            state.forget(cells);
            core.outdate();
            return Ok(Synchronized::new(&core.name, guard, Some(results)));
        }
        ordinal = Some(next);
    }
    let Some((number, deltas)) = &mut state.deltas else {
        return Err(inside_block());
    };
    let buffer = deltas.buffer();
    deltas.publish(cells.region());
    cells.region().set_changes(*number, buffer, state.changes);
    {
        let engine = &mut *shared.engine()?;
        // SYNC POINT: everything that a rank has written before it comes here is read by the others after.
        shared
            .meet(engine, operation(SYNCHRONIZE, core, epoch, ordinal))
            .map_err(|error| explain(shared, error))?;
        match state.peers.add_up(shared, core, buffer, &state.results) {
            Ok(results) => state.agree_on(results),
            Err(Failure::Agreed(error)) => {
                shared.meet(engine, operation(REFUSED, core, epoch, ordinal))?;
                return Err(error);
            }
            Err(Failure::Broken(rank, what)) => {
                return Err(shared.broken(rank, what));
            }
        }
    }
    state.advance(cells);
    core.outdate();
    state.history.prune(epoch);
    if recorded {
        let snapshot = Snapshot {
            site: site.to_string().into(),
            results: Arc::clone(&state.results),
        };
        state.history.record(epoch, snapshot);
    }
    Ok(Synchronized::new(&core.name, guard, None))
}

/// Says in the user's words what ranks came for, if all came for synchronizations.
fn explain(shared: &Shared, error: Error) -> Error {
    let Error::Mismatch { came, .. } = &error else {
        return error;
    };
    let ours = |(_, operation): &(usize, Operation)| {
        operation.kind == Kind::Synchronize && operation.subject == SYNCHRONIZE
    };
    if came.len() != shared.world_size || !came.iter().all(ours) {
        return error;
    }
    let name = |rank: usize, hash: u64| {
        name_of(shared, rank, hash).unwrap_or_else(|| format!("{hash:016x}"))
    };
    let hash = came[0].1.length;
    if came.iter().any(|(_, operation)| operation.length != hash) {
        let names = came
            .iter()
            .map(|(rank, operation)| (*rank, name(*rank, operation.length)));
        return Error::Disagreement {
            what: "a synchronization".into(),
            field: "accumulator".into(),
            values: names.collect(),
        };
    }
    let places = came
        .iter()
        .map(|(rank, operation)| (*rank, place(operation.extra)));
    Error::Disagreement {
        what: format!("a synchronization of accumulator {}", name(0, hash)),
        field: "its place".into(),
        values: places.collect(),
    }
}

fn place(extra: u64) -> String {
    let ordinal = match (extra & u64::from(u32::MAX)).checked_sub(1) {
        Some(ordinal) => format!("number {ordinal}"),
        None => "one that is not recorded".into(),
    };
    match (extra >> 32).checked_sub(1) {
        Some(epoch) => format!("{ordinal} of epoch {epoch}"),
        None => format!("{ordinal} outside of epochs"),
    }
}
