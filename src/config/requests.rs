//! The file of `weir policy test`: a policy with its configuration, and requests with their times
//! and what should become of them. It may name a whole `proxy.toml` instead of a policy.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::reader::{Item, Notes, Table};
use super::settings::server::INSPECT_BYTES;
use super::settings::{Kind as _, Whole};
use super::{Config, ConfigErrors, Source, drop_flat, files, is_name, policies, syntax};
use crate::proxy::account::Verdict;
use crate::proxy::trial::{BodyEnding, TrialReply, TrialRequest};
use crate::reload::Watch;
use crate::telemetry::Label as _;

/// Maximum number of entries of a file.
const ENTRIES_MAX: usize = 10_000;
/// The number of requests of one entry.
const TIMES: RangeInclusive<u64> = 1..=1_000_000;
/// Maximum number of members of one table of an entry.
const MEMBERS_MAX: usize = 64;
/// The latest time of a request.
const AT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400 * 3_660);
/// How long a request may take.
const AFTER: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400 * 400);
/// The amounts of limits.
const UNITS: RangeInclusive<u64> = 0..=1 << 53;
/// 2026-01-01T00:00:00Z, a Thursday.
const START_US: i64 = 1_767_225_600_000_000;
/// The client of requests that name none, from a block that is reserved for examples (RFC 5737).
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1));
/// The policy's name where its module has none that can be one.
const POLICY: &str = "policy";

/// A file of requests.
#[derive(Debug)]
pub struct Requests {
    /// What they are sent through.
    pub config: Config,
    /// When time begins, in microseconds since 1970.
    pub start_us: i64,
    /// The entries in the file's order, with times that never decrease.
    pub entries: Vec<Entry>,
    /// The position of each setting of the file.
    pub source: Arc<Source>,
    /// The name of the policy, unless the file names a `proxy.toml`.
    pub policy: Option<String>,
    /// The policy's module, if it is a file.
    pub module: Option<PathBuf>,
}

/// One `[[requests]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time since the start.
    pub at: Duration,
    /// The request.
    pub request: TrialRequest,
    /// How often it is sent.
    pub times: u64,
    /// What the upstream does.
    pub reply: ScheduledReply,
    /// What should become of it.
    pub expected: Expectation,
}

/// A reply, and when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledReply {
    /// The reply.
    pub reply: TrialReply,
    /// The time from the request to the reply.
    pub after: Duration,
}

/// What should become of a request. What is `None` or empty is not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// The verdict, and the status of a denial or rejection.
    pub verdict: Option<(Option<Verdict>, Option<u16>)>,
    /// How many of the entry's requests are admitted. The others are refused.
    pub admitted: Option<u64>,
    /// The status that the client sees.
    pub status: Option<u16>,
    /// A limit that refuses.
    pub limit: Option<String>,
    /// When the same request would pass.
    pub retry_after: Option<Duration>,
    /// How long the request waits.
    pub delay: Option<Duration>,
    /// The units that are left in each limit after the request's end.
    pub remaining: Vec<(String, u64)>,
    /// The units that the policy asks of each limit.
    pub costs: Vec<(String, u64)>,
    /// The key of each limit.
    pub keys: Vec<(String, String)>,
    /// The policy's labels.
    pub labels: Vec<(String, String)>,
    /// Header fields that the policy sets on the request to the upstream.
    pub to_upstream: Vec<(String, String)>,
    /// Header fields of the reply that the client sees.
    pub to_client: Vec<(String, String)>,
}

impl Requests {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// All errors at once.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::load_with(path, None)
    }

    /// Like [`load`](Self::load), but where a setting names the first of these files, the second is
    /// read.
    ///
    /// # Errors
    /// All errors at once.
    pub fn load_instead(path: &Path, files: [&Path; 2]) -> Result<Self, ConfigErrors> {
        Self::load_with(path, Some(files.map(Path::to_path_buf)))
    }

    fn load_with(path: &Path, instead: Option<[PathBuf; 2]>) -> Result<Self, ConfigErrors> {
        let unread = |cause: String| {
            let (file, found) = (path.display().to_string(), format!("cannot be read: {cause}"));
            ConfigErrors::single(&file, None, &found, Vec::new())
        };
        let bytes = files::read(path, files::CONFIG_BYTES_MAX).map_err(unread)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| unread("it is not UTF-8".into()))?;
        read(text, path, instead)
    }
}

