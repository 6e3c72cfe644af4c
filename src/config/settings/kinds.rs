//! The types of settings: which values they take, and how a value is written.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use crate::config::reader::{Item, integer, nearest};
use crate::config::units;

/// What the reference says about a setting's values.
pub(in crate::config) trait Form: Sync + 'static {
    /// Their type and range.
    fn form(&self) -> String;
    /// The value where none is written, as in the file, or in words.
    fn default(&self) -> String;
}

/// A type that a value is read as.
pub(in crate::config) trait Kind: Sync {
    type Value: Clone + Sync;

    /// The value, if it is of this type and in range.
    fn fit(&self, value: &DeValue<'_>) -> Option<Self::Value>;
    /// What a message says was expected.
    fn expected(&self) -> String;
    /// How a wrong value can be put right.
    fn help(&self, _wrong: &DeValue<'_>) -> Option<String> {
        None
    }
    /// Type and range, for the reference.
    fn form(&self) -> String;
    /// The value as it is written in the file.
    fn written(&self, value: &Self::Value) -> String;

    /// The value, or none where it is wrong, which is noted.
    fn read(&self, item: &Item<'_>) -> Option<Self::Value> {
        let value = self.fit(item.value);
        if value.is_none() {
            item.wrong_with(self.expected(), self.help(item.value));
        }
        value
    }
}

/// A setting that has a value even where none is written.
pub(in crate::config) struct Is<K: Kind> {
    pub(in crate::config) kind: K,
    pub(in crate::config) default: K::Value,
}

/// A setting without a fixed default. `default` says in words what holds where none is written.
pub(in crate::config) struct Else<K> {
    pub(in crate::config) kind: K,
    pub(in crate::config) default: &'static str,
}

impl<K: Kind + 'static> Form for Is<K> {
    fn form(&self) -> String {
        self.kind.form()
    }

    fn default(&self) -> String {
        self.kind.written(&self.default)
    }
}

impl<K: Kind + 'static> Form for Else<K> {
    fn form(&self) -> String {
        self.kind.form()
    }

    fn default(&self) -> String {
        self.default.to_owned()
    }
}

/// A number of a type that holds it whole.
pub(in crate::config) trait Number:
    Copy + TryFrom<u64> + TryInto<u64> + Sync + 'static
{
}

impl<T: Copy + TryFrom<u64> + TryInto<u64> + Sync + 'static> Number for T {}

fn wide<T: Number>(number: T) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

fn narrow<T: Number>(number: u64, range: &RangeInclusive<T>) -> Option<T> {
    let fits = (wide(*range.start())..=wide(*range.end())).contains(&number);
    if fits { T::try_from(number).ok() } else { None }
}

/// A whole number.
pub(in crate::config) struct Whole<T>(pub(in crate::config) RangeInclusive<T>);

impl<T: Number> Kind for Whole<T> {
    type Value = T;

    fn fit(&self, value: &DeValue<'_>) -> Option<T> {
        narrow(u64::try_from(integer(value)?).ok()?, &self.0)
    }

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", wide(*self.0.start()), wide(*self.0.end()))
    }

    fn form(&self) -> String {
        format!("whole number, {} to {}", grouped(*self.0.start()), grouped(*self.0.end()))
    }

    fn written(&self, value: &T) -> String {
        grouped(*value)
    }
}

/// Writes a number in groups of three digits: `20_000`.
fn grouped<T: Number>(number: T) -> String {
    let digits = wide(number).to_string();
    let count = digits.len();
    let gap = |index: usize| index > 0 && (count - index).is_multiple_of(3);
    let group =
        |(index, digit)| [if gap(index) { "_" } else { "" }.to_owned(), String::from(digit)];
    digits.chars().enumerate().flat_map(group).collect()
}

/// A number of bytes, with its unit.
pub(in crate::config) struct Size<T>(pub(in crate::config) RangeInclusive<T>);

impl<T: Number> Size<T> {
    fn range(&self) -> String {
        let [low, high] = [self.0.start(), self.0.end()].map(|end| units::show_size(wide(*end)));
        format!("\"{low}\" to \"{high}\"")
    }
}

