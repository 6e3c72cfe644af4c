//! What comes from policies, for the targets in `targets/`: modules, and the answers of guests.

mod answers;
mod modules;

pub use answers::{Answer, answers};
pub use modules::modules;
