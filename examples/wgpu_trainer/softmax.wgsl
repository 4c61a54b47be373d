// Softmax, cross-entropy, and its gradient with regard to the last layer's sums. One invocation a sample.

override CLASSES: u32;

@group(0) @binding(0) var<uniform> step: Step;
// A row per sample.
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read> labels: array<u32>;
// A row per sample: the gradient, times the sample's weight.
@group(0) @binding(3) var<storage, read_write> errors: array<f32>;
// Of each sample its loss, and 1 if its label has the largest sum, else 0.
@group(0) @binding(4) var<storage, read_write> judged: array<vec2<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let sample = id.x;
    if sample >= step.samples {
        return;
    }
    let row = sample * CLASSES;
    var best = 0u;
    for (var unit = 1u; unit < CLASSES; unit++) {
        if sums[row + unit] > sums[row + best] {
            best = unit;
        }
    }
    // No power is above 1, and one of them is 1.
    let largest = sums[row + best];
    var total = 0.0;
    for (var unit = 0u; unit < CLASSES; unit++) {
        total += exp(sums[row + unit] - largest);
    }
    let label = labels[sample];
    for (var unit = 0u; unit < CLASSES; unit++) {
        let probability = exp(sums[row + unit] - largest) / total;
        let wanted = select(0.0, 1.0, unit == label);
        errors[row + unit] = (probability - wanted) * step.weight;
    }
    let loss = log(total) - (sums[row + label] - largest);
    judged[sample] = vec2(loss, select(0.0, 1.0, best == label));
}
