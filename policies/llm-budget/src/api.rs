//! The APIs: where a request names its model and its maxima, and where a reply reports its usage.
//! Does not know what anything costs.
//!
//! What an API's replies may contain depends on the request's path ([`Call`]). A path that is not
//! recognised is read for everything.

use weir_policy::{Gather, Meter, ResponseView};

use crate::AMOUNT_MAX;
use crate::references::References;

mod known;
mod pointers;

pub(crate) use known::Named;
pub(crate) use pointers::Pointers;

/// An API as the policy uses it.
#[derive(Debug)]
pub(crate) struct Api {
    dialect: Dialect,
    /// Where a request names its model.
    pub(crate) model: ModelAt,
    /// Pointers to the numbers in a request that bound its output, of all calls.
    maxima: Vec<String>,
    /// Pointers to the numbers of answers that a request asks for.
    pub(crate) copies: Vec<String>,
    /// The pointer to the second of several prompts, each of which has answers of its own.
    pub(crate) second_prompt: Option<String>,
    /// Pointers to the service tier.
    pub(crate) tiers: Vec<String>,
    /// The pointer to the value that says whether the reply is streamed.
    pub(crate) stream: Option<String>,
    /// The pointer to the value that says whether the reply is made later, and fetched by another
    /// request.
    pub(crate) background: Option<String>,
    /// The query parameter that names the form of a streamed reply.
    pub(crate) form: Option<String>,
    /// Where a request refers to what the provider adds to its input.
    pub(crate) references: References,
    input: UsageSources,
    /// Parts of the input that may have other prices.
    caches: Caches,
    output: UsageSources,
    /// Where a reply reports its output so far, before it is complete.
    so_far: Vec<Reading>,
    /// Pointers to the texts of a reply.
    texts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Dialect {
    OpenAi,
    Anthropic,
    Gemini,
    /// Written by the operator, with the pointer that asks for usage.
    Own(Option<String>),
}

/// Where a request names its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelAt {
    /// A pointer in its body.
    Pointer(String),
    /// Its path: `/models/NAME:method`.
    Path,
    Nowhere,
}

/// One number in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) pointer: String,
    pub(crate) gather: Gather,
}

/// Numbers in a reply that make one amount: the sum of the addends, each of which is the largest of
/// the places where it may be.
pub(crate) type UsageSources = Vec<Vec<Reading>>;

/// Where a reply reports which parts of the input were read from a cache or written to it.
#[derive(Debug, Default)]
struct Caches {
    read: UsageSources,
    written: UsageSources,
    /// The part of what was written that is kept for an hour.
    written_1h: UsageSources,
}

impl Caches {
    fn readings(&self) -> impl Iterator<Item = &Reading> {
        [&self.read, &self.written, &self.written_1h].into_iter().flatten().flatten()
    }
}

/// What a request's path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's older completions.
    Completions,
    /// OpenAI's responses.
    Responses,
    /// Gemini's `streamGenerateContent`.
    Stream,
    /// Embeddings or a count of tokens: there is no output.
    InputOnly,
    Other,
}

impl Call {
    /// Whether a model writes something.
    pub(crate) fn has_output(self) -> bool {
        self != Self::InputOnly
    }
}

/// Where a request says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// A pointer in its body.
    Body(&'a str),
    /// A parameter of its query.
    Query(&'a str),
}

/// What a meter is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The input that was used.
    Input,
    /// The output that was used. Numbers that stand at one place are added, and of several places
    /// the largest counts.
    Output(u32),
    /// Texts, each about one token.
    Count,
    /// The bytes of texts.
    Bytes,
}

/// What a reply says about its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Tokens of input.
    pub(crate) input: Option<u64>,
    /// What of them was read from a cache, written to one, and written for an hour.
    pub(crate) cached: u64,
    pub(crate) written: u64,
    pub(crate) written_1h: u64,
    /// Tokens of output.
    pub(crate) output: Option<u64>,
    /// Tokens of output that were reported before the reply was complete.
    pub(crate) so_far: Option<u64>,
    /// Tokens of output, estimated from its texts; `None` if there are none.
    pub(crate) text: Option<u64>,
}

impl Reply {
    /// Whether it reports any usage.
    pub(crate) fn tells(&self) -> bool {
        self.input.or(self.output).or(self.so_far).is_some()
    }
}

