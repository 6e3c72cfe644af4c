//! The program; see `weir::cli`.
fn main() {}
