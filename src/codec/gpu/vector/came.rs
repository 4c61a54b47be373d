//! What came of a step, in this process's memory.

use super::feed::Commands;
use super::layout::{Layout, OUTCOME_WORDS};
use super::outcome::{self, CUT_WORDS, Outcome};
use super::{GpuChunk, GpuStep, GpuVector};
use crate::codec::gpu::error::GpuError;
use crate::codec::ranges::{Chunk, ChunkCoding};
use std::ops::Range;

/// What came of the last step.
#[derive(Default)]
pub(super) struct Came {
    pub(super) chunks: Vec<GpuChunk>,
    /// Where each chunk's payload lies in the message, in bytes.
    pub(super) payloads: Vec<Range<usize>>,
    /// All windows' messages.
    pub(super) message: Vec<u8>,
    pub(super) dropped: u64,
    pub(super) clipped: f64,
}

impl GpuVector {
    /// Submits a step, and reads back what came of it.
    pub(super) fn read_back(
        &mut self,
        step: &GpuStep<'_>,
        mut commands: Commands,
    ) -> Result<(), GpuError> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let records = 4 * OUTCOME_WORDS * (self.chunks.len() + 1);
        let cut = match step.clip {
            Some(_) => 4 * CUT_WORDS * self.layout.scopes.len(),
            None => 0,
        };
        let mut room = (self.download.most() as usize).saturating_sub(records + cut) / 4;
        let guesses: Vec<usize> = (memory.windows.iter())
            .map(|window| {
                let guess = window.guess.min(room);
                room -= guess;
                guess
            })
            .collect();
        let all = records + cut + 4 * guesses.iter().sum::<usize>();
        let staging = self.download.buffer(all as u64)?;
        commands
            .encoder
            .copy_buffer_to_buffer(&memory.outcomes, 0, staging, 0, records as u64);
        let mut at = records as u64;
        if cut > 0 {
            commands
                .encoder
                .copy_buffer_to_buffer(&memory.cut, 0, staging, at, cut as u64);
            at += cut as u64;
        }
        for (window, guess) in memory.windows.iter().zip(&guesses) {
            let bytes = 4 * *guess as u64;
            if bytes > 0 {
                commands
                    .encoder
                    .copy_buffer_to_buffer(&window.message, 0, staging, at, bytes);
            }
            at += bytes;
        }
        let submitted = commands.submit(&self.context, "a step");
        let index = self.uploads.settle(submitted)?;

        let (chunks, layout, came) = (&self.chunks, &self.layout, &mut self.came);
        let read = self.download.read(index, all as u64, |bytes| {
            let (records, rest) = bytes.split_at(records);
            let (cut, message) = rest.split_at(cut);
            came.read(chunks, layout, step, records, cut, message, &guesses)
        })?;
        let Some(Read {
            outcomes,
            lengths,
            is_short,
        }) = read
        else {
            return Err(GpuError::Refused {
                adapter: self.context.name(),
                what: "encoding",
                why: "it gave what no kernel gives".to_owned(),
            });
        };
        for (window, &length) in memory.windows.iter_mut().zip(&lengths) {
            window.written = length as u64;
            window.expect(length);
        }
        if is_short {
            self.read_rest(&lengths, &guesses)?;
        }
        self.came.note(&self.chunks, step, &outcomes);
        Ok(())
    }

    /// Reads back what the windows' messages have beyond what was guessed: with one submission for as much as a staging
    /// buffer holds.
    fn read_rest(&mut self, lengths: &[usize], guesses: &[usize]) -> Result<(), GpuError> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let most = self.download.most() as usize;
        // All in bytes: of which window, from where in its message, and where in all of them together.
        let mut copies: Vec<(usize, usize, Range<usize>)> = Vec::new();
        let mut base = 0;
        for (window, (length, guess)) in lengths.iter().zip(guesses).enumerate() {
            let mut from = 4 * guess.min(length);
            while from < 4 * length {
                let bytes = (4 * length - from).min(most);
                copies.push((window, from, base + from..base + from + bytes));
                from += bytes;
            }
            base += 4 * length;
        }
        let mut rest = &copies[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|(.., to)| {
                bytes += to.len();
                bytes <= most
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            rest = later;
            let bytes: usize = now.iter().map(|(.., to)| to.len()).sum();
            let staging = self.download.buffer(bytes as u64)?;
            let mut commands = Commands::new(&self.context)?;
            let mut at = 0;
            for (window, from, to) in now {
                let (from, bytes) = (*from as u64, to.len() as u64);
                let message = &memory.windows[*window].message;
                (commands.encoder).copy_buffer_to_buffer(message, from, staging, at, bytes);
                at += bytes;
            }
            let index = commands.submit(&self.context, "a step")?;
            let message = &mut self.came.message;
            self.download.read(index, bytes as u64, |mut bytes| {
                for (.., to) in now {
                    let (part, others) = bytes.split_at(to.len());
                    message[to.clone()].copy_from_slice(part);
                    bytes = others;
                }
            })?;
        }
        Ok(())
    }
}

