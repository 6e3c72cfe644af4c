//! What an error of Redis or of the connection means: whether anything ran, and what to do next.
//! Only this module reads error codes.

use std::time::Duration;

use ::redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::engine::{Cause, EngineError, Ran};

/// Pause before a retry when the server can't serve the slot yet.
const NOT_NOW_WAIT: Duration = Duration::from_millis(5);

/// What to do after an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The server does not have the script: send its text.
    SendText,
    /// Nothing ran; send the command again after this pause.
    Retry(Duration),
    /// Nothing ran; send the command once to this node, after this pause.
    Ask(String, Duration),
    /// Give up.
    Fail(EngineError),
}

pub(super) fn next(error: &RedisError) -> Next {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoScript) => Next::SendText,
        // The cluster connection refreshes its slots before it sends anything more.
        ErrorKind::Server(ServerErrorKind::Moved) => Next::Retry(Duration::ZERO),
        ErrorKind::Server(ServerErrorKind::Ask) => match error.redirect_node() {
            Some((node, _)) => Next::Ask(node.to_owned(), Duration::ZERO),
            None => Next::Retry(NOT_NOW_WAIT),
        },
        ErrorKind::Server(
            ServerErrorKind::TryAgain
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown,
        ) => Next::Retry(NOT_NOW_WAIT),
        _ => Next::Fail(engine_error(error)),
    }
}

/// Whether the error only says that this slot is being migrated, and nothing about the node.
pub(super) fn is_from_migrating_slot(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain))
}

/// The cause of an error that is not retried, and whether the command may have run.
pub(super) fn engine_error(error: &RedisError) -> EngineError {
    let not_run = |cause| EngineError { cause, ran: Ran::No };
    // Redis checks these before it runs a script that begins with `#!lua`: see
    // `scriptPrepareForRun`.
    match error.code() {
        Some("OOM") => return not_run(Cause::OutOfMemory),
        Some("NOREPLICAS") => return not_run(Cause::NoReplicas),
        Some("BUSY") => return not_run(Cause::Busy),
        Some("NOPERM" | "NOAUTH" | "WRONGPASS") => return not_run(Cause::NoPermission),
        Some("MISCONF") => return not_run(Cause::Misconfigured),
        Some(
            "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "LOADING",
        ) => return not_run(Cause::Cluster),
        _ => {}
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => not_run(Cause::NoPermission),
        // redis-rs found no node to send the command to.
        ErrorKind::ClusterConnectionNotFound => not_run(Cause::Connection),
        _ if error.is_connection_refusal() => not_run(Cause::Connection),
        _ if error.is_timeout() => EngineError { cause: Cause::Timeout, ran: Ran::Unknown },
        ErrorKind::Io | ErrorKind::Parse => {
            EngineError { cause: Cause::Connection, ran: Ran::Unknown }
        }
        _ => {
            tracing::error!(%error, "Redis answered a script with an error");
            EngineError { cause: Cause::Script, ran: Ran::Unknown }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> RedisError {
        ::redis::parse_redis_value(line.as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn answers_that_prove_that_nothing_ran_are_followed() {
        for line in [
            "-TRYAGAIN x\r\n",
            "-READONLY x\r\n",
            "-LOADING x\r\n",
            "-CLUSTERDOWN x\r\n",
            "-MASTERDOWN x\r\n",
        ] {
            assert_eq!(next(&answer(line)), Next::Retry(NOT_NOW_WAIT), "{line}");
        }
        assert_eq!(next(&answer("-MOVED 1 a:1\r\n")), Next::Retry(Duration::ZERO));
        assert_eq!(next(&answer("-ASK 1 a:1\r\n")), Next::Ask("a:1".into(), Duration::ZERO));
        assert_eq!(next(&answer("-NOSCRIPT x\r\n")), Next::SendText);
    }

    #[test]
    fn refusals_of_redis_have_their_cause_and_have_not_run() {
        for (line, cause) in [
            ("-OOM x\r\n", Cause::OutOfMemory),
            ("-NOREPLICAS x\r\n", Cause::NoReplicas),
            ("-BUSY x\r\n", Cause::Busy),
            ("-NOPERM x\r\n", Cause::NoPermission),
            ("-NOAUTH x\r\n", Cause::NoPermission),
            ("-MISCONF x\r\n", Cause::Misconfigured),
        ] {
            assert_eq!(
                next(&answer(line)),
                Next::Fail(EngineError { cause, ran: Ran::No }),
                "{line}"
            );
        }
    }

    #[test]
    fn a_cut_connection_and_a_scripts_error_may_have_run() {
        let cut = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(
            next(&cut),
            Next::Fail(EngineError { cause: Cause::Connection, ran: Ran::Unknown })
        );
        let late = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!(
            next(&late),
            Next::Fail(EngineError { cause: Cause::Timeout, ran: Ran::Unknown })
        );
        assert_eq!(
            next(&answer("-ERR user_script:1: x\r\n")),
            Next::Fail(EngineError { cause: Cause::Script, ran: Ran::Unknown })
        );
    }
}
