//! Many connections at once, and the memory that is left when they have closed.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::eventually_async;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

/// Connections: together with those of concurrent tests, within the usual limit of open files.
const MANY: usize = 600;
/// The size of a head that never ends, so that each connection buffers something.
const BEGUN_BYTES: usize = 15 << 10;
/// Memory that they must use together, so that its return can be seen.
const TAKEN_KIB_MIN: u64 = 7 << 10;
/// How much of it may be left.
const LEFT_KIB_MAX: u64 = 3 << 10;

#[tokio::test]
async fn memory_comes_back_when_many_connections_have_closed() {
    let own = "name = \"own\"\npath = \"/*\"\nrespond = { status = 200, body = \"hello\" }";
    let weir = Weir::start(
        &Toml::new().server("workers = 1").timeout("request_header = \"5m\"").route(own).text(),
    );
    let ask = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", weir.http);
    let answer = async |stream: &mut TcpStream| {
        stream.write_all(ask.as_bytes()).await.expect("sent");
        let mut reply = [0; 4096];
        assert!(stream.read(&mut reply).await.expect("a reply") > 0);
    };
    answer(&mut TcpStream::connect(weir.http).await.expect("a connection")).await;
    let before = weir.memory_kib();

    let mut streams = Vec::new();
    for _ in 0..MANY {
        let mut stream = TcpStream::connect(weir.http).await.expect("a connection");
        answer(&mut stream).await;
        let begun = format!("GET / HTTP/1.1\r\nX-Long: {}", "x".repeat(BEGUN_BYTES));
        stream.write_all(begun.as_bytes()).await.expect("sent");
        streams.push(stream);
    }
    let many = eventually_async("the heads are read", async || {
        let now = weir.memory_kib();
        if now >= before + TAKEN_KIB_MIN {
            Ok(now)
        } else {
            Err(format!("{now} KiB, and {before} KiB before"))
        }
    })
    .await;
    drop(streams);
    eventually_async("the memory comes back", async || {
        let now = weir.memory_kib();
        if now <= before + LEFT_KIB_MAX {
            Ok(())
        } else {
            Err(format!("{before} KiB before, {many} KiB with {MANY} connections, {now} KiB now"))
        }
    })
    .await;
}
