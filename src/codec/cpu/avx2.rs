//! AVX2: groups of 32 elements, four vectors of eight.
//!
//! A group without hits or special values costs a sum, a maximum, a minimum and one test. The test is made before
//! anything is stored, so special values are simply computed again with care.
