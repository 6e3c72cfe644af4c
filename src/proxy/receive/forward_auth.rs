//! Forward auth: another proxy asks whether it may pass on a request. The original method, path and
//! host are restored from the fields in which that kind of proxy (`serves` of the listener) sends
//! them, so that routes, policies and limits see the client's request. Knows no route.
//!
//! Only `server.trusted_proxies` may ask, and of the fields that could name a method and a path
//! exactly those of the kind are read: a proxy passes on what its client sends in all others.

use http::{Method, StatusCode};

use super::Received;
use crate::listen::{Peer, Serves};
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::settings::Settings;
use crate::wire::{Fields, Known, Request, Response};

/// The status that a client should get. nginx accepts only 401 and 403 as refusals.
const STATUS_FIELD: &str = "x-weir-status";

/// The fields in which a kind of proxy sends the original request.
struct Places {
    method: &'static str,
    target: &'static str,
    host: Option<&'static str>,
}

/// Of nginx, whose configuration sets them.
const AUTH_REQUEST: Places =
    Places { method: "x-original-method", target: "x-original-uri", host: None };
/// Of Traefik and Caddy.
const FORWARD_AUTH: Places = Places {
    method: "x-forwarded-method",
    target: "x-forwarded-uri",
    host: Some("x-forwarded-host"),
};

/// Restores the original request from an auth request.
///
/// # Errors
/// 400 if whoever asks is not trusted, or does not say what it asks about.
pub(super) fn restore(
    request: &mut Request,
    received: &mut Received,
    peer: &Peer,
    settings: &Settings,
) -> Result<(), Refusal> {
    let serves = settings.serves(peer.listener);
    // Decisions are served elsewhere.
    if matches!(serves, Serves::Requests | Serves::Decisions) {
        return Ok(());
    }
    received.serves = serves;
    // Whether the client speaks gRPC is for the proxy that asks: it looks at the status.
    received.grpc = false;
    if !received.client.trusted {
        return Err(wrong("a proxy that is not in server.trusted_proxies"));
    }
    // Its body stays where it is.
    let (method, target, mut fields) = match serves {
        Serves::AuthRequest => asked_about(request, &AUTH_REQUEST)?,
        Serves::ForwardAuth => asked_about(request, &FORWARD_AUTH)?,
        Serves::Requests
        | Serves::Decisions
        | Serves::ExtAuthz
        | Serves::ExtAuthzGrpc
        | Serves::Spoe => {
            let target = request.target().to_owned();
            let mut fields = std::mem::take(&mut request.fields);
            if let Some(authority) = request.authority().map(str::to_owned) {
                fields.set(Known::Host, authority);
            }
            (request.method.clone(), target, fields)
        }
    };
    received.method.clone_from(&method);
    // A field that this one names is for one connection, and would be taken out. Whoever asks may
    // pass it on all the same, and a client would choose what its key is read from.
    fields.remove(Known::Connection);
    let body = std::mem::take(&mut request.body);
    *request = Request::for_target(method, request.version, fields, &target);
    if serves == Serves::ExtAuthzGrpc {
        // What the check has of it.
        request.body = body;
        return Ok(());
    }
    request.fields.remove(Known::ContentLength);
    request.fields.remove(Known::TransferEncoding);
    Ok(())
}

/// Reads method, target and host, and removes the fields that said them.
fn asked_about(
    request: &mut Request,
    places: &Places,
) -> Result<(Method, String, Fields), Refusal> {
    let mut fields = std::mem::take(&mut request.fields);
    let method = only(&fields, places.method).and_then(|text| Method::from_bytes(text).ok());
    let method = method.ok_or_else(|| wrong("no method of a request, or several"))?;
    let target = only(&fields, places.target).and_then(|text| std::str::from_utf8(text).ok());
    // What a request line can't have, or has no meaning in it: nginx passes on a fragment, which
    // its upstream may cut off.
    let target = target
        .filter(|target| target.starts_with('/'))
        .filter(|target| !target.bytes().any(|byte| byte <= b' ' || byte == b'#' || byte == 0x7f))
        .ok_or_else(|| wrong("no path of a request, or several"))?
        .to_owned();
    if let Some(host) = places.host {
        let host = only(&fields, host).ok_or_else(|| wrong("no host of a request, or several"))?;
        let host = host.to_owned();
        fields.set(Known::Host, host);
        fields.remove(Known::ForwardedHost);
    } else if let Some(authority) = request.authority().map(str::to_owned) {
        fields.set(Known::Host, authority);
    }
    fields.remove(places.method);
    fields.remove(places.target);
    Ok((method, target, fields))
}

fn only<'f>(fields: &'f Fields, name: &str) -> Option<&'f [u8]> {
    let mut values = fields.get_all(name);
    values.next().filter(|_| values.next().is_none())
}

fn wrong(found: &'static str) -> Refusal {
    Refusal::BadRequest(Check::Proxy.wrong(found))
}

/// Turns a refusal with a 2xx status into a 429, and returns that. A policy may refuse with 200 and
/// an error in the body, which another proxy would take for an admission.
pub(in crate::proxy) fn denied(serves: Serves, refusal: &mut Response) -> Option<StatusCode> {
    let admits = serves.is_about_requests() && refusal.status.is_success();
    admits.then(|| {
        refusal.status = StatusCode::TOO_MANY_REQUESTS;
        refusal.status
    })
}

/// Gives a refusal a status that the asking proxy takes for one.
pub(in crate::proxy) fn map_status(serves: Serves, refusal: &mut Response) {
    let is_known = matches!(refusal.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if serves == Serves::AuthRequest {
        refusal.fields.set(STATUS_FIELD, refusal.status.as_str());
        if !is_known {
            refusal.status = StatusCode::FORBIDDEN;
        }
    }
}
