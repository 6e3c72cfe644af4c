//! Who issues certificates, and how they are asked.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;
use rustls::pki_types::ServerName;
use weir_clock::Clock;
use weir_tls::{ClientTls, ClientTlsError, Pem};

use crate::due::{Issued, usable};
use crate::folder;
use crate::journal::Journal;

/// Maximum number of certificates that are looked through for one that serves meanwhile.
const STAND_INS_MAX: usize = 1_024;

/// Who issues certificates, and how they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The URL of its directory.
    pub directory: String,
    /// How the authority's own server is verified.
    pub tls: ClientTls,
    /// Where it can reach the operator, such as `mailto:ops@example.com`.
    pub contact: Vec<String>,
    /// The kind of certificate to ask for, of those that its directory lists.
    pub profile: Option<String>,
    /// The account at the authority that an ACME account is bound to, if it asks for one.
    pub external_account: Option<ExternalAccount>,
    /// The challenges that can be answered, the preferred one first.
    pub challenges: Vec<ChallengeKind>,
    /// Where account, certificates and answers are kept.
    pub folder: PathBuf,
}

/// How it is proven that a name is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// A file over plain HTTP, on port 80 (RFC 8555, 8.3).
    Http01,
    /// A certificate in a TLS handshake, on port 443 (RFC 8737).
    TlsAlpn01,
}

/// An account outside of ACME (RFC 8555, 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Its key's name.
    pub id: String,
    /// Its key, which is a secret.
    pub(crate) key: Arc<[u8]>,
}

impl Authority {
    /// An authority with the defaults: any challenge, no contact.
    #[must_use]
    pub fn new(directory: impl Into<String>, folder: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            tls: ClientTls::default(),
            contact: Vec::new(),
            profile: None,
            external_account: None,
            challenges: vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
            folder: folder.into(),
        }
    }

    /// Whether this can be the URL of a directory.
    #[must_use]
    pub fn is_directory(url: &str) -> bool {
        let url: Option<http::Uri> = url.parse().ok();
        url.is_some_and(|url| url.scheme_str() == Some("https") && url.authority().is_some())
    }

    /// What is wrong with its [`tls`](Self::tls), all at once. An order would fail. That the system
    /// has no authorities is none of it: what was issued is served all the same.
    #[must_use]
    pub fn tls_errors(&self) -> Vec<ClientTlsError> {
        let mut errors = self.tls.build().err().unwrap_or_default();
        errors.retain(|error| error.part != "ca" || self.tls.ca.is_some());
        let name = self.tls.server_name.as_deref();
        if let Some(name) = name.filter(|name| ServerName::try_from(*name).is_err()) {
            let expected = "a host name or an address, without a port";
            errors.push(ClientTlsError {
                part: "server_name",
                found: format!("{name:?}"),
                expected,
            });
        }
        errors
    }

    /// A certificate that serves until that of these names is there: of those in the folder that
    /// are valid now one of this authority if there is any, as clients may not trust another; then
    /// the one for most of the names, and then for longest.
    #[must_use]
    pub fn stand_in(&self, names: &[String]) -> Option<PathBuf> {
        let now_s = Clock::system().wall_us() / 1_000_000;
        let files = std::fs::read_dir(&self.folder).ok()?.filter_map(Result::ok);
        let pems = files
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "pem"));
        let fitting = pems.take(STAND_INS_MAX).filter_map(|path| {
            let issued = Issued::read(&path).filter(|issued| issued.expires_s > now_s)?;
            let covered = names.iter().filter(|name| issued.names.contains(name)).count();
            (covered > 0)
                .then(|| ((self.has_issued(&path, &issued), covered, issued.expires_s), path))
        });
        fitting.max_by_key(|(fit, _)| *fit).map(|(_, path)| path)
    }

    /// Whether a certificate is from here, as its journal says. Journals did not always: then it
    /// has the file that would be made for it.
    fn has_issued(&self, file: &Path, issued: &Issued) -> bool {
        if let Some(directory) = Journal::read(file).directory {
            return directory == self.directory;
        }
        let stem = file.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        [None, self.profile.as_deref()]
            .iter()
            .any(|profile| stem.ends_with(&self.digest(&issued.names, *profile)))
    }

    /// Whether a server can show what is in a file of the folder.
    #[must_use]
    pub fn is_usable(pem: &Pem) -> bool {
        usable(pem.clone()).is_ok()
    }

    /// The file with the account.
    pub(crate) fn account_file(&self) -> PathBuf {
        let external = self.external_account.as_ref().map_or("", |account| account.id.as_str());
        self.folder.join(format!("account-{}.json", folder::digest([&*self.directory, external])))
    }

    /// The file with the certificate for these names in any order, and with its key: PEM. One of
    /// the names is in the file's name, the first in the alphabet unless there is a file already.
    /// Another authority or another profile has another file.
    #[must_use]
    pub fn certificate_file(&self, names: &[String]) -> PathBuf {
        let digest = self.digest(names, self.profile.as_deref());
        let of = |name: &str| self.folder.join(format!("{name}-{digest}.pem"));
        let mut sorted: Vec<_> = names.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        // Earlier versions named it after the first name in the configuration.
        let there = sorted.iter().map(|name| of(name)).find(|file| may_exist(file));
        there.unwrap_or_else(|| of(sorted.first().copied().unwrap_or("certificate")))
    }

    /// What tells apart the files of certificates.
    fn digest(&self, names: &[String], profile: Option<&str>) -> String {
        let mut sorted: Vec<_> = names.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let profile = profile.unwrap_or_default();
        folder::digest(sorted.into_iter().chain(["", &self.directory, profile]))
    }
}

