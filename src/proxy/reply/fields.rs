//! The fields that report a reply's limits: `RateLimit-Policy` and `RateLimit`
//! (draft-ietf-httpapi-ratelimit-headers), `X-RateLimit-*`, `Retry-After`. Knows no request.
//!
//! In the draft, `q` is a quota of units in `w` seconds, of which `r` are left for the next `t`
//! seconds. A window reports just that. So does a bucket whose burst is at most its quota. A bucket
//! with a larger burst may have more left than its quota, so it reports its burst and the time in
//! which the burst comes back, which is the same rate. Seconds are rounded up, so that no client
//! comes early.
//!
//! If too little is left, `t` is when enough is back: after a refusal, when the request would fit;
//! after the request that took the last unit, when the next one is available. A client that paces
//! itself by `t` waits as long as with `Retry-After`. What a script's quota is, only the script
//! knows: it has no member in `RateLimit-Policy`, and no `X-RateLimit-Limit`. Shadow limits, limits
//! that are only looked at (cost 0) and limits that were not measured (`unmeasured`) are not
//! reported. An upstream's own members are kept beside ours.
//!
//! `weir-held` are units that requests under way have reserved: after a refusal they tell whether
//! the allowance is spent, or only in use.

use super::json;
use crate::plan::{Limit, LimitOutcome, PlanOutcome};
use crate::proxy::settings::FieldStyle;
use crate::wire::{Fields, Known, Name};

/// The largest Integer of a structured field (RFC 9651, 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// Adds the fields of `style`. `policy_value` is the value from [`policy_value`], if it was derived
/// before.
pub(in crate::proxy) fn add(
    fields: &mut Fields,
    style: FieldStyle,
    limits: &[Limit],
    outcome: &PlanOutcome,
    policy_value: Option<&[u8]>,
) {
    match style {
        FieldStyle::Off => {}
        FieldStyle::Draft => draft(fields, limits, outcome, policy_value),
        FieldStyle::Legacy => legacy(fields, limits, outcome),
        FieldStyle::Both => {
            draft(fields, limits, outcome, policy_value);
            legacy(fields, limits, outcome);
        }
    }
}

/// Whether `style` includes the draft's fields.
pub(in crate::proxy) fn is_draft(style: FieldStyle) -> bool {
    matches!(style, FieldStyle::Draft | FieldStyle::Both)
}

/// The value of `RateLimit-Policy` for limits that were all measured; empty if none has a quota.
pub(in crate::proxy) fn policy_value(limits: &[Limit]) -> Box<[u8]> {
    let outcome = PlanOutcome {
        admitted: true,
        limits: vec![LimitOutcome::default(); limits.len()],
        store_failure: None,
    };
    let mut text = Vec::new();
    policy(&mut text, limits, &outcome);
    text.into()
}

/// Whole seconds until all refusing limits have room. `None` if waiting can't help.
pub(in crate::proxy) fn retry_after_s(limits: &[Limit], outcome: &PlanOutcome) -> Option<u64> {
    outcome.retry_after_us(limits).map(|us| seconds(us).max(1))
}

/// Microseconds as whole seconds, rounded up.
fn seconds(us: u64) -> u64 {
    us.div_ceil(1_000_000)
}

/// The limits that are reported.
fn reported<'a>(
    limits: &'a [Limit],
    outcome: &'a PlanOutcome,
) -> impl Iterator<Item = (&'a Limit, &'a LimitOutcome)> {
    limits.iter().zip(&outcome.limits).filter(|(limit, outcome)| {
        limit.is_shown() && limit.cost > 0 && outcome.unmeasured.is_none()
    })
}

fn draft(
    fields: &mut Fields,
    limits: &[Limit],
    outcome: &PlanOutcome,
    policy_value: Option<&[u8]>,
) {
    if reported(limits, outcome).next().is_none() {
        return;
    }
    if reported(limits, outcome).any(|(limit, _)| limit.algorithm.policy().is_some()) {
        fields.append_with(Known::RateLimitPolicy, |text| match policy_value {
            Some(policy_value)
                if !outcome.limits.iter().any(|outcome| outcome.unmeasured.is_some()) =>
            {
                text.extend_from_slice(policy_value)
            }
            _ => policy(text, limits, outcome),
        });
    }
    fields.append_with(Known::RateLimit, |text| {
        for (place, (limit, outcome)) in reported(limits, outcome).enumerate() {
            member(text, place, &limit.name);
            parameter(text, ";r=", outcome.remaining);
            if let Some(window_s) = effective_window_s(limit, outcome) {
                parameter(text, ";t=", window_s);
            }
            if outcome.held > 0 {
                parameter(text, ";weir-held=", outcome.held);
            }
        }
    });
}

