//! What stands under a key, exactly: the same type for what is pending and for what is synchronized.

use crate::shm::cells::exact::{Exact, NAN};
use crate::shm::cells::{Kind, MAX_CELLS, SUM_WORDS, Shape, at_place, extreme_of, later, read_sum};
use crate::shm::sync::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// A kind with everything that replicas must agree on.
#[derive(Clone, Debug)]
pub struct Form {
    pub(super) shape: Shape,
    /// Of a histogram.
    pub(super) edges: Option<Arc<[f64]>>,
}

impl PartialEq for Form {
    fn eq(&self, other: &Self) -> bool {
        let bits = |form: &Self| -> Option<Vec<u64>> {
            let edges = form.edges.as_ref()?;
            Some(edges.iter().map(|edge| edge.to_bits()).collect())
        };
        self.shape == other.shape && (self.edges.is_none() || bits(self) == bits(other))
    }
}

impl Form {
    pub(super) fn scalar(kind: Kind) -> Self {
        Self::vector(kind, 1)
    }

    pub(super) fn vector(kind: Kind, length: u32) -> Self {
        let shape = Shape { kind, length };
        Self { shape, edges: None }
    }

    pub(super) fn histogram(edges: Arc<[f64]>) -> Self {
        Self {
            edges: Some(Arc::clone(&edges)),
            ..Self::vector(Kind::Histogram, edges.len() as u32)
        }
    }

    pub(super) fn edges(&self) -> &[f64] {
        self.edges.as_deref().unwrap_or_default()
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length = self.shape.length;
        match self.shape.kind {
            Kind::Count => f.write_str("a count"),
            Kind::Sum => f.write_str("a sum"),
            Kind::Mean => f.write_str("a mean"),
            Kind::Min => f.write_str("a minimum"),
            Kind::Max => f.write_str("a maximum"),
            Kind::Histogram => {
                let shown = self.edges().iter().take(8).map(f64::to_string);
                let shown: Vec<String> = shown.collect();
                let more = if length > 8 { ", .." } else { "" };
                write!(
                    f,
                    "a histogram with {length} edges ({}{more})",
                    shown.join(", ")
                )
            }
            Kind::Counts => write!(f, "a vector of {length} counts"),
            Kind::Sums => write!(f, "a vector of {length} sums"),
        }
    }
}

/// The content itself. Counts are wider here than they may be in the end, so that no order of adding overflows.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Count(i128),
    Sum(Box<Exact>),
    Mean(i128, Box<Exact>),
    /// The place of the smallest number; 0 for none.
    Min(u64),
    Max(u64),
    Histogram(Box<Histogram>),
    Counts(Vec<i128>),
    Sums(Vec<Exact>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    pub(super) edges: Arc<[f64]>,
    /// One more than edges, and the last one of NaN.
    pub(super) counts: Vec<i128>,
    pub(super) sum: Exact,
}

impl Content {
    /// What nothing has been added to.
    pub(super) fn nothing(form: &Form) -> Self {
        let length = form.shape.length as usize;
        match form.shape.kind {
            Kind::Count => Self::Count(0),
            Kind::Sum => Self::Sum(Box::default()),
            Kind::Mean => Self::Mean(0, Box::default()),
            Kind::Min => Self::Min(0),
            Kind::Max => Self::Max(0),
            Kind::Histogram => Self::Histogram(Box::new(Histogram {
                edges: form.edges.clone().unwrap_or_default(),
                counts: vec![0; length + 2],
                sum: Exact::default(),
            })),
            Kind::Counts => Self::Counts(vec![0; length]),
            Kind::Sums => Self::Sums(vec![Exact::default(); length]),
        }
    }

    pub(super) fn form(&self) -> Form {
        match self {
            Self::Count(_) => Form::scalar(Kind::Count),
            Self::Sum(_) => Form::scalar(Kind::Sum),
            Self::Mean(..) => Form::scalar(Kind::Mean),
            Self::Min(_) => Form::scalar(Kind::Min),
            Self::Max(_) => Form::scalar(Kind::Max),
            Self::Histogram(it) => Form::histogram(Arc::clone(&it.edges)),
            Self::Counts(all) => Form::vector(Kind::Counts, all.len() as u32),
            Self::Sums(all) => Form::vector(Kind::Sums, all.len() as u32),
        }
    }

