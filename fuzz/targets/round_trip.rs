//! See `weir_fuzz::round_trip`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_fuzz::round_trip(bytes));
