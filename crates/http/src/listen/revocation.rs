//! The lists of clients' certificates that were revoked, as a file has them.

use std::cmp::Reverse;
use std::collections::HashSet;

use rustls::pki_types::CertificateRevocationListDer;
use x509_parser::extensions::X509Extension;
use x509_parser::oid_registry::OID_X509_EXT_ISSUER_DISTRIBUTION_POINT as SCOPE;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::time::ASN1Time;

use weir_tls::Pem;

/// What is expected of such a file.
pub(super) const LISTS: &str = "a PEM file with certificate revocation lists";

/// A list that counts.
#[derive(Debug)]
pub(super) struct List {
    pub(super) der: CertificateRevocationListDer<'static>,
    /// When it was made.
    pub(super) made: ASN1Time,
    /// When there was to be a newer one, if it says so.
    pub(super) ends: Option<ASN1Time>,
}

/// The lists of a file, the newest first. If an issuer has several for the same certificates, only
/// the newest is kept: webpki uses the first that fits, which may lack what was revoked since. The
/// newest is the one that was made last, as for OpenSSL, then the one with the
/// highest number, then the last in the file.
pub(super) fn newest(crl: &Pem) -> Result<Vec<List>, String> {
    let all = crl.revocation_lists()?;
    let mut read = Vec::with_capacity(all.len());
    for (index, der) in all.iter().enumerate() {
        let (_, list) = CertificateRevocationList::from_der(der)
            .map_err(|error| format!("a broken list in {} ({error})", crl.path.display()))?;
        let age = (list.last_update().timestamp(), list.crl_number().cloned(), index);
        read.push((Reverse(age), list, der));
    }
    read.sort_by(|(age, ..), (other, ..)| age.cmp(other));
    let mut seen = HashSet::new();
    read.retain(|(_, list, _)| {
        let scope = list.extensions().iter().find(|extension| extension.oid == SCOPE);
        seen.insert((list.issuer().as_raw().to_vec(), scope.map(value)))
    });
    let kept = read.iter().map(|(_, list, der)| List {
        der: (*der).clone(),
        made: list.last_update(),
        ends: list.next_update(),
    });
    Ok(kept.collect())
}

fn value(extension: &X509Extension<'_>) -> Vec<u8> {
    extension.value.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Pki;

    #[test]
    fn of_the_lists_of_one_issuer_the_one_that_was_made_last_counts_then_the_highest_number() {
        let pki = Pki::new();
        let counts = |lists: &[&str], expected: &str| {
            let pem = |text: &str| Pem { path: "crl.pem".into(), bytes: text.as_bytes().into() };
            let found = newest(&pem(&lists.concat())).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].der, pem(expected).revocation_lists().unwrap()[0], "{lists:?}");
        };
        let [old, new] = [2001, 2002].map(|made| pki.revoked_in(&[], (made, 9), 2400));
        let [higher, huge] = [10, u64::MAX].map(|number| pki.revoked_in(&[], (2001, number), 2400));
        counts(&[&old, &new], &new);
        counts(&[&new, &old], &new);
        counts(&[&higher, &old], &higher);
        counts(&[&higher, &huge, &old], &huge);
        // Whoever begins to count again makes later lists all the same.
        counts(&[&new, &huge], &new);
        let same = pki.revoked_in(&[7], (2001, 9), 2400);
        counts(&[&old, &same], &same);
        let other = Pki::named("Others").revoked(&[], 2400);
        let all = Pem { path: "crl.pem".into(), bytes: format!("{new}{other}").as_bytes().into() };
        assert_eq!(newest(&all).unwrap().len(), 2);
    }
}
