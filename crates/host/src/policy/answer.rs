//! Converts a guest's answers, and checks every count, size, name and number in them. A violation
//! is an error that names the field.

mod bodies;
mod decision_options;
mod limit_options;
mod manifest;
mod named;

use std::sync::Arc;

use super::abi::types;
use super::{Decision, Denial, Settlement, Verdict};
use crate::plan::{
    self, AMOUNT_MAX, Adjustment, Algorithm, Calendar, Change, Concurrency, Debt, FixedWindow,
    Gcra, LeakyBucket, Lease, Limit, Plan, Quota, Rate, Role, Script, SlidingWindowBuckets,
    SlidingWindowCounter, SlidingWindowLog, Slot, TimeZone, TokenBucket,
};

/// Maximum number of header fields that a decision may set on a message.
const HEADERS_MAX: usize = 32;
const HEADER_NAME_BYTES_MAX: usize = 128;
const HEADER_VALUE_CHARS_MAX: usize = 4_096;
const LABELS_MAX: usize = 16;
const LABEL_BYTES_MAX: usize = 256;
/// Maximum number of amounts that a settlement may report.
const AMOUNTS_MAX: usize = 16;
/// Maximum size of a denial's own body.
const BODY_BYTES_MAX: usize = 16 << 10;
const NAME_BYTES_MAX: usize = plan::NAME_BYTES_MAX;
const MEMO_BYTES_MAX: usize = 4_096;
const REASON_BYTES_MAX: usize = 1_024;
const RETRY_AFTER_MS_MAX: u64 = plan::PERIOD_MS_MAX;

use decision_options::DecisionOptions;
pub use decision_options::RefusalReply;
pub use limit_options::MessageExcess;
pub(super) use manifest::declared;

type Pairs = Vec<(String, String)>;

/// Converts a guest's decision. `scripts` are the names of the configured scripts.
pub(super) fn decision(answer: types::Decision, scripts: &[String]) -> Result<Decision, String> {
    let mut messages = Vec::new();
    let verdict = match answer.verdict {
        types::Verdict::Bypass => Verdict::Bypass,
        types::Verdict::Check(limits) if limits.is_empty() => Verdict::Bypass,
        types::Verdict::Check(limits) => {
            Verdict::Check(Arc::new(plan(limits, scripts, &mut messages)?))
        }
        types::Verdict::Deny(denial) => Verdict::Deny(deny(denial)?),
    };
    bounded("settle-with", answer.settle_with.as_deref(), MEMO_BYTES_MAX)?;
    let DecisionOptions { priority, fair_key, refusal, joining } =
        decision_options::read(answer.options)?;
    let bodies = bodies::of(answer.body_changes, answer.metering, &verdict)?;
    Ok(Decision {
        verdict,
        upstream_headers: headers("upstream-headers", answer.upstream_headers)?,
        response_headers: headers("response-headers", answer.response_headers)?,
        labels: labels(answer.labels)?,
        settle_with: answer.settle_with,
        settle_on_refusal: answer.settle_on_refusal,
        bodies: bodies.map(Box::new),
        valid_until_ms: answer.valid_until_ms,
        priority,
        fair_key,
        refusal: refusal.map(Box::new),
        messages,
        joining,
        slot: Slot::default(),
    })
}

/// Converts what `settle` answered.
pub(super) fn settlement(answer: types::Settlement) -> Result<Settlement, String> {
    options("settlement", &answer.options)?;
    if answer.amounts.len() > AMOUNTS_MAX {
        return Err(format!("amounts: {} of them, at most {AMOUNTS_MAX}", answer.amounts.len()));
    }
    for (index, (name, amount)) in answer.amounts.iter().enumerate() {
        if !is_name(name) {
            return Err(format!(
                "amounts[{index}]: found the name {:?}, expected 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ -",
                shortened(name)
            ));
        }
        if *amount > AMOUNT_MAX {
            return Err(format!("amounts[{index}]: found {amount}, expected at most 2^52"));
        }
    }
    each_once("amounts", &answer.amounts)?;
    Ok(Settlement {
        adjustments: adjustments(answer.adjustments)?,
        labels: labels(answer.labels)?,
        amounts: answer.amounts,
    })
}

fn adjustments(answer: Vec<types::Adjustment>) -> Result<Vec<Adjustment>, String> {
    if answer.len() > plan::LIMITS_MAX {
        return Err(format!("adjustments: {} of them, at most {}", answer.len(), plan::LIMITS_MAX));
    }
    let check = |(index, adjustment): (usize, types::Adjustment)| {
        let change = match adjustment.change {
            types::Change::Units(units) => Change::Units(units),
            types::Change::Debt(units) => Change::Debt(units),
            types::Change::Reset => Change::Reset,
        };
        if change.units() > AMOUNT_MAX {
            return Err(format!("adjustments[{index}].change: {change}, at most 2^52"));
        }
        if adjustment.limit.len() > NAME_BYTES_MAX {
            return Err(format!("adjustments[{index}].limit: longer than {NAME_BYTES_MAX} bytes"));
        }
        Ok(Adjustment { limit: adjustment.limit, change })
    };
    answer.into_iter().enumerate().map(check).collect()
}

