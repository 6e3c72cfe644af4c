//! `proxy_set_header`: the fields that an upstream gets.

use super::Notes;
use crate::cli::import::directives::Directive;
use crate::cli::written::string;
use crate::plan::is_reserved_field;

/// Fields of a connection, and those that say where a message ends. `Host` is `upstream_host`.
const OF_CONNECTIONS: &[&str] = &["connection", "content-length", "host", "upgrade"];
/// What Weir sends without being told.
const SENT: &[(&str, &[&str])] = &[
    ("x-forwarded-for", &["$proxy_add_x_forwarded_for", "$remote_addr"]),
    ("x-forwarded-host", &["$host", "$http_host"]),
    ("x-forwarded-proto", &["$scheme"]),
    ("x-request-id", &["$request_id"]),
];

/// A field that is sent otherwise than the client has sent it.
struct Field {
    name: String,
    /// None: it is removed.
    values: Vec<String>,
}

/// The longest value that a route may set.
const VALUE_BYTES_MAX: usize = 4_096;

/// Whether this can be a field of a header (RFC 9110, 5.1 and 5.5).
pub(super) fn is_field(name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_text = |byte: u8| byte == b'\t' || byte >= b' ' && byte != 0x7f;
    let is_value = value.trim() == value && value.len() <= VALUE_BYTES_MAX;
    !name.is_empty() && name.bytes().all(is_token) && is_value && value.bytes().all(is_text)
}

fn is_one(directive: &&Directive) -> bool {
    directive.name == "proxy_set_header"
}

/// The directives that hold: those of the innermost block that has any, as nginx inherits them.
fn nearest<'a>(around: &[&'a [Directive]]) -> Option<&'a [Directive]> {
    around.iter().copied().find(|block| block.iter().any(|one| is_one(&one)))
}

/// The host that the upstream is told: nginx tells it its own name, unless it is told otherwise.
pub(super) fn upstream_host(
    around: &[&[Directive]],
    host: &str,
    notes: &mut Notes,
) -> Option<String> {
    let fields = nearest(around).into_iter().flat_map(|block| block.iter().filter(is_one));
    let mut fields = fields.filter(|one| one.word(0).eq_ignore_ascii_case("host"));
    let Some(directive) = fields.next() else {
        return (!host.starts_with("unix:")).then(|| string(host));
    };
    match directive.word(1) {
        "$host" | "$http_host" => None,
        "$proxy_host" => Some(string(host)),
        value if value.contains('$') || value.is_empty() => {
            notes.add(directive, "LEFT OUT: the upstream gets the client's Host");
            None
        }
        value => Some(string(value)),
    }
}

/// `request_headers` of a route.
pub(super) fn request_headers(around: &[&[Directive]], notes: &mut Notes) -> Option<String> {
    let mut fields: Vec<Field> = Vec::new();
    for directive in nearest(around)?.iter().filter(is_one) {
        let Some(values) = values(directive, notes) else { continue };
        let name = directive.word(0);
        match fields.iter_mut().find(|field| field.name.eq_ignore_ascii_case(name)) {
            // nginx sends each of them.
            Some(field) => field.values.extend(values),
            None => fields.push(Field { name: name.to_owned(), values: Vec::from_iter(values) }),
        }
    }
    let (mut set, mut added, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for Field { name, values } in &fields {
        let name = string(name);
        match values.as_slice() {
            [] => removed.push(name),
            [value] => set.push(format!("{name} = {}", string(value))),
            several => {
                let several: Vec<String> = several.iter().map(|value| string(value)).collect();
                added.push(format!("{name} = [{}]", several.join(", ")));
                removed.push(name);
            }
        }
    }
    let mut parts = Vec::new();
    if !set.is_empty() {
        parts.push(format!("set = {{ {} }}", set.join(", ")));
    }
    if !added.is_empty() {
        parts.push(format!("add = {{ {} }}", added.join(", ")));
    }
    if !removed.is_empty() {
        parts.push(format!("remove = [{}]", removed.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("{{ {} }}", parts.join(", ")))
}

/// The value of a field, if it has one: without, the client's own must not reach the upstream.
/// None if nothing has to be written.
fn values(directive: &Directive, notes: &mut Notes) -> Option<Option<String>> {
    let (name, value) = (directive.word(0).to_ascii_lowercase(), directive.word(1));
    if OF_CONNECTIONS.contains(&name.as_str()) {
        return None;
    }
    if !is_field(&name, value) {
        notes.add(directive, "left out: no field of a header");
        return None;
    }
    if is_reserved_field(&name) {
        notes.add(directive, "left out: no route changes this field in Weir");
        return None;
    }
    let sent = SENT.iter().find(|(field, _)| *field == name);
    if let Some((_, alike)) = sent
        && value.contains('$')
    {
        if !alike.contains(&value) {
            notes.add(directive, "LEFT OUT: Weir sends a value of its own");
        }
        return None;
    }
    // A client's own field passes by itself.
    if value.to_ascii_lowercase() == format!("$http_{}", name.replace('-', "_")) {
        return None;
    }
    if value.contains('$') {
        notes.add(
            directive,
            "LEFT OUT: a value has no variables in Weir. The upstream does not get the field, not even a client's own",
        );
        return Some(None);
    }
    Some((!value.is_empty()).then(|| value.to_owned()))
}
