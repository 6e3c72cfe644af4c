//! HTTP on both sides: versions, TLS, streams and tunnels, forwarding, and peers that break the
//! rules.

mod checks;
mod decision_api;
mod decision_facts;
mod decision_holds;
mod decisions;
mod decisions_imported;
mod decisions_json;
mod decisions_shared;
mod early;
mod endpoints;
mod forward_auth;
mod forwarding;
mod hostile;
mod http1;
mod http2;
mod interim;
mod overload;
mod placing;
mod quotas;
mod slow_clients;
mod smuggling;
mod streams;
mod tls;
mod upgrades;
mod websockets;
