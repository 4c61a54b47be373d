//! The handle that a trainer holds.

use super::all_reduce::all_reduce;
use super::collectives;
use super::error::Error;
use super::flags::{Flags, Stop};
use super::join::{self, Builder};
use super::op::{Op, Value};
use super::shared::Shared;
use crate::shm::sync::Ordering;
use std::sync::Arc;

/// One process of a run.
///
/// Clones are the same replica. All replicas must call the same operations in the same order; one that calls another is
/// an error with names on all of them, within 50 ms (150 ms where rank 0 has not come). The replica leaves the run when the last clone and the last
/// [`Exchange`](crate::Exchange) made with it are dropped; a drop while the thread panics ends the run for all.
/// A process that ends without the drop (`std::process::exit`, an abort) has died for the others, whatever its exit code.
///
/// An operation waits for the other replicas, at most until the deadline. Operations of one replica must not be called
/// from several threads at once: they would come in an order that differs between replicas. One that code calls which
/// another one has called (a source, a policy) is an error. A panic of such code ends the run for all.
/// A forked child must call none: it is not the replica, though it has a copy of the handle.
///
/// ```
/// let replica = gradring::Replica::join()?; // alone without a launcher
/// assert_eq!((replica.rank(), replica.world_size()), (0, 1));
/// let mut parameters = vec![0.5_f32; 1000];
/// replica.broadcast(0, &mut parameters)?;
/// let mut loss = [0.25_f64];
/// replica.all_reduce(&mut loss, gradring::op::Sum)?;
/// replica.barrier()?;
/// # Ok::<(), gradring::Error>(())
/// ```
#[derive(Clone)]
pub struct Replica(Arc<Handle>);

/// What the clones of a replica have in common.
///
/// With the last clone goes what other parts of the crate keep for the replica. Some of that (an exchange among the states
/// of a checkpoint) holds on to the replica itself, which would never leave otherwise.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child has a copy; what is kept is its parent's.
        if std::process::id() == self.0.pid {
            self.0.detach_all();
        }
    }
}

impl Replica {
    /// Joins the run whose launcher started this process, or, without a launcher, makes a world of one. Returns when
    /// all replicas have joined.
    ///
    /// # Errors
    /// As [`Builder::join`].
    pub fn join() -> Result<Self, Error> {
        Builder::default().join()
    }

    /// Sets a deadline or a join timeout before joining.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Whether a launcher started this process as a replica: whether [`join`](Self::join) would join its run.
    pub fn is_replica() -> bool {
        join::is_replica()
    }

    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(Arc::new(Handle(shared)))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// This replica's number, 0 to world size - 1.
    pub fn rank(&self) -> usize {
        self.shared().rank
    }

    /// How many replicas the run has.
    pub fn world_size(&self) -> usize {
        self.shared().world_size
    }

    /// Returns when all replicas have come. Blocking.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they came for barriers that differ; what ended the run.
    pub fn barrier(&self) -> Result<(), Error> {
        collectives::barrier(self.shared())
    }

    /// Enters a barrier without waiting for the others, so that work fits between. Wait-free, unless an open barrier must
    /// be finished first.
    ///
    /// # Errors
    /// [`Error::TicketOpen`] if the ticket of an open one is still held; what ended the run.
    pub fn arrive(&self) -> Result<BarrierTicket<'_>, Error> {
        let engine = &mut *self.shared().engine()?;
        let held = self.shared().ticket.load(Ordering::Relaxed);
        if engine.open.is_some_and(|(_, number)| number == held) {
            return Err(Error::TicketOpen);
        }
        collectives::arrive(self.shared(), engine)?;
        let number = engine.number;
        self.shared().ticket.store(number, Ordering::Relaxed);
        Ok(BarrierTicket {
            replica: self,
            number,
        })
    }

    /// Makes `vector` what it is at `root`, on all replicas, for any length. Blocking.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such root; [`Error::Mismatch`] if lengths or roots differ; what ended the run.
    pub fn broadcast(&self, root: usize, vector: &mut [f32]) -> Result<(), Error> {
        collectives::broadcast(self.shared(), root, vector.len(), &mut |range, with| {
            with(&mut vector[range]);
        })
    }

    /// What every replica gave, by rank; lengths may differ and may be 0. Up to 1 KiB each takes one hand-over. Blocking.
    ///
    /// # Errors
    /// What ended the run.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        collectives::all_gather(self.shared(), bytes)
    }

    /// Reduces `values` element by element over all replicas, in rank order, so that all get the same bits, for any
    /// length. Up to 1 KiB takes one hand-over. Longer vectors go through the rings: every replica reads everybody's
    /// where they are short or replicas are two; otherwise each reduces a slice for all. Blocking.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if type, length or operation differ; what ended the run: then `values` are partly reduced.
    pub fn all_reduce<T: Value, O: Op<T>>(&self, values: &mut [T], _op: O) -> Result<(), Error> {
        all_reduce::<T, O>(self.shared(), values)
    }

    /// Ends the run for all replicas: whatever they wait for or begin next returns [`Error::Aborted`] with this rank and
    /// reason (cut to 248 bytes). Callable from any thread, also while another one is inside an operation; a second call
    /// changes nothing. Wait-free.
    pub fn abort(&self, reason: &str) {
        self.shared().abort(reason);
    }

    /// Asks all replicas for something: it goes with everything that this replica does from now on, and when an operation
    /// of all has ended, [`agreed`](Self::agreed) says so on all replicas alike. Wait-free.
    pub fn raise(&self, flags: Flags) {
        self.shared().raise(flags);
    }

    /// What any replica had asked for when it entered an operation that has ended here. The same on all replicas after the
    /// same operation. Blocks while another thread of this replica is inside one.
    pub fn agreed(&self) -> Flags {
        self.shared().agreed()
    }

    /// Why all replicas have agreed to stop, if they have: for loops of your own, after any operation of all. Batches,
    /// epochs and checkpoint points look by themselves. A data loop that is left with `break` because of this is not finished,
    /// and goes on after the restart.
    ///
    /// From the first call on SIGTERM and Ctrl-C ask for a stop and do not end this process at once
    /// ([`Builder::handle_signals`]).
    pub fn stop_requested(&self) -> Option<Stop> {
        self.shared().look_at_stops();
        self.shared().agreed().stop()
    }

    /// The epoch in which this replica is, from 0; `None` outside of epochs.
    pub fn epoch(&self) -> Option<u64> {
        self.shared().stage().epoch()
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Replica {} of {}", self.rank(), self.world_size())
    }
}

/// A barrier that was entered. Dropped, it is finished by this replica's next operation.
#[derive(Debug)]
#[must_use = "a barrier that is entered must be waited for"]
pub struct BarrierTicket<'a> {
    replica: &'a Replica,
    /// The barrier's number.
    number: u64,
}

impl BarrierTicket<'_> {
    /// Returns when all replicas have come. Blocking.
    ///
    /// # Errors
    /// As [`Replica::barrier`].
    pub fn wait(self) -> Result<(), Error> {
        let shared = self.replica.shared();
        let engine = &mut *shared.engine()?;
        match engine.open.take_if(|(_, number)| *number == self.number) {
            Some(open) => {
                engine.open = Some(open);
                shared.finish_open(engine)
            }
            // Another operation has come since, and has finished it first.
            None => Ok(()),
        }
    }
}

impl Drop for BarrierTicket<'_> {
    fn drop(&mut self) {
        // Of several, which were left over by operations that finished their barriers, the last one counts.
        let held = &self.replica.shared().ticket;
        let _ = held.compare_exchange(self.number, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}