/// Whether there is a file, as far as can be seen.
fn may_exist(file: &Path) -> bool {
    file.try_exists().unwrap_or(true)
}

impl ExternalAccount {
    /// An account with its key as authorities hand it out: base64url. `None` if it is not.
    #[must_use]
    pub fn new(id: String, key: &str) -> Option<Self> {
        let key = URL_SAFE_NO_PAD.decode(key.trim().trim_end_matches('=')).ok()?;
        (!key.is_empty()).then(|| Self { id, key: key.into() })
    }
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ExternalAccount").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_of_names_at_each_authority_has_a_file() {
        let file = |directory: &str, names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            Authority::new(directory, "f").certificate_file(&names)
        };
        let both = file("https://a", &["a.example", "b.example"]);
        assert!(both.to_str().unwrap().starts_with("f/a.example-"), "{both:?}");
        assert_ne!(both, file("https://b", &["a.example", "b.example"]));
        assert_ne!(both, file("https://a", &["a.example"]));
        assert_ne!(both, file("https://a", &["a.example", "b.exampl", "e"]));
        let mut short = Authority::new("https://a", "f");
        short.profile = Some("shortlived".to_owned());
        assert_ne!(both, short.certificate_file(&["a.example".into(), "b.example".into()]));
    }

    #[test]
    fn names_in_another_order_have_the_same_file_also_one_that_was_named_as_files_once_were() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("https://a", folder.path());
        let orders = [["a.example", "b.example"], ["b.example", "a.example"]];
        let both = || orders.map(|names| authority.certificate_file(&names.map(ToOwned::to_owned)));
        let [file, same] = both();
        assert_eq!(file, same);
        let name = file.file_name().unwrap().to_str().unwrap();
        let once = file.with_file_name(name.replacen("a.", "b.", 1));
        std::fs::write(&once, "").unwrap();
        assert_eq!(both(), [once.clone(), once]);
        std::fs::write(&file, "").unwrap();
        assert_eq!(both(), [file.clone(), file]);
    }

    #[test]
    fn what_an_order_would_fail_with_is_found_before() {
        let mut authority = Authority::new("https://a", "f");
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let ca = |text: &str| Some(Pem { path: "ca.pem".into(), bytes: text.as_bytes().into() });
        authority.tls.ca = ca(&made.cert.pem());
        authority.tls.server_name = Some("a.example".to_owned());
        assert_eq!(authority.tls_errors(), []);
        authority.tls.ca = ca("none");
        authority.tls.server_name = Some("a b".to_owned());
        let found: Vec<_> = authority.tls_errors().iter().map(|error| error.part).collect();
        assert_eq!(found, ["ca", "server_name"]);
    }

    #[test]
    fn what_serves_meanwhile_is_rather_from_the_same_authority() {
        let folder = tempfile::tempdir().unwrap();
        let authority = |directory: &str| Authority::new(directory, folder.path());
        let (here, staging) = (authority("https://a"), authority("https://staging"));
        let write = |of: &Authority, names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let file = of.certificate_file(&names);
            let made = rcgen::generate_simple_self_signed(names).unwrap();
            std::fs::write(&file, made.signing_key.serialize_pem() + &made.cert.pem()).unwrap();
            file
        };
        let wanted = ["a.example", "b.example", "c.example"].map(ToOwned::to_owned);
        assert_eq!(here.stand_in(&wanted), None);
        let most = write(&staging, &["a.example", "b.example"]);
        assert_eq!(here.stand_in(&wanted), Some(most.clone()));
        // Without a journal, as such files were once written.
        let one = write(&here, &["a.example"]);
        assert_eq!(here.stand_in(&wanted), Some(one.clone()));
        // Of another profile, which only its journal tells.
        let short = Authority { profile: Some("short".to_owned()), ..here.clone() };
        let two = write(&short, &["a.example", "b.example"]);
        assert_eq!(here.stand_in(&wanted), Some(one.clone()));
        let directory = Some(here.directory.clone());
        Journal { directory, ..Journal::default() }.write(&two).unwrap();
        assert_eq!(here.stand_in(&wanted), Some(two));
        assert_eq!(staging.stand_in(&wanted), Some(most));
        assert_eq!(here.stand_in(&["x.example".to_owned()]), None);
    }
}
