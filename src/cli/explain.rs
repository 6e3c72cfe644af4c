//! `weir explain`: what would become of a request under a configuration, and why. The counters are
//! fresh, and time is virtual: nothing of a running proxy is read or changed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{CONFIG_DEFAULT, request, words, wrong, wrong_config};
use crate::app::{self, SimulatedReply, Simulation};
use crate::cli::print::{out, print_json};
use crate::clock::Clock;
use crate::plan::{Enforcement, LimitOutcome, Role};
use crate::policy;
use crate::proxy::account::{Account, Cause, LimitAccount, Verdict};
use crate::proxy::trial::{TrialReply, TrialRequest};

/// The first requests of `--times` that are shown, besides those where the verdict changes, and the
/// last.
const SHOWN_MAX: u32 = 5;
/// The most requests that `--times` sends.
const TIMES_MAX: i64 = 10_000_000;

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// A request, as in 'GET /search x-api-key: abc from 203.0.113.7'
    request: String,
    /// The configuration file
    #[arg(long, default_value = CONFIG_DEFAULT)]
    config: PathBuf,
    /// One more header field, as in 'x-api-key: abc', with any value: in a request, a value ends
    /// before `from` and before a word that ends with a colon. Can be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = request::header)]
    headers: Vec<(String, String)>,
    /// The name of the listener that it comes to; if none is named, the first one of the
    /// configuration that neither redirects to https nor answers calls for decisions
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// The request's body
    #[arg(long)]
    body: Option<String>,
    /// Send it this many times at one moment; the first few are shown, each at which the verdict
    /// changes, and the last
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=TIMES_MAX))]
    times: u32,
    /// The status that the upstream answers
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// One of the requests that are shown.
struct ShownRequest {
    nth: u32,
    ran: SimulatedReply,
}

impl Explain {
    pub(super) fn run(self) -> ExitCode {
        app::start_quiet_log();
        let code = self.explain();
        app::flush_log();
        code
    }

    fn explain(&self) -> ExitCode {
        let mut asked = match request::parse(&self.request) {
            Ok(asked) => asked,
            Err(message) => return wrong(&message),
        };
        asked.headers.extend_from_slice(&self.headers);
        asked.listener.clone_from(&self.listener);
        asked.body = self.body.as_deref().unwrap_or_default().as_bytes().to_vec();
        let start_us = Clock::system().wall_us();
        let simulation =
            app::load(&self.config).and_then(|config| Simulation::build(config, start_us));
        let mut simulation = match simulation {
            Ok(simulation) => simulation,
            Err(errors) => return wrong_config("explain", &errors),
        };
        let shown = match self.send(&mut simulation, &asked) {
            Ok(shown) => shown,
            Err(message) => return wrong(&message),
        };
        if self.json {
            print_json(&self.as_json(&asked, &shown));
        } else {
            out!("{}", self.as_text(&asked, &shown));
        }
        ExitCode::SUCCESS
    }

    /// Sends the request as often as it is asked for, and keeps those that are shown.
    fn send(
        &self,
        simulation: &mut Simulation,
        asked: &TrialRequest,
    ) -> Result<Vec<ShownRequest>, String> {
        let (mut shown, mut before) = (Vec::new(), None);
        for nth in 1..=self.times {
            let reply = TrialReply::answer(self.status);
            let ran = match self.times {
                1 => simulation.send(asked, reply, Duration::ZERO),
                _ => simulation.send_together(asked, reply),
            };
            let ran = ran.map_err(|unusable| unusable.to_string())?;
            let verdict = ran.account.verdict;
            let changed = before.replace(verdict) != Some(verdict);
            if changed || nth <= SHOWN_MAX || nth == self.times {
                shown.push(ShownRequest { nth, ran });
            }
        }
        Ok(shown)
    }

