//! Counts the bytes that the process buffers: input that was read but not used, output that was
//! written but not sent, and what peers may have sent into their windows. Knows nothing about what
//! the bytes are.
//!
//! Each worker counts on its own and adds its count to the shared total in steps, so that the total
//! is written rarely. The total is off by less than one step per worker.

use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

use bytes::Bytes;

/// How many bytes a worker counts before it updates the total.
const STEP_BYTES: usize = 32 << 10;
/// Smaller pieces are not counted. There is at most one in each buffer.
const PIECE_BYTES_MIN: usize = 1 << 10;

/// Alone on its cache line, since each request reads it.
#[repr(align(128))]
struct Total(AtomicIsize);

static TOTAL: Total = Total(AtomicIsize::new(0));

thread_local! {
    /// Not yet added to the total. Negative if bytes counted by another thread were released here.
    static COUNTED: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that are buffered now, over all workers. Those counted by a worker since its last step are
/// missing.
#[must_use]
#[inline]
pub fn buffered_bytes() -> usize {
    usize::try_from(TOTAL.0.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Counts `bytes` more.
pub(crate) fn hold(bytes: usize) {
    count(signed(bytes));
}

/// Counts `bytes` less.
pub(crate) fn release(bytes: usize) {
    count(-signed(bytes));
}

/// No allocation is larger than `isize::MAX`.
fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

fn count(bytes: isize) {
    COUNTED.with(|counted| {
        let now = counted.get().saturating_add(bytes);
        if now.unsigned_abs() < STEP_BYTES {
            counted.set(now);
        } else {
            TOTAL.0.fetch_add(now, Ordering::Relaxed);
            counted.set(0);
        }
    });
}

/// A number of bytes that is counted until it is dropped.
#[derive(Debug, Default)]
pub struct Charge(usize);

impl Charge {
    /// A charge of no bytes.
    #[must_use]
    #[inline]
    pub const fn nothing() -> Self {
        Self(0)
    }

    /// A charge of this many bytes.
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        hold(bytes);
        Self(bytes)
    }

    /// Changes the charge.
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.0 {
            count(signed(bytes) - signed(std::mem::replace(&mut self.0, bytes)));
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.0 > 0 {
            release(self.0);
        }
    }
}

/// The same bytes, counted until the last slice of them is dropped.
#[must_use]
pub fn counted(bytes: Bytes) -> Bytes {
    if bytes.len() < PIECE_BYTES_MIN {
        return bytes;
    }
    Bytes::from_owner(CountedBytes { _charge: Charge::of(bytes.len()), bytes })
}

struct CountedBytes {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for CountedBytes {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::wire::Body;
    use crate::wire::tests::{CHUNKED, incoming};

    /// What this thread has counted since its last step. The total is shared with other tests.
    fn counted_here() -> isize {
        COUNTED.with(Cell::get)
    }

    #[test]
    fn held_bytes_are_counted_until_they_are_released() {
        let before = counted_here();
        let mut charge = Charge::of(1_000);
        assert_eq!(counted_here() - before, 1_000);
        charge.set(300);
        assert_eq!(counted_here() - before, 300);
        drop(charge);
        assert_eq!(counted_here(), before);
        let piece = counted(Bytes::from(vec![1; 5_000]));
        let half = piece.slice(..2_500);
        drop(piece);
        assert_eq!(counted_here() - before, 5_000, "a part holds the whole");
        drop(half);
        assert_eq!(counted_here(), before);
        drop(counted(Bytes::from_static(b"small")));
        assert_eq!(counted_here(), before);
    }

    #[tokio::test]
    async fn a_stream_counts_as_its_window_while_nobody_waits_for_its_next_piece() {
        let (mut client, incoming) = incoming(CHUNKED).await;
        let before = counted_here();
        let mut body = Body::incoming(incoming).window(20_000);
        assert_eq!(counted_here() - before, 20_000, "it may have come already");
        assert!(poll_fn(|cx| Poll::Ready(body.poll_fill(cx).is_pending())).await);
        assert_eq!(counted_here(), before, "nothing has");
        client.write_all(b"3\r\nabc\r\n").await.unwrap();
        assert!(poll_fn(|cx| body.poll_fill(cx)).await.unwrap().is_ok());
        assert_eq!(counted_here() - before, 20_000, "more may have come");
        drop(body);
        assert_eq!(counted_here(), before);
    }

    #[test]
    fn it_is_handed_on_in_steps_and_may_end_on_another_thread() {
        let charge = Charge::of(64 * STEP_BYTES);
        assert_eq!(counted_here(), 0);
        // Other tests buffer far less.
        assert!(buffered_bytes() >= 60 * STEP_BYTES);
        std::thread::spawn(move || drop(charge)).join().unwrap();
        assert!(buffered_bytes() < 60 * STEP_BYTES);
    }
}
