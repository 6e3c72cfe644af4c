//! Reads the contents of bodies: values of JSON documents, and the usage that replies report, alone
//! or in server-sent events. Knows no HTTP, no policy and no limit.
//!
//! `scan` reads a document in pieces of any size and finds what `pointer`s lead to. `events` takes
//! a stream of events apart, `coding` undoes a compression. `select` and `edit` build on these,
//! which read and change a request's whole document, and `meter`, which reads a reply while it
//! streams and holds nothing of it but numbers, and one event, with which `repeat` compares the
//! next.

mod coding;
mod edit;
mod events;
mod meter;
mod pointer;
mod repeat;
mod scan;
mod select;
#[cfg(test)]
mod tests;

pub use edit::Edit;
pub use events::EventEnds;
pub use meter::{Gather, Meter, Meters, Reading};
pub use pointer::{Pointer, PointerError, Pointers};
pub use select::{Selection, Selector};