impl Api {
    /// What a path asks for. It may be spelt in any way that a server may accept.
    pub(crate) fn call(&self, path: &str) -> Call {
        let path = decoded(path).to_ascii_lowercase();
        // What a server that decodes it again would not take for a part of the path.
        if path.contains(['?', '#', ';']) {
            return Call::Other;
        }
        let path = path.trim_end_matches('/');
        let ends = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
        // Whatever is before the end of a path may be what a server acts on.
        let generates = ["/completions", "/responses", "generatecontent"];
        let generates = generates.iter().any(|word| path.contains(word));
        match self.dialect {
            Dialect::OpenAi if ends(&["/chat/completions"]) => Call::Chat,
            Dialect::OpenAi if ends(&["/completions"]) => Call::Completions,
            Dialect::OpenAi if ends(&["/responses"]) => Call::Responses,
            Dialect::OpenAi if ends(&["/embeddings"]) && !generates => Call::InputOnly,
            Dialect::Anthropic if ends(&["/count_tokens"]) => Call::InputOnly,
            Dialect::Gemini if ends(&known::GEMINI_INPUT_ONLY) && !generates => Call::InputOnly,
            Dialect::Gemini if ends(&[":streamgeneratecontent"]) => Call::Stream,
            _ => Call::Other,
        }
    }

    /// Whether nothing reports what a request for this path uses.
    pub(crate) fn is_unpriced(&self, path: &str, posts: bool) -> bool {
        if matches!(self.dialect, Dialect::Own(_)) {
            return false;
        }
        let path = decoded(path).to_ascii_lowercase();
        let path = path.trim_end_matches('/');
        let streams = known::UNPRICED_STREAMS.iter().any(|word| path.contains(word));
        // OpenAI's responses are asked for by POST, or over a websocket, which begins with GET.
        let socket = self.dialect == Dialect::OpenAi && !posts && path.ends_with(known::RESPONSES);
        streams || socket || (posts && known::UNPRICED.iter().any(|end| path.ends_with(end)))
    }

    /// The model in a path: what follows the last `/models/`, up to the method.
    pub(crate) fn model_in(path: &str) -> Option<String> {
        let path = decoded(path);
        let (_, last) = path.rsplit_once("/models/")?;
        let name = last.rsplit_once(':').map_or(last, |(name, _)| name);
        Some(name.to_owned()).filter(|name| !name.is_empty())
    }

    /// The deployment in a path of Azure's, which is the model whatever the body says.
    pub(crate) fn deployment_in(&self, path: &str) -> Option<String> {
        if self.dialect != Dialect::OpenAi {
            return None;
        }
        let path = decoded(path);
        let start = path.to_ascii_lowercase().find(known::DEPLOYMENTS)? + known::DEPLOYMENTS.len();
        let name = path.get(start..)?.split('/').next()?;
        Some(name.to_owned()).filter(|name| !name.is_empty())
    }

    /// Pointers to all maxima that any call may name.
    pub(crate) fn all_maxima(&self) -> &[String] {
        &self.maxima
    }

    /// Pointers to the maxima that a call heeds. What it ignores bounds nothing.
    pub(crate) fn maxima(&self, call: Call) -> impl Iterator<Item = &str> {
        let heeded = match (&self.dialect, call) {
            (Dialect::OpenAi, Call::Chat) => Some(known::CHAT_MAXIMA),
            (Dialect::OpenAi, Call::Completions) => Some(known::COMPLETIONS_MAXIMA),
            (Dialect::OpenAi, Call::Responses) => Some(known::RESPONSES_MAXIMA),
            (Dialect::OpenAi, Call::InputOnly) => Some(&[][..]),
            _ => None,
        };
        let all = self.maxima.iter().map(String::as_str);
        all.filter(move |pointer| heeded.is_none_or(|heeded| heeded.contains(pointer)))
    }

    /// How a request of this call asks for a reply in server-sent events: where, and by which
    /// value. `None` if its reply never has this form.
    pub(crate) fn events(&self, call: Call) -> Option<(Place<'_>, &'static str)> {
        let stream = || Some((Place::Body(self.stream.as_deref()?), "true"));
        match (&self.dialect, call) {
            (_, Call::InputOnly) | (Dialect::OpenAi, Call::Other) => None,
            (Dialect::Gemini, Call::Stream) => Some((Place::Query(self.form.as_deref()?), "sse")),
            _ => stream(),
        }
    }

    /// The pointer at which a maximum is written into a request that has none.
    pub(crate) fn maximum_to_write(&self, call: Call) -> Option<&str> {
        match (&self.dialect, call) {
            (Dialect::OpenAi, Call::Chat) => Some("/max_completion_tokens"),
            (Dialect::OpenAi, Call::Responses) => Some("/max_output_tokens"),
            (Dialect::OpenAi, _) => Some("/max_tokens"),
            _ => self.maxima.first().map(String::as_str),
        }
    }

