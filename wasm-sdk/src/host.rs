//! What the proxy offers a policy: its log, the time, and checks of signatures. On the host, where
//! tests run, stand-ins.

use crate::LocalTime;

pub use crate::bindings::weir::policy::host::{RsaKey, VerifyingKey};

/// The level of a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the log level of that name")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Writes a line to the proxy's log. Each call may write a few lines of limited length; further
/// lines are counted, not written. `weir policy test` and `inspect` show warnings and errors alone.
pub fn log(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    {
        use crate::bindings::weir::policy::host;
        let level = match level {
            Level::Debug => host::Level::Debug,
            Level::Info => host::Level::Info,
            Level::Warn => host::Level::Warn,
            Level::Error => host::Level::Error,
        };
        host::log(level, message);
    }
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {message}");
}

/// Milliseconds since 1970, constant throughout one call: for choosing (office hours), never for
/// counting.
///
/// On the host it is what [`testing::set_now_ms`](crate::testing::set_now_ms) has set, or 0.
#[must_use]
pub fn now_ms() -> u64 {
    #[cfg(target_arch = "wasm32")]
    return crate::bindings::weir::policy::host::now_ms();
    #[cfg(not(target_arch = "wasm32"))]
    return crate::testing::now_ms();
}

/// What clocks show in a time zone of the IANA database, such as `Europe/Berlin`, at [`now_ms`].
/// `None` if there is no such zone.
///
/// On the host it is what [`testing::set_local_time`](crate::testing::set_local_time) has set, or
/// `None`.
#[must_use]
pub fn local_time(zone: &str) -> Option<LocalTime> {
    #[cfg(target_arch = "wasm32")]
    return crate::bindings::weir::policy::host::local_time(zone);
    #[cfg(not(target_arch = "wasm32"))]
    return crate::testing::local_time(zone);
}

/// Whether `signature` is the key's signature of `message`. A malformed key or signature is a wrong
/// one. One call of a policy may verify 16 signatures.
///
/// On the host it is what [`testing::set_verifier`](crate::testing::set_verifier) has set, or
/// `false`.
#[must_use]
pub fn verify(key: &VerifyingKey, message: &[u8], signature: &[u8]) -> bool {
    #[cfg(target_arch = "wasm32")]
    return crate::bindings::weir::policy::host::verify(key, message, signature);
    #[cfg(not(target_arch = "wasm32"))]
    return crate::testing::verify(key, message, signature);
}
