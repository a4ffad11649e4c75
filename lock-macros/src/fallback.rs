//! What is written when the attribute cannot be expanded.
//!
//! The function stays, without the lock, so that its callers do not fail as well and an editor still
//! knows it. The error that goes with it keeps such a program from being built.

use proc_macro2::TokenStream;
use quote::quote;

use crate::validate;

/// `item` with the `error` beside it.
pub(crate) fn item(item: TokenStream, error: &syn::Error) -> TokenStream {
    let error = error.to_compile_error();
    // A second `#[distributed_lock]` would be expanded next, with complaints of its own.
    let item = match syn::parse2::<crate::item::Function>(item.clone()) {
        Ok(mut function) => {
            function.attrs.retain(|attr| !validate::is_ours(attr));
            quote!(#function)
        }
        Err(_) => item,
    };
    quote!(#item #error)
}
