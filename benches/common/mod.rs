//! What the benches share: arguments, interleaved rounds, and the two ways to print.
//!
//! A figure stands for something only beside another one of the same run, so both sides of a comparison take turns
//! within each round, and a ratio is the median over rounds of the two times of one round.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each bench includes this as a module and uses its own part"
)]

pub mod replicas;

use std::time::{Duration, Instant};

/// What the command line asks for, and the table as it grows.
pub struct Bench {
    /// One object a line instead of a table.
    json: bool,
    /// A smoke run: tiny sizes, one round.
    quick: bool,
    /// Only figures whose name contains one of these.
    filters: Vec<String>,
    printed: bool,
}

/// The times of one side, a duration a round.
#[derive(Clone, Debug)]
pub struct Times(Vec<Duration>);

/// What a figure is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Against<'a> {
    /// The ratio, as the figure's name and `reference` together explain it.
    pub ratio: f64,
    /// What the ratio is of.
    pub reference: &'a str,
}

impl Bench {
    /// Reads the arguments: `--json`, `--quick`, filters. Cargo adds `--bench`.
    pub fn from_args() -> Bench {
        let mut bench = Bench {
            json: false,
            quick: false,
            filters: Vec::new(),
            printed: false,
        };
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--json" => bench.json = true,
                "--quick" => bench.quick = true,
                "--bench" => {}
                option if option.starts_with('-') => {
                    eprintln!(
                        "{option}: unknown; known are --json, --quick and words to filter by"
                    );
                    std::process::exit(2);
                }
                filter => bench.filters.push(filter.to_owned()),
            }
        }
        bench
    }

    /// Whether this is a smoke run.
    pub fn quick(&self) -> bool {
        self.quick
    }

    /// `full`, or `quick` in a smoke run.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// Says what the figures are of.
    pub fn about(&self, what: &str, is: &str) {
        if self.json {
            println!("{{\"{what}\":{is:?}}}");
        } else {
            println!("{what}: {is}");
        }
    }

    /// Whether a figure of this name was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.filters.is_empty()
            || self
                .filters
                .iter()
                .any(|filter| name.contains(filter.as_str()))
    }

    /// Runs the sides in turn, `rounds` times (once in a smoke run), and once before for warmth. Each side gives the
    /// time that counts.
    pub fn interleave(
        &self,
        rounds: usize,
        sides: &mut [&mut dyn FnMut() -> Duration],
    ) -> Vec<Times> {
        let rounds = if self.quick { 1 } else { rounds };
        let mut times = vec![Times(Vec::new()); sides.len()];
        for round in 0..=rounds {
            for (side, times) in sides.iter_mut().zip(&mut times) {
                let took = side();
                if round > 0 {
                    times.0.push(took);
                }
            }
        }
        times
    }

    /// Prints one figure.
    pub fn report(&mut self, name: &str, value: f64, unit: &str, against: Option<Against<'_>>) {
        if self.json {
            let (ratio, reference) = match against {
                Some(Against { ratio, reference }) => (number(ratio), format!("\"{reference}\"")),
                None => ("null".to_owned(), "null".to_owned()),
            };
            let value = number(value);
            println!(
                "{{\"name\":\"{name}\",\"value\":{value},\"unit\":\"{unit}\",\"ratio\":{ratio},\"reference\":{reference}}}"
            );
            return;
        }
        if !self.printed {
            println!(
                "{:<44} {:>12} {:<10} {:>8}  of",
                "figure", "value", "unit", "ratio"
            );
            self.printed = true;
        }
        let (ratio, reference) = match against {
            Some(Against { ratio, reference }) => (format!("{ratio:.3}"), reference),
            None => (String::new(), ""),
        };
        println!("{name:<44} {value:>12.3} {unit:<10} {ratio:>8}  {reference}");
    }
}

fn number(x: f64) -> String {
    if x.is_finite() {
        x.to_string()
    } else {
        "null".to_owned()
    }
}

impl Times {
    /// The median, in seconds.
    pub fn median(&self) -> f64 {
        median(self.0.iter().map(Duration::as_secs_f64).collect())
    }

    /// The median over rounds of this side's time by the other's.
    pub fn over(&self, other: &Times) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        median(
            pairs
                .map(|(a, b)| a.as_secs_f64() / b.as_secs_f64().max(1e-12))
                .collect(),
        )
    }
}

/// The median; NaN of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// How long `work` takes.
pub fn time<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    std::hint::black_box(work());
    start.elapsed()
}

/// A small generator of good numbers, the same for each seed (SplitMix64, Steele 2014).
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Laplace, of mean magnitude `scale`: the shape of many gradients.
    pub fn laplace(&mut self, scale: f32) -> f32 {
        let size = -self.unit().ln() as f32 * scale;
        if self.next() & 1 == 0 { size } else { -size }
    }
}
