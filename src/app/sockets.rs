//! The listening sockets: bound here, or passed on by another process, which is the service manager
//! (systemd's socket activation) or the Weir that this one takes over from. Knows addresses, and no
//! requests.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use super::StartError;
use crate::listen::{self, Listener};

/// Set by the Weir that this one takes over from: its process id, the number of a descriptor to
/// talk to it, and then of each listening socket `FOR=ADDRESS=NUMBER`, separated by spaces. Of no
/// meaning to any process but a child of that one.
const HANDED_OVER: &str = "WEIR_HANDOVER";
/// Set by the service manager: for which process, and how many descriptors from 3 on.
const ACTIVATED_PID: &str = "LISTEN_PID";
const ACTIVATED_COUNT: &str = "LISTEN_FDS";
const ACTIVATED_FIRST: RawFd = 3;
/// Maximum number of sockets that are taken over.
const SOCKETS_MAX: usize = 4_096;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketRole {
    Clients,
    Operators,
}

impl SocketRole {
    fn label(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Operators => "operators",
        }
    }

    fn of(label: &str) -> Option<Self> {
        [Self::Clients, Self::Operators].into_iter().find(|role| role.label() == label)
    }
}

/// A listening socket, and what it is for.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) role: SocketRole,
    /// The address as configured, so with port 0 where that picks a free one.
    pub(super) configured: SocketAddr,
    pub(super) socket: Weak<TcpListener>,
}

impl Socket {
    /// The socket to pass on, open for as long as the answer lives; `None` if nobody accepts on it
    /// any more.
    fn held(&self) -> Option<PassedSocket> {
        let Self { role, configured, .. } = *self;
        Some(PassedSocket { role, configured, socket: self.socket.upgrade()? })
    }
}

/// A socket that is passed on.
struct PassedSocket {
    role: SocketRole,
    configured: SocketAddr,
    socket: Arc<TcpListener>,
}

/// What this process was started with. Taken once, at its start.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// A socket that the service manager passed may be for anybody.
    sockets: Vec<(Option<SocketRole>, SocketAddr, TcpListener)>,
    /// The Weir that this one takes over from.
    pub(super) predecessor: Option<UnixStream>,
}

impl InheritedSockets {
    /// What the environment says that this process was started with.
    ///
    /// # Errors
    /// A descriptor that it names is not open, or is not a listening socket.
    pub fn from_environment() -> io::Result<Self> {
        if let Ok(handed_over) = std::env::var(HANDED_OVER)
            && let Some((parent, rest)) = handed_over.split_once(' ')
            && parent == std::os::unix::process::parent_id().to_string()
        {
            return Self::handed_over(rest);
        }
        let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
        match (number(ACTIVATED_PID), number(ACTIVATED_COUNT)) {
            (Some(pid), Some(count)) if pid == std::process::id() => Self::activated(count),
            _ => Ok(Self::default()),
        }
    }

    fn activated(count: u32) -> io::Result<Self> {
        let mut sockets = Vec::new();
        if count as usize > SOCKETS_MAX {
            let why = format!("{ACTIVATED_COUNT}: found {count}, expected at most {SOCKETS_MAX}");
            return Err(io::Error::other(why));
        }
        for number in (ACTIVATED_FIRST..).take(count as usize) {
            let socket = listening(number)?;
            sockets.push((None, socket.local_addr()?, socket));
        }
        Ok(Self { sockets, predecessor: None })
    }

    fn handed_over(text: &str) -> io::Result<Self> {
        let wrong = || io::Error::other(format!("{HANDED_OVER}: found {text:?}"));
        let mut words = text.split(' ');
        let control = words.next().and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
        let predecessor = Some(UnixStream::from(adopt(control)?));
        let mut sockets = Vec::new();
        for word in words {
            let [role, address, number] =
                word.split('=').collect::<Vec<_>>().try_into().map_err(|_| wrong())?;
            let address = address.parse().map_err(|_| wrong())?;
            let socket = listening(number.parse().map_err(|_| wrong())?)?;
            sockets.push((SocketRole::of(role), address, socket));
        }
        Ok(Self { sockets, predecessor })
    }

