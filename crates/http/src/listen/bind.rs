//! Binds one socket per worker to the same address (`SO_REUSEPORT`). Knows nothing about what is
//! served on them.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use super::Listener;

/// Maximum length of the kernel's accept queue. The kernel may use less (`net.core.somaxconn`).
pub(super) const BACKLOG_MAX: u16 = 4096;

pub(super) fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<Listener>> {
    refuse_if_taken(address)?;
    let first = Listener::from_std(listening(address)?)?;
    // With port 0, the other sockets take the port that the first one was given.
    let address = first.address;
    let mut sockets = vec![first];
    while sockets.len() < workers {
        sockets.push(Listener::from_std(listening(address)?)?);
    }
    Ok(sockets)
}

/// Refuses an address in use: with `SO_REUSEPORT`, a second Weir of the same user would bind
/// without an error and silently get half of the connections.
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
    // Connections of a previous process in TIME_WAIT must not prevent a start.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // So that `0.0.0.0:80` and `[::]:80` can both be bound, whatever the system's default.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}
