//! wharf
fn main() {}
