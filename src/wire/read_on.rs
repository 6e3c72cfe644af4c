//! Reads the rest of a body whose reader has gone, because somebody else wants to know what it
//! says.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use super::content::Content;

/// Bodies that are read on at the same time in this process, at most. Others are dropped with their
/// reader.
const READ_ON_MAX: usize = 4_096;

static READ_ON: AtomicUsize = AtomicUsize::new(0);

/// One of the places for bodies that are read on.
pub(super) struct Place(());

/// A place, unless all are taken.
pub(super) fn place() -> Option<Place> {
    let place = Place(());
    (READ_ON.fetch_add(1, Ordering::Relaxed) < READ_ON_MAX).then_some(place)
}

impl Drop for Place {
    fn drop(&mut self) {
        READ_ON.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads `content` to its end, for at most `wait`.
pub(super) async fn read(mut content: Content, wait: Duration, _place: Place) {
    let reading = poll_fn(|cx| {
        loop {
            match ready!(content.poll_fill(cx)) {
                Some(Ok(())) => {}
                None | Some(Err(_)) => return Poll::Ready(()),
            }
            let bytes = content.data().len();
            content.consume(bytes);
            content.end_if_read();
        }
    });
    // What was read by then is all that will be known.
    let _ = tokio::time::timeout(wait, reading).await;
}