    /// How many elements a vector has; 1 for all else.
    pub(super) fn elements(&self) -> usize {
        match self {
            Self::Counts(all) => all.len(),
            Self::Sums(all) => all.len(),
            _ => 1,
        }
    }

    /// Makes counts that do not fit 64 bits the largest or smallest that do.
    pub(super) fn clamp(&mut self) {
        let clamp = |count: &mut i128| *count = (*count).clamp(i64::MIN.into(), i64::MAX.into());
        match self {
            Self::Count(count) => clamp(count),
            Self::Counts(counts) => counts.iter_mut().for_each(clamp),
            _ => {}
        }
    }

    /// Whether the form is this one, without making it.
    pub(super) fn is(&self, form: &Form) -> bool {
        match (self, form.shape.kind) {
            (Self::Count(_), Kind::Count)
            | (Self::Sum(_), Kind::Sum)
            | (Self::Mean(..), Kind::Mean)
            | (Self::Min(_), Kind::Min)
            | (Self::Max(_), Kind::Max) => true,
            (Self::Counts(all), Kind::Counts) => all.len() == form.shape.length as usize,
            (Self::Sums(all), Kind::Sums) => all.len() == form.shape.length as usize,
            (Self::Histogram(_), Kind::Histogram) => self.form() == *form,
            _ => false,
        }
    }

    /// Adds what stands in a rank's words, which are of the same form. [`finish`](Self::finish) must follow.
    pub(super) fn add_words(&mut self, words: &[AtomicU64]) {
        let counted = |word: &AtomicU64| i128::from(word.load(Relaxed) as i64);
        let add = |sum: &mut Exact, words: &[AtomicU64]| {
            if let Some(words) = words.first_chunk::<SUM_WORDS>() {
                read_sum(words, sum);
            }
        };
        let [first, rest @ ..] = words else { return };
        match self {
            Self::Count(count) => *count += counted(first),
            Self::Sum(sum) => add(sum, words),
            Self::Mean(count, sum) => {
                // The sum comes first.
                add(sum, words);
                *count += words.get(SUM_WORDS).map_or(0, counted);
            }
            Self::Min(place) => *place = later(*place, first.load(Relaxed), false),
            Self::Max(place) => *place = later(*place, first.load(Relaxed), true),
            Self::Histogram(it) => {
                add(&mut it.sum, words);
                let counts = words.get(SUM_WORDS..).unwrap_or_default();
                for (count, word) in it.counts.iter_mut().zip(counts) {
                    *count += counted(word);
                }
            }
            Self::Counts(counts) => {
                for (count, word) in counts.iter_mut().zip([first].into_iter().chain(rest)) {
                    *count += counted(word);
                }
            }
            Self::Sums(sums) => {
                for (sum, words) in sums.iter_mut().zip(words.chunks(SUM_WORDS)) {
                    add(sum, words);
                }
            }
        }
    }

