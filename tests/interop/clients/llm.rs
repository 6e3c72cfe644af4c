//! OpenAI's and Anthropic's own libraries through `llm-budget`: what each request is charged,
//! compared with what the model really did. Each test has its model, its proxy, and a budget for
//! each case.
//!
//! `openai`, `anthropic` and `gemini` go through the table "What is charged in the end" in the
//! policy's README; `leaving` has clients that do not wait for the end, `limits` the end of a
//! budget.

mod anthropic;
mod gemini;
mod leaving;
mod limits;
mod openai;

use serde_json::{Value, json};

use crate::harness::client::{self, Reply as Response};
use crate::harness::eventually;
use crate::harness::model::{Model, Reply, Truth};
use crate::harness::python;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

/// More than any case uses, and the limits of one that is counted in all ways: their names, and
/// where they are.
const QUOTA: u64 = 1_000_000;
const LISTS: [(&str, &str); 4] =
    [("tokens", "all"), ("input_tokens", "input"), ("output_tokens", "output"), ("money", "money")];
/// Prices of a token, in tenths of a micro-dollar.
const INPUT_PRICE: u64 = 25;
const OUTPUT_PRICE: u64 = 100;
/// Reserved for a request that names no maximum.
const DEFAULT_OUTPUT: u64 = 300;
/// The field whose value a budget belongs to.
const FIELD: &str = "x-case";

/// A limit on everything that is charged, each case by itself.
fn limit(name: &str, quota: u64) -> String {
    format!(
        "{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\", key = \"{{header.{FIELD}}}\" }}"
    )
}

/// All lists, with the prices above. Nothing is lowered, since money can't be.
fn all_lists() -> String {
    let lists = LISTS.map(|(list, name)| format!("{list} = [{}]\n", limit(name, QUOTA)));
    let (input, output) = (INPUT_PRICE * 100_000, OUTPUT_PRICE * 100_000);
    lists.concat() + &format!("models = {{ \"*\" = {{ input = {input}, output = {output} }} }}\n")
}

/// A model, and Weir before it.
struct Budget {
    model: Model,
    weir: Weir,
}

impl Budget {
    /// `more` are lines of the policy's configuration.
    fn start(api: &str, more: &str) -> Self {
        Self::within(api, more, |config| config)
    }

    fn within(api: &str, more: &str, change: impl Fn(Toml) -> Toml) -> Self {
        let model = Model::start();
        let at_once = format!(
            "requests = [{{ name = \"at-once\", algorithm = \"concurrency\", quota = 1000, key = \"{{header.{FIELD}}}\" }}]"
        );
        let config = Toml::new()
            .upstream("model", &model.url(), "")
            .more(&format!(
                "[policies.llm]\nuse = \"llm-budget\"\n[policies.llm.config]\napi = \"{api}\"\ndefault_max_output = {DEFAULT_OUTPUT}\n{at_once}\n{more}"
            ))
            .route("path = \"/*\"\nupstream = \"model\"\npolicy = \"llm\"");
        let weir = Weir::start(&change(config).text());
        Self { model, weir }
    }

    fn url(&self) -> String {
        format!("http://{}", self.weir.http)
    }

    /// What is counted of a limit for a case.
    fn counted(&self, limit: &str, case: &str) -> u64 {
        let page = format!("/counters?policy=llm&limit={limit}&key={case}");
        let page = self.weir.admin_page(&page);
        assert_eq!(page.status, 200, "{page:?}");
        let page = page.json();
        page["counters"].as_array().into_iter().flatten().map(units_in).sum()
    }

    /// What a case was charged, once all its requests have been settled.
    fn charged(&self, limit: &str, case: &str) -> u64 {
        // Leases are given back when everything else is settled.
        eventually(&format!("the requests of {case} end"), || {
            match self.counted("at-once", case) {
                0 => Ok(()),
                open => Err(format!("{open} are open: {:?}", self.model.truths_of(FIELD, case))),
            }
        });
        self.counted(limit, case)
    }

    /// The only request of a case.
    fn truth(&self, case: &str) -> Truth {
        let truths = self.model.truths_of(FIELD, case);
        assert_eq!(truths.len(), 1, "{case}: {truths:?}");
        truths[0].clone()
    }

