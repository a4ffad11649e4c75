//! What the compiler says about the most common mistakes with the layer. Each file is named after
//! one.

#[test]
fn mistakes_are_explained_where_they_are_made() {
    trybuild::TestCases::new().compile_fail("tower/ui/*.rs");
}
