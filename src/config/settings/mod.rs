//! The table of settings: a row for each one, with its key, type, range and default, whether a
//! change needs a restart, and what it is for in one sentence.
//!
//! The files named after sections hold the rows. A reader takes key, range and default from its
//! row. Messages, the comparison of configurations and docs/settings.md follow from the table, too.

pub(super) mod acme;
pub(super) mod decisions;
mod kinds;
pub(super) mod otlp;
pub(super) mod policies;
mod reference;
pub(super) mod routes;
pub(super) mod server;
pub(super) mod store;
pub(super) mod upstreams;

pub(super) use kinds::{
    Choice, Else, Flag, Form, Is, Kind, List, Percent, Size, Text, Time, Whole, WordOr, Words,
};
use kinds::{flag, list, ms, s, size, text, time, whole, word_or, words};
pub use reference::reference;

/// Maximum number of listeners, and of listeners of a route.
pub(super) const LISTENERS_MAX: usize = 64;

/// All sections, in the order of docs/settings.md.
pub(super) static SECTIONS: &[&Section] = &[
    &server::listeners::SECTION,
    &server::certificates::SECTION,
    &acme::acme::SECTION,
    &server::server::SECTION,
    &server::limits::SECTION,
    &server::timeouts::SECTION,
    &server::paths::SECTION,
    &server::pool::SECTION,
    &server::admin::SECTION,
    &server::explain::SECTION,
    &server::top::SECTION,
    &server::log::SECTION,
    &otlp::otlp::SECTION,
    &store::store::SECTION,
    &store::embedded::SECTION,
    &store::redis::SECTION,
    &upstreams::upstream::SECTION,
    &upstreams::endpoint::SECTION,
    &upstreams::dns::SECTION,
    &upstreams::sticky::SECTION,
    &upstreams::upstream_timeouts::SECTION,
    &upstreams::ejection::SECTION,
    &upstreams::concurrency::SECTION,
    &upstreams::health::SECTION,
    &upstreams::http2::SECTION,
    &upstreams::tls::SECTION,
    &policies::policy::SECTION,
    &policies::breaker::SECTION,
    &policies::metrics::SECTION,
    &policies::document::SECTION,
    &routes::route::SECTION,
    &routes::when::SECTION,
    &routes::route_timeouts::SECTION,
    &routes::mirror::SECTION,
    &routes::redirect::SECTION,
    &routes::rewrite::SECTION,
    &routes::rules::SECTION,
    &routes::upgrade::SECTION,
    &routes::cors::SECTION,
    &routes::compress::SECTION,
    &routes::respond::SECTION,
    &routes::refusals::SECTION,
    &decisions::tokens::SECTION,
];

/// One row of the table. `K` is the type of the setting's values, with their range and default.
pub(super) struct Setting<K> {
    pub(super) key: &'static str,
    pub(super) kind: K,
    /// Whether a running process keeps the old value.
    pub(super) needs_restart: bool,
    /// What it is for: one sentence.
    pub(super) about: &'static str,
}

/// Settings that are written next to each other.
pub(super) struct Section {
    /// The paths of the tables that have these settings. `NAME` stands for a name that the operator
    /// chooses.
    pub(super) paths: &'static [&'static str],
    pub(super) about: &'static str,
    pub(super) rows: &'static [&'static dyn Row],
}

/// A setting of any type.
pub(super) trait Row: Sync {
    fn key(&self) -> &'static str;
    /// The type and the range of its values.
    fn form(&self) -> String;
    /// The value where none is written, as in the file, or in words.
    fn default(&self) -> String;
    fn needs_restart(&self) -> bool;
    fn about(&self) -> &'static str;
}

impl Setting<Else<Text>> {
    /// What a message says was expected.
    pub(super) fn expected(&self) -> &'static str {
        self.kind.kind.0
    }
}

impl Section {
    /// The paths without brackets, as messages name settings: `listeners.certificates`.
    pub(super) fn plain_paths(&self) -> impl Iterator<Item = String> {
        self.paths.iter().map(|path| path.replace(['[', ']'], "").replace(' ', "."))
    }
}

impl<K: Form> Row for Setting<K> {
    fn key(&self) -> &'static str {
        self.key
    }

    fn form(&self) -> String {
        self.kind.form()
    }

    fn default(&self) -> String {
        self.kind.default()
    }

    fn needs_restart(&self) -> bool {
        self.needs_restart
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

/// Declares a section as a module with a static for each setting, and `SECTION` with all of them.
macro_rules! section {
    (
        $name:ident = [$($path:literal),+], $about:literal;
        $($NAME:ident $key:literal: $kind:ty = $value:expr $(, $restart:ident)?, $what:literal;)*
    ) => {
        #[doc = concat!($("`", $path, "` "),+)]
        pub(in crate::config) mod $name {
            use super::*;

            $(
                #[doc = $what]
                pub(in crate::config) static $NAME: Setting<$kind> = Setting {
                    key: $key,
                    kind: $value,
                    needs_restart: section!(@ $($restart)?),
                    about: $what,
                };
            )*

            pub(in crate::config) static SECTION: Section =
                Section { paths: &[$($path),+], about: $about, rows: &[$(&$NAME),*] };
        }
    };
    (@) => { false };
    (@ restart) => { true };
}
use section;

/// Whether a running process keeps what it has of this setting, or of a setting below it. Elements
/// of lists are named in brackets: `listeners[127.0.0.1:8080]`.
pub(super) fn needs_restart(setting: &str) -> bool {
    let asked = without_elements(setting);
    let is_meant = |path: &str| {
        path.strip_prefix(&asked).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    SECTIONS.iter().any(|section| {
        let mut keys = section.rows.iter().filter(|row| row.needs_restart()).map(|row| row.key());
        keys.any(|key| section.plain_paths().any(|path| is_meant(&format!("{path}.{key}"))))
    })
}

/// `listeners[0].address` as `listeners.address`.
fn without_elements(setting: &str) -> String {
    let mut depth = 0_usize;
    let mut keep = |c: &char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    setting.chars().filter(|c| keep(c)).collect()
}
