//! The loop that keeps one certificate: ordered if it is missing, renewed in time, and tried again
//! ever more seldom while that fails.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use instant_acme::CertificateIdentifier;
use tokio::time::sleep;
use weir_clock::Clock;

use crate::account;
use crate::authority::Authority;
use crate::client::Client;
use crate::due::{Issued, Suggestion};
use crate::error::OrderError;
use crate::folder::{self, Turn};
use crate::journal::Journal;
use crate::order::Wanted;

/// The longest time between two looks at the file, since the clock may be set and another process
/// may have written it.
const LOOK: Duration = Duration::from_secs(60);
/// The shortest.
const LOOK_MIN: Duration = Duration::from_millis(500);
/// How long to wait for another process that orders.
const TURN: Duration = Duration::from_secs(2);
/// How often the authority is asked when a certificate should be renewed, whatever it says, in
/// seconds; and how soon again if it says nothing (RFC 9773, 4.3).
const ASK_MIN_S: i64 = 3_600;
const ASK_MAX_S: i64 = 86_400;
const ASK_AGAIN_S: i64 = 6 * 3_600;

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

/// What is new of a certificate.
#[derive(Debug)]
pub enum Event {
    /// An order has ended.
    Ordered(Result<(), OrderError>),
    /// The file holds another certificate than before, which somebody else has written.
    Replaced,
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

/// What is known between two looks.
#[derive(Default)]
struct Known {
    journal: Journal,
    /// Whether the journal was in its file when that was last looked at or written.
    is_written: bool,
    renewal: Option<Renewal>,
    /// When the certificate in the file expires: another certificate has another end.
    seen: Option<Option<i64>>,
}

/// When the authority would like a certificate to be renewed.
struct Renewal {
    of: CertificateIdentifier<'static>,
    /// When, in Unix seconds. None if it says nothing about that.
    suggested_s: Option<i64>,
    /// When to ask again, in Unix seconds.
    ask_s: i64,
}

impl Keeper {
    /// Keeps the certificate for these names in this file, which is the authority's
    /// [`certificate_file`](Authority::certificate_file) for them. Does nothing until
    /// [`run`](Self::run).
    #[must_use]
    pub fn new(authority: Arc<Authority>, names: Vec<String>, file: PathBuf, clock: Clock) -> Self {
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

    /// Keeps the certificate, for ever, and reports what is new.
    pub async fn run(&self, report: impl Fn(&Self, Event)) {
        let mut known = Known::default();
        loop {
            let pause = self.look(&mut known, &report).await;
            sleep(pause.clamp(LOOK_MIN, LOOK)).await;
        }
    }

    fn now_s(&self) -> i64 {
        self.clock.wall_us() / 1_000_000
    }

    /// Looks whether it is time, and orders if it is. Returns how long to wait.
    async fn look(&self, known: &mut Known, report: &impl Fn(&Self, Event)) -> Duration {
        let issued = self.read(known, report);
        let renew_s = match &issued {
            None => None,
            Some(issued) => Some(self.renew_s(issued, &mut known.renewal).await),
        };
        self.note(issued.as_ref(), renew_s, &known.journal);
        let due_s = known.journal.due_s(self.now_s(), issued.as_ref(), renew_s);
        if due_s > self.now_s() {
            let pause_s = due_s.saturating_sub(self.now_s());
            return Duration::from_secs(u64::try_from(pause_s).unwrap_or_default());
        }
        let result = match Turn::take(&self.authority.folder) {
            Ok(None) => return TURN,
            Ok(Some(turn)) => {
                // Another process may have had the turn just before.
                let now = self.read(known, report);
                let changed = now.as_ref().map(|one| one.expires_s)
                    != issued.as_ref().map(|one| one.expires_s);
                if changed || known.journal.due_s(self.now_s(), now.as_ref(), renew_s) > due_s {
                    return Duration::ZERO;
                }
                let result = self.order(issued, known).await;
                drop(turn);
                result
            }
            Err(error) => {
                let error = OrderError::folder(&self.authority.folder, &error);
                known.journal.begin(self.now_s(), issued.as_ref());
                known.journal.fail(self.now_s(), &error, None);
                Err(error)
            }
        };
        let issued = Issued::read(&self.file);
        known.seen = Some(issued.as_ref().map(|one| one.expires_s));
        self.note(issued.as_ref(), issued.as_ref().map(|one| one.renew_s), &known.journal);
        report(self, Event::Ordered(result));
        Duration::ZERO
    }

    /// Reads the files again. Another process may have written them, and ours may not have been
    /// written: the later time to try again counts. Who removes the file wants another try.
    fn read(&self, known: &mut Known, report: &impl Fn(&Self, Event)) -> Option<Issued> {
        let issued = Issued::read(&self.file);
        let journal = Journal::read(&self.file);
        let is_written = folder::journal_file(&self.file).exists();
        if std::mem::replace(&mut known.is_written, is_written) && !is_written {
            known.journal = Journal::default();
        }
        if journal.issued_s > known.journal.issued_s {
            // It was issued to another process, whatever ours came to.
            known.journal = journal;
        } else if journal.again_s.is_some() {
            let again_s = journal.again_s.max(known.journal.again_s);
            known.journal = if journal.again_s < again_s { known.journal.clone() } else { journal };
        }
        let expires_s = issued.as_ref().map(|one| one.expires_s);
        if known.seen.replace(expires_s).is_some_and(|before| before != expires_s) {
            report(self, Event::Replaced);
        }
        issued
    }

    async fn order(&self, issued: Option<Issued>, known: &mut Known) -> Result<(), OrderError> {
        let journal = &mut known.journal;
        let unproven = journal.unproven;
        journal.directory = Some(self.authority.directory.clone());
        journal.begin(self.now_s(), issued.as_ref());
        let client = self.client();
        // What can't be written here would be lost after it was issued.
        let written = journal.write(&self.file);
        let (result, asked_s) = match (written, client) {
            (Err(error), _) => (Err(OrderError::folder(&self.authority.folder, &error)), None),
            (Ok(()), Err(error)) => (Err(error), None),
            (Ok(()), Ok(client)) => {
                let replaces = replaced(issued, known.renewal.as_ref(), self.now_s());
                let (authority, names, file) = (&*self.authority, &*self.names, &*self.file);
                let wanted = Wanted { authority, names, file, replaces, unproven };
                (wanted.order(&client).await, client.take_wait_s())
            }
        };
        match &result {
            Ok(()) => journal.succeed(self.now_s()),
            Err(error) => journal.fail(self.now_s(), error, asked_s),
        }
        let written = journal.write(&self.file);
        known.is_written = written.is_ok();
        if let Err(error) = written {
            tracing::warn!(%error, file = %self.file.display(), "an order can't be noted beside it");
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
    async fn renew_s(&self, issued: &Issued, renewal: &mut Option<Renewal>) -> i64 {
        let Some(identifier) = &issued.identifier else { return issued.renew_s };
        let current = renewal.as_ref().filter(|known| known.of == *identifier);
        let before_s = current.and_then(|known| known.suggested_s);
        if current.is_none_or(|known| known.ask_s <= self.now_s()) {
            let now_s = self.now_s();
            let (suggested_s, wait_s) = match self.ask(identifier).await {
                Ok((suggested_s, wait_s)) => (Some(suggested_s), wait_s),
                Err(why) => {
                    tracing::debug!(why, file = %self.file.display(), "no renewal information");
                    (before_s, ASK_AGAIN_S)
                }
            };
            let ask_s = now_s.saturating_add(wait_s);
            *renewal = Some(Renewal { of: identifier.clone(), suggested_s, ask_s });
        }
        let suggested_s = renewal.as_ref().and_then(|known| known.suggested_s);
        suggested_s.map_or(issued.renew_s, |suggested_s| suggested_s.min(issued.latest_s()))
    }

    /// Asks the authority when it would like a certificate to be renewed (RFC 9773), and when to
    /// ask again.
    async fn ask(&self, identifier: &CertificateIdentifier<'static>) -> Result<(i64, i64), String> {
        if !self.authority.account_file().exists() {
            return Err("no account".to_owned());
        }
        let client = self.client().map_err(|error| error.to_string())?;
        let account = account::of(&self.authority, &client).await;
        let account = account.map_err(|error| error.to_string())?;
        let (info, wait) =
            account.renewal_info(identifier).await.map_err(|error| error.to_string())?;
        let wait_s = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX).clamp(ASK_MIN_S, ASK_MAX_S);
        Ok((Suggestion::of(&info, fastrand::f64()).renew_s, wait_s))
    }

    fn note(&self, issued: Option<&Issued>, renew_s: Option<i64>, journal: &Journal) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State {
            expires_s: issued.map(|issued| issued.expires_s),
            renew_s,
            error: journal.error.clone(),
            again_s: journal.again_s,
        };
    }
}

/// What an order is to replace. Only an authority that suggests times knows what that means, and
/// it may refuse to replace what has expired.
fn replaced(
    issued: Option<Issued>,
    renewal: Option<&Renewal>,
    now_s: i64,
) -> Option<CertificateIdentifier<'static>> {
    let suggests = renewal.is_some_and(|of| of.suggested_s.is_some());
    issued.filter(|issued| suggests && issued.expires_s > now_s)?.identifier
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(folder: &std::path::Path) -> Keeper {
        let authority = Arc::new(Authority::new("https://a.example/dir", folder));
        let clock = Clock::virtual_at(1_800_000_000_000_000);
        let names = vec!["a.example".to_owned()];
        let file = authority.certificate_file(&names);
        Keeper::new(authority, names, file, clock)
    }

