//! What is measured, as data: situations, the proxies in each of them, and the targets for their
//! figures. Does not know how to measure.

/// The proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Nginx,
    Haproxy,
    /// nginx with an EVALSHA for each request, over kept connections to one Redis.
    NginxLuaRedis,
    /// The built-in policy, in Wasm, and counters in memory.
    Weir,
    /// The same policy, and counters on a Redis Cluster of three masters.
    WeirCluster,
    /// The same with a lease of 200 ms.
    WeirLeased,
}

impl Subject {
    /// Whether its counters are on the cluster.
    pub fn is_on_cluster(self) -> bool {
        matches!(self, Self::WeirCluster | Self::WeirLeased)
    }
}

/// What the proxy's limit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// There is no limit.
    Plain,
    /// A limit that is never reached: each request is counted and let through.
    Admitted,
    /// A limit that has been reached: 429 for all.
    Refused,
}

/// The protocol of the clients. To the upstream it is always HTTP/1.1 without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    H1,
    /// HTTP/2 without TLS, by prior knowledge.
    H2,
    H1Tls,
    H2Tls,
}

impl Wire {
    pub fn is_tls(self) -> bool {
        matches!(self, Self::H1Tls | Self::H2Tls)
    }

    pub fn is_h2(self) -> bool {
        matches!(self, Self::H2 | Self::H2Tls)
    }
}

/// The clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// One address.
    One,
    /// A thousand addresses, in X-Forwarded-For.
    Addresses,
    /// A thousand keys in a header, and a policy (`keyed`) that limits by it.
    Keys,
}

/// What a request transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// No body up, 24 bytes down.
    Small,
    /// 1 MiB down.
    Download,
    /// 1 MiB up.
    Upload,
}

/// The circumstances that several cases share.
pub struct Situation {
    pub name: &'static str,
    pub title: &'static str,
    pub wire: Wire,
    pub work: Work,
    pub callers: Callers,
    pub connections: u32,
    /// Requests at once on each connection.
    pub streams: u32,
    /// Requests a second on each connection. `None`: one after another, as fast as possible.
    pub pace: Option<u32>,
    pub cases: &'static [(Subject, Limit)],
}

use Limit::{Admitted, Plain, Refused};
use Subject::{Haproxy, Nginx, NginxLuaRedis, Weir, WeirCluster, WeirLeased};

/// The three that only admit.
const ADMITTED: &[(Subject, Limit)] = &[(Nginx, Admitted), (Haproxy, Admitted), (Weir, Admitted)];

impl Situation {
    /// wrk is the lighter generator, but it supports neither HTTP/2 nor a fixed rate.
    pub fn needs_h2load(&self) -> bool {
        self.wire.is_h2() || self.pace.is_some()
    }
}

