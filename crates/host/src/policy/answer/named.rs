//! Algorithms by their names, with their arguments by theirs.

use weir_algorithms::{Every, Row, Setting, Written};

use super::super::abi::types::{Named, Value};
use super::{second, shortened};
use crate::plan::{Algorithm, Alignment};

/// The names of arguments, and the settings that they are.
const ARGUMENTS: [(&str, Setting); 10] = [
    ("quota", Setting::Quota),
    ("period-ms", Setting::Period),
    ("burst", Setting::Burst),
    ("alignment", Setting::Alignment),
    ("buckets", Setting::Buckets),
    ("max-delay-ms", Setting::MaxDelay),
    ("calendar", Setting::Calendar),
    ("time-zone", Setting::TimeZone),
    ("anchor-day", Setting::AnchorDay),
    ("conditional", Setting::Conditional),
];
/// It has a case of its own, since its arguments have no names.
const SCRIPT: &str = "script";

/// The algorithm that is meant. The error continues the path of the algorithm's field.
pub(super) fn algorithm(named: &Named) -> Result<Algorithm, String> {
    let row = Row::named(&named.name.replace('-', "_")).filter(|row| row.name != SCRIPT);
    let row = row.filter(|_| !named.name.contains('_')).ok_or_else(|| {
        let names = weir_algorithms::NAMES.iter().filter(|name| **name != SCRIPT);
        let names: Vec<String> = names.map(|name| name.replace('_', "-")).collect();
        format!(".name: found {:?}, expected one of {}", shortened(&named.name), names.join(", "))
    })?;
    let mut written = Written::default();
    let mut seen = Vec::new();
    for (name, value) in &named.arguments {
        let known = ARGUMENTS.iter().filter(|(_, setting)| row.settings.contains(setting));
        let setting = known.clone().find(|(known, _)| known == name).map(|(_, setting)| *setting);
        let setting = setting.ok_or_else(|| {
            let names: Vec<&str> = known.map(|(known, _)| *known).collect();
            let (found, names) = (shortened(name), names.join(", "));
            format!(".arguments: found {found:?}, expected one of {names}")
        })?;
        if seen.contains(&setting) {
            return Err(format!(".arguments: {}", second(name)));
        }
        seen.push(setting);
        set(&mut written, setting, value).map_err(|expected| {
            let found = match value {
                Value::Number(number) => number.to_string(),
                Value::Text(text) => format!("{:?}", shortened(text)),
            };
            format!(".arguments: found {found} for `{name}`, expected {expected}")
        })?;
    }
    (row.read)(&written).ok_or_else(|| {
        let missing = row.needed.iter().find(|(setting, _)| !written.has(*setting));
        let name = missing.and_then(|(missing, _)| {
            ARGUMENTS.iter().find(|(_, setting)| setting == missing).map(|(name, _)| *name)
        });
        format!(".arguments: found no `{}`, expected it", name.unwrap_or_default())
    })
}

/// Sets an argument. The error is what was expected.
fn set<'w>(written: &mut Written<'w>, setting: Setting, value: &'w Value) -> Result<(), String> {
    let number = || match value {
        Value::Number(number) => u64::try_from(*number).ok(),
        Value::Text(_) => None,
    };
    let number = || number().ok_or_else(|| "a number, 0 or more".to_owned());
    let text = match value {
        Value::Text(text) => Some(text.as_str()),
        Value::Number(_) => None,
    };
    match setting {
        Setting::Quota => written.quota = Some(number()?),
        Setting::Period => written.period_ms = Some(number()?),
        Setting::Burst => written.burst = Some(number()?),
        Setting::Buckets => written.buckets = Some(number()?),
        Setting::MaxDelay => written.max_delay_ms = Some(number()?),
        Setting::AnchorDay => written.anchor_day = Some(number()?),
        Setting::Alignment => {
            let words = [("first-request", Alignment::FirstRequest), ("clock", Alignment::Clock)];
            written.alignment = Some(word(text, &words)?);
        }
        Setting::Calendar => written.calendar = Some(word(text, &Every::ALL)?),
        Setting::Conditional => {
            written.conditional = Some(word(text, &[("true", true), ("false", false)])?);
        }
        Setting::TimeZone => written.time_zone = Some(text.ok_or("a text")?),
        Setting::Script | Setting::Arguments | Setting::Debt => {}
    }
    Ok(())
}

/// One of the words.
fn word<T: Copy>(text: Option<&str>, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| Some(*word) == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        format!("one of {}", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, arguments: &[(&str, Value)]) -> Result<Algorithm, String> {
        let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        algorithm(&Named { name: name.to_owned(), arguments: arguments.collect() })
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    /// Everything that the typed cases have can be said in this way, too.
    #[test]
    fn each_algorithm_has_a_name_and_each_of_its_settings_an_argument() {
        let arguments = [
            ("quota", Value::Number(6)),
            ("period-ms", Value::Number(1_000)),
            ("max-delay-ms", Value::Number(500)),
            ("calendar", text("month")),
        ];
        for row in weir_algorithms::ROWS.iter().filter(|row| row.name != SCRIPT) {
            let known = |name: &&str| {
                ARGUMENTS
                    .iter()
                    .any(|(known, setting)| known == name && row.settings.contains(setting))
            };
            let own: Vec<_> = arguments.iter().filter(|(name, _)| known(name)).cloned().collect();
            let read = read(&row.name.replace('_', "-"), &own);
            assert_eq!(read.map(|it| it.name().to_owned()), Ok(row.name.to_owned()));
            for setting in row.settings.iter().filter(|setting| **setting != Setting::Debt) {
                assert!(ARGUMENTS.iter().any(|(_, known)| known == setting), "{setting:?}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        let quota = ("quota", Value::Number(6));
        for (name, arguments, expected) in [
            ("gcar", &[quota.clone()][..], ".name: found \"gcar\", expected one of fixed-window, "),
            ("fixed_window", &[], ".name: found \"fixed_window\""),
            ("script", &[], ".name: found \"script\""),
            ("gcra", std::slice::from_ref(&quota), ".arguments: found no `period-ms`, expected it"),
            ("gcra", &[quota.clone(), quota.clone()], ".arguments: found `quota` a second time"),
            (
                "gcra",
                &[("calendar", text("day"))],
                ".arguments: found \"calendar\", expected one of quota, period-ms, burst",
            ),
            (
                "gcra",
                &[("quota", Value::Number(-1))],
                ".arguments: found -1 for `quota`, expected a number, 0 or more",
            ),
            (
                "quota",
                &[("calendar", text("year"))],
                ".arguments: found \"year\" for `calendar`, expected one of \"hour\"",
            ),
            (
                "quota",
                &[("conditional", Value::Number(1))],
                ".arguments: found 1 for `conditional`, expected one of \"true\", \"false\"",
            ),
        ] {
            let wrong = read(name, arguments).unwrap_err();
            assert!(wrong.starts_with(expected), "{wrong}");
        }
    }
}
