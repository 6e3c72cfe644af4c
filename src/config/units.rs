//! Durations and sizes as operators write them: `"250ms"`, `"16KiB"`. One number and one unit, so
//! that nothing is ambiguous.

use std::time::Duration;

use bytesize::ByteSize;

const DURATION_UNITS: [(&str, u128); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A whole number of `ms`, `s`, `m`, `h` or `d`. humantime alone would also take `"1month 3sec"`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let known = DURATION_UNITS.map(|(unit, _)| unit);
    if one_number_one_unit(text, &known) { humantime::parse_duration(text).ok() } else { None }
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
    fn a_duration_is_one_number_and_one_unit() {
        let read = ["250ms", "10s", "1m", "1h", "1d", "0s"]
            .map(|text| duration(text).unwrap().as_millis());
        assert_eq!(read, [250, 10_000, 60_000, 3_600_000, 86_400_000, 0]);
        for text in [
            "",
            "10",
            "s",
            "1.5s",
            "1h30m",
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
