//! Changes while requests are under way: of the configuration, of policies, of files of data.

pub mod changes;
mod fetched;
mod mounts;
mod storm;
