//! `[acme]`, and certificates that are ordered from it.

use std::path::Path;
use std::sync::Arc;

use super::reader::{Item, Notes, Table};
use super::settings::Kind as _;
use super::settings::acme::{CHALLENGES, acme};
use super::settings::server::certificates;
use super::{files, tls};
use crate::listen::OrderedCertificate;
use crate::reload::Watch;
use weir_acme::{Authority, ChallengeKind, ExternalAccount};
use weir_tls::{Identity, PEM_BYTES_MAX, Pem};

/// Maximum size of a name (RFC 1035), and of the part of it that a certificate may have without a
/// subjectAltName, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// Reads `[acme]`. `None` without it, or if it is of no use.
pub(super) fn authority(notes: &Notes, root: &mut Table<'_>) -> Option<Arc<Authority>> {
    let mut table = root.take("acme")?.table()?;
    let directory = table.item(&acme::DIRECTORY);
    let directory = match &directory {
        Some(item) => url(item),
        None => Some(weir_acme::LETS_ENCRYPT.to_owned()),
    };
    if !table.read(&acme::ACCEPT_TERMS) {
        let expected = "true: an authority issues nothing to those who don't";
        table.found(
            "terms of service that nobody has agreed to (`accept_terms_of_service`)",
            expected,
        );
    }
    let contact = table.items(&acme::CONTACT).iter().filter_map(contact).collect();
    let folder = table.required(&acme::FOLDER).and_then(|item| {
        let folder = item.text(acme::FOLDER.expected())?;
        if folder.is_empty() {
            item.wrong(acme::FOLDER.expected());
        }
        Some(notes.folder.join(folder))
    });
    let challenges = challenges(&mut table);
    let profile = table.read_if_any(&acme::PROFILE);
    let external_account = external_account(&mut table);
    let tls = tls::client(table.section("tls"));
    table.finish();
    Some(Arc::new(Authority {
        contact,
        profile,
        external_account,
        challenges,
        tls,
        ..Authority::new(directory?, folder?)
    }))
}

fn url(item: &Item<'_>) -> Option<String> {
    item.parsed(acme::DIRECTORY.expected(), |text| {
        Authority::is_directory(text).then(|| text.to_owned())
    })
}

fn contact(item: &Item<'_>) -> Option<String> {
    let expected = "a URL, for mail `mailto:` and the address";
    item.parsed(expected, |text| {
        let (scheme, rest) = text.split_once(':')?;
        let is_url = !scheme.is_empty() && !rest.is_empty() && text.is_ascii();
        is_url.then(|| text.to_owned())
    })
}

fn challenges(table: &mut Table<'_>) -> Vec<ChallengeKind> {
    let mut all = Vec::new();
    let items = table.items(&acme::CHALLENGES_);
    for item in &items {
        let Some(kind) = CHALLENGES.read(item) else { continue };
        if all.contains(&kind) {
            item.wrong("a challenge that the list does not have yet");
        }
        all.push(kind);
    }
    if all.is_empty() { vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01] } else { all }
}

fn external_account(table: &mut Table<'_>) -> Option<ExternalAccount> {
    let id = table.read_if_any(&acme::EXTERNAL_ID);
    let key = files::secret(table, &acme::EXTERNAL_KEY_FILE, &acme::EXTERNAL_KEY_ENV);
    match (id, key) {
        (Some(id), Some(key)) => {
            let account = ExternalAccount::new(id, &key.0);
            if account.is_none() {
                table.found(
                    "a key of an external account that is not base64url",
                    "the key as the authority shows it",
                );
            }
            account
        }
        (Some(_), None) => {
            table.missing(acme::EXTERNAL_KEY_FILE.key, "a file with the key of `external_account`");
            None
        }
        (None, Some(_)) => {
            table.missing(acme::EXTERNAL_ID.key, "the id of the key");
            None
        }
        (None, None) => None,
    }
}

/// Reads a certificate with `acme = true`: its names, and what its file holds.
pub(super) fn ordered(
    table: &mut Table<'_>,
    notes: &Notes,
    authority: Option<&Authority>,
) -> Option<OrderedCertificate> {
    for key in [certificates::CERTIFICATE.key, certificates::KEY.key] {
        if table.has(key) {
            table.found(format!("`{key}` and `acme`"), "one of the two");
        }
    }
    let names = table.required_list(&certificates::NAMES)?;
    let items = names.list(certificates::NAMES.kind.max);
    if items.is_empty() && names.value.is_array() {
        names.found("no name", "one or more, such as [\"api.example.com\"]", None);
    }
    let mut all: Vec<String> = Vec::new();
    for item in &items {
        let Some(name) = name(item) else { continue };
        if all.contains(&name) {
            item.wrong("a name that the list does not have yet");
        }
        all.push(name);
    }
    let Some(authority) = authority else {
        table.found(
            "`acme = true`, and no `[acme]`",
            "`[acme]` with `accept_terms_of_service = true` and a `folder`",
        );
        return None;
    };
    if all.is_empty() {
        return None;
    }
    let file = authority.certificate_file(&all);
    // After a change of the names, the one before serves until the new one is there.
    let identity = notes.pem_if_any(&file, table).or_else(|| {
        let other = authority.stand_in(&all)?;
        notes.pem_if_any(&other, table)
    });
    Some(OrderedCertificate { names: all, file, identity })
}

fn name(item: &Item<'_>) -> Option<String> {
    let expected = "a host name such as \"api.example.com\"";
    let text = item.text(expected)?;
    let lower = text.trim_end_matches('.').to_ascii_lowercase();
    if lower.starts_with("*.") {
        let why = "an authority issues certificates for wildcards only by dns-01, which Weir does \
                   not speak";
        item.wrong_with("a name without `*`, or a certificate from a file", Some(why.into()));
        return None;
    }
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_name = lower.len() <= NAME_BYTES_MAX
        && lower.contains('.')
        && lower.split('.').all(is_label)
        && lower.parse::<std::net::Ipv4Addr>().is_err();
    if !is_name {
        item.wrong(expected);
        return None;
    }
    Some(lower)
}

impl Notes {
    /// Certificate and key in a file that Weir writes itself. It may not be there yet, and what is
    /// broken is ordered again. Where it can't be read, what is served must not be dropped.
    fn pem_if_any(&self, file: &Path, table: &Table<'_>) -> Option<Identity> {
        let bytes = match files::read_if_any(file, PEM_BYTES_MAX) {
            Ok(Some(bytes)) => bytes,
            absent => {
                self.watched.borrow_mut().push(Watch::now(file));
                if let Err(why) = absent {
                    let found = format!("{} ({why})", file.display());
                    table.found(found, "a file that Weir may read, as it writes it");
                }
                return None;
            }
        };
        self.watched.borrow_mut().push(Watch::read(file, &bytes));
        let pem = Pem { path: file.to_owned(), bytes: bytes.into() };
        Authority::is_usable(&pem).then(|| Identity { certificate: pem.clone(), key: pem })
    }
}
