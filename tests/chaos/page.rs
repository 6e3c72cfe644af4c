//! The page that a long run writes, `docs/chaos.md`: the table, and how it came about.

use crate::Run;
use crate::report::{Line, Verdict, table};

/// The page. It has no date, so that two runs that see the same write the same.
pub fn page(lines: &[Line], run: &Run) -> String {
    let count = |verdict| lines.iter().filter(|line| line.verdict() == verdict).count().to_string();
    TEXT.replace("SEED", &run.seed.to_string())
        .replace("ALL", &lines.len().to_string())
        .replace("MISSED", &count(Verdict::Missed))
        .replace("DESIGN", &count(Verdict::Known))
        .replace("TABLE", &table(lines))
}

const TEXT: &str = r#"# What faults cost

What was done to Redis and to proxies under load, what Weir promises then, and what was seen. This
page is written by `make chaos`. Of ALL lines, MISSED missed what is required, and DESIGN miss it by design.

    make chaos                       all rows, and this page; about nine minutes, plus the build
    scripts/chaos.sh --seed SEED     the same with the random choices of this page
    scripts/chaos.sh --only 4        one row, by number or name, without writing the page
    cargo test --test chaos -- 4     the short form of a row

A short form of the same rows is part of `make test-all`: each fault once and briefly, with long
deadlines, judged by counts alone.

Each row but the last starts a Redis Cluster of three masters, where a row needs them with one
replica each (`cluster-node-timeout 2000`, `cluster-require-full-coverage no`), three `weir`
processes with two workers each, and an upstream that counts what arrives. Clients send a steady
load, 600 to 900 requests a second, on keys that are spread over the shards. All of it runs on one
machine, so times contain the load's own share of the processors. Unless a row says otherwise,
`store.deadline` is 50 ms, its default, and `on_store_error` is `deny`. For row 4 it is 250 ms, since
`CLUSTER FAILOVER` holds calls back ([operations.md](operations.md)); for rows 8 and 9, which are
about counts alone, it is some seconds.

- *Errors* are responses other than 200 and 429, and responses that were not decided by Redis.
- *Its own requests* are those whose counters are on the shard that fails.
- *Counters equal the admissions* if each counter says exactly what clients were told, and as many
  requests arrived upstream. A take whose connection fails after it was sent may have been charged.
  It is answered as `on_store_error` says, never sent again and never given back: so counters may
  have more units than admissions, at most one for each take that `weir_takes_unknown_total` counts.

TABLE
## Missed by design

- **A partition** (3b): Redis itself takes up to one and a half node timeouts, and not one, until a
  master that is cut off notices it: a node of which nothing was heard for half a node timeout is
  asked once, and has a whole one to answer. What it admits meanwhile is lost.
- **Idle keys** (9b): a counter outlives its last unit by a period, so that a request just then finds
  it. `sliding_window_log` keeps a key for up to two and a quarter periods, and
  `sliding_window_counter`, which counts in two windows, for up to three.

## Not covered

- Packets are dropped by a relay in front of a node's client port, not by a firewall: TCP's own
  timeouts play no part, as a call ends at its deadline long before them.
- LOADING is provoked with `DEBUG RELOAD` and a slowed-down load, as no data set here is large enough
  to be seen loading. Like all answers that end by themselves it is counted as `cluster`.
- One machine has one kernel and one clock. The wrong clocks of row 8 are those of the Redis
  processes alone, and no network delay is between the nodes.
"#;
