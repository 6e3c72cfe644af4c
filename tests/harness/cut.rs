//! A TCP proxy between Weir and Redis that can cut a connection at the worst moment: when Redis has
//! run the script but Weir has not received the answer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// A running proxy. Its threads end with the connections that they serve.
pub struct Cutter {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    target: AtomicU16,
    /// The next script is forwarded, but its answer is not.
    armed: AtomicBool,
    cuts: AtomicU64,
    closed: AtomicBool,
}

impl Cutter {
    /// Listens before the server is known: a cluster's node must be given this port when it starts.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.closed.load(Ordering::SeqCst) {
                    return;
                }
                let target =
                    SocketAddr::from((Ipv4Addr::LOCALHOST, shared.target.load(Ordering::SeqCst)));
                // Without a server the client sees its connection closed, as it would without this
                // proxy.
                if let Ok(server) = TcpStream::connect(target) {
                    join(client, server, &shared);
                }
            }
        });
        Self { address, state }
    }

    pub fn forward_to(&self, server: SocketAddr) {
        self.state.target.store(server.port(), Ordering::SeqCst);
    }

    /// Cuts the connection of the next script, after Redis has run it.
    pub fn cut_next_script(&self) {
        self.state.armed.store(true, Ordering::SeqCst);
    }

    pub fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(client: TcpStream, server: TcpStream, state: &Arc<State>) {
    let doomed = Arc::new(AtomicBool::new(false));
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (Ok(client_out), Ok(server_out)) = (client.try_clone(), server.try_clone()) else { return };
    let (up, down) = ((Arc::clone(state), Arc::clone(&doomed)), (Arc::clone(state), doomed));
    std::thread::spawn(move || {
        copy(client, server_out, |bytes| {
            let script = bytes.windows(4).any(|word| word.eq_ignore_ascii_case(b"EVAL"));
            // Before it is forwarded, so that the connection is marked when the answer comes.
            if script && up.0.armed.swap(false, Ordering::SeqCst) {
                up.1.store(true, Ordering::SeqCst);
            }
            true
        });
    });
    std::thread::spawn(move || {
        copy(server, client_out, |_| {
            let doomed = down.1.load(Ordering::SeqCst);
            if doomed {
                down.0.cuts.fetch_add(1, Ordering::SeqCst);
            }
            !doomed
        });
    });
}

/// Copies until one side ends or `pass` rejects a piece. Then both directions end.
fn copy(mut from: TcpStream, mut to: TcpStream, mut pass: impl FnMut(&[u8]) -> bool) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        if !pass(&piece[..read]) || to.write_all(&piece[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn the_cutter_cuts_a_script_when_redis_has_run_it() {
    let (cutter, redis) = (Cutter::start(), super::redis::Redis::start());
    cutter.forward_to(redis.address);
    let script = ["EVAL", "return redis.call('INCR', KEYS[1])", "1", "k"];
    let open = || super::redis::Connection::open(cutter.address).unwrap();
    let mut connection = open();
    assert_eq!(connection.ask(&script).text(), "1");
    cutter.cut_next_script();
    assert_eq!(connection.ask(&["GET", "k"]).text(), "1", "only a script is cut");
    assert!(connection.command(&script).is_err());
    assert_eq!(
        (cutter.cuts(), open().ask(&["GET", "k"]).text().as_str()),
        (1, "2"),
        "it ran, but its answer was lost"
    );
}
