//! What listeners show an authority that checks a name.

use std::sync::Arc;

use crate::listen::{CertifiedKey, ChallengeCertificates};
use weir_acme::{Authority, Challenges};

/// The answers to an authority, in handshakes.
#[derive(Debug)]
struct InHandshakes(Challenges);

impl ChallengeCertificates for InHandshakes {
    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.0.certificate(name)
    }
}

/// What listeners show an authority that checks a name.
pub(super) fn in_handshakes(authority: &Authority) -> Arc<dyn ChallengeCertificates> {
    Arc::new(InHandshakes(Challenges::new(&authority.folder)))
}
