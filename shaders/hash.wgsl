// The two sums of the hash of parameters: the twin of `sums` in src/codec/hash.rs. Sums of integers do not depend on the
// order in which threads come.

struct Hashed {
    // The first element here, its index in the whole vector, and how many there are.
    first: u32,
    index: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> hashed: Hashed;
@group(0) @binding(1) var<storage, read> parameters: array<u32>;
@group(0) @binding(2) var<storage, read_write> totals: array<atomic<u32>, 2>;

const THREADS: u32 = 256u;
// Elements of a workgroup.
const TILE: u32 = 16384u;

var<workgroup> sums: array<atomic<u32>, 2>;

// The finalizer of MurmurHash3.
fn mix(bits: u32) -> u32 {
    var x = bits;
    x ^= x >> 16u;
    x *= 0x85ebca6bu;
    x ^= x >> 13u;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16u);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    // A workgroup that the grid has too many finds nothing to add.
    let group = group_of(id, groups);
    let tiles = (hashed.count + TILE - 1u) / TILE;
    let start = select(hashed.count, group * TILE, group < tiles);
    let end = start + min(hashed.count - start, TILE);
    var first = 0u;
    var second = 0u;
    for (var i = start + thread; i < end; i += THREADS) {
        let p = parameters[hashed.first + i];
        first += mix(p ^ mix(hashed.index + i + 0x9e3779b1u));
        second += mix(p ^ mix(hashed.index + i + 0x85ebca77u));
    }
    atomicAdd(&sums[0], first);
    atomicAdd(&sums[1], second);
    workgroupBarrier();
    if thread < 2u {
        atomicAdd(&totals[thread], atomicLoad(&sums[thread]));
    }
}
