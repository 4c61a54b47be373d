// A block's hits, or some of them, onto their elements: a thread a hit.

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
        let code = (payload[at / 2u] >> (16u * (at % 2u))) & 0xffffu;
        stay += add(item.element + (code & 0x7fffu), item.x ^ ((code & 0x8000u) << 16u));
    }
    count_not_finite(stay);
}
