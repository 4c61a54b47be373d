// Adds a batch to what has been seen, so that nothing has to be read back batch by batch. One invocation.

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> judged: array<vec2<f32>>;
// The sum of the losses, how many were right, how many there were.
@group(0) @binding(2) var<storage, read_write> tally: array<f32, 3>;

@compute @workgroup_size(1)
fn main() {
    var sum = vec2(0.0, 0.0);
    for (var sample = 0u; sample < step.samples; sample++) {
        sum += judged[sample];
    }
    tally[0] += sum.x;
    tally[1] += sum.y;
    tally[2] += f32(step.samples);
}
