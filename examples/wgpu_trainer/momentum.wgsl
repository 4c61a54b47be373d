// Stochastic gradient descent with momentum: what is to be subtracted from a tensor. One invocation an element.

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> gradient: array<f32>;
@group(0) @binding(2) var<storage, read_write> velocity: array<f32>;
@group(0) @binding(3) var<storage, read_write> update: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = id.x;
    if element >= arrayLength(&update) {
        return;
    }
    velocity[element] = step.momentum * velocity[element] + gradient[element];
    update[element] = step.rate * velocity[element];
}
