// What the host says of a batch. Before every kernel.

struct Step {
    // How many rows of the batch count; those behind them are of an earlier one.
    samples: u32,
    // What a sample's gradient counts.
    weight: f32,
    rate: f32,
    momentum: f32,
}
