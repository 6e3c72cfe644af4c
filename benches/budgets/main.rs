//! How far a budget in tokens is exceeded, and how much of it can be used, when many streams of
//! unknown length share it over three proxies: the shape of a public benchmark, with the truth
//! reported by the upstream.
//!
//! `cargo bench --profile dev --workspace --bench budgets`, or with the names of some scenarios as
//! arguments; `WEIR` names another binary. It takes a quarter of an hour. What it prints is in
//! `benches/README.md`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_docs_in_private_items,
    missing_docs,
    unreachable_pub,
    reason = "a benchmark may fail loudly"
)]

#[allow(dead_code, reason = "helpers that only tests need")]
#[path = "../../tests/harness/mod.rs"]
mod harness;

mod clients;
mod model;
mod picture;

use std::time::Duration;

use clients::Habits;
use harness::cluster::Cluster;
use harness::weir::Weir;
use model::Model;

/// Streams at the same time.
const STREAMS: usize = 128;
const PROXIES: usize = 3;
/// Tokens: about a tenth of what the streams want in the time of one run.
const BUDGET: u64 = 14_600;
/// The most that a request may generate.
const MAXIMUM: u64 = 512;
/// How long clients go on asking. What is under way then is waited for.
const ASKING: Duration = Duration::from_secs(20);
/// The period of the scenario with windows.
const WINDOW: Duration = Duration::from_secs(5);
const WINDOWS: u32 = 20;

/// How a budget is enforced.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    settings: &'static str,
    /// Requests name their maximum.
    maximum: bool,
}

const MODES: [Mode; 4] = [
    Mode {
        name: "counting afterwards",
        settings: "default_max_output = 1\npartial = false",
        maximum: false,
    },
    Mode { name: "reserving the maximum", settings: "partial = false", maximum: true },
    Mode { name: "Weir: reserving, the rest in part", settings: "", maximum: true },
    Mode { name: "Weir: with a hard cut each 16", settings: "hard_cut = 16", maximum: true },
];

/// What clients and the upstream do.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    what: &'static str,
    habits: Habits,
    tells_usage: bool,
    windows: u32,
    /// The upstream's time for a token.
    pace: Duration,
}

const PACE: Duration = Duration::from_millis(15);
const HONEST: Habits = Habits { leave: 0.0, lie: false };

const SCENARIOS: [Scenario; 6] = [
    Scenario {
        name: "plain",
        what: "clients that wait for their replies",
        habits: HONEST,
        tells_usage: true,
        windows: 1,
        pace: PACE,
    },
    Scenario {
        name: "leaving",
        what: "a fifth of the clients leaves early",
        habits: Habits { leave: 0.2, lie: false },
        tells_usage: true,
        windows: 1,
        pace: PACE,
    },
    Scenario {
        name: "lying",
        what: "`max_tokens: 1` beside a large `max_completion_tokens`",
        habits: Habits { leave: 0.0, lie: true },
        tells_usage: true,
        windows: 1,
        pace: PACE,
    },
    Scenario {
        name: "silent",
        what: "replies do not tell their usage",
        habits: HONEST,
        tells_usage: false,
        windows: 1,
        pace: PACE,
    },
    Scenario {
        name: "mixed",
        what: "all of these",
        habits: Habits { leave: 0.2, lie: true },
        tells_usage: false,
        windows: 1,
        pace: PACE,
    },
    Scenario {
        name: "windows",
        what: "twenty windows of 5 s in a row",
        habits: HONEST,
        tells_usage: true,
        windows: WINDOWS,
        pace: Duration::from_millis(3),
    },
];

/// What one run showed.
struct Row {
    scenario: &'static str,
    mode: &'static str,
    /// Tokens that the upstream counted, as a part of the budget.
    spent: f64,
    admitted: u64,
    refused: u64,
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rows = Vec::new();
    println!(
        "| | | over the budget | used of it | admitted | refused |\n|---|---|---|---|---|---|"
    );
    for scenario in &SCENARIOS {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == scenario.name) {
            continue;
        }
        for mode in &MODES {
            let row = runtime.block_on(run(scenario, mode));
            println!(
                "| {} | {} | {} | {:.1} % | {} | {} |",
                row.scenario,
                row.mode,
                over(row.spent),
                row.spent.min(1.0) * 100.0,
                row.admitted,
                row.refused
            );
            rows.push(row);
        }
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("budgets.svg");
    std::fs::write(&path, picture::draw(&rows)).unwrap();
    println!("\nwritten: {}", path.display());
}

fn over(spent: f64) -> String {
    if spent > 1.0 { format!("+{:.1} %", (spent - 1.0) * 100.0) } else { "0".to_owned() }
}

async fn run(scenario: &Scenario, mode: &Mode) -> Row {
    let cluster = Cluster::start();
    let model = Model::start(scenario.tells_usage, scenario.pace).await;
    let limit = if scenario.windows == 1 {
        "period = \"1d\"".to_owned()
    } else {
        format!("period = \"{}s\", alignment = \"clock\"", WINDOW.as_secs())
    };
    let policy = format!(
        "[policies.llm]\nuse = \"llm-budget\"\n[policies.llm.config]\napi = \"openai\"\nwithout_usage = \"estimated\"\nbytes_per_token = {}\n{}\n\
         tokens = [{{ name = \"tokens\", algorithm = \"fixed_window\", quota = {BUDGET}, {limit}, key = \"{{authority}}\" }}]\n",
        model::TOKEN_BYTES,
        mode.settings
    );
    let config = harness::toml::Toml::new()
        .redis("cluster", &cluster.addresses())
        .upstream("model", &model.url(), "")
        .more(&policy)
        .route("path = \"/*\"\nupstream = \"model\"\npolicy = \"llm\"");
    let program = std::env::var("WEIR").unwrap_or_else(|_| harness::weir::binary().to_owned());
    let proxy = || Weir::build(&config.text()).program(program.as_ref()).start();
    let proxies: Vec<Weir> = (0..PROXIES).map(|_| proxy()).collect();
    let asking = if scenario.windows == 1 { ASKING } else { WINDOW * scenario.windows };
    if scenario.windows > 1 {
        begin_of_window().await;
    }
    let until = tokio::time::Instant::now() + asking;
    let clients = (0..STREAMS).map(|index| {
        let proxy = proxies[index % PROXIES].http;
        let maximum = mode.maximum.then_some(MAXIMUM);
        tokio::spawn(clients::ask(proxy, scenario.habits, maximum, index as u64, until))
    });
    let clients: Vec<_> = clients.collect();
    let (mut admitted, mut refused) = (0, 0);
    for client in clients {
        let counts = client.await.unwrap();
        admitted += counts.admitted;
        refused += counts.refused;
    }
    model.idle().await;
    let spent = model.tokens() as f64 / (BUDGET * u64::from(scenario.windows)) as f64;
    Row { scenario: scenario.what, mode: mode.name, spent, admitted, refused }
}

/// Waits for the begin of a window that is aligned to the clock.
async fn begin_of_window() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let into = Duration::from_millis((now.as_millis() % WINDOW.as_millis()) as u64);
    tokio::time::sleep(WINDOW - into).await;
}
