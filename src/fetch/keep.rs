//! When documents are fetched, and what becomes of what was fetched. Each document has a task of
//! its own, so that a server that hangs does not hold up the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::{AbortHandle, spawn_blocking, spawn_local};
use tokio::time::sleep;

use super::{Accept, Document, FetchError, FetchResult, Settings, Shared, State, file};
use crate::telemetry::Label as _;

/// Minimum time between two fetches of a document.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The wait before a fetch that failed is repeated the first time. It doubles each time.
const RETRY_FIRST: Duration = Duration::from_secs(2);
/// Maximum of that wait, and so how late a server that is back is noticed. Where a document is
/// fetched more often, that is the maximum.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// A document that is fetched, and its task.
struct RunningFetch {
    document: Arc<Document>,
    task: AbortHandle,
}

/// Fetches until the sender of `documents` is dropped. Has to run within a `LocalSet`.
pub(super) async fn run(
    shared: &Arc<Shared>,
    accept: &Arc<Accept>,
    mut documents: watch::Receiver<Vec<Arc<Document>>>,
) {
    let mut all: Vec<RunningFetch> = Vec::new();
    let one_at_a_time = Arc::new(Mutex::new(()));
    loop {
        let current = documents.borrow_and_update().clone();
        all.retain(|kept| {
            let stays = current.iter().any(|document| Arc::ptr_eq(document, &kept.document));
            if !stays {
                kept.task.abort();
            }
            stays
        });
        for document in current {
            if all.iter().any(|kept| Arc::ptr_eq(&document, &kept.document)) {
                continue;
            }
            let keeper = Keeper {
                shared: Arc::clone(shared),
                accept: Arc::clone(accept),
                one_at_a_time: Arc::clone(&one_at_a_time),
                document: Arc::clone(&document),
            };
            let task = spawn_local(keeper.keep()).abort_handle();
            all.push(RunningFetch { document, task });
        }
        if documents.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps one document up to date.
struct Keeper {
    shared: Arc<Shared>,
    accept: Arc<Accept>,
    /// Held while a document is tried: that takes CPU time and memory.
    one_at_a_time: Arc<Mutex<()>>,
    document: Arc<Document>,
}

impl Keeper {
    async fn keep(self) {
        let every = self.document.settings().every;
        // Proxies that start together do not ask together.
        let mut pause = PAUSE_MIN.mul_f64(fastrand::f64());
        let mut failures = 0;
        loop {
            sleep(pause).await;
            let result = self.refresh().await;
            let before = self.shared.note(&self.document, &result);
            log(&self.document, &before, &result);
            failures = if result.is_ok() { 0 } else { failures + 1 };
            pause = next(every, failures);
        }
    }

    async fn refresh(&self) -> Result<FetchResult, FetchError> {
        let bytes = self.document.fetch().await?;
        let _turn = self.one_at_a_time.lock().await;
        let (document, accept) = (Arc::clone(&self.document), Arc::clone(&self.accept));
        let taken = spawn_blocking(move || take(&document, &bytes, &*accept)).await;
        taken.unwrap_or_else(|_| Err(FetchError::Refused("trying it panicked".to_owned())))
    }
}

/// Writes a document into its file, if it is another one and can be used.
fn take(document: &Document, bytes: &[u8], accept: &Accept) -> Result<FetchResult, FetchError> {
    let path = &document.settings().file;
    if file::holds(path, bytes) {
        return Ok(FetchResult::Unchanged);
    }
    accept(document, bytes).map_err(FetchError::Refused)?;
    file::replace(path, bytes)
        .map_err(|error| FetchError::Unwritten { path: path.clone(), error })?;
    Ok(FetchResult::New)
}

/// How long to wait after this many failures in a row.
fn next(every: Duration, failures: u32) -> Duration {
    let wait = match failures {
        0 => every,
        _ => RETRY_FIRST.saturating_mul(1 << (failures - 1).min(16)).min(RETRY_MAX).min(every),
    };
    jittered(wait)
}

/// A random time between half and all of `wait`, so that many proxies don't ask at the same time,
/// and at least [`PAUSE_MIN`] where it is longer than that.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fastrand::f64() / 2.0).max(wait.min(PAUSE_MIN))
}

/// Logs what is new: another document, a failure for another reason than before, and its end.
fn log(document: &Document, before: &State, result: &Result<FetchResult, FetchError>) {
    let Settings { setting, file, .. } = document.settings();
    let (url, file) = (document.url(), file.display());
    match result {
        Ok(fetched) => {
            if before.error.is_some() {
                tracing::info!(setting, url, "a document can be renewed again");
            }
            if *fetched == FetchResult::New {
                tracing::info!(setting, url, %file, "a new document was fetched");
            }
        }
        Err(failed) => {
            let error = failed.to_string();
            if before.error.as_ref() != Some(&error) {
                let cause = failed.label().label();
                tracing::warn!(
                    setting,
                    url,
                    cause,
                    error,
                    "a document was not renewed: what its file holds stays in use"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded_and_jittered() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        for _ in 0..200 {
            let regular = next(minutes(10), 0);
            assert!(regular >= minutes(5) && regular <= minutes(10), "{regular:?}");
            for (failures, most) in [(1, 2), (2, 4), (3, 8), (5, 32), (6, 60), (7, 60), (999, 60)] {
                let wait = next(minutes(10), failures);
                let most = Duration::from_secs(most);
                assert!(wait >= most / 2 && wait <= most, "{failures}: {wait:?}");
            }
            for failures in [0, 1, 9] {
                assert_eq!(next(PAUSE_MIN, failures), PAUSE_MIN);
            }
            assert!(next(Duration::from_secs(5), 9) <= Duration::from_secs(5));
        }
    }
}
