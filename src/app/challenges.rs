//! What listeners show an authority that checks a name.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::setting;
use crate::listen::{self, Certificate, CertifiedKey, ChallengeCertificates, OrderedCertificate};
use crate::telemetry::SettingError;
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

/// What is wrong with the TLS to an authority: no certificate could be ordered.
pub(super) fn tls_errors(authority: &Authority) -> impl Iterator<Item = SettingError> {
    let found = authority.tls_errors().into_iter();
    found.map(|it| SettingError::new(it.part, it.found, it.expected).under(setting::ACME_TLS))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_tls_to_an_authority_is_told_by_its_setting() {
        let mut authority = Authority::new("https://a.example/dir", "f");
        authority.tls.server_name = Some("a b".to_owned());
        let found: Vec<_> = tls_errors(&authority).map(|error| error.setting).collect();
        assert!(found.contains(&"acme.tls.server_name".to_owned()), "{found:?}");
    }
}
