// The payload of chunks that are sent whole as bf16, and what that rounds away: the twin of `dense_bf16` in
// src/codec/cpu/scalar.rs. A tile a workgroup.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> tiles: array<u32>;
@group(0) @binding(2) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(3) var<storage, read> outcomes: array<Outcome>;
@group(0) @binding(4) var<storage, read_write> residual: array<u32>;
@group(0) @binding(5) var<storage, read_write> message: array<u32>;

// The nearest bf16 to a finite number, to even, never infinite: its bits as f32.
fn nearest(s: u32) -> u32 {
    let rounded = s + 0x7fffu + ((s >> 16u) & 1u);
    return select(s, rounded, is_finite(rounded)) & 0xffff0000u;
}

// Sends an element, and keeps the rest.
fn send(place: u32) -> u32 {
    let s = residual[place];
    let m = nearest(s);
    // What is sent is canonical, and so is its negative, but for 0.
    residual[place] = select(plus(s, m ^ SIGN), 0u, m == s);
    return m >> 16u;
}

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
    if chunk.coding != DENSE_BF16 {
        return;
    }
    let offset = outcomes[number].offset - outcomes[window.first_chunk].offset;
    let first = (tile - chunk.first_tile) * TILE;
    let end = min(first + TILE, chunk.elements);
    for (var at = first + 2u * lane; at < end; at += 2u * LANES) {
        var word = send(chunk.start + at);
        if at + 1u < end {
            word |= send(chunk.start + at + 1u) << 16u;
        }
        message[offset + at / 2u] = word;
    }
}
