//! The command line.

mod check;
mod explain;
mod health;
mod import;
mod key;
mod policy;
