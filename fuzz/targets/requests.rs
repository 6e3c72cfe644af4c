//! See `weir_fuzz::requests`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_fuzz::requests(bytes));
