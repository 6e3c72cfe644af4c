//! A guest of `weir:policy@0.9.0` that uses all of the contract. The fact `query` selects what it
//! answers, and the labels of its settlement repeat what `settle` was shown.

use weir_policy::bindings::exports::weir::policy::handler::Guest;
use weir_policy::bindings::weir::policy::host::{self, VerifyingKey};
use weir_policy::bindings::weir::policy::types::*;
use weir_policy::bindings::weir::policy::usage::*;

struct Kept;

const SECOND: Rate = Rate { amount: 6, per_ms: 1_000 };

fn limit(name: &str, algorithm: Algorithm) -> Limit {
    Limit {
        name: name.into(),
        key: "k".into(),
        tag: Some("t".into()),
        algorithm,
        cost: 2,
        unit: Some("units".into()),
        enforcement: Enforcement::Enforce,
        refund: Refund::BySettle,
        debt: None,
        on_store_error: Fallback::Deny,
        options: Vec::new(),
    }
}

fn decision(verdict: Verdict) -> Decision {
    Decision {
        verdict,
        upstream_headers: vec![("x-plan".into(), "gold".into())],
        response_headers: vec![("x-seen".into(), "yes".into())],
        labels: vec![("kept".into(), "0.9.0".into())],
        settle_with: Some("memo".into()),
        settle_on_refusal: true,
        body_changes: vec![BodyChange { pointer: "/a".into(), json: "true".into() }],
        metering: None,
        valid_until_ms: None,
        options: Vec::new(),
    }
}

fn algorithms() -> Vec<Limit> {
    let bucket = Bucket { burst: 9, rate: SECOND };
    let quota = Quota {
        amount: 6,
        calendar: Calendar::Month,
        time_zone: "Europe/Berlin".into(),
        anchor_day: 31,
        conditional: false,
    };
    let number = |name: &str, number| (name.to_owned(), Value::Number(number));
    let named = Named {
        name: "fixed-window".into(),
        arguments: vec![
            number("quota", 6),
            number("period-ms", 1_000),
            ("alignment".into(), Value::Text("clock".into())),
        ],
    };
    let window = FixedWindow { rate: SECOND, alignment: Alignment::Clock };
    let script = Script { name: "mine".into(), arguments: vec![7, -8] };
    let shaped = LeakyBucket { burst: 1, rate: SECOND, max_delay_ms: 500 };
    let all = [
        ("fixed", Algorithm::FixedWindow(window)),
        ("counter", Algorithm::SlidingWindowCounter(SECOND)),
        ("log", Algorithm::SlidingWindowLog(SECOND)),
        ("buckets", Algorithm::SlidingWindowBuckets(SlidingBuckets { rate: SECOND, buckets: 7 })),
        ("token", Algorithm::TokenBucket(bucket)),
        ("gcra", Algorithm::Gcra(bucket)),
        ("leaky", Algorithm::LeakyBucket(shaped)),
        ("flight", Algorithm::Concurrency(6)),
        ("month", Algorithm::Quota(quota)),
        ("script", Algorithm::Script(script)),
        ("named", Algorithm::Named(named)),
    ];
    all.into_iter().map(|(name, algorithm)| limit(name, algorithm)).collect()
}

fn metered() -> Decision {
    let taken =
        Limit { debt: Some(Debt::Window), ..limit("tokens", algorithms().remove(0).algorithm) };
    let used = Estimate { base: 1, terms: vec![Term { group: 1, meter: 0, units: 3, per: 2 }] };
    let cut = HardCut { limits: vec!["tokens".into()], taken: 2, step: 4, used };
    let metering = Metering {
        meters: vec![Meter { pointer: "/usage/total".into(), gather: Gather::Last }],
        read_on_ms: 5_000,
        partial: None,
        hard_cut: Some(cut),
    };
    Decision { metering: Some(metering), ..decision(Verdict::Check(vec![taken])) }
}

fn partial() -> Decision {
    let limits = vec!["tokens".to_owned()];
    let partial = Partial { limits, least: 2, tell: vec!["/max_tokens".into()], base: 1 };
    let metering =
        Metering { meters: Vec::new(), read_on_ms: 0, partial: Some(partial), hard_cut: None };
    let taken = limit("tokens", algorithms().remove(0).algorithm);
    Decision { metering: Some(metering), ..decision(Verdict::Check(vec![taken])) }
}

