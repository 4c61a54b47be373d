// What every kernel that applies records is given: one workgroup for each item, no two of which touch the same element.

struct Dispatched {
    // The first of its items in the table, and how many there are.
    first: u32,
    items: u32,
}

struct Item {
    // Where its entries begin in the payload, in units of an entry: 16 bits of a hit, 2 of a bitmap's element, 32 of a
    // value.
    place: u32,
    // How many entries there are.
    entries: u32,
    // The element that index 0 means, modulo 2^32: where a part begins inside of a block it can lie before the buffer.
    element: u32,
    // What a positive hit adds.
    x: u32,
}

@group(0) @binding(0) var<uniform> dispatched: Dispatched;
@group(0) @binding(1) var<storage, read> payload: array<u32>;
@group(0) @binding(2) var<storage, read> items: array<Item>;
@group(0) @binding(3) var<storage, read_write> parameters: array<u32>;
// Entries whose element was not finite: the lower and the upper half of a 64-bit number.
@group(0) @binding(4) var<storage, read_write> not_finite: array<atomic<u32>, 2>;

const THREADS: u32 = 256u;

fn count_not_finite(more: u32) {
    if more > 0u {
        let before = atomicAdd(&not_finite[0], more);
        if before > 0xffffffffu - more {
            atomicAdd(&not_finite[1], 1u);
        }
    }
}

// Adds `x` to an element, and says whether that is not finite, and stays.
fn add(element: u32, x: u32) -> u32 {
    let after = moved(parameters[element], x);
    parameters[element] = after.p;
    return u32(after.stays);
}
