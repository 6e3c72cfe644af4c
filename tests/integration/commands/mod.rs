//! The command line.

mod check;
mod explain;
mod health;
mod help;
mod import;
mod key;
mod policy;
