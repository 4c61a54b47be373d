// Clips what stays: the twin of `clamp` in src/codec/cpu/scalar.rs. What it takes away is counted exactly: of each scope
// and each exponent, how many elements were cut, and the sum of their significands. A tile a workgroup.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> tiles: array<u32>;
@group(0) @binding(2) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(3) var<storage, read> scopes: array<Scope>;
@group(0) @binding(4) var<storage, read> outcomes: array<Outcome>;
@group(0) @binding(5) var<storage, read_write> residual: array<u32>;
// Of each scope 256 exponents: elements, and the sum of the significands in two words.
@group(0) @binding(6) var<storage, read_write> cut: array<atomic<u32>>;

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
    if is_dense(chunk) {
        return;
    }
    let bound = scopes[chunk.coding].bound;
    // A hit leaves at most its |s|, or t.
    if outcomes[number].largest <= bound {
        return;
    }
    let first = (tile - chunk.first_tile) * TILE;
    let end = min(first + TILE, chunk.elements);
    for (var at = first + lane; at < end; at += LANES) {
        let r = residual[chunk.start + at];
        let size = r & MAGNITUDE;
        if size <= bound {
            continue;
        }
        residual[chunk.start + at] = (r & SIGN) | bound;
        let bucket = 3u * (256u * chunk.coding + (size >> 23u));
        let significand = (size & 0x007fffffu) | LEAST_NORMAL;
        atomicAdd(&cut[bucket], 1u);
        let low = atomicAdd(&cut[bucket + 1u], significand);
        if low > 0xffffffffu - significand {
            atomicAdd(&cut[bucket + 2u], 1u);
        }
    }
}
