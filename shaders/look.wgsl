// The largest magnitude and the sum of a sample of what stays: the twin of `look_at` in src/codec/encode.rs. A chunk a
// workgroup.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> outcomes: array<Outcome>;

const LINE: u32 = 16u;
const LINES: u32 = 64u;

var<workgroup> largest: atomic<u32>;
// Digits of 2^16 of the sum.
var<workgroup> sums: array<atomic<u32>, 3>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_of(id, groups);
    if group >= window.chunks {
        return;
    }
    let number = window.first_chunk + group;
    let chunk = chunks[number];
    let stride = select(chunk.elements / LINES, LINE, chunk.elements <= LINE * LINES);
    let places = LINE * ((chunk.elements + stride - 1u) / stride);
    var most = 0u;
    for (var at = lane; at < places; at += LANES) {
        let element = at / LINE * stride + at % LINE;
        if element < chunk.elements {
            most = max(most, residual[chunk.start + element] & MAGNITUDE);
        }
    }
    atomicMax(&largest, most);
    workgroupBarrier();

    // Each magnitude as a fixed-point number whose first digit is that of the largest one: 24 bits, and 24 more. What is
    // further down is left out: less than 2^-36 of the sum.
    most = atomicLoad(&largest);
    for (var at = lane; at < places; at += LANES) {
        let element = at / LINE * stride + at % LINE;
        if element >= chunk.elements {
            continue;
        }
        let size = residual[chunk.start + element] & MAGNITUDE;
        let down = (most >> 23u) - (size >> 23u);
        if size == 0u || down >= 48u {
            continue;
        }
        let significand = (size & 0x007fffffu) | LEAST_NORMAL;
        var upper = 0u;
        var lower = 0u;
        if down < 24u {
            upper = significand >> down;
            lower = (significand << (24u - down)) & 0x00ffffffu;
        } else {
            lower = significand >> (down - 24u);
        }
        atomicAdd(&sums[0], lower & 0xffffu);
        atomicAdd(&sums[1], (lower >> 16u) | ((upper & 0xffu) << 8u));
        atomicAdd(&sums[2], upper >> 8u);
    }
    workgroupBarrier();
    if lane == 0u {
        outcomes[number].residual_max = most;
        outcomes[number].sum_low = atomicLoad(&sums[0]);
        outcomes[number].sum_middle = atomicLoad(&sums[1]);
        outcomes[number].sum_high = atomicLoad(&sums[2]);
    }
}
