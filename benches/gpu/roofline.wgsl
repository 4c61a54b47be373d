// Reads two vectors and writes one: what the memory of a device can do at best for an encoder.

@group(0) @binding(0) var<storage, read> update: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> residual: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&residual) {
        residual[id.x] ^= update[id.x];
    }
}
