//! Sockets that share one address (`SO_REUSEPORT`), one for each worker. Knows nothing of what is
//! served on them.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use super::Listener;

/// Connections that the kernel keeps until they are accepted, at most; it may allow fewer
/// (`net.core.somaxconn`).
pub(super) const BACKLOG_MAX: u16 = 4096;

pub(super) fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<Listener>> {
    refuse_if_taken(address)?;
    let first = Listener::from_std(listening(address)?)?;
    // Port 0: the first socket's port is everybody's.
    let address = first.address;
    let mut sockets = vec![first];
    while sockets.len() < workers {
        sockets.push(Listener::from_std(listening(address)?)?);
    }
    Ok(sockets)
}

/// With `SO_REUSEPORT` a second Weir of the same user would bind without an error, and each would
/// silently get half of the connections.
fn refuse_if_taken(address: SocketAddr) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    socket(address)?.bind(&address.into())
}

fn listening(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::from(BACKLOG_MAX))?;
    Ok(socket.into())
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a former process that linger in TIME_WAIT must not keep us from starting.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // So that `0.0.0.0:80` and `[::]:80` can stand side by side, whatever the system's default.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}
