//! The lines of a segment that belong to one process each.
//!
//! Every struct here is a view of shared memory: only atomics, each with one writer unless its comment says otherwise,
//! and all bytes zero at first. A struct's size is a whole number of [`Padded`] lines, so that what one rank writes
//! never shares a cache line with what another writes.

use super::barrier::Arrival;
use super::pace::Pace;
use super::seat::Seat;
use super::sync::{AtomicU32, AtomicU64, Padded};

/// Operation slots of a rank: a rank is never further ahead of another than this.
pub const SLOTS: usize = 64;
/// 8-byte words of an inline value, 1 KiB.
pub const INLINE_WORDS: usize = 128;
/// 8-byte words of a rank's reason for aborting.
pub const REASON_WORDS: usize = 31;
/// Statistics of a rank.
pub const COUNTERS: usize = 16;
/// In a rank's status: it has begun, that is, entered an operation that does not only prepare for others.
pub const BEGUN: u32 = 1 << 8;
/// In a rank's status: it writes a checkpoint, and others wait for it as long as that takes.
pub const WRITING: u32 = 1 << 9;

/// One rank's own lines.
#[repr(C)]
pub struct RankLines {
    /// Free, joining, joined, left; writers, readers and orderings as [`Seat`] says.
    pub state: Padded<Seat>,
    /// The life token, see [`super::life`].
    ///
    /// Writer: the rank's engine thread (Release), and the kernel when that thread dies. Reader: all ranks and the
    /// launcher, one Acquire load.
    pub life: Padded<AtomicU32>,
    /// Who the rank is.
    pub identity: Padded<RankIdentity>,
    /// At which barrier the rank has arrived.
    pub arrival: Padded<Arrival>,
    /// How far the rank's asynchronous steps are; writers, readers and orderings as [`Pace`] says.
    pub pace: Padded<Pace>,
    /// What the rank has come for, by operation number modulo [`SLOTS`].
    pub slots: [Slot; SLOTS],
    /// Values of up to 1 KiB that are exchanged without the ring, by operation number modulo 2.
    pub inline: [Padded<Inline>; 2],
    /// Why this rank aborted: written before the poison word, read after it.
    pub reason: Padded<Reason>,
    /// Statistics for displays. Writer: the rank (Relaxed). Reader: anybody (Relaxed); each word is right by itself.
    pub counters: Padded<[AtomicU64; COUNTERS]>,
}

/// Which process and thread hold a life token.
///
/// Writer: [`super::life::Keeper::start`] stores `pid` and `tid` (Relaxed) before the life token (Release); `raised` is
/// the rank's own at any time. Reader: all, after an Acquire load of the life token.
#[repr(C)]
pub struct RankIdentity {
    /// Process id in the holder's pid namespace.
    pub pid: AtomicU32,
    /// Thread id of the engine thread that holds the token.
    pub tid: AtomicU32,
    /// Flags that this rank has raised and that are not agreed yet. Writer: this rank, signal handlers included (Relaxed
    /// `fetch_or`). Nobody acts on the raw bits.
    pub raised: AtomicU32,
    /// What a launcher may know of this rank: the agreed flags in bits 0 to 7, then [`BEGUN`] and [`WRITING`]. Writer:
    /// this rank (Relaxed). Reader: the launcher and the other ranks (Relaxed); each bit is right by itself.
    pub status: AtomicU32,
}

/// What a rank has come for.
///
/// Writer: the rank: `identity`, `detail`, `extra` (Relaxed), then `number` (Release). Reader: `number` (Acquire), the
/// words (Relaxed), `fence(Acquire)`, `number` again (Relaxed); another number than the one sought: not there. While a
/// slot is overwritten its number is the old one for a while; nobody seeks that any more, because no rank is ever more
/// than one operation ahead of another, and a slot comes back after [`SLOTS`].
#[repr(C)]
pub struct Slot {
    /// The operation's number. 0: never written.
    pub number: AtomicU64,
    /// Hash of what all ranks must agree on.
    pub identity: AtomicU64,
    /// What the operation is, for messages; the flags that the rank had raised.
    pub detail: AtomicU64,
    /// More of the same.
    pub extra: AtomicU64,
}

/// A value of up to 1 KiB. A short one is read with one cache line.
///
/// Writer: the rank: `words`, `length` and `came` (Relaxed), then `number` (Release). Reader: `number` (Acquire), then the
/// rest (Relaxed). A slot is written again only two operations later, which no rank reaches before all have read it.
#[repr(C)]
pub struct Inline {
    /// Number of the operation that the value belongs to. 0: never written.
    pub number: AtomicU64,
    /// Bytes in use. A reader must not trust it to be at most 1024.
    pub length: AtomicU64,
    /// The operation's identity, and the flags that the rank had raised.
    pub came: AtomicU64,
    /// The bytes, little-endian in each word.
    pub words: [AtomicU64; INLINE_WORDS],
}

/// A short text.
///
/// Writer: the rank, once, Relaxed, before it sets the poison word (AcqRel). Reader: after an Acquire load of the poison
/// word that names this rank (Relaxed).
#[repr(C)]
pub struct Reason {
    /// Bytes in use. A reader must not trust it to fit.
    pub length: AtomicU64,
    /// UTF-8, little-endian in each word; a reader must not trust it to be UTF-8.
    pub words: [AtomicU64; REASON_WORDS],
}

/// The launcher's own lines.
#[repr(C)]
pub struct LauncherLines {
    /// The launcher's life token; orderings as [`RankLines::life`]. 0 for good when there is no launcher.
    pub life: Padded<AtomicU32>,
    /// Who the launcher is; orderings as [`RankLines::identity`]. `raised` is what it asks of the run.
    pub identity: Padded<RankIdentity>,
}
