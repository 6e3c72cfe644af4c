//! The house as a library has it: started and let go in one process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::views::Pages;
use super::*;
use crate::admin::Views as _;

const PATIENCE: Duration = Duration::from_secs(20);

fn app() -> App {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let text = "[[listeners]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[server]\nworkers = 2\n[server.limits]\nconnections = 2\n\
                [[routes]]\npath = \"/*\"\nrespond = { status = 200, body = \"ok\" }\n";
    std::fs::write(&path, text).unwrap();
    App::start(Config::load(&path).unwrap()).unwrap()
}

fn get(address: SocketAddr, close: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(format!("GET /live HTTP/1.1\r\nhost: {address}\r\n{close}\r\n").as_bytes())
        .unwrap();
    let mut piece = [0; 4096];
    let read = stream.read(&mut piece).unwrap_or(0);
    (stream, String::from_utf8_lossy(&piece[..read]).into_owned())
}

#[test]
fn a_full_house_does_not_shut_the_operator_out() {
    let app = app();
    let public = app.addresses()[0];
    // Each has begun another request: an idle connection would be closed for the third client.
    let begun = "\r\nGET /next HTTP/1.1\r\nhost: a";
    let held = [get(public, begun), get(public, begun)];
    assert!(held.iter().all(|(_, reply)| reply.starts_with("HTTP/1.1 200")), "{held:?}");
    assert_eq!(get(public, "").1, "", "a third client is not served");
    let (_, live) = get(app.admin_address().unwrap(), "connection: close\r\n");
    assert!(live.starts_with("HTTP/1.1 200"), "{live:?}");
    drop(held);
    assert!(app.shutdown());
}

#[test]
fn while_a_reload_builds_the_operator_is_answered() {
    let app = app();
    let building = app.house.current.lock().unwrap();
    let pages = Pages(Arc::clone(&app.house));
    let (done, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        done.send((runtime.block_on(pages.ready()), pages.status())).unwrap();
    });
    let (ready, _) = asked.recv_timeout(PATIENCE).expect("/ready waits for the reload");
    assert_eq!(ready, Ok("ready".into()));
    // Nor does the end wait for it.
    app.house.drain.start();
    for _ in 0..PATIENCE.as_millis() / 10 {
        if TcpStream::connect(app.addresses()[0]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(TcpStream::connect(app.addresses()[0]).is_err());
    drop(building);
    assert!(app.shutdown());
}

#[test]
fn an_app_that_is_dropped_serves_no_more() {
    let app = app();
    let address = app.addresses()[0];
    let (mut open, reply) = get(address, "");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply:?}");
    drop(app);
    assert_eq!(open.read(&mut [0; 16]).unwrap(), 0, "its connections are cut");
    for _ in 0..PATIENCE.as_millis() / 10 {
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
    let before = Arc::clone(&app.house.serving.load().limiter);
    let text = |deadline: &str| {
        format!(
            "[store]\ndeadline = \"{deadline}\"\n[[routes]]\npath = \"/x\"\nrespond = {{ status = 204 }}\n"
        )
    };
    std::fs::write(&path, text("50ms")).unwrap();
    app.reloader().reload(&path).unwrap();
    assert!(Arc::ptr_eq(&before, &app.house.serving.load().limiter));
    std::fs::write(&path, text("60ms")).unwrap();
    app.reloader().reload(&path).unwrap();
    assert!(!Arc::ptr_eq(&before, &app.house.serving.load().limiter));
    assert!(app.shutdown());
}

/// Counters outlive an edit of how many there may be, and what an edit does to them is said.
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
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    app.house.drain.start();
    let (_, live) = get(admin, "connection: close\r\n");
    assert!(live.starts_with("HTTP/1.1 200"), "{live:?}");
    let ready = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(Pages(Arc::clone(&app.house)).ready());
    assert_eq!(ready, Err("shutting down".into()));
    drop(held);
    assert!(app.workers.take().is_some_and(|workers| workers.join(PATIENCE)));
}

#[test]
fn the_mistakes_of_all_rooms_and_of_a_guest_are_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let text = "[server.limits]\nbody_bytes = \"100 elephants\"\n\
                [upstreams.api]\nendpoints = [\"http://\"]\n\
                [policies.p]\nuse = \"client-ip\"\n\
                config.limits = [{ name = \"a\", algorithm = \"gccra\", quota = 1, period = \"1s\" }]\n\
                [[routes]]\npath = \"/x/{a}\"\nupstream = \"api\"\npolicy = \"p\"\n\
                [[routes]]\npath = \"/x/{b}\"\nupstream = \"api\"\n";
    std::fs::write(&path, text).unwrap();
    let mistakes = load(&path).unwrap_err();
    for told in [
        "server.limits.body_bytes",
        "upstreams.api.endpoints[0]",
        "policies.p.config.limits[0].algorithm",
        "routes[1].path",
    ] {
        assert!(mistakes.text.contains(told), "{told} is missing:\n{mistakes}");
    }
    assert_eq!(mistakes.count, 4, "{mistakes}");
    let house = app();
    assert_eq!(house.reloader().reload(&path).unwrap_err().count, 4);
    assert!(house.shutdown());
}