/// What was read back of a step.
struct Read {
    outcomes: Vec<Outcome>,
    /// Of each window's message, in words.
    lengths: Vec<usize>,
    /// Whether a message is longer than what was read of it.
    is_short: bool,
}

impl Came {
    pub(super) fn forget(&mut self) {
        self.chunks.clear();
        self.payloads.clear();
        self.message.clear();
        (self.dropped, self.clipped) = (0, 0.0);
    }

    /// Takes over what was read back. `None` if it makes no sense.
    #[allow(clippy::too_many_arguments, reason = "what one read-back brings")]
    fn read(
        &mut self,
        chunks: &[Chunk],
        layout: &Layout,
        step: &GpuStep<'_>,
        records: &[u8],
        cut: &[u8],
        mut message: &[u8],
        guesses: &[usize],
    ) -> Option<Read> {
        let mut outcomes = Vec::with_capacity(chunks.len());
        let mut end = 0;
        for (at, chunk) in chunks.iter().enumerate() {
            let outcome = Outcome::read(records, at, chunk)?;
            if outcome.words.start != end {
                return None;
            }
            end = outcome.words.end;
            outcomes.push(outcome);
        }
        let mut lengths = Vec::with_capacity(guesses.len());
        let mut is_short = false;
        for (window, &guess) in layout.windows.iter().zip(guesses) {
            let of_window = &outcomes[window.chunks.clone()];
            let length: usize = of_window.iter().map(|outcome| outcome.words.len()).sum();
            if length > window.message {
                return None;
            }
            lengths.push(length);
            is_short |= length > guess;
            let (all, later) = message.split_at(4 * guess);
            let read = 4 * length.min(guess);
            self.message.extend_from_slice(&all[..read]);
            self.message
                .resize(self.message.len() + 4 * length - read, 0);
            message = later;
        }
        self.dropped = u64::from(outcome::word(records, OUTCOME_WORDS * chunks.len()));
        if !cut.is_empty() {
            let scopes = cut.chunks_exact(4 * CUT_WORDS).zip(step.scopes);
            self.clipped = scopes
                .map(|(cut, &(unit, _))| outcome::taken(cut, outcome::bound(step, unit)))
                .sum();
        }
        Some(Read {
            outcomes,
            lengths,
            is_short,
        })
    }

    /// Makes the chunks' numbers, now that all of the message is there.
    fn note(&mut self, chunks: &[Chunk], step: &GpuStep<'_>, outcomes: &[Outcome]) {
        for (chunk, outcome) in chunks.iter().zip(outcomes) {
            let unit = match chunk.coding {
                ChunkCoding::Threshold(scope) => step.scopes.get(scope).map(|&(unit, _)| unit),
                ChunkCoding::Dense(_) => None,
            };
            let bytes = 4 * outcome.words.start..4 * outcome.words.end;
            let message = &self.message[bytes.clone()];
            let made = outcome.chunk(chunk.elements.len(), unit, message);
            self.chunks.push(made);
            self.payloads
                .push(bytes.start..bytes.start + outcome.payload);
        }
    }
}
