//! Texts that no operator writes: none panics, none exhausts the stack.

use proptest::prelude::*;

use super::*;

#[test]
fn a_tree_of_any_depth_is_read_and_dropped() {
    let keys = vec!["a"; 79].join(".");
    let text = format!("{}{keys} = 1{}", format!("{keys} = {{ ").repeat(78), "}".repeat(78));
    let read = std::thread::Builder::new()
        .stack_size(512 << 10)
        .spawn(move || parse(&text).unwrap_err().count)
        .unwrap();
    assert!(read.join().unwrap() > 0);
}

#[test]
fn of_many_errors_the_first_are_shown_and_all_are_counted() {
    let text: String = (0..200).map(|number| format!("key{number} = 1\n")).collect();
    let errors = parse(&text).unwrap_err();
    assert_eq!(errors.count, 201);
    assert!(errors.text.contains("... and 151 more\nproxy.toml: 201 errors"), "{errors}");
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*") {
        let _ = parse(&text);
    }

    #[test]
    fn no_damage_to_a_good_file_panics(at in 0_usize..5_000, length in 0_usize..40, put in "[\\[\\]{}=\"'\\\\.#\u{feff}\r\n\tü0-9a-z-]{0,12}") {
        let good = include_str!("../../../proxy.toml");
        let start = good.floor_char_boundary(at);
        let text = format!("{}{put}{}", &good[..start], &good[good.ceil_char_boundary((start + length).min(good.len()))..]);
        if let Ok(config) = parse(&text) {
            prop_assert_eq!(config.source.locate(&[SettingError::new(put, "x", "y")]).count, 1);
        }
    }
}
