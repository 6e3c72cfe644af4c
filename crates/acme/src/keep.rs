//! The loop that keeps one certificate: ordered if it is missing, renewed in time, and tried again
//! ever more seldom while that fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use instant_acme::CertificateIdentifier;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use weir_clock::Clock;

use crate::authority::Authority;
use crate::client::Client;
use crate::due::{Issued, Suggestion};
use crate::error::OrderError;
use crate::folder::Turn;
use crate::order::Wanted;
use crate::{account, folder};

/// The longest time between two looks at the file, since the clock may be set and another process
/// may have written it.
const LOOK: Duration = Duration::from_secs(60);
/// The shortest.
const LOOK_MIN: Duration = Duration::from_millis(500);
/// How long to wait for another process that orders.
const TURN: Duration = Duration::from_secs(2);
/// The first pause after a failure, in seconds; each is [`PAUSE_GROWTH`] times as long as the one
/// before, up to [`PAUSE_MAX_S`]. So four tries fit into an hour, where Let's Encrypt allows five
/// that fail.
const PAUSE_FIRST_S: i64 = 120;
const PAUSE_GROWTH: i64 = 3;
const PAUSE_MAX_S: i64 = 6 * 3_600;
/// How often the authority is asked when a certificate should be renewed, whatever it says, in
/// seconds.
const ASK_MIN_S: i64 = 3_600;
const ASK_MAX_S: i64 = 86_400;

/// What an operator wants to know of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// When the certificate in the file expires, in Unix seconds. `None` if there is none.
    pub expires_s: Option<i64>,
    /// When it is to be renewed, in Unix seconds.
    pub renew_s: Option<i64>,
    /// Why the last try failed, if it did.
    pub error: Option<String>,
    /// When it is tried again, in Unix seconds, if the last try failed.
    pub again_s: Option<i64>,
}

/// Keeps one certificate.
#[derive(Debug)]
pub struct Keeper {
    authority: Arc<Authority>,
    names: Vec<String>,
    file: PathBuf,
    clock: Clock,
    state: Mutex<State>,
}

/// The last failure, kept in a file so that a process that is started again does not try at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Failure {
    /// Failures in a row.
    failures: u32,
    /// When to try again, in Unix seconds.
    again_s: i64,
    error: String,
}

impl Keeper {
    /// Does nothing until [`run`](Self::run).
    #[must_use]
    pub fn new(authority: Arc<Authority>, names: Vec<String>, clock: Clock) -> Self {
        let file = authority.certificate_file(&names);
        Self { authority, names, file, clock, state: Mutex::default() }
    }

    /// The names that the certificate is for.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Where it is kept.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The authority that it is from.
    #[must_use]
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// What is known of it now.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the certificate, for ever. Each try is reported: issued, or why not.
    pub async fn run(&self, report: impl Fn(&Self, &Result<(), OrderError>)) {
        let mut suggested = None;
        loop {
            let pause = self.look(&mut suggested, &report).await;
            sleep(pause.clamp(LOOK_MIN, LOOK)).await;
        }
    }

    fn now_s(&self) -> i64 {
        self.clock.wall_us() / 1_000_000
    }