    /// Takes the sockets of one listener that is configured at `address`: all that are bound to the
    /// same address. With port 0, several listeners may be configured at one.
    pub(super) fn take(&mut self, role: SocketRole, address: SocketAddr) -> Vec<TcpListener> {
        let mut bound = None;
        let mut fits = |of: Option<SocketRole>, at: SocketAddr, socket: &TcpListener| {
            let local = socket.local_addr().ok();
            let fits = of.is_none_or(|of| of == role) && at == address;
            fits && local.is_some() && *bound.get_or_insert(local) == local
        };
        let all = std::mem::take(&mut self.sockets).into_iter();
        let (mine, others): (Vec<_>, Vec<_>) = all.partition(|(of, at, one)| fits(*of, *at, one));
        self.sockets = others;
        mine.into_iter().map(|(_, _, socket)| socket).collect()
    }

    /// Whether the operator's pages were served on one of the sockets.
    #[must_use]
    pub fn has_admin(&self) -> bool {
        self.sockets.iter().any(|(role, ..)| *role == Some(SocketRole::Operators))
    }

    /// Names the sockets that were passed on and have the port of an `address` that is taken:
    /// systemd's `ListenStream=8080` is `[::]:8080`, which keeps others from `0.0.0.0:8080`.
    fn explain(&self, address: SocketAddr, error: io::Error) -> io::Error {
        let passed = self.sockets.iter().map(|(_, passed, _)| passed);
        let same: Vec<String> = passed
            .filter(|passed| passed.port() == address.port() && address.port() != 0)
            .map(SocketAddr::to_string)
            .collect();
        if error.kind() != io::ErrorKind::AddrInUse || same.is_empty() {
            return error;
        }
        let same = same.join(", ");
        io::Error::new(
            error.kind(),
            format!(
                "{error}: a socket was passed on for {same}; name that address in the configuration, or {address} in the socket unit"
            ),
        )
    }

    /// Closes the sockets that nothing is configured for.
    pub(super) fn close_left(self) {
        for (_, address, _) in &self.sockets {
            tracing::warn!(%address, "this socket was passed on, but nothing is configured to listen there: it is closed");
        }
    }
}

/// The sockets of all listeners that are configured.
pub(super) fn bind(
    listeners: &[listen::Settings],
    inherited: &mut InheritedSockets,
    workers: usize,
) -> Result<Vec<Vec<Listener>>, StartError> {
    let one = |settings: &listen::Settings| {
        bind_one(SocketRole::Clients, settings.address, inherited, workers)
    };
    listeners.iter().map(one).collect()
}

/// Each listener's sockets, with its number.
pub(super) fn numbered(public: Vec<Vec<Listener>>) -> Vec<Vec<Listener>> {
    let number = |(index, sockets): (usize, Vec<Listener>)| {
        sockets.into_iter().map(|socket| socket.numbered(index)).collect()
    };
    public.into_iter().enumerate().map(number).collect()
}

/// The sockets at `address`: those that were passed on, or new ones.
pub(super) fn bind_one(
    role: SocketRole,
    address: SocketAddr,
    inherited: &mut InheritedSockets,
    workers: usize,
) -> Result<Vec<Listener>, StartError> {
    let passed_on = inherited.take(role, address);
    if !passed_on.is_empty() {
        return given(passed_on, workers);
    }
    Listener::bind(&listen::Settings::plain(address), workers)
        .map_err(|source| StartError::Bind { address, source: inherited.explain(address, source) })
}

/// The sockets of one listener, with further handles of them where there are more workers.
pub(super) fn given(
    sockets: Vec<TcpListener>,
    workers: usize,
) -> Result<Vec<Listener>, StartError> {
    let missing = workers.saturating_sub(sockets.len());
    let more = sockets.iter().cycle().take(missing).map(TcpListener::try_clone);
    let more: Vec<TcpListener> =
        more.collect::<std::io::Result<_>>().map_err(StartError::Worker)?;
    let all = sockets.into_iter().chain(more).map(Listener::from_std);
    all.collect::<std::io::Result<_>>().map_err(StartError::Worker)
}

