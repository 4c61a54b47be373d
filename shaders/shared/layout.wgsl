// How a vector lies in the memory of a device: the twin of src/codec/gpu/vector/layout.rs.
//
// Its residual is cut into windows, which are buffers of whole chunks, and each chunk into tiles of 4096 elements, which
// are counted from the chunk's own start: a workgroup's work. Chunks, tiles and scopes are numbered through all windows.

const LANES: u32 = 256u;
const TILE: u32 = 4096u;
// Words of a tile's mask: a bit an element.
const MASK_WORDS: u32 = 128u;
const BLOCK: u32 = 32768u;

// What stands for a scope where a chunk is sent whole.
const DENSE_F32: u32 = 0xffffffffu;
const DENSE_BF16: u32 = 0xfffffffeu;

// The numbers of `Format`.
const FORMAT_SPARSE: u32 = 1u;
const FORMAT_BITMAP: u32 = 2u;
const FORMAT_DENSE_F32: u32 = 3u;
const FORMAT_DENSE_BF16: u32 = 4u;

struct Window {
    first_tile: u32,
    tiles: u32,
    first_chunk: u32,
    chunks: u32,
    // Elements of the update's binding before its first one.
    skip: u32,
    // The step's number, times an odd constant: where in a chunk a search for hits within a budget begins.
    rotation: u32,
    all_chunks: u32,
    // How many of them have a threshold.
    ordered: u32,
}

struct Chunk {
    // In its window.
    start: u32,
    elements: u32,
    first_tile: u32,
    // Its scope, or `DENSE_..`.
    coding: u32,
    // Its number among the chunks that have a threshold, sorted by scope.
    place: u32,
}

// Bits of numbers, but for the last four.
struct Scope {
    threshold: u32,
    unit: u32,
    // Of clipping.
    bound: u32,
    // Hits that may be sent.
    limit: u32,
    // The places of its chunks: the first one, the one that is visited first, the one behind the last.
    first: u32,
    pivot: u32,
    end: u32,
}

// What came of a chunk. The record behind the last chunk's has elements that were dropped in `hits`, and where the whole
// message ends in `offset`.
struct Outcome {
    hits: u32,
    sent: u32,
    // Bits of the largest |s|.
    largest: u32,
    format: u32,
    // Where its part of the message begins, in words, in all windows' together.
    offset: u32,
    // Bits of the largest magnitude of the residual's sample.
    residual_max: u32,
    // The sample's sum, in units of 2^-47 times the power of two of `residual_max`, in digits of 2^16.
    sum_low: u32,
    sum_middle: u32,
    sum_high: u32,
}

fn tiles_of(chunk: Chunk) -> u32 {
    return (chunk.elements + TILE - 1u) / TILE;
}

fn blocks_of(chunk: Chunk) -> u32 {
    return (chunk.elements + BLOCK - 1u) / BLOCK;
}

fn is_dense(chunk: Chunk) -> bool {
    return chunk.coding >= DENSE_BF16;
}
