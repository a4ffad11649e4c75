//! The macros of `lock-core`.
//!
//! Use them through `lock_core`, which exports all three with its feature `macros`. The generated
//! code calls that crate. See [`macro@distributed_lock`] for the reference.

mod args;
mod duration;
mod expand;
mod fallback;
mod item;
mod key_part;
mod messages;
mod model;
mod nearest;
mod params;
#[cfg(test)]
mod snapshots;
mod template;
mod validate;

use proc_macro::TokenStream;

#[doc = include_str!("../docs/distributed_lock.md")]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    lock_function(args.into(), item.into()).into()
}

#[doc = include_str!("../docs/key.md")]
#[proc_macro]
pub fn key(input: TokenStream) -> TokenStream {
    key_expression(input.into()).into()
}

#[doc = include_str!("../docs/key_part.md")]
#[proc_macro_derive(KeyPart, attributes(key_part))]
pub fn derive_key_part(input: TokenStream) -> TokenStream {
    key_part_impl(input.into()).into()
}

fn lock_function(
    args: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> proc_macro2::TokenStream {
    let lock = syn::parse2::<item::Function>(item.clone())
        .and_then(|function| validate::lock(&syn::parse2(args)?, &function));
    match lock {
        Ok(lock) => expand::function(&lock),
        Err(error) => fallback::item(item, &error),
    }
}

fn key_expression(input: proc_macro2::TokenStream) -> proc_macro2::TokenStream {
    let key = syn::parse2::<args::KeyArgs>(input).and_then(|args| {
        let key = validate::key_template(&args.template)?;
        Ok(expand::key_template(&key, &expand::private(&args.root)))
    });
    key.unwrap_or_else(|error| error.to_compile_error())
}

fn key_part_impl(input: proc_macro2::TokenStream) -> proc_macro2::TokenStream {
    syn::parse2(input)
        .and_then(|input| key_part::derive(&input))
        .unwrap_or_else(|error| error.to_compile_error())
}
