//! The `crawfish` binary.

fn main() {}
