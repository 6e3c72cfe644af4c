//! The contract with guests, in each version that is served.
//!
//! A guest's exports say which version it was built for ([`Label::of`]). Each version has a module
//! here with its own types and functions. The rest of `policy` knows the types of the newest alone:
//! the module of an older one converts what its guests answer to these, and what they are told from
//! these, in its `Exports`. Nothing is checked here: see `answer`.
//!
//! To change the contract in a way that breaks guests: raise the minor version in
//! `wasm-sdk/wit/policy.wit`, keep the text as it was beside the older version's module, add a
//! module and a variant, and keep a guest of the new version in `tests/guests/kept`.

pub(super) mod v0_9;

pub(super) use v0_9::{host, types, usage};

use wasmtime::Store;
use wasmtime::component::{ComponentNamedList, HasSelf, Instance, Lift, Linker, Lower, TypedFunc};

use super::error::{Failure, one_line};

/// How the names of the contract's interfaces begin.
pub(super) const PACKAGE: &str = "weir:policy/";
const HANDLER: &str = "weir:policy/handler";
/// The interfaces that a guest may import.
const IMPORTS: [&str; 3] = ["weir:policy/host", "weir:policy/types", "weir:policy/usage"];
/// What is written for those who have to build a guest again.
const NEWEST: &str = "weir:policy@0.9";

/// A version of the contract that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// 0.9, whatever the patch.
    V0_9,
}

/// The version that a guest was built for, and the label that its names have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) version: Version,
    /// Such as `0.9.0`.
    text: String,
}

impl Label {
    /// Reads it from the names of a guest's exports. A plain module's are those of functions, with
    /// `#` before their own name.
    ///
    /// # Errors
    /// What was found, and what was expected.
    pub(super) fn of<'a>(exports: impl Iterator<Item = &'a str>) -> Result<Self, (String, String)> {
        let mut labels = exports.filter_map(|name| {
            let interface = name.split('#').next()?;
            interface.strip_prefix(HANDLER)?.strip_prefix('@')
        });
        let Some(text) = labels.next() else {
            return Err((
                format!("no export `{HANDLER}@{}`", Version::V0_9.full()),
                format!(
                    "a guest of `{NEWEST}` (in Rust: a module with `weir_policy::export!(YourPolicy)`)"
                ),
            ));
        };
        let version = Version::of(text).ok_or_else(|| {
            (
                format!("a guest of `weir:policy@{}`", one_line(text)),
                format!(
                    "one of `{NEWEST}`: build it again with the SDK of this Weir (`weir policy new` \
                     writes it), or with its `wasm-sdk/wit/policy.wit`"
                ),
            )
        })?;
        Ok(Self { version, text: text.to_owned() })
    }

    /// The interface that the guest exports.
    pub(super) fn handler(&self) -> String {
        format!("{HANDLER}@{}", self.text)
    }

    /// The contract's text under the guest's own label, with which a plain module is made into a
    /// component.
    pub(super) fn wit(&self) -> String {
        let label = |text: &str| format!("package weir:policy@{text};");
        self.version.wit().replacen(&label(&self.version.full()), &label(&self.text), 1)
    }

    /// Whether a guest may import this.
    pub(super) fn has_import(&self, name: &str) -> bool {
        let interface = name.strip_suffix(self.text.as_str());
        interface.and_then(|name| name.strip_suffix('@')).is_some_and(|it| IMPORTS.contains(&it))
    }

    /// What a guest may import, for a message.
    pub(super) fn imports(&self) -> String {
        let names: Vec<String> =
            IMPORTS.iter().map(|name| format!("{name}@{}", self.text)).collect();
        format!("`{}`", names.join("`, `"))
    }
}

impl Version {
    /// The version that a label means, if it is served.
    fn of(label: &str) -> Option<Self> {
        let mut numbers = label.splitn(3, '.').map(|part| part.parse::<u64>().ok());
        let [major, minor, patch] = [numbers.next(), numbers.next(), numbers.next()];
        match (major??, minor??, patch??) {
            (0, 9, _) => Some(Self::V0_9),
            _ => None,
        }
    }

    fn full(self) -> String {
        match self {
            Self::V0_9 => format!("0.9.{}", v0_9::PATCH),
        }
    }

    /// The contract's text.
    pub(super) fn wit(self) -> &'static str {
        match self {
            Self::V0_9 => v0_9::WIT,
        }
    }
}

