//! Servers that are known by their public key. A pin is the SHA-256 of a certificate's
//! SubjectPublicKeyInfo, written as RFC 7469, 2.4 does: `sha256/` and base64.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// How a pin is written.
const START: &str = "sha256/";

/// The public key of a server, by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin([u8; 32]);

impl Pin {
    /// Reads `sha256/` and base64. `None` if it is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text.strip_prefix(START)?).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// The pin of a public key, as DER of its SubjectPublicKeyInfo.
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, spki).as_ref());
        Self(hash)
    }

    /// As [`parse`](Self::parse) reads it.
    fn text(self) -> String {
        format!("{START}{}", STANDARD.encode(self.0))
    }
}

/// Accepts servers whose key is one of these.
#[derive(Debug)]
pub(super) struct PinVerifier {
    pins: Vec<Pin>,
    /// The authority and the name are verified as well, if there is one.
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl PinVerifier {
    pub(super) fn new(
        pins: Vec<Pin>,
        chain: Option<Arc<WebPkiServerVerifier>>,
        provider: Arc<CryptoProvider>,
    ) -> Self {
        Self { pins, chain, provider }
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let key = ParsedCertificate::try_from(end_entity)?.subject_public_key_info();
        let pin = Pin::of(key.as_ref());
        if !self.pins.contains(&pin) {
            let found = format!("the server's key is not pinned: it is {}", pin.text());
            let unpinned = std::io::Error::other(found);
            let other = rustls::OtherError(Arc::new(unpinned));
            return Err(Error::InvalidCertificate(CertificateError::Other(other)));
        }
        match &self.chain {
            Some(chain) => {
                chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_as_it_is_written() {
        let pin = Pin::of(b"a key");
        assert_eq!(Pin::parse(&pin.text()), Some(pin));
        for wrong in ["", "sha256/", "sha1/AAAA", "sha256/AAAA", "sha256/****", &pin.text()[7..]] {
            assert_eq!(Pin::parse(wrong), None, "{wrong}");
        }
    }
}