/// A configuration with one policy, which has no configuration of its own: that of a module's file,
/// or a built-in one.
///
/// # Errors
/// There is no such module.
pub fn policy_alone(named: &str, is_module: bool) -> Result<Config, ConfigErrors> {
    let key = if is_module { "wasm" } else { "use" };
    let text = format!("{key} = {}\nrequests = []\n", toml::Value::from(named));
    read(&text, Path::new("<command line>"), None).map(|requests| requests.config)
}

fn read(text: &str, path: &Path, instead: Option<[PathBuf; 2]>) -> Result<Requests, ConfigErrors> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let name = policy_name(root.get_ref());
    let section = super::setting::policy(&name);
    let source = Source::new(path, text, root.get_ref(), !errors.is_empty());
    let source = source.under(root.get_ref(), &section);
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut notes = Notes::new(folder, Some(Watch::read(path, text.as_bytes())));
    notes.instead = instead;
    let walked = walk(&notes, root.get_ref(), &name, &section);
    drop_flat(root.into_inner());
    let (mut findings, data, watched) = notes.into_parts();
    let source = source.with(data, watched);
    if !errors.is_empty() {
        // What follows from a torn text may be wrong.
        findings.clear();
    }
    findings.extend(syntax::errors("", text, &errors));
    let source = Arc::new(source);
    let Some(WalkedEntries { through, start_us, entries }) = walked.filter(|_| findings.is_empty())
    else {
        return Err(source.report(findings));
    };
    let (config, policy, module) = match through {
        RequestTarget::Proxy(path) => (Config::load(&path)?, None, None),
        RequestTarget::Policy { settings, route } => {
            let module = match &settings.module {
                crate::policy::Module::File { path, .. } => Some(path.clone()),
                crate::policy::Module::Shipped(_) => None,
            };
            let mut config = around(&route)?;
            config.policies = vec![*settings];
            config.source = Arc::clone(&source);
            config.warnings.clear();
            (config, Some(name), module)
        }
    };
    Ok(Requests { config, start_us, entries, source, policy, module })
}

/// What the requests are sent through.
enum RequestTarget {
    Proxy(PathBuf),
    Policy { settings: Box<crate::policy::Settings>, route: Route },
}

/// `[route]`.
struct Route {
    policy: String,
    path: String,
    inspect_bytes: Option<u64>,
}

struct WalkedEntries {
    through: RequestTarget,
    start_us: i64,
    entries: Vec<Entry>,
}

/// A configuration with one route and without its policy.
fn around(route: &Route) -> Result<Config, ConfigErrors> {
    let path = toml::Value::from(route.path.as_str());
    let text = format!(
        "[admin]\naddress = \"off\"\n[upstreams.upstream]\nendpoints = [\"http://127.0.0.1:9\"]\n\
         [[routes]]\nname = \"all\"\npath = {path}\nupstream = \"upstream\"\n"
    );
    let mut config = Config::parse(&text, Path::new("<requests>"))?;
    for built in &mut config.routes {
        built.policy = Some(route.policy.clone());
        built.inspect.bytes_max = route.inspect_bytes.unwrap_or(built.inspect.bytes_max);
    }
    Ok(config)
}

/// The name of the policy, from that of its module.
fn policy_name(root: &DeTable<'_>) -> String {
    let text = |key: &str| root.get(key).and_then(|value| value.get_ref().as_str());
    let stem = text("wasm").and_then(|path| Path::new(path).file_stem()?.to_str());
    let name = text("use").or(stem).filter(|name| is_name(name));
    name.unwrap_or(POLICY).to_owned()
}

