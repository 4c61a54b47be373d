//! Whole vectors on a GPU: an encoder there says, sends and keeps what one on the processor does.
#![cfg(feature = "gpu")]

#[path = "codec_encoder/config.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod config;
#[path = "codec_gpu/device.rs"]
mod device;
#[path = "codec_encoder_gpu/loss.rs"]
mod loss;
#[path = "codec_encoder_gpu/misuse.rs"]
mod misuse;
mod plain;
#[path = "codec_encoder_gpu/twins.rs"]
mod twins;

use gradring::codec::gpu::{GpuContext, GpuError, GradRef, Selection, wgpu};
use gradring::codec::{
    EncodeError, Encoder, Given, Message, ResidualPercentiles, ScopeState, ScopeStats, StepStats,
};
use wgpu::{Buffer, BufferDescriptor, BufferUsages};

/// The device that most tests share; `None`, which is said, where there is no adapter.
fn context() -> Option<&'static GpuContext> {
    device::gpu()
}

/// A device that nothing else uses.
#[derive(Clone, Copy, Debug)]
enum Whose {
    /// Made by the context, which hears of its loss.
    Own,
    /// The caller's, whose loss is found out.
    Callers,
}

fn new_context(whose: Whose) -> Option<GpuContext> {
    context()?;
    match whose {
        Whose::Own => {
            let selection = Selection::from_env().expect("a selection");
            Some(GpuContext::new(&selection).expect("another device"))
        }
        Whose::Callers => device::device_with(wgpu::Features::all(), wgpu::Limits::default()),
    }
}

/// A buffer with these numbers from byte `4 * before` on.
fn buffer_of(context: &GpuContext, before: usize, numbers: &[f32]) -> Buffer {
    let buffer = context.device().create_buffer(&BufferDescriptor {
        label: Some("an update"),
        size: 4 * (before + numbers.len()).max(4) as u64,
        usage: BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    write(context, &buffer, 4 * before as u64, numbers);
    buffer
}

fn write(context: &GpuContext, buffer: &Buffer, offset: u64, numbers: &[f32]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    if !bytes.is_empty() {
        context.queue().write_buffer(buffer, offset, &bytes);
    }
}

/// Overwrites the residual, as a trainer does that accumulates in place.
fn write_residual(context: &GpuContext, encoder: &Encoder, residual: &[f32]) {
    let mut rest = residual;
    for part in encoder.residual_on_device() {
        let (now, others) = rest.split_at(part.len());
        let GradRef::Device { buffer, offset, .. } = part else {
            panic!("a residual on a device is not here");
        };
        write(context, buffer, offset, now);
        rest = others;
    }
    assert!(rest.is_empty());
}

/// All that an encoder says of a step.
#[derive(Debug)]
struct Said {
    messages: Vec<(Message, Vec<u8>)>,
    residual: Vec<f32>,
    stats: StepStats,
    scopes: Vec<ScopeStats>,
    hits: Vec<usize>,
    percentiles: Vec<ResidualPercentiles>,
    states: Vec<ScopeState>,
}

fn said<'a>(
    encoder: &mut Encoder,
    number: u64,
    update: impl Into<Given<'a>>,
) -> Result<Said, EncodeError> {
    let update = update.into();
    encoder.begin(number, update)?;
    let mut messages = Vec::new();
    for visit in 0..encoder.chunks() {
        let message = encoder.encode(visit, update)?;
        messages.push((message, encoder.payload().to_vec()));
    }
    encoder.end()?;
    Ok(Said {
        messages,
        residual: encoder.download_residual()?,
        stats: encoder.stats().clone(),
        scopes: encoder.scopes().cloned().collect(),
        hits: encoder.hits().to_vec(),
        percentiles: encoder.percentiles().to_vec(),
        states: encoder.scope_states(),
    })
}

/// Everything is the same to the bit, but for two sums that are made in another order.
fn compare(found: &Said, expected: &Said, case: &str) {
    let differs = plain::first_difference(&found.residual, &expected.residual);
    let at = |said: &Said| differs.map(|at| said.residual.get(at).copied());
    assert_eq!(
        differs,
        None,
        "residual: {:?} is not {:?}, {case}",
        at(found),
        at(expected)
    );
    assert_eq!(found.messages.len(), expected.messages.len(), "{case}");
    for ((message, payload), (wanted, bytes)) in found.messages.iter().zip(&expected.messages) {
        assert_eq!(message, wanted, "{case}");
        assert!(payload == bytes, "payload of {message:?}, {case}");
    }
    let near = |found: f64, expected: f64, error: f64| {
        assert!(
            (found - expected).abs() <= error * expected.abs(),
            "{found} is not {expected}, {case}"
        );
    };
    near(found.stats.residual_l1, expected.stats.residual_l1, 1e-6);
    near(found.stats.clipped, expected.stats.clipped, 1e-12);
    let mut stats = found.stats.clone();
    stats.residual_l1 = expected.stats.residual_l1;
    stats.clipped = expected.stats.clipped;
    assert_eq!(stats, expected.stats, "{case}");
    assert_eq!(
        stats.residual_max.to_bits(),
        expected.stats.residual_max.to_bits(),
        "{case}"
    );
    assert_eq!(found.scopes, expected.scopes, "{case}");
    assert_eq!(found.hits, expected.hits, "{case}");
    assert_eq!(found.percentiles, expected.percentiles, "{case}");
    assert_eq!(found.states, expected.states, "{case}");
}
