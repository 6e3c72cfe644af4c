//! Tells the author of a policy that it asks for a fact that its manifest does not name. Such a
//! fact is never shown, so the policy would take it for one that the request lacks.
//!
//! Only looked at where a fact was not found. On the host it fails the test; in a guest it is a
//! warning in the log, once for each instance, which `weir policy test` and `inspect` show.

use std::cell::RefCell;

use crate::Manifest;

/// Facts that are shown whatever the manifest names: what meters have read.
const ALWAYS: &str = "usage.";

thread_local! {
    /// What the manifest names; `None` while nothing is checked.
    static NAMED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// The facts that a manifest names.
pub(crate) fn of(manifest: &Manifest) -> Vec<String> {
    [manifest.request_facts.as_slice(), &manifest.response_facts].concat()
}

/// Sets what may be asked for from now on.
pub(crate) fn set(names: Option<Vec<String>>) {
    NAMED.with(|named| *named.borrow_mut() = names);
}

/// Checks the name of a fact that was not found.
#[cold]
pub(crate) fn check(name: &str) {
    let unnamed = NAMED.with(|named| {
        let named = named.borrow();
        named.as_ref().is_some_and(|names| !names.iter().any(|known| known == name))
    });
    if unnamed && !name.starts_with(ALWAYS) {
        tell(name);
    }
}

/// Fails the test that asks.
#[cfg(not(target_arch = "wasm32"))]
#[expect(clippy::panic, reason = "only in a policy's own tests, whose author is to read it")]
fn tell(name: &str) {
    panic!(
        "the policy asks for the fact `{name}`, which its manifest does not name: the proxy never shows it"
    );
}

/// Warns, and is silent from then on.
#[cfg(target_arch = "wasm32")]
fn tell(name: &str) {
    set(None);
    let message = format!(
        "the policy asks for the fact `{name}`, which its manifest does not name: it is never shown"
    );
    crate::log(crate::Level::Warn, &message);
}
