//! What is answered before a route is looked for: what an authority asks for that checks a name
//! (RFC 8555, 8.3), and requests that should have come over https.

use http::Method;

use super::Received;
use super::target::Target;
use crate::listen::Peer;
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::settings::Unrouted;
use tokio::sync::Semaphore;
use weir_acme::{Challenges, HTTP_PREFIX};

/// Maximum number of answers that are looked for at once. An authority asks from a handful of
/// places.
const READING_MAX: usize = 32;

static READING: Semaphore = Semaphore::const_new(READING_MAX);

/// The answer, if the request is one of these.
///
/// # Errors
/// It is: this is the answer.
pub(in crate::proxy) async fn answer(
    unrouted: &Unrouted,
    target: Target<'_>,
    received: &Received,
    peer: &Peer,
) -> Result<(), Refusal> {
    if let Some(challenges) = &unrouted.challenges
        && matches!(received.method, Method::GET | Method::HEAD)
        && let Some(token) = target.path.strip_prefix(HTTP_PREFIX)
    {
        // The folder may be on a slow disk, and anybody may ask for this path: a few at a time.
        if let Ok(permit) = READING.try_acquire()
            && Challenges::is_token(token)
        {
            let (challenges, token) = (challenges.clone(), token.to_owned());
            let read = tokio::task::spawn_blocking(move || challenges.authorization(&token)).await;
            drop(permit);
            if let Ok(Some(answer)) = read {
                return Err(Refusal::Challenge(answer));
            }
        }
    }
    match unrouted.https_ports.get(peer.listener) {
        // It may have come over https to a proxy in front.
        Some(Some(port)) if !received.client.https => Err(to_https(target, *port)),
        _ => Ok(()),
    }
}

/// The same host and path over https.
fn to_https(target: Target<'_>, port: u16) -> Refusal {
    let host = target.authority.host();
    if host.is_empty() {
        return Refusal::BadRequest(Check::Host.wrong("a request without a host"));
    }
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    let query = target.query.map(|query| ["?", query].concat()).unwrap_or_default();
    Refusal::ToHttps(format!("https://{host}{port}{}{query}", target.path))
}
