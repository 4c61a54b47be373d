//! Life tokens: the kernel writes into a word when the process that holds it dies.

use super::segment::Segment;
use super::sync::AtomicU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a token says. One Acquire load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Not joined, or left.
    Absent,
    /// Lives.
    Alive { tid: u32 },
    /// Died without leaving.
    Dead { tid: u32 },
}
pub fn look(word: &AtomicU32) -> Life {
    todo!()
}
/// The parked engine thread that holds a token.
pub struct Keeper(());
/// Whose token.
#[derive(Clone, Copy, Debug)]
pub enum Holder {
    Rank(usize),
    Launcher,
}
impl Keeper {
    /// Starts the engine thread: registers the robust list, stores its TID into the holder's word, sleeps (on the lifeline too; hang-up kills the process).
    pub fn start(
        segment: Arc<Segment>,
        holder: Holder,
        lifeline: Option<OwnedFd>,
    ) -> std::io::Result<Keeper> {
        todo!()
    }
    /// Word 0, thread ended. (Drop does the same, only in the process that started it.)
    pub fn leave(self) {
        todo!()
    }
}
