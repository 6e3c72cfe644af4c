//! gRPC's health service: which of the services a caller asks about.

use prost::Message as _;

use super::messages::HealthCheckRequest;
use super::rls::{FRAME_HEAD_BYTES, unframed};
use super::{malformed, protos, read_all};
use crate::proxy::refusal::Refusal;
use crate::wire::Body;

/// The path of the call.
pub(in crate::proxy) const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// Maximum bytes of the call, which is a name.
const CALL_BYTES_MAX: usize = 4 << 10;

/// Whether the service that is asked about is one of ours; no name stands for all of them.
///
/// # Errors
/// It came too slowly, is too long, or is not what a caller sends.
pub(in crate::proxy) async fn is_about_us(
    body: Body,
    buffered_bytes_max: usize,
) -> Result<bool, Refusal> {
    const LARGEST: usize = CALL_BYTES_MAX + FRAME_HEAD_BYTES;
    let (framed, _charge) = read_all(body, LARGEST, buffered_bytes_max).await?;
    let asked = HealthCheckRequest::decode(unframed(&framed).map_err(malformed)?);
    let HealthCheckRequest { service } =
        asked.map_err(|_| malformed("a message that is no HealthCheckRequest"))?;
    Ok(service.is_empty() || protos::services().any(|own| own == service))
}
