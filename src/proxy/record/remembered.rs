//! What is remembered of a request for its operator, in a form that costs the request little:
//! [`ExplainedRequest`] is made of it when somebody asks. Knows nothing of how much is remembered.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use http::Method;
use smallvec::SmallVec;

use super::account::{Account, Origin, Parts};
use super::text;
use crate::insight;
use crate::plan::{Limit, LimitOutcome, PlanOutcome};
use crate::policy::{self, Decision};
use crate::proxy::decide::packed::{PackedFact, PackedFacts};
use crate::proxy::receive::id::Id;
use crate::proxy::receive::text::AddressText;
use crate::proxy::tally::NO_ROUTE;
use crate::proxy::verdict::{Cause, Rejection, Verdict};
use crate::spelling;
use crate::telemetry::{Label, is_credentials_header, names_credentials};

/// Bytes around each name or value in a decision.
const PAIR_BYTES: usize = size_of::<(String, String)>();

/// What this process remembers of requests.
pub type Insight = insight::Insight<RememberedRequest>;

/// A request that was refused, or is part of the sample.
#[derive(Clone, Debug)]
pub struct RememberedRequest {
    pub(super) id: Id,
    pub(super) started: Instant,
    /// The same by the wall clock, in microseconds since 1970.
    pub(super) at_us: i64,
    pub(super) client: AddressText,
    pub(super) method: Method,
    pub(super) path: SmallVec<[u8; 64]>,
    pub(super) origin: Arc<Origin>,
    pub(super) status: u16,
    pub(super) verdict: Option<Verdict>,
    pub(super) cause: Option<Cause>,
    pub(super) facts: Option<PackedFacts>,
    pub(super) decision: Option<Arc<Decision>>,
    pub(super) outcome: Option<PlanOutcome>,
    pub(super) less: Option<u64>,
    pub(super) failure: Option<&'static str>,
    pub(super) store_failure: Option<&'static str>,
    pub(super) rejection: Option<Box<Rejection>>,
    pub(super) bytes: usize,
}

/// A remembered request, for a person.
#[derive(Clone, Debug)]
pub struct ExplainedRequest {
    /// The request's id.
    pub request_id: String,
    /// When it came, in microseconds since 1970.
    pub at_us: i64,
    /// The same as text (RFC 3339).
    pub time: String,
    /// The client's address.
    pub client: String,
    /// Its method.
    pub method: String,
    /// Its path, as in the access log.
    pub path: String,
    /// What became of it, as in metrics and the access log. None where no policy was asked.
    pub decision: Option<&'static str>,
    /// Why it was refused. None if it was not.
    pub cause: Option<&'static str>,
    /// What failed on the upstream's side or here, if something did.
    pub failure: Option<&'static str>,
    /// Why a counter could not be reached, if one could not.
    pub store_failure: Option<&'static str>,
    /// What the policy saw.
    pub facts: Vec<ShownFact>,
    /// How it was decided. Its facts are left out.
    pub account: Account,
}

/// A fact that a policy saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownFact {
    /// Its name.
    pub name: String,
    /// Its value, or as much of it as is remembered.
    pub value: String,
    /// The bytes of the whole value, if it is longer than that.
    pub cut_from: Option<usize>,
}

impl ShownFact {
    fn of(fact: PackedFact<'_>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let cut_from = (fact.whole > fact.value.len()).then_some(fact.whole);
        Self { name: text(fact.name), value: text(fact.value), cut_from }
    }

    /// Whether its value may be a secret, such as a password or a key: anything that a client
    /// sends but for what stands in the access log anyway.
    #[must_use]
    pub fn may_be_secret(&self) -> bool {
        let name = self.name.as_str();
        let families =
            ["header.", "cookie.", "query.", "form.", "rls.entry.", "body:", "body.json:"];
        matches!(name, "query" | "bearer" | "rls.descriptor")
            || name == "tls.client.subject"
            || families.iter().any(|family| name.starts_with(family))
    }

    /// Whether its value is a client's credentials, and is never shown.
    #[must_use]
    pub fn is_credentials(&self) -> bool {
        let name = self.name.as_str();
        name.starts_with("cookie.")
            || name.strip_prefix("header.").is_some_and(is_credentials_header)
            || names_credentials(name)
    }

    /// Its value as it may be shown, if it may be. A query is shown without the credentials in it.
    #[must_use]
    pub fn shown(&self) -> Cow<'_, str> {
        if self.name != "query" {
            return Cow::Borrowed(&self.value);
        }
        let shown = self.value.split('&').map(|pair| {
            let name = pair.split_once('=').map_or(pair, |(name, _)| name);
            let decoded = spelling::decode(name.as_bytes());
            let hides = names_credentials(&String::from_utf8_lossy(&decoded));
            if hides { Cow::Owned(format!("{name}=hidden")) } else { Cow::Borrowed(pair) }
        });
        Cow::Owned(shown.collect::<Vec<_>>().join("&"))
    }
}

impl insight::Entry for RememberedRequest {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl RememberedRequest {
    /// Whether it has this id.
    #[must_use]
    pub fn is(&self, request_id: &str) -> bool {
        self.id.as_bytes() == request_id.as_bytes()
    }

