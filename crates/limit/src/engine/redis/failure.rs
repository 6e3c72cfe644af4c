//! What an error of Redis or of the connection means: whether anything ran, and what to do next.
//! Only this module reads error codes.

use std::sync::LazyLock;

use ::redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::clock::LogThrottle;
use crate::engine::{Cause, EngineError, Execution, script_texts};

/// The code of the reply to a call whose script of the operator failed: `lua/driver/frame.lua`.
const SCRIPT_FAILED: &str = "WEIRSCRIPT";
/// Log lines per second about other errors of scripts, over all workers.
const LINES_PER_SECOND_MAX: u32 = 4;

static LOG: LazyLock<LogThrottle> = LazyLock::new(|| LogThrottle::at_most(LINES_PER_SECOND_MAX));

/// A part of what Redis answers to `CLUSTER` when it runs without `cluster-enabled`.
const NO_CLUSTER: &str = "cluster support disabled";
/// How the answer of Redis 7.0 begins when a script runs a command that the user may not. It has no
/// code of its own; later versions say `NOPERM`.
const NO_COMMAND: &str = "The user executing the script ";

/// What to do after an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ErrorAction {
    /// The server does not have the script: send its text.
    SendText,
    /// Nothing ran: another node owns the slot now. The host may be empty.
    Moved { host: String, port: String },
    /// Nothing ran: send this command to that node, and the next one to this node again.
    Ask { host: String, port: String },
    /// Nothing ran: some of the keys have moved to another node, and the others will.
    WaitForSlot,
    /// Nothing ran: the node can't serve now.
    WaitForNode,
    /// Nothing ran: the node is no longer a master.
    Demoted,
    /// Give up.
    Fail(EngineError),
}

pub(super) fn next(error: &RedisError) -> ErrorAction {
    let unclear = ErrorAction::Fail(EngineError { cause: Cause::Cluster, ran: Execution::No });
    let redirect = || {
        let (address, _) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        Some((host.to_owned(), port.to_owned()))
    };
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoScript) => ErrorAction::SendText,
        ErrorKind::Server(ServerErrorKind::Moved) => {
            redirect().map_or(unclear, |(host, port)| ErrorAction::Moved { host, port })
        }
        ErrorKind::Server(ServerErrorKind::Ask) => {
            redirect().map_or(unclear, |(host, port)| ErrorAction::Ask { host, port })
        }
        ErrorKind::Server(ServerErrorKind::TryAgain) => ErrorAction::WaitForSlot,
        // Without an owner of this slot: the node may serve others.
        ErrorKind::Server(ServerErrorKind::ClusterDown)
            if error.detail().is_some_and(|detail| detail.contains("Hash slot not served")) =>
        {
            unclear
        }
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
            ErrorAction::Demoted
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown) => {
            ErrorAction::WaitForNode
        }
        _ => ErrorAction::Fail(engine_error(error)),
    }
}

/// The cause of an error that is not retried, and whether the command may have run.
pub(super) fn engine_error(error: &RedisError) -> EngineError {
    known(error).unwrap_or_else(|| {
        if let Some(held_back) = LOG.due() {
            tracing::error!(%error, held_back, "Redis answered a script with an error");
        }
        EngineError { cause: Cause::Script, ran: Execution::Unknown }
    })
}

/// Why a node does not greet a new connection, and what it says. No script has run on it: what is
/// not known, such as too many clients, is about the connection.
pub(super) fn greeting(error: &RedisError) -> (Cause, String) {
    let cause = known(error).map_or(Cause::Connection, |error| error.cause);
    let is_unknown = error.detail().is_some_and(|detail| detail.contains("unknown command"));
    let hint = match error.code() {
        Some("NOPROTO") => "; it has to be Redis 7.0 or later",
        _ if is_unknown => "; is it older than Redis 7.0, or is the command disabled?",
        _ => "",
    };
    (cause, format!("{error}{hint}"))
}