    /// Looks whether it is time, and orders if it is. Returns how long to wait.
    async fn look(
        &self,
        suggested: &mut Option<(CertificateIdentifier<'static>, Suggestion)>,
        report: &impl Fn(&Self, &Result<(), OrderError>),
    ) -> Duration {
        let issued = Issued::read(&self.file);
        let renew_s = match &issued {
            None => None,
            Some(issued) => Some(self.renew_s(issued, suggested).await),
        };
        let failed = Failure::read(&self.file);
        self.note(issued.as_ref(), renew_s, failed.as_ref());
        let due_s = renew_s.unwrap_or(i64::MIN).max(failed.map_or(i64::MIN, |one| one.again_s));
        if due_s > self.now_s() {
            return seconds(due_s.saturating_sub(self.now_s()));
        }
        let result = match Turn::take(&self.authority.folder) {
            Ok(None) => return TURN,
            Ok(Some(turn)) => {
                // Another process may have had the turn just before.
                let read = Issued::read(&self.file);
                if read.as_ref().map(|one| one.expires_s)
                    != issued.as_ref().map(|one| one.expires_s)
                    || Failure::read(&self.file).is_some_and(|one| one.again_s > self.now_s())
                {
                    return Duration::ZERO;
                }
                let result = self.order(issued, suggested.is_some()).await;
                drop(turn);
                result
            }
            Err(error) => Err(OrderError::Folder(error)),
        };
        let (issued, failed) = (Issued::read(&self.file), Failure::read(&self.file));
        self.note(issued.as_ref(), issued.as_ref().map(|one| one.renew_s), failed.as_ref());
        report(self, &result);
        match issued {
            Some(issued) if result.is_ok() && issued.renew_s > self.now_s() => Duration::ZERO,
            // It is due at once, whatever that means; or it has failed, and a folder that can't be
            // written holds no failure either.
            _ => seconds(PAUSE_FIRST_S),
        }
    }

    async fn order(&self, issued: Option<Issued>, is_suggested: bool) -> Result<(), OrderError> {
        let client = self.client()?;
        // Only an authority that suggests times knows what it means to replace a certificate.
        let replaces = issued.and_then(|issued| issued.identifier).filter(|_| is_suggested);
        let wanted = Wanted { authority: &self.authority, names: &self.names, replaces };
        let result = wanted.order(&client).await;
        match &result {
            Ok(()) => folder::remove(&folder::failure_file(&self.file)),
            Err(error) => {
                let failures = Failure::read(&self.file).map_or(0, |before| before.failures);
                let asked_s = client.take_wait_s().and_then(|wait| i64::try_from(wait).ok());
                let pause_s = pause_s(failures).max(asked_s.unwrap_or_default().min(ASK_MAX_S));
                let failure = Failure {
                    failures: failures.saturating_add(1),
                    again_s: self.now_s().saturating_add(jittered(pause_s)),
                    error: error.to_string(),
                };
                failure.write(&self.file);
            }
        }
        result
    }

    fn client(&self) -> Result<Client, OrderError> {
        let config = self.authority.tls.build().map_err(|errors| {
            let why = errors.first().map_or_else(String::new, |error| error.found.clone());
            OrderError::Unreached(format!("TLS to the authority can't be set up: {why}"))
        })?;
        Ok(Client::new(config, self.authority.tls.server_name.clone()))
    }

    /// When a certificate is to be renewed: when the authority suggests it, or by its life.
    async fn renew_s(
        &self,
        issued: &Issued,
        suggested: &mut Option<(CertificateIdentifier<'static>, Suggestion)>,
    ) -> i64 {
        let Some(identifier) = &issued.identifier else { return issued.renew_s };
        if let Some((of, suggestion)) = suggested
            && of == identifier
            && suggestion.ask_s > self.now_s()
        {
            return suggestion.renew_s;
        }
        let before = suggested.take();
        *suggested = match self.ask(identifier).await {
            Ok(suggestion) => Some((identifier.clone(), suggestion)),
            Err(why) => {
                tracing::debug!(why, file = %self.file.display(), "no renewal information");
                // What was suggested before holds until its answer is known.
                before.filter(|(of, _)| of == identifier).map(|(of, suggestion)| {
                    let ask_s = self.now_s().saturating_add(ASK_MIN_S);
                    (of, Suggestion { ask_s, ..suggestion })
                })
            }
        };
        suggested.as_ref().map_or(issued.renew_s, |(_, suggestion)| suggestion.renew_s)
    }

    /// Asks the authority when it would like a certificate to be renewed (RFC 9773).
    async fn ask(&self, identifier: &CertificateIdentifier<'static>) -> Result<Suggestion, String> {
        if !self.authority.account_file().exists() {
            return Err("no account".to_owned());
        }
        let client = self.client().map_err(|error| error.to_string())?;
        let account = account::of(&self.authority, &client).await;
        let account = account.map_err(|error| error.to_string())?;
        let (info, wait) =
            account.renewal_info(identifier).await.map_err(|error| error.to_string())?;
        let wait_s = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX).clamp(ASK_MIN_S, ASK_MAX_S);
        Ok(Suggestion::of(&info, fastrand::f64(), self.now_s().saturating_add(wait_s)))
    }

    fn note(&self, issued: Option<&Issued>, renew_s: Option<i64>, failed: Option<&Failure>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State {
            expires_s: issued.map(|issued| issued.expires_s),
            renew_s,
            error: failed.map(|failed| failed.error.clone()),
            again_s: failed.map(|failed| failed.again_s),
        };
    }
}

impl Failure {
    fn read(certificate: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder::failure_file(certificate)).ok()?).ok()
    }

    fn write(&self, certificate: &Path) {
        let file = folder::failure_file(certificate);
        let written = serde_json::to_vec_pretty(self).map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|bytes| folder::write(&file, &bytes)) {
            tracing::warn!(%error, file = %file.display(), "a failure can't be kept");
        }
    }
}

fn seconds(s: i64) -> Duration {
    Duration::from_secs(u64::try_from(s).unwrap_or_default())
}

/// How long to wait after this many failures in a row and one more.
fn pause_s(failures: u32) -> i64 {
    PAUSE_FIRST_S.saturating_mul(PAUSE_GROWTH.saturating_pow(failures)).min(PAUSE_MAX_S)
}

/// A tenth longer at most, so that many proxies don't ask at the same time.
fn jittered(pause_s: i64) -> i64 {
    pause_s.saturating_add(fastrand::i64(0..=pause_s.max(0) / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_tries_fit_into_an_hour() {
        assert_eq!([0, 1, 2, 3, 4, 99].map(pause_s), [120, 360, 1_080, 3_240, 9_720, 21_600]);
        for _ in 0..100 {
            assert!((120..=132).contains(&jittered(120)));
        }
    }
}
