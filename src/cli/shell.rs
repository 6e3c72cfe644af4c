//! Words as a shell takes them, so that what is printed can be pasted.

use std::fmt::Write as _;

/// One word for a POSIX shell, quoted if it must be. Characters that nobody sees need `$'..'`,
/// which bash, zsh and the newer POSIX shells know.
pub(super) fn word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) { text.to_owned() } else { quoted(text) }
}

/// One word for a POSIX shell, between quotes in any case: what follows it can't be taken for a
/// part of it.
pub(super) fn quoted(text: &str) -> String {
    if !text.chars().any(is_hidden) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut word = "$'".to_owned();
    for next in text.chars() {
        match next {
            '\'' | '\\' => word.extend(['\\', next]),
            next if is_hidden(next) => {
                let mut bytes = [0; 4];
                next.encode_utf8(&mut bytes).bytes().for_each(|byte| {
                    let _ = write!(word, "\\{byte:03o}");
                });
            }
            next => word.push(next),
        }
    }
    word + "'"
}

/// A key as `weir key` takes it after `--key`. No command line can hold a NUL: the digest of such
/// a key can be asked for.
pub(super) fn key(text: &str) -> String {
    if text.contains('\0') {
        return format!("{text:?} (holds a NUL: --digest finds it)");
    }
    quoted(text)
}

/// Control characters, blanks other than a space, and what turns the order of others around: a
/// terminal would act on them, or show something else than the word holds.
fn is_hidden(letter: char) -> bool {
    let is_quote = matches!(letter, '\'' | '"' | '\\');
    !is_quote && letter.escape_debug().nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn bash_reads_what_was_quoted() {
        for text in [
            "203.0.113.7",
            "\\@192.0.2.1",
            "a b",
            "it's",
            "9:127.0.0.1 2:/a",
            "$HOME `id` \"x\"",
            "line\nbreak\t'\\",
            "\u{1b}[31mred\u{7f}",
            "\u{e9}\u{85}a",
            "\u{202e}gpj.exe\u{a0}",
            "\u{1f600} \u{6f22}\u{5b57}",
            "-k",
            "!!",
            "*",
            "~",
            "",
        ] {
            for word in [word(text), quoted(text), key(text)] {
                let shell = Command::new("bash")
                    .args(["-c", &format!("printf %s {word}")])
                    .output()
                    .unwrap();
                assert_eq!(String::from_utf8(shell.stdout).unwrap(), text, "{word}");
                let shown = |letter: char| !letter.is_control() && letter != '\u{202e}';
                assert!(word.chars().all(shown), "{word:?}");
            }
        }
    }

    #[test]
    fn only_what_needs_quotes_gets_them() {
        assert_eq!(
            (word("10.0.0.1"), quoted("10.0.0.1")),
            ("10.0.0.1".into(), "'10.0.0.1'".into())
        );
        assert_eq!((word("a b"), word("")), ("'a b'".into(), "''".into()));
        assert_eq!(key("a\0b"), "\"a\\0b\" (holds a NUL: --digest finds it)");
    }
}