/// Everything, in the order of the tables.
pub const SITUATIONS: &[Situation] = &[
    Situation {
        name: "h1",
        title: "HTTP/1.1, a small reply, one client's address",
        wire: Wire::H1,
        work: Work::Small,
        callers: Callers::One,
        connections: 64,
        streams: 1,
        pace: None,
        cases: &[
            (Nginx, Plain),
            (Haproxy, Plain),
            (Weir, Plain),
            (Nginx, Admitted),
            // The same again: the difference between the two is noise.
            (Nginx, Admitted),
            (Haproxy, Admitted),
            (Weir, Admitted),
            (WeirCluster, Admitted),
            (WeirLeased, Admitted),
            (Nginx, Refused),
            (Haproxy, Refused),
            (Weir, Refused),
        ],
    },
    Situation {
        name: "clients",
        title: "HTTP/1.1, a small reply, a thousand clients' addresses",
        wire: Wire::H1,
        work: Work::Small,
        callers: Callers::Addresses,
        connections: 64,
        streams: 1,
        pace: None,
        cases: &[
            (Nginx, Admitted),
            (Haproxy, Admitted),
            (Weir, Admitted),
            (NginxLuaRedis, Admitted),
            (WeirCluster, Admitted),
            (Nginx, Refused),
            (Haproxy, Refused),
            (Weir, Refused),
            (NginxLuaRedis, Refused),
            (WeirCluster, Refused),
        ],
    },
    Situation {
        name: "keys",
        title: "HTTP/1.1, a small reply, a thousand keys in a header",
        wire: Wire::H1,
        work: Work::Small,
        callers: Callers::Keys,
        connections: 64,
        streams: 1,
        pace: None,
        cases: &[
            (Nginx, Admitted),
            (Haproxy, Admitted),
            (Weir, Admitted),
            (Nginx, Refused),
            (Haproxy, Refused),
            (Weir, Refused),
        ],
    },
    Situation {
        name: "paced",
        title: "HTTP/1.1, a small reply, 8,000 requests a second and no more",
        wire: Wire::H1,
        work: Work::Small,
        callers: Callers::One,
        connections: 64,
        streams: 1,
        pace: Some(125),
        cases: &[
            (Nginx, Admitted),
            (Haproxy, Admitted),
            (Weir, Admitted),
            (NginxLuaRedis, Admitted),
            (WeirCluster, Admitted),
        ],
    },
    Situation {
        name: "h2",
        title: "HTTP/2 without TLS, a small reply, 8 connections of 8 streams",
        wire: Wire::H2,
        work: Work::Small,
        callers: Callers::One,
        connections: 8,
        streams: 8,
        pace: None,
        cases: &[
            (Nginx, Admitted),
            (Haproxy, Admitted),
            (Weir, Admitted),
            (Nginx, Refused),
            (Haproxy, Refused),
            (Weir, Refused),
        ],
    },
    Situation {
        name: "tls",
        title: "HTTP/1.1 over TLS 1.3, a small reply, kept connections",
        wire: Wire::H1Tls,
        work: Work::Small,
        callers: Callers::One,
        connections: 64,
        streams: 1,
        pace: None,
        cases: ADMITTED,
    },
    Situation {
        name: "tls-h2",
        title: "HTTP/2 over TLS 1.3, a small reply, 8 connections of 8 streams",
        wire: Wire::H2Tls,
        work: Work::Small,
        callers: Callers::One,
        connections: 8,
        streams: 8,
        pace: None,
        cases: ADMITTED,
    },
    Situation {
        name: "download",
        title: "HTTP/1.1, 1 MiB down",
        wire: Wire::H1,
        work: Work::Download,
        callers: Callers::One,
        connections: 16,
        streams: 1,
        pace: None,
        cases: ADMITTED,
    },
    Situation {
        name: "upload",
        title: "HTTP/1.1, 1 MiB up",
        wire: Wire::H1,
        work: Work::Upload,
        callers: Callers::One,
        connections: 16,
        streams: 1,
        pace: None,
        cases: ADMITTED,
    },
];

/// The case that is measured twice, and its second measurement: their difference is noise.
pub const CALIBRATION: (&str, &str) = ("h1/nginx/admitted", "h1/nginx/admitted/again");

/// Which of a case's figures a target is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// CPU time of the proxy per request.
    Cpu,
    /// CPU time of all Redis servers per request.
    RedisCpu,
}

/// A ratio that Weir must reach, and the next one that it should reach.
pub struct Target {
    pub what: &'static str,
    pub measure: Measure,
    pub ours: &'static str,
    pub theirs: &'static str,
    pub must: f64,
    pub then: Option<f64>,
}

const fn cpu(
    what: &'static str,
    ours: &'static str,
    theirs: &'static str,
    must: f64,
    then: f64,
) -> Target {
    Target { what, measure: Measure::Cpu, ours, theirs, must, then: Some(then) }
}

/// The design's targets, for the proxies that this machine's packages include.
pub const TARGETS: &[Target] = &[
    cpu("admitted, vs nginx `limit_req`", "h1/weir/admitted", "h1/nginx/admitted", 1.05, 1.0),
    cpu(
        "the same, a thousand keys in a header",
        "keys/weir/admitted",
        "keys/nginx/admitted",
        1.1,
        1.05,
    ),
    cpu("no limit, vs nginx", "h1/weir/plain", "h1/nginx/plain", 0.95, 0.9),
    cpu("refused, vs nginx `limit_req`", "h1/weir/refused", "h1/nginx/refused", 1.0, 0.9),
    cpu("HTTP/2, admitted", "h2/weir/admitted", "h2/nginx/admitted", 1.0, 0.9),
    cpu("TLS 1.3, HTTP/1.1", "tls/weir/admitted", "tls/nginx/admitted", 1.05, 1.0),
    cpu("TLS 1.3, HTTP/2", "tls-h2/weir/admitted", "tls-h2/nginx/admitted", 1.05, 1.0),
    cpu("1 MiB down, vs nginx", "download/weir/admitted", "download/nginx/admitted", 1.0, 0.9),
    cpu("1 MiB down, vs HAProxy", "download/weir/admitted", "download/haproxy/admitted", 1.0, 0.9),
    cpu("1 MiB up, vs nginx", "upload/weir/admitted", "upload/nginx/admitted", 1.0, 0.9),
    cpu("1 MiB up, vs HAProxy", "upload/weir/admitted", "upload/haproxy/admitted", 1.0, 0.9),
    cpu("8,000 requests a second", "paced/weir/admitted", "paced/nginx/admitted", 1.1, 1.0),
    Target {
        what: "leased from a Redis Cluster, vs in memory",
        measure: Measure::Cpu,
        ours: "h1/weir-leased/admitted",
        theirs: "h1/weir/admitted",
        must: 1.05,
        then: None,
    },
    Target {
        what: "Redis Cluster, vs nginx + Lua + Redis, admitted",
        measure: Measure::Cpu,
        ours: "clients/weir-cluster/admitted",
        theirs: "clients/nginx-lua-redis/admitted",
        must: 0.55,
        then: None,
    },
    Target {
        what: "Redis' own CPU for it",
        measure: Measure::RedisCpu,
        ours: "clients/weir-cluster/admitted",
        theirs: "clients/nginx-lua-redis/admitted",
        must: 0.5,
        then: None,
    },
];

