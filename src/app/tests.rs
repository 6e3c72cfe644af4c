//! Weir as a library: started and stopped in this process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::views::Pages;
use super::*;
use crate::admin::Views as _;

const TIMEOUT: Duration = Duration::from_secs(20);

fn app() -> App {
    app_with("")
}

/// With these settings besides.
fn app_with(more: &str) -> App {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let text = format!(
        "[[listeners]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[server]\nworkers = 2\n{more}\
         [[routes]]\npath = \"/*\"\nrespond = {{ status = 200, body = \"ok\" }}\n"
    );
    std::fs::write(&path, text).unwrap();
    App::start(Config::load(&path).unwrap()).unwrap()
}

fn get(address: SocketAddr, close: &str) -> (TcpStream, String) {
    get_from(1, address, close)
}

/// Asks from `127.0.0.last`.
fn get_from(last: u8, address: SocketAddr, close: &str) -> (TcpStream, String) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
        .write_all(format!("GET /live HTTP/1.1\r\nhost: {address}\r\n{close}\r\n").as_bytes())
        .unwrap();
    let mut piece = [0; 4096];
    let read = stream.read(&mut piece).unwrap_or(0);
    (stream, String::from_utf8_lossy(&piece[..read]).into_owned())
}

#[test]
fn full_listeners_do_not_shut_the_operator_out() {
    let app = app_with("[server.limits]\nconnections = 2\n");
    let public = app.addresses()[0];
    // Each has begun another request: an idle connection would be closed for the third client.
    let begun = "\r\nGET /next HTTP/1.1\r\nhost: a";
    // One address has half of the places at most.
    let held = [get_from(1, public, begun), get_from(2, public, begun)];
    assert!(held.iter().all(|(_, reply)| reply.starts_with("HTTP/1.1 200")), "{held:?}");
    assert_eq!(get_from(3, public, "").1, "", "a third client is not served");
    let (_, live) = get(app.admin_address().unwrap(), "connection: close\r\n");
    assert!(live.starts_with("HTTP/1.1 200"), "{live:?}");
    drop(held);
    assert!(app.shutdown());
}

#[test]
fn while_a_reload_builds_the_operator_is_answered() {
    let app = app();
    let (running, address) = (Arc::clone(&app.running), app.addresses()[0]);
    let building = running.reloading.lock().unwrap();
    let pages = Pages(Arc::clone(&running));
    let (done, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        done.send((runtime.block_on(pages.ready()), pages.status())).unwrap();
    });
    let (ready, _) = answered.recv_timeout(TIMEOUT).expect("/ready waits for the reload");
    assert_eq!(ready, Ok("ready".into()));
    // A shutdown does not wait for it, either.
    let ending = std::thread::spawn(|| app.shutdown());
    // Asked once more after it was refused, the port may already be another test's.
    let refused = (0..TIMEOUT.as_millis() / 10).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        TcpStream::connect(address).is_err()
    });
    assert!(refused, "the listener is still open");
    assert!(ending.join().unwrap());
    drop(building);
}

#[test]
fn an_app_that_is_dropped_serves_no_more() {
    let app = app();
    let address = app.addresses()[0];
    let (mut open, reply) = get(address, "");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply:?}");
    drop(app);
    assert_eq!(open.read(&mut [0; 16]).unwrap(), 0, "its connections are cut");
    for _ in 0..TIMEOUT.as_millis() / 10 {
        if TcpStream::connect(address).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it still listens");
}

#[test]
fn a_reload_that_changes_nothing_of_the_store_keeps_the_limiter() {
    let app = app();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let before = Arc::clone(&app.running.current.load().built.limiter);
    let text = |deadline: &str| {
        format!(
            "[store]\ndeadline = \"{deadline}\"\n[[routes]]\npath = \"/x\"\nrespond = {{ status = 204 }}\n"
        )
    };
    std::fs::write(&path, text("50ms")).unwrap();
    app.reloader().reload(&path).unwrap();
    assert!(Arc::ptr_eq(&before, &app.running.current.load().built.limiter));
    std::fs::write(&path, text("60ms")).unwrap();
    app.reloader().reload(&path).unwrap();
    assert!(!Arc::ptr_eq(&before, &app.running.current.load().built.limiter));
    assert!(app.shutdown());
}

