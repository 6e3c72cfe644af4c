//! What is answered to the authority while it looks whether a name is ours. The answers are files,
//! so that every process that shares the folder gives them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::sign::CertifiedKey;
use weir_tls::Pem;

use crate::folder;

/// What the path of an `http-01` challenge begins with; the token follows (RFC 8555, 8.3).
pub const HTTP_PREFIX: &str = "/.well-known/acme-challenge/";

/// Maximum length of a token, and of a name, in bytes.
const TOKEN_BYTES_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 253;
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// The answers to challenges that are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenges {
    folder: Arc<Path>,
    /// In lower case; `None` for all. For any other name no file is looked for.
    names: Option<Arc<BTreeSet<String>>>,
}

/// An answer that is given until this is dropped.
#[derive(Debug)]
pub(crate) struct Answer(PathBuf);

impl Challenges {
    /// The answers in an authority's folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder::answers(folder).into(), names: None }
    }

    /// The answers about these names alone, which are in lower case. No file is read for any other
    /// name: a handshake waits for it.
    #[must_use]
    pub fn only_for(self, names: BTreeSet<String>) -> Self {
        Self { names: Some(names.into()), ..self }
    }

    /// Whether this can be a token: without that nothing is answered. A token becomes a part of a
    /// path.
    #[must_use]
    pub fn is_token(token: &str) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.bytes().all(plain)
    }

    /// What is answered over HTTP for this token. Reads a small file.
    #[must_use]
    pub fn authorization(&self, token: &str) -> Option<String> {
        if !Self::is_token(token) {
            return None;
        }
        String::from_utf8(read(&self.folder.join(token)).ok()?).ok()
    }

    /// The certificate for this name that is shown in handshakes of `acme-tls/1`
    /// (RFC 8737). Reads a small file.
    #[must_use]
    pub fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
            return None;
        }
        if self.names.as_ref().is_some_and(|names| !names.contains(&name)) {
            return None;
        }
        let path = self.folder.join(file_of(&name));
        let pem = Pem { bytes: read(&path).ok()?.into(), path };
        let (chain, key) = (pem.certificates().ok()?, pem.key().ok()?);
        // Not `from_der`: it does not know the certificate's critical extension, and we made both.
        let key = weir_tls::provider().key_provider.load_private_key(key).ok()?;
        Some(Arc::new(CertifiedKey::new(chain, key)))
    }

    /// Answers `authorization` for a token over HTTP.
    pub(crate) fn answer_http(&self, token: &str, authorization: &str) -> io::Result<Answer> {
        if !Self::is_token(token) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an invalid token"));
        }
        let answer = Answer(self.folder.join(token));
        folder::write(&answer.0, authorization.as_bytes())?;
        Ok(answer)
    }

    /// Shows a certificate for `name` with the digest of the key authorization in handshakes.
    pub(crate) fn answer_tls(&self, name: &str, digest: &[u8]) -> io::Result<Answer> {
        let made = || {
            let mut certificate = CertificateParams::new(vec![name.to_owned()])?;
            certificate.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
            let key = KeyPair::generate()?;
            Ok::<_, rcgen::Error>(certificate.self_signed(&key)?.pem() + &key.serialize_pem())
        };
        let answer = Answer(self.folder.join(file_of(name)));
        folder::write(&answer.0, made().map_err(io::Error::other)?.as_bytes())?;
        Ok(answer)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        folder::remove(&self.0);
    }
}

/// Tokens have no dot.
fn file_of(name: &str) -> String {
    format!("{name}.pem")
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    io::Read::read_to_end(&mut io::Read::take(file, ANSWER_BYTES_MAX), &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_given_while_their_challenge_is_open() {
        let folder = tempfile::tempdir().unwrap();
        folder::create(folder.path()).unwrap();
        let challenges = Challenges::new(folder.path());
        let answer = challenges.answer_http("a-token_1", "a-token_1.thumb").unwrap();
        assert_eq!(challenges.authorization("a-token_1").unwrap(), "a-token_1.thumb");
        drop(answer);
        assert_eq!(challenges.authorization("a-token_1"), None);

        let answer = challenges.answer_tls("api.example", &[7; 32]).unwrap();
        let shown = challenges.certificate("API.example").unwrap();
        let (_, leaf) = x509_parser::parse_x509_certificate(&shown.cert[0]).unwrap();
        // id-pe-acmeIdentifier: critical, an octet string with the digest.
        let oid = x509_parser::asn1_rs::oid!(1.3.6.1.5.5.7.1.31);
        let extension = leaf.get_extension_unique(&oid).unwrap().unwrap();
        assert!(extension.critical);
        assert_eq!(extension.value, [&[4, 32][..], &[7; 32]].concat());
        assert!(challenges.certificate("other.example").is_none());
        let only = |name: &str| challenges.clone().only_for([name.to_owned()].into());
        assert!(only("api.example").certificate("API.example").is_some());
        assert!(only("other.example").certificate("api.example").is_none());
        drop(answer);
        assert!(challenges.certificate("api.example").is_none());
    }

    #[test]
    fn no_other_file_can_be_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        folder::create(folder.path()).unwrap();
        std::fs::write(folder.path().join("secret"), "x").unwrap();
        let challenges = Challenges::new(folder.path());
        for token in ["", ".", "..", "../secret", "/etc/hostname", "a.pem", "a\0b", "a%2f"] {
            assert_eq!(challenges.authorization(token), None, "{token:?}");
            assert!(challenges.answer_http(token, "x").is_err(), "{token:?}");
        }
        for name in ["", "../secret", "..", "a/b", "a b"] {
            assert!(challenges.certificate(name).is_none(), "{name:?}");
        }
    }
}
