//! What the upstreams of these tests share: a socket on a thread of its own, with a task for each
//! connection, until it is dropped.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A running server; ends when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Runs what `connection` makes of each connection.
    pub fn start<T>(
        listener: std::net::TcpListener,
        connection: impl Fn(TcpStream) -> T + Send + 'static,
    ) -> Self
    where
        T: Future<Output = ()> + Send + 'static,
    {
        listener.set_nonblocking(true).expect("a socket that doesn't block");
        let address = listener.local_addr().expect("an address");
        let (stop, mut stopped) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = serve(listener, connection) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve<T>(listener: TcpListener, connection: impl Fn(TcpStream) -> T)
where
    T: Future<Output = ()> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        tokio::spawn(connection(stream));
    }
}
