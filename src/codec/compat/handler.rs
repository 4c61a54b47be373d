//! Which of the two encodings a message uses.

use super::threshold::{encode, hits};
use super::{CompatError, Element, Sent, check, encode_bitmap};

/// The encoding that a [`Handler`] tries first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A bitmap: it is not known that there are few hits.
    #[default]
    Dense,
    /// A threshold message.
    Sparse,
}

/// Upstream's switching between the two encodings (`EncodingHandler`).
///
/// With B = N / 16, in whole numbers:
///
/// | mode | sends | and then |
/// |---|---|---|
/// | dense, as it starts | a bitmap | is sparse, if the bitmap touched fewer than (B + 5) / 2 elements |
/// | sparse, no hits | nothing | stays sparse |
/// | sparse, k hits with k + 4 < B | a threshold message | stays sparse |
/// | sparse, else | a bitmap | is dense |
///
/// So a message has never more than [`max_message_words`](super::max_message_words).
///
/// Unlike upstream it counts the hits before it touches the vector, so that nothing is lost when it turns to a bitmap;
/// and it sends every hit: a single one as a threshold message of one element, which upstream's decoder takes although
/// its encoder never makes one, and those of a vector below 32 elements as a bitmap. Else an element that is alone
/// above the threshold would wait for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handler {
    mode: Mode,
}

impl Handler {
    /// A handler in dense mode.
    #[must_use]
    pub fn new() -> Handler {
        Handler::default()
    }

    /// A handler that goes on from `mode`: of a checkpoint, say.
    #[must_use]
    pub fn with_mode(mode: Mode) -> Handler {
        Handler { mode }
    }

    /// The mode of the next message.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Appends the next message of `x` to `out`, if it sends one, and subtracts from `x` what it says.
    ///
    /// # Errors
    /// [`CompatError::Threshold`] unless `threshold` is finite and above 0; [`CompatError::TooLong`]. The mode is as it
    /// was.
    pub fn encode<T: Element>(
        &mut self,
        x: &mut [T],
        threshold: f32,
        out: &mut Vec<i32>,
    ) -> Result<Sent, CompatError> {
        check(x.len(), threshold)?;
        let bound = x.len() / 16;
        if self.mode == Mode::Sparse {
            let hits = hits(x, threshold);
            if hits == 0 {
                return Ok(Sent::Nothing { hits });
            }
            if hits + 4 < bound {
                encode(x, threshold, hits, out)?;
                return Ok(Sent::Threshold { hits });
            }
            self.mode = Mode::Dense;
            let touched = encode_bitmap(x, threshold, out)?;
            return Ok(Sent::Bitmap { touched });
        }
        let touched = encode_bitmap(x, threshold, out)?;
        if touched < (bound + 5) / 2 {
            self.mode = Mode::Sparse;
        }
        Ok(Sent::Bitmap { touched })
    }
}
