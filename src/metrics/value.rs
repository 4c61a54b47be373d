//! What a synchronized accumulator holds under a key.

use super::addend::Addend;
use super::content::{Content, Form, extreme_at, ratio};
use crate::shm::cells::Kind;

/// What stands under a key: a number that is the same on all replicas, to the last bit.
///
/// Sums are exact, and are rounded when they are read: once, to the nearest f64, half to even; beyond the largest f64 they
/// are infinite, and with a NaN or both infinities among the addends they are the one NaN `7ff8000000000000`.
///
/// ```
/// use gradring::metrics::Value;
/// assert_eq!(Value::from(3).count(), Some(3));
/// assert_eq!(Value::from(0.5).sum(), Some(0.5));
/// assert_eq!(Value::maximum(0.25).max(), Some(0.25));
/// assert_eq!(Value::from(0.5).count(), None);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Value(pub(super) Content);

impl Value {
    /// A minimum that has seen one number.
    pub fn minimum(x: f64) -> Self {
        Self(Content::extreme(x, false))
    }

    /// A maximum that has seen one number.
    pub fn maximum(x: f64) -> Self {
        Self(Content::extreme(x, true))
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.0.form().shape.kind
    }

    pub(super) fn form(&self) -> Form {
        self.0.form()
    }

    /// A count; of a mean or a histogram, how many there were.
    pub fn count(&self) -> Option<i64> {
        let count = match &self.0 {
            Content::Count(count) | Content::Mean(count, _) => *count,
            Content::Histogram(it) => it.counts.iter().sum(),
            _ => return None,
        };
        i64::try_from(count).ok()
    }

    /// A sum; also that of a mean or a histogram.
    pub fn sum(&self) -> Option<f64> {
        match &self.0 {
            Content::Sum(sum) | Content::Mean(_, sum) => Some(sum.round()),
            Content::Histogram(it) => Some(it.sum.round()),
            _ => None,
        }
    }

    /// The mean of a mean or a histogram: the sum, rounded once, by the count. NaN of nothing.
    pub fn mean(&self) -> Option<f64> {
        match &self.0 {
            Content::Mean(count, sum) => Some(ratio(sum, *count)),
            Content::Histogram(it) => Some(ratio(&it.sum, it.counts.iter().sum())),
            _ => None,
        }
    }

    /// The smallest number that came: NaN if one was NaN; -0 is smaller than 0.
    pub fn min(&self) -> Option<f64> {
        match self.0 {
            Content::Min(place) => extreme_at(place),
            _ => None,
        }
    }

    /// The largest number that came: NaN if one was NaN; 0 is larger than -0.
    pub fn max(&self) -> Option<f64> {
        match self.0 {
            Content::Max(place) => extreme_at(place),
            _ => None,
        }
    }

    /// A vector of counts; of a histogram, how many were at most the first edge, above it and at most the second, ..,
    /// above the last.
    pub fn counts(&self) -> Option<Vec<i64>> {
        let counts = match &self.0 {
            Content::Counts(counts) => &counts[..],
            Content::Histogram(it) => &it.counts[..it.counts.len() - 1],
            _ => return None,
        };
        counts
            .iter()
            .map(|&count| i64::try_from(count).ok())
            .collect()
    }

    /// A vector of sums.
    pub fn sums(&self) -> Option<Vec<f64>> {
        match &self.0 {
            Content::Sums(sums) => Some(sums.iter().map(|sum| sum.round()).collect()),
            _ => None,
        }
    }

    /// The edges of a histogram.
    pub fn edges(&self) -> Option<&[f64]> {
        match &self.0 {
            Content::Histogram(it) => Some(&it.edges),
            _ => None,
        }
    }

    /// How many NaN a histogram has seen; its count and sum have them too.
    pub fn nans(&self) -> Option<i64> {
        match &self.0 {
            Content::Histogram(it) => i64::try_from(*it.counts.last()?).ok(),
            _ => None,
        }
    }

    /// What it says as one number: a count, sum, mean, minimum or maximum.
    pub fn number(&self) -> Option<f64> {
        match &self.0 {
            Content::Count(count) => Some(*count as f64),
            Content::Sum(_) => self.sum(),
            Content::Mean(..) => self.mean(),
            Content::Min(_) => self.min(),
            Content::Max(_) => self.max(),
            _ => None,
        }
    }
}

impl<A: Addend> From<A> for Value {
    /// What one addition makes of nothing. A count that does not fit 64 bits becomes the largest one.
    fn from(x: A) -> Self {
        let mut content = x.content(false);
        content.clamp();
        Self(content)
    }
}