fn policy(text: &mut Vec<u8>, limits: &[Limit], outcome: &PlanOutcome) {
    let quotas =
        reported(limits, outcome).filter_map(|(limit, _)| Some((limit, limit.algorithm.policy()?)));
    for (place, (limit, (quota, window_s))) in quotas.enumerate() {
        member(text, place, &limit.name);
        parameter(text, ";q=", quota);
        if let Some(window_s) = window_s {
            parameter(text, ";w=", window_s);
        }
        if let Some(unit) = unit(limit).filter(|unit| *unit != "requests" && is_printable(unit)) {
            text.extend_from_slice(b";qu=");
            string(text, unit);
        }
    }
}

/// `t`. `None` if time alone brings nothing back: concurrency, quotas that are never reset, and a
/// quota of 0.
fn effective_window_s(limit: &Limit, outcome: &LimitOutcome) -> Option<u64> {
    let us = match outcome {
        LimitOutcome { retry_after_us: Some(us), .. } => *us,
        LimitOutcome { fits: true, remaining: 0, reset_us, .. } => {
            limit.algorithm.unit_back_us(*reset_us)
        }
        _ => outcome.reset_us,
    };
    let is_closed = matches!(limit.algorithm.policy(), Some((0, _)));
    (limit.algorithm.refills() && !is_closed).then(|| seconds(us))
}

/// The unit that is counted, if it is not requests.
fn unit(limit: &Limit) -> Option<&str> {
    limit.unit.as_deref().or_else(|| limit.algorithm.unit())
}

/// Reports one limit: the refusing one with the longest wait, or else the one with the smallest
/// share left. A script has no share: it is reported if less is left of it than of that one.
fn legacy(fields: &mut Fields, limits: &[Limit], outcome: &PlanOutcome) {
    let quota = |limit: &Limit| limit.algorithm.policy().map(|(quota, _)| quota);
    let wait =
        |limit, outcome: &LimitOutcome| std::cmp::Reverse(effective_window_s(limit, outcome));
    let all = || reported(limits, outcome);
    let with_quota = all().filter_map(|(limit, outcome)| Some((limit, outcome, quota(limit)?)));
    let tightest = with_quota.min_by_key(|(limit, outcome, quota)| {
        let quota = u128::from((*quota).max(1));
        let share = u128::from(outcome.remaining) * u128::from(u32::MAX) / quota;
        (outcome.fits, share, wait(limit, outcome))
    });
    let tightest = tightest.map(|(limit, outcome, _)| (limit, outcome));
    let scripts = all().filter(|(limit, _)| quota(limit).is_none());
    let tightest = tightest
        .into_iter()
        .chain(scripts)
        .min_by_key(|(limit, outcome)| (outcome.fits, outcome.remaining, wait(limit, outcome)));
    let Some((limit, outcome)) = tightest else { return };
    match quota(limit) {
        Some(quota) => set_number(fields, "x-ratelimit-limit", quota),
        // The upstream's own would say nothing of this limit.
        None => _ = fields.remove("x-ratelimit-limit"),
    }
    set_number(fields, "x-ratelimit-remaining", outcome.remaining);
    set_number(fields, "x-ratelimit-reset", effective_window_s(limit, outcome).unwrap_or(0));
}

/// Starts the list's member number `place`. A limit's name needs no escaping.
fn member(text: &mut Vec<u8>, place: usize, name: &str) {
    if place > 0 {
        text.push(b',');
    }
    text.push(b'"');
    text.extend_from_slice(name.as_bytes());
    text.push(b'"');
}

/// Sets a field that is one number.
pub(in crate::proxy) fn set_number<'n>(fields: &mut Fields, name: impl Into<Name<'n>>, value: u64) {
    let name = name.into();
    fields.remove(name);
    fields.append_with(name, |text| json::number(text, value));
}

