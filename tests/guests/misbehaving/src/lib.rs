//! A policy that behaves until the fact `query` tells it how to fail, in ways that real policies
//! do.

use std::hint::black_box;
use std::time::Duration;

use weir_policy::{
    Adjustment, Algorithm, Calendar, Change, Decision, Denial, Facts, Level, Limit, Limits,
    Manifest, Mistakes, Outcome, Partial, Policy, Quota, Refund, ResponseView, Settlement,
    VerifyingKey, log, now_ms, verify,
};

/// The content of the manifest, so that a test can choose it.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Misbehaving {
    #[serde(default)]
    facts: Vec<String>,
    #[serde(default)]
    response_facts: Vec<String>,
    #[serde(default)]
    pure: bool,
    #[serde(default)]
    loops_in_configure: bool,
    #[serde(default)]
    works_in_configure: bool,
    #[serde(default)]
    asks_time_in_configure: bool,
    /// Between these times, in milliseconds since 1970, each decision panics.
    #[serde(default)]
    broken_ms: Option<(u64, u64)>,
    /// Not in the manifest, and in no decision.
    #[serde(default, rename = "limits")]
    _undeclared: Limits,
    #[serde(skip)]
    calls: std::cell::Cell<u64>,
}

/// Takes several milliseconds.
const CONFIGURE_ROUNDS: u64 = 20_000_000;

thread_local! {
    static KEPT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

impl Policy for Misbehaving {
    type Config = Self;

    const SETTLES: bool = true;

    fn new(config: Self) -> Result<Self, Mistakes> {
        while black_box(config.loops_in_configure) {
            black_box(());
        }
        if config.works_in_configure {
            work(CONFIGURE_ROUNDS);
        }
        if config.asks_time_in_configure {
            black_box(now_ms());
        }
        Ok(config)
    }

    fn manifest(&self) -> Manifest {
        let manifest = Manifest::reads(["query"])
            .and(self.facts.clone())
            .and_of_response(self.response_facts.clone());
        if self.pure { manifest.pure() } else { manifest }
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        self.calls.set(self.calls.get() + 1);
        if self.broken_ms.is_some_and(|(from, until)| (from..until).contains(&now_ms())) {
            return Ok(panics());
        }
        let how = facts.get("query").unwrap_or("");
        let one = |name: &str, key: &str| Decision::check([limit(name, key)]);
        Ok(match how {
            "" | "well" => one("a", "k"),
            "calls" => one("a", &self.calls.get().to_string()),
            "now" => one(
                "a",
                &format!("{} {}", now_ms(), {
                    work(3);
                    now_ms()
                }),
            ),
            "leak" => {
                std::mem::forget(vec![1_u8; 64 << 10]);
                one("a", "k")
            }
            "bypass" => Decision::bypass(),
            "no-limits" => Decision::check([]),
            "deny" => Decision::deny(
                Denial::new(403, "not you")
                    .retry_after(Duration::from_secs(5))
                    .header("x-why", "because"),
            ),
            "decorated" => one("a", "k")
                .upstream_header("X-Plan", "gold")
                .response_header("x-plan", "gold")
                .label("plan", "gold")
                .settle_with("memo"),
            "trailer" => {
                let day = Algorithm::fixed_window(100, Duration::from_secs(86_400));
                Decision::check([Limit::new("a", "k", day)]).settle_with("trailer")
            }
            "loop" => loop {
                black_box(());
            },
            "work" => {
                work(3_000_000);
                one("a", "k")
            }
            "memory" => one("a", &hog()),
            "recursion" => one("a", &deep(1).to_string()),
            "panic" => panics(),
            "error" => return Err("I would rather not".repeat(100)),
            "log" => {
                (0..1_000).for_each(|line| {
                    log(Level::Info, &format!("line {line}\n{}", "x".repeat(5_000)))
                });
                one("a", "k")
            }
            "big-key" => one("a", &"k".repeat(8 << 20)),
            "long-key" => one("a", &"k".repeat(4_097)),
            "bad-name" => one("{x}", "k"),
            "two-names" => Decision::check([limit("a", "k"), limit("a", "l")]),
            "17-limits" => Decision::check((0..17).map(|index| limit(&format!("l{index}"), "k"))),
            "million-limits" => Decision::check((0..100_000).map(|_| limit("a", "k"))),
            "period-0" => {
                Decision::check([Limit::new("a", "k", Algorithm::fixed_window(1, Duration::ZERO))])
            }
            "cost" => Decision::check([limit("a", "k").cost(u64::MAX)]),
            "status-200" => Decision::deny(Denial::new(200, "")),
            "framing" => one("a", "k").upstream_header("Transfer-Encoding", "chunked"),
            "host" => one("a", "k").upstream_header("host", "elsewhere"),
            "smuggle" => one("a", "k").upstream_header("x-a", "b\r\nx-c: d"),
            "header-name" => one("a", "k").response_header("x a", "b"),
            "wide-value" => one("a", "k").response_header("x-a", "\u{20ac}"),
            "33-headers" => (0..33).fold(one("a", "k"), |decision, index| {
                decision.upstream_header(format!("x-{index}"), "v")
            }),
            "memo" => one("a", "k").settle_with("m".repeat(5_000)),
            "label" => one("a", "k").label("a b", "c"),
            other => return longer(other).ok_or_else(|| format!("unknown: {other}")),
        })
    }

    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let limit =
            response.limits.first().map_or_else(|| "a".to_owned(), |limit| limit.name.clone());
        match memo {
            "loop" => loop {
                black_box(());
            },
            "huge" => Ok(Adjustment { limit, change: Change::Units(i64::MIN) }.into()),
            "many" => Ok((0..17).map(|_| Adjustment::charge(limit.clone(), 1)).collect()),
            // The cost as reported at the end of the response.
            "trailer" => {
                let cost = response
                    .facts
                    .iter()
                    .find(|(name, _)| name == "trailer.x-cost")
                    .and_then(|(_, cost)| cost.parse().ok());
                Ok(cost.map(|units| Adjustment::charge(limit, units)).into_iter().collect())
            }
            "strikes" if response.outcome == Outcome::Refused => {
                Ok(Settlement::from(Adjustment::charge("strikes", 1))
                    .label("ended", "refused")
                    .amount("strikes", 2)
                    .amount("hidden", 1))
            }
            "strikes" => Ok(Settlement::nothing().label("ended", "otherwise")),
            "17-amounts" => Ok((0..17u64).fold(Settlement::nothing(), |settlement, index| {
                settlement.amount(format!("a{index}"), index)
            })),
            "amount-name" => Ok(Settlement::nothing().amount("a b", 1)),
            "settle-label" => Ok(Settlement::nothing().label("a b", "c")),
            "reset" => Ok(Adjustment::reset(limit).into()),
            "give-back" => Ok(Adjustment::give_back(limit, 1).into()),
            "owe" => Ok(Adjustment::debt(limit, 1).into()),
            "elsewhere" => Ok(Adjustment::charge("nowhere", 1).into()),
            _ => {
                let units =
                    i64::from(response.status) - 200 + i64::try_from(memo.len()).unwrap_or(0);
                Ok(Adjustment { limit, change: Change::Units(units) }.into())
            }
        }
    }
}

