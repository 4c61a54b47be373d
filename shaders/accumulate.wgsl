// Adds a part of an update to the residual: the twin of `accumulate` in src/codec/cpu/scalar.rs.

struct Part {
    // Where it lies in the window.
    start: u32,
    elements: u32,
    // Elements of its binding before its first one.
    skip: u32,
    tiles: u32,
}

@group(0) @binding(0) var<uniform> part: Part;
@group(0) @binding(1) var<storage, read> update: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
// The first one counts what is dropped.
@group(0) @binding(3) var<storage, read_write> totals: array<atomic<u32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tile = group_of(id, groups);
    if tile >= part.tiles {
        return;
    }
    let first = tile * TILE;
    let count = min(TILE, part.elements - first);
    var dropped = 0u;
    for (var at = lane; at < count; at += LANES) {
        let place = part.start + first + at;
        let r = residual[place];
        let sum = accumulate(r, update[part.skip + first + at], r);
        residual[place] = sum.s;
        dropped += u32(sum.dropped);
    }
    if dropped != 0u {
        atomicAdd(&totals[0], dropped);
    }
}
