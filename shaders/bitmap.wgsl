// The payload of bitmap chunks, and what their hits leave: the twin of `bitmap` in src/codec/cpu/scalar.rs. A tile a
// workgroup.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> tiles: array<u32>;
@group(0) @binding(2) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(3) var<storage, read> scopes: array<Scope>;
@group(0) @binding(4) var<storage, read> outcomes: array<Outcome>;
@group(0) @binding(5) var<storage, read> tile_hits: array<u32>;
@group(0) @binding(6) var<storage, read> mask: array<u32>;
@group(0) @binding(7) var<storage, read_write> residual: array<u32>;
@group(0) @binding(8) var<storage, read_write> message: array<u32>;

// The first rank of each half of the mask.
var<workgroup> ranks: array<u32, 256>;
var<workgroup> words: array<atomic<u32>, 256>;

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
    let outcome = outcomes[number];
    if outcome.format != FORMAT_BITMAP || tile_hits[tile] == 0u {
        return;
    }
    let chunk = chunks[number];
    gather_ranks(lane, tile, chunk, start_of(outcome, chunk));
    let is_partial = outcome.sent < outcome.hits;
    if is_partial {
        ranks[lane] = rank_of(lane);
    }
    workgroupBarrier();

    let first = (tile - chunk.first_tile) * TILE;
    let elements = min(TILE, chunk.elements - first);
    let unit = scopes[chunk.coding].unit;
    for (var at = lane; at < elements; at += LANES) {
        let half = halves[at / 16u];
        let bit = at % 16u;
        if ((half >> bit) & 1u) == 0u {
            continue;
        }
        if is_partial {
            let rank = ranks[at / 16u] + countOneBits(half & ((1u << bit) - 1u));
            if kept_below(rank, outcome) == kept_below(rank + 1u, outcome) {
                continue;
            }
        }
        let place = chunk.start + first + at;
        let s = residual[place];
        residual[place] = spend(s, unit);
        atomicOr(&words[at / 16u], (1u + (s >> 31u)) << (2u * bit));
    }
    workgroupBarrier();

    if 16u * lane < elements {
        let offset = outcome.offset - outcomes[window.first_chunk].offset;
        message[offset + first / 16u + lane] = atomicLoad(&words[lane]);
    }
}
