// |s| of some elements: the twin of `magnitudes` in src/codec/cpu/scalar.rs. A piece a workgroup.

struct Pieces {
    first: u32,
    count: u32,
    // The update is in the residual already.
    in_residual: u32,
}

struct Piece {
    // In the window.
    residual: u32,
    // In the update's binding.
    update: u32,
    elements: u32,
    // Where its magnitudes go.
    to: u32,
}

@group(0) @binding(0) var<uniform> range: Pieces;
@group(0) @binding(1) var<storage, read> pieces: array<Piece>;
@group(0) @binding(2) var<storage, read> update: array<u32>;
@group(0) @binding(3) var<storage, read> residual: array<u32>;
@group(0) @binding(4) var<storage, read_write> magnitudes: array<u32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_of(id, groups);
    if group >= range.count {
        return;
    }
    let piece = pieces[range.first + group];
    for (var at = lane; at < piece.elements; at += 64u) {
        let r = residual[piece.residual + at];
        var s: u32;
        if range.in_residual != 0u {
            s = select(0u, canon(r), is_finite(r));
        } else {
            s = accumulate(r, update[piece.update + at], r).s;
        }
        magnitudes[piece.to + at] = s & MAGNITUDE;
    }
}
