// What both kernels that count hits do with an element, and what they leave.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> update: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
// A bit an element of each tile.
@group(0) @binding(3) var<storage, read_write> mask: array<u32>;
@group(0) @binding(4) var<storage, read> tiles: array<u32>;
@group(0) @binding(5) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(6) var<storage, read> scopes: array<Scope>;
@group(0) @binding(7) var<storage, read_write> tile_hits: array<u32>;
// What is dropped, then each chunk's hits and largest |s|.
@group(0) @binding(8) var<storage, read_write> totals: array<atomic<u32>>;

// The update is in the residual already.
override IN_RESIDUAL: bool = false;

var<workgroup> hits: array<atomic<u32>, 128>;
var<workgroup> count: atomic<u32>;
var<workgroup> largest: atomic<u32>;
var<workgroup> dropped: atomic<u32>;

// What a lane has seen.
struct Seen {
    largest: u32,
    dropped: u32,
}

// Elements of residual and update that a lane has asked for: four at a time, so that their ways from memory overlap.
struct Four {
    r: vec4<u32>,
    u: vec4<u32>,
}

// The elements `at` and one, two and three times `LANES` further, where there are any: `at` itself, otherwise.
fn ask(start: u32, at: u32, elements: u32) -> Four {
    let all = vec4<u32>(at) + vec4<u32>(0u, LANES, 2u * LANES, 3u * LANES);
    let places = vec4<u32>(start) + select(vec4<u32>(at), all, all < vec4<u32>(elements));
    var four: Four;
    four.r = vec4<u32>(
        residual[places.x],
        residual[places.y],
        residual[places.z],
        residual[places.w],
    );
    if !IN_RESIDUAL {
        let given = vec4<u32>(window.skip) + places;
        four.u = vec4<u32>(update[given.x], update[given.y], update[given.z], update[given.w]);
    }
    return four;
}

// Makes s of an element and stores it. Gives its magnitude.
fn make(place: u32, r: u32, u: u32, seen: ptr<function, Seen>) -> u32 {
    var s: Accumulated;
    if IN_RESIDUAL {
        let finite = is_finite(r);
        s = Accumulated(select(0u, canon(r), finite), !finite);
        // It rarely changes anything, and what is not written need not be moved.
        if s.s != r {
            residual[place] = s.s;
        }
    } else {
        s = accumulate(r, u, r);
        residual[place] = s.s;
    }
    let size = s.s & MAGNITUDE;
    (*seen).largest = max((*seen).largest, size);
    (*seen).dropped += u32(s.dropped);
    return size;
}

// What a tile is.
struct Tile {
    // Its first element, in the window.
    start: u32,
    elements: u32,
    // The magnitude of the least hit.
    threshold: u32,
}

fn tile_of(tile: u32) -> Tile {
    let chunk = chunks[tiles[tile]];
    let first = (tile - chunk.first_tile) * TILE;
    return Tile(
        chunk.start + first,
        min(TILE, chunk.elements - first),
        threshold_of(chunk),
    );
}

// Takes an element of a tile, if it is one, and marks it if it is a hit.
fn take(tile: Tile, at: u32, r: u32, u: u32, seen: ptr<function, Seen>) {
    if at < tile.elements {
        if make(tile.start + at, r, u, seen) >= tile.threshold {
            atomicOr(&hits[at / 32u], 1u << (at % 32u));
        }
    }
}

// Takes all elements of a tile.
fn take_all(tile: Tile, lane: u32, seen: ptr<function, Seen>) {
    for (var at = lane; at < tile.elements; at += 4u * LANES) {
        let four = ask(tile.start, at, tile.elements);
        take(tile, at, four.r.x, four.u.x, seen);
        take(tile, at + LANES, four.r.y, four.u.y, seen);
        take(tile, at + 2u * LANES, four.r.z, four.u.z, seen);
        take(tile, at + 3u * LANES, four.r.w, four.u.w, seen);
    }
}

fn threshold_of(chunk: Chunk) -> u32 {
    if is_dense(chunk) {
        return INFINITY;
    }
    return scopes[chunk.coding].threshold;
}

// Stores a tile's mask, and what is counted of it. All lanes must call it.
fn leave(lane: u32, tile: u32, seen: Seen) {
    atomicMax(&largest, seen.largest);
    if seen.dropped != 0u {
        atomicAdd(&dropped, seen.dropped);
    }
    workgroupBarrier();
    if lane < MASK_WORDS {
        let word = atomicLoad(&hits[lane]);
        mask[(tile - window.first_tile) * MASK_WORDS + lane] = word;
        if word != 0u {
            atomicAdd(&count, countOneBits(word));
        }
    }
    workgroupBarrier();
    if lane == 0u {
        let total = 1u + 2u * tiles[tile];
        let found = atomicLoad(&count);
        tile_hits[tile] = found;
        if found != 0u {
            atomicAdd(&totals[total], found);
        }
        atomicMax(&totals[total + 1u], atomicLoad(&largest));
        if atomicLoad(&dropped) != 0u {
            atomicAdd(&totals[0], atomicLoad(&dropped));
        }
    }
}
