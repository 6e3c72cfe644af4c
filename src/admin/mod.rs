//! The operator's own listener: `/metrics`, `/live`, `/ready`, `/status`. What they show is handed in.

use std::sync::Arc;

use crate::listen::{Handler, Peer};
use crate::telemetry::Metrics;
use crate::wire::Response;

/// What the admin pages show.
pub trait Views: Send + Sync + 'static {
    /// Whether requests can be served, or why not.
    ///
    /// # Errors
    /// A sentence for the operator.
    fn ready(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// `/status`: version, configuration, last reload, as JSON.
    fn status(&self) -> String;
}

/// Answers the admin's requests.
#[derive(Debug)]
pub struct Admin<V>(#[allow(dead_code)] Arc<V>, #[allow(dead_code)] Metrics);

impl<V> Clone for Admin<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), self.1.clone())
    }
}

impl<V: Views> Admin<V> {
    /// Admin pages over `views`.
    pub fn new(views: Arc<V>, metrics: Metrics) -> Self {
        Self(views, metrics)
    }
}

impl<V: Views> Handler for Admin<V> {
    async fn call(&self, _request: http::Request<hyper::body::Incoming>, _peer: &Arc<Peer>) -> Response {
        todo!()
    }
}
