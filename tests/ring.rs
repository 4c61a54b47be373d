//! The ring against a model of it, against bytes that no honest peer writes, and between real threads.

#[path = "ring/hostile.rs"]
mod hostile;
#[path = "ring/memory.rs"]
mod memory;
#[path = "ring/queue.rs"]
mod queue;
