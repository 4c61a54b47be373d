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
    let number = window.first_tile + group;
    var seen = Seen();
    take_all(tile_of(number), lane, &seen);
    leave(lane, number, seen);
}
