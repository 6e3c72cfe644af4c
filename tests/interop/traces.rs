//! The log of `tests/traces`, made again by its script, which is written in Python.

use std::path::Path;

#[test]
fn the_small_log_is_what_its_script_makes() {
    let made = crate::harness::python::client("../traces/make.py", &[]);
    let committed = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small.log"),
    )
    .unwrap();
    assert!(made == committed, "tests/traces/small.log: make it again, or mend make.py");
}
