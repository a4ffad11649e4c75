//! The compiler's messages about mistakes: `ui/fail/<mistake>.rs` with the text in
//! `<mistake>.stderr`.
//!
//! Review a change of the text like a change of a user interface. The text depends on the
//! toolchain. `TRYBUILD=overwrite` updates it.

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("macros/ui/fail/*.rs");
    cases.pass("macros/ui/pass/*.rs");
}
