//! JSON that may be shown in a terminal.

use std::fmt::Write as _;

/// JSON text in which what a terminal obeys is escaped: the control characters that JSON allows as
/// they are (U+007F to U+009F). They are in strings only, so it says the same.
#[must_use]
pub fn json_for_terminals(json: String) -> String {
    let is_obeyed = |letter: char| matches!(letter, '\u{7f}'..='\u{9f}');
    if !json.contains(is_obeyed) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for letter in json.chars() {
        if is_obeyed(letter) {
            // Writing to a `String` can't fail.
            let _ = write!(out, "\\u{:04x}", u32::from(letter));
        } else {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::json_for_terminals;

    #[test]
    fn control_characters_are_escaped_and_say_the_same() {
        let text = |json: &str| json_for_terminals(json.to_owned());
        assert_eq!(
            text("\"a\u{9b}31m\u{7f}\u{9f}\u{a0}\u{e9}~\""),
            "\"a\\u009b31m\\u007f\\u009f\u{a0}\u{e9}~\""
        );
        assert_eq!(text("{\"\u{85}\":1}"), "{\"\\u0085\":1}");
        assert_eq!(text("[\"plain\", 1]"), "[\"plain\", 1]");
    }
}
