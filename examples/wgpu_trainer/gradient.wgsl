// The gradient with regard to a layer's weights and bias: over all samples, input times error. One invocation a weight or
// bias: a bias is the weight of one more input, which is always 1.

override INPUTS: u32;
override UNITS: u32;

@group(0) @binding(0) var<uniform> step: Step;
// A row per sample.
@group(0) @binding(1) var<storage, read> inputs: array<f32>;
// A row per sample: the gradient with regard to the layer's sums.
@group(0) @binding(2) var<storage, read> errors: array<f32>;
// A row per input.
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> bias: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let input = id.x / UNITS;
    let unit = id.x % UNITS;
    if input > INPUTS {
        return;
    }
    var sum = 0.0;
    for (var sample = 0u; sample < step.samples; sample++) {
        let error = errors[sample * UNITS + unit];
        if input == INPUTS {
            sum += error;
        } else {
            sum += inputs[sample * INPUTS + input] * error;
        }
    }
    if input == INPUTS {
        bias[unit] = sum;
    } else {
        weights[id.x] = sum;
    }
}
