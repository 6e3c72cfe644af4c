//! The generated part of the SDK.

use std::path::Path;

use crate::harness::bindings;

#[test]
fn the_bindings_of_the_sdk_are_those_of_the_contract() {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("wasm-sdk");
    let (path, expected) = (sdk.join("src/bindings.rs"), bindings::generate(&sdk.join("wit")));
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::write(&path, &expected).expect("a file that can be written");
    }
    let found = std::fs::read_to_string(&path).expect("the bindings");
    let differs = found.lines().zip(expected.lines()).position(|(one, other)| one != other);
    assert!(
        found == expected,
        "wasm-sdk/src/bindings.rs is not what the contract's generator makes (from line {}): run \
         this test with WEIR_BLESS=1, and commit what it writes",
        differs.map_or(0, |line| line + 1)
    );
}
