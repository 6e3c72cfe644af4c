//! See `weir_fuzz::replies`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_fuzz::replies(bytes));