/// Converts the limits of a decision. `messages` gets those that messages are charged to.
fn plan(
    limits: Vec<types::Limit>,
    scripts: &[String],
    messages: &mut Vec<(String, MessageExcess)>,
) -> Result<Plan, String> {
    if limits.len() > plan::LIMITS_MAX {
        return Err(format!("limits: {} of them, at most {}", limits.len(), plan::LIMITS_MAX));
    }
    let mut children = Vec::new();
    let limits = limits.into_iter().enumerate().map(|(index, answered)| {
        let mut options = limit_options::read(&answered.options)
            .map_err(|what| format!("limits[{index}].options{what}"))?;
        children.extend(options.parts.take().map(|parts| (index, parts)));
        let limit = limit(index, answered, options.lease, scripts)?;
        messages.extend(options.messages.map(|excess| (limit.name.clone(), excess)));
        Ok::<_, String>(limit)
    });
    let mut limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
    for (index, parts) in children {
        limit_options::join(&mut limits, index, parts)
            .map_err(|what| format!("limits[{index}].options.{what}"))?;
    }
    for (index, limit) in limits.iter().enumerate() {
        let counts = messages.iter().any(|(name, _)| *name == limit.name);
        let is_alone = limit.role == Role::Alone;
        if counts && (!is_alone || matches!(limit.algorithm, Algorithm::Concurrency(_))) {
            let found = if is_alone { "`concurrency`" } else { "a child or its parent" };
            return Err(format!(
                "limits[{index}].options.messages: found {found}, expected a limit whose units a message can take by itself"
            ));
        }
    }
    Plan::new(limits).map_err(|invalid| invalid.to_string())
}

fn limit(
    index: usize,
    answered: types::Limit,
    lease: Option<Lease>,
    scripts: &[String],
) -> Result<Limit, String> {
    let algorithm = algorithm(answered.algorithm, scripts)
        .map_err(|what| format!("limits[{index}].algorithm{what}"))?;
    let algorithm =
        debt_of(algorithm, answered.debt).map_err(|what| format!("limits[{index}]{what}"))?;
    if answered.unit.as_deref().is_some_and(|unit| !unit.is_empty() && !is_name(unit)) {
        return Err(format!("limits[{index}].unit: not at most {NAME_BYTES_MAX} of a-z 0-9 . _ -"));
    }
    Ok(Limit {
        name: answered.name,
        key: answered.key,
        tag: answered.tag,
        algorithm,
        cost: answered.cost,
        unit: answered.unit,
        enforcement: match answered.enforcement {
            types::Enforcement::Enforce => plan::Enforcement::Enforce,
            types::Enforcement::Shadow => plan::Enforcement::Shadow,
        },
        refund: match answered.refund {
            types::Refund::Never => plan::Refund::Never,
            types::Refund::Unsent => plan::Refund::Unsent,
            types::Refund::UpstreamError => plan::Refund::UpstreamError,
            types::Refund::BySettle => plan::Refund::BySettle,
        },
        on_store_error: match answered.on_store_error {
            types::Fallback::RouteDefault => None,
            types::Fallback::Allow => Some(plan::OnStoreError::Allow),
            types::Fallback::Local => Some(plan::OnStoreError::Local),
            types::Fallback::Deny => Some(plan::OnStoreError::Deny),
        },
        lease,
        role: Role::Alone,
    })
}

/// Refuses options: none are known yet. Whoever set one wants something done, so it is not ignored.
fn options(at: &str, options: &Pairs) -> Result<(), String> {
    let Some((name, _)) = options.first() else { return Ok(()) };
    let name = shortened(name);
    Err(format!("{at}.options: found {name:?}, expected none: this Weir knows no options here"))
}

/// The algorithm with this debt. The error continues the path of the limit.
fn debt_of(algorithm: Algorithm, debt: Option<types::Debt>) -> Result<Algorithm, String> {
    let Some(debt) = debt else { return Ok(algorithm) };
    let name = algorithm.name().to_owned();
    let debt = match debt {
        types::Debt::Allowance => Debt::Allowance,
        types::Debt::Units(units) => Debt::Units(units),
        types::Debt::Window => Debt::Window,
    };
    let expected = || format!(".debt: found one, expected none: {name} can't have a debt");
    algorithm.with_debt(debt).ok_or_else(expected)
}

