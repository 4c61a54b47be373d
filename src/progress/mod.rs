//! Epochs and data loops that go on where they were: after a restart, and with another number of replicas.
//!
//! A trainer runs its epochs with [`Replica::epochs`] and goes through its data with [`Replica::batches`]. Both know how far
//! they are, every [checkpoint](crate::checkpoint) keeps it together with everything else, and a run that goes on from the
//! checkpoint skips what is finished and hands out what remains: each sample exactly once in every pass, whatever the world
//! size is, was, or will be.
//!
//! ```
//! use gradring::Replica;
//! use gradring::progress::Sampler;
//!
//! let data: Vec<f32> = (0..1000).map(|i| i as f32).collect();
//! let sampler = Sampler::new(data.len()).batch(16).shuffled(7);
//!
//! let replica = Replica::join()?;
//! let mut sum = 0.0;
//! for epoch in replica.epochs(3)? {
//!     let epoch = epoch?;
//!     for batch in replica.batches("train", sampler)? {
//!         for &index in batch?.indices() {
//!             sum += data[index];
//!         }
//!     }
//!     println!("epoch {epoch}: {sum}");
//! }
//! assert_eq!(sum, 3.0 * 499_500.0);
//! # Ok::<(), gradring::Error>(())
//! ```
//!
//! # What a restart does
//!
//! The program begins at its top. `epochs(n)` begins with the epoch that was not finished. In it, the data loops that were
//! finished yield nothing, the one that was running yields what remains, and all later ones run as ever. So the code of an
//! epoch is of three kinds:
//!
//! | code | after a restart in this epoch |
//! |---|---|
//! | before or between data loops | runs again: it must be harmless to run it twice |
//! | in the body of a data loop | never runs again for the same batch |
//! | after the last data loop | runs once |
//!
//! Loops are told apart by their order in the epoch (or outside of all epochs), and the names are compared: a program that
//! comes to another loop than it came to before gets [`Error::OtherLoop`]. The number of samples and the seed of a running
//! loop must be what they were; its batch size and the world size need not.
//!
//! A batch that has been handed out counts as done. A checkpoint that a loop's body makes by itself belongs at the body's
//! end.
//!
//! # Stopping
//!
//! Each iteration and each epoch begins with what [`Replica::checkpoint_point`] does: when all replicas have agreed to stop,
//! after a SIGTERM or Ctrl-C at any of them, they finish the iteration, make a checkpoint and exit, all after the same one.
//! Where the builder said not to exit, loops and epochs end early instead: [`Replica::stop_requested`] says why.
//!
//! A trainer that looks by itself and leaves a loop with `break` when all have agreed to stop comes to the checkpoint (and the
//! exit) at its next loop, epoch, checkpoint point or synchronization of an accumulator. What is left in a run that stops
//! does not count as finished.

mod batches;
mod epochs;
mod order;
mod position;
mod positions;
mod sampler;
#[cfg(test)]
mod simulation;
mod split;
mod state;
mod tracker;

pub use batches::{Batch, Batches};
pub use epochs::Epochs;
pub use sampler::{Pass, Sampler};

use crate::replica::{Error, Replica};
use tracker::Tracker;

/// Epochs and data loops: see [`progress`](crate::progress).
impl Replica {
    /// The epochs up to `until` that are not finished, from 0: `until` less those that are finished. All replicas run the
    /// same. Loops after each other go on counting: `epochs(30)`, then `epochs(60)`. The first call of a run that has a
    /// checkpoint directory waits for all replicas.
    ///
    /// # Errors
    /// [`Error::Invalid`] inside a data loop or another loop over epochs; as [`keep`](Self::keep). The iterator gives those
    /// of [`checkpoint_point`](Self::checkpoint_point), and [`Error::OtherLoop`] if an epoch ends before the data loops are
    /// run that the checkpoint has in it.
    pub fn epochs(&self, until: u64) -> Result<Epochs<'_>, Error> {
        Epochs::begin(self, until)
    }

    /// How many epochs are finished, in the runs before too: in an epoch, its number.
    ///
    /// # Errors
    /// As [`keep`](Self::keep), at the first call for epochs or data loops.
    pub fn finished_epochs(&self) -> Result<u64, Error> {
        Ok(Tracker::of(self)?.lock().finished_epochs())
    }

    /// The data loop that the program has come to: what remains of it. All replicas come to the same. Its name is there to
    /// be recognized after a restart; a loop of the same name may run several times. Blocking: all replicas meet, unless the
    /// loop is finished.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a batch is of no samples, the name is empty or longer than 255 bytes, or another data loop is
    /// not over; [`Error::OtherLoop`] if the checkpoint has another one in its place; [`Error::Disagreement`], the same on
    /// all, if replicas have come to different ones; as [`keep`](Self::keep). The iterator gives those of
    /// [`checkpoint_point`](Self::checkpoint_point).
    pub fn batches(&self, name: &str, sampler: Sampler) -> Result<Batches<'_>, Error> {
        Batches::begin(self, name, sampler)
    }
}

/// A trainer leaves a loop or an epoch by itself. If all have agreed to stop, it leaves it because of that, and has not
/// finished it.
fn leave(replica: &Replica, tracker: &Tracker) {
    if replica.shared().agreed().stop().is_some() {
        tracker.lock().stop();
        replica.shared().stage().break_off();
    }
}
