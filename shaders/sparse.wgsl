// The payload of sparse chunks, and what their hits leave: the twin of `sparse` in src/codec/cpu/scalar.rs. A tile a
// workgroup.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> tiles: array<u32>;
@group(0) @binding(2) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(3) var<storage, read> scopes: array<Scope>;
@group(0) @binding(4) var<storage, read> outcomes: array<Outcome>;
@group(0) @binding(5) var<storage, read> tile_hits: array<u32>;
@group(0) @binding(6) var<storage, read> mask: array<u32>;
@group(0) @binding(7) var<storage, read_write> residual: array<u32>;
// 0 before. Two codes share a word, so that it is written bit by bit, whoever comes first.
@group(0) @binding(8) var<storage, read_write> message: array<atomic<u32>>;

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
    if outcome.format != FORMAT_SPARSE || outcome.sent == 0u || tile_hits[tile] == 0u {
        return;
    }
    let chunk = chunks[number];
    gather_ranks(lane, tile, chunk, start_of(outcome, chunk));

    let first = (tile - chunk.first_tile) * TILE;
    let offset = outcome.offset - outcomes[window.first_chunk].offset;
    if lane == 0u {
        let rank = atomicLoad(&hits_before);
        let kept = kept_below(rank + tile_hits[tile], outcome) - kept_below(rank, outcome);
        let block = first / BLOCK;
        atomicAdd(&message[offset + block / 2u], kept << (16u * (block & 1u)));
    }
    var left = halves[lane];
    if left == 0u {
        return;
    }
    let unit = scopes[chunk.coding].unit;
    var rank = rank_of(lane);
    var kept = kept_below(rank, outcome);
    for (; left != 0u; left &= left - 1u) {
        rank += 1u;
        let next = kept_below(rank, outcome);
        if next == kept {
            continue;
        }
        let index = first + 16u * lane + countTrailingZeros(left);
        let place = chunk.start + index;
        let s = residual[place];
        residual[place] = spend(s, unit);
        let code = (index % BLOCK) | ((s & SIGN) >> 16u);
        let half = blocks_of(chunk) + kept;
        atomicOr(&message[offset + half / 2u], code << (16u * (half & 1u)));
        kept = next;
    }
}