    /// The pointer to set to `true`, so that the reply reports its usage.
    pub(crate) fn usage_to_ask(&self, call: Call, streams: bool) -> Option<&str> {
        match (&self.dialect, call) {
            (Dialect::OpenAi, Call::Chat | Call::Completions) if streams => {
                Some("/stream_options/include_usage")
            }
            (Dialect::Own(pointer), _) => pointer.as_deref(),
            _ => None,
        }
    }

    /// What to read from a reply. `caches` says whether parts of the input have other prices.
    pub(crate) fn meters(&self, call: Call, caches: bool) -> Vec<(Role, Meter)> {
        let meter = |it: &Reading| Meter { pointer: it.pointer.clone(), gather: it.gather };
        let known = |it: &&Reading| self.input.iter().flatten().any(|known| known == *it);
        let of_caches = self.caches.readings().filter(|it| caches && !known(it));
        let input = self.input.iter().flatten().chain(of_caches);
        let input = input.map(|it| (Role::Input, meter(it)));
        let placed = |(place, it)| (Role::Output(place), meter(it));
        let output = self.output.iter().flat_map(|addend| (0..).zip(addend).map(placed));
        // It has a place of its own: what the first event reports is part of what the last one
        // does.
        let places = self.output.iter().map(|addend| addend.len()).max().unwrap_or(0);
        let apart = Role::Output(u32::try_from(places).unwrap_or(u32::MAX));
        let so_far = self.so_far.iter().map(|it| (apart, meter(it)));
        let texts = self.texts.iter().flat_map(|pointer| {
            [(Role::Count, Gather::Count), (Role::Bytes, Gather::Bytes)]
                .map(|(role, gather)| (role, Meter { pointer: pointer.clone(), gather }))
        });
        input
            .chain(output)
            .chain(so_far)
            .chain(texts)
            .filter(|(_, meter)| self.may_contain(call, &meter.pointer))
            .collect()
    }

    /// Whether a reply to `call` may have something at `pointer`.
    fn may_contain(&self, call: Call, pointer: &str) -> bool {
        if self.dialect != Dialect::OpenAi {
            return true;
        }
        let of_responses = known::OPENAI_RESPONSES.contains(&pointer);
        match call {
            Call::Chat | Call::Completions => !of_responses,
            Call::Responses => of_responses,
            Call::InputOnly => pointer.starts_with("/usage/"),
            // There is no room for more than what all calls report.
            Call::Stream | Call::Other => !known::OPENAI_CACHED.contains(&pointer),
        }
    }

    /// What the meters have read.
    pub(crate) fn read(&self, response: &ResponseView, bytes_per_token: u64) -> Reply {
        let largest = |readings: &[Reading]| {
            let found = readings.iter().filter_map(|it| response.usage(&it.pointer, it.gather));
            found.max().map(|tokens| tokens.min(AMOUNT_MAX))
        };
        let sum = |addends: &[Vec<Reading>]| {
            let found = addends.iter().filter_map(|addend| largest(addend));
            found.reduce(u64::saturating_add).map(|tokens| tokens.min(AMOUNT_MAX))
        };
        let texts = |gather: Gather| {
            let found = self.texts.iter().filter_map(|pointer| response.usage(pointer, gather));
            found.fold(0, u64::saturating_add)
        };
        // An event of a stream is about one token, and some servers send several in one.
        let text = texts(Gather::Count).max(texts(Gather::Bytes).div_ceil(bytes_per_token.max(1)));
        Reply {
            input: sum(&self.input),
            cached: sum(&self.caches.read).unwrap_or(0),
            written: sum(&self.caches.written).unwrap_or(0),
            written_1h: sum(&self.caches.written_1h).unwrap_or(0),
            output: sum(&self.output),
            so_far: largest(&self.so_far),
            text: Some(text.min(AMOUNT_MAX)).filter(|tokens| *tokens > 0),
        }
    }
}

/// A path with its escapes decoded. A broken escape stays as it is.
fn decoded(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut pieces = path.split('%');
    plain.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.get(..2).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match digits.and_then(|hex| u8::from_str_radix(hex, 16).ok()).zip(piece.get(2..)) {
            Some((byte, rest)) => {
                plain.push(char::from(byte));
                plain.push_str(rest);
            }
            None => {
                plain.push('%');
                plain.push_str(piece);
            }
        }
    }
    plain
}