/// One line of a table.
#[derive(Clone)]
pub struct Case {
    pub situation: &'static Situation,
    pub subject: Subject,
    pub limit: Limit,
    /// The second measurement of the same case in its situation.
    pub again: bool,
}

impl Case {
    /// `h1/nginx/admitted`: `CASES` selects by these names.
    pub fn name(&self) -> String {
        let subject = match self.subject {
            Nginx => "nginx",
            Haproxy => "haproxy",
            NginxLuaRedis => "nginx-lua-redis",
            Weir => "weir",
            WeirCluster => "weir-cluster",
            WeirLeased => "weir-leased",
        };
        let limit = match self.limit {
            Plain => "plain",
            Admitted => "admitted",
            Refused => "refused",
        };
        format!(
            "{}/{subject}/{limit}{}",
            self.situation.name,
            if self.again { "/again" } else { "" }
        )
    }

    /// The case as tables and picture name it, below the title of its situation.
    pub fn title(&self) -> String {
        let subject = match (self.subject, self.limit) {
            (Nginx, Plain) => "nginx",
            (Nginx, _) => "nginx limit_req",
            (Haproxy, Plain) => "HAProxy",
            (Haproxy, _) => "HAProxy stick-table",
            (NginxLuaRedis, _) => "nginx + Lua + Redis",
            (Weir, Plain) => "Weir",
            (Weir, _) => "Weir, Wasm + embedded",
            (WeirCluster, _) => "Weir, Wasm + 3-master cluster",
            (WeirLeased, _) => "Weir, Wasm + cluster, leased",
        };
        let limit = match self.limit {
            Plain => "no limit",
            Admitted => "admitted",
            Refused => "refused",
        };
        format!("{subject}, {limit}{}", if self.again { ", once more" } else { "" })
    }

    pub fn is_weir(&self) -> bool {
        matches!(self.subject, Weir | WeirCluster | WeirLeased)
    }

    pub fn is_nginx(&self) -> bool {
        matches!(self.subject, Nginx | NginxLuaRedis)
    }

    /// The base of the ratios in its table: nginx with a limit, in the same situation, with the
    /// same outcome.
    pub fn is_baseline(&self) -> bool {
        self.subject == Nginx && self.limit != Plain && !self.again
    }
}

/// The cases whose names start with one of these words or contain one between slashes; all cases if
/// there are no words.
pub fn chosen(words: &[String]) -> Result<Vec<Case>, String> {
    let mut all: Vec<Case> = Vec::new();
    for situation in SITUATIONS {
        for (index, &(subject, limit)) in situation.cases.iter().enumerate() {
            let again = situation.cases[..index].contains(&(subject, limit));
            all.push(Case { situation, subject, limit, again });
        }
    }
    let fits = |case: &Case, word: &str| {
        let name = case.name();
        name.starts_with(word) && word.contains('/') || name.split('/').any(|part| part == word)
    };
    if let Some(word) = words.iter().find(|word| !all.iter().any(|case| fits(case, word))) {
        let names: Vec<String> = all.iter().map(Case::name).collect();
        return Err(format!(
            "CASES: no case has {word:?} in its name; the names are\n  {}",
            names.join("\n  ")
        ));
    }
    all.retain(|case| words.is_empty() || words.iter().any(|word| fits(case, word)));
    Ok(all)
}