impl<T: Number> Kind for Size<T> {
    type Value = T;

    fn fit(&self, value: &DeValue<'_>) -> Option<T> {
        narrow(units::size(value.as_str()?)?, &self.0)
    }

    fn expected(&self) -> String {
        format!("a size from {} in B, KiB, MiB, GiB or TiB, such as \"16KiB\"", self.range())
    }

    fn help(&self, wrong: &DeValue<'_>) -> Option<String> {
        let number = integer(wrong).filter(|n| *n >= 0)?;
        Some(format!("a size has a unit: \"{number}B\" or \"{number}KiB\""))
    }

    fn form(&self) -> String {
        format!("size, {}", self.range())
    }

    fn written(&self, value: &T) -> String {
        format!("\"{}\"", units::show_size(wide(*value)))
    }
}

/// A share of a hundred, in hundredths of one.
pub(in crate::config) struct Percent(pub(in crate::config) RangeInclusive<u32>);

impl Kind for Percent {
    type Value = u32;

    fn fit(&self, value: &DeValue<'_>) -> Option<u32> {
        let hundredths = match value.as_str() {
            None => u32::try_from(integer(value)?).ok()?.checked_mul(100)?,
            Some(text) => {
                let text = text.strip_suffix('%')?.trim_end();
                let (whole, part) = text.split_once('.').unwrap_or((text, ""));
                let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
                if whole.is_empty() || part.len() > 2 || !digits(whole) || !digits(part) {
                    return None;
                }
                format!("{whole}{part:0<2}").parse().ok()?
            }
        };
        narrow(u64::from(hundredths), &self.0)
    }

    fn expected(&self) -> String {
        "a percentage from \"0.01%\" to \"99.99%\", such as 5 or \"0.5%\"".into()
    }

    fn form(&self) -> String {
        "percentage, \"0.01%\" to \"99.99%\"".into()
    }

    fn written(&self, value: &u32) -> String {
        format!("\"{}.{:02}%\"", value / 100, value % 100)
    }
}

/// A duration, with its unit.
pub(in crate::config) struct Time(pub(in crate::config) RangeInclusive<Duration>);

impl Time {
    fn range(&self) -> String {
        let [low, high] = [self.0.start(), self.0.end()].map(|end| units::show_duration(*end));
        format!("\"{low}\" to \"{high}\"")
    }
}

impl Kind for Time {
    type Value = Duration;

    fn fit(&self, value: &DeValue<'_>) -> Option<Duration> {
        units::duration(value.as_str()?).filter(|duration| self.0.contains(duration))
    }

    fn expected(&self) -> String {
        format!("a duration from {} in ms, s, m, h or d, such as \"10s\"", self.range())
    }

    fn help(&self, wrong: &DeValue<'_>) -> Option<String> {
        let number = integer(wrong).filter(|n| *n >= 0)?;
        Some(format!("a duration has a unit: \"{number}s\" or \"{number}ms\""))
    }

    fn form(&self) -> String {
        format!("duration, {}", self.range())
    }

    fn written(&self, value: &Duration) -> String {
        format!("\"{}\"", units::show_duration(*value))
    }
}

/// `true` or `false`.
pub(in crate::config) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn fit(&self, value: &DeValue<'_>) -> Option<bool> {
        value.as_bool()
    }

    fn expected(&self) -> String {
        "true or false".into()
    }

    fn form(&self) -> String {
        self.expected()
    }

    fn written(&self, value: &bool) -> String {
        value.to_string()
    }
}

