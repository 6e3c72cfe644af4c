//! A TCP proxy in front of a Redis node that delays what it forwards, or forwards nothing at all: a
//! network that is slow or drops packets. In front of a node's cluster bus it can tell the other
//! nodes apart.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// A running relay; its connections end when it is dropped.
pub struct Relay {
    pub address: SocketAddr,
    state: Arc<State>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    /// Where to forward to. Known once the server runs, which may be after the relay's start.
    target: watch::Sender<Option<SocketAddr>>,
    silent: watch::Sender<Silence>,
    delay_us: AtomicU64,
}

/// Which connections nothing passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Silence {
    None,
    All,
    /// Those that this node of the cluster opened.
    From(String),
}

impl Silence {
    fn holds(&self, opened_by: &OnceLock<String>) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::From(node) => opened_by.get() == Some(node),
        }
    }
}

impl Relay {
    /// Listens on a free port of loopback, and accepts once there is a target.
    pub fn start() -> Self {
        let listener = crate::harness::upstream::listener();
        listener.set_nonblocking(true).expect("a socket that doesn't block");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            target: watch::Sender::new(None),
            silent: watch::Sender::new(Silence::None),
            delay_us: AtomicU64::new(0),
        });
        let (stop, mut stopped) = watch::channel(false);
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, shared) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
        });
        Self { address, state, stop, thread: Some(thread) }
    }

    /// A relay in front of this server.
    pub fn to(server: SocketAddr) -> Self {
        let relay = Self::start();
        relay.forward_to(server);
        relay
    }

    pub fn forward_to(&self, server: SocketAddr) {
        self.state.target.send_replace(Some(server));
    }

    /// Lets nothing pass from now on, in either direction, but no connection ends. What was sent
    /// meanwhile passes when the silence ends, as TCP would send it again.
    pub fn silence(&self, silent: bool) {
        self.state.silent.send_replace(if silent { Silence::All } else { Silence::None });
    }

    /// The same for connections of the cluster bus that the node of this name opened.
    pub fn silence_node(&self, node: &str) {
        self.state.silent.send_replace(Silence::From(node.to_owned()));
    }

    /// Delays all that is sent to the server.
    pub fn delay(&self, by: Duration) {
        self.state.delay_us.store(by.as_micros() as u64, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let Some(target) = *state.target.borrow() else { return };
            // Without a server the client sees its connection closed.
            let Ok(server) = TcpStream::connect(target).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let opened_by = OnceLock::new();
            // When one direction ends, so does the other.
            tokio::select! {
                () = pump(from_client, to_server, &state, &opened_by, true) => {}
                () = pump(from_server, to_client, &state, &opened_by, false) => {}
            }
        });
    }
}

/// The sender in the head of a message of the cluster bus: `clusterMsg` of Redis' `cluster.h`.
fn sender(piece: &[u8]) -> Option<String> {
    let name = piece.strip_prefix(b"RCmb")?.get(36..76)?;
    String::from_utf8(name.to_vec()).ok()
}

/// Forwards one direction until it ends, in order, each piece when its delay is over.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    opened_by: &OnceLock<String>,
    from_client: bool,
) {
    let (pieces, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut silent = state.silent.subscribe();
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count @ 1..) = from.read(&mut piece).await {
            if from_client && let Some(name) = sender(&piece[..count]) {
                // A node has another name until it has been introduced, on another connection.
                let _ = opened_by.set(name);
            }
            let _ = silent.wait_for(|silent| !silent.holds(opened_by)).await;
            let delay = if from_client { state.delay_us.load(Ordering::SeqCst) } else { 0 };
            let at = Instant::now() + Duration::from_micros(delay);
            if pieces.send((at, piece[..count].to_vec())).is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((at, piece)) = due.recv().await {
            // A timer is no more precise than a millisecond, which would be a delay of its own.
            if at > Instant::now() {
                tokio::time::sleep_until(at).await;
            }
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    // The writer ends after the reader, once everything is written.
    tokio::join!(read, write);
}
