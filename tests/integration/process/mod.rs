//! The process: its start and its end, its successor, its memory and its descriptors.

mod descriptors;
pub mod handover;
mod lifecycle;
mod memory;
mod releases;
