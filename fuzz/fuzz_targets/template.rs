//! See `tests/fuzz/bodies/template.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    lock_tests::fuzz::template::parse(data);
});
