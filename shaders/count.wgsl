// Accumulates, and marks and counts hits: a tile a workgroup.

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
    let chunk = chunks[tiles[tile]];
    let threshold = threshold_of(chunk);
    let first = (tile - chunk.first_tile) * TILE;
    let elements = min(TILE, chunk.elements - first);
    var seen = Seen();
    for (var at = lane; at < elements; at += LANES) {
        if make(chunk.start + first + at, &seen) >= threshold {
            atomicOr(&hits[at / 32u], 1u << (at % 32u));
        }
    }
    leave(lane, tile, seen);
}
