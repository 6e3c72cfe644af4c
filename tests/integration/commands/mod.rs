//! The command line.

mod check;
mod explain;
mod health;
mod key;
mod policy;
