//! See `weir_fuzz_policies::answers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weir_fuzz_policies::answers(bytes);
});
