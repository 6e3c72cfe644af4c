//! Paths as an operator writes them, and errors about them.

use crate::proxy::settings::{EncodedSlash, PathParameters, Paths};
use crate::telemetry::SettingError;

/// The longest part of a text that an error shows, in characters.
const SHOWN_MAX: usize = 80;

/// What an operator writes for the upstream is used unchanged. Only a client's spelling is
/// restricted.
pub(super) const WRITTEN: Paths = Paths {
    encoded_slash: EncodedSlash::Keep,
    parameters: PathParameters::Keep,
    control_characters: true,
    trailing_slash_exact: true,
    trailing_dots_ignored: false,
    case_exact: true,
};

/// An error of a setting, which shows the beginning of what is written.
pub(super) fn error(setting: &str, found: &str, expected: &str) -> SettingError {
    let found: String = found.chars().take(SHOWN_MAX).collect();
    SettingError::new(setting, format!("{found:?}"), expected)
}
