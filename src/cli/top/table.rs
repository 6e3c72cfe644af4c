//! What `/top` answers, limit by limit, and as text for a pipe. Knows no terminal.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use serde_json::Value;

use crate::cli::shell;

/// Maximum number of characters shown of a text. A key's text has up to 128 bytes, a digest with
/// its tag's 65.
const TEXT_CHARS_MAX: usize = 256;
/// Bytes of a key's text, at least, if the proxy kept only its beginning and an ellipsis.
const CUT_BYTES_MIN: usize = 125;

/// The answer of `/top`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopTable {
    /// The time that it covers, in seconds.
    pub(super) since_s: u64,
    /// Requests to limits that were too many to watch.
    pub(super) left_out: u64,
    /// The name of the limits that were asked for; `None` for all.
    pub(super) only: Option<String>,
    pub(super) limits: Vec<TopLimit>,
}

/// One limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopLimit {
    /// The name as in `public, per-minute` or `public, search, per-minute`: its policy, the route
    /// if the counters are its own, its name.
    pub(super) name: String,
    /// Units that all keys used.
    pub(super) units: u64,
    /// Refusals of all keys.
    pub(super) refusals: u64,
    /// Those with the most units first.
    pub(super) keys: Vec<TopRow>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopRow {
    /// Its text, where it is shown. It is as a shell takes it, so it can be pasted after `--key`,
    /// unless the proxy kept only its beginning: then an ellipsis without quotes ends it.
    pub(super) text: Option<String>,
    /// What `weir key` takes.
    pub(super) digest: String,
    pub(super) units: Count,
    pub(super) refusals: Count,
}

/// A number that is known within bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) least: u64,
    pub(super) most: u64,
}

/// What keys are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Units,
    Refusals,
}

impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most } = self;
        let text = if least == most { most.to_string() } else { format!("{least}..{most}") };
        out.pad(&text)
    }
}

impl TopTable {
    /// Reads the answer to a question for `count` keys of each limit.
    ///
    /// # Errors
    /// It is not such an answer. The sentence says what was found.
    pub(super) fn read(json: &str, count: u64) -> Result<Self, String> {
        let found: String = json.chars().take(60).collect();
        let wrong = || format!("found {found:?}, expected the keys of limits as JSON");
        let top: Value = serde_json::from_str(json).map_err(|_| wrong())?;
        let limits = top.get("limits").and_then(Value::as_array).ok_or_else(wrong)?;
        let limits = limits.iter().map(|limit| TopLimit::read(limit, count));
        Ok(Self {
            since_s: number(&top, "since_s").ok_or_else(wrong)?,
            left_out: number(&top, "left_out").unwrap_or(0),
            only: None,
            limits: limits.collect::<Option<_>>().ok_or_else(wrong)?,
        })
    }

    /// What it covers, and whether something is missing.
    pub(super) fn title(&self) -> String {
        let mut title = format!("in the last {} s", self.since_s);
        if self.left_out > 0 {
            title.push_str(&format!("; without {} requests to more limits", self.left_out));
        }
        title
    }

    /// A sentence for when there are no keys.
    pub(super) fn nothing(&self) -> String {
        let of = self.only.as_ref().map(|name| format!(" for a limit called {}", harmless(name)));
        format!("no key was counted{}", of.unwrap_or_default())
    }

    /// The table as text for a pipe. The key is the last column, as it may be long.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.title());
        if self.limits.is_empty() {
            text.push_str(&self.nothing());
            text.push('\n');
        }
        for limit in &self.limits {
            text.push_str(&format!("\n{}\n", limit.title()));
            let width = |heading: &str, cell: fn(&TopRow) -> Count| {
                let cells = limit.keys.iter().map(|key| cell(key).to_string().len());
                cells.chain([heading.len()]).max().unwrap_or(0)
            };
            let (units, refusals) =
                (width("units", |key| key.units), width("refused", |key| key.refusals));
            text.push_str(&format!("  {:>units$}  {:>refusals$}  key\n", "units", "refused"));
            for key in &limit.keys {
                let numbers = format!("  {:>units$}  {:>refusals$}", key.units, key.refusals);
                let shown = key.text.as_ref().map(|text| format!("  {text}")).unwrap_or_default();
                text.push_str(&format!("{numbers}  {}{shown}\n", key.digest));
            }
        }
        text
    }
}

