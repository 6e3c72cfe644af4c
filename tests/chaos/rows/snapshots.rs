//! Row 11: a proxy with counters in memory is killed at random moments under load, and restarted
//! from its snapshot.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Run;
use crate::harness::client::{Client, get};
use crate::harness::counting::Counting;
use crate::harness::toml::simple;
use crate::harness::weir::Weir;
use crate::report::{Line, ms};

/// Never used up, at any speed.
const QUOTA: u64 = 1_000_000_000;
const CLIENTS: usize = 4;
const EVERY: Duration = Duration::from_millis(100);
/// How much longer than an interval a snapshot may be away, in the short form and in the long one:
/// a save, and the turns of other processes.
const SLACK: [Duration; 2] = [Duration::from_millis(900), Duration::from_millis(400)];

/// When each request of a client was answered 200.
type Admitted = Vec<Instant>;

/// Sends requests until the proxy is killed.
async fn load(address: SocketAddr, stop: Arc<AtomicBool>) -> Admitted {
    let mut admitted = Vec::new();
    let Ok(mut client) = Client::connect(address).await else { return admitted };
    while !stop.load(Ordering::Relaxed) {
        match client.get("/", &[]).await {
            Ok(reply) if reply.status == 200 => admitted.push(Instant::now()),
            _ => break,
        }
    }
    admitted
}

/// What one kill cost.
#[derive(Default)]
struct Seen {
    admitted: u64,
    forgotten: u64,
    /// How long before the kill the first of them was admitted.
    oldest: Duration,
    charged_twice: u64,
}

pub fn all(run: &Run) -> Vec<Line> {
    let kills = run.pick(5, 100);
    let interval = EVERY + run.pick(SLACK[0], SLACK[1]);
    let mut line = Line::new(
        "11",
        format!(
            "kill -9 of a proxy with counters in memory under load, {kills} times, with snapshot_every = \"100ms\""
        ),
        "restarted from its snapshot each time: never an unreadable file, at most what one interval admitted is forgotten, nothing is charged twice",
    );
    let upstream = Counting::start();
    let limit = format!(
        "name = \"limit\", algorithm = \"fixed_window\", quota = {QUOTA}, period = \"400d\""
    );
    let store = format!(
        "[store.embedded]\nsnapshot = \"weir.snapshot\"\nsnapshot_every = \"{}ms\"\n",
        EVERY.as_millis()
    );
    let builder = Weir::build(&simple(&upstream.url(), &[&limit]).more(&store).text());
    let mut weir = match &run.weir {
        Some(program) => builder.program(program).start(),
        None => builder.start(),
    };
    let (mut rng, mut all) = (run.rng("11"), Seen::default());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut used, mut restarts) = (0, Vec::new());
    for _ in 0..kills {
        // At least until a snapshot is old enough for what was admitted before it to be in it.
        let after = interval + Duration::from_millis(rng.u64(..500));
        let (next, now, seen, restart) = runtime.block_on(killed(weir, used, after));
        weir = next;
        used = now;
        restarts.push(restart);
        all.admitted += seen.admitted;
        all.forgotten = all.forgotten.max(seen.forgotten);
        all.oldest = all.oldest.max(seen.oldest);
        all.charged_twice += seen.charged_twice;
    }
    let unreadable = unreadable(weir.folder());
    line.judge(unreadable == 0, format!("{unreadable} unreadable files"));
    line.judge(
        all.oldest <= interval,
        format!(
            "of {} admissions at most {} were forgotten at one kill, all of the last {}",
            all.admitted,
            all.forgotten,
            ms(all.oldest)
        ),
    );
    line.judge(all.charged_twice == 0, format!("{} charged without an answer", all.charged_twice));
    let slowest = restarts.into_iter().max().unwrap_or_default();
    line.tell(format!("serving again after {} at most", ms(slowest)));
    vec![line]
}

/// Kills the proxy `after` a while of load. `used` is what it had charged before.
async fn killed(weir: Weir, used: u64, after: Duration) -> (Weir, u64, Seen, Duration) {
    let stop = Arc::<AtomicBool>::default();
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| tokio::spawn(load(weir.http, Arc::clone(&stop)))).collect();
    tokio::time::sleep(after).await;
    let killed_at = Instant::now();
    // The clients see it before this returns.
    let weir = weir.restart(Signal::KILL);
    let restart = killed_at.elapsed();
    stop.store(true, Ordering::Relaxed);
    let mut admitted = Vec::new();
    for client in clients {
        admitted.extend(client.await.expect("no panic"));
    }
    assert!(weir.output().says("counters restored"), "{}", weir.output().tail(30));
    let now = QUOTA - get(weir.http, "/", &[]).await.remaining("limit") as u64;
    // This one request is charged, too. Of each client one more may be charged and not answered.
    let (charged, count) = ((now - 1).checked_sub(used), admitted.len() as u64);
    admitted.sort_unstable();
    // What was charged are the first ones. If even what was charged before this load is forgotten,
    // the snapshot is older than all of it.
    let oldest = match charged {
        None => Some(after),
        Some(charged) => admitted.get(charged as usize).map(|at| killed_at.duration_since(*at)),
    };
    let charged = charged.unwrap_or(0);
    let seen = Seen {
        admitted: count,
        forgotten: count.saturating_sub(charged),
        oldest: oldest.unwrap_or_default(),
        charged_twice: charged.saturating_sub(count + CLIENTS as u64),
    };
    (weir, now, seen, restart)
}

fn unreadable(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).expect("the proxy's folder").map_while(Result::ok);
    names.filter(|name| name.file_name().to_string_lossy().contains("unreadable")).count()
}