/// Converts an algorithm. The error continues the path of the algorithm's field.
fn algorithm(answered: types::Algorithm, scripts: &[String]) -> Result<Algorithm, String> {
    let rate = |rate: types::Rate| Rate { amount: rate.amount, per_ms: rate.per_ms };
    Ok(match answered {
        types::Algorithm::FixedWindow(window) => FixedWindow {
            rate: rate(window.rate),
            alignment: match window.alignment {
                types::Alignment::FirstRequest => plan::Alignment::FirstRequest,
                types::Alignment::Clock => plan::Alignment::Clock,
            },
            debt: Debt::None,
        }
        .into(),
        types::Algorithm::SlidingWindowCounter(window) => {
            SlidingWindowCounter { rate: rate(window), debt: Debt::None }.into()
        }
        types::Algorithm::SlidingWindowLog(window) => {
            SlidingWindowLog { rate: rate(window), debt: Debt::None }.into()
        }
        types::Algorithm::SlidingWindowBuckets(window) => SlidingWindowBuckets {
            rate: rate(window.rate),
            buckets: window.buckets,
            debt: Debt::None,
        }
        .into(),
        types::Algorithm::TokenBucket(bucket) => {
            TokenBucket { burst: bucket.burst, rate: rate(bucket.rate), debt: Debt::None }.into()
        }
        types::Algorithm::Gcra(bucket) => {
            Gcra { burst: bucket.burst, rate: rate(bucket.rate), debt: Debt::None }.into()
        }
        types::Algorithm::LeakyBucket(bucket) => LeakyBucket {
            burst: bucket.burst,
            rate: rate(bucket.rate),
            max_delay_ms: bucket.max_delay_ms,
        }
        .into(),
        types::Algorithm::Concurrency(amount) => Concurrency { amount }.into(),
        types::Algorithm::Quota(quota) => Quota {
            amount: quota.amount,
            conditional: quota.conditional,
            calendar: calendar(&quota)?,
            debt: Debt::None,
        }
        .into(),
        types::Algorithm::Script(script) => {
            if !scripts.contains(&script.name) {
                return Err(format!(
                    ".name: found {:?}, expected the name of a file in `store.scripts`",
                    shortened(&script.name)
                ));
            }
            Script { name: script.name.into(), arguments: script.arguments.into() }.into()
        }
        types::Algorithm::Named(named) => match named::algorithm(&named)? {
            Algorithm::Quota(quota) => quota.located().map_err(|zone| unknown_zone(&zone))?.into(),
            other => other,
        },
    })
}

fn unknown_zone(name: &str) -> String {
    format!(
        ".time-zone: found {:?}, expected a name of the IANA database, such as \"Europe/Berlin\"",
        shortened(name)
    )
}

fn calendar(quota: &types::Quota) -> Result<Calendar, String> {
    let zone = || TimeZone::named(&quota.time_zone).ok_or_else(|| unknown_zone(&quota.time_zone));
    Ok(match quota.calendar {
        types::Calendar::Hour => Calendar::Hour(zone()?),
        types::Calendar::Day => Calendar::Day(zone()?),
        types::Calendar::Week => Calendar::Week(zone()?),
        types::Calendar::Month if !(1..=31).contains(&quota.anchor_day) => {
            return Err(format!(".anchor-day: found {}, expected 1 to 31", quota.anchor_day));
        }
        types::Calendar::Month => {
            Calendar::Month { time_zone: zone()?, anchor_day: quota.anchor_day }
        }
        types::Calendar::Forever => Calendar::Forever,
    })
}

/// The first characters of a guest's text, which may be long.
fn shortened(text: &str) -> String {
    text.chars().take(NAME_BYTES_MAX).collect()
}

fn deny(denial: types::Denial) -> Result<Denial, String> {
    if !(400..=599).contains(&denial.status) {
        return Err(format!("denial.status: {}, not 400 to 599", denial.status));
    }
    bounded("denial.reason", Some(&denial.reason), REASON_BYTES_MAX)?;
    if denial.retry_after_ms.is_some_and(|wait| wait > RETRY_AFTER_MS_MAX) {
        return Err("denial.retry-after-ms: more than 400 days".into());
    }
    Ok(Denial {
        status: denial.status,
        reason: denial.reason,
        retry_after_ms: denial.retry_after_ms,
        headers: headers("denial.headers", denial.headers)?,
        body: denial.body.map(body).transpose()?,
    })
}

fn body(body: types::Body) -> Result<(String, String), String> {
    if !is_media_type(&body.media_type) {
        return Err("denial.body.media-type: not a field value".into());
    }
    bounded("denial.body.text", Some(&body.text), BODY_BYTES_MAX)?;
    Ok((body.media_type, body.text))
}

fn is_media_type(text: &str) -> bool {
    !text.is_empty() && text.is_ascii() && is_field_value(text)
}