fn walk(notes: &Notes, root: &DeTable<'_>, name: &str, section: &str) -> Option<WalkedEntries> {
    let mut root = Table::new(notes, "", Some(root));
    let start = root.take("start");
    let start_us = start.map_or(Some(START_US), |item| instant(&item));
    let through = match root.take("proxy") {
        Some(item) => {
            let path = item.text("the path of a proxy.toml");
            for key in ["use", "wasm", "config", "config_files", "route"] {
                root.useless(key, "nothing: `proxy` names a whole configuration");
                // So that it is not unknown, too.
                root.take(key);
            }
            path.map(|path| RequestTarget::Proxy(notes.folder.join(path)))
        }
        None => {
            let scripts = Arc::default();
            let settings = policies::settings(notes, name.to_owned(), &mut root, section, &scripts);
            let route = route(&mut root, name);
            settings.zip(route).map(|(settings, route)| RequestTarget::Policy {
                settings: Box::new(settings),
                route,
            })
        }
    };
    let items = root.list("requests", ENTRIES_MAX);
    let mut at = Duration::ZERO;
    let entries: Vec<Option<Entry>> = items.iter().map(|item| entry(item, &mut at)).collect();
    if entries.is_empty() && !root.has("requests") {
        root.missing("requests", "one `[[requests]]` or more");
    }
    root.finish();
    let entries = entries.into_iter().collect::<Option<Vec<_>>>();
    Some(WalkedEntries { through: through?, start_us: start_us?, entries: entries? })
}

fn route(root: &mut Table<'_>, name: &str) -> Option<Route> {
    let mut table = root.section("route");
    let path = match table.take("path") {
        Some(item) => item.text("a path such as \"/users/{id}\"")?.to_owned(),
        None => "/*".to_owned(),
    };
    let inspect = table.take("inspect_bytes");
    let inspect_bytes = inspect.and_then(|item| item.size(INSPECT_BYTES));
    table.finish();
    Some(Route { policy: name.to_owned(), path, inspect_bytes })
}

fn entry(item: &Item<'_>, at: &mut Duration) -> Option<Entry> {
    let mut table = item.table()?;
    if let Some(item) = table.take("at") {
        match item.duration(AT) {
            Some(next) if next < *at => item.wrong(format!(
                "a time that is not before that of the request above, {}",
                super::units::show_duration(*at)
            )),
            Some(next) => *at = next,
            None => {}
        }
    }
    let line = table.need("request", "a method and a path, such as \"GET /search?q=1\"");
    let line = line.and_then(|item| {
        item.parsed("a method and a path, such as \"GET /search?q=1\"", |text| {
            let (method, target) = text.split_once(' ')?;
            let target = target.trim();
            (target.starts_with('/') && !target.contains(' '))
                .then(|| (method.to_owned(), target.to_owned()))
        })
    });
    let from = match table.take("from") {
        Some(item) => {
            item.parsed("an IP address such as \"203.0.113.7\"", |text| text.parse().ok())
        }
        None => Some(CLIENT),
    };
    let listener = table.take("listener").map(|item| item.text("the name of a listener"));
    let headers = pairs(&mut table, "headers", "a text, or an array of them");
    let body = table.take("body").map(|item| item.text("a text")).unwrap_or(Some(""));
    let times = table.take("times").and_then(|item| item.whole(TIMES)).unwrap_or(1);
    let reply = reply(&mut table);
    let expected = expected(&mut table, times);
    table.finish();
    let (method, target) = line?;
    let body = body?.as_bytes().to_vec();
    let listener = match listener {
        Some(name) => Some(name?.to_owned()),
        None => None,
    };
    let request = TrialRequest { method, target, from: from?, headers, body, listener };
    Some(Entry { at: *at, request, times, reply, expected: expected? })
}

