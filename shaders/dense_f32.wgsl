// The payload of chunks that are sent whole as f32; nothing stays: the twin of `dense_f32` in src/codec/cpu/scalar.rs. A
// tile a workgroup.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> tiles: array<u32>;
@group(0) @binding(2) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(3) var<storage, read> outcomes: array<Outcome>;
@group(0) @binding(4) var<storage, read_write> residual: array<u32>;
@group(0) @binding(5) var<storage, read_write> message: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_of(id, groups);
    if group >= window.tiles {
        return;
    }
    let tile = window.first_tile + group;
    let number = tiles[tile];
    let chunk = chunks[number];
    if chunk.coding != DENSE_F32 {
        return;
    }
    let offset = outcomes[number].offset - outcomes[window.first_chunk].offset;
    let first = (tile - chunk.first_tile) * TILE;
    let end = min(first + TILE, chunk.elements);
    for (var at = first + lane; at < end; at += LANES) {
        message[offset + at] = residual[chunk.start + at];
        residual[chunk.start + at] = 0u;
    }
}
