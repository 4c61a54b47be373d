// The ranks of a tile's hits among those of its chunk, and which of them are kept within a budget.
//
// Wants the bindings `window`, `tile_hits` and `mask`. A lane has half a word of the tile's mask: 16 elements.

// Hits of the chunk in tiles before this one, and before the element at which the search for hits begins.
var<workgroup> hits_before: atomic<u32>;
var<workgroup> hits_before_start: atomic<u32>;
var<workgroup> halves: array<u32, 256>;
// Hits of 16 halves.
var<workgroup> runs: array<atomic<u32>, 16>;

fn half_of(tile: u32, lane: u32) -> u32 {
    let word = mask[(tile - window.first_tile) * MASK_WORDS + lane / 2u];
    return (word >> (16u * (lane & 1u))) & 0xffffu;
}

// Makes what `rank_of` and `kept_from` need. All lanes must call it.
fn gather_ranks(lane: u32, tile: u32, chunk: Chunk, start: u32) {
    let first = start / TILE;
    if lane < tiles_of(chunk) {
        let hits = tile_hits[chunk.first_tile + lane];
        if chunk.first_tile + lane < tile {
            atomicAdd(&hits_before, hits);
        }
        if lane < first {
            atomicAdd(&hits_before_start, hits);
        }
    }
    let inside = start % TILE;
    if 16u * lane < inside {
        let bits = min(inside - 16u * lane, 16u);
        let below = half_of(chunk.first_tile + first, lane) & ((1u << bits) - 1u);
        if below != 0u {
            atomicAdd(&hits_before_start, countOneBits(below));
        }
    }
    let half = half_of(tile, lane);
    halves[lane] = half;
    if half != 0u {
        atomicAdd(&runs[lane / 16u], countOneBits(half));
    }
    workgroupBarrier();
}

// The rank of the first hit of a lane's half.
fn rank_of(lane: u32) -> u32 {
    var rank = atomicLoad(&hits_before);
    for (var run = 0u; run < lane / 16u; run++) {
        rank += atomicLoad(&runs[run]);
    }
    for (var before = lane & ~15u; before < lane; before++) {
        rank += countOneBits(halves[before]);
    }
    return rank;
}

// Where in a chunk the search for hits to keep begins: 0 if all are kept.
fn start_of(outcome: Outcome, chunk: Chunk) -> u32 {
    return select(window.rotation % chunk.elements, 0u, outcome.sent == outcome.hits);
}

// How many hits are kept of those with a rank below this one: from the first one behind the start on, wrapping. So a hit
// is kept if there is one more below the next rank, and this is its rank among those that are kept.
fn kept_below(rank: u32, outcome: Outcome) -> u32 {
    let before = atomicLoad(&hits_before_start);
    let behind = max(rank, before) - before;
    let end = before + outcome.sent;
    if end <= outcome.hits {
        return min(behind, outcome.sent);
    }
    return min(rank, end - outcome.hits) + behind;
}
