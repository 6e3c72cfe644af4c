//! The answer to a check of Envoy's external authorization (`envoy.service.auth.v3`): what becomes
//! of the request, and what its client is told. Knows no policy.

use http::StatusCode;

use super::decision::is_for_clients;
use super::rls::message;
use crate::proxy::decide::policy_fields::PolicyFields;
use crate::proxy::receive::call::check_messages::{
    AppendAction, CheckResponse, DeniedResponse, HeaderValueOption, HttpResponse, HttpStatus,
    OkResponse, Status,
};
use crate::proxy::receive::call::messages::HeaderValue;
use crate::proxy::receive::call::rls::framed;
use crate::proxy::receive::text::latin1;
use crate::wire::{Fields, Response};

/// gRPC's status of a request that is denied.
const PERMISSION_DENIED: i32 = 7;

/// The request may pass. `upstream` are the fields that the policy sets on it, and `reply` has
/// those for its client.
pub(in crate::proxy) fn passes(upstream: &PolicyFields, reply: &Response) -> Response {
    let mut seen = Vec::new();
    let upstream = upstream.iter().map(|(name, value)| {
        // The first of a name takes the place of the client's own.
        let is_first = !seen.contains(&name);
        seen.push(name);
        option(name.as_str().as_bytes(), value.as_bytes(), is_first)
    });
    let ok = OkResponse {
        headers: upstream.collect(),
        response_headers_to_add: for_client(&reply.fields),
    };
    answer(0, HttpResponse::Ok(ok))
}

/// The request is answered with this instead.
pub(in crate::proxy) fn denied(reply: &Response) -> Response {
    let denied = DeniedResponse {
        status: Some(HttpStatus { code: i32::from(known(reply.status)) }),
        headers: for_client(&reply.fields),
        body: reply.body.data().to_vec(),
    };
    answer(PERMISSION_DENIED, HttpResponse::Denied(denied))
}

fn answer(code: i32, response: HttpResponse) -> Response {
    let status = Some(Status { code });
    message(framed(&CheckResponse { status, http_response: Some(response) }))
}

fn for_client(fields: &Fields) -> Vec<HeaderValueOption> {
    let shown = fields.iter().filter(|(name, _)| is_for_clients(name));
    shown.map(|(name, value)| option(name, value, false)).collect()
}

fn option(name: &[u8], value: &[u8], overwrites: bool) -> HeaderValueOption {
    let action = if overwrites { AppendAction::Overwrite } else { AppendAction::Append };
    let header = HeaderValue { key: latin1(name).into_owned(), value: latin1(value).into_owned() };
    HeaderValueOption { header: Some(header), append_action: action.into() }
}

/// The status, or the nearest that Envoy's protocol has: it takes others for a broken answer.
fn known(status: StatusCode) -> u16 {
    match status.as_u16() {
        known @ (200..=208
        | 226
        | 300..=305
        | 307
        | 308
        | 400..=417
        | 421..=424
        | 426
        | 428
        | 429
        | 431
        | 500..=508
        | 510
        | 511) => known,
        500.. => 500,
        _ => 403,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::wire::{Body, Known};

    #[test]
    fn fields_of_an_answer_go_where_they_belong() {
        let mut reply = Response::new(StatusCode::OK, Body::empty());
        reply.fields.set(Known::RateLimit, "x");
        reply.fields.set(Known::ContentLength, "0");
        let plan = |value: &'static str| {
            (http::HeaderName::from_static("x-plan"), http::HeaderValue::from_static(value))
        };
        let answer = passes(&vec![plan("a"), plan("b")], &reply);
        let answer = CheckResponse::decode(&answer.body.data()[5..]).unwrap();
        assert_eq!(answer.status, Some(Status { code: 0 }));
        let Some(HttpResponse::Ok(ok)) = answer.http_response else { panic!() };
        let actions: Vec<i32> = ok.headers.iter().map(|one| one.append_action).collect();
        assert_eq!(actions, [2, 0]);
        let [shown] = &ok.response_headers_to_add[..] else { panic!("{ok:?}") };
        assert_eq!(shown.header.as_ref().unwrap().key, "ratelimit");
    }

    #[test]
    fn a_status_is_one_that_envoy_knows() {
        for (status, expected) in [(429, 429), (451, 403), (418, 403), (503, 503), (599, 500)] {
            assert_eq!(known(StatusCode::from_u16(status).unwrap()), expected, "{status}");
        }
    }
}
