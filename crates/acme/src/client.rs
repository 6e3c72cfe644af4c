//! HTTPS to the authority: a connection for each request, as an order takes a dozen of them and
//! comes every few weeks.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue, RETRY_AFTER};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

/// Time for one request, from connecting to the end of the reply.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// Time to connect to one address of the authority: there may be others.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum size of a reply. A chain of certificates has a few KiB.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// A client of the authority.
#[derive(Clone)]
pub(crate) struct Client {
    tls: TlsConnector,
    server_name: Option<String>,
    /// What the last reply that named a time to wait said, in seconds.
    wait_s: Arc<Mutex<Option<u64>>>,
}

/// What goes wrong with a request: text for people.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Client {
    pub(crate) fn new(config: ClientConfig, server_name: Option<String>) -> Self {
        Self { tls: TlsConnector::from(Arc::new(config)), server_name, wait_s: Arc::default() }
    }

    /// How long the last reply that named a time asked to wait: a refusal, or one that something is
    /// not done yet.
    pub(crate) fn take_wait_s(&self) -> Option<u64> {
        self.wait_s.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn exchange(
        self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Result<BytesResponse, Failure> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let uri = std::mem::take(&mut head.uri);
        let authority = uri.authority().ok_or("a URL without a host")?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("{uri} is not https").into());
        }
        let host = authority.host();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = self.server_name.as_deref().unwrap_or(bare).to_owned();
        let addresses = lookup_host((bare, authority.port_u16().unwrap_or(443))).await?;
        let socket = connect(addresses, CONNECT_TIME_MAX).await?;
        let stream = self.tls.connect(ServerName::try_from(name)?, socket).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        head.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        head.uri = uri.path_and_query().map_or(Ok(Uri::default()), |path| path.as_str().parse())?;
        let reply = async {
            let reply = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
            let (head, body) = reply.into_parts();
            let body = Limited::new(body, REPLY_BYTES_MAX).collect().await?.to_bytes();
            Ok(Response::from_parts(head, Full::new(body)))
        };
        // The reply may be whole when the connection ends, and the other way round.
        let (mut reply, mut connection) = (std::pin::pin!(reply), std::pin::pin!(connection));
        let reply: Result<_, Failure> = tokio::select! {
            biased;
            reply = &mut reply => reply,
            ended = &mut connection => match ended {
                Ok(()) => reply.await,
                Err(error) => Err(error.into()),
            },
        };
        let reply = reply?;
        self.note_wait(&reply);
        Ok(BytesResponse::from(reply))
    }

    fn note_wait<B>(&self, reply: &Response<B>) {
        let wait = reply.headers().get(RETRY_AFTER);
        if let Some(wait_s) = wait.and_then(|wait| wait.to_str().ok()?.trim().parse().ok()) {
            *self.wait_s.lock().unwrap_or_else(PoisonError::into_inner) = Some(wait_s);
        }
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (client, url) = (self.clone(), request.uri().to_string());
        Box::pin(async move {
            let exchange = tokio::time::timeout(REQUEST_TIME_MAX, client.exchange(request)).await;
            let reply = exchange
                .unwrap_or_else(|_| Err(format!("no reply within {REQUEST_TIME_MAX:?}").into()));
            reply.map_err(|error| Error::Other(format!("{url}: {}", chain(&*error)).into()))
        })
    }
}

/// Connects to the first of these addresses that answers within this time.
async fn connect(
    addresses: impl Iterator<Item = SocketAddr>,
    within: Duration,
) -> io::Result<TcpStream> {
    let mut why = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        why = match tokio::time::timeout(within, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{address} does not answer within {within:?}"),
            ),
        };
    }
    Err(why)
}

/// An error with its reasons.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_for_the_others() {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let good = TcpListener::bind(local).await.unwrap();
        let gone = TcpListener::bind(local).await.unwrap().local_addr().unwrap();
        // Nobody accepts here, and few may wait.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(local).unwrap();
        let full = socket.listen(1).unwrap();
        let silent = full.local_addr().unwrap();
        let within = Duration::from_millis(250);
        let mut waiting = Vec::new();
        while let Ok(socket) = connect([silent].into_iter(), within).await {
            waiting.push(socket);
        }
        let all = [silent, gone, good.local_addr().unwrap()];
        let found = connect(all.into_iter(), within).await.unwrap();
        assert_eq!(found.peer_addr().unwrap(), good.local_addr().unwrap());
        let why = connect([gone, silent].into_iter(), within).await.unwrap_err();
        assert!(why.to_string().contains("does not answer within 250ms"), "{why}");
        assert!(connect([].into_iter(), within).await.is_err());
    }
}
