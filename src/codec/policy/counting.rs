//! How a policy that is steered by the density counts it.

/// How a policy that is steered by the density counts the step before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// Hits by elements.
    #[default]
    Hits,
    /// Words by elements, as Deeplearning4j counts them: the 4 words of a message's header count too; a dense message
    /// is 1/16, whatever it holds; a message of at most 1 hit is not sent, which counts as 0.
    ///
    /// Its messages are dense at first. A dense one of fewer than `(n/16 + 5) / 2` hits, in whole numbers, makes the
    /// next ones sparse; a sparse one that would have `n/16` words is sent dense, and so are the next ones. Only the
    /// counting follows these rules: what is sent, and how, does not. Deeplearning4j's dense messages hold half hits
    /// too, which ours do not and which are not counted.
    ///
    /// With fewer than 32 elements this counts every step as 0 but the first ones, and the threshold falls to its floor.
    Dl4j,
}

/// What a Deeplearning4j replica would send next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Dense,
    Sparse,
}

impl Mode {
    /// The density that Deeplearning4j would have counted for a step in which `hits` of `elements` were hits, and how it
    /// would go on.
    pub(super) fn after(self, hits: u64, elements: usize) -> (f64, Mode) {
        const DENSE: f64 = 1.0 / 16.0;
        let most = elements as u64 / 16;
        match self {
            Mode::Dense if hits < (most + 5) / 2 => (DENSE, Mode::Sparse),
            Mode::Dense => (DENSE, Mode::Dense),
            Mode::Sparse => match hits.min(most) {
                0..=1 => (0.0, Mode::Sparse),
                sent if sent + 4 >= most => (DENSE, Mode::Dense),
                sent => ((sent + 4) as f64 / elements as f64, Mode::Sparse),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_changes_where_deeplearning4j_changes_it() {
        // Of 10,000 elements: dense to sparse below 315 hits, sparse to dense from 625 words on.
        let n = 10_000;
        assert_eq!(Mode::default(), Mode::Dense);
        assert_eq!(Mode::Dense.after(315, n), (0.0625, Mode::Dense));
        assert_eq!(Mode::Dense.after(314, n), (0.0625, Mode::Sparse));
        assert_eq!(Mode::Sparse.after(620, n), (0.0624, Mode::Sparse));
        assert_eq!(Mode::Sparse.after(621, n), (0.0625, Mode::Dense));
        assert_eq!(Mode::Sparse.after(u64::MAX, n), (0.0625, Mode::Dense));
        // The header counts; a single hit is not sent.
        assert_eq!(Mode::Sparse.after(6, n), (1e-3, Mode::Sparse));
        assert_eq!(Mode::Sparse.after(2, n), (6e-4, Mode::Sparse));
        assert_eq!(Mode::Sparse.after(1, n), (0.0, Mode::Sparse));
        assert_eq!(Mode::Sparse.after(0, n), (0.0, Mode::Sparse));
    }

    #[test]
    fn small_vectors_are_counted_as_oddly_as_there() {
        // Under 112 elements the least sparse message is already too long, under 32 there is none.
        assert_eq!(Mode::Sparse.after(2, 112), (6.0 / 112.0, Mode::Sparse));
        assert_eq!(Mode::Sparse.after(2, 111), (0.0625, Mode::Dense));
        assert_eq!(Mode::Sparse.after(31, 31), (0.0, Mode::Sparse));
        assert_eq!(Mode::Sparse.after(0, 0), (0.0, Mode::Sparse));
        assert_eq!(Mode::Dense.after(0, 0), (0.0625, Mode::Sparse));
    }
}