/// Checks header fields and puts their names in lower case. What passes here is written onto the
/// wire, so each value must be one valid field value.
fn headers(path: &str, mut fields: Pairs) -> Result<Pairs, String> {
    if fields.len() > HEADERS_MAX {
        return Err(format!("{path}: {} fields, at most {HEADERS_MAX}", fields.len()));
    }
    for (index, (name, value)) in fields.iter_mut().enumerate() {
        if name.len() > HEADER_NAME_BYTES_MAX || !plan::is_token(name) {
            return Err(format!(
                "{path}[{index}]: its name is not a token, or longer than {HEADER_NAME_BYTES_MAX} bytes"
            ));
        }
        name.make_ascii_lowercase();
        if plan::is_reserved_field(name) {
            return Err(format!("{path}[{index}]: `{name}` may not be set by a policy"));
        }
        if !is_field_value(value) {
            return Err(format!(
                "{path}[{index}]: the value of `{name}` is not a field value, or longer than {HEADER_VALUE_CHARS_MAX} characters"
            ));
        }
    }
    Ok(fields)
}

/// Whether a value is a field value (RFC 9110, section 5.5): no control characters except the tab,
/// no white space at either end. Each character above 0x7F stands for one byte.
fn is_field_value(value: &str) -> bool {
    let plain = |next: char| {
        next == '\t' || (' '..='~').contains(&next) || ('\u{80}'..='\u{ff}').contains(&next)
    };
    let inner = value.trim_matches([' ', '\t']);
    inner.len() == value.len()
        && value.chars().all(plain)
        && value.chars().count() <= HEADER_VALUE_CHARS_MAX
}

fn labels(labels: Pairs) -> Result<Pairs, String> {
    if labels.len() > LABELS_MAX {
        return Err(format!("labels: {} of them, at most {LABELS_MAX}", labels.len()));
    }
    for (index, (name, value)) in labels.iter().enumerate() {
        if !is_name(name) {
            return Err(format!(
                "labels[{index}]: its name is not 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ -"
            ));
        }
        if value.len() > LABEL_BYTES_MAX || value.chars().any(char::is_control) {
            return Err(format!(
                "labels[{index}]: longer than {LABEL_BYTES_MAX} bytes, or with control characters"
            ));
        }
    }
    each_once("labels", &labels)?;
    Ok(labels)
}

/// Checks that no name comes twice: of two values, whoever reads them would take another one.
fn each_once<T>(path: &str, pairs: &[(String, T)]) -> Result<(), String> {
    let again = pairs
        .iter()
        .enumerate()
        .find(|(index, (name, _))| pairs.iter().take(*index).any(|(known, _)| known == name));
    again.map_or(Ok(()), |(_, (name, _))| Err(format!("{path}: {}", second(name))))
}

/// What is wrong with a name that came before.
fn second(name: &str) -> String {
    format!("found `{name}` a second time, expected it once")
}

fn is_name(text: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain)
}

fn bounded(field: &str, text: Option<&str>, bytes_max: usize) -> Result<(), String> {
    match text {
        Some(text) if text.len() > bytes_max => {
            Err(format!("{field}: {} bytes, at most {bytes_max}", text.len()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_not_configured_is_refused() {
        let script = |name: &str| {
            types::Algorithm::Script(types::Script { name: name.into(), arguments: vec![1] })
        };
        let scripts = ["mine".to_owned()];
        assert!(matches!(algorithm(script("mine"), &scripts), Ok(Algorithm::Script(_))));
        for name in ["mime", "", &"x".repeat(9_999)] {
            let wrong = algorithm(script(name), &scripts).unwrap_err();
            assert!(
                wrong.starts_with(".name: found \"")
                    && wrong.contains("`store.scripts`")
                    && wrong.len() < 200,
                "{wrong}"
            );
        }
    }

    #[test]
    fn field_values_are_checked() {
        for value in ["", "a", "a b", "a\tb", "\u{e9}", "\u{ff}"] {
            assert!(is_field_value(value), "{value:?}");
        }
        for value in [" a", "a ", "a\r\nb", "a\0", "\u{7f}", "\u{20ac}", "\t"] {
            assert!(!is_field_value(value), "{value:?}");
        }
        assert!(!is_field_value(&"x".repeat(HEADER_VALUE_CHARS_MAX + 1)));
    }

    #[test]
    fn no_field_that_frames_a_message_may_be_set() {
        for name in plan::reserved_fields() {
            assert!(headers("h", vec![(name.to_ascii_uppercase(), "x".into())]).is_err(), "{name}");
        }
        assert!(headers("h", vec![(":path".into(), "/".into())]).is_err());
        assert_eq!(
            headers("h", vec![("X-Plan".into(), "gold".into())]).unwrap(),
            [("x-plan".to_owned(), "gold".to_owned())]
        );
    }
}
