//! Which trailers of a body are passed on.

use http::{HeaderMap, HeaderName};

/// What is done with trailers before they are passed on.
#[derive(Debug, Default)]
pub enum TrailerFilter {
    /// All are passed on.
    #[default]
    All,
    /// The function removes what must not be.
    With(fn(&mut HeaderMap)),
    /// Only these are.
    Only(Box<[HeaderName]>),
}

impl TrailerFilter {
    /// Removes what is not passed on.
    pub fn apply(&self, trailers: &mut HeaderMap) {
        match self {
            Self::All => {}
            Self::With(filter) => filter(trailers),
            Self::Only(names) => {
                let mut kept = HeaderMap::new();
                for name in names {
                    for value in trailers.get_all(name) {
                        kept.append(name.clone(), value.clone());
                    }
                }
                *trailers = kept;
            }
        }
    }
}
