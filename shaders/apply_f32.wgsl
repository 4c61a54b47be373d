// Values onto their elements: a thread a value. The host has scaled them, so that nothing is multiplied here.

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
        let value = payload[item.place + i];
        let element = item.element + i;
        if is_finite(value) {
            stay += add(element, value);
        } else if is_finite(parameters[element]) {
            // Scaling made it infinite, and so the sum is: no addition sees it.
            parameters[element] = value;
        } else {
            stay += 1u;
        }
    }
    count_not_finite(stay);
}
