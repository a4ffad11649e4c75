//! See `tests/fuzz/bodies/key.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    lock_tests::fuzz::key::encode(data);
});