fn parameter(text: &mut Vec<u8>, parameter: &str, value: u64) {
    text.extend_from_slice(parameter.as_bytes());
    json::number(text, value.min(INTEGER_MAX));
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

fn string(text: &mut Vec<u8>, value: &str) {
    text.push(b'"');
    for byte in value.bytes() {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use sfv::{BareItem, List, ListEntry, Parser};

    use super::*;
    use crate::plan::{
        Algorithm, Calendar, Debt, Enforcement, Gcra, LeakyBucket, Quota, TokenBucket,
    };
    use crate::plan::{Alignment, Rate, TimeZone};
    use crate::plan::{Concurrency, FixedWindow, Script};

    fn window(name: &str, amount: u64, per_ms: u64) -> Limit {
        Limit::new(
            name,
            "k",
            Algorithm::FixedWindow(FixedWindow {
                rate: Rate { amount, per_ms },
                alignment: Alignment::Clock,
                debt: Debt::None,
            }),
        )
    }

    fn gcra(name: &str, burst: u64, amount: u64, per_ms: u64) -> Limit {
        Limit::new(
            name,
            "k",
            Algorithm::Gcra(Gcra { burst, rate: Rate { amount, per_ms }, debt: Debt::None }),
        )
    }

    fn of(admitted: bool, limits: &[LimitOutcome]) -> PlanOutcome {
        PlanOutcome { admitted, limits: limits.to_vec(), store_failure: None }
    }

    fn fits(remaining: u64, reset_us: u64) -> LimitOutcome {
        LimitOutcome { fits: true, remaining, reset_us, ..LimitOutcome::default() }
    }

    fn refuses(remaining: u64, retry_after_us: Option<u64>, reset_us: u64) -> LimitOutcome {
        LimitOutcome { remaining, retry_after_us, reset_us, ..LimitOutcome::default() }
    }

    fn fields(style: FieldStyle, limits: &[Limit], outcomes: &[LimitOutcome]) -> HeaderMap {
        let mut fields = Fields::new();
        let outcome = of(true, outcomes);
        add(&mut fields, style, limits, &outcome, None);
        // The value derived beforehand is the same.
        let mut again = Fields::new();
        add(&mut again, style, limits, &outcome, Some(&policy_value(limits)));
        assert_eq!(again.to_map(), fields.to_map());
        fields.to_map()
    }

    /// Names with their parameters, as a client's parser reads them.
    fn read(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, String)>)> {
        let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        let list: List = Parser::new(&lines.join(&b","[..])).parse().unwrap();
        let item = |entry: ListEntry| {
            let ListEntry::Item(item) = entry else { panic!("not an item") };
            let BareItem::String(name) = item.bare_item else { panic!("not a string") };
            let parameters = item.params.iter().map(|(key, value)| {
                let text = match value {
                    BareItem::Integer(number) => number.to_string(),
                    BareItem::String(text) => text.to_string(),
                    other => panic!("{other:?}"),
                };
                (key.to_string(), text)
            });
            (name.to_string(), parameters.collect())
        };
        list.into_iter().map(item).collect()
    }

    fn member(name: &str, parameters: &[(&str, &str)]) -> (String, Vec<(String, String)>) {
        (
            name.into(),
            parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        )
    }

    #[test]
    fn the_drafts_fields_are_read_back_by_a_parser() {
        let limits = [
            window("per-minute", 100, 60_000),
            Limit { unit: Some("a \"b\\".into()), ..window("x.y_z", 5, 1_500) },
        ];
        let headers = fields(FieldStyle::Draft, &limits, &[fits(99, 59_000_001), fits(0, 1)]);
        assert_eq!(headers.get("ratelimit").unwrap(), "\"per-minute\";r=99;t=60,\"x.y_z\";r=0;t=1");
        assert_eq!(
            read(&headers, "ratelimit-policy"),
            [
                member("per-minute", &[("q", "100"), ("w", "60")]),
                member("x.y_z", &[("q", "5"), ("w", "2"), ("qu", "a \"b\\")])
            ]
        );
        assert_eq!(
            read(&headers, "ratelimit"),
            [
                member("per-minute", &[("r", "99"), ("t", "60")]),
                member("x.y_z", &[("r", "0"), ("t", "1")])
            ]
        );
        assert_eq!(headers.len(), 2);
    }

    #[test]
    fn a_bucket_never_has_more_left_than_its_quota_says() {
        let policy =
            |limit| read(&fields(FieldStyle::Draft, &[limit], &[fits(0, 0)]), "ratelimit-policy");
        assert_eq!(policy(gcra("a", 10, 10, 1_000)), [member("a", &[("q", "10"), ("w", "1")])]);
        assert_eq!(policy(gcra("a", 1, 100, 1_000)), [member("a", &[("q", "100"), ("w", "1")])]);
        assert_eq!(policy(gcra("a", 20, 10, 1_000)), [member("a", &[("q", "20"), ("w", "2")])]);
        assert_eq!(policy(gcra("a", 7, 3, 1_000)), [member("a", &[("q", "7"), ("w", "3")])]);
        assert_eq!(policy(gcra("a", 7, 0, 1_000)), [member("a", &[("q", "0"), ("w", "1")])]);
    }

    /// What is never allowed does not come back, whatever a window's end is.
    #[test]
    fn a_quota_of_0_has_no_time_at_which_it_is_back() {
        for limit in [window("a", 0, 60_000), gcra("a", 0, 0, 60_000)] {
            let refused = refuses(0, None, 30_000_000);
            let headers = fields(FieldStyle::Draft, &[limit], &[refused]);
            assert_eq!(read(&headers, "ratelimit"), [member("a", &[("r", "0")])]);
        }
    }

    #[test]
    fn with_nothing_left_it_is_told_when_a_unit_is_back() {
        let reported = |limit: Limit, outcome| {
            read(&fields(FieldStyle::Draft, &[limit], &[outcome]), "ratelimit").remove(0)
        };
        let left = |r: &str, t: &str| member("a", &[("r", r), ("t", t)]);
        let token = |burst| {
            Limit::new(
                "a",
                "k",
                Algorithm::TokenBucket(TokenBucket {
                    burst,
                    rate: Rate { amount: 10, per_ms: 60_000 },
                    debt: Debt::None,
                }),
            )
        };
        assert_eq!(reported(gcra("a", 10, 10, 60_000), fits(0, 60_000_000)), left("0", "6"));
        assert_eq!(
            reported(gcra("a", 10, 10, 60_000), fits(0, 54_000_001)),
            left("0", "1"),
            "nearly there"
        );
        assert_eq!(reported(gcra("a", 10, 10, 60_000), fits(1, 54_000_000)), left("1", "54"));
        assert_eq!(
            reported(gcra("a", 10, 10, 60_000), refuses(0, Some(6_000_000), 60_000_000)),
            left("0", "6"),
            "as the refusal says"
        );
        assert_eq!(reported(token(20), fits(0, 120_000_000)), left("0", "6"));
        let leaky = Algorithm::LeakyBucket(LeakyBucket {
            burst: 1,
            rate: Rate { amount: 10, per_ms: 60_000 },
            max_delay_ms: 60_000,
        });
        assert_eq!(
            reported(Limit::new("a", "k", leaky), fits(0, 18_000_000)),
            left("0", "18"),
            "those that wait are before it"
        );
        assert_eq!(reported(window("a", 10, 60_000), fits(0, 41_000_000)), left("0", "41"));
        let headers =
            fields(FieldStyle::Legacy, &[gcra("a", 10, 10, 60_000)], &[fits(0, 60_000_000)]);
        assert_eq!(headers.get("x-ratelimit-reset").unwrap(), "6");
    }

    #[test]
    fn algorithms_without_a_window_name_none() {
        let reported = |algorithm| {
            let headers =
                fields(FieldStyle::Draft, &[Limit::new("a", "k", algorithm)], &[fits(3, 0)]);
            (read(&headers, "ratelimit-policy").remove(0), read(&headers, "ratelimit").remove(0))
        };
        let quota = |calendar| {
            Algorithm::Quota(Quota { amount: 9, calendar, conditional: true, debt: Debt::None })
        };
        assert_eq!(
            reported(Algorithm::Concurrency(Concurrency { amount: 9 })),
            (member("a", &[("q", "9"), ("qu", "concurrent-requests")]), member("a", &[("r", "3")]))
        );
        assert_eq!(
            reported(quota(Calendar::Forever)),
            (member("a", &[("q", "9")]), member("a", &[("r", "3")]))
        );
        let month = Calendar::Month { time_zone: TimeZone::utc(), anchor_day: 1 };
        assert_eq!(
            reported(quota(month)),
            (member("a", &[("q", "9")]), member("a", &[("r", "3"), ("t", "0")]))
        );
        let week = reported(quota(Calendar::Week(TimeZone::utc()))).0;
        assert_eq!(week, member("a", &[("q", "9"), ("w", "604800")]));
    }

    fn script(name: &str) -> Limit {
        let arguments = [1].into_iter().collect();
        Limit::new(name, "k", Algorithm::Script(Script { name: "mine".into(), arguments }))
    }

    #[test]
    fn a_script_reports_what_is_left_and_no_quota() {
        let headers = fields(FieldStyle::Draft, &[script("a")], &[fits(3, 0)]);
        assert_eq!(read(&headers, "ratelimit"), [member("a", &[("r", "3"), ("t", "0")])]);
        assert_eq!(headers.len(), 1);
        let both = [script("a"), window("b", 9, 1_000)];
        let headers = fields(FieldStyle::Draft, &both, &[fits(3, 0), fits(9, 0)]);
        assert_eq!(read(&headers, "ratelimit-policy"), [member("b", &[("q", "9"), ("w", "1")])]);
        assert_eq!(read(&headers, "ratelimit").len(), 2);
    }

    #[test]
    fn one_number_is_that_of_a_script_if_less_is_left_of_it() {
        let left = |script_left: u64, window_left: u64| {
            let limits = [script("a"), window("b", 1_000, 1_000)];
            let outcomes = [fits(script_left, 0), fits(window_left, 0)];
            let headers = fields(FieldStyle::Legacy, &limits, &outcomes);
            let number = |name| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
            (number("x-ratelimit-limit"), number("x-ratelimit-remaining"))
        };
        assert_eq!(left(2, 500), (None, Some(2)));
        assert_eq!(left(500, 2), (Some(1_000), Some(2)));
        assert_eq!(left(2, 2), (Some(1_000), Some(2)));
    }

    #[test]
    fn shadow_and_unmeasured_limits_and_those_only_looked_at_are_in_no_field() {
        let shadow = Limit { enforcement: Enforcement::Shadow, ..window("s", 1, 1_000) };
        let limits = [shadow.clone(), window("d", 1, 1_000), window("e", 1, 1_000)];
        let degraded =
            LimitOutcome { unmeasured: Some(crate::plan::OnStoreError::Allow), ..fits(0, 0) };
        let headers = fields(FieldStyle::Both, &limits, &[fits(0, 0), degraded, fits(1, 0)]);
        assert_eq!(read(&headers, "ratelimit"), [member("e", &[("r", "1"), ("t", "0")])]);
        assert_eq!(headers.get("x-ratelimit-remaining").unwrap(), "1");
        assert!(fields(FieldStyle::Both, &[shadow], &[fits(0, 0)]).is_empty());
        let hidden = Limit { unit: Some(String::new()), ..window("h", 1, 1_000) };
        assert!(fields(FieldStyle::Both, &[hidden], &[fits(0, 0)]).is_empty());
        let looked_at = Limit { cost: 0, ..window("l", 1, 1_000) };
        assert!(fields(FieldStyle::Both, &[looked_at], &[fits(0, 0)]).is_empty());
    }

    #[test]
    fn an_upstreams_own_members_stay() {
        let mut fields = Fields::new();
        fields.append(Known::RateLimit, "\"upstream\";r=1;t=2");
        add(
            &mut fields,
            FieldStyle::Draft,
            &[window("ours", 9, 1_000)],
            &of(true, &[fits(8, 0)]),
            None,
        );
        let names: Vec<String> =
            read(&fields.to_map(), "ratelimit").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["upstream", "ours"]);
    }

    #[test]
    fn the_legacy_fields_show_the_tightest_limit() {
        let limits = [window("day", 1_000, 86_400_000), window("minute", 10, 60_000)];
        let headers =
            fields(FieldStyle::Legacy, &limits, &[fits(500, 80_000_000_000), fits(4, 30_000_000)]);
        assert_eq!(headers.get("x-ratelimit-limit").unwrap(), "10");
        assert_eq!(headers.get("x-ratelimit-remaining").unwrap(), "4");
        assert_eq!(headers.get("x-ratelimit-reset").unwrap(), "30");
        let headers = fields(
            FieldStyle::Legacy,
            &limits,
            &[refuses(3, Some(5_000_000), 80_000_000_000), fits(0, 30_000_000)],
        );
        assert_eq!(headers.get("x-ratelimit-limit").unwrap(), "1000", "the one that refused");
        assert_eq!(headers.get("x-ratelimit-reset").unwrap(), "5");
        assert!(headers.get("ratelimit").is_none());
        assert!(fields(FieldStyle::Off, &limits, &[fits(1, 1), fits(1, 1)]).is_empty());
    }

    #[test]
    fn retry_after_is_the_longest_in_whole_seconds_and_absent_where_waiting_is_no_help() {
        let limits = [window("a", 1, 1_000), window("b", 1, 1_000), window("c", 1, 1_000)];
        let retry = |outcomes: [LimitOutcome; 3]| retry_after_s(&limits, &of(false, &outcomes));
        assert_eq!(
            retry([refuses(0, Some(1_000_001), 0), refuses(0, Some(1), 0), fits(0, 9_000_000)]),
            Some(2)
        );
        assert_eq!(retry([refuses(0, Some(0), 0), fits(0, 0), fits(0, 0)]), Some(1));
        assert_eq!(retry([refuses(0, Some(1), 0), refuses(0, None, 0), fits(0, 0)]), None);
    }
}
