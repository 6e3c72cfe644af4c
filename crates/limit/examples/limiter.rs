//! The limiter without the proxy: workers that together send at most 100 mails an hour, in one
//! process or in many on one Redis Cluster.
//!
//!     cargo run -p weir-limit --example limiter
//!         a demonstration: four workers in this process, an hour of two seconds
//!     cargo run -p weir-limit --example limiter -- --outbox DIR
//!         sends the mails in DIR/outbox, counted in this process
//!     cargo run -p weir-limit --example limiter -- --outbox DIR --cluster A:1,B:2,C:3
//!         counted on Redis, by all processes with these arguments together
//!
//! also `--redis A:1` (one server), `--workers 4`, `--quota 100`, `--hour-ms 3600000`,
//! `--send-ms 0` (how long one send takes).
//!
//! Each worker takes a unit before it sends, gives it back if nothing was sent, and if it is
//! refused waits for as long as the limiter says. A worker that is killed in the middle of a send
//! may have sent its mail, so its unit stays taken until the hour is over: never more than the
//! quota is sent. The mail is still in the outbox, and another worker sends it.
//!
//! Three modules are enough: `plan` describes the limit, `limit` takes from it, `engine` counts.
//! None of them knows HTTP.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_clock::Clock;
use weir_limit::engine::{EmbeddedSettings, Engine, RedisMode, RedisSettings, Settings as Store};
use weir_limit::limit::{Ending, Limiter, Scope, Settings, Take};
use weir_limit::plan::{
    Algorithm, Alignment, Debt, FixedWindow, Limit, OnStoreError, Plan, Rate, Refund,
};
use weir_telemetry::Metrics;

/// How long to wait after the store could not be reached.
const STORE_WAIT: Duration = Duration::from_secs(1);

/// What a worker has done until the outbox was empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Mails that were sent: these are what the limit counts.
    pub sent: usize,
    /// Times that a unit was taken but nothing was sent, so it was given back.
    pub given_back: usize,
    /// Times that it was refused and waited.
    pub waited: usize,
}

/// How much, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Mails an hour.
    pub quota: u64,
    /// How long an hour is.
    pub hour: Duration,
    /// How long one send takes.
    pub send: Duration,
}

/// A mailbox as folders: mails that wait, mails that were sent, and mails that no server accepts. A
/// mail is in exactly one of them.
#[derive(Clone, Debug)]
pub struct Mailbox(PathBuf);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut pace = Pace { quota: 100, hour: Duration::from_secs(3_600), send: Duration::ZERO };
    let (mut store, mut outbox, mut workers) = (in_memory(), None, 1);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument}: found no value"))?;
        match argument.as_str() {
            "--outbox" => outbox = Some(value),
            "--cluster" => store = on_redis(RedisMode::Cluster, value.split(',')),
            "--redis" => store = on_redis(RedisMode::Single, [value.as_str()]),
            "--workers" => workers = value.parse()?,
            "--quota" => pace.quota = value.parse()?,
            "--hour-ms" => pace.hour = Duration::from_millis(value.parse()?),
            "--send-ms" => pace.send = Duration::from_millis(value.parse()?),
            _ => {
                return Err(format!("{argument}: expected --outbox, --cluster, --redis, --workers, --quota, --hour-ms or --send-ms").into());
            }
        }
    }
    let demonstration = std::env::temp_dir().join(format!("weir-limiter-{}", std::process::id()));
    let mailbox = match &outbox {
        Some(folder) => Mailbox::open(Path::new(folder))?,
        None => {
            (workers, pace.hour) = (4, Duration::from_secs(2));
            Mailbox::open(&demonstration)?
                .filled((0..250).map(|number| format!("customer-{number}")))?
        }
    };
    for report in work(&store, pace, &mailbox, workers).await? {
        println!("{report:?}");
    }
    if outbox.is_none() {
        std::fs::remove_dir_all(demonstration)?;
    }
    Ok(())
}

/// Counters that end with this process.
pub fn in_memory() -> Store {
    Store::Embedded(EmbeddedSettings::new(1_000))
}

/// Counters on Redis, shared by all processes that name it.
pub fn on_redis<'a>(mode: RedisMode, nodes: impl IntoIterator<Item = &'a str>) -> Store {
    let nodes = nodes.into_iter().map(str::to_owned).collect();
    let deadline = Duration::from_secs(2);
    let settings = RedisSettings::new(nodes, mode);
    RedisSettings { key_prefix: "mail".into(), deadline, ..settings }.into()
}

