//! Comparison bench.
fn main() {}