/// Counters survive a change of how many there may be.
#[test]
fn a_reload_that_resizes_the_store_keeps_its_counters() {
    let app = app();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let text = |keys: u32| {
        let policy = "[policies.p]\nuse = \"client-ip\"\nconfig.limits = [{ name = \"l\", algorithm = \"gcra\", quota = 3, period = \"1d\" }]";
        format!(
            "{policy}\n[store.embedded]\nmax_keys = {keys}\n[[routes]]\npath = \"/x\"\npolicy = \"p\"\nrespond = {{ status = 204 }}\n"
        )
    };
    let ask = || {
        let mut stream = TcpStream::connect(app.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply.split(' ').nth(1).unwrap().to_owned()
    };
    let reload = |keys: u32| {
        std::fs::write(&path, text(keys)).unwrap();
        app.reloader().reload(&path).unwrap();
    };
    reload(1_000);
    assert_eq!([ask(), ask()], ["204", "204"]);
    reload(2_000);
    assert_eq!([ask(), ask()], ["204", "429"], "the third and the fourth of three");
    reload(1);
    assert_eq!(ask(), "429");
    assert!(app.shutdown());
}

#[test]
fn the_operator_can_watch_a_drain() {
    let mut app = app();
    let (public, admin) = (app.addresses()[0], app.admin_address().unwrap());
    // A head under way holds the drain.
    let mut held = TcpStream::connect(public).unwrap();
    held.write_all(b"GET /live HTTP/1.1\r\n").unwrap();
    let open = app.metrics().gauge(names::CONNECTIONS_OPEN);
    let start = crate::clock::monotonic();
    while open.get() == 0 {
        assert!(start.elapsed() < TIMEOUT);
        std::thread::yield_now();
    }
    app.running.drain.start();
    let (_, live) = get(admin, "connection: close\r\n");
    assert!(live.starts_with("HTTP/1.1 200"), "{live:?}");
    let ready = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(Pages(Arc::clone(&app.running)).ready());
    assert_eq!(ready, Err("shutting down".into()));
    drop(held);
    assert!(app.workers.take().is_some_and(|workers| workers.join(TIMEOUT)));
}

#[test]
fn the_errors_of_all_modules_and_of_a_guest_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let text = "[server.limits]\nbody_bytes = \"100 elephants\"\n\
                [upstreams.api]\nendpoints = [\"http://\"]\n\
                [policies.p]\nuse = \"client-ip\"\n\
                config.limits = [{ name = \"a\", algorithm = \"gccra\", quota = 1, period = \"1s\" }]\n\
                [[routes]]\npath = \"/x/{a}\"\nupstream = \"api\"\npolicy = \"p\"\n\
                [[routes]]\npath = \"/x/{b}\"\nupstream = \"api\"\n";
    std::fs::write(&path, text).unwrap();
    let errors = load(&path).unwrap_err();
    for setting in [
        "server.limits.body_bytes",
        "upstreams.api.endpoints[0]",
        "policies.p.config.limits[0].algorithm",
        "routes[1].path",
    ] {
        assert!(errors.text.contains(setting), "{setting} is missing:\n{errors}");
    }
    assert_eq!(errors.count, 4, "{errors}");
    let app = app();
    assert_eq!(app.reloader().reload(&path).unwrap_err().count, 4);
    assert!(app.shutdown());
}

/// This holds for programs that embed Weir and call `apply` themselves, too.
#[test]
fn changes_of_a_reload_apply_at_once_and_its_time_is_shown() {
    use arc_swap::access::Access as _;

    let app = app();
    let applied = app.metrics().gauge(names::CONFIG_APPLIED);
    assert!(applied.get() > 1_600_000_000, "{}", applied.get());
    let reload = |text: &str| {
        let text = format!("{text}\n[[routes]]\npath = \"/x\"\nrespond = {{ status = 204 }}\n");
        Config::parse(&text, Path::new("proxy.toml"))
            .and_then(|config| app.reloader().apply(config))
    };
    let (clients, admin) = (app.running.current.clients(), app.running.current.admin());
    let keep_alive = || clients.load().settings.keep_alive;
    applied.set(0);
    assert!(reload("[[upstreams]]").is_err());
    assert_eq!((applied.get(), keep_alive()), (0, Duration::from_secs(75)));
    let text = "[server.timeouts]\nkeep_alive = \"7s\"\n[admin]\nhosts = [\"weir.internal\"]";
    reload(text).unwrap();
    assert!(applied.get() > 1_600_000_000, "{}", applied.get());
    assert_eq!(keep_alive(), Duration::from_secs(7));
    let hosts = admin.load().as_ref().map(|settings| settings.hosts.clone());
    assert_eq!(hosts.unwrap(), ["weir.internal"]);
    assert!(app.shutdown());
}

/// Whether new connections are served, by a page that needs no upstream.
fn serves(app: &App) -> bool {
    get(app.addresses()[0], "connection: close\r\n").1.starts_with("HTTP/1.1 ")
}

#[test]
fn a_successor_that_fails_at_the_last_moment_leaves_this_process_serving() {
    let mut app = app();
    // It says that it could accept, and ends.
    let script = "set -- $WEIR_HANDOVER; eval \"printf r >&$2\"; exit 3";
    for _ in 0..3 {
        let command_line = CommandLine::of("bash", &["-c", script]);
        let error = app.hand_over(&command_line, &Abort::default()).unwrap_err().to_string();
        assert!(error.ends_with("it ended with exit status: 3"), "{error}");
        assert!(serves(&app));
    }
    let error = app.hand_over(&CommandLine::of("weir-is-not-here", &[]), &Abort::default());
    assert!(error.unwrap_err().to_string().starts_with("can't start a new process"));
    assert!(serves(&app));
    assert!(app.shutdown());
}

#[test]
fn a_hand_over_can_be_aborted() {
    let mut app = app();
    let abort = Abort::default();
    let error = std::thread::scope(|scope| {
        let (app, abort) = (&mut app, &abort);
        let work = scope.spawn(move || app.hand_over(&CommandLine::of("sleep", &["60"]), abort));
        abort.abort();
        work.join().unwrap().unwrap_err().to_string()
    });
    assert!(error.starts_with("the new process did not take over"), "{error}");
    assert!(serves(&app));
    assert!(app.shutdown());
}
