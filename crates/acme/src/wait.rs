//! Looking again and again whether an authority is done.

use std::time::Duration;

use instant_acme::Error;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::error::OrderError;

/// Time for the authority to look at the answers, and to issue the certificate.
const AUTHORITY_TIME_MAX: Duration = Duration::from_secs(180);
/// The first pause between two looks; each is half as long again as the one before, up to
/// [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Looks until there is something, ever more seldom, for the last time when the authority's time is
/// over. It may ask for longer pauses.
pub(crate) async fn until<T>(
    client: &Client,
    mut look: impl AsyncFnMut() -> Result<Option<T>, Error>,
) -> Result<T, OrderError> {
    let deadline = Instant::now() + AUTHORITY_TIME_MAX;
    let (mut pause, mut asked_s) = (PAUSE_FIRST, None);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(OrderError::Late);
        }
        sleep(within(pause, asked_s, left)).await;
        if let Some(found) = look().await? {
            return Ok(found);
        }
        asked_s = client.take_wait_s();
        pause = longer(pause);
    }
}

fn longer(pause: Duration) -> Duration {
    pause.mul_f32(1.5).min(PAUSE_MAX)
}

/// A pause, as long at least as the authority has asked for, that ends with the time that is left.
fn within(pause: Duration, asked_s: Option<u64>, left: Duration) -> Duration {
    pause.max(asked_s.map_or(Duration::ZERO, Duration::from_secs)).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_never_far_apart_and_the_last_is_at_the_end_of_the_time() {
        let (mut left, mut pause, mut looks) = (AUTHORITY_TIME_MAX, PAUSE_FIRST, 0);
        while !left.is_zero() {
            let now = within(pause, None, left);
            assert!(now <= PAUSE_MAX, "{now:?}");
            (left, pause, looks) = (left - now, longer(pause), looks + 1);
        }
        assert!((20..40).contains(&looks), "{looks}");
    }

    #[test]
    fn an_authority_may_ask_for_longer_pauses_but_not_for_more_time() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(within(second, Some(0), minute), second);
        assert_eq!(within(second, Some(30), minute), Duration::from_secs(30));
        assert_eq!(within(second, Some(u64::MAX), minute), minute);
    }
}
