//! The command line.

mod check;
mod explain;
mod key;
mod policy;