    /// Runs the libraries, and checks everything that is known about each case.
    fn check(&self, cases: &[Case]) {
        for (case, seen) in cases.iter().zip(self.run(cases)) {
            self.check_reserved(case, &seen);
            self.check_charged(case, &seen);
        }
    }

    fn run(&self, cases: &[Case]) -> Vec<Seen> {
        let work = Value::Array(cases.iter().map(Case::json).collect()).to_string();
        let out = python::client("llm_client.py", &[&self.url(), "cases", &work]);
        let seen = seen(&out);
        let names: Vec<&str> = seen.iter().map(|seen| seen.name.as_str()).collect();
        assert_eq!(names, cases.iter().map(|case| case.name).collect::<Vec<_>>());
        seen
    }

    /// Checks what `RateLimit` reported when the reply began.
    fn check_reserved(&self, case: &Case, seen: &Seen) {
        if seen.ratelimit.is_empty() {
            return;
        }
        let (input, output) = (seen.reserved_input(), case.maximum);
        let reserved: Vec<u64> =
            LISTS.iter().map(|(_, name)| QUOTA - seen.remaining(name).unwrap_or(QUOTA)).collect();
        assert_eq!(reserved, units(input, output), "{} was reserved: {seen:?}", case.name);
    }

    fn check_charged(&self, case: &Case, seen: &Seen) {
        let truth = self.truth(case.name);
        let (input, output) = case.charged.of(case, &truth, seen.reserved_input());
        let charged: Vec<u64> =
            LISTS.iter().map(|(_, name)| self.charged(name, case.name)).collect();
        assert_eq!(
            charged,
            units(input, output),
            "{} is charged {:?}: {truth:?}",
            case.name,
            case.charged
        );
        // What the library found, where it found any.
        for (found, told) in [("input", truth.input), ("output", truth.output)] {
            if case.wanted["error"].is_null()
                && case.leave_after.is_none()
                && let Some(found) = seen.usage[found].as_u64()
            {
                assert_eq!(found, told, "{}: {seen:?}", case.name);
            }
        }
    }
}

/// Units that a counter holds: "12 of 20 used", or "20 of 20 used and 3 owed".
fn units_in(counter: &Value) -> u64 {
    let state = counter["state"].as_str().unwrap_or_else(|| panic!("no state: {counter}"));
    let words: Vec<&str> = state.split([' ', ',']).collect();
    let before = |word: &str, back: usize| {
        let at = words.iter().position(|found| *found == word)?;
        words.get(at.checked_sub(back)?)?.parse::<u64>().ok()
    };
    let used = before("used", 3).or(before("used", 1));
    used.unwrap_or_else(|| panic!("{state}")) + before("owed", 1).unwrap_or(0)
}

/// Units of each of [`LISTS`].
fn units(input: u64, output: u64) -> Vec<u64> {
    let money = (input * INPUT_PRICE + output * OUTPUT_PRICE).div_ceil(10);
    vec![input + output, input, output, money]
}

/// A row of the README's table: what is charged in the end.
#[derive(Clone, Copy, Debug)]
enum Charge {
    /// What the model counted.
    Told,
    /// What the model counted of the input. What it reported of the output, or its texts, whichever
    /// is more: in these tests, the texts.
    ToldAndEstimated,
    /// What the model counted of the input. What was reserved for the output.
    ToldAndReserved,
    /// What was reserved for the input, and the texts.
    Estimated,
    Reserved,
    Nothing,
}

impl Charge {
    /// Tokens of input and output.
    fn of(self, case: &Case, truth: &Truth, reserved_input: u64) -> (u64, u64) {
        let estimated = estimate(&case.reply, truth.output);
        match self {
            Self::Told => (truth.input, truth.output),
            Self::ToldAndEstimated => (truth.input, estimated),
            Self::ToldAndReserved => (truth.input, case.maximum),
            Self::Estimated => (reserved_input, estimated),
            Self::Reserved => (reserved_input, case.maximum),
            Self::Nothing => (0, 0),
        }
    }
}

/// The texts of this many tokens, or their bytes / 3, whichever is more.
fn estimate(reply: &Reply, generated: u64) -> u64 {
    let bytes: usize = reply.tokens(generated).iter().map(String::len).sum();
    generated.div_ceil(reply.tokens_per_event).max((bytes as u64).div_ceil(3))
}