/// All sockets, for a process that takes over: those of the listeners, and those at `admin`.
pub(super) fn handles(
    (listeners, public): (&[listen::Settings], &[Vec<Listener>]),
    (admin, pages): (Option<SocketAddr>, &[Listener]),
) -> Vec<Socket> {
    let clients = listeners.iter().zip(public).flat_map(|(settings, sockets)| {
        sockets.iter().map(|socket| (SocketRole::Clients, settings.address, socket))
    });
    let operators = admin.into_iter().flat_map(|address| {
        pages.iter().map(move |socket| (SocketRole::Operators, address, socket))
    });
    let handle = |(role, configured, socket): (SocketRole, SocketAddr, &Listener)| Socket {
        role,
        configured,
        socket: socket.handle(),
    };
    clients.chain(operators).map(handle).collect()
}

/// Takes over a listening socket.
fn listening(number: RawFd) -> io::Result<TcpListener> {
    let socket = TcpListener::from(adopt(number)?);
    match socket2::SockRef::from(&socket).is_listener() {
        Ok(true) => Ok(socket),
        _ => Err(io::Error::other(format!("descriptor {number} is not a listening socket"))),
    }
}

/// Takes over an open descriptor. The next process that is started does not get it.
fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    if number < ACTIVATED_FIRST {
        return Err(io::Error::other(format!(
            "descriptor {number} is not a number that could be passed"
        )));
    }
    #[allow(
        unsafe_code,
        reason = "descriptors that are passed to a process come as numbers in its environment"
    )]
    // SAFETY: the process that started this one opened it for this one and says so in its
    // environment, which is read once, before this one opens any descriptor of its own.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    // Fails if it is not open.
    let closed = |error: rustix::io::Errno| {
        io::Error::other(format!("descriptor {number} was not passed: {error}"))
    };
    if let Err(error) = fcntl_getfd(&descriptor) {
        // It is nobody's: there is nothing to close.
        std::mem::forget(descriptor);
        return Err(closed(error));
    }
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC).map_err(closed)?;
    Ok(descriptor)
}

/// The environment variable that passes `control` and `sockets` on, for as long as the answer
/// lives.
pub(super) struct SocketEnvironment<'a> {
    control: &'a UnixStream,
    sockets: Vec<PassedSocket>,
}

impl<'a> SocketEnvironment<'a> {
    /// Lets the next process that is started inherit them. Nothing else starts processes.
    pub(super) fn new(control: &'a UnixStream, sockets: &[Socket]) -> io::Result<Self> {
        let sockets = sockets.iter().filter_map(Socket::held).collect();
        let passing = Self { control, sockets };
        passing.set(FdFlags::empty())?;
        Ok(passing)
    }

    fn set(&self, flags: FdFlags) -> io::Result<()> {
        fcntl_setfd(self.control, flags)?;
        for socket in &self.sockets {
            fcntl_setfd(&*socket.socket, flags)?;
        }
        Ok(())
    }

    pub(super) fn variable(&self) -> (&'static str, String) {
        let mut text = format!("{} {}", std::process::id(), self.control.as_raw_fd());
        for PassedSocket { role, configured, socket } in &self.sockets {
            text += &format!(" {}={configured}={}", role.label(), socket.as_raw_fd());
        }
        (HANDED_OVER, text)
    }

    /// Variables that are not for the process that is started.
    pub(super) const NOT_PASSED: [&'static str; 3] =
        [ACTIVATED_PID, ACTIVATED_COUNT, "LISTEN_FDNAMES"];
}

impl Drop for SocketEnvironment<'_> {
    fn drop(&mut self) {
        // It worked a moment ago. If not, a later process would only inherit too much.
        let _ = self.set(FdFlags::CLOEXEC);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_a_passed_socket_has_is_explained() {
        let passed = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = passed.local_addr().unwrap().port();
        let address = SocketAddr::from(([0, 0, 0, 0], port));
        let sockets = vec![(None, SocketAddr::from(([127, 0, 0, 1], port)), passed)];
        let mut inherited = InheritedSockets { sockets, predecessor: None };
        let error = bind_one(SocketRole::Clients, address, &mut inherited, 1).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("passed on for 127.0.0.1:{port}")), "{text}");
        let other = SocketAddr::from(([0, 0, 0, 0], 1));
        let error = || io::Error::from(io::ErrorKind::AddrInUse);
        assert_eq!(inherited.explain(other, error()).to_string(), error().to_string());
    }
}