    /// When it came.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// What is known of it.
    #[must_use]
    pub fn explained(&self) -> ExplainedRequest {
        let parts = Parts {
            route: Some(self.origin.route.as_str()).filter(|name| *name != NO_ROUTE),
            scope: self.origin.scope.as_ref(),
            verdict: self.verdict,
            decision: self.decision.as_ref(),
            outcome: self.outcome.as_ref(),
            less: self.less,
            cause: self.cause,
            rejection: self.rejection.as_deref(),
            policy_error: None,
        };
        let account = Account { status: Some(self.status), ..Account::of(&parts, Vec::new()) };
        ExplainedRequest {
            request_id: self.id.as_str().to_owned(),
            at_us: self.at_us,
            time: text::time(self.at_us),
            client: self.client.as_str().to_owned(),
            method: text::cut_method(self.method.as_str()).to_owned(),
            path: String::from_utf8_lossy(&self.path).into_owned(),
            decision: self.verdict.map(Label::label),
            cause: self.cause.map(Label::label),
            failure: self.failure,
            store_failure: self.store_failure,
            facts: self.facts.iter().flat_map(PackedFacts::iter).map(ShownFact::of).collect(),
            account,
        }
    }

    /// The memory that it takes, in bytes, approximately. A decision that several share counts for
    /// each of them.
    pub(super) fn weight(&self) -> usize {
        let path = if self.path.spilled() { self.path.capacity() } else { 0 };
        let outcomes = self.outcome.as_ref().map_or(0, |outcome| outcome.limits.capacity());
        size_of::<Self>()
            + self.id.as_bytes().len()
            + self.method.as_str().len()
            + path
            + self.facts.as_ref().map_or(0, PackedFacts::bytes)
            + outcomes * size_of::<LimitOutcome>()
            + self.rejection.as_deref().map_or(0, |it| size_of_val(it) + it.found.len())
            + self.decision.as_deref().map_or(0, decision_bytes)
    }
}

fn decision_bytes(decision: &Decision) -> usize {
    let pairs = |pairs: &[(String, String)]| -> usize {
        pairs.iter().map(|(name, value)| name.len() + value.len() + PAIR_BYTES).sum()
    };
    let verdict = match &decision.verdict {
        policy::Verdict::Bypass => 0,
        policy::Verdict::Check(plan) => plan.limits().iter().map(limit_bytes).sum(),
        policy::Verdict::Deny(denial) => {
            let body = denial.body.as_ref().map_or(0, |(kind, text)| kind.len() + text.len());
            denial.reason.len() + pairs(&denial.headers) + body
        }
    };
    let edits = decision.bodies.as_ref().map_or(0, |bodies| {
        bodies.edits.iter().map(|edit| size_of_val(edit) + edit.json.len()).sum()
    });
    size_of::<Decision>()
        + verdict
        + edits
        + pairs(&decision.upstream_headers)
        + pairs(&decision.response_headers)
        + pairs(&decision.labels)
        + decision.settle_with.as_ref().map_or(0, String::len)
}

/// Twice its own size: once more for what is prepared of it.
fn limit_bytes(limit: &Limit) -> usize {
    let tag = limit.tag.as_ref().map_or(0, String::len);
    2 * size_of::<Limit>() + limit.name.len() + limit.key.len() + tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_clients_send_are_hidden_as_secrets() {
        let fact = |name: &str| ShownFact { name: name.into(), value: "v".into(), cut_from: None };
        let names = crate::proxy::fact_names().request;
        // Each of them was thought about: a new one has to be, too.
        let open = ["method", "scheme", "authority", "host", "path", "client-ip", "route"];
        let more = [
            "upstream-path",
            "request.length",
            "http.version",
            "upgrade",
            "tls.sni",
            "body.type",
            "body.bytes",
            "rls.domain",
            "rls.limit",
            "rls.limits",
        ];
        for name in &names.single {
            let is_open = open.contains(name) || more.contains(name);
            assert_eq!(fact(name).may_be_secret(), !is_open, "{name}");
        }
        for (family, _) in &names.families {
            let name = format!("{family}x");
            assert_eq!(fact(&name).may_be_secret(), *family != "path.", "{name}");
        }
        for name in ["header.Authorization", "header.cookie", "cookie.session"] {
            assert!(fact(name).is_credentials() && fact(name).may_be_secret(), "{name}");
        }
        for name in [
            "form.password",
            "form.userPassword",
            "form.new_pwd",
            "body:/user/Passwd",
            "body.json:/passphrase",
            "body:/client_secret",
            "query.access_token",
            "query.token",
            "header.x-csrf-token",
            "header.x-forwarded-authorization",
            "header.x-aws-credential",
        ] {
            assert!(fact(name).is_credentials() && fact(name).may_be_secret(), "{name}");
        }
        let open = ["header.x-api-key", "query.api_key", "body:/max_tokens", "body:/maxTokens"];
        for name in open {
            assert!(!fact(name).is_credentials(), "{name}");
        }
    }

    #[test]
    fn a_query_is_shown_without_the_credentials_in_it() {
        let shown = |name: &str, value: &str| {
            let fact = ShownFact { name: name.into(), value: value.into(), cut_from: None };
            fact.shown().into_owned()
        };
        assert_eq!(
            shown("query", "a=1&access_token=x%20y&pass%77ord=z&max_tokens=7&secret"),
            "a=1&access_token=hidden&pass%77ord=hidden&max_tokens=7&secret=hidden"
        );
        assert_eq!(shown("query", ""), "");
        assert_eq!(shown("query.q", "a&token=b"), "a&token=b");
    }
}