    fn as_text(&self, asked: &TrialRequest, shown: &[ShownRequest]) -> String {
        let mut text = format!(
            "{}, by {}: fresh counters, in virtual time\n",
            words::request(asked),
            self.config.display()
        );
        for ShownRequest { nth, ran } in shown {
            let account = &ran.account;
            let verdict = words::outcome(account);
            let refusing: Vec<&str> = account.refusing().map(|of| of.limit.name.as_str()).collect();
            let by = match refusing.is_empty() {
                true => String::new(),
                false => format!(" by {}", refusing.join(" and ")),
            };
            let passes = account.retry_after.map(words::wait);
            let passes = passes.map(|wait| format!(", passes in {wait}")).unwrap_or_default();
            let which = match self.times {
                1 => String::new(),
                times => format!("{nth} of {times}: "),
            };
            let answers = self.own_answer(account);
            let answers = answers.map(|status| format!(", and the route answers {status} itself"));
            let answers = answers.unwrap_or_default();
            text.push_str(&format!("{which}{verdict}{by}{passes}{answers}\n"));
            text.push_str(&words::account(account, &ran.left));
        }
        text
    }

    /// The status of a request that was let through and not answered by its upstream: a route may
    /// have an answer of its own.
    fn own_answer(&self, account: &Account) -> Option<u16> {
        let passes = matches!(
            account.verdict,
            Some(Verdict::Admitted | Verdict::Bypassed | Verdict::Uncounted)
        );
        let status = account.status.filter(|status| passes && *status != self.status);
        status.filter(|_| account.route.is_some())
    }

    fn as_json(&self, asked: &TrialRequest, shown: &[ShownRequest]) -> Value {
        let headers: Vec<Value> = asked.headers.iter().map(pair).collect();
        json!({
            "config": self.config.display().to_string(),
            "counters": "fresh",
            "time": "virtual",
            "request": {
                "method": asked.method,
                "target": asked.target,
                "client": asked.from.to_string(),
                "headers": headers,
            },
            "times": self.times,
            "shown": shown.iter().map(one).collect::<Vec<Value>>(),
        })
    }
}

fn pair((name, value): &(String, String)) -> Value {
    json!({ "name": name, "value": value })
}

fn one(ShownRequest { nth, ran }: &ShownRequest) -> Value {
    let SimulatedReply { account, left, .. } = ran;
    let facts: Vec<Value> = account.facts.iter().map(pair).collect();
    let limits = account.limits.iter().map(|of| {
        let now = left.iter().find(|(name, _)| *name == of.limit.name).map(|(_, now)| now);
        limit(of, now)
    });
    let limits: Vec<Value> = limits.collect();
    let decision = account.decision.as_deref();
    let answer = decision.map(|decision| match &decision.verdict {
        policy::Verdict::Bypass => json!({ "verdict": "bypass", "status": null, "reason": null }),
        policy::Verdict::Check(_) => json!({ "verdict": "check", "status": null, "reason": null }),
        policy::Verdict::Deny(denial) => {
            json!({ "verdict": "deny", "status": denial.status, "reason": denial.reason })
        }
    });
    let set = |pairs: Option<&Vec<(String, String)>>| -> Vec<Value> {
        pairs.into_iter().flatten().map(pair).collect()
    };
    json!({
        "nth": nth,
        "verdict": match account.to_https {
            Some(_) => "redirected".to_owned(),
            None => words::verdict(account.verdict, None),
        },
        "status": account.status,
        "redirected_to": account.to_https,
        "route": account.route,
        "cause": account.cause.map(Cause::word),
        "rejection": account.rejection.as_ref().map(app::rejection_json),
        "policy": account.policy,
        "facts": facts,
        "answer": answer,
        "limits": limits,
        "passes_in_s": account.retry_after.map(|wait| wait.as_secs_f64()),
        "waits_s": account.delay.as_secs_f64(),
        "labels": set(decision.map(|it| &it.labels)),
        "set_for_upstream": set(decision.map(|it| &it.upstream_headers)),
        "set_for_client": set(decision.map(|it| &it.response_headers)),
    })
}

fn limit(of: &LimitAccount, now: Option<&LimitOutcome>) -> Value {
    let LimitAccount { limit, took, outcome } = of;
    let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
    json!({
        "name": limit.name,
        "key": limit.key,
        "tag": limit.tag,
        "algorithm": words::algorithm(&limit.algorithm),
        "shadow": limit.enforcement == Enforcement::Shadow,
        "had": of.had(),
        "asked": limit.cost,
        "took": took,
        "refused": !outcome.fits && limit.role != Role::Assured,
        "passes_in_s": outcome.retry_after_us.filter(|_| !outcome.fits).map(seconds),
        "left": now.map(|now| now.remaining),
        "all_back_in_s": now.map(|now| seconds(now.reset_us)),
    })
}