fn timed() -> Decision {
    let now = host::now_ms();
    let shown = host::local_time("Europe/Berlin").map_or_else(String::new, |at| {
        let zone = format!("{}+{}", at.weekday, at.offset_s);
        let until = at.offset_until_ms.map_or(0, |until| until);
        format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02} {zone} {until}",
            at.year, at.month, at.day, at.hour, at.minute, at.second
        )
    });
    let unknown = host::local_time("Mars/Olympus").is_none();
    let key = VerifyingKey::Hs256(b"secret".to_vec());
    let wrong = !host::verify(&key, b"message", b"");
    let mut timed = decision(Verdict::Bypass);
    timed.labels = vec![("at".into(), shown), ("others".into(), format!("{unknown} {wrong}"))];
    // A decision about a body is never remembered.
    timed.body_changes.clear();
    timed.valid_until_ms = Some(now + 30_000);
    timed
}

fn denial() -> Denial {
    let body = Body { media_type: "application/json".into(), text: "{}".into() };
    Denial {
        status: 403,
        reason: "not you".into(),
        retry_after_ms: Some(5_000),
        headers: vec![("x-why".into(), "because".into())],
        body: Some(body),
    }
}

impl Guest for Kept {
    fn configure(config: String) -> Result<Manifest, Vec<Mistake>> {
        host::log(host::Level::Info, &config);
        if config.contains("wrong") {
            let message = "found \"wrong\", expected \"right\"".to_owned();
            return Err(vec![Mistake { path: "key".into(), message }]);
        }
        let declared = DeclaredLimit {
            name: "gcra".into(),
            at: "limits[0]".into(),
            algorithm: Algorithm::Gcra(Bucket { burst: 9, rate: SECOND }),
            debt: Some(Debt::Units(7)),
            key_facts: vec!["query".into()],
            key_prefix: "gold/".into(),
            together: Some("limits".into()),
            cost_max: Some(2),
            options: Vec::new(),
        };
        let warning = Warning {
            kind: "kept".into(),
            path: "limits[0].quota".into(),
            message: "it is small".into(),
            beside: vec![("limits[1].quota".into(), "this is larger".into())],
            remedy: Some("raise it".into()),
        };
        Ok(Manifest {
            request_facts: vec!["query".into(), "client-ip".into()],
            response_facts: vec!["header.x-cost".into()],
            pure: true,
            limits: vec![declared],
            warnings: vec![warning],
            options: Vec::new(),
        })
    }

    fn decide(facts: Vec<Fact>) -> Result<Decision, String> {
        let query = facts.iter().find(|(name, _)| name == "query");
        Ok(match query.map_or("", |(_, value)| value.as_str()) {
            "algorithms" => decision(Verdict::Check(algorithms())),
            "metered" => metered(),
            "partial" => partial(),
            "timed" => timed(),
            "deny" => decision(Verdict::Deny(denial())),
            "option" => {
                let mut limits = algorithms();
                limits.truncate(1);
                for limit in &mut limits {
                    limit.options = vec![("colour".into(), "red".into())];
                }
                decision(Verdict::Check(limits))
            }
            "error" => return Err("I would rather not".into()),
            _ => decision(Verdict::Bypass),
        })
    }

    fn settle(memo: String, response: ResponseView) -> Result<Settlement, String> {
        let outcome = match response.outcome {
            Outcome::Completed => "completed",
            Outcome::Unsent => "unsent",
            Outcome::TimedOut => "timed-out",
            Outcome::UpstreamFailed => "upstream-failed",
            Outcome::ClientGone => "client-gone",
            Outcome::Overdue => "overdue",
            Outcome::Refused => "refused",
        };
        let origin = match response.status_from {
            Origin::Upstream => "upstream",
            Origin::Proxy => "proxy",
        };
        let facts = response.facts.iter().map(|(name, value)| format!("{name}={value}"));
        let limits = response.limits.iter().map(|limit| {
            let resets = limit.resets_ms.map_or_else(|| "unknown".to_owned(), |ms| ms.to_string());
            format!("{} {} {} {resets}", limit.name, limit.fits, limit.remaining)
        });
        let told: Vec<String> = facts.chain(limits).collect();
        let change = |limit: &str, change| Adjustment { limit: limit.into(), change };
        Ok(Settlement {
            adjustments: vec![
                change("a", Change::Units(-1)),
                change("b", Change::Debt(2)),
                change("c", Change::Reset),
            ],
            labels: vec![
                ("ended".into(), format!("{memo} {outcome} {} {origin}", response.status)),
                ("told".into(), told.join(", ")),
            ],
            amounts: vec![("tokens".into(), 3)],
            options: Vec::new(),
        })
    }
}

weir_policy::bindings::__export_policy!(Kept with_types_in weir_policy::bindings);
