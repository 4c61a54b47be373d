// A layer backwards: the gradient with regard to the sums of the rectified units that are its inputs. One invocation a
// sample and input.

override INPUTS: u32;
override UNITS: u32;

@group(0) @binding(0) var<uniform> step: Step;
// A row per sample: the inputs, as they left the rectifier.
@group(0) @binding(1) var<storage, read> inputs: array<f32>;
// A row per input.
@group(0) @binding(2) var<storage, read> weights: array<f32>;
// A row per sample: the gradient with regard to this layer's sums.
@group(0) @binding(3) var<storage, read> errors: array<f32>;
// A row per sample: that with regard to the sums before the rectifier.
@group(0) @binding(4) var<storage, read_write> input_errors: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let sample = id.x / INPUTS;
    let input = id.x % INPUTS;
    if sample >= step.samples {
        return;
    }
    var sum = 0.0;
    for (var unit = 0u; unit < UNITS; unit++) {
        sum += weights[input * UNITS + unit] * errors[sample * UNITS + unit];
    }
    // Nothing goes back through a rectifier that gave 0.
    input_errors[id.x] = select(0.0, sum, inputs[id.x] > 0.0);
}