/// The limiter on a store. All limiters with the same store and prefix count together.
pub fn limiter(store: &Store) -> Result<Limiter, Box<dyn Error>> {
    let metrics = Metrics::new(1);
    let engine = Arc::new(Engine::build(store, Clock::system(), &metrics)?);
    Ok(Limiter::new(
        Settings { deadline: Duration::from_secs(2), ..Settings::default() },
        engine,
        Clock::system(),
        metrics,
    ))
}

/// Runs this many workers in this process, until the outbox is empty.
pub async fn work(
    store: &Store,
    pace: Pace,
    mailbox: &Mailbox,
    workers: usize,
) -> Result<Vec<Report>, Box<dyn Error>> {
    let limiter = Arc::new(limiter(store)?);
    let running = (0..workers).map(|_| worker(Arc::clone(&limiter), pace, mailbox.clone()));
    let reports = running.collect::<tokio::task::JoinSet<_>>().join_all().await;
    // On Redis, units that were given back may still be in flight.
    limiter.drain(Duration::from_secs(5)).await;
    Ok(reports.into_iter().collect::<Result<_, _>>()?)
}

/// One worker, until the outbox is empty.
pub async fn worker(
    limiter: Arc<Limiter>,
    pace: Pace,
    mailbox: Mailbox,
) -> Result<Report, std::io::Error> {
    // Which counters these are, and what to do if the store can't be reached: rather send nothing
    // than too much.
    let scope = Arc::new(Scope::new("mail".into(), "mail".into(), OnStoreError::Deny, false));
    // One counter for the whole company. A key for each customer would give each of them the
    // allowance. A unit is given back if nothing was sent.
    let rate = Rate {
        amount: pace.quota,
        per_ms: u64::try_from(pace.hour.as_millis()).unwrap_or(u64::MAX),
    };
    let hour = Algorithm::FixedWindow(FixedWindow {
        rate,
        alignment: Alignment::FirstRequest,
        debt: Debt::None,
    });
    let limit = Limit { refund: Refund::Unsent, ..Limit::new("hourly", "everybody", hour) };
    let plan = Arc::new(Plan::new(vec![limit]).map_err(std::io::Error::other)?);

    let mut report = Report::default();
    while let Some(mail) = mailbox.next()? {
        match limiter.take(&scope, &plan).await {
            Take::Granted(_, grant) => {
                println!("taken for {mail}");
                tokio::time::sleep(pace.send).await;
                let sent = mailbox.send(&mail)?;
                grant.settle(if sent { Ending::Completed } else { Ending::Unsent }, &[]);
                *(if sent { &mut report.sent } else { &mut report.given_back }) += 1;
            }
            Take::Refused(outcome) => {
                let wait = outcome.retry_after_us(plan.limits()).map(Duration::from_micros);
                println!("refused for {wait:?}");
                report.waited += 1;
                tokio::time::sleep(wait.unwrap_or(pace.hour)).await;
            }
            Take::Unavailable(_) => {
                println!("the store does not answer");
                tokio::time::sleep(STORE_WAIT).await;
            }
        }
    }
    Ok(report)
}

impl Mailbox {
    /// The folders below `folder`, created if necessary.
    pub fn open(folder: &Path) -> std::io::Result<Self> {
        for name in ["outbox", "sent", "returned"] {
            std::fs::create_dir_all(folder.join(name))?;
        }
        Ok(Self(folder.to_owned()))
    }

    /// Adds these mails to the outbox.
    pub fn filled(self, mails: impl IntoIterator<Item = String>) -> std::io::Result<Self> {
        mails.into_iter().try_for_each(|mail| {
            std::fs::write(self.0.join("outbox").join(mail), "Dear customer")
        })?;
        Ok(self)
    }

    /// The mails in a folder.
    pub fn names(&self, folder: &str) -> std::io::Result<Vec<String>> {
        std::fs::read_dir(self.0.join(folder))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Any waiting mail. Two workers may get the same one; the later of them sends nothing.
    fn next(&self) -> std::io::Result<Option<String>> {
        Ok(fastrand::choice(self.names("outbox")?))
    }

    /// Stands in for a mail server. It accepts each mail once, whichever worker sends it, and does
    /// not know anybody called `nobody`.
    fn send(&self, mail: &str) -> std::io::Result<bool> {
        let to = if mail.starts_with("nobody") { "returned" } else { "sent" };
        match std::fs::rename(self.0.join("outbox").join(mail), self.0.join(to).join(mail)) {
            Ok(()) => Ok(to == "sent"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
