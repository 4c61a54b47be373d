// Which hits of a chunk `Draft::mean_of_hits` in src/codec/draft.rs looks at: every so many hits of a sparse chunk, and
// the first hit of every so many words of a bitmap.

const SEEN: u32 = 64u;

fn seen_stride(count: u32) -> u32 {
    return (count + SEEN - 1u) / SEEN;
}

// How many of `count` hits or words are looked at.
fn seen_of(count: u32) -> u32 {
    let stride = max(seen_stride(count), 1u);
    return (count + stride - 1u) / stride;
}

fn bitmap_words(elements: u32) -> u32 {
    return (elements + 15u) / 16u;
}