impl TopLimit {
    fn read(limit: &Value, count: u64) -> Option<Self> {
        let part = |name: &str| limit.get(name).and_then(Value::as_str).map(harmless);
        let name = [part("policy"), part("route"), part("limit")];
        let list = |name: &str, amount: &str| -> Option<Vec<(TopRow, Count)>> {
            let keys = limit.get(name)?.as_array()?;
            keys.iter().map(|key| read_key(key, amount)).collect()
        };
        let (used, refused) = (list("used", "units")?, list("refused", "refusals")?);
        let (used_less, refused_less) = (unlisted(&used, count), unlisted(&refused, count));
        let mut keys: Vec<TopRow> = Vec::with_capacity(used.len() + refused.len());
        for (key, units) in used {
            keys.push(TopRow { units, refusals: refused_less, ..key });
        }
        let listed = keys.iter().enumerate().map(|(at, key)| (key.digest.clone(), at));
        let places: HashMap<String, usize> = listed.collect();
        for (key, refusals) in refused {
            match places.get(&key.digest).and_then(|at| keys.get_mut(*at)) {
                Some(listed) => listed.refusals = refusals,
                None => keys.push(TopRow { refusals, units: used_less, ..key }),
            }
        }
        let mut limit = Self {
            name: name.into_iter().flatten().collect::<Vec<_>>().join(", "),
            units: number(limit, "units")?,
            refusals: number(limit, "refusals")?,
            keys,
        };
        limit.order(Order::Units);
        Some(limit)
    }

    /// `public, per-minute: 90 units used, 7 times refused`.
    pub(super) fn title(&self) -> String {
        let Self { name, units, refusals, .. } = self;
        format!("{name}: {units} units used, {refusals} times refused")
    }

    /// Orders its keys.
    pub(super) fn order(&mut self, by: Order) {
        let rank = |count: Count| Reverse((count.most, count.least));
        self.keys.sort_by_key(|key| match by {
            Order::Units => (rank(key.units), rank(key.refusals)),
            Order::Refusals => (rank(key.refusals), rank(key.units)),
        });
    }
}

/// A key of a list, and its number there.
fn read_key(key: &Value, amount: &str) -> Option<(TopRow, Count)> {
    let text = |name: &str| key.get(name).and_then(Value::as_str).map(harmless);
    let most = number(key, amount)?;
    let least = most.saturating_sub(number(key, "error")?);
    let row = TopRow {
        text: key.get("key").and_then(Value::as_str).filter(|text| !text.is_empty()).map(pasteable),
        digest: text("digest")?,
        units: Count::default(),
        refusals: Count::default(),
    };
    Some((row, Count { least, most }))
}

/// What a key has that is not in a list: nothing if the list has all keys, else at most what its
/// last one has. A list that is shorter than was asked for has all, unless its numbers have errors:
/// then keys were dropped while they were counted.
fn unlisted(list: &[(TopRow, Count)], count: u64) -> Count {
    let has_all = (list.len() as u64) < count && list.iter().all(|(_, of)| of.least == of.most);
    let last = list.last().filter(|_| !has_all);
    Count { least: 0, most: last.map_or(0, |(_, of)| of.most) }
}

fn number(object: &Value, name: &str) -> Option<u64> {
    object.get(name)?.as_u64()
}

/// A key as a shell takes it. No command line can hold a NUL, and a key that was cut is not the
/// whole one: such keys are shown like other texts.
fn pasteable(key: &str) -> String {
    let is_cut = key.len() >= CUT_BYTES_MIN && key.ends_with('\u{2026}');
    if is_cut || key.contains('\0') || key.chars().nth(TEXT_CHARS_MAX).is_some() {
        return harmless(key);
    }
    shell::word(key)
}

