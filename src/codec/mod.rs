//! Vectors in, bytes out, and not a word about processes.
