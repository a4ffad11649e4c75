//! What the compiler says about mistakes: `ui/fail/<mistake>.rs` with the words in `<mistake>.stderr`.
//!
//! The words are read by people: review a change of them like text in a user interface. They are
//! those of one toolchain; `TRYBUILD=overwrite` writes them anew.

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("macros/ui/fail/*.rs");
    cases.pass("macros/ui/pass/*.rs");
}
