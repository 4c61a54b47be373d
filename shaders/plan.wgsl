// How many of each chunk's hits are sent, in which format, and where in the message: the twin of what src/codec/encoder
// does with a limit from visit to visit. One workgroup for all chunks.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> chunks: array<Chunk>;
// The chunks that have a threshold, sorted by scope and then as they lie.
@group(0) @binding(2) var<storage, read> order: array<u32>;
@group(0) @binding(3) var<storage, read> scopes: array<Scope>;
// What is dropped, then each chunk's hits and largest |s|.
@group(0) @binding(4) var<storage, read> totals: array<u32>;
// Hits of all chunks before each one in that order, and of all.
@group(0) @binding(5) var<storage, read_write> before: array<u32>;
@group(0) @binding(6) var<storage, read_write> outcomes: array<Outcome>;

var<workgroup> sums: array<u32, 256>;

// The sum of what the lanes up to this one have. All lanes must call it.
fn scan(lane: u32, x: u32) -> u32 {
    sums[lane] = x;
    workgroupBarrier();
    for (var step = 1u; step < LANES; step *= 2u) {
        var sum = sums[lane];
        if lane >= step {
            sum += sums[lane - step];
        }
        workgroupBarrier();
        sums[lane] = sum;
        workgroupBarrier();
    }
    return sums[lane];
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
    var all = 0u;
    for (var first = 0u; first < window.ordered; first += LANES) {
        let place = first + lane;
        var hits = 0u;
        if place < window.ordered {
            hits = totals[1u + 2u * order[place]];
        }
        let sum = scan(lane, hits);
        if place < window.ordered {
            before[place] = all + sum - hits;
        }
        all += sums[LANES - 1u];
        workgroupBarrier();
    }
    if lane == 0u {
        before[window.ordered] = all;
    }
    storageBarrier();
    workgroupBarrier();

    var offset = 0u;
    for (var first = 0u; first < window.all_chunks; first += LANES) {
        let number = first + lane;
        var words = 0u;
        var outcome = Outcome();
        if number < window.all_chunks {
            outcome = plan(number, &words);
        }
        let sum = scan(lane, words);
        if number < window.all_chunks {
            outcome.offset = offset + sum - words;
            outcomes[number] = outcome;
        }
        offset += sums[LANES - 1u];
        workgroupBarrier();
    }
    if lane == 0u {
        var end = Outcome();
        end.hits = totals[0];
        end.offset = offset;
        outcomes[window.all_chunks] = end;
    }
}

// What is sent of a chunk. `words`: how long its part of the message is, with what is seen of its hits.
fn plan(number: u32, words: ptr<function, u32>) -> Outcome {
    let chunk = chunks[number];
    var outcome = Outcome();
    outcome.hits = totals[1u + 2u * number];
    outcome.largest = totals[2u + 2u * number];
    if chunk.coding == DENSE_F32 {
        outcome.format = FORMAT_DENSE_F32;
        *words = chunk.elements;
        return outcome;
    }
    if chunk.coding == DENSE_BF16 {
        outcome.format = FORMAT_DENSE_BF16;
        *words = (chunk.elements + 1u) / 2u;
        return outcome;
    }
    let scope = scopes[chunk.coding];
    // Visits begin at the pivot, and wrap from the scope's last chunk to its first.
    var visited = before[chunk.place] - before[scope.pivot];
    if chunk.place < scope.pivot {
        visited = before[scope.end] - before[scope.pivot] + before[chunk.place] - before[scope.first];
    }
    outcome.sent = min(outcome.hits, max(scope.limit, visited) - visited);
    let halves = blocks_of(chunk) + outcome.sent;
    let bitmap = bitmap_words(chunk.elements);
    if halves <= 2u * bitmap {
        outcome.format = FORMAT_SPARSE;
        *words = (halves + 1u) / 2u + seen_of(outcome.sent);
    } else {
        outcome.format = FORMAT_BITMAP;
        *words = bitmap + seen_of(bitmap);
    }
    return outcome;
}