fn expected(table: &mut Table<'_>, times: u64) -> Option<Expectation> {
    let verdict = table.take("expect").map(|item| item.parsed(VERDICTS, verdict));
    let mut admitted = None;
    if let Some(item) = table.take("admitted") {
        admitted = item.whole(0..=times);
    }
    let status = table.take("status").and_then(|item| item.whole(100..=599));
    let limit = table.take("limit").and_then(|item| item.text("the name of a limit"));
    let wait = |item: Item<'_>| item.duration(AFTER);
    let retry_after = table.take("retry_after").and_then(wait);
    let delay = table.take("delay").and_then(wait);
    Some(Expectation {
        verdict: match verdict {
            None => None,
            Some(read) => Some(read?),
        },
        admitted,
        status: status.and_then(|status| u16::try_from(status).ok()),
        limit: limit.map(str::to_owned),
        retry_after,
        delay,
        remaining: amounts(table, "remaining"),
        costs: amounts(table, "costs"),
        keys: pairs(table, "keys", "the key as the policy answers it"),
        labels: pairs(table, "labels", "a text"),
        to_upstream: pairs(table, "to_upstream", "a text"),
        to_client: pairs(table, "to_client", "a text"),
    })
}

const VERDICTS: &str = "\"admitted\", \"refused\", \"bypassed\", \"denied\", \"denied 403\", \"failed\", \"uncounted\" or \"rejected\"";

fn verdict(text: &str) -> Option<(Option<Verdict>, Option<u16>)> {
    let (word, status) = match text.split_once(' ') {
        Some((word, status)) => (word, Some(status.parse().ok()?)),
        None => (text, None),
    };
    let verdict = match word {
        "rejected" => None,
        _ => Some(Verdict::ALL.iter().copied().find(|verdict| verdict.label() == word)?),
    };
    let may_say = matches!(verdict, Some(Verdict::Denied) | None);
    (status.is_none() || may_say).then_some((verdict, status))
}

/// The members of a table, with texts. An array is a repeated member.
fn pairs(table: &mut Table<'_>, key: &'static str, expected: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for (name, item) in table.section(key).named().into_iter().take(MEMBERS_MAX) {
        let values = if item.value.is_array() { item.list(MEMBERS_MAX) } else { vec![item] };
        let texts = values.iter().filter_map(|value| value.text(expected));
        pairs.extend(texts.map(|text| (name.clone(), text.to_owned())));
    }
    pairs
}

/// The members of a table, with numbers of units.
fn amounts(table: &mut Table<'_>, key: &'static str) -> Vec<(String, u64)> {
    let members = table.section(key).named().into_iter().take(MEMBERS_MAX);
    members.filter_map(|(name, item)| Some((name, item.whole(UNITS)?))).collect()
}

const FAILURES: [(&str, TrialReply); 3] = [
    ("lost", TrialReply::Lost { sent: true }),
    ("unsent", TrialReply::Lost { sent: false }),
    ("client-gone", TrialReply::ClientGone),
];

/// `reply`: a word for a failure, or a table.
fn reply(table: &mut Table<'_>) -> ScheduledReply {
    let mut after = Duration::ZERO;
    let (mut status, mut ended) = (200_u16, BodyEnding::Whole);
    let empty = TrialReply::Answer { status, headers: Vec::new(), body: Vec::new(), ended };
    let Some(item) = table.take("reply") else { return ScheduledReply { reply: empty, after } };
    if item.value.is_str() {
        let reply = item.choice(&FAILURES).unwrap_or(empty);
        return ScheduledReply { reply, after };
    }
    let Some(mut table) = item.table() else { return ScheduledReply { reply: empty, after } };
    if let Some(written) = table.take("after").and_then(|item| item.duration(AFTER)) {
        after = written;
    }
    let mut failure = None;
    if let Some(item) = table.take("failure") {
        failure = item.choice(&FAILURES);
        for key in ["status", "headers", "body", "ended"] {
            table.useless(key, "nothing: a reply that fails has none");
        }
    }
    if let Some(written) = table.take("status").and_then(|item| Whole(200..=599).read(&item)) {
        status = written;
    }
    let headers = pairs(&mut table, "headers", "a text, or an array of them");
    let body = table.take("body").and_then(|item| item.text("a text")).unwrap_or_default();
    let words = [
        ("whole", BodyEnding::Whole),
        ("cut", BodyEnding::Cut),
        ("client-gone", BodyEnding::ClientGone),
    ];
    if let Some(written) = table.take("ended").and_then(|item| item.choice(&words)) {
        ended = written;
    }
    table.finish();
    let answer = TrialReply::Answer { status, headers, body: body.as_bytes().to_vec(), ended };
    ScheduledReply { reply: failure.unwrap_or(answer), after }
}