/// A request of a library.
struct Case {
    /// Names its budget.
    name: &'static str,
    /// A method of the client in Python: `chat`, `responses`, `embeddings`, `messages`.
    call: &'static str,
    /// Further arguments of the library's method.
    arguments: Value,
    /// Tokens of output that it may use, as far as the policy knows.
    maximum: u64,
    reply: Reply,
    /// The client leaves after this many texts.
    leave_after: Option<u64>,
    /// What the library must return: `text`, `tool`, `finish`, `error`.
    wanted: Value,
    charged: Charge,
}

impl Case {
    fn new(name: &'static str, call: &'static str, charged: Charge) -> Self {
        Self {
            name,
            call,
            arguments: json!({}),
            maximum: DEFAULT_OUTPUT,
            reply: Reply::default(),
            leave_after: None,
            wanted: json!({"error": null}),
            charged,
        }
    }

    /// Adds arguments of the library's method.
    fn arguments(mut self, more: Value) -> Self {
        let Value::Object(more) = more else { panic!("arguments have names: {more}") };
        self.arguments.as_object_mut().expect("an object").extend(more);
        self
    }

    fn streamed(self) -> Self {
        self.arguments(json!({"stream": true}))
    }

    /// The policy reserves so much output.
    fn maximum(mut self, tokens: u64) -> Self {
        self.maximum = tokens;
        self
    }

    fn reply(mut self, reply: Reply) -> Self {
        self.reply = reply;
        self
    }

    fn leaves_after(mut self, texts: u64) -> Self {
        self.leave_after = Some(texts);
        self
    }

    /// What the library returns of these: `text`, `tool`, `finish`, `error`.
    fn wants(mut self, what: &str, value: impl Into<Value>) -> Self {
        self.wanted[what] = value.into();
        self
    }

    /// The text of this many tokens arrives.
    fn wants_tokens(self, tokens: u64) -> Self {
        let text = self.reply.tokens(tokens).concat();
        self.wants("text", text)
    }

    fn json(&self) -> Value {
        let said = "How many roads must a man walk down, before you call him a man?";
        let mut arguments = match self.call {
            "chat" => json!({"messages": [{"role": "user", "content": said}]}),
            "messages" => {
                json!({"messages": [{"role": "user", "content": said}], "max_tokens": DEFAULT_OUTPUT})
            }
            _ => json!({"input": said}),
        };
        arguments["model"] = "gpt-4o".into();
        for (name, value) in self.arguments.as_object().expect("an object") {
            arguments[name] = value.clone();
        }
        let headers = json!({FIELD: self.name, "x-reply": self.reply.field()});
        json!({"name": self.name, "call": self.call, "arguments": arguments, "headers": headers,
            "leave_after": self.leave_after, "wanted": self.wanted})
    }
}

/// A request and its reply, as the client in Python saw them.
#[derive(Debug, serde::Deserialize)]
struct Seen {
    name: String,
    /// Bytes of the request's body.
    #[serde(default)]
    sent: u64,
    ratelimit: String,
    /// Texts that came.
    texts: u64,
    usage: Value,
    error: Value,
}

impl Seen {
    /// One token for three bytes of the body.
    fn reserved_input(&self) -> u64 {
        self.sent.div_ceil(3)
    }

    /// What `RateLimit` reported of this limit.
    fn remaining(&self, limit: &str) -> Option<u64> {
        let mut headers = http::HeaderMap::new();
        headers.insert("ratelimit", self.ratelimit.parse().expect("a field"));
        let response = Response { status: 200, headers, body: bytes::Bytes::new() };
        response.limits().get(limit).map(|limit| limit.remaining.try_into().expect("no debt"))
    }
}

/// What the client in Python printed of its requests.
fn seen(out: &str) -> Vec<Seen> {
    let lines = out.lines().filter_map(|line| line.strip_prefix("seen "));
    lines.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Posts without a library: `x-reply`, and a budget of this name.
async fn post(
    address: std::net::SocketAddr,
    target: &str,
    case: &str,
    reply: &Reply,
    body: &Value,
) -> Result<Response, client::Failure> {
    let mut connection = client::Client::connect(address).await?;
    let reply = reply.field();
    let fields = [
        ("content-type", "application/json"),
        ("accept-encoding", "gzip"),
        ("x-reply", reply.as_str()),
        (FIELD, case),
    ];
    connection.send("POST", target, &fields, body.to_string().into()).await
}
