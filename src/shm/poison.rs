//! The poison word: the first culprit wins, all agree.

use super::sync::Padded;

/// Who and why, in 8 bytes. `cause` 0 is "not poisoned".
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(8))]
pub struct Verdict {
    /// Low 48 bits of the culprit's operation number.
    pub operation_low: u32,
    pub operation_high: u16,
    /// The culprit's rank; 255 is the launcher.
    pub rank: u8,
    /// What happened; the user's numbers, not 0.
    pub cause: u8,
}
/// The poison word, alone on its line.
#[repr(C)]
pub struct Poison { word: Padded<super::sync::Word<Verdict>> }
impl Poison {
    pub fn new() -> Self { todo!() }
    /// Acquire.
    pub fn get(&self) -> Option<Verdict> { todo!() }
    /// CAS; the verdict that holds afterwards (the first one's).
    pub fn set(&self, verdict: Verdict) -> Verdict { todo!() }
}