/// A date and time with an offset, in microseconds since 1970.
fn instant(item: &Item<'_>) -> Option<i64> {
    let found = match item.value {
        DeValue::Datetime(datetime) => micros(datetime),
        // With quotes it says the same.
        DeValue::String(text) => text.parse().ok().as_ref().and_then(micros),
        _ => None,
    };
    if found.is_none() {
        item.wrong("a date and time since 1970 such as 2026-03-31T23:59:00Z");
    }
    found
}

fn micros(datetime: &toml::value::Datetime) -> Option<i64> {
    // With date, time and offset it is an instant of RFC 3339.
    let instant: jiff::Timestamp = datetime.to_string().parse().ok()?;
    Some(instant.as_microsecond()).filter(|us| *us >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "use = \"client-ip\"\n[config]\nlimits = []\n";

    fn entries(text: &str) -> Result<Vec<Entry>, String> {
        let text = format!("{HEAD}{text}");
        read(&text, Path::new("requests.toml"), None)
            .map(|requests| requests.entries)
            .map_err(|errors| errors.text)
    }

    #[test]
    fn a_request_keeps_the_time_of_the_one_before() {
        let read = entries(
            "[[requests]]\nrequest = \"GET /\"\nat = \"5s\"\n[[requests]]\nrequest = \"POST /a?b=1\"\n\
             from = \"2001:db8::1\"\nheaders = { a = [\"1\", \"2\"] }\nexpect = \"denied 403\"\n",
        )
        .unwrap();
        let second = &read[1];
        assert_eq!((second.at, second.times), (Duration::from_secs(5), 1));
        assert_eq!(second.expected.verdict, Some((Some(Verdict::Denied), Some(403))));
        let headers = vec![("a".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())];
        assert_eq!((second.request.headers.clone(), &*second.request.method), (headers, "POST"));
    }

    #[test]
    fn the_start_may_be_written_with_quotes() {
        let start = |written: &str| {
            let text = format!("start = {written}\n{HEAD}");
            let text = format!("{text}[[requests]]\nrequest = \"GET /\"\n");
            read(&text, Path::new("requests.toml"), None)
                .map(|requests| requests.start_us)
                .map_err(|errors| errors.text)
        };
        let instant = start("2026-03-31T23:59:00Z");
        assert!(instant == Ok(1_775_001_540_000_000), "{instant:?}");
        assert_eq!(start("\"2026-03-31T23:59:00Z\""), instant);
        for wrong in ["\"2026-03-31\"", "\"soon\"", "\"\"", "7"] {
            let told = start(wrong).unwrap_err();
            assert!(told.contains("a date and time since 1970"), "{wrong}: {told}");
        }
    }

    #[test]
    fn every_error_is_reported_with_its_line() {
        let told = entries(
            "[[requests]]\nrequest = \"GET\"\nexpct = \"refused\"\nat = \"9s\"\n\
             [[requests]]\nrequest = \"GET /\"\nat = \"8s\"\nexpect = \"admited\"\nreply = \"lots\"\n",
        )
        .unwrap_err();
        for (line, word) in
            [(5, "GET"), (6, "`expect`"), (10, "9s"), (11, "admited"), (12, "\"lost\"")]
        {
            assert!(told.contains(word), "{word}: {told}");
            assert!(told.contains(&format!("requests.toml:{line}:")), "{line}: {told}");
        }
    }

    #[test]
    fn an_instant_is_read_as_written() {
        let read = |text: &str| micros(&text.parse().unwrap());
        assert_eq!(read("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(read("2026-01-01T00:00:00Z"), Some(START_US));
        assert_eq!(read("2024-02-29T12:00:00.5+02:00"), Some(1_709_200_800_500_000));
        assert_eq!((read("1969-12-31T23:59:59Z"), read("2026-01-01")), (None, None));
    }
}
