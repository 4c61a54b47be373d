//! Which Rice parameter a block's gaps use.
//!
//! Everything here follows from the hits by integer arithmetic, so that encoder and decoder come to the same. For
//! evenly spread hits the shared parameter is the best one and costs nothing. Real gradients cluster (rows of an
//! embedding, dead filters), and then a block's own parameter, chosen by the size of the result, is worth its four bits.

use super::{CompactError, ESCAPE, PARAMETER, width};
use crate::codec::{BLOCK, CHUNK};

/// The parameters of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameters {
    /// The same for all blocks; not in the stream.
    Shared(u8),
    /// One for each block; those past the chunk's end are 0.
    Own([u8; CHUNK / BLOCK]),
}

/// How many of the gaps that begin in a block have each number of significant bits: as much as need be known of them to
/// choose a parameter.
pub(super) type Lengths = [u32; LENGTHS];
/// No bits, and up to those of the longest gap that a stream can say, before it is known to be outside: an escape with
/// the largest parameter, that of a single hit.
const LENGTHS: usize = 24;
const _: () = assert!((((ESCAPE as usize) << CHUNK.ilog2()) + CHUNK) >> (LENGTHS - 1) == 0);

/// The significant bits of a gap: 0 for 0.
#[inline(always)]
pub(super) fn length(gap: usize) -> usize {
    // Never the logarithm of 0, which would be a case of its own.
    (2 * gap + 1).ilog2() as usize
}

impl Parameters {
    /// The best for evenly spread hits: the largest k with `2^k <= 0.962 m`, where m is a hit's mean share of the
    /// elements less a half (Kiely 2004: 0.962 is twice the logarithm of the golden ratio). At least one hit.
    pub(super) fn shared(elements: usize, hits: usize) -> Parameters {
        let (elements, hits) = (elements as u64, hits as u64);
        let quotient = 985 * (2 * elements - hits) / (2048 * hits);
        Parameters::Shared(quotient.checked_ilog2().unwrap_or(0) as u8)
    }

    /// Whether parameters of their own can be worth their bits, by the hits of each block: else they need not be looked
    /// at, which is most of the work in a nearly empty chunk.
    pub(super) fn may_differ(mut hits: impl Iterator<Item = usize>) -> bool {
        hits.any(|hits| hits >= 16)
    }

    /// The parameters of `hits` in `elements`, at least one, whose gaps have these lengths in each block.
    pub(super) fn choose(
        lengths: &[Lengths; CHUNK / BLOCK],
        elements: usize,
        hits: usize,
    ) -> Parameters {
        let shared = Parameters::shared(elements, hits);
        let escape = ESCAPE + 1 + width(elements);
        let (mut own, mut own_cost, mut shared_cost) = ([0; CHUNK / BLOCK], 0, 0);
        for (own, lengths) in own.iter_mut().zip(lengths).take(elements.div_ceil(BLOCK)) {
            let start = shared.of(0).min(MOST);
            let gaps = AtLeast::new(lengths);
            let with_shared = gaps.cost(start, escape);
            let (k, least) = descend(start, with_shared, |k| gaps.cost(k, escape));
            *own = k as u8;
            shared_cost += with_shared;
            own_cost += least + EIGHTHS * PARAMETER as i32;
        }
        if own_cost < shared_cost {
            Parameters::Own(own)
        } else {
            shared
        }
    }

    /// That of a block.
    #[inline(always)]
    pub(super) fn of(&self, block: usize) -> u32 {
        match self {
            Parameters::Shared(k) => u32::from(*k),
            Parameters::Own(own) => u32::from(own[block]),
        }
    }

    /// Whether these, from a stream, are those that its hits call for.
    pub(super) fn check(&self, expected: &Parameters) -> Result<(), CompactError> {
        match (self, expected) {
            (Parameters::Own(found), Parameters::Own(expected)) => {
                let mut pairs = found.iter().zip(expected).enumerate();
                match pairs.find(|(_, (found, expected))| found != expected) {
                    None => Ok(()),
                    Some((block, (&found, &expected))) => Err(CompactError::Parameter {
                        block,
                        expected,
                        found,
                    }),
                }
            }
            (Parameters::Shared(_), Parameters::Shared(_)) => Ok(()),
            (found, _) => Err(CompactError::Kind {
                own: matches!(found, Parameters::Own(_)),
            }),
        }
    }
}

/// The largest parameter that a block can have of its own.
const MOST: u32 = (1 << PARAMETER) - 1;

/// From `start` down as long as it gets cheaper, or else up; the last parameter and its cost.
fn descend(start: u32, cost_there: i32, cost: impl Fn(u32) -> i32) -> (u32, i32) {
    let (mut best, mut least) = (start, cost_there);
    for k in (0..start).rev() {
        match cost(k) {
            cheaper if cheaper < least => (best, least) = (k, cheaper),
            _ => break,
        }
    }
    if best < start {
        return (best, least);
    }
    for k in start + 1..=MOST {
        match cost(k) {
            cheaper if cheaper < least => (best, least) = (k, cheaper),
            _ => break,
        }
    }
    (best, least)
}

/// Costs are counted in eighths of a bit.
const EIGHTHS: i32 = 8;

/// How many gaps have at least so many significant bits.
struct AtLeast([i32; LENGTHS + 1]);

impl AtLeast {
    fn new(lengths: &Lengths) -> AtLeast {
        let mut at_least = [0; LENGTHS + 1];
        for length in (0..LENGTHS).rev() {
            at_least[length] = at_least[length + 1] + lengths[length] as i32;
        }
        AtLeast(at_least)
    }

    /// About what the gaps cost with parameter `k`, at most 15. An escape takes `escape` bits.
    ///
    /// A gap costs `k + 2` bits and its quotient. With j significant bits more than k the quotient is between
    /// `2^(j-1)` and `2^j - 1`; in a falling distribution it is `11/8 2^(j-1) - 1/2` in the mean. From j = 5 on it is an
    /// escape. Since the counts are of *at least* so many bits, each j adds what it costs more than the one before.
    fn cost(&self, k: u32, escape: u32) -> i32 {
        let AtLeast(gaps) = self;
        let (at, each) = (k as usize, EIGHTHS * (k as i32 + 2));
        let escaped = EIGHTHS * escape as i32 - each;
        each * gaps[0]
            + 7 * gaps[at + 1]
            + 11 * gaps[at + 2]
            + 22 * gaps[at + 3]
            + 44 * gaps[at + 4]
            + (escaped - 84) * gaps[at + 5]
    }
}
