//! SKELETON
/// SKELETON
#[derive(Debug)]
pub struct App;
