//! What is answered before a route is looked for: what an authority asks for that checks a name
//! (RFC 8555, 8.3), and requests that should have come over https.

use http::Method;

use super::target::Target;
use crate::listen::Peer;
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::settings::Unrouted;
use weir_acme::HTTP_PREFIX;

/// The answer, if the request is one of these.
///
/// # Errors
/// It is: this is the answer.
pub(in crate::proxy) async fn answer(
    unrouted: &Unrouted,
    target: Target<'_>,
    method: &Method,
    peer: &Peer,
) -> Result<(), Refusal> {
    if let Some(challenges) = &unrouted.challenges
        && matches!(*method, Method::GET | Method::HEAD)
        && let Some(token) = target.path.strip_prefix(HTTP_PREFIX)
    {
        let (challenges, token) = (challenges.clone(), token.to_owned());
        // The folder may be on a slow disk, and anybody may ask for this path.
        let read = tokio::task::spawn_blocking(move || challenges.authorization(&token));
        if let Ok(Some(answer)) = read.await {
            return Err(Refusal::Challenge(answer));
        }
    }
    match unrouted.https_ports.get(peer.listener) {
        Some(Some(port)) => Err(to_https(target, *port)),
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
