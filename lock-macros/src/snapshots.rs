//! Compares the output of the macros with `snapshots/*.rs`.
//!
//! `UPDATE_EXPECT=1 cargo test -p lock-macros` updates the files. Review every difference: each
//! locked function of each user expands to this code.

use expect_test::{ExpectFile, expect_file};
use proc_macro2::TokenStream;
use quote::quote;

#[allow(clippy::needless_pass_by_value)] // `expect_file!` returns a value
fn check(expansion: TokenStream, expected: ExpectFile) {
    let text = expansion.to_string();
    let file = syn::parse2(expansion).unwrap_or_else(|error| panic!("{error}: {text}"));
    expected.assert_eq(&prettyplease::unparse(&file));
}

fn function(args: TokenStream, item: TokenStream, expected: ExpectFile) {
    check(crate::lock_function(args, item), expected);
}

fn method(args: TokenStream, item: TokenStream, expected: ExpectFile) {
    let method = crate::lock_function(args, item);
    check(quote!(impl Service { #method }), expected);
}

#[test]
fn key_only() {
    function(
        quote!(key = "order:<user_id>"),
        quote! {
            /// Orders.
            pub async fn order(user_id: u64) -> Result<u64, Error> {
                #![allow(unused)]
                Ok(user_id)
            }
        },
        expect_file!["../snapshots/key_only.rs"],
    );
}

#[test]
fn every_argument() {
    method(
        quote! {
            key = "order:<self.id>:{cmd.sku}:<(a > b)>:fixed",
            ttl = "1m30s",
            wait = patience,
            max_hold = "1h",
            min_hold = none,
            renew = false,
            fencing = self.fencing,
            options = self.options,
            client = self.locks,
            lease = lease,
            on_busy = Self::busy,
            on_error = |error| Err(error.into()),
            on_lost = finish,
            crate = facade::locks,
        },
        quote! {
            async fn order<T: Send>(&self, cmd: Cmd, a: T, b: T) -> Result<impl Display, Error>
            where
                T: PartialOrd,
            {
                use std::fmt::Write as _;
                cmd.run(lease).await
            }
        },
        expect_file!["../snapshots/every_argument.rs"],
    );
}

#[test]
fn patterns() {
    function(
        quote!(key = key_of(&id)),
        quote! {
            async fn order(
                Path(id): Path<u64>,
                (mut a, _): (A, B),
                State { db, .. }: State,
                _: C,
                _unused: D,
                #[allow(unused)] mut text: String,
            ) -> Result<(), Error> {
                Ok(())
            }
        },
        expect_file!["../snapshots/patterns.rs"],
    );
}

#[test]
fn patterns_that_another_attribute_reads() {
    function(
        quote!(key = "a"),
        quote! {
            #[instrument(skip(db))]
            async fn order(State { db, .. }: State, _: C) -> Result<(), Error> {
                Ok(())
            }
        },
        expect_file!["../snapshots/patterns_that_another_attribute_reads.rs"],
    );
}

#[test]
fn owned_self() {
    method(
        quote!(key = "a", wait = forever, on_error = drop),
        quote!(
            async fn stop(mut self: Box<Self>) {}
        ),
        expect_file!["../snapshots/owned_self.rs"],
    );
}

#[test]
fn boxed() {
    method(
        quote!(key = "order:<user_id>"),
        quote! {
            fn order<'life0, 'async_trait>(
                &'life0 self,
                user_id: u64,
            ) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + 'async_trait>>
            where
                'life0: 'async_trait,
            {
                Box::pin(async move {
                    let __self = self;
                    let user_id = user_id;
                    let __ret: Result<u64, Error> = { Ok(user_id) };
                    __ret
                })
            }
        },
        expect_file!["../snapshots/boxed.rs"],
    );
}

#[test]
fn mistake() {
    function(
        quote!(key = "order:<userid>"),
        quote! {
            #[distributed_lock(key = "b")]
            async fn order(user_id: u64) -> Result<u64, Error> {
                Ok(user_id)
            }
        },
        expect_file!["../snapshots/mistake.rs"],
    );
}

#[test]
fn key() {
    let key = crate::key_expression(quote!("order:<<{user.id()}>>"));
    check(quote!(const KEY: Key = #key;), expect_file!["../snapshots/key.rs"]);
}

#[test]
fn key_part() {
    check(
        crate::key_part_impl(quote!(
            #[key_part(crate = facade)]
            struct Id<'a, T: Debug>(&'a T);
        )),
        expect_file!["../snapshots/key_part.rs"],
    );
}