    /// Adds other content of the same form; false if it is not.
    #[must_use]
    pub(super) fn merge(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Count(a), Self::Count(b)) => *a += b,
            (Self::Sum(a), Self::Sum(b)) => a.merge(b),
            (Self::Mean(n, a), Self::Mean(m, b)) => {
                *n += m;
                a.merge(b);
            }
            (Self::Min(a), Self::Min(b)) => *a = later(*a, *b, false),
            (Self::Max(a), Self::Max(b)) => *a = later(*a, *b, true),
            (Self::Histogram(a), Self::Histogram(b)) if a.counts.len() == b.counts.len() => {
                a.counts
                    .iter_mut()
                    .zip(&b.counts)
                    .for_each(|(a, b)| *a += b);
                a.sum.merge(&b.sum);
            }
            (Self::Counts(a), Self::Counts(b)) if a.len() == b.len() => {
                a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            }
            (Self::Sums(a), Self::Sums(b)) if a.len() == b.len() => {
                a.iter_mut().zip(b).for_each(|(a, b)| a.merge(b));
            }
            _ => return false,
        }
        true
    }

    /// Carries; false if a count is more than 64 bits hold.
    #[must_use]
    pub(super) fn finish(&mut self) -> bool {
        let fits = |count: &i128| i64::try_from(*count).is_ok();
        match self {
            Self::Count(count) => fits(count),
            Self::Sum(sum) => {
                sum.settle();
                true
            }
            Self::Mean(count, sum) => {
                sum.settle();
                fits(count)
            }
            Self::Min(_) | Self::Max(_) => true,
            Self::Histogram(it) => {
                it.sum.settle();
                // Their sum is asked for too.
                fits(&it.counts.iter().sum()) && it.counts.iter().all(fits)
            }
            Self::Counts(counts) => counts.iter().all(fits),
            Self::Sums(sums) => {
                sums.iter_mut().for_each(Exact::settle);
                true
            }
        }
    }

    pub(super) fn extreme(x: f64, largest: bool) -> Self {
        let place = extreme_of(x, largest);
        if largest {
            Self::Max(place)
        } else {
            Self::Min(place)
        }
    }

    /// Appends kind, length, edges and content.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let form = self.form();
        out.push(form.shape.kind as u8);
        out.extend(form.shape.length.to_le_bytes());
        for edge in form.edges() {
            out.extend(edge.to_bits().to_le_bytes());
        }
        let count = |out: &mut Vec<u8>, x: &i128| out.extend((*x as i64).to_le_bytes());
        match self {
            Self::Count(x) => count(out, x),
            Self::Sum(sum) => sum.write(out),
            Self::Mean(x, sum) => {
                count(out, x);
                sum.write(out);
            }
            Self::Min(place) | Self::Max(place) => out.extend(place.to_le_bytes()),
            Self::Histogram(it) => {
                it.counts.iter().for_each(|x| count(out, x));
                it.sum.write(out);
            }
            Self::Counts(all) => all.iter().for_each(|x| count(out, x)),
            Self::Sums(all) => all.iter().for_each(|sum| sum.write(out)),
        }
    }

    /// Takes content from the front of `from`; `None` if there is none.
    pub(super) fn read(from: &mut &[u8]) -> Option<Self> {
        fn eight(from: &mut &[u8]) -> Option<[u8; 8]> {
            from.split_off(..8)?.try_into().ok()
        }
        fn count(from: &mut &[u8]) -> Option<i128> {
            Some(i64::from_le_bytes(eight(from)?).into())
        }
        fn many<T>(length: usize, mut one: impl FnMut() -> Option<T>) -> Option<Vec<T>> {
            let mut all = Vec::new();
            for _ in 0..length {
                all.push(one()?);
            }
            Some(all)
        }
        let [kind] = from.split_off(..1)?.try_into().ok()?;
        let kind = Kind::from_u8(kind)?;
        let length = u32::from_le_bytes(from.split_off(..4)?.try_into().ok()?);
        let length = length as usize;
        Some(match kind {
            Kind::Counts | Kind::Sums | Kind::Histogram if length > MAX_CELLS => return None,
            Kind::Counts => Self::Counts(many(length, || count(from))?),
            Kind::Sums => Self::Sums(many(length, || Exact::read(from))?),
            Kind::Histogram => {
                let edges = many(length, || {
                    Some(f64::from_bits(u64::from_le_bytes(eight(from)?)))
                })?;
                if !are_edges(&edges) {
                    return None;
                }
                let counts = many(length + 2, || count(from))?;
                Self::Histogram(Box::new(Histogram {
                    edges: edges.into(),
                    counts,
                    sum: Exact::read(from)?,
                }))
            }
            _ if length != 1 => return None,
            Kind::Count => Self::Count(count(from)?),
            Kind::Sum => Self::Sum(Box::new(Exact::read(from)?)),
            Kind::Mean => Self::Mean(count(from)?, Box::new(Exact::read(from)?)),
            Kind::Min => Self::Min(u64::from_le_bytes(eight(from)?)),
            Kind::Max => Self::Max(u64::from_le_bytes(eight(from)?)),
        })
    }
}

/// Whether these can be the edges of a histogram: at least one, finite, ascending.
pub(super) fn are_edges(edges: &[f64]) -> bool {
    let ascend = |pair: &[f64]| matches!(pair, [a, b] if a < b);
    !edges.is_empty() && edges.iter().all(|x| x.is_finite()) && edges.windows(2).all(ascend)
}

/// The number of the smallest or largest place.
pub(super) fn extreme_at(place: u64) -> Option<f64> {
    (place != 0).then(|| at_place(place))
}

/// A sum by how many it is of; the one NaN where there is nothing.
pub(super) fn ratio(sum: &Exact, count: i128) -> f64 {
    let mean = sum.round() / count as f64;
    if mean.is_nan() { NAN } else { mean }
}
