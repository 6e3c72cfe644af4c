//! Reads what is left of a stream that nobody reads any more, within bounds: a peer that is still
//! sending sees its reply, and not a reset.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;

/// Bytes that are still taken of such a stream, at most.
const LINGER_BYTES_MAX: usize = 256 << 10;
/// For how long.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// Reads `incoming` to its end, or until it is enough, in a task of its own.
pub(super) fn discard(mut incoming: Incoming) {
    let reading = async move {
        let mut bytes = 0;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > LINGER_BYTES_MAX {
                return;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(LINGER_TIME, reading));
}
