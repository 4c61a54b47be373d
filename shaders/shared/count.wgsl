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

// Makes s of an element and stores it. Gives its magnitude.
fn make(place: u32, seen: ptr<function, Seen>) -> u32 {
    let r = residual[place];
    var s: Accumulated;
    if IN_RESIDUAL {
        let finite = is_finite(r);
        s = Accumulated(select(0u, canon(r), finite), !finite);
        // It rarely changes anything, and what is not written need not be moved.
        if s.s != r {
            residual[place] = s.s;
        }
    } else {
        s = accumulate(r, update[window.skip + place], r);
        residual[place] = s.s;
    }
    let size = s.s & MAGNITUDE;
    (*seen).largest = max((*seen).largest, size);
    (*seen).dropped += u32(s.dropped);
    return size;
}

// The magnitude of the least hit.
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
