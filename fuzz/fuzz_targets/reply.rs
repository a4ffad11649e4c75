//! See `tests/fuzz/bodies/reply.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    lock_tests::fuzz::reply::read(data);
});
