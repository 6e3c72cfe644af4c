//! Files that the configuration names: modules and secrets. Each is bounded, and recorded with what
//! was read, so that it can be watched.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::reader::{Item, Notes, Table, describe};
use super::settings::{Else, Setting, Text};
use super::units;
use crate::engine::Secret;
use crate::proxy::settings::Maintenance;
use crate::reload::Watch;
use weir_tls::{PEM_BYTES_MAX, Pem};

/// Maximum size of `proxy.toml` itself, in bytes.
pub(super) const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a secret's file, in bytes.
const SECRET_BYTES_MAX: u64 = 4 << 10;

/// Reads a whole file. The error is the reason why not, in one sentence.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    whole(File::open(path).map_err(|error| cause(&error))?, bytes_max)
}

/// The same of a file that may not be there: `None` then. That it can't be seen says nothing.
pub(super) fn read_if_any(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, String> {
    match File::open(path) {
        Ok(file) => whole(file, bytes_max).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cause(&error)),
    }
}

fn whole(file: File, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| cause(&error))?;
    if bytes.len() as u64 > bytes_max {
        Err(format!("it has more than {}", units::show_size(bytes_max)))
    } else {
        Ok(bytes)
    }
}

/// The error's text without the OS error number.
pub(super) fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Whether it is a regular file: opening a pipe could block.
pub(crate) fn is_plain(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

impl Notes {
    /// Reads a file that `item` names, relative to the configuration's folder.
    pub(super) fn named_file(
        &self,
        item: &Item<'_>,
        what: &str,
        bytes_max: u64,
    ) -> Option<(PathBuf, Vec<u8>)> {
        let expected = format!("the path of {what}");
        let path = self.folder.join(item.text(&expected)?);
        let instead = self.instead.as_ref().filter(|[named, _]| *named == path);
        let from = instead.map_or(&path, |[_, from]| from);
        let given = self.given.iter().find(|(named, _)| *named == path);
        let read = match (given, fs::metadata(from)) {
            (Some((_, bytes)), _) => Ok(bytes.clone()),
            (None, Ok(metadata)) if !metadata.is_file() => Err("it is not a file".to_owned()),
            _ => read(from, bytes_max),
        };
        match read {
            Ok(bytes) => {
                let watch = Watch::read(&path, &bytes);
                self.contents.borrow_mut().push((item.path.clone(), watch.clone()));
                self.watched.borrow_mut().push(watch);
                Some((path, bytes))
            }
            Err(cause) => {
                self.watched.borrow_mut().push(Watch::now(&path));
                item.absent(
                    format!("{} ({cause})", path.display()),
                    format!("{expected} of at most {}", units::show_size(bytes_max)),
                );
                None
            }
        }
    }
}

impl Item<'_> {
    /// The switch whose file the setting names. The file is watched, whether it exists or not.
    pub(super) fn switch(&self) -> Option<Maintenance> {
        let name = self.text("the path of a file").filter(|name| !name.is_empty())?;
        let path = self.notes.folder.join(name);
        self.notes.watched.borrow_mut().push(Watch::now(&path));
        let is_on = is_plain(&path);
        Some(Maintenance::new(path, is_on))
    }

    /// The PEM file that the setting names, unparsed: the module that uses it checks its content.
    pub(super) fn pem(&self, what: &str) -> Option<Pem> {
        let (path, bytes) = self.notes.named_file(self, what, PEM_BYTES_MAX)?;
        Some(Pem { path, bytes: bytes.into() })
    }
}

/// A secret from the file or the environment variable that a setting names. It appears in no
/// message.
pub(super) fn secret(
    table: &mut Table<'_>,
    in_file: &Setting<Else<Text>>,
    in_env: &Setting<Else<Text>>,
) -> Option<Secret> {
    secret_with(table, in_file, in_env, |_, _| true)
}

/// The same of a secret that is sent in a header field.
pub(super) fn token(
    table: &mut Table<'_>,
    in_file: &Setting<Else<Text>>,
    in_env: &Setting<Else<Text>>,
) -> Option<Secret> {
    secret_with(table, in_file, in_env, |item, token| {
        let fits = !token.chars().any(char::is_control);
        if !fits {
            let found = "a token with a line end or another control character in it";
            item.found(found, "a token of one line, as it is sent in a header field", None);
        }
        fits
    })
}

fn secret_with(
    table: &mut Table<'_>,
    in_file: &Setting<Else<Text>>,
    in_env: &Setting<Else<Text>>,
    fits: impl Fn(&Item<'_>, &str) -> bool,
) -> Option<Secret> {
    let (file, env) = (table.item(in_file), table.item(in_env));
    if let (Some(_), Some(env)) = (&file, &env) {
        let both = format!("both `{}` and `{}`", in_file.key, in_env.key);
        env.found_key(both, "one of the two", None);
        return None;
    }
    let (item, secret) = match (&file, &env) {
        (Some(item), _) => (item, item.secret_in_file()),
        (None, Some(item)) => (item, item.secret_in_env()),
        (None, None) => return None,
    };
    secret.filter(|secret| fits(item, secret)).map(Secret)
}

impl Item<'_> {
    /// The secret in the file that the setting names.
    pub(super) fn secret_in_file(&self) -> Option<String> {
        let (_, bytes) =
            self.notes.named_file(self, "a file that holds the secret", SECRET_BYTES_MAX)?;
        let text = String::from_utf8(bytes).ok();
        if text.is_none() {
            self.found("a file that is not UTF-8", "a secret in UTF-8", None);
        }
        self.secret(&text?)
    }

    /// The secret in the environment variable that the setting names.
    pub(super) fn secret_in_env(&self) -> Option<String> {
        let name = self.text("the name of an environment variable")?;
        let value = if name.is_empty() || name.contains(['=', '\0']) {
            None
        } else {
            std::env::var(name).ok()
        };
        if value.is_none() {
            let expected = "the name of an environment variable that is set, in UTF-8";
            self.absent(describe(self.value), expected);
        }
        self.secret(&value?)
    }

    fn secret(&self, text: &str) -> Option<String> {
        let secret = text.trim_end_matches(['\r', '\n']);
        if secret.is_empty() {
            self.found("an empty secret", "a secret of one character or more", None);
            return None;
        }
        Some(secret.to_owned())
    }
}