    #[test]
    fn a_failure_is_forgotten_when_its_file_is_removed_and_kept_if_there_never_was_one() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = keeper(folder.path());
        let mut known = Known::default();
        known.journal.begin(keeper.now_s(), None);
        let begun = known.journal.clone();
        // The disk is full.
        keeper.read(&mut known, &|_, _| {});
        assert_eq!(known.journal, begun);
        begun.write(keeper.file()).unwrap();
        keeper.read(&mut known, &|_, _| {});
        assert_eq!(known.journal, begun);
        std::fs::remove_file(folder::journal_file(keeper.file())).unwrap();
        keeper.read(&mut known, &|_, _| {});
        assert_eq!(known.journal, Journal::default());
    }

    #[test]
    fn what_another_process_was_issued_ends_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = keeper(folder.path());
        let mut known = Known::default();
        known.journal.begin(keeper.now_s(), None);
        known.journal.fail(keeper.now_s(), &OrderError::Refused("it is another's".into()), None);
        let mut other = Journal::default();
        other.begin(keeper.now_s(), None);
        other.succeed(keeper.now_s());
        other.write(keeper.file()).unwrap();
        keeper.read(&mut known, &|_, _| {});
        assert_eq!(known.journal, other);
    }

    #[test]
    fn what_has_expired_is_not_replaced_nor_anything_at_an_authority_that_suggests_no_time() {
        let of: CertificateIdentifier<'_> = serde_json::from_str("\"aki.serial\"").unwrap();
        let of = of.into_owned();
        let replaced = |suggested_s, now_s| {
            let identifier = Some(of.clone());
            let issued =
                Issued { names: Vec::new(), expires_s: 9, life_s: 9, renew_s: 6, identifier };
            let renewal = Renewal { of: of.clone(), suggested_s, ask_s: 0 };
            super::replaced(Some(issued), Some(&renewal), now_s).is_some()
        };
        assert!(replaced(Some(6), 8));
        assert!(!replaced(Some(6), 9));
        assert!(!replaced(None, 8));
        assert!(super::replaced(None, None, 8).is_none());
    }
}
