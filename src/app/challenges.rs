//! What listeners show an authority that checks a name.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::listen::{self, Certificate, CertifiedKey, ChallengeCertificates, OrderedCertificate};
use weir_acme::{Authority, Challenges};

/// The answers to an authority, in handshakes.
#[derive(Debug)]
struct InHandshakes(Challenges);

impl ChallengeCertificates for InHandshakes {
    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.0.certificate(name)
    }
}

/// What these listeners show to an authority that checks one of the names they have ordered.
pub(super) fn in_handshakes(
    authority: &Authority,
    listeners: &[listen::Settings],
) -> Arc<dyn ChallengeCertificates> {
    Arc::new(InHandshakes(Challenges::new(&authority.folder).only_for(names(listeners))))
}

/// All names that these listeners have ordered certificates for, in lower case.
pub(super) fn names(listeners: &[listen::Settings]) -> BTreeSet<String> {
    let ordered = listeners.iter().flat_map(|listener| ordered(&listener.certificates));
    ordered.flat_map(|one| &one.names).map(|name| name.to_ascii_lowercase()).collect()
}

/// The certificates that are ordered.
pub(super) fn ordered(certificates: &[Certificate]) -> impl Iterator<Item = &OrderedCertificate> {
    certificates.iter().filter_map(|certificate| match certificate {
        Certificate::Files(_) => None,
        Certificate::Ordered(ordered) => Some(ordered),
    })
}
