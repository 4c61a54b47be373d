// A part of a bitmap onto its elements: a thread an element, so that neighbours read and write neighbours.

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let group = group_of(id, groups);
    if group >= dispatched.items {
        return;
    }
    let item = items[dispatched.first + group];
    var stay = 0u;
    for (var i = thread; i < item.entries; i += THREADS) {
        let at = item.place + i;
        let code = (payload[at / 16u] >> (2u * (at % 16u))) & 3u;
        if code != 0u {
            stay += add(item.element + i, item.x ^ ((code & 2u) << 30u));
        }
    }
    count_not_finite(stay);
}
