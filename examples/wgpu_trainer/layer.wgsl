// A layer forwards: each sample's inputs times the weights, plus the bias. One invocation a sample and unit.

// Inputs and units of the layer.
override INPUTS: u32;
override UNITS: u32;
// Whether what is below 0 becomes 0.
override RECTIFIED: bool;

@group(0) @binding(0) var<uniform> step: Step;
// A row per sample.
@group(0) @binding(1) var<storage, read> inputs: array<f32>;
// A row per input.
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
// A row per sample.
@group(0) @binding(4) var<storage, read_write> outputs: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let sample = id.x / UNITS;
    let unit = id.x % UNITS;
    if sample >= step.samples {
        return;
    }
    var sum = bias[unit];
    for (var input = 0u; input < INPUTS; input++) {
        sum += inputs[sample * INPUTS + input] * weights[input * UNITS + unit];
    }
    outputs[id.x] = select(sum, max(sum, 0.0), RECTIFIED);
}
