//! wharf-bench
fn main() {}
