//! Encoders on devices of different features and limits end with the same bits.

use super::GpuContext;
use super::device::{device_with, gpu};
use gradring::codec::gpu::GradRef;
use gradring::codec::gpu::wgpu::util::{BufferInitDescriptor, DeviceExt};
use gradring::codec::gpu::wgpu::{Buffer, BufferUsages, Features, Limits};
use gradring::codec::{Dense, Encoder, NamedRange, Update};

const WEIGHTS: usize = 600_000;
const BIAS: usize = 1001;
const OTHERS: usize = 70_000;
const ELEMENTS: usize = WEIGHTS + BIAS + OTHERS;

fn ranges() -> [NamedRange; 3] {
    [
        NamedRange::compressed("weights", WEIGHTS),
        NamedRange::dense("bias", BIAS, Dense::Bf16),
        NamedRange::compressed("others", OTHERS),
    ]
}

/// An update of a heavy-tailed distribution, whose scale falls from step to step, with something special now and then.
fn update(step: u64) -> Vec<f32> {
    let mut state = step * 0x9e37_79b9 + 1;
    let scale = 0.9f32.powi(step as i32);
    let number = |at: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        match at % 50_021 {
            7 => f32::NAN,
            8 => f32::INFINITY,
            9 => 1e-42,
            10 => -0.0,
            _ => {
                let uniform = (bits as u32 >> 8) as f32 / (1 << 24) as f32;
                let size = scale * uniform.powi(9);
                if bits & 1 == 0 { size } else { -size }
            }
        }
    };
    (0..ELEMENTS).map(number).collect()
}

fn buffer_of(context: &GpuContext, update: &[f32]) -> Buffer {
    let words: Vec<u8> = update
        .iter()
        .flat_map(|x| x.to_bits().to_le_bytes())
        .collect();
    context.device().create_buffer_init(&BufferInitDescriptor {
        label: Some("an update"),
        contents: &words,
        usage: BufferUsages::STORAGE,
    })
}

/// What steps send, byte for byte, and the residual that they leave.
fn run(mut encoder: Encoder, context: Option<&GpuContext>) -> (Vec<Vec<u8>>, Vec<u32>) {
    let mut sent = Vec::new();
    for step in 0..6 {
        let update = update(step);
        let buffer = context.map(|context| buffer_of(context, &update));
        let parts = buffer.as_ref().map(|buffer| {
            [(0, WEIGHTS), (WEIGHTS, BIAS + OTHERS)].map(|(start, len)| GradRef::Device {
                buffer,
                offset: 4 * start as u64,
                len: len as u64,
            })
        });
        let given = match &parts {
            Some(parts) => parts.given(),
            None => update.given(),
        };
        encoder.begin(step, given).unwrap();
        for visit in 0..encoder.chunks() {
            let message = encoder.encode(visit, given).unwrap();
            let mut bytes = format!("{message:?}").into_bytes();
            bytes.extend_from_slice(encoder.payload());
            sent.push(bytes);
        }
        encoder.end().unwrap();
        assert!(encoder.stats().hits > 0, "step {step}");
    }
    let residual = encoder.download_residual().unwrap();
    (sent, residual.iter().map(|x| x.to_bits()).collect())
}

#[test]
fn devices_with_and_without_subgroups_send_what_a_processor_sends() {
    let Some(shared) = gpu() else { return };
    let builder = || Encoder::builder(ELEMENTS).ranges(ranges());
    let expected = run(builder().build().unwrap(), None);
    let small = Limits {
        max_storage_buffer_binding_size: 1 << 24,
        ..Limits::default()
    };
    let others = [
        device_with(Features::empty(), small),
        device_with(Features::SUBGROUP, Limits::default()),
    ];
    for context in others.iter().flatten().chain([shared]) {
        let encoder = builder().gpu(context.clone()).build().unwrap();
        assert!(
            run(encoder, Some(context)) == expected,
            "{:?}",
            context.device().features()
        );
    }
}
