//! Files of data that Weir fetches itself: `config_files = { keys = { url = "https://...", file =
//! "jwks.json" } }`. The URL is checked by the module that fetches it.

use std::path::Path;

use super::finding::Finding;
use super::reader::{Item, Notes};
use super::settings::policies::document;
use super::tls;
use crate::fetch::Settings;
use crate::reload::Watch;
use crate::telemetry::SettingError;

/// Reads the table of `member`, a member of the configuration of `policy`. Returns the setting that
/// names the file in which the document is kept, which has at most `bytes_max` bytes.
pub(super) fn document<'a>(
    notes: &Notes,
    policy: &str,
    member: &str,
    item: &Item<'a>,
    bytes_max: u64,
) -> Option<Item<'a>> {
    let mut table = item.table()?;
    let url = table.required(&document::URL).and_then(|item| item.text(document::URL.expected()));
    let file = table.required(&document::FILE);
    let every = table.read(&document::EVERY);
    let tls = tls::client(table.section("tls"));
    table.finish();
    let (url, file) = (url?, file?);
    let path = notes.folder.join(file.text(document::FILE.expected())?);
    let mut documents = notes.documents.borrow_mut();
    if let Some(other) = documents.iter().find(|other| other.file == path) {
        file.found(
            format!("the file of {}", other.setting),
            "a file of its own for each document that is fetched",
            Some(format!(
                "to use the same document here, name only its file: `{member} = \"...\"`"
            )),
        );
        return None;
    }
    documents.push(Settings {
        setting: item.path.clone(),
        policy: policy.to_owned(),
        member: member.to_owned(),
        url: url.to_owned(),
        tls,
        file: path,
        every,
        bytes_max,
    });
    Some(file)
}

/// Notes that a document's file is not there yet, if it is not.
pub(super) fn is_missing(notes: &Notes, file: &Item<'_>) -> bool {
    let documents = notes.documents.borrow();
    let path = file.value.as_str().map(|name| notes.folder.join(name));
    let document = documents.iter().find(|one| Some(&one.file) == path.as_ref());
    let Some(Settings { file: path, .. }) = document.filter(|one| !is_there(notes, &one.file))
    else {
        return false;
    };
    notes.watched.borrow_mut().push(Watch::absent(path));
    let found = format!("{} (it does not exist yet)", path.display());
    let expected = "a file with the document, which `weir run` fetches before it serves, and \
                    nothing else does";
    // Whoever tries to fetch it says more.
    let error = SettingError::new(file.path.clone(), found, expected);
    notes.note(Finding { general: true, ..Finding::elsewhere(error) });
    true
}

fn is_there(notes: &Notes, path: &Path) -> bool {
    notes.given.iter().any(|(given, _)| given == path) || path.exists()
}
