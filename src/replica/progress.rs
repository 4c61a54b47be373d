//! The progress rule of every operation over the rings.
//!
//! A replica has two lists: what it publishes, frame by frame, and what it takes, in the order (chunk, rank, frame),
//! its own included. Neither list ever blocks the other, and nothing waits for ring space alone. Then no circle can
//! form as long as any one frame fits an empty ring: of all ranks look at the one whose next take is lowest; the
//! producer it waits for can only be held up by a rank whose next take is lower still.

use crate::shm::sync::{Site, mutant};

/// The two lists of one rank in one operation.
pub trait Lists {
    /// What ends the operation.
    type Error;
    /// In which chunk the next frame to publish lies; `None` when all are out.
    fn publishing(&self) -> Option<u64>;
    /// In which chunk the next frame to take lies; `None` when all are in.
    fn taking(&self) -> Option<u64>;
    /// Publishes the next frame; false if it does not fit now.
    fn publish(&mut self) -> Result<bool, Self::Error>;
    /// Takes the next frame; false if it has not come yet.
    fn take(&mut self) -> Result<bool, Self::Error>;
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// A frame was published or taken.
    Went,
    /// Neither list can go on before somebody else does something.
    Blocked,
    /// Both lists are empty.
    Finished,
}

/// One turn: publishes the next frame if it fits and lies at most `ahead` chunks past the one being taken, otherwise
/// takes the next one if it is there. Never waits.
///
/// # Errors
/// Whatever the lists return.
pub fn advance<L: Lists>(lists: &mut L, ahead: u64) -> Result<Advance, L::Error> {
    let (publishing, taking) = (lists.publishing(), lists.taking());
    if let Some(chunk) = publishing {
        let near = taking.is_none_or(|taken| chunk <= taken.saturating_add(ahead));
        if near && lists.publish()? {
            return Ok(Advance::Went);
        }
        if near && mutant(Site::PublishBlocks) {
            return Ok(Advance::Blocked);
        }
    }
    if taking.is_some() && lists.take()? {
        return Ok(Advance::Went);
    }
    Ok(if publishing.is_none() && taking.is_none() {
        Advance::Finished
    } else {
        Advance::Blocked
    })
}
