//! Row 7: connections that are cut when Redis has run a take and Weir has not received the answer.

use crate::Run;
use crate::harness::client::Client;
use crate::harness::cluster::Cluster;
use crate::harness::counting::Counting;
use crate::harness::cut::Cutter;
use crate::harness::toml::simple;
use crate::harness::weir::Weir;
use crate::harness::{eventually_async, redis::Redis};
use crate::report::Line;

const QUOTA: u64 = 1_000_000;
const PROXIES: usize = 3;

/// What the clients saw.
#[derive(Default)]
struct Seen {
    admitted: u64,
    /// Refused with 503 because the outcome was unknown.
    unknown: u64,
    /// The same for requests of which nothing was sent, while a connection was opened again.
    waited: u64,
}

pub fn all(run: &Run) -> Vec<Line> {
    let cuts = run.pick(50, 1_000);
    let mut line = Line::new(
        "7",
        format!("a connection cut right after Redis ran the take, {cuts} times"),
        "charged exactly once each; each counted as unknown; never sent again, never given back",
    );
    let (upstream, cutter) = (Counting::start(), Cutter::start());
    // The node announces the cutter's port, so that every connection goes through it.
    let port = cutter.address.port().to_string();
    let cluster = Cluster::of(1, &["--cluster-announce-port", &port]);
    let redis = &cluster.nodes[0];
    cutter.forward_to(redis.address);
    let limit = format!(
        "name = \"limit\", algorithm = \"fixed_window\", quota = {QUOTA}, period = \"400d\""
    );
    let config = simple(&upstream.url(), &[&limit])
        .redis("cluster", &[cutter.address])
        .server("workers = 2")
        .text();
    let start = || {
        let builder = Weir::build(&config);
        match &run.weir {
            Some(program) => builder.program(program).start(),
            None => builder.start(),
        }
    };
    let proxies: Vec<Weir> = (0..PROXIES).map(|_| start()).collect();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let scripts = |redis: &Redis| {
        let mut connection = redis.connect();
        connection.calls("evalsha") + connection.calls("eval")
    };
    let mut rng = run.rng("7");
    let (seen, calls, left) = runtime.block_on(async {
        warm(&proxies).await;
        let mut seen = Seen::default();
        let first = ask(&proxies[0]).await.remaining("limit") as u64;
        let before = scripts(redis);
        for _ in 0..cuts {
            let weir = rng.choice(&proxies).expect("a proxy");
            cut(weir, &cutter, &mut seen).await;
        }
        let calls = scripts(redis) - before;
        (seen, calls, first - ask(&proxies[0]).await.remaining("limit") as u64 - 1)
    });
    let counted: u64 = proxies.iter().map(|weir| weir.metric("weir_takes_unknown_total")).sum();
    line.judge(
        cutter.cuts() == cuts && seen.unknown == cuts,
        format!("{} cuts, {} of them answered with 503", cutter.cuts(), seen.unknown),
    );
    line.judge(counted == cuts, format!("{counted} counted as unknown"));
    line.judge(
        left == seen.admitted + cuts,
        format!("{left} units charged for {} admissions and {cuts} cuts", seen.admitted),
    );
    line.judge(
        calls == seen.admitted + cuts,
        format!("{calls} calls, {} requests refused while connecting", seen.waited),
    );
    vec![line]
}

async fn ask(weir: &Weir) -> crate::harness::client::Reply {
    eventually_async("a request is admitted", async || {
        let reply = crate::harness::client::get(weir.http, "/", &[]).await;
        if reply.status == 200 { Ok(reply) } else { Err(format!("{reply:?}")) }
    })
    .await
}

/// Every worker connects and Redis learns the script, so that what is cut is a take.
async fn warm(proxies: &[Weir]) {
    for weir in proxies {
        for _ in 0..20 {
            ask(weir).await;
        }
    }
}

/// Cuts one take of a proxy, and asks until it admits again.
async fn cut(weir: &Weir, cutter: &Cutter, seen: &mut Seen) {
    let mut client = Client::connect(weir.http).await.expect("a connection");
    cutter.cut_next_script();
    let reply = client.get("/", &[]).await.expect("a response");
    match reply.status {
        503 => seen.unknown += 1,
        other => panic!("a take that was cut was answered with {other}"),
    }
    let mut waited = 0;
    eventually_async("requests are admitted again", async || {
        let status = client.get("/", &[]).await.map(|reply| reply.status);
        match status {
            Ok(200) => Ok(()),
            other => {
                waited += 1;
                Err(format!("{other:?}"))
            }
        }
    })
    .await;
    seen.admitted += 1;
    seen.waited += waited;
}
