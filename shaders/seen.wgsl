// What stays of the hits that `Draft::mean_of_hits` looks at, behind each chunk's payload. A chunk a workgroup.

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> chunks: array<Chunk>;
@group(0) @binding(2) var<storage, read> outcomes: array<Outcome>;
@group(0) @binding(3) var<storage, read> residual: array<u32>;
@group(0) @binding(4) var<storage, read_write> message: array<u32>;

// A half of the payload that begins at a word.
fn half_at(offset: u32, at: u32) -> u32 {
    return (message[offset + at / 2u] >> (16u * (at & 1u))) & 0xffffu;
}

@compute @workgroup_size(64)
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
    let outcome = outcomes[number];
    let offset = outcome.offset - outcomes[window.first_chunk].offset;
    if outcome.format == FORMAT_SPARSE {
        if lane >= seen_of(outcome.sent) {
            return;
        }
        let blocks = blocks_of(chunk);
        let rank = lane * seen_stride(outcome.sent);
        let code = half_at(offset, blocks + rank);
        var end = half_at(offset, 0u);
        var block = 0u;
        while end <= rank && block + 1u < blocks {
            block += 1u;
            end += half_at(offset, block);
        }
        let payload = (blocks + outcome.sent + 1u) / 2u;
        message[offset + payload + lane] = residual[chunk.start + block * BLOCK + (code & 0x7fffu)];
    } else if outcome.format == FORMAT_BITMAP {
        let payload = bitmap_words(chunk.elements);
        if lane >= seen_of(payload) {
            return;
        }
        let at = lane * seen_stride(payload);
        let word = message[offset + at];
        var rest = 0u;
        if word != 0u {
            rest = residual[chunk.start + 16u * at + countTrailingZeros(word) / 2u];
        }
        message[offset + payload + lane] = rest;
    }
}