/// The same, of an error with a known meaning.
fn known(error: &RedisError) -> Option<EngineError> {
    let not_run = |cause| EngineError { cause, ran: Execution::No };
    // Redis checks these before it runs a script that begins with `#!lua`: see
    // `scriptPrepareForRun`.
    match error.code() {
        Some("OOM") => return Some(not_run(Cause::OutOfMemory)),
        Some("NOREPLICAS") => return Some(not_run(Cause::NoReplicas)),
        Some("BUSY") => return Some(not_run(Cause::Busy)),
        Some("NOPERM" | "NOAUTH" | "WRONGPASS") => return Some(not_run(Cause::NoPermission)),
        Some("MISCONF") => return Some(not_run(Cause::Misconfigured)),
        // A take or a look then ends before it writes. A give-back is another matter: see
        // `Redis::give_back`.
        Some(SCRIPT_FAILED) => {
            let (script, why) =
                error.detail().unwrap_or_default().split_once(' ').unwrap_or_default();
            script_texts::log_failure(script, why);
            return Some(not_run(Cause::Script));
        }
        Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN") => return Some(not_run(Cause::Cluster)),
        Some("LOADING") => return Some(not_run(Cause::Loading)),
        Some("READONLY" | "MASTERDOWN") => return Some(not_run(Cause::Replica)),
        // Commands of the script that came before may have run.
        Some("ERR") if error.detail().is_some_and(|detail| detail.starts_with(NO_COMMAND)) => {
            return Some(EngineError { cause: Cause::NoPermission, ran: Execution::Unknown });
        }
        _ => {}
    }
    Some(match error.kind() {
        _ if error.detail().is_some_and(|detail| detail.contains(NO_CLUSTER)) => {
            not_run(Cause::NoCluster)
        }
        ErrorKind::AuthenticationFailed => not_run(Cause::NoPermission),
        // redis-rs found no node to send the command to.
        ErrorKind::ClusterConnectionNotFound => not_run(Cause::Connection),
        _ if error.is_connection_refusal() => not_run(Cause::Connection),
        _ if error.is_timeout() => EngineError { cause: Cause::Timeout, ran: Execution::Unknown },
        ErrorKind::Io | ErrorKind::Parse => {
            EngineError { cause: Cause::Connection, ran: Execution::Unknown }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> RedisError {
        ::redis::parse_redis_value(line.as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn answers_that_prove_that_nothing_ran_are_followed() {
        for line in ["-LOADING x\r\n", "-CLUSTERDOWN x\r\n"] {
            assert_eq!(next(&answer(line)), ErrorAction::WaitForNode, "{line}");
        }
        for line in ["-READONLY x\r\n", "-MASTERDOWN x\r\n"] {
            assert_eq!(next(&answer(line)), ErrorAction::Demoted, "{line}");
        }
        assert_eq!(next(&answer("-TRYAGAIN x\r\n")), ErrorAction::WaitForSlot);
        let unserved = EngineError { cause: Cause::Cluster, ran: Execution::No };
        assert_eq!(
            next(&answer("-CLUSTERDOWN Hash slot not served\r\n")),
            ErrorAction::Fail(unserved),
            "the node serves others"
        );
        let to = |host: &str, port: &str| (host.to_owned(), port.to_owned());
        for (address, (host, port)) in
            [("a:1", to("a", "1")), ("::1:2", to("::1", "2")), (":3", to("", "3"))]
        {
            let moved = ErrorAction::Moved { host: host.clone(), port: port.clone() };
            assert_eq!(next(&answer(&format!("-MOVED 1 {address}\r\n"))), moved);
            assert_eq!(
                next(&answer(&format!("-ASK 1 {address}\r\n"))),
                ErrorAction::Ask { host, port }
            );
        }
        assert_eq!(next(&answer("-NOSCRIPT x\r\n")), ErrorAction::SendText);
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
            ("-ERR This instance has cluster support disabled\r\n", Cause::NoCluster),
            ("-WEIRSCRIPT lockout lockout.lua:3: not today\r\n", Cause::Script),
        ] {
            assert_eq!(
                next(&answer(line)),
                ErrorAction::Fail(EngineError { cause, ran: Execution::No }),
                "{line}"
            );
        }
    }

    #[test]
    fn what_a_node_can_not_do_now_has_a_cause_of_its_own() {
        for (line, cause) in [
            ("-LOADING x\r\n", Cause::Loading),
            ("-READONLY x\r\n", Cause::Replica),
            ("-MASTERDOWN x\r\n", Cause::Replica),
            ("-CLUSTERDOWN x\r\n", Cause::Cluster),
        ] {
            let expected = EngineError { cause, ran: Execution::No };
            assert_eq!(engine_error(&answer(line)), expected, "{line}");
        }
    }

    #[test]
    fn a_node_that_does_not_greet_is_not_about_a_script() {
        for (line, cause, told) in [
            ("-ERR max number of clients reached\r\n", Cause::Connection, "max number of clients"),
            ("-DENIED Redis is running in protected mode\r\n", Cause::Connection, "protected mode"),
            ("-ERR unknown command 'HELLO'\r\n", Cause::Connection, "older than Redis 7.0"),
            ("-NOPROTO unsupported protocol version\r\n", Cause::Connection, "Redis 7.0 or later"),
            ("-WRONGPASS x\r\n", Cause::NoPermission, "x"),
            ("-LOADING x\r\n", Cause::Loading, "Loading"),
        ] {
            let (found, why) = greeting(&answer(line));
            assert!(found == cause && why.contains(told), "{line}: {found:?}, {why}");
        }
    }

    #[test]
    fn a_command_that_a_script_may_not_run_is_about_permissions() {
        let refused = EngineError { cause: Cause::NoPermission, ran: Execution::Unknown };
        let line = "-ERR The user executing the script can't run this command or subcommand \
                    script: 1, on @user_script:9.\r\n";
        assert_eq!(next(&answer(line)), ErrorAction::Fail(refused));
        let said = "-ERR user_script:1: The user executing the script is mine\r\n";
        let failed = EngineError { cause: Cause::Script, ran: Execution::Unknown };
        assert_eq!(next(&answer(said)), ErrorAction::Fail(failed), "an operator's own words");
    }

    #[test]
    fn a_cut_connection_and_a_scripts_error_may_have_run() {
        let cut = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(
            next(&cut),
            ErrorAction::Fail(EngineError { cause: Cause::Connection, ran: Execution::Unknown })
        );
        let late = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!(
            next(&late),
            ErrorAction::Fail(EngineError { cause: Cause::Timeout, ran: Execution::Unknown })
        );
        assert_eq!(
            next(&answer("-ERR user_script:1: x\r\n")),
            ErrorAction::Fail(EngineError { cause: Cause::Script, ran: Execution::Unknown })
        );
    }
}
