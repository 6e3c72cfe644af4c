//! Keys of nginx's zones as templates of Weir's, and its variables as facts.

use crate::plan::is_reserved_field;

/// A template, and what is done without such a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) text: String,
    pub(super) missing: &'static str,
    /// It has a field in which a proxy names its client, and that client's address for it.
    pub(super) names_proxy: bool,
}

/// A key of nginx as a template of Weir's. nginx counts a request unless its whole key is empty.
pub(super) fn key(key: &str, server: &str) -> Result<Key, String> {
    let mut text = String::new();
    let (mut rest, mut variables) = (key, 0);
    let (mut has_address, mut names_proxy) = (false, false);
    if key.contains(['{', '}']) && !key.contains("${") {
        return Err("a template can't have braces".to_owned());
    }
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        let (name, next) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(braced) => braced,
            None => {
                let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                after.split_at(after.find(|letter| !is_part(letter)).unwrap_or(after.len()))
            }
        };
        if name.eq_ignore_ascii_case("server_name") {
            text.push_str(server);
        } else {
            names_proxy |= is_address_of_proxy(&name.to_ascii_lowercase());
            let fact = fact(name).ok_or_else(|| format!("Weir has no fact for ${name}"))?;
            has_address |= fact == "{client_ip}";
            text.push_str(&fact);
            variables += 1;
        }
        rest = next;
    }
    text.push_str(rest);
    if text.is_empty() {
        return Err("found an empty key".to_owned());
    }
    let is_alone = variables == 1 && text.starts_with('{') && text.ends_with('}');
    let missing = match (is_alone, has_address) {
        (true, _) => "skip",
        (false, true) => "address",
        (false, false) => "shared",
    };
    Ok(Key { text, missing, names_proxy })
}

/// Fields that Weir removes from what a client sends, or that belong to a connection: a policy does
/// not see them.
fn is_removed(field: &str) -> bool {
    const REMOVED: &[&str] = &["forwarded", "keep-alive", "proxy-connection"];
    let is_of_connection = is_reserved_field(field) && field != "host" && field != "content-length";
    REMOVED.contains(&field) || field.starts_with("x-forwarded-") || is_of_connection
}

/// Whether a variable is what a proxy says of its client's address.
pub(super) fn is_address_of_proxy(variable: &str) -> bool {
    ["http_x_forwarded_for", "http_x_real_ip"].contains(&variable)
}

/// The fact of a variable, in braces. nginx ignores the case of a variable's name.
pub(super) fn fact(variable: &str) -> Option<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if !variable.chars().all(is_part) {
        return None;
    }
    let lower = variable.to_ascii_lowercase();
    let name = match lower.as_str() {
        "binary_remote_addr" | "remote_addr" => "client_ip".to_owned(),
        address if is_address_of_proxy(address) => "client_ip".to_owned(),
        "host" => "host".to_owned(),
        // A client can add any port.
        "http_host" => "authority".to_owned(),
        "uri" | "document_uri" => "path".to_owned(),
        "args" | "query_string" => "query".to_owned(),
        "request_method" => "method".to_owned(),
        "scheme" => "scheme".to_owned(),
        "ssl_server_name" => "tls.sni".to_owned(),
        "ssl_client_s_dn" => "tls.client.subject".to_owned(),
        _ => {
            let (kind, rest) = lower.split_once('_').filter(|(_, rest)| !rest.is_empty())?;
            match kind {
                "http" => {
                    let field = rest.replace('_', "-");
                    if is_removed(&field) {
                        return None;
                    }
                    format!("header.{field}")
                }
                // As they are written: Weir compares these names itself.
                "arg" | "cookie" => format!(
                    "{}.{}",
                    if kind == "arg" { "query" } else { kind },
                    variable.split_once('_')?.1
                ),
                _ => return None,
            }
        }
    };
    Some(format!("{{{name}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_variables_is_a_template() {
        for (written, expected, missing) in [
            ("$binary_remote_addr", "{client_ip}", "skip"),
            ("$http_x_api_key", "{header.x-api-key}", "skip"),
            ("$binary_remote_addr$http_x_api_key", "{client_ip}{header.x-api-key}", "address"),
            ("a:${arg_user}$cookie_s!", "a:{query.user}{cookie.s}!", "shared"),
            ("$host$uri", "{host}{path}", "shared"),
            ("$http_host", "{authority}", "skip"),
            ("$http_X_Api_Key", "{header.x-api-key}", "skip"),
            ("$Remote_Addr", "{client_ip}", "skip"),
            ("$http_x_forwarded_for", "{client_ip}", "skip"),
            ("${http_X_Real_IP}", "{client_ip}", "skip"),
            ("$Arg_userId", "{query.userId}", "skip"),
            ("$server_name", "api.example", "shared"),
            ("all", "all", "shared"),
        ] {
            let key = key(written, "api.example").unwrap();
            assert_eq!((key.text.as_str(), key.missing), (expected, missing), "{written}");
        }
        for name in
            ["geo", "http_x_forwarded_proto", "http_forwarded", "http_connection", "http_te"]
        {
            let error = format!("Weir has no fact for ${name}");
            assert_eq!(key(&format!("${name}"), "").unwrap_err(), error);
        }
        assert_eq!(fact("http_x$remote_addr"), None);
        assert!(
            key("", "").is_err() && key("$server_name", "").is_err() && key("{x}", "").is_err()
        );
    }
}