/// Decisions that need more than a line.
fn longer(query: &str) -> Option<Decision> {
    let one = |name: &str, key: &str| Decision::check([limit(name, key)]);
    Some(match query {
        "no-zone" => {
            let quota = Quota::new(1, Calendar::Day).time_zone("Europe/Atlantis");
            Decision::check([Limit::new("a", "k", quota.into())])
        }
        // What the last request asked to be kept.
        "keep-a" | "keep-b" => one("a", &format!("before: {}", KEPT.replace(query.to_owned()))),
        // Refusals of `calls` are counted by `strikes`.
        "strikes" => {
            let window = |quota| Algorithm::fixed_window(quota, Duration::from_secs(3_600));
            Decision::check([
                Limit::new("calls", "k", window(1)),
                Limit::new("strikes", "k", window(3)).cost(0),
            ])
            .label("kind", "counted")
            .label("hidden", "x")
            .settle_with("strikes")
            .settle_refusals()
        }
        // What `settle` then does is not allowed for this limit.
        "settles-reset" => one("a", "k").settle_with("reset"),
        "settles-give-back" => one("a", "k").settle_with("give-back"),
        "settles-owe" => one("a", "k").settle_with("owe"),
        "settles-elsewhere" => one("a", "k").settle_with("elsewhere"),
        "edits" => digests(edits(1)).body_change("/max_tokens", "5"),
        "digests" => digests(edits(0)),
        // Takes what is left, if that is less, and says so in the body.
        "lowers" => edits(8).partial(Partial::new(["edits"], 1).tell(["/max_tokens"], 0)),
        "own-body" => {
            let body = r#"{"errors":[{"message":"no"}]}"#;
            Decision::deny(Denial::new(403, "no").body("application/json", body))
        }
        "long-body" => {
            let text = "b".repeat(20_000);
            Decision::deny(Denial::new(403, "").body("text/plain", text))
        }
        "media-type" => Decision::deny(Denial::new(403, "").body("text\r\nx: y", "")),
        "verifies" => (0..17).fold(one("a", "k"), |decision, _| {
            let right = verify(&VerifyingKey::Hs256(b"secret".to_vec()), b"message", b"");
            decision.label("right", right.to_string())
        }),
        _ => return None,
    })
}

fn limit(name: &str, key: &str) -> Limit {
    Limit::new(name, key, Algorithm::gcra(10, Duration::from_secs(1), 10))
}

/// Charges a limit of ten a day.
fn edits(cost: u64) -> Decision {
    let day = Algorithm::fixed_window(10, Duration::from_secs(86_400));
    Decision::check([Limit::new("edits", "k", day).cost(cost).refund(Refund::BySettle)])
}

/// Sets digests of a body that the policy has never seen.
fn digests(decision: Decision) -> Decision {
    decision
        .upstream_header("content-digest", "sha-256=:AA==:")
        .upstream_header("repr-digest", "sha-256=:AA==:")
}

fn work(rounds: u64) {
    for round in 0..rounds {
        black_box(round);
    }
}

fn hog() -> String {
    let mut held = Vec::new();
    loop {
        held.push(vec![1_u8; 1 << 20]);
        if black_box(held.len()) == usize::MAX {
            return String::new();
        }
    }
}

/// Not a tail call: each level keeps a frame of its own.
#[allow(unconditional_recursion, reason = "it is what this guest is for")]
fn deep(level: u64) -> u64 {
    let frame = black_box([level; 64]);
    let below = deep(black_box(level + 1));
    frame.iter().fold(below, |sum, word| sum.wrapping_add(*word))
}

fn panics() -> Decision {
    let nothing: &[u64] = black_box(&[]);
    Decision::check([limit(&nothing.iter().map(|_| 'a').collect::<String>(), "k")
        .cost(1 / black_box(nothing.len() as u64))])
}

weir_policy::export!(Misbehaving);