/// A client's text on a terminal: nothing in it moves the cursor, turns its line around, or is
/// invisible.
pub(super) fn harmless(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars().take(TEXT_CHARS_MAX) {
        match letter {
            '\'' | '"' => shown.push(letter),
            // Escapes what can't be printed by itself, and the backslash.
            _ => shown.extend(letter.escape_debug()),
        }
    }
    if text.chars().nth(TEXT_CHARS_MAX).is_some() {
        shown.push('\u{2026}');
    }
    shown
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const ANSWER: &str = r#"{"since_s": 213, "left_out": 0, "limits": [
        {"policy": "public", "route": null, "limit": "per-minute", "units": 90, "refusals": 7,
         "used": [{"key": "a\u001b[2J\u202e", "digest": "00", "units": 50, "error": 0},
                  {"key": null, "digest": "9e6b23645a7c871ab49d279271d8db3a", "units": 40, "error": 3}],
         "refused": [{"key": null, "digest": "01", "refusals": 5, "error": 0},
                     {"key": "a", "digest": "00", "refusals": 2, "error": 0}]},
        {"policy": "p", "route": "r", "limit": "l", "units": 0, "refusals": 0, "used": [], "refused": []}
    ]}"#;

    #[test]
    fn limits_and_their_keys_are_aligned_and_harmless() {
        let top = TopTable::read(ANSWER, 10).unwrap();
        let expected = "in the last 213 s\n\
            \n\
            public, per-minute: 90 units used, 7 times refused\n\
            \x20  units  refused  key\n\
            \x20     50        2  00  $'a\\033[2J\\342\\200\\256'\n\
            \x20 37..40        0  9e6b23645a7c871ab49d279271d8db3a\n\
            \x20  0..40        5  01\n\
            \n\
            p, r, l: 0 units used, 0 times refused\n\
            \x20 units  refused  key\n";
        assert_eq!(top.text(), expected);
        let none = TopTable::read("{\"since_s\": 0, \"left_out\": 3, \"limits\": []}", 1).unwrap();
        let expected = "in the last 0 s; without 3 requests to more limits\nno key was counted\n";
        assert_eq!(none.text(), expected);
    }

    #[test]
    fn unlisted_keys_are_reported_within_bounds() {
        let counts = |count| -> Vec<String> {
            let top = TopTable::read(ANSWER, count).unwrap();
            let keys = top.limits[0].keys.iter();
            keys.map(|key| format!("{} {} {}", key.digest, key.units, key.refusals)).collect()
        };
        let digest = "9e6b23645a7c871ab49d279271d8db3a";
        let first = "00 50 2".to_owned();
        // The list of refusals is shorter than that, and exact.
        let all = [first.clone(), format!("{digest} 37..40 0"), "01 0..40 5".to_owned()];
        assert_eq!(counts(3), all);
        // It may go on.
        let part = [first, format!("{digest} 37..40 0..2"), "01 0..40 5".to_owned()];
        assert_eq!(counts(2), part);
        let mut limit = TopTable::read(ANSWER, 2).unwrap().limits.remove(0);
        limit.order(Order::Refusals);
        assert_eq!(
            limit.keys.iter().map(|key| &*key.digest).collect::<Vec<_>>(),
            ["01", "00", digest]
        );
    }

    #[test]
    fn another_answer_is_reported() {
        let key = r#"{"digest": "0", "units": -1, "error": 0}"#;
        let limit = format!(
            r#"{{"since_s": 1, "limits": [{{"units": 1, "refusals": 0, "used": [{key}], "refused": []}}]}}"#
        );
        for wrong in
            ["", "[]", "{}", "{\"limits\": 1}", "{\"limits\": [{}], \"since_s\": 1}", &limit]
        {
            let error = TopTable::read(wrong, 1).unwrap_err();
            assert!(error.contains("expected the keys of limits as JSON"), "{wrong}: {error}");
        }
    }

    #[test]
    fn texts_keep_what_can_be_read() {
        for (text, shown) in [
            ("zo\u{eb} \u{5c71}\u{7530} \"it's\"", "zo\u{eb} \u{5c71}\u{7530} \"it's\""),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\u{200b}b\u{301}\u{9b}31m\\", "a\\u{200b}b\\u{301}\\u{9b}31m\\\\"),
            ("line\r\nbreak\t\u{2028}", "line\\r\\nbreak\\t\\u{2028}"),
        ] {
            assert_eq!(harmless(text), shown);
        }
        assert_eq!(pasteable("two words"), "'two words'");
        let cut = "two words ".repeat(12) + "12345\u{2026}";
        assert_eq!(pasteable(&cut), cut);
        assert_eq!(pasteable(&cut[4..]), format!("'{}'", &cut[4..]));
        let long = harmless(&"k".repeat(4_096));
        assert!(long.chars().count() == TEXT_CHARS_MAX + 1 && long.ends_with('\u{2026}'));
    }
}
