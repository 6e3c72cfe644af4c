//! Media types, and patterns of them.

/// A media type, or all that begin and end alike: `text/*`, `application/*+json`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MediaPattern {
    start: Vec<u8>,
    /// What follows the star; none if there is no star.
    end: Option<Vec<u8>>,
}

impl MediaPattern {
    /// Reads what an operator wrote.
    pub(super) fn read(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (kind, subtype) = text.split_once('/')?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
        let (start, end) = match subtype.split_once('*') {
            Some((start, end)) => (start, Some(end)),
            None => (subtype, None),
        };
        let is_empty = kind.is_empty() || subtype.is_empty();
        let bytes = kind.bytes().chain(start.bytes()).chain(end.unwrap_or("").bytes());
        if is_empty || !bytes.into_iter().all(is_token) {
            return None;
        }
        let start = format!("{kind}/{start}").into_bytes();
        Some(Self { start, end: end.map(|end| end.as_bytes().to_vec()) })
    }

    /// Whether it is for this type, in lower case.
    pub(super) fn matches(&self, essence: &[u8]) -> bool {
        match &self.end {
            None => essence == self.start.as_slice(),
            Some(end) => {
                essence.strip_prefix(self.start.as_slice()).is_some_and(|rest| rest.ends_with(end))
            }
        }
    }
}

/// The type in a `Content-Type`, without parameters and in lower case.
pub(super) fn essence(content_type: &[u8]) -> Vec<u8> {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_type_or_has_one_star() {
        for (pattern, content_type, expected) in [
            ("text/*", "text/html; charset=utf-8", true),
            ("text/*", "TEXT/Event-Stream", true),
            ("text/*", "texts/html", false),
            ("application/json", "application/json;q=1", true),
            ("application/json", "application/json5", false),
            ("application/*+json", "application/problem+json", true),
            ("application/*+json", "application/json", false),
            ("Image/SVG+xml", "image/svg+xml", true),
            ("text/*", "", false),
        ] {
            let read = MediaPattern::read(pattern).unwrap();
            assert_eq!(read.matches(&essence(content_type.as_bytes())), expected, "{content_type}");
        }
        for wrong in ["", "text", "/", "text/", "/json", "*", "*/*", "a/b/c", "a/**", "a/b; c=d"] {
            assert_eq!(MediaPattern::read(wrong), None, "{wrong}");
        }
    }
}