/// The texts of all versions, on which compiled code depends.
pub(super) fn wits() -> String {
    Version::V0_9.wit().to_owned()
}

/// Adds what guests of all versions may import.
pub(super) fn add_to_linker<T>(linker: &mut Linker<T>) -> wasmtime::Result<()>
where
    T: host::Host + types::Host + usage::Host + 'static,
{
    v0_9::Policy::add_to_linker::<T, HasSelf<T>>(linker, |state| state)
}

/// The exports of a running guest.
pub(super) enum Exports {
    V0_9(v0_9::Exports),
}

impl Exports {
    pub(super) fn of<T: 'static>(
        label: &Label,
        running: &Instance,
        store: &mut Store<T>,
    ) -> Result<Self, Failure> {
        match label.version {
            Version::V0_9 => v0_9::Exports::of(&label.handler(), running, store).map(Self::V0_9),
        }
    }

    /// Calls `configure` with the configuration as JSON.
    pub(super) fn configure<T: 'static>(
        &self,
        store: &mut Store<T>,
        config: &str,
    ) -> wasmtime::Result<Result<types::Manifest, Vec<types::Mistake>>> {
        match self {
            Self::V0_9(exports) => exports.configure(store, config),
        }
    }

    /// Calls `decide` with the names and values of facts.
    pub(super) fn decide<T: 'static>(
        &self,
        store: &mut Store<T>,
        facts: &[(&str, &str)],
    ) -> wasmtime::Result<Result<types::Decision, String>> {
        match self {
            Self::V0_9(exports) => exports.decide(store, facts),
        }
    }

    /// Calls `settle` with the memo and how the request ended.
    pub(super) fn settle<T: 'static>(
        &self,
        store: &mut Store<T>,
        memo: &str,
        view: &types::ResponseView,
    ) -> wasmtime::Result<Result<types::Settlement, String>> {
        match self {
            Self::V0_9(exports) => exports.settle(store, memo, view),
        }
    }
}

/// An exported function of a guest.
fn function<T, P, R>(
    handler: &str,
    running: &Instance,
    store: &mut Store<T>,
    name: &str,
) -> Result<TypedFunc<P, R>, Failure>
where
    T: 'static,
    P: ComponentNamedList + Lower,
    R: ComponentNamedList + Lift,
{
    let missing = || {
        let text = format!("no export `{handler}` `{name}`");
        Failure::new(super::error::Cause::Answer, &text)
    };
    let (_, interface) = running.get_export(&mut *store, None, handler).ok_or_else(missing)?;
    let (_, function) =
        running.get_export(&mut *store, Some(&interface), name).ok_or_else(missing)?;
    Ok(running.get_typed_func(store, function)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(export: &str) -> Result<Label, (String, String)> {
        Label::of([export].into_iter())
    }

    #[test]
    fn a_guest_of_any_patch_is_served_under_its_own_label() {
        for (export, handler) in [
            ("weir:policy/handler@0.9.0", "weir:policy/handler@0.9.0"),
            ("weir:policy/handler@0.9.17#decide", "weir:policy/handler@0.9.17"),
        ] {
            let label = label(export).unwrap();
            assert_eq!((label.version, label.handler().as_str()), (Version::V0_9, handler));
            let (_, number) = handler.split_once('@').unwrap();
            assert!(label.wit().starts_with(&format!("package weir:policy@{number};\n")));
            assert!(label.has_import(&format!("weir:policy/host@{number}")));
            assert!(!label.has_import(&format!("weir:policy/handler@{number}")));
            assert!(!label.has_import("weir:policy/host@0.8.0"));
        }
        assert!(v0_9::WIT.starts_with(&format!("package weir:policy@{};\n", Version::V0_9.full())));
    }

    #[test]
    fn a_guest_of_another_version_is_refused_with_what_to_do() {
        for text in ["1.0.0", "1.0.1", "0.1.0", "0.10.0", "0.9", "0.9.x", "0.90.1", "", "9"] {
            let (found, expected) = label(&format!("weir:policy/handler@{text}")).unwrap_err();
            assert_eq!(found, format!("a guest of `weir:policy@{text}`"));
            assert!(expected.contains("build it again with the SDK of this Weir"), "{expected}");
        }
        let (found, _) = label("other:policy/handler@0.9.0").unwrap_err();
        assert_eq!(found, "no export `weir:policy/handler@0.9.0`");
    }
}