/// One of a closed set of words, each with its meaning.
pub(in crate::config) struct Choice<'w, T>(pub(in crate::config) &'w [(&'w str, T)]);

/// Words that the table has.
pub(in crate::config) type Words<T> = Choice<'static, T>;

impl<T: Clone + PartialEq + Sync> Kind for Choice<'_, T> {
    type Value = T;

    fn fit(&self, value: &DeValue<'_>) -> Option<T> {
        let text = value.as_str()?;
        self.0.iter().find(|(word, _)| *word == text).map(|(_, value)| value.clone())
    }

    fn expected(&self) -> String {
        let quoted: Vec<_> = self.0.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        quoted.join(" or ")
    }

    fn help(&self, wrong: &DeValue<'_>) -> Option<String> {
        let known: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        let near = nearest(wrong.as_str()?, &known)?;
        Some(format!("the nearest is \"{near}\""))
    }

    fn form(&self) -> String {
        self.expected()
    }

    fn written(&self, value: &T) -> String {
        let word = self.0.iter().find(|(_, meaning)| meaning == value).map(|(word, _)| word);
        word.map(|word| format!("\"{word}\"")).unwrap_or_default()
    }
}

/// A value of another type, or a word instead.
pub(in crate::config) struct WordOr<K> {
    pub(in crate::config) word: &'static str,
    pub(in crate::config) kind: K,
}

impl<K: Kind> Kind for WordOr<K> {
    /// None for the word.
    type Value = Option<K::Value>;

    fn fit(&self, value: &DeValue<'_>) -> Option<Self::Value> {
        if value.as_str() == Some(self.word) {
            return Some(None);
        }
        self.kind.fit(value).map(Some)
    }

    fn expected(&self) -> String {
        format!("\"{}\" or {}", self.word, self.kind.expected())
    }

    fn form(&self) -> String {
        format!("\"{}\" or {}", self.word, self.kind.form())
    }

    fn written(&self, value: &Self::Value) -> String {
        let word = || format!("\"{}\"", self.word);
        value.as_ref().map_or_else(word, |value| self.kind.written(value))
    }
}

/// A text. What it must be is checked by its reader, or by the module that uses it.
pub(in crate::config) struct Text(pub(in crate::config) &'static str);

impl Kind for Text {
    type Value = String;

    fn fit(&self, value: &DeValue<'_>) -> Option<String> {
        value.as_str().map(str::to_owned)
    }

    fn expected(&self) -> String {
        self.0.to_owned()
    }

    fn form(&self) -> String {
        self.0.to_owned()
    }

    fn written(&self, value: &String) -> String {
        format!("\"{value}\"")
    }
}

/// An array, or a table whose keys the operator chooses, of at most this many entries.
pub(in crate::config) struct List {
    pub(in crate::config) of: &'static str,
    pub(in crate::config) max: usize,
    pub(in crate::config) default: &'static str,
}

impl List {
    /// What a message says was expected.
    pub(in crate::config) fn expected(&self) -> String {
        format!("an {}", self.of)
    }
}

impl Form for List {
    fn form(&self) -> String {
        format!("{}, at most {}", self.of, grouped(self.max))
    }

    fn default(&self) -> String {
        self.default.to_owned()
    }
}

pub(in crate::config) const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(in crate::config) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(in crate::config) const fn whole<T: Number>(
    range: RangeInclusive<T>,
    default: T,
) -> Is<Whole<T>> {
    Is { kind: Whole(range), default }
}

pub(in crate::config) const fn size<T: Number>(
    range: RangeInclusive<T>,
    default: T,
) -> Is<Size<T>> {
    Is { kind: Size(range), default }
}

pub(in crate::config) const fn time(
    range: RangeInclusive<Duration>,
    default: Duration,
) -> Is<Time> {
    Is { kind: Time(range), default }
}

pub(in crate::config) const fn flag(default: bool) -> Is<Flag> {
    Is { kind: Flag, default }
}

pub(in crate::config) const fn word_or<K: Kind>(word: &'static str, kind: K) -> Is<WordOr<K>> {
    Is { kind: WordOr { word, kind }, default: None }
}

pub(in crate::config) const fn words<T: Copy + PartialEq + Sync>(
    words: &'static [(&'static str, T)],
    default: T,
) -> Is<Words<T>> {
    Is { kind: Choice(words), default }
}

pub(in crate::config) const fn text(expected: &'static str, default: &'static str) -> Else<Text> {
    Else { kind: Text(expected), default }
}

pub(in crate::config) const fn list(of: &'static str, max: usize, default: &'static str) -> List {
    List { of, max, default }
}
