// The numbers of the codec: the twin of src/codec/arithmetic.rs, and of `accumulate`, `spend` and `moved` in
// src/codec/cpu/scalar.rs.
//
// Floats are bound as u32, and every test is one of integers: a device may flush subnormals, take for granted that there
// are no infinities, and call -0 and +0 the same. Only single additions of canonical numbers are made, each of which is
// stored as bits before the next one.

const LEAST_NORMAL: u32 = 0x00800000u;
const INFINITY: u32 = 0x7f800000u;
const MAGNITUDE: u32 = 0x7fffffffu;
const SIGN: u32 = 0x80000000u;

// `x` with a subnormal or a negative zero made +0. Everything else stays as it is.
fn canon(x: u32) -> u32 {
    return select(0u, x, (x & MAGNITUDE) >= LEAST_NORMAL);
}

fn is_finite(x: u32) -> bool {
    return (x & MAGNITUDE) < INFINITY;
}

// The sum of two canonical finite numbers: canonical, or not finite where it is too large.
fn plus(a: u32, b: u32) -> u32 {
    return canon(bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b)));
}

struct Accumulated {
    s: u32,
    dropped: bool,
}

// `r`, or +0 where a trainer that writes in place has left what is not finite.
fn canon_finite(r: u32) -> u32 {
    return select(0u, canon(r), is_finite(r));
}

// `s = canon(r + canon(u))`, or `left` where that is not finite. What is not finite in `r` or `left` counts as +0, and as
// dropped.
fn accumulate(r: u32, u: u32, left: u32) -> Accumulated {
    // No addition ever sees what is not finite.
    if !is_finite(u) {
        return Accumulated(canon_finite(left), true);
    }
    let sum = plus(canon_finite(r), canon(u));
    let finite = is_finite(sum);
    return Accumulated(select(canon_finite(left), sum, finite), !(finite && is_finite(r)));
}

// `s` with one unit of its sign taken away. Never subnormal nor -0 (see `scalar::spend`), but for what a device makes of
// x - x.
fn spend(s: u32, unit: u32) -> u32 {
    return plus(s, (~s & SIGN) | unit);
}

struct Moved {
    p: u32,
    stays: bool,
}

// `canon(canon(p) + x)`, or `p` where `p` is not finite.
fn moved(p: u32, x: u32) -> Moved {
    if !is_finite(p) {
        return Moved(p, true);
    }
    return Moved(plus(canon(p), x), false);
}

// The number of this workgroup in a grid of two dimensions.
fn group_of(id: vec3<u32>, groups: vec3<u32>) -> u32 {
    return id.y * groups.x + id.x;
}
