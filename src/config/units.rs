//! Durations and sizes as operators write them: `"250ms"`, `"1m30s"`, `"16KiB"`. Whole numbers,
//! each with its unit and without blanks, so that nothing is ambiguous.

use std::time::Duration;

use bytesize::ByteSize;

const DURATION_UNITS: [(&str, u128); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Whole numbers of `d`, `h`, `m`, `s` or `ms`, each unit smaller than the one before: `"1m30s"`,
/// as in the limits of policies. humantime alone would also take `"1month 3sec"`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut units = DURATION_UNITS.iter();
    let mut rest = text;
    while !rest.is_empty() {
        let (digits, after) = split_where(rest, |letter| !letter.is_ascii_digit());
        let (unit, next) = split_where(after, |letter| letter.is_ascii_digit());
        if digits.is_empty() || !units.any(|(known, _)| *known == unit) {
            return None;
        }
        rest = next;
    }
    humantime::parse_duration(text).ok()
}

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// A whole number of `B`, `KiB`, `MiB`, `GiB` or `TiB`. bytesize alone would also take `"1.5 kb"`,
/// which is 1500 to it and 1536 to others.
pub(super) fn size(text: &str) -> Option<u64> {
    let known = SIZE_UNITS.map(|(unit, _)| unit);
    if one_number_one_unit(text, &known) {
        text.parse::<ByteSize>().ok().map(|size| size.0)
    } else {
        None
    }
}

fn one_number_one_unit(text: &str, units: &[&str]) -> bool {
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    unit.len() < text.len() && units.contains(&unit)
}

/// Writes it in the largest unit that leaves no remainder.
pub(super) fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let unit =
        DURATION_UNITS.into_iter().find(|(_, unit_ms)| ms > 0 && ms.is_multiple_of(*unit_ms));
    unit.map_or_else(|| "0s".to_owned(), |(unit, unit_ms)| format!("{}{unit}", ms / unit_ms))
}

/// Writes it in the largest unit that leaves no remainder.
pub(super) fn show_size(bytes: u64) -> String {
    let unit = SIZE_UNITS
        .into_iter()
        .find(|(_, unit_bytes)| bytes > 0 && bytes.is_multiple_of(*unit_bytes));
    unit.map_or_else(
        || format!("{bytes}B"),
        |(unit, unit_bytes)| format!("{}{unit}", bytes / unit_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_whole_numbers_with_units() {
        let read = ["250ms", "10s", "1m", "1h", "1d", "0s", "1m30s", "1d2h3m4s5ms"]
            .map(|text| duration(text).unwrap().as_millis());
        let long = 86_400_000 + 2 * 3_600_000 + 3 * 60_000 + 4_005;
        assert_eq!(read, [250, 10_000, 60_000, 3_600_000, 86_400_000, 0, 90_000, long]);
        for text in [
            "",
            "10",
            "s",
            "1.5s",
            "30m1h",
            "1s1s",
            "1m 30s",
            "1m30",
            "10 s",
            " 10s",
            "-1s",
            "1month",
            "1M",
            "10S",
            "99999999999999999999s",
            "١s",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_size_is_one_number_and_one_unit() {
        assert_eq!(
            ["0B", "16KiB", "100MiB", "1GiB"].map(|text| size(text).unwrap()),
            [0, 16 << 10, 100 << 20, 1 << 30]
        );
        for text in ["", "16", "KiB", "16KB", "16K", "1.5MiB", "16 KiB", "-1B", "16kib"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn shown_units_parse_back() {
        for ms in [0, 1, 250, 1_500, 60_000, 90_000, 86_400_000] {
            assert_eq!(
                duration(&show_duration(Duration::from_millis(ms))),
                Some(Duration::from_millis(ms))
            );
        }
        for bytes in [0, 1, 1_000, 1_024, 100 << 20, 3 << 40] {
            assert_eq!(size(&show_size(bytes)), Some(bytes));
        }
    }
}
